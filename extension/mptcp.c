/*
 * mptcp.c: what the kernel knows of the MPTCP sockets of backends, and of the
 * clients of poolers.
 *
 * Model       The kernel is asked over sock_diag for all MPTCP connections of
 *             the network namespace (protocol 262) and then for TCP's, of which
 *             those with MPTCP's ULP_INFO are subflows; the token joins both. A
 *             backend's connection is the one between its client's address and
 *             port, as in pg_stat_activity, and the server's port. So it is
 *             right for a backend in mid-COPY, which could not answer itself.
 *             A pooler on this host names its clients with both ends of their
 *             connections (clients.c); it also says whether one is MPTCP,
 *             because it may be in another network namespace. One elsewhere
 *             names the clients that backends serve at each hand-over
 *             (handover.c).
 * Invariants  A role sees rows of sessions whose pg_stat_activity it sees in
 *             full: its own, or all with pg_read_all_stats (pg_monitor has it).
 * Sources     include/uapi/linux/inet_diag.h, mptcp.h; net/mptcp/mptcp_diag.c
 * Limits      Linux 5.9; bytes and their retransmission 6.5, older kernels: NULL.
 *             Every TCP socket of the machine is walked for the subflows, some
 *             microseconds each, if there is any MPTCP connection to a backend.
 */
#include "postgres.h"

#include "hawser.h"
#include "compat.h"

#include <arpa/inet.h>
#include <linux/inet_diag.h>
#include <linux/netlink.h>
#include <linux/rtnetlink.h>
#include <linux/sock_diag.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include "catalog/pg_authid.h"
#include "catalog/pg_type.h"
#include "fmgr.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "postmaster/postmaster.h"
#include "utils/acl.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/tuplestore.h"

/* Numbers of the kernel that headers of older systems lack. */
#define PROTOCOL_MPTCP 262
#define ATTRIBUTE_PROTOCOL 3	/* INET_DIAG_REQ_PROTOCOL */
#define ATTRIBUTE_INFO 2		/* INET_DIAG_INFO */
#define ATTRIBUTE_ULP 19		/* INET_DIAG_ULP_INFO */
#define ULP_MPTCP 3				/* INET_ULP_INFO_MPTCP */
#define SUBFLOW_TOKEN_REMOTE 1	/* MPTCP_SUBFLOW_ATTR_TOKEN_REM */
#define SUBFLOW_TOKEN_LOCAL 2	/* MPTCP_SUBFLOW_ATTR_TOKEN_LOC */
#define STATES_CONNECTED (0xfff & ~(1 << 10))	/* all but LISTEN */

/* Where things are in struct mptcp_info and tcp_info, which only ever grow. */
#define INFO_SUBFLOWS 0
#define INFO_FLAGS 8
#define INFO_TOKEN 12
#define INFO_RETRANSMITTED 48
#define INFO_SENT 56
#define INFO_RECEIVED 64
#define INFO_SUBFLOWS_TOTAL 80
#define FLAG_FALLBACK 1
#define TCP_DELIVERY_RATE 160

/* More subflows than the kernel allows for one connection. */
#define SUBFLOWS_MAX 64
/* The kernel answers at once; this is against a wait for ever. */
#define ANSWER_SECONDS_MAX 5
#define ANSWER_BYTES (64 * 1024)

#define COLUMNS 11

PG_FUNCTION_INFO_V1(hawser_mptcp_backends);

/* A connection of the kernel's. */
typedef struct Connection
{
	struct in6_addr remote;		/* IPv4 as ::ffff:a.b.c.d */
	uint16		remote_port;
	uint16		local_port;
	bool		fallback;
	bool		has_volume;
	bool		has_remote_token;
	int			subflows;
	uint32		token;
	uint32		remote_token;
	uint64		sent;
	uint64		received;
	uint64		retransmitted;
	int			rate_count;
	Datum		rates[SUBFLOWS_MAX];	/* bytes a second */
} Connection;

typedef struct Dump
{
	Connection *connections;
	int			count;
	int			room;
} Dump;

static uint32
u32_at(const char *bytes, int at)
{
	uint32		value;

	memcpy(&value, bytes + at, sizeof(value));
	return value;
}

static uint64
u64_at(const char *bytes, int at)
{
	uint64		value;

	memcpy(&value, bytes + at, sizeof(value));
	return value;
}

static struct in6_addr
mapped(uint32 ipv4)
{
	struct in6_addr address = {0};

	address.s6_addr[10] = address.s6_addr[11] = 0xff;
	memcpy(&address.s6_addr[12], &ipv4, sizeof(ipv4));
	return address;
}

