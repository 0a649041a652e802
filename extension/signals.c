/*
 * signals.c: pg_cancel_backend() and pg_terminate_backend() of a client's id.
 *
 * Model       A client behind a pooler has a process id of its own in its
 *             BackendKeyData, above any of the system's. Calls of the server's
 *             two functions are replaced, when a statement is planned, by those
 *             of this extension, which know such ids and give all others to the
 *             server's. A pooler on this host is told to cancel, or to cut off,
 *             its client; of others the backend is signalled that serves the
 *             client at this moment (slots.c).
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
#include "utils/syscache.h"
#include "utils/timestamp.h"

/* pg_terminate_backend() with a timeout: how often it is looked. */
#define LOOK_MS 50

PG_FUNCTION_INFO_V1(hawser_cancel_backend);
PG_FUNCTION_INFO_V1(hawser_terminate_backend);

static planner_hook_type next_planner = NULL;

/* Of this database: what is called in place of the server's. InvalidOid: there is no extension. */
static Oid	cancel_function = InvalidOid;
static Oid	terminate_function = InvalidOid;
static bool functions_known = false;

static void
functions_changed(Datum argument, int cache, uint32 hash)
{
	functions_known = false;
}

/* hawser.NAME, if it is what the extension's script makes. */
static Oid
own_function(Oid schema, const char *name, Oid *types, int type_count, const char *symbol)
{
	HeapTuple	row = SearchSysCache3(PROCNAMEARGSNSP, CStringGetDatum(name),
									  PointerGetDatum(buildoidvector(types, type_count)),
									  ObjectIdGetDatum(schema));
	Form_pg_proc form;
	Oid			found = InvalidOid;
	Datum		source,
				library;
	bool		no_source,
				no_library;

	if (!HeapTupleIsValid(row))
		return InvalidOid;
	form = (Form_pg_proc) GETSTRUCT(row);
	source = SysCacheGetAttr(PROCOID, row, Anum_pg_proc_prosrc, &no_source);
	library = SysCacheGetAttr(PROCOID, row, Anum_pg_proc_probin, &no_library);
	/* anybody may make a schema of this name in a database of his own; C functions are a superuser's */
	if (form->prolang == ClanguageId && !no_source && !no_library &&
		strcmp(TextDatumGetCString(source), symbol) == 0 &&
		strcmp(TextDatumGetCString(library), "$libdir/hawser") == 0)
		found = form->oid;
	ReleaseSysCache(row);
	return found;
}

static void
find_functions(void)
{
	Oid			types[] = {INT4OID, INT8OID};
	Oid			schema = get_namespace_oid("hawser", true);

	functions_known = true;
	cancel_function = terminate_function = InvalidOid;
	if (!OidIsValid(schema))
		return;
	cancel_function = own_function(schema, "cancel_backend", types, 1, "hawser_cancel_backend");
	terminate_function = own_function(schema, "terminate_backend", types, 2, "hawser_terminate_backend");
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

		if (call->funcid == F_PG_CANCEL_BACKEND && OidIsValid(cancel_function))
			call->funcid = cancel_function;
		else if (call->funcid == F_PG_TERMINATE_BACKEND && OidIsValid(terminate_function))
			call->funcid = terminate_function;
	}
	return expression_tree_walker(node, replace, context);
}

static PlannedStmt *
on_planning(Query *query, const char *text, int options, ParamListInfo parameters)
{
	if (!functions_known && IsTransactionState())
		find_functions();
	if (OidIsValid(cancel_function) || OidIsValid(terminate_function))
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
		ereport(WARNING, (errmsg("%d clients have the process id %d", list_length(found), (int) id),
						  errdetail("Each pooler numbers its own clients; hawser.hawser_sessions has them.")));
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

static void
check_execute(Oid function, const char *name)
{
	if (!may_execute(function, GetUserId()))
		aclcheck_error(ACLCHECK_NO_PRIV, OBJECT_FUNCTION, name);
}

/* Cancels or ends; the row of whom, or NULL if it did not come to that. */
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

Datum
hawser_cancel_backend(PG_FUNCTION_ARGS)
{
	int32		id = PG_GETARG_INT32(0);

	check_execute(F_PG_CANCEL_BACKEND, "pg_cancel_backend");
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

	check_execute(F_PG_TERMINATE_BACKEND, "pg_terminate_backend");
	if (id < CLIENT_ID_FIRST || timeout < 0)
		return DirectFunctionCall2(pg_terminate_backend, PG_GETARG_DATUM(0), PG_GETARG_DATUM(1));
	until = TimestampTzPlusMilliseconds(GetCurrentTimestamp(), Min(timeout, PG_INT32_MAX));
	row = signal_client(id, true);
	if (row == NULL)
		PG_RETURN_BOOL(false);
	while (timeout > 0)
	{
		bool		there = false;
		ListCell   *cell;
		List	   *now = clients_known(id);

		foreach(cell, now)
			there |= ((ClientRow *) lfirst(cell))->pooler == row->pooler;
		if (!there)
			break;
		if (GetCurrentTimestamp() >= until)
		{
			ereport(WARNING, (errmsg("the client with process id %d did not end within %lld milliseconds",
									 id, (long long) timeout)));
			PG_RETURN_BOOL(false);
		}
		CHECK_FOR_INTERRUPTS();
		pg_usleep(LOOK_MS * 1000L);
	}
	PG_RETURN_BOOL(true);
}
