/*
 * processes.c: SQL knows a client by one process id, the one of its BackendKeyData.
 *
 * Model       signals.c puts the functions of this file in the place of the
 *             server's that take or give process ids of backends. They call the
 *             server's, and put a client's id in the place of that of the
 *             backend that serves it at this moment. What serves no client
 *             (other connections, workers, idle server connections) has its
 *             own.
 * Known       Which client a backend serves: the pooler on this host is asked. It
 *             names its connections by the startup parameter hawser.connection,
 *             and its answer counts only with the process id that it knows.
 *             For a pooler elsewhere, the last hand-over counts (slots.c).
 * Invariants  A session's own id is the same throughout a transaction, in
 *             pg_backend_pid() and in each view: the client has the backend
 *             for all of it.
 * Limits      Clients of a pooler elsewhere that hands nothing over are not
 *             known. Two functions of one statement look at two moments.
 * Why         docs/decisions/0007
 */
#include "postgres.h"

#include "hawser.h"
#include "compat.h"

#include "access/htup_details.h"
#include "access/xact.h"
#include "catalog/pg_type.h"
#include "fmgr.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/fmgrprotos.h"
#include "utils/memutils.h"
#include "utils/timestamp.h"
#include "utils/tuplestore.h"
#include "utils/typcache.h"

/* What is known serves the calls of one statement, for as long: a monitor asks of each of its rows. */
#define KNOWN_MS_MAX 20
#define LENT_FIELDS 3
/* Of the server's functions whose first one is a process id. */
#define ARGUMENTS_MAX 2

bool		hawser_client_pids = true;

/* A backend that a pooler has, and the client that it serves; 0: none, or not known yet. */
typedef struct Pair
{
	int			backend;
	int			client;
	int			handed_to;		/* by the last hand-over; 0: there was none */
	uint64		owner;			/* the pooler whose client that is */
	uint64		pooler;			/* the pooler's name for its connection */
	uint64		number;
	bool		answered;		/* that pooler has said which clients have backends */
} Pair;

typedef struct Pairs
{
	Pair	   *all;
	int			count;
} Pairs;

static MemoryContext context = NULL;
static Pairs known = {NULL, 0};
static TimestampTz known_at = 0;
static TimestampTz known_for = 0;	/* the statement */

/* This session's own, for the rest of the transaction. 0: not asked yet. */
static int	own = 0;

static void
at_transaction_end(XactEvent event, void *argument)
{
	own = 0;
	known_at = 0;
}

void
processes_install(void)
{
	RegisterXactCallback(at_transaction_end, NULL);
}

/* A line of a pooler's: number of its connection, the server's process id, the client's. */
static void
lent(void *argument, const char *socket, uint64 pooler, char **fields)
{
	Pairs	   *pairs = argument;
	uint64		number = fields == NULL ? 0 : strtoull(fields[0], NULL, 10);

	for (int i = 0; i < pairs->count; i++)
	{
		Pair	   *pair = &pairs->all[i];

		if (pair->pooler != pooler)
			continue;
		pair->answered = true;
		/* the process id as well: a number alone could be any client's claim */
		if (fields != NULL && pair->number == number && pair->backend == atoi(fields[1]))
			pair->client = atoi(fields[2]);
	}
}

static Pair
pair_of(const Client *client, const ServerConnection *connection)
{
	Pair		pair = {0};

	pair.backend = connection->pid != 0 ? connection->pid : client->pid;
	pair.handed_to = client->pid != 0 ? (int) client->id : 0;
	pair.pooler = connection->pid != 0 ? connection->pooler : 0;
	pair.owner = client->pid != 0 ? client->pooler : pair.pooler;
	pair.number = connection->number;
	return pair;
}

static int
own_id(void)
{
	Client		client;
	ServerConnection connection;

	if (own == 0)
	{
		own = MyProcPid;
		if (slots_own(&client, &connection))
		{
			Pair		pair = pair_of(&client, &connection);
			Pairs		pairs = {&pair, 1};

			/* the client that it was handed to has it as long as it runs something */
			if (pair.handed_to == 0 && pair.pooler != 0)
				local_ask_all(psprintf("lent %llu\n", (unsigned long long) pair.number), LENT_FIELDS, lent, &pairs);
			if (pair.handed_to != 0 || pair.client != 0)
				own = pair.handed_to != 0 ? pair.handed_to : pair.client;
		}
	}
	return own;
}