/* Finds an attribute; its length in `length`. Malformed ones end the search. */
static const char *
attribute(const char *from, int size, int kind, int *length)
{
	*length = 0;
	while (size >= (int) sizeof(struct nlattr))
	{
		struct nlattr header;

		memcpy(&header, from, sizeof(header));
		if (header.nla_len < sizeof(header) || header.nla_len > size)
			return NULL;
		if ((header.nla_type & NLA_TYPE_MASK) == kind)
		{
			*length = header.nla_len - sizeof(header);
			return from + sizeof(header);
		}
		from += NLA_ALIGN(header.nla_len);
		size -= NLA_ALIGN(header.nla_len);
	}
	return NULL;
}

typedef void (*Answer) (Dump *dump, const struct inet_diag_msg *socket,
						const char *attributes, int size);

static void
connection_found(Dump *dump, const struct inet_diag_msg *socket, const char *attributes, int size)
{
	Connection *c;
	int			length;
	const char *info = attribute(attributes, size, ATTRIBUTE_INFO, &length);

	if (info == NULL || length < INFO_TOKEN + 4)
		return;
	if (dump->count == dump->room)
	{
		dump->room = Max(64, dump->room * 2);
		dump->connections = dump->connections == NULL
			? palloc(dump->room * sizeof(Connection))
			: repalloc(dump->connections, dump->room * sizeof(Connection));
	}
	c = &dump->connections[dump->count++];
	memset(c, 0, sizeof(*c));
	if (socket->idiag_family == AF_INET)
		c->remote = mapped(socket->id.idiag_dst[0]);
	else
		memcpy(&c->remote, socket->id.idiag_dst, sizeof(c->remote));
	c->remote_port = ntohs(socket->id.idiag_dport);
	c->local_port = ntohs(socket->id.idiag_sport);
	c->fallback = (u32_at(info, INFO_FLAGS) & FLAG_FALLBACK) != 0;
	c->token = u32_at(info, INFO_TOKEN);
	/* the older field counts those beyond the first */
	c->subflows = (unsigned char) info[INFO_SUBFLOWS] + 1;
	if (length > INFO_SUBFLOWS_TOTAL)
	{
		c->has_volume = true;
		c->retransmitted = u64_at(info, INFO_RETRANSMITTED);
		c->sent = u64_at(info, INFO_SENT);
		c->received = u64_at(info, INFO_RECEIVED);
		if (!c->fallback)
			c->subflows = (unsigned char) info[INFO_SUBFLOWS_TOTAL];
	}
}

static int
by_token(const void *a, const void *b)
{
	uint32		one = ((const Connection *) a)->token;
	uint32		other = ((const Connection *) b)->token;

	return one < other ? -1 : one > other;
}

/* Once all connections are known, and sorted by their tokens. */
static void
subflow_found(Dump *dump, const struct inet_diag_msg *socket, const char *attributes, int size)
{
	int			length;
	const char *ulp = attribute(attributes, size, ATTRIBUTE_ULP, &length);
	const char *subflow = ulp == NULL ? NULL : attribute(ulp, length, ULP_MPTCP, &length);
	const char *local,
			   *remote,
			   *info;
	int			local_length,
				remote_length,
				info_length;
	Connection	key;
	Connection *c;

	if (subflow == NULL)
		return;
	local = attribute(subflow, length, SUBFLOW_TOKEN_LOCAL, &local_length);
	remote = attribute(subflow, length, SUBFLOW_TOKEN_REMOTE, &remote_length);
	info = attribute(attributes, size, ATTRIBUTE_INFO, &info_length);
	if (local == NULL || local_length < 4)
		return;
	key.token = u32_at(local, 0);
	c = bsearch(&key, dump->connections, dump->count, sizeof(Connection), by_token);
	if (c == NULL)
		return;
	if (remote != NULL && remote_length >= 4)
	{
		/* an accepting end that dials nothing does not keep it: 0 */
		c->remote_token = u32_at(remote, 0);
		c->has_remote_token = c->remote_token != 0;
	}
	if (info != NULL && info_length >= TCP_DELIVERY_RATE + 8 && c->rate_count < SUBFLOWS_MAX)
		c->rates[c->rate_count++] = Int64GetDatum((int64) u64_at(info, TCP_DELIVERY_RATE));
}

