/*
 * state.c: the text of hawser.state, and when it is sent.
 *
 * Model       hawser.state is a parameter that no user can set, with
 *             GUC_REPORT and a show hook that computes it. The end of a
 *             transaction marks it as changed if anything may have changed;
 *             the server then calls the hook just before ReadyForQuery, and
 *             sends a ParameterStatus if the text differs from the one it
 *             sent last.
 * Text        README.md, "The text of hawser.state"
 * Invariants  The hook reads no catalog and raises no error: it runs outside
 *             transactions.
 *             A session that did not ask (hawser.report) gets no message, and
 *             pays for a test of one variable in each hook.
 * Why not     Computing in the transaction callback: that runs before
 *             AtEOXact_GUC, and would report what SET LOCAL has set.
 *             Marking at every end: up to 15 the server then searches through
 *             all settings twice, for those changed and those to report.
 */
#include "postgres.h"

#include "hawser.h"
#include "compat.h"

#include "access/xact.h"
#include "commands/async.h"
#include "commands/sequence.h"
#include "common/shortest_dec.h"
#include "executor/executor.h"
#include "fmgr.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "replication/origin.h"
#include "replication/slot.h"
#include "storage/lwlock.h"
#include "storage/proc.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/fmgrprotos.h"
#include "utils/memutils.h"

/* A longer value is left out: its setting is named without one. */
#define VALUE_BYTES_MAX 1024
/* So is a name, and the text says "more". */
#define NAME_BYTES_MAX 1024
/* A longer text is cut at an item, and says "more". */
#define STATE_BYTES_MAX (16 * 1024)

static char *state_variable = NULL; /* the parameter's own value: of no meaning */
static StringInfoData state_text;		/* the last that was computed */
static StringInfoData channels; /* its item of LISTENed channels */
static bool in_mid_session = false; /* loaded after the session's start */
static bool started = false;	/* the names of the start are known */
static bool pending = true;		/* marked, and not computed since */
static bool marked = false;		/* likewise, and not taken since; but for what was drawn from sequences */
static bool drew = false;		/* that, likewise */
static char **start_names = NULL;	/* custom names that the session began with */
static int	start_name_count = 0;

/* The flags and the count of the last text: what is no list. */
typedef struct Facts
{
	bool		temporary;
	bool		sequences;
	bool		seed;
	bool		loads;
	bool		backup;
	bool		origin;
	int			locks;
} Facts;

static Facts last;

static Facts
facts_now(void)
{
	Facts		now = {
		.temporary = temporary_present(),
		.sequences = traces.sequences,
		.seed = traces.seed,
		.loads = traces.loads,
		.backup = backup_is_running(),
		.origin = replorigin_session_origin != InvalidRepOriginId,
		.locks = user_locks_held(),
	};

	return now;
}

static bool
facts_differ(const Facts *a, const Facts *b)
{
	return a->temporary != b->temporary || a->sequences != b->sequences ||
		a->seed != b->seed || a->loads != b->loads || a->backup != b->backup ||
		a->origin != b->origin || a->locks != b->locks;
}