/* Whether this is the id of the client that this backend serves. */
bool
is_own_client(int id)
{
	return id >= CLIENT_ID_FIRST && id == own_id();
}

/* Of poolers elsewhere it is not known when a client has given its backend
 * back: one that is idle may serve no client. */
static bool
is_idle(int backend)
{
	PgBackendStatus *entry;

	for (int i = 0; (entry = backend_status(i)) != NULL; i++)
		if (entry->st_procpid == backend)
			return entry->st_state == STATE_IDLE;
	return true;
}

static void
read_slots(void)
{
	Client		client;
	ServerConnection connection;
	int			room = 64;

	known.count = 0;
	known.all = palloc(room * sizeof(Pair));
	for (int slot = 0; slots_get(slot, &client, &connection); slot++)
	{
		if (client.pid == 0 && connection.pid == 0)
			continue;
		if (known.count == room)
			known.all = repalloc(known.all, (room *= 2) * sizeof(Pair));
		known.all[known.count++] = pair_of(&client, &connection);
	}
}

static const Pairs *
look(void)
{
	TimestampTz now = GetCurrentTimestamp();
	MemoryContext old;
	int			mine = own_id();

	if (known_for == GetCurrentStatementStartTimestamp() && known_at != 0 &&
		!TimestampDifferenceExceeds(known_at, now, KNOWN_MS_MAX))
		return &known;
	if (context == NULL)
		context = AllocSetContextCreate(TopMemoryContext, "hawser process ids", ALLOCSET_SMALL_SIZES);
	known_at = 0;
	MemoryContextReset(context);
	old = MemoryContextSwitchTo(context);
	read_slots();
	MemoryContextSwitchTo(old);
	if (known.count > 0)
		local_ask_all("lent\n", LENT_FIELDS, lent, &known);
	for (int i = 0; i < known.count; i++)
	{
		Pair	   *pair = &known.all[i];

		if (pair->backend == MyProcPid)
			pair->client = mine;
		else if (!pair->answered && pair->handed_to != 0 && !is_idle(pair->backend))
			pair->client = pair->handed_to;
	}
	known_for = GetCurrentStatementStartTimestamp();
	known_at = now;
	return &known;
}

/* The id of the client that a backend serves, or its own. */
static int
shown(const Pairs *pairs, int backend)
{
	for (int i = 0; i < pairs->count; i++)
		if (pairs->all[i].backend == backend && pairs->all[i].client != 0)
			return pairs->all[i].client;
	return backend;
}

/*
 * The backend of the client with this id; as it is where that is none's, or
 * with a warning of clients of two poolers: there is no such process then.
 */
static int
meant(const Pairs *pairs, int id)
{
	const Pair *found = NULL;

	for (int i = 0; i < pairs->count && id >= CLIENT_ID_FIRST; i++)
	{
		const Pair *pair = &pairs->all[i];

		if (pair->client != id)
			continue;
		if (found != NULL && found->owner != pair->owner)
		{
			warn_of_equal_ids(2, id);
			return id;
		}
		if (found == NULL)
			found = pair;
	}
	return found == NULL ? id : found->backend;
}

static Datum
each(Datum array, const Pairs *pairs, int (*change) (const Pairs *, int))
{
	ArrayType  *copy = DatumGetArrayTypePCopy(array);
	int			count = ArrayGetNItems(ARR_NDIM(copy), ARR_DIMS(copy));
	int32	   *ids = (int32 *) ARR_DATA_PTR(copy);

	if (ARR_ELEMTYPE(copy) != INT4OID || array_contains_nulls(copy))
		return array;			/* the server's own error */
	for (int i = 0; i < count; i++)
		ids[i] = change(pairs, ids[i]);
	return PointerGetDatum(copy);
}

/* Rows: the columns that are process ids of backends. */
static void
show_in_row(const Pairs *pairs, TupleDesc columns, Datum *values, const bool *nulls)
{
	for (int i = 0; i < columns->natts; i++)
	{
		Form_pg_attribute column = TupleDescAttr(columns, i);
		const char *name = NameStr(column->attname);

		if (!nulls[i] && column->atttypid == INT4OID &&
			(strcmp(name, "pid") == 0 || strcmp(name, "leader_pid") == 0 || strcmp(name, "active_pid") == 0))
			values[i] = Int32GetDatum(shown(pairs, DatumGetInt32(values[i])));
	}
}

