/*
 * schema.c: a count that grows whenever what statements mean may have changed.
 *
 * Model       The server tells each session of changes of the catalogs, so
 *             that it drops what it has cached. plancache.c listens, for plans;
 *             this listens to the same: relations, types, functions,
 *             operators, schemas, foreign servers. hawser.schema is the
 *             number of such messages, reported like hawser.state: before the
 *             ReadyForQuery of a transaction's end, if it has grown.
 * When        A session reads these messages when it begins a transaction or
 *             takes a lock. So a change made elsewhere, past the pooler, is
 *             reported by whichever of its connections is used next.
 * Errs        to one side: ANALYZE, CREATE INDEX and temporary tables of any
 *             session count as well. What that costs the pooler is a Parse
 *             that it would otherwise have answered itself. A message names a
 *             relation by its number and a type by a hash: which of them are
 *             temporary cannot be looked up where the messages are read, nor
 *             later, when the table is gone again.
 */
#include "postgres.h"

#include "hawser.h"
#include "compat.h"
#include "inside.h"

#include "access/xact.h"
#include "utils/inval.h"
#include "utils/syscache.h"

static uint64 received = 0;		/* messages */
static uint64 marked = 0;		/* of them, when the parameter was marked last */
static char *schema_variable = NULL;	/* the parameter's own value: of no meaning */

static void
on_relation(Datum arg, Oid relation)
{
	received++;
	room_schema_changed();
}

static void
on_catalog(Datum arg, int cache, uint32 hash)
{
	received++;
	room_schema_changed();
}

static const char *
show_schema(void)
{
	static char text[24];

	if (!hawser_report || !is_regular_backend())
		return "";
	snprintf(text, sizeof(text), UINT64_FORMAT, received);
	return text;
}

static void
at_transaction_end(XactEvent event, void *arg)
{
	if (!hawser_report || received == marked ||
		(event != XACT_EVENT_COMMIT && event != XACT_EVENT_ABORT && event != XACT_EVENT_PREPARE))
		return;
	marked = received;
	SetConfigOption(SCHEMA_NAME, "", PGC_INTERNAL, PGC_S_OVERRIDE);
}

/* The session has asked for it: from now on the parameter is reported. */
void
schema_report_to_client(void)
{
	Setting    *setting = settings_find(SCHEMA_NAME);

	if (setting == NULL || (setting->flags & GUC_REPORT) != 0)
		return;
	setting->flags |= GUC_REPORT;
	report_from_the_start(SCHEMA_NAME);
	/* as InitPlanCache() does */
	CacheRegisterRelcacheCallback(on_relation, (Datum) 0);
	CacheRegisterSyscacheCallback(PROCOID, on_catalog, (Datum) 0);
	CacheRegisterSyscacheCallback(TYPEOID, on_catalog, (Datum) 0);
	CacheRegisterSyscacheCallback(NAMESPACEOID, on_catalog, (Datum) 0);
	CacheRegisterSyscacheCallback(OPEROID, on_catalog, (Datum) 0);
	CacheRegisterSyscacheCallback(AMOPOPID, on_catalog, (Datum) 0);
	CacheRegisterSyscacheCallback(FOREIGNSERVEROID, on_catalog, (Datum) 0);
	CacheRegisterSyscacheCallback(FOREIGNDATAWRAPPEROID, on_catalog, (Datum) 0);
}

void
schema_define(void)
{
	DefineCustomStringVariable(SCHEMA_NAME,
							   "Grows whenever what statements mean may have changed.",
							   "Sent to clients that started with hawser.report = on.",
							   &schema_variable, "", PGC_INTERNAL,
							   GUC_NO_SHOW_ALL | GUC_NOT_IN_SAMPLE | GUC_DISALLOW_IN_FILE,
							   NULL, NULL, show_schema);
	RegisterXactCallback(at_transaction_end, NULL);
}
