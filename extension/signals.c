/*
 * signals.c: pg_cancel_backend() and pg_terminate_backend() of a client's id.
 *
 * Model       A client behind a pooler has a process id of its own in its
 *             BackendKeyData, above any of the system's. Calls of the server's
 *             two functions are replaced, when a statement is planned, by those
 *             of this extension, which know such ids and give all others to the
 *             server's. A pooler on this host gets the order to cancel, or to
 *             cut off, its client; for others the backend is signalled that
 *             serves the client at this moment (slots.c). A session that means
 *             itself signals its own process, as the server's functions do: the
 *             pooler's order comes later than the end of the statement.
 * Invariants  The rights are the server's: the client's role, or those of
 *             pg_signal_backend, a superuser's only by superusers; and EXECUTE
 *             of the function that was called.
 *             Only C functions of this library are put in place of others.
 * Why not     The fmgr hook: it does not see built-in functions.
 * Limits      In databases without the extension, and in expressions that are
 *             not planned (arguments of CALL), the server's functions are called.
 *             An idle client of a pooler elsewhere is not known here.
 */
#include "postgres.h"

#include "hawser.h"
#include "compat.h"

#include <signal.h>

#include "access/htup_details.h"
#include "access/transam.h"
#include "access/xact.h"
#include "catalog/namespace.h"
#include "catalog/pg_authid.h"
#include "catalog/pg_language.h"
#include "catalog/pg_proc.h"
#include "catalog/pg_type.h"
#include "fmgr.h"
#include "miscadmin.h"
#include "nodes/nodeFuncs.h"
#include "optimizer/planner.h"
#include "utils/acl.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/fmgrprotos.h"
#include "utils/inval.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/syscache.h"
#include "utils/timestamp.h"

/* pg_terminate_backend() with a timeout: how often it is looked. */
#define LOOK_MS 50

PG_FUNCTION_INFO_V1(hawser_cancel_backend);
PG_FUNCTION_INFO_V1(hawser_terminate_backend);

static planner_hook_type next_planner = NULL;

/*
 * Functions of the server, and what is called in their place in this database.
 * InvalidOid: there is no extension. `together`: with all of these or none, so
 * that one id is the same in each of them.
 */
typedef struct Replacement
{
	Oid			server;
	const char *name;			/* in the schema hawser */
	const char *symbol;
	bool		together;
	Oid			own;
} Replacement;

static Replacement replacements[] = {
	{F_PG_CANCEL_BACKEND, "cancel_backend", "hawser_cancel_backend", false},
	{F_PG_TERMINATE_BACKEND, "terminate_backend", "hawser_terminate_backend", false},
	{F_PG_SHOW_ALL_SETTINGS, "pg_show_all_settings", "hawser_pg_show_all_settings", false},
	{F_PG_BACKEND_PID, "pg_backend_pid", "hawser_pg_backend_pid", true},
	{F_PG_STAT_GET_ACTIVITY, "pg_stat_get_activity", "hawser_pg_stat_get_activity", true},
	{F_PG_STAT_GET_BACKEND_PID, "pg_stat_get_backend_pid", "hawser_pg_stat_get_backend_pid", true},
	{F_PG_STAT_GET_PROGRESS_INFO, "pg_stat_get_progress_info", "hawser_pg_stat_get_progress_info", true},
	{F_PG_GET_REPLICATION_SLOTS, "pg_get_replication_slots", "hawser_pg_get_replication_slots", true},
	{F_PG_LOCK_STATUS, "pg_lock_status", "hawser_pg_lock_status", true},
	{F_PG_BLOCKING_PIDS, "pg_blocking_pids", "hawser_pg_blocking_pids", true},
	{F_PG_SAFE_SNAPSHOT_BLOCKING_PIDS, "pg_safe_snapshot_blocking_pids", "hawser_pg_safe_snapshot_blocking_pids", true},
	{F_PG_ISOLATION_TEST_SESSION_IS_BLOCKED, "pg_isolation_test_session_is_blocked",
	"hawser_pg_isolation_test_session_is_blocked", true},
	{F_PG_LOG_BACKEND_MEMORY_CONTEXTS, "pg_log_backend_memory_contexts", "hawser_pg_log_backend_memory_contexts", true},
#ifdef F_PG_STAT_GET_BACKEND_IO	/* 18 */
	{F_PG_STAT_GET_BACKEND_IO, "pg_stat_get_backend_io", "hawser_pg_stat_get_backend_io", true},
	{F_PG_STAT_GET_BACKEND_WAL, "pg_stat_get_backend_wal", "hawser_pg_stat_get_backend_wal", true},
	{F_PG_STAT_RESET_BACKEND_STATS, "pg_stat_reset_backend_stats", "hawser_pg_stat_reset_backend_stats", true},
#endif
};

/* Changes of functions and schemas that the session has seen; those that the
 * search has included. 0: there was none. */