static Datum
show_in_tuple(const Pairs *pairs, Datum row)
{
	HeapTupleHeader header = DatumGetHeapTupleHeader(row);
	TupleDesc	columns = lookup_rowtype_tupdesc(HeapTupleHeaderGetTypeId(header), HeapTupleHeaderGetTypMod(header));
	HeapTupleData tuple = {.t_len = HeapTupleHeaderGetDatumLength(header), .t_data = header};
	Datum	   *values = palloc(columns->natts * sizeof(Datum));
	bool	   *nulls = palloc(columns->natts * sizeof(bool));
	Datum		changed;

	ItemPointerSetInvalid(&tuple.t_self);
	heap_deform_tuple(&tuple, columns, values, nulls);
	show_in_row(pairs, columns, values, nulls);
	changed = heap_copy_tuple_as_datum(heap_form_tuple(columns, values, nulls), columns);
	ReleaseTupleDesc(columns);
	return changed;
}

static void
show_in_rows(const Pairs *pairs, ReturnSetInfo *result)
{
	MemoryContext old = MemoryContextSwitchTo(result->econtext->ecxt_per_query_memory);
	Tuplestorestate *rows = tuplestore_begin_heap((result->allowedModes & SFRM_Materialize_Random) != 0, false, work_mem);
	TupleTableSlot *slot = MakeSingleTupleTableSlot(result->setDesc, &TTSOpsMinimalTuple);

	MemoryContextSwitchTo(old);
	while (tuplestore_gettupleslot(result->setResult, true, false, slot))
	{
		slot_getallattrs(slot);
		show_in_row(pairs, result->setDesc, slot->tts_values, slot->tts_isnull);
		tuplestore_putvalues(rows, result->setDesc, slot->tts_values, slot->tts_isnull);
	}
	ExecDropSingleTupleTableSlot(slot);
	tuplestore_end(result->setResult);
	result->setResult = rows;
}

/* A function of the server's that gives rows, whichever way it gives them. */
static Datum
show_rows(PGFunction function, Oid oid, FunctionCallInfo fcinfo)
{
	ReturnSetInfo *result = (ReturnSetInfo *) fcinfo->resultinfo;
	Datum		row;
	const Pairs *pairs;

	/* a function that gives one row a call keeps its place there */
	if (fcinfo->flinfo->fn_extra == NULL)
		check_execute(oid);
	row = function(fcinfo);
	if (!hawser_client_pids || result == NULL || !IsA(result, ReturnSetInfo))
		return row;
	pairs = look();
	if (result->returnMode == SFRM_Materialize && result->setResult != NULL)
		show_in_rows(pairs, result);
	else if (result->returnMode == SFRM_ValuePerCall && result->isDone == ExprMultipleResult && !fcinfo->isnull)
		return show_in_tuple(pairs, row);
	return row;
}

/*
 * Calls a function of the server's whose first argument is a process id, with
 * the backend's in place of a client's. In a copy of the call: the executor
 * writes a constant once, and a plan that runs again would ask of the backend
 * that the client had the first time.
 */
static Datum
call_with_backend(PGFunction function, FunctionCallInfo fcinfo)
{
	LOCAL_FCINFO(call, ARGUMENTS_MAX);
	NullableDatum *first = &call->args[0];
	Datum		result;

	Assert(fcinfo->nargs >= 1 && fcinfo->nargs <= ARGUMENTS_MAX);
	memcpy(call, fcinfo, SizeForFunctionCallInfo(fcinfo->nargs));
	if (hawser_client_pids && !first->isnull && DatumGetInt32(first->value) >= CLIENT_ID_FIRST)
		first->value = Int32GetDatum(meant(look(), DatumGetInt32(first->value)));
	result = function(call);
	fcinfo->isnull = call->isnull;
	return result;
}

/* The same, and it gives an array of them. */
static Datum
give_array(PGFunction function, Oid oid, FunctionCallInfo fcinfo)
{
	Datum		array;

	check_execute(oid);
	array = call_with_backend(function, fcinfo);
	return hawser_client_pids && !fcinfo->isnull ? each(array, look(), shown) : array;
}

PG_FUNCTION_INFO_V1(hawser_pg_backend_pid);
Datum
hawser_pg_backend_pid(PG_FUNCTION_ARGS)
{
	check_execute(F_PG_BACKEND_PID);
	PG_RETURN_INT32(hawser_client_pids ? own_id() : MyProcPid);
}

static Datum
stat_get_activity(FunctionCallInfo fcinfo)
{
	return call_with_backend(pg_stat_get_activity, fcinfo);
}