/* Letters, digits and _.-/ as they are, other bytes as %XX: ASCII in any encoding. */
void
state_append_escaped(StringInfo out, const char *source, size_t length_max)
{
	static const char hex[] = "0123456789ABCDEF";

	for (size_t i = 0; source[i] != '\0' && i < length_max; i++)
	{
		unsigned char c = (unsigned char) source[i];

		if ((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
			c == '_' || c == '.' || c == '-' || c == '/')
			appendStringInfoChar(out, c);
		else
		{
			appendStringInfoChar(out, '%');
			appendStringInfoChar(out, hex[c >> 4]);
			appendStringInfoChar(out, hex[c & 15]);
		}
	}
}

static bool
is_custom_name(const Setting *setting)
{
	return (setting->flags & GUC_CUSTOM_PLACEHOLDER) != 0 &&
		strncmp(setting->name, "hawser.", strlen("hawser.")) != 0;
}

/* What the session began with is no state of it. */
static void
remember_start(void)
{
	int			count;
	Setting   **all = settings_all(&count);

	for (int i = 0; i < count; i++)
	{
		if (!is_custom_name(all[i]))
			continue;
		if (start_name_count % 16 == 0)
		{
			Size		size = (start_name_count + 16) * sizeof(char *);

			start_names = start_names == NULL
				? MemoryContextAlloc(TopMemoryContext, size)
				: repalloc(start_names, size);
		}
		start_names[start_name_count++] = MemoryContextStrdup(TopMemoryContext, all[i]->name);
	}
	pfree(all);
	track_begin();
	started = true;
}

static bool
is_start_name(const char *name)
{
	for (int i = 0; i < start_name_count; i++)
		if (pg_strcasecmp(start_names[i], name) == 0)
			return true;
	return false;
}

char *
setting_value(const Setting *setting)
{
	char	   *shown = GetConfigOptionByName(setting->name, NULL, true);
	double		value,
				read;

	if (shown == NULL || setting->vartype != PGC_REAL)
		return shown;
	value = *((const struct config_real *) setting)->variable;
	if (!parse_real(shown, &read, setting->flags, NULL) || read != value)
	{
		pfree(shown);
		shown = palloc(DOUBLE_SHORTEST_DECIMAL_LEN);
		double_to_shortest_decimal_buf(value, shown);
	}
	return shown;
}

/*
 * Whether the session has SET it. RESET followed by SET LOCAL ends as a value
 * of the session's (AtEOXact_GUC, guc.c), with the rights of where RESET found
 * it: those of no statement, unless it is a role's setting.
 */
static bool
is_set(const Setting *setting)
{
	return setting->source == PGC_S_SESSION &&
		(setting->scontext == PGC_USERSET || setting->scontext == PGC_SUSET ||
		 setting->scontext != setting->reset_scontext);
}

/*
 * A custom name of the session's own making. One that it has not SET, and that
 * RESET gives a value, has that from elsewhere: a role's settings, at a hand-over.
 */
static bool
is_made_name(const Setting *setting)
{
	return is_custom_name(setting) && !is_start_name(setting->name) &&
		(is_set(setting) || setting->reset_source <= PGC_S_DYNAMIC_DEFAULT);
}

/*
 * " set=name:value,..." and " names=name,...".
 *
 * A value that only some roles may see is left out, as one that is too long:
 * the reader then knows that there is a value, not which. Whether names are
 * left out, too: a part of one would be another's.
 */
static bool
append_settings(StringInfo out)
{
	int			count;
	Setting   **all = settings_all(&count);
	bool		first = true;
	bool		more = false;

	for (int i = 0; i < count; i++)
	{
		Setting    *setting = all[i];
		char	   *value;

		if (!is_set(setting) || setting->context == PGC_INTERNAL ||
			strcmp(setting->name, "seed") == 0)
			continue;
		if (strlen(setting->name) > NAME_BYTES_MAX)
		{
			more = true;
			continue;
		}
		appendStringInfoString(out, first ? " set=" : ",");
		first = false;
		state_append_escaped(out, setting->name, NAME_BYTES_MAX);
		if (setting->flags & GUC_SUPERUSER_ONLY)
			continue;
		value = setting_value(setting);
		if (value == NULL)
			continue;
		if (strlen(value) <= VALUE_BYTES_MAX)
		{
			appendStringInfoChar(out, ':');
			state_append_escaped(out, value, VALUE_BYTES_MAX);
		}
		pfree(value);
	}
	first = true;
	for (int i = 0; i < count; i++)
	{
		if (!is_made_name(all[i]))
			continue;
		if (strlen(all[i]->name) > NAME_BYTES_MAX)
		{
			more = true;
			continue;
		}
		appendStringInfoString(out, first ? " names=" : ",");
		first = false;
		state_append_escaped(out, all[i]->name, NAME_BYTES_MAX);
	}
	pfree(all);
	return more;
}

/*
 * The list itself is static in async.c; its function reads it without any
 * catalog, and gives one name a call.
 */
static void
read_channels(void)
{
	FmgrInfo	function;
	ExprContext *context = CreateStandaloneExprContext();
	ReturnSetInfo result = {.type = T_ReturnSetInfo};

	LOCAL_FCINFO(call, 0);

	resetStringInfo(&channels);
	memset(&function, 0, sizeof(function));
	function.fn_addr = pg_listening_channels;
	function.fn_oid = F_PG_LISTENING_CHANNELS;
	function.fn_strict = true;
	function.fn_retset = true;
	function.fn_mcxt = CurrentMemoryContext;
	result.econtext = context;
	result.allowedModes = SFRM_ValuePerCall;
	result.returnMode = SFRM_ValuePerCall;
	InitFunctionCallInfoData(*call, &function, 0, InvalidOid, NULL, (Node *) &result);
	for (;;)
	{
		Datum		name = pg_listening_channels(call);
		char	   *channel;

		if (result.isDone != ExprMultipleResult)
			break;
		channel = TextDatumGetCString(name);
		appendStringInfoString(&channels, channels.len == 0 ? " listen=" : ",");
		state_append_escaped(&channels, channel, NAMEDATALEN);
		pfree(channel);
	}
	FreeExprContext(context, true);
	traces.listen = false;
}

static bool
has_temporary_slot(void)
{
	bool		found = false;

	LWLockAcquire(ReplicationSlotControlLock, LW_SHARED);
	for (int i = 0; i < max_replication_slots && !found; i++)
	{
		ReplicationSlot *slot = &ReplicationSlotCtl->replication_slots[i];

		found = slot->in_use && slot->data.persistency == RS_TEMPORARY &&
			slot->active_pid == MyProcPid;
	}
	LWLockRelease(ReplicationSlotControlLock);
	return found;
}

static void
compute(void)
{
	bool		more;

	last = facts_now();
	traces.settings = false;
	(void) track_statements_changed();
	(void) track_cursors_changed();
	if (traces.listen)
		read_channels();
	if (traces.slots)
		traces.slots = has_temporary_slot();

	resetStringInfo(&state_text);
	appendStringInfoString(&state_text, STATE_VERSION);
	if (in_mid_session)
		appendStringInfoString(&state_text, " late");
	if (last.temporary)
		appendStringInfoString(&state_text, " temp");
	if (last.locks > 0)
		appendStringInfo(&state_text, " locks=%d", last.locks);
	if (last.sequences)
		appendStringInfoString(&state_text, " sequences");
	if (last.seed)
		appendStringInfoString(&state_text, " seed");
	if (last.loads)
		appendStringInfoString(&state_text, " library");
	if (last.backup)
		appendStringInfoString(&state_text, " backup");
	if (last.origin)
		appendStringInfoString(&state_text, " origin");
	if (traces.slots)
		appendStringInfoString(&state_text, " slots");
	track_append_cursors(&state_text);
	appendStringInfoString(&state_text, channels.data);
	track_append_statements(&state_text);
	more = append_settings(&state_text);
	if (state_text.len > STATE_BYTES_MAX)
	{
		/* what can be cut without half a name: everything after the last comma or space */
		int			end = STATE_BYTES_MAX;

		while (end > 0 && state_text.data[end] != ',' && state_text.data[end] != ' ')
			end--;
		state_text.len = end;
		state_text.data[end] = '\0';
		more = true;
	}
	if (more)
		appendStringInfoString(&state_text, " more");
	pending = false;
}

/*
 * The show hook.
 *
 * Within a transaction (SHOW, or ReadyForQuery after "COMMIT; BEGIN") it
 * gives what was true at the last end: now there are locks and values that
 * are the transaction's own. The next end marks again. A transaction whose
 * savepoint has failed goes on, too, though its state is no longer one in
 * progress. One that has failed itself has ended already: its ROLLBACK marks
 * nothing.
 */
static const char *
show_state(void)
{
	if (!hawser_report || !is_regular_backend())
		return "";
	if (!started)
		remember_start();
	if (pending && !IsTransactionState() && GetCurrentTransactionNestLevel() <= 1)
		compute();
	return state_text.data;
}

static void
at_transaction_end(XactEvent event, void *arg)
{
	Facts		now;
	bool		left = pending;

	if (!hawser_report || !is_regular_backend())
		return;
	switch (event)
	{
		case XACT_EVENT_PRE_COMMIT:
			temporary_before_commit();
			return;
		case XACT_EVENT_COMMIT:
			temporary_committed(!in_mid_session);
			break;
		case XACT_EVENT_ABORT:
		case XACT_EVENT_PREPARE:
			temporary_aborted();
			break;
		default:
			return;
	}
	track_transaction_ended();
	if (!left)
	{
		now = facts_now();
		drew |= now.sequences && !last.sequences;
		pending = now.sequences != last.sequences;
		now.sequences = last.sequences;
		/* user locks of now may be the transaction's own, in place of others */
		left = facts_differ(&now, &last) || now.locks > 0;
	}
	/* each of these must be asked, for some of them take note of the answer */
	left |= track_statements_changed();
	left |= track_cursors_changed();
	left |= traces.settings || settings_names_changed() || traces.listen || traces.slots ||
		(traces.foreign && settings_touched());
	marked |= left;
	pending |= left;
	if (pending)
		SetConfigOption(STATE_NAME, "", PGC_INTERNAL, PGC_S_OVERRIDE);
}

/* Whether all that this session has ever done is known. */
bool
state_is_known(void)
{
	return started && !in_mid_session;
}

/* Whether a transaction may have left something, or taken something away, since that was last taken. */
bool
state_is_marked(void)
{
	return marked;
}

bool
state_take_mark(void)
{
	bool		was = marked;

	marked = false;
	return was;
}

bool
state_take_draw(void)
{
	bool		was = drew;

	drew = false;
	return was;
}

/* currval and lastval are undefined again, as DISCARD SEQUENCES leaves them. */
void
state_forget_draws(void)
{
	ResetSequenceCaches();
	traces.sequences = last.sequences = false;
}

/* What has been set outside of transactions, for the next client, is not what one has left. */
void
state_take_as_given(void)
{
	int			count;

	traces.settings = false;
	if (settings_names_changed())
		pfree(settings_all(&count));
}

void
state_report_again(void)
{
	Setting    *setting = settings_find(STATE_NAME);

	pending = true;
	/* no state is an empty text */
	if (setting != NULL && setting->last_reported != NULL)
		setting->last_reported[0] = '\0';
	SetConfigOption(STATE_NAME, "", PGC_INTERNAL, PGC_S_OVERRIDE);
}

/* The session has asked for it: from now on the parameter is reported. */
void
state_report_to_client(void)
{
	Setting    *setting = settings_find(STATE_NAME);

	if (setting != NULL)
	{
		setting->flags |= GUC_REPORT;
		report_from_the_start(STATE_NAME);
	}
}

void
state_define(void)
{
	DefineCustomStringVariable(STATE_NAME,
							   "What this session has that a pooler must know of.",
							   "Sent to clients that started with hawser.report = on.",
							   &state_variable, "", PGC_INTERNAL,
							   GUC_NO_SHOW_ALL | GUC_NOT_IN_SAMPLE | GUC_DISALLOW_IN_FILE,
							   NULL, NULL, show_state);
}

void
state_install(bool in_the_middle)
{
	MemoryContext old = MemoryContextSwitchTo(TopMemoryContext);

	initStringInfo(&state_text);
	appendStringInfoString(&state_text, STATE_VERSION);
	initStringInfo(&channels);
	MemoryContextSwitchTo(old);
	in_mid_session = in_the_middle;
	RegisterXactCallback(at_transaction_end, NULL);
}
