/*
 * clients.c: the clients of the poolers, and the view hawser_sessions.
 *
 * Model       A pooler on this host is asked (local.c) and names all of its
 *             clients. Of any other those are known that a backend serves now
 *             (slots.c). Who is found in both is the same by pooler and id; so
 *             is who is found in two slots, since a backend keeps the client that
 *             it has served until the next comes: the one at work counts.
 * Invariants  A role sees a client whose user's rights it has, or all with
 *             those of pg_read_all_stats, or as the pooler's role.
 */
#include "postgres.h"

#include "hawser.h"
#include "compat.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/un.h>

#include "catalog/pg_authid.h"
#include "commands/dbcommands.h"
#include "fmgr.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "utils/acl.h"
#include "utils/builtins.h"
#include "utils/fmgrprotos.h"
#include "utils/tuplestore.h"

#define COLUMNS 10
#define CLIENT_FIELDS 10

PG_FUNCTION_INFO_V1(hawser_clients);

/* What poolers on this host have said. */
typedef struct Answers
{
	List	   *rows;
	List	   *poolers;		/* uint64 * */
} Answers;

static void
read_address(const char *text, const char *port, SockAddr *out)
{
	struct sockaddr_in *v4 = (struct sockaddr_in *) &out->addr;
	struct sockaddr_in6 *v6 = (struct sockaddr_in6 *) &out->addr;

	memset(out, 0, sizeof(*out));
	if (inet_pton(AF_INET, text, &v4->sin_addr) == 1)
	{
		v4->sin_family = AF_INET;
		v4->sin_port = htons(atoi(port));
	}
	else if (inet_pton(AF_INET6, text, &v6->sin6_addr) == 1)
	{
		v6->sin6_family = AF_INET6;
		v6->sin6_port = htons(atoi(port));
	}
	else
		out->addr.ss_family = AF_UNIX;
}

static void
add_answer(void *context, const char *socket, uint64 pooler, char **fields)
{
	Answers	   *all = context;
	ClientRow  *row;

	if (fields == NULL)
	{
		uint64	   *one = palloc(sizeof(uint64));

		*one = pooler;
		all->poolers = lappend(all->poolers, one);
		return;
	}
	row = palloc0(sizeof(ClientRow));
	row->id = strtoul(fields[0], NULL, 10);
	row->pooler = pooler;
	read_address(fields[1], fields[2], &row->address);
	row->database = fields[3];
	row->user = fields[4];
	row->role = get_role_oid(fields[4], true);
	row->application_name = fields[5];
	row->state = fields[6];
	row->backend = atoi(fields[7]);
	row->own_port = (uint16) atoi(fields[8]);
	row->mptcp = fields[9][0] == '1';
	row->socket = socket;
	row->slot = -1;
	all->rows = lappend(all->rows, row);
}

/* One that a pooler elsewhere has lent a backend. */
static ClientRow *
from_slot(int slot, const Client *client)
{
	ClientRow  *row = palloc0(sizeof(ClientRow));
	PgBackendStatus *backend = NULL;

	row->id = client->id;
	row->pooler = client->pooler;
	row->role = client->role;
	row->user = GetUserNameFromId(client->role, true);
	row->address = client->address;
	row->backend = client->pid;
	row->slot = slot;
	row->client = *client;
	for (int i = 0; (backend = backend_status(i)) != NULL; i++)
		if (backend->st_procpid == client->pid)
			break;
	if (backend != NULL)
	{
		row->database = get_database_name(backend->st_databaseid);
		row->application_name = backend->st_appname;
		row->state = backend->st_state == STATE_IDLE ? "idle" : "active";
	}
	return row;
}

/* The row of this client, if another slot has given it. */
static ListCell *
find_row(List *rows, const Client *client)
{
	ListCell   *cell;

	foreach(cell, rows)
	{
		const ClientRow *row = lfirst(cell);

		if (row->socket == NULL && row->id == client->id && row->pooler == client->pooler)
			return cell;
	}
	return NULL;
}

static void
add_slot(List **rows, int slot, const Client *client)
{
	ListCell   *other = find_row(*rows, client);
	ClientRow  *row = from_slot(slot, client);

	if (other == NULL)
		*rows = lappend(*rows, row);
	else if (row->state != NULL && strcmp(row->state, "active") == 0)
		lfirst(other) = row;
}

/* All clients that are known, or those with this id. */
List *
clients_known(uint32 id)
{
	Answers		all = {NIL, NIL};
	ListCell   *cell;
	Client		client;

	local_ask_all(id == 0 ? "clients\n" : psprintf("client %u\n", id), CLIENT_FIELDS, add_answer, &all);
	for (int slot = 0; slots_get(slot, &client, NULL); slot++)
	{
		bool		is_answered = false;

		if (client.pid == 0 || (id != 0 && client.id != id))
			continue;
		/* who has said which clients it has, or that it has not this one, has none besides */
		foreach(cell, all.poolers)
			is_answered |= *(uint64 *) lfirst(cell) == client.pooler;
		if (!is_answered)
			add_slot(&all.rows, slot, &client);
	}
	return all.rows;
}