static uint64 changes = 1;
static uint64 searched_at = 0;
static bool any_replacement = false;

static void
functions_changed(Datum argument, int cache, uint32 hash)
{
	changes++;
}

/* Whether a function's library is this one, by whichever path it was named. */
static bool
is_this_library(const char *path)
{
	const char *name = strrchr(path, '/');

	name = name == NULL ? path : name + 1;
	return strcmp(name, "hawser") == 0 || strcmp(name, "hawser.so") == 0;
}

static const char *
text_attribute(HeapTuple row, AttrNumber attribute)
{
	bool		is_null;
	Datum		value = SysCacheGetAttr(PROCOID, row, attribute, &is_null);

	return is_null ? "" : TextDatumGetCString(value);
}

/* Whether two functions give the same: a server that was upgraded may have other columns than the extension knows. */
static bool
have_same_results(HeapTuple one, HeapTuple other)
{
	bool		one_has_none,
				other_has_none;
	Datum		of_one = SysCacheGetAttr(PROCOID, one, Anum_pg_proc_proallargtypes, &one_has_none);
	Datum		of_other = SysCacheGetAttr(PROCOID, other, Anum_pg_proc_proallargtypes, &other_has_none);

	if (((Form_pg_proc) GETSTRUCT(one))->prorettype != ((Form_pg_proc) GETSTRUCT(other))->prorettype ||
		one_has_none != other_has_none)
		return false;
	return one_has_none || DatumGetBool(OidFunctionCall2Coll(F_ARRAY_EQ, InvalidOid, of_one, of_other));
}

/* hawser.NAME, if it is what the extension's script makes in place of the server's. */
static Oid
own_function(Oid schema, const Replacement *replacement)
{
	HeapTuple	server = SearchSysCache1(PROCOID, ObjectIdGetDatum(replacement->server));
	HeapTuple	row;
	Oid			found = InvalidOid;

	if (!HeapTupleIsValid(server))
		return InvalidOid;
	row = SearchSysCache3(PROCNAMEARGSNSP, CStringGetDatum(replacement->name),
						  PointerGetDatum(&((Form_pg_proc) GETSTRUCT(server))->proargtypes),
						  ObjectIdGetDatum(schema));
	if (HeapTupleIsValid(row))
	{
		/* any user may make a schema of this name in a database of his own; C functions are a superuser's */
		if (((Form_pg_proc) GETSTRUCT(row))->prolang == ClanguageId &&
			strcmp(text_attribute(row, Anum_pg_proc_prosrc), replacement->symbol) == 0 &&
			is_this_library(text_attribute(row, Anum_pg_proc_probin)) &&
			have_same_results(row, server))
			found = ((Form_pg_proc) GETSTRUCT(row))->oid;
		ReleaseSysCache(row);
	}
	ReleaseSysCache(server);
	return found;
}

/* One that fails, or during which there are changes, is done again at the next statement. */
static void
find_functions(void)
{
	uint64		as_of = changes;
	Oid			schema = get_namespace_oid("hawser", true);
	bool		together = true;

	any_replacement = false;
	for (int i = 0; i < lengthof(replacements); i++)
	{
		Replacement *one = &replacements[i];

		one->own = OidIsValid(schema) ? own_function(schema, one) : InvalidOid;
		together &= !one->together || OidIsValid(one->own);
	}
	for (int i = 0; i < lengthof(replacements); i++)
	{
		if (replacements[i].together && !together)
			replacements[i].own = InvalidOid;
		any_replacement |= OidIsValid(replacements[i].own);
	}
	searched_at = as_of;
}

static bool
replace(Node *node, void *context)
{
	if (node == NULL)
		return false;
	if (IsA(node, Query))
		return query_tree_walker((Query *) node, replace, context, 0);
	if (IsA(node, FuncExpr))
	{
		FuncExpr   *call = (FuncExpr *) node;

		/* the server's own functions have small numbers */
		for (int i = 0; call->funcid < FirstGenbkiObjectId && i < lengthof(replacements); i++)
			if (call->funcid == replacements[i].server && OidIsValid(replacements[i].own))
			{
				call->funcid = replacements[i].own;
				break;
			}
	}
	return expression_tree_walker(node, replace, context);
}

static PlannedStmt *
on_planning(Query *query, const char *text, int options, ParamListInfo parameters)
{
	if (searched_at != changes && IsTransactionState())
		find_functions();
	if (any_replacement)
		(void) replace((Node *) query, NULL);
	return next_planner != NULL
		? next_planner(query, text, options, parameters)
		: standard_planner(query, text, options, parameters);
}

void
signals_install(void)
{
	next_planner = planner_hook;
	planner_hook = on_planning;
	CacheRegisterSyscacheCallback(PROCOID, functions_changed, (Datum) 0);
	CacheRegisterSyscacheCallback(NAMESPACEOID, functions_changed, (Datum) 0);
}

