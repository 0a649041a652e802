/*
 * handover.c: this backend serves another client from now on.
 *
 * Model       The pooler sends hawser.hand_over() as a FunctionCall message
 *             before a client's first one, in the same write: no statement,
 *             nothing to parse or plan, and its argument is in no log. Format
 *             and rules: README.md, "The hand-over".
 * Invariants  A message that is not the pooler's, or is out of its order, ends
 *             the session. One that is, and cannot be followed, does so too,
 *             unless it is `alone`: else what was sent after it would run as
 *             the client before. Nothing has been changed if it may go on.
 *             The whole server then sees the client's identity: rights,
 *             views, log lines. No statement leads back to the pooler's role.
 */
#include "postgres.h"

#include "connection.h"
#include "hawser.h"
#include "compat.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/un.h>

#include "access/xact.h"
#include "fmgr.h"
#include "libpq/pqformat.h"
#include "mb/pg_wchar.h"
#include "miscadmin.h"
#include "tcop/pquery.h"
#include "utils/backend_status.h"
#include "utils/builtins.h"
#include "utils/memutils.h"
#include "utils/portal.h"

#define VERSION 1
#define MESSAGE_BYTES_MAX 2048
#define MAC_BYTES 8

#define FLAG_USER 1
#define FLAG_TLS 2
#define FLAG_ALONE 4
#define FLAG_TRANSPORT 8
#define FLAGS_ALL HAND_OVER_FLAGS
/* what follows FLAG_TRANSPORT */
#define OVER_MPTCP 1
#define FELL_BACK 2

PG_FUNCTION_INFO_V1(hawser_hand_over);

/* A message, taken apart. */
typedef struct HandOver
{
	int			flags;
	Client		client;
	char	   *user;
	PgBackendSSLStatus tls;
} HandOver;

/* What the connection is by itself, before the first hand-over. */
typedef struct Own
{
	bool		known;
	SockAddr	address;
	char	   *host;
	char	   *port;
	bool		has_tls;
	PgBackendSSLStatus tls;
} Own;

static Own	own;
static uint64 last_number = 0;

static void
read_string(StringInfo message, char *out, size_t size)
{
	int			length = pq_getmsgint(message, 2);
	const char *bytes = pq_getmsgbytes(message, length);
	const char *valid;

	if (length >= size || memchr(bytes, '\0', length) != NULL)
		ereport(ERROR, (errcode(ERRCODE_PROTOCOL_VIOLATION), errmsg("a text is too long or has a zero byte")));
	memcpy(out, bytes, length);
	out[length] = '\0';
	/* goes into views and logs */
	valid = pg_any_to_server(out, length, PG_UTF8);
	if (valid != out)
		strlcpy(out, valid, size);
}

static void
read_address(StringInfo message, SockAddr *out)
{
	int			family = pq_getmsgbyte(message);
	uint16		port = pq_getmsgint(message, 2);
	struct sockaddr_in *v4 = (struct sockaddr_in *) &out->addr;
	struct sockaddr_in6 *v6 = (struct sockaddr_in6 *) &out->addr;

	memset(out, 0, sizeof(*out));
	switch (family)
	{
		case 0:
			break;
		case 1:
			out->addr.ss_family = AF_UNIX;
			out->salen = offsetof(struct sockaddr_un, sun_path);
			break;
		case 4:
			v4->sin_family = AF_INET;
			v4->sin_port = htons(port);
			memcpy(&v4->sin_addr, pq_getmsgbytes(message, 4), 4);
			out->salen = sizeof(*v4);
			break;
		case 6:
			v6->sin6_family = AF_INET6;
			v6->sin6_port = htons(port);
			memcpy(&v6->sin6_addr, pq_getmsgbytes(message, 16), 16);
			out->salen = sizeof(*v6);
			break;
		default:
			ereport(ERROR, (errcode(ERRCODE_PROTOCOL_VIOLATION), errmsg("unknown family of addresses %d", family)));
	}
}

/* Checks who made it, and takes it apart. Errors: the session is to end. */
static void
parse(bytea *argument, HandOver *out)
{
	StringInfoData message;
	uint64		number;

	memset(out, 0, sizeof(*out));
	message.data = VARDATA_ANY(argument);
	message.len = message.maxlen = VARSIZE_ANY_EXHDR(argument);
	message.cursor = 0;
	if (message.len > MESSAGE_BYTES_MAX || !secret_made((uint8 *) message.data, message.len))
		ereport(ERROR, (errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
						errmsg("hawser.hand_over() is not for clients")));
	message.len -= MAC_BYTES;
	if (pq_getmsgbyte(&message) != VERSION)
		ereport(ERROR, (errcode(ERRCODE_PROTOCOL_VIOLATION), errmsg("the hand-over is of another version")));
	out->flags = pq_getmsgbyte(&message);
	number = pq_getmsgint64(&message);
	if ((out->flags & ~FLAGS_ALL) != 0 || number != last_number + 1)
		ereport(ERROR, (errcode(ERRCODE_PROTOCOL_VIOLATION), errmsg("the hand-over is out of order")));
	last_number = number;
	out->client.pooler = pq_getmsgint64(&message);
	out->client.id = pq_getmsgint(&message, 4);
	read_address(&message, &out->client.address);
	if (out->flags & FLAG_USER)
	{
		out->user = palloc(NAMEDATALEN);
		read_string(&message, out->user, NAMEDATALEN);
	}
	if (out->flags & FLAG_TLS)
	{
		out->tls.ssl_bits = pq_getmsgint(&message, 2);
		read_string(&message, out->tls.ssl_version, NAMEDATALEN);
		read_string(&message, out->tls.ssl_cipher, NAMEDATALEN);
		read_string(&message, out->tls.ssl_client_dn, NAMEDATALEN);
		read_string(&message, out->tls.ssl_client_serial, NAMEDATALEN);
		read_string(&message, out->tls.ssl_issuer_dn, NAMEDATALEN);
	}
	if (out->flags & FLAG_TRANSPORT)
	{
		int			kind = pq_getmsgbyte(&message);

		out->client.has_transport = true;
		out->client.mptcp = (kind & OVER_MPTCP) != 0;
		out->client.fallback = (kind & FELL_BACK) != 0;
		out->client.subflows = pq_getmsgbyte(&message);
		out->client.token = pq_getmsgint(&message, 4);
	}
	pq_getmsgend(&message);
	out->client.pid = MyProcPid;
	out->client.own_address = own.address;
}