PG_FUNCTION_INFO_V1(hawser_pg_stat_get_activity);
Datum
hawser_pg_stat_get_activity(PG_FUNCTION_ARGS)
{
	return show_rows(stat_get_activity, F_PG_STAT_GET_ACTIVITY, fcinfo);
}

PG_FUNCTION_INFO_V1(hawser_pg_stat_get_progress_info);
Datum
hawser_pg_stat_get_progress_info(PG_FUNCTION_ARGS)
{
	return show_rows(pg_stat_get_progress_info, F_PG_STAT_GET_PROGRESS_INFO, fcinfo);
}

PG_FUNCTION_INFO_V1(hawser_pg_get_replication_slots);
Datum
hawser_pg_get_replication_slots(PG_FUNCTION_ARGS)
{
	return show_rows(pg_get_replication_slots, F_PG_GET_REPLICATION_SLOTS, fcinfo);
}

PG_FUNCTION_INFO_V1(hawser_pg_lock_status);
Datum
hawser_pg_lock_status(PG_FUNCTION_ARGS)
{
	return show_rows(pg_lock_status, F_PG_LOCK_STATUS, fcinfo);
}

PG_FUNCTION_INFO_V1(hawser_pg_stat_get_backend_pid);
Datum
hawser_pg_stat_get_backend_pid(PG_FUNCTION_ARGS)
{
	Datum		pid;

	check_execute(F_PG_STAT_GET_BACKEND_PID);
	pid = pg_stat_get_backend_pid(fcinfo);
	if (!hawser_client_pids || fcinfo->isnull)
		return pid;
	PG_RETURN_INT32(shown(look(), DatumGetInt32(pid)));
}

PG_FUNCTION_INFO_V1(hawser_pg_blocking_pids);
Datum
hawser_pg_blocking_pids(PG_FUNCTION_ARGS)
{
	return give_array(pg_blocking_pids, F_PG_BLOCKING_PIDS, fcinfo);
}

PG_FUNCTION_INFO_V1(hawser_pg_safe_snapshot_blocking_pids);
Datum
hawser_pg_safe_snapshot_blocking_pids(PG_FUNCTION_ARGS)
{
	return give_array(pg_safe_snapshot_blocking_pids, F_PG_SAFE_SNAPSHOT_BLOCKING_PIDS, fcinfo);
}

PG_FUNCTION_INFO_V1(hawser_pg_isolation_test_session_is_blocked);
Datum
hawser_pg_isolation_test_session_is_blocked(PG_FUNCTION_ARGS)
{
	LOCAL_FCINFO(call, 2);

	check_execute(F_PG_ISOLATION_TEST_SESSION_IS_BLOCKED);
	memcpy(call, fcinfo, SizeForFunctionCallInfo(2));
	if (hawser_client_pids)
		call->args[1].value = each(call->args[1].value, look(), meant);
	return call_with_backend(pg_isolation_test_session_is_blocked, call);
}

PG_FUNCTION_INFO_V1(hawser_pg_log_backend_memory_contexts);
Datum
hawser_pg_log_backend_memory_contexts(PG_FUNCTION_ARGS)
{
	check_execute(F_PG_LOG_BACKEND_MEMORY_CONTEXTS);
	return call_with_backend(pg_log_backend_memory_contexts, fcinfo);
}

#ifdef F_PG_STAT_GET_BACKEND_IO
PG_FUNCTION_INFO_V1(hawser_pg_stat_get_backend_io);
Datum
hawser_pg_stat_get_backend_io(PG_FUNCTION_ARGS)
{
	check_execute(F_PG_STAT_GET_BACKEND_IO);
	return call_with_backend(pg_stat_get_backend_io, fcinfo);
}

PG_FUNCTION_INFO_V1(hawser_pg_stat_get_backend_wal);
Datum
hawser_pg_stat_get_backend_wal(PG_FUNCTION_ARGS)
{
	check_execute(F_PG_STAT_GET_BACKEND_WAL);
	return call_with_backend(pg_stat_get_backend_wal, fcinfo);
}

PG_FUNCTION_INFO_V1(hawser_pg_stat_reset_backend_stats);
Datum
hawser_pg_stat_reset_backend_stats(PG_FUNCTION_ARGS)
{
	check_execute(F_PG_STAT_RESET_BACKEND_STATS);
	return call_with_backend(pg_stat_reset_backend_stats, fcinfo);
}
#endif