void
warn_of_equal_ids(int count, int id)
{
	ereport(WARNING, (errmsg("%d clients have the process id %d", count, id),
					  errdetail("Each pooler numbers its own clients; hawser.hawser_sessions has them.")));
}

/* The client with this id, or NULL and a warning, as the server has for processes. */
static ClientRow *
find(uint32 id)
{
	List	   *found = clients_known(id);

	if (list_length(found) == 1)
		return linitial(found);
	if (found == NIL)
		ereport(WARNING, (errmsg(no_such_process(), (int) id)));
	else
		warn_of_equal_ids(list_length(found), (int) id);
	return NULL;
}

static void
check_rights(const ClientRow *row, Oid function, const char *what)
{
	if ((!OidIsValid(row->role) || superuser_arg(row->role)) && !superuser())
		ereport(ERROR, (errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
						errmsg("must be a superuser to %s a superuser's client", what)));
	if (!has_privs_of_role(GetUserId(), row->role) &&
		!has_privs_of_role(GetUserId(), ROLE_PG_SIGNAL_BACKEND))
		ereport(ERROR, (errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
						errmsg("must be a member of the role whose client this is or member of pg_signal_backend")));
}

/* Who may not call the server's function may not call it by way of ours. */
void
check_execute(Oid function)
{
	if (!may_execute(function, GetUserId()))
		aclcheck_error(ACLCHECK_NO_PRIV, OBJECT_FUNCTION, get_func_name(function));
}

/* Cancels or ends; returns the client's row, or NULL if it did not come to that. */
static ClientRow *
signal_client(int32 id, bool terminate)
{
	ClientRow  *row = find(id);
	const char *order = terminate ? "terminate" : "cancel";
	bool		done;

	if (row == NULL)
		return NULL;
	check_rights(row, terminate ? F_PG_TERMINATE_BACKEND : F_PG_CANCEL_BACKEND, order);
	if (row->socket != NULL)
		done = local_order(row->socket, row->pooler, psprintf("%s %d %s\n", order, id, row->user));
	else
		done = slots_signal(row->slot, &row->client, terminate ? SIGTERM : SIGINT);
	if (done)
		return row;
	ereport(WARNING, (errmsg(no_such_process(), id)));
	return NULL;
}

/* Whether a client that was ordered to end has ended by then. */
static bool
wait_for_end(const ClientRow *row, int64 timeout, TimestampTz until)
{
	MemoryContext look = AllocSetContextCreate(CurrentMemoryContext, "hawser client's end", ALLOCSET_DEFAULT_SIZES);
	MemoryContext old = MemoryContextSwitchTo(look);
	Presence	presence;

	while ((presence = client_presence(row)) == PRESENCE_THERE && GetCurrentTimestamp() < until)
	{
		CHECK_FOR_INTERRUPTS();
		pg_usleep(LOOK_MS * 1000L);
		/* an answer is some kilobytes */
		MemoryContextReset(look);
	}
	MemoryContextSwitchTo(old);
	MemoryContextDelete(look);
	if (presence == PRESENCE_THERE)
		ereport(WARNING, (errmsg("the client with process id %d did not end within %lld milliseconds",
								 (int) row->id, (long long) timeout)));
	else if (presence == PRESENCE_UNKNOWN)
		ereport(WARNING, (errmsg("it is not known whether the client with process id %d has ended", (int) row->id)));
	return presence == PRESENCE_GONE;
}

Datum
hawser_cancel_backend(PG_FUNCTION_ARGS)
{
	int32		id = PG_GETARG_INT32(0);

	check_execute(F_PG_CANCEL_BACKEND);
	if (is_own_client(id))
		return DirectFunctionCall1(pg_cancel_backend, Int32GetDatum(MyProcPid));
	if (id < CLIENT_ID_FIRST)
		return DirectFunctionCall1(pg_cancel_backend, PG_GETARG_DATUM(0));
	PG_RETURN_BOOL(signal_client(id, false) != NULL);
}

Datum
hawser_terminate_backend(PG_FUNCTION_ARGS)
{
	int32		id = PG_GETARG_INT32(0);
	int64		timeout = PG_GETARG_INT64(1);
	TimestampTz until;
	ClientRow  *row;

	check_execute(F_PG_TERMINATE_BACKEND);
	if (is_own_client(id))
		return DirectFunctionCall2(pg_terminate_backend, Int32GetDatum(MyProcPid), PG_GETARG_DATUM(1));
	if (id < CLIENT_ID_FIRST || timeout < 0)
		return DirectFunctionCall2(pg_terminate_backend, PG_GETARG_DATUM(0), PG_GETARG_DATUM(1));
	until = TimestampTzPlusMilliseconds(GetCurrentTimestamp(), Min(timeout, PG_INT32_MAX));
	row = signal_client(id, true);
	if (row == NULL)
		PG_RETURN_BOOL(false);
	if (timeout > 0)
		PG_RETURN_BOOL(wait_for_end(row, timeout, until));
	PG_RETURN_BOOL(true);
}
