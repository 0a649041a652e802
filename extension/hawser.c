/*
 * hawser.c: loading, the extension's settings, and what SQL can call of it.
 */
#include "postgres.h"

#include "hawser.h"
#include "compat.h"
#include "inside.h"

#include "fmgr.h"
#include "miscadmin.h"
#include "tcop/tcopprot.h"

PG_MODULE_MAGIC;

extern PGDLLEXPORT void _PG_init(void);

bool		hawser_report = false;
static bool hawser_hand_over_wanted = false;
static int	hand_over_flags = HAND_OVER_FLAGS;
static char *challenge_variable = NULL; /* the parameter's own value: of no meaning */
static char *connection_name = NULL;
static char *secret_file = NULL;

/* Any session may ask: it sees only itself. */
static void
report_assigned(bool value, void *extra)
{
	if (!value)
		return;
	state_report_to_client();
	schema_report_to_client();
	kept_report_to_client();
}

/* "POOLER/NUMBER", in hexadecimal and decimal. Anything else names nothing. */
static void
connection_assigned(const char *value, void *extra)
{
	unsigned long long pooler,
				number;
	char		end;

	if (value != NULL && is_regular_backend() && sscanf(value, "%16llx/%20llu%c", &pooler, &number, &end) == 2)
		slots_connect(pooler, number);
}

static void
hand_over_assigned(bool value, void *extra)
{
	Setting    *setting = value ? settings_find("hawser.challenge") : NULL;

	if (setting != NULL)
		setting->flags |= GUC_REPORT;
}

static const char *
show_challenge(void)
{
	return hawser_hand_over_wanted && is_regular_backend() ? secret_challenge() : "";
}

/* What only the server itself may decide: of another loading none of it is in force. */
static void
preloaded(void)
{
	pooler_define();
	DefineCustomStringVariable("hawser.secret_file",
							   "File with the secret that this server shares with its poolers.",
							   "Empty: nobody hands over sessions.",
							   &secret_file, "", PGC_POSTMASTER, GUC_SUPERUSER_ONLY, NULL, NULL, NULL);
	DefineCustomStringVariable("hawser.pooler_role",
							   "The role whose sessions may be handed over to clients of other roles.",
							   NULL, &hawser_pooler_role, "", PGC_SIGHUP, 0, NULL, NULL, NULL);
	DefineCustomStringVariable("hawser.control_sockets",
							   "Control sockets of Hawsers on this host, with commas.",
							   "Empty: that of the one that this server starts.",
							   &hawser_control_sockets, "", PGC_SIGHUP, GUC_SUPERUSER_ONLY, NULL, NULL, NULL);
	if (secret_file[0] != '\0')
		secret_read(secret_file);
	inside_define();
	MarkGUCPrefixReserved("hawser");
	slots_install();
	pooler_register();
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
	schema_define();
	kept_define();
	state_install(in_mid_session);
	DefineCustomBoolVariable("hawser.report",
							 "Reports the session's state to its client in hawser.state.",
							 "Given at the start of a session, by a pooler.",
							 &hawser_report, false, PGC_BACKEND, GUC_NOT_IN_SAMPLE,
							 NULL, report_assigned, NULL);
	DefineCustomStringVariable("hawser.connection",
							   "What the pooler calls this connection.",
							   "Given at the start of a session, by a pooler.",
							   &connection_name, "", PGC_BACKEND,
							   GUC_NO_SHOW_ALL | GUC_NOT_IN_SAMPLE | GUC_DISALLOW_IN_FILE,
							   NULL, connection_assigned, NULL);
	DefineCustomBoolVariable("hawser.client_pids",
							 "Shows a pooler's client by its own process id, not by that of the backend that serves it.",
							 NULL, &hawser_client_pids, true, PGC_USERSET, 0, NULL, NULL, NULL);
	DefineCustomStringVariable("hawser.challenge",
							   "What the key of this session's hand-overs is made of.",
							   "Sent to clients that started with hawser.hand_over = on.",
							   &challenge_variable, "", PGC_INTERNAL,
							   GUC_NO_SHOW_ALL | GUC_NOT_IN_SAMPLE | GUC_DISALLOW_IN_FILE,
							   NULL, NULL, show_challenge);
	DefineCustomBoolVariable("hawser.hand_over",
							 "Asks for the challenge that hand-overs need.",
							 "Given at the start of a session, by a pooler.",
							 &hawser_hand_over_wanted, false, PGC_BACKEND, GUC_NOT_IN_SAMPLE,
							 NULL, hand_over_assigned, NULL);
	DefineCustomIntVariable("hawser.hand_over_flags",
							"What a message that hands this session over may have.",
							NULL, &hand_over_flags, HAND_OVER_FLAGS, HAND_OVER_FLAGS, HAND_OVER_FLAGS,
							PGC_INTERNAL,
							GUC_NO_SHOW_ALL | GUC_NOT_IN_SAMPLE | GUC_DISALLOW_IN_FILE,
							NULL, NULL, NULL);
	track_install();
	signals_install();
	processes_install();
	if (process_shared_preload_libraries_in_progress)
		preloaded();
}