static void
remember_own(void)
{
	if (own.known)
		return;
	own.address = MyProcPort->raddr;
	own.host = MyProcPort->remote_host;
	own.port = MyProcPort->remote_port;
	if (MyBEEntry->st_ssl)
	{
		own.has_tls = true;
		own.tls = *MyBEEntry->st_sslstatus;
	}
	own.known = true;
}

/* %h and %r of the log, inet_client_addr() and inet_client_port(), pg_stat_activity and pg_stat_ssl. */
static void
put_address(const SockAddr *address, bool is_own, const PgBackendSSLStatus *tls)
{
	static char host[INET6_ADDRSTRLEN];
	static char port[8];
	volatile PgBackendStatus *entry = MyBEEntry;

	if (is_own)
	{
		MyProcPort->remote_host = own.host;
		MyProcPort->remote_port = own.port;
	}
	else
	{
		const struct sockaddr_in *v4 = (const struct sockaddr_in *) &address->addr;
		const struct sockaddr_in6 *v6 = (const struct sockaddr_in6 *) &address->addr;

		port[0] = '\0';
		if (address->addr.ss_family == AF_INET)
		{
			inet_ntop(AF_INET, &v4->sin_addr, host, sizeof(host));
			snprintf(port, sizeof(port), "%d", ntohs(v4->sin_port));
		}
		else if (address->addr.ss_family == AF_INET6)
		{
			inet_ntop(AF_INET6, &v6->sin6_addr, host, sizeof(host));
			snprintf(port, sizeof(port), "%d", ntohs(v6->sin6_port));
		}
		else
			strlcpy(host, address->addr.ss_family == AF_UNIX ? "[local]" : "", sizeof(host));
		MyProcPort->remote_host = host;
		MyProcPort->remote_port = port;
	}
	MyProcPort->raddr = *address;

	PGSTAT_BEGIN_WRITE_ACTIVITY(entry);
	entry->st_userid = GetSessionUserId();
	memcpy((void *) &entry->st_clientaddr, address, sizeof(*address));
	/* reverse look-ups were of the pooler's host */
	entry->st_clienthostname[0] = '\0';
	/* a server built without TLS has no place for it */
	entry->st_ssl = tls != NULL && entry->st_sslstatus != NULL;
	if (entry->st_ssl)
		memcpy((void *) entry->st_sslstatus, tls, sizeof(*tls));
	PGSTAT_END_WRITE_ACTIVITY(entry);
}

static void
follow(HandOver *message)
{
	const PgBackendSSLStatus *tls = (message->flags & FLAG_TLS) ? &message->tls : NULL;

	if (message->client.id == 0)
	{
		identity_take(NULL);
		slots_put(NULL);
		put_address(&own.address, true, own.has_tls ? &own.tls : NULL);
		return;
	}
	identity_take(message->user);
	message->client.role = GetSessionUserId();
	slots_put(&message->client);
	put_address(&message->client.address, false, tls);
}

/* Raises the error that is being handled again, as the last of this session. */
static void
end_session(MemoryContext context)
{
	ErrorData  *error;

	MemoryContextSwitchTo(context);
	error = CopyErrorData();
	FlushErrorState();
	ereport(FATAL, (errcode(error->sqlerrcode),
					errmsg_internal("%s", error->message),
					error->detail ? errdetail_internal("%s", error->detail) : 0,
					error->hint ? errhint("%s", error->hint) : 0));
}

Datum
hawser_hand_over(PG_FUNCTION_ARGS)
{
	bytea	   *argument = PG_GETARG_BYTEA_PP(0);
	MemoryContext context = CurrentMemoryContext;
	HandOver	message;

	PG_TRY();
	{
		if (MyProcPort == NULL || MyBEEntry == NULL || !is_regular_backend())
			elog(ERROR, "hawser.hand_over() is for connections");
		remember_own();
		parse(argument, &message);
		/* of a FunctionCall message outside of any transaction: nothing of a client's is open */
		if (ActivePortal != NULL || IsTransactionBlock() || GetCurrentTransactionNestLevel() != 1)
			ereport(ERROR, (errcode(ERRCODE_ACTIVE_SQL_TRANSACTION),
							errmsg("hawser.hand_over() is for a message of its own, outside of transactions")));
	}
	PG_CATCH();
	{
		end_session(context);
	}
	PG_END_TRY();

	if (message.flags & FLAG_ALONE)
		identity_check(message.user);
	PG_TRY();
	{
		follow(&message);
	}
	PG_CATCH();
	{
		end_session(context);
	}
	PG_END_TRY();
	PG_RETURN_VOID();
}