typedef struct Search
{
	const ClientRow *row;
	bool		found;
} Search;

static void
check_answer(void *context, const char *socket, uint64 pooler, char **fields)
{
	Search	   *search = context;

	if (fields != NULL && pooler == search->row->pooler && strtoul(fields[0], NULL, 10) == search->row->id)
		search->found = true;
}

/* Asks of this client alone, and so no pooler but its own. */
Presence
client_presence(const ClientRow *row)
{
	Search		search = {.row = row};
	Client		client;

	if (row->socket != NULL &&
		!local_ask(row->socket, psprintf("client %u\n", row->id), CLIENT_FIELDS, check_answer, &search))
		return PRESENCE_UNKNOWN;
	/* (Others of its backends have it in their slots until the next client.) */
	if (row->socket == NULL && slots_get(row->slot, &client, NULL))
		search.found = client.pid == row->client.pid && client.id == row->id && client.pooler == row->pooler;
	return search.found ? PRESENCE_THERE : PRESENCE_GONE;
}

static void
put_row(Tuplestorestate *rows, TupleDesc columns, const ClientRow *row)
{
	Datum		values[COLUMNS] = {0};
	bool		nulls[COLUMNS];
	char		host[INET6_ADDRSTRLEN];
	const struct sockaddr_in *v4 = (const struct sockaddr_in *) &row->address.addr;
	const struct sockaddr_in6 *v6 = (const struct sockaddr_in6 *) &row->address.addr;
	int			port = -1;

	memset(nulls, true, sizeof(nulls));
	if (v4->sin_family == AF_INET && inet_ntop(AF_INET, &v4->sin_addr, host, sizeof(host)) != NULL)
		port = ntohs(v4->sin_port);
	else if (v6->sin6_family == AF_INET6 && inet_ntop(AF_INET6, &v6->sin6_addr, host, sizeof(host)) != NULL)
		port = ntohs(v6->sin6_port);
	values[0] = Int32GetDatum((int32) row->id);
	nulls[0] = false;
	if (port >= 0)
	{
		values[1] = DirectFunctionCall1(inet_in, CStringGetDatum(host));
		values[2] = Int32GetDatum(port);
		nulls[1] = nulls[2] = false;
	}
#define TEXT_COLUMN(at, text) \
	do { \
		nulls[at] = (text) == NULL; \
		if (!nulls[at]) \
			values[at] = CStringGetTextDatum(text); \
	} while (0)
	TEXT_COLUMN(3, row->database);
	TEXT_COLUMN(4, row->user);
	TEXT_COLUMN(5, row->application_name);
	TEXT_COLUMN(6, row->state);
	values[7] = Int32GetDatum(row->backend);
	nulls[7] = row->backend == 0;
	TEXT_COLUMN(8, psprintf("%016llx", (unsigned long long) row->pooler));
	values[9] = BoolGetDatum(row->socket != NULL);
	nulls[9] = false;
	tuplestore_putvalues(rows, columns, values, nulls);
}

Datum
hawser_clients(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *result = (ReturnSetInfo *) fcinfo->resultinfo;
	TupleDesc	columns;
	Tuplestorestate *rows;
	MemoryContext old;
	ListCell   *cell;
	List	   *all;
	bool		sees_all = has_privs_of_role(GetUserId(), ROLE_PG_READ_ALL_STATS) ||
		(hawser_pooler_role != NULL && hawser_pooler_role[0] != '\0' &&
		 get_role_oid(hawser_pooler_role, true) == GetUserId());

	if (result == NULL || !IsA(result, ReturnSetInfo) || !(result->allowedModes & SFRM_Materialize))
		ereport(ERROR, (errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
						errmsg("a set is not accepted here")));
	if (get_call_result_type(fcinfo, NULL, &columns) != TYPEFUNC_COMPOSITE || columns->natts != COLUMNS)
		elog(ERROR, "the SQL declaration of clients() is of another version");
	all = clients_known(0);

	old = MemoryContextSwitchTo(result->econtext->ecxt_per_query_memory);
	rows = tuplestore_begin_heap(true, false, work_mem);
	result->returnMode = SFRM_Materialize;
	result->setResult = rows;
	result->setDesc = CreateTupleDescCopy(columns);
	MemoryContextSwitchTo(old);

	foreach(cell, all)
	{
		const ClientRow *row = lfirst(cell);

		if (sees_all || (OidIsValid(row->role) && has_privs_of_role(GetUserId(), row->role)))
			put_row(rows, columns, row);
	}
	return (Datum) 0;
}