/* Asks for all sockets of a protocol and family; false with errno. */
static bool
ask(int netlink, int family, int protocol, Dump *dump, Answer answer)
{
	struct
	{
		struct nlmsghdr header;
		struct inet_diag_req_v2 request;
		struct nlattr attribute;
		uint32		protocol;
	}			question;
	char	   *bytes = palloc(ANSWER_BYTES);
	bool		done = false;

	memset(&question, 0, sizeof(question));
	question.header.nlmsg_len = sizeof(question);
	question.header.nlmsg_type = SOCK_DIAG_BY_FAMILY;
	question.header.nlmsg_flags = NLM_F_REQUEST | NLM_F_DUMP;
	question.request.sdiag_family = family;
	/* does not fit MPTCP: the attribute goes before it */
	question.request.sdiag_protocol = (uint8) protocol;
	question.request.idiag_ext = (1 << (ATTRIBUTE_INFO - 1));
	question.request.idiag_states = STATES_CONNECTED;
	question.attribute.nla_len = sizeof(question.attribute) + sizeof(question.protocol);
	question.attribute.nla_type = ATTRIBUTE_PROTOCOL;
	question.protocol = protocol;
	if (send(netlink, &question, sizeof(question), 0) != sizeof(question))
		return false;
	while (!done)
	{
		ssize_t		got = recv(netlink, bytes, ANSWER_BYTES, 0);
		int			left = (int) got;

		if (got < 0 && errno != EINTR)
			return false;
		CHECK_FOR_INTERRUPTS();
		if (got < 0)
			continue;
		if (got == 0)
			return false;
		for (struct nlmsghdr *at = (struct nlmsghdr *) bytes; NLMSG_OK(at, left); at = NLMSG_NEXT(at, left))
		{
			struct inet_diag_msg *socket = NLMSG_DATA(at);
			int			size = (int) at->nlmsg_len - (int) NLMSG_LENGTH(sizeof(*socket));

			if (at->nlmsg_type == NLMSG_DONE)
			{
				done = true;
				break;
			}
			if (at->nlmsg_type == NLMSG_ERROR)
			{
				errno = at->nlmsg_len >= NLMSG_LENGTH(sizeof(struct nlmsgerr))
					? -((struct nlmsgerr *) NLMSG_DATA(at))->error : EPROTO;
				return false;
			}
			if (at->nlmsg_type == SOCK_DIAG_BY_FAMILY && size >= 0)
				answer(dump, socket, (char *) socket + NLMSG_ALIGN(sizeof(*socket)), size);
		}
	}
	pfree(bytes);
	return true;
}

/* Whether it worked; what did not is said. */
static bool
ask_kernel(Dump *dump)
{
	int			netlink = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_SOCK_DIAG);
	struct timeval limit = {.tv_sec = ANSWER_SECONDS_MAX};
	volatile bool worked = false;
	int			error;

	if (netlink >= 0)
	{
		/* an interrupt must not leave the socket open */
		PG_TRY();
		{
			worked = setsockopt(netlink, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit)) == 0 &&
				ask(netlink, AF_INET, PROTOCOL_MPTCP, dump, connection_found) &&
				ask(netlink, AF_INET6, PROTOCOL_MPTCP, dump, connection_found);
			if (worked && dump->count > 0)
			{
				qsort(dump->connections, dump->count, sizeof(Connection), by_token);
				worked = ask(netlink, AF_INET, IPPROTO_TCP, dump, subflow_found) &&
					ask(netlink, AF_INET6, IPPROTO_TCP, dump, subflow_found);
			}
		}
		PG_FINALLY();
		{
			error = errno;
			close(netlink);
			errno = error;
		}
		PG_END_TRY();
	}
	if (!worked)
		ereport(WARNING,
				(errmsg("the kernel was not asked about MPTCP: %m"),
				 errdetail("It needs Linux 5.9, and its module mptcp_diag.")));
	return worked;
}

/* The connection of the client at this address with this port of ours, or NULL. */
static Connection *
connection_of(Dump *dump, const struct sockaddr_storage *client, uint16 own_port)
{
	struct in6_addr address;
	uint16		port;

	if (client->ss_family == AF_INET)
	{
		const struct sockaddr_in *v4 = (const struct sockaddr_in *) client;

		address = mapped(v4->sin_addr.s_addr);
		port = ntohs(v4->sin_port);
	}
	else if (client->ss_family == AF_INET6)
	{
		const struct sockaddr_in6 *v6 = (const struct sockaddr_in6 *) client;

		address = v6->sin6_addr;
		port = ntohs(v6->sin6_port);
	}
	else
		return NULL;
	for (int i = 0; i < dump->count; i++)
	{
		Connection *c = &dump->connections[i];

		if (c->remote_port == port && c->local_port == own_port &&
			memcmp(&c->remote, &address, sizeof(address)) == 0)
			return c;
	}
	return NULL;
}

