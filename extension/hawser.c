/*
 * hawser.c: loading, the extension's settings, and what SQL can call of it.
 */
#include "postgres.h"

#include "hawser.h"
#include "compat.h"

#include "fmgr.h"
#include "miscadmin.h"
#include "tcop/tcopprot.h"

PG_MODULE_MAGIC;

extern PGDLLEXPORT void _PG_init(void);

bool		hawser_report = false;

/* Any session may ask: it learns of nobody but itself. */
static void
report_assigned(bool value, void *extra)
{
	if (value)
		state_report_to_client();
}

void
_PG_init(void)
{
	/*
	 * A session's own LOAD, or the first call of a function: what happened
	 * before is not known. Preloading has no query yet.
	 */
	bool		in_mid_session = IsUnderPostmaster && debug_query_string != NULL;

	state_define();
	state_install(in_mid_session);
	DefineCustomBoolVariable("hawser.report",
							 "Reports the session's state to its client in hawser.state.",
							 "Given at the start of a session, by a pooler.",
							 &hawser_report, false, PGC_BACKEND, GUC_NOT_IN_SAMPLE,
							 NULL, report_assigned, NULL);
	track_install();
	if (process_shared_preload_libraries_in_progress)
	{
		pooler_define();
		MarkGUCPrefixReserved("hawser");
		pooler_register();
	}
}