/* Of the connection itself: pg_stat_activity has that of the client that it was handed over to. */
static const struct sockaddr_storage *
address_of(const PgBackendStatus *backend)
{
	static Client client;

	for (int slot = 0; slots_get(slot, &client, NULL); slot++)
		if (client.pid == backend->st_procpid)
			return &client.own_address.addr;
	return &backend->st_clientaddr.addr;
}

/* `pooler`: whose client it is; 0: a backend's own. */
static void
put_row(Tuplestorestate *rows, TupleDesc columns, int pid, bool known, bool mptcp, Connection *c,
		uint64 pooler)
{
	Datum		values[COLUMNS] = {0};
	bool		nulls[COLUMNS];

	memset(nulls, true, sizeof(nulls));
	values[0] = Int32GetDatum(pid);
	nulls[0] = false;
	values[1] = BoolGetDatum(mptcp);
	nulls[1] = !known;
	if (pooler != 0)
	{
		values[10] = CStringGetTextDatum(psprintf("%016llx", (unsigned long long) pooler));
		nulls[10] = false;
	}
	if (c != NULL)
	{
		values[2] = BoolGetDatum(c->fallback);
		values[3] = Int32GetDatum(c->subflows);
		values[4] = Int64GetDatum((int64) c->token);
		nulls[2] = nulls[3] = false;
		nulls[4] = c->token == 0;	/* what a pooler could not tell */
		values[5] = Int64GetDatum((int64) c->remote_token);
		nulls[5] = !c->has_remote_token;
		values[6] = Int64GetDatum((int64) c->sent);
		values[7] = Int64GetDatum((int64) c->received);
		values[8] = Int64GetDatum((int64) c->retransmitted);
		nulls[6] = nulls[7] = nulls[8] = !c->has_volume;
		values[9] = PointerGetDatum(construct_array(c->rates, c->rate_count, INT8OID,
													sizeof(int64), FLOAT8PASSBYVAL, TYPALIGN_DOUBLE));
		nulls[9] = c->rate_count == 0;
	}
	tuplestore_putvalues(rows, columns, values, nulls);
}

Datum
hawser_mptcp_backends(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *result = (ReturnSetInfo *) fcinfo->resultinfo;
	TupleDesc	columns;
	Tuplestorestate *rows;
	MemoryContext old;
	Dump		dump = {0};
	PgBackendStatus *backend;
	bool		known;
	ListCell   *cell;
	List	   *clients;
	bool		sees_all = has_privs_of_role(GetUserId(), ROLE_PG_READ_ALL_STATS);

	if (result == NULL || !IsA(result, ReturnSetInfo) || !(result->allowedModes & SFRM_Materialize))
		ereport(ERROR, (errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
						errmsg("a set is not accepted here")));
	if (get_call_result_type(fcinfo, NULL, &columns) != TYPEFUNC_COMPOSITE || columns->natts != COLUMNS)
		elog(ERROR, "the SQL declaration of mptcp_backends() is of another version");
	known = ask_kernel(&dump);
	clients = clients_known(0);

	old = MemoryContextSwitchTo(result->econtext->ecxt_per_query_memory);
	rows = tuplestore_begin_heap(true, false, work_mem);
	result->returnMode = SFRM_Materialize;
	result->setResult = rows;
	result->setDesc = CreateTupleDescCopy(columns);
	MemoryContextSwitchTo(old);

	for (int i = 0; (backend = backend_status(i)) != NULL; i++)
	{
		Connection *c;

		if (backend->st_procpid <= 0 ||
			(backend->st_backendType != B_BACKEND && backend->st_backendType != B_WAL_SENDER) ||
			(!sees_all && !has_privs_of_role(GetUserId(), backend->st_userid)))
			continue;
		c = connection_of(&dump, address_of(backend), PostPortNumber);
		put_row(rows, columns, backend->st_procpid, known, c != NULL, c, 0);
	}
	foreach(cell, clients)
	{
		const ClientRow *row = lfirst(cell);

		/* each is looked for among all connections */
		CHECK_FOR_INTERRUPTS();
		if (!sees_all && !(OidIsValid(row->role) && has_privs_of_role(GetUserId(), row->role)))
			continue;
		/* of poolers elsewhere only those are known that a backend serves, with what came with the hand-over */
		if (row->socket == NULL)
		{
			Connection	far = {0};

			far.fallback = row->client.fallback;
			far.subflows = row->client.subflows;
			far.token = row->client.token;
			put_row(rows, columns, (int) row->id, row->client.has_transport, row->client.mptcp,
					row->client.mptcp ? &far : NULL, row->pooler);
		}
		else
			put_row(rows, columns, (int) row->id, true, row->mptcp,
					row->mptcp ? connection_of(&dump, &row->address.addr, row->own_port) : NULL, row->pooler);
	}
	return (Datum) 0;
}
