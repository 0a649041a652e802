/*
 * inside.c: a backend serves the clients of a pool, one transaction after the other.
 *
 * Model       hawser.serve_inside() makes this session, which is a pooler's,
 *             one that serves. From then on, whenever the server flushes a
 *             ReadyForQuery, it does not come back before there is a client
 *             with a whole plain message: that goes to the server's own
 *             reading, by raw_buf or, before PostgreSQL 17, a socket pair, and
 *             what the server answers goes to the client's socket by methods
 *             in place of pqcomm.c's.
 *
 *             home ─► next client ─► its message is plain? no ─► the client goes to the pooler
 *                        ▲                  │ yes: settings that differ, a Parse of the statement
 *                        │                  ▼ that is missing, the message
 *                        │          ReadyForQuery ─► in a transaction: the client's next message,
 *                        │                  │        and nobody else's; is that plain? no ─► handed over
 *                        └── released ◄── idle, nothing left? no ─► handed over
 *
 *             Handed over: client and session go to the pooler as a pair, in
 *             a transaction or with what one has left. To the pooler it is
 *             then a server connection as any other, lent to that client.
 * Invariants  What leaves something is found by state.c at the end of the
 *             transaction, before the next client.
 *             While no client is served MyProcPort->sock is the pooler's, so
 *             that a FATAL goes to no client.
 *             FeBeWaitSet has the pooler's connection.
 *             What others know of this session's settings by ParameterStatus,
 *             the pooler knows, too: a message that changes one ends in a
 *             hand-over, even within a transaction.
 * Limits      Messages of up to INPUT_BYTES_MAX. No COPY.
 */
#include "postgres.h"

#include "connection.h"
#include "hawser.h"
#include "compat.h"
#include "inside.h"

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "access/xact.h"
#include "commands/prepare.h"
#include "fmgr.h"
#include "libpq/libpq.h"
#include "miscadmin.h"
#include "nodes/bitmapset.h"
#include "port/pg_bswap.h"
#include "storage/ipc.h"
#include "storage/latch.h"
#include "storage/proc.h"
#include "tcop/tcopprot.h"
#include "utils/backend_status.h"
#include "utils/builtins.h"
#include "utils/guc.h"
#include "utils/memutils.h"
#include "utils/timestamp.h"
#include "utils/wait_event.h"

#define OUTPUT_BYTES (64 * 1024)
/* Answers go out at this size, or with ReadyForQuery. */
#define OUTPUT_ENOUGH (16 * 1024)
/* How often it is looked whether a client that takes nothing keeps others waiting. */
#define STALL_LOOK_MS 200
#define HEADER_BYTES 5

static const char sync_message[] = {'S', 0, 0, 0, 4};
static const char ready[] = {'Z', 0, 0, 0, 5, 'I'};

/* Sets of settings that it is remembered of that they may be applied. */
#define SETS_MAX 65536

PG_FUNCTION_INFO_V1(hawser_serve_inside);

bool		hawser_inside = false;

/* What the server is doing with the input that it has been given last. */
typedef enum Phase
{
	PHASE_HOME,					/* the pooler's, up to the answer to hawser.serve_inside() */
	PHASE_PARSING,				/* a statement that was missing: its answer is for nobody */
	PHASE_SERVING,				/* the client's message */
	PHASE_ROLLING_BACK,			/* a ROLLBACK after the client has gone: likewise */
} Phase;

static Phase phase = PHASE_HOME;
static bool serving = false;	/* from the next ReadyForQuery on */
static InsideClient client;
static const PQcommMethods *home;	/* the methods of pqcomm.c */
static pgsocket home_socket;
#if PG_VERSION_NUM >= 170000
static StringInfoData fed;		/* what the server reads next, as if it had come from its socket */
#else
static int	feed[2] = {-1, -1}; /* the server reads from the first */
#endif

static char *input;				/* of the client, as it came */
static uint32 input_bytes;
static StringInfoData rewritten;	/* with the shared name in place of the client's */

static char *output;
static uint32 output_bytes;
static uint32 output_sent;
static bool busy = false;		/* within the output methods */
static bool broken = false;		/* the client takes no more */
static bool ended = false;		/* ReadyForQuery has been put */
static char status = 'I';		/* of that */
static StringInfoData reports;	/* ParameterStatus messages that the client gets before that */
static bool in_block = false;	/* the client has a transaction open */
static bool failed = false;		/* an error has been put since the last */
static uint32 sent_bytes = 0;	/* of the answer */
static uint32 parses = 0;		/* before it */
static bool parsed = false;		/* the client's own Parse has worked */
static TimestampTz begun;		/* the transaction */
static TimestampTz sent_at;		/* the message */

/*
 * Answers that wait for those of other clients: each send() wakes a process,
 * which on this machine may take the processor from this one. They are sent
 * when there are HELD_MAX, before this backend waits, and by a timer while a
 * statement runs.
 */
#define HELD_MAX 4
#define HELD_BYTES 2048
static struct
{
	InsideClient client;
	uint32		bytes;			/* 0: it has been sent */
	char		answer[HELD_BYTES];
}			held[HELD_MAX];
static int	held_count = 0;

/* The settings that this session has for its clients. */
static uint32 applied_id = 0;
static char *applied = NULL;	/* texts, as in shared memory */
static uint32 applied_bytes = 0;
/* Sets that may be applied, by their ids; and with which rights. */
static Bitmapset *checked = NULL;
static GucContext rights = PGC_USERSET;

static void serve_next(void);

/* Output. */

/*
 * The client gets nothing more, and its query ends, as in a session of its
 * own. A cancel that is pending still is forgotten before the next client.
 */
static void
lose_client(void)
{
	broken = true;
	QueryCancelPending = true;
	InterruptPending = true;
}

/* Waits until the client takes more. It has taken nothing since then; 0: up to now it has. */
static void
wait_for_client(TimestampTz *since)
{
	uint32		patience = room_patience();

	if (*since == 0)
		*since = GetCurrentTimestamp();
	(void) WaitLatchOrSocket(MyLatch, WL_SOCKET_WRITEABLE | WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH,
							 client.fd, STALL_LOOK_MS, WAIT_EVENT_CLIENT_WRITE);
	ResetLatch(MyLatch);
	/* an order to end is obeyed though the client does not read */
	if (ProcDiePending)
		broken = true;
	else if (patience > 0 && TimestampDifferenceExceeds(*since, GetCurrentTimestamp(), patience) && room_has_waiters())
	{
		ereport(COMMERROR,
				(errmsg("hawser: a client is disconnected, for it has taken nothing of its answer for %u ms while others waited",
						patience)));
		lose_client();
	}
}

static bool
send_output(bool waits)
{
	TimestampTz since = 0;

	while (output_sent < output_bytes && !broken)
	{
		uint32		count = Min(output_bytes - output_sent, client.send_bytes_max);
		ssize_t		sent = send(client.fd, output + output_sent, count, MSG_DONTWAIT | MSG_NOSIGNAL);

		if (sent > 0)
		{
			output_sent += sent;
			sent_bytes += sent;
			since = 0;
		}
		else if (errno == EINTR)
			continue;
		else if (errno != EAGAIN && errno != EWOULDBLOCK)
			lose_client();
		else if (!waits)
			return false;
		else
			wait_for_client(&since);
	}
	output_bytes = output_sent = 0;
	return true;
}

static void
flush_output(void)
{
	busy = true;
	(void) send_output(true);
	busy = false;
}

static bool
send_one_held(int i)
{
	ssize_t		sent = send(held[i].client.fd, held[i].answer, held[i].bytes, MSG_DONTWAIT | MSG_NOSIGNAL);

	if (sent != held[i].bytes)
		return false;
	held[i].bytes = 0;
	return true;
}

/* The same from a signal handler, while a statement of another client runs. */
void
inside_send_held_meanwhile(void)
{
	for (int i = 0; i < held_count; i++)
		if (held[i].bytes > 0 && send_one_held(i))
			room_release_held(&held[i].client);
}

/* Sends the answers that wait. No statement runs. */
void
inside_send_held(void)
{
	int			count = held_count;

	room_has_run();
	held_count = 0;
	for (int i = 0; i < count; i++)
		if (held[i].bytes > 0)
		{
			/* there was room for it: its connection has ended */
			if (send_one_held(i))
				room_release(&held[i].client);
			else
				room_lost(&held[i].client);
		}
}

static void
put_bytes(const char *bytes, size_t count)
{
	while (count > 0 && !broken)
	{
		size_t		part = Min(count, OUTPUT_BYTES - output_bytes);

		memcpy(output + output_bytes, bytes, part);
		output_bytes += part;
		bytes += part;
		count -= part;
		if (output_bytes == OUTPUT_BYTES)
			(void) send_output(true);
	}
}

/*
 * A setting's report that is not the client's doing: before its transaction it
 * was given its own settings, which it knows.
 */
static bool
is_unsaid(const char *name)
{
	return strncmp(name, "hawser.", strlen("hawser.")) == 0 || !(in_block || state_is_marked());
}

/* The answer is for nobody. An error of a missing statement is the client's: its transaction has failed. */
static bool
is_discarded(void)
{
	return phase == PHASE_ROLLING_BACK || (phase == PHASE_PARSING && !(in_block && failed));
}

static void
put(char kind, const char *body, size_t length)
{
	char		header[HEADER_BYTES];
	uint32		size = pg_hton32((uint32) length + 4);

	if (kind == 'Z')
	{
		ended = true;
		status = *body;
	}
	else if (kind == 'E')
		failed = true;
	else if (kind == '1')
		parsed = true;
	if (is_discarded() || (kind == 'S' && is_unsaid(body)))
		return;
	header[0] = kind;
	memcpy(header + 1, &size, 4);
	if (kind == 'S')
	{
		/* whether the client gets it now or by the pooler is known at ReadyForQuery */
		appendBinaryStringInfo(&reports, header, HEADER_BYTES);
		appendBinaryStringInfo(&reports, body, length);
		return;
	}
	if (kind == 'Z')
		return;					/* likewise: answer_ready() */
	put_bytes(header, HEADER_BYTES);
	put_bytes(body, length);
	if (output_bytes >= OUTPUT_ENOUGH)
		(void) send_output(true);
}

static int
inside_putmessage(char kind, const char *body, size_t length)
{
	if (phase == PHASE_HOME)
	{
		if (kind == 'Z')
			ended = true;
		return home->putmessage(kind, body, length);
	}
	if (busy)
		return 0;				/* from a signal handler: as pqcomm.c does */
	busy = true;
	put(kind, body, length);
	busy = false;
	return 0;
}

static void
inside_putmessage_noblock(char kind, const char *body, size_t length)
{
	if (phase == PHASE_HOME)
		home->putmessage_noblock(kind, body, length);
	else
		(void) inside_putmessage(kind, body, length);
}

static void
inside_reset(void)
{
	busy = false;
	home->comm_reset();
}

static int
inside_flush_if_writable(void)
{
	if (phase == PHASE_HOME)
		return home->flush_if_writable();
	if (!busy)
	{
		busy = true;
		(void) send_output(false);
		busy = false;
	}
	return 0;
}

static bool
inside_is_send_pending(void)
{
	return phase == PHASE_HOME ? home->is_send_pending() : output_sent < output_bytes;
}

/* Input. */

#if PG_VERSION_NUM >= 170000
/*
 * pqcomm.c reads raw_buf before the socket (secure_raw_read() in be-secure.c):
 * with direct TLS it has the first bytes of the handshake, and is empty from then on.
 */
static void
put_input(const char *bytes, uint32 count)
{
	resetStringInfo(&fed);
	appendBinaryStringInfo(&fed, bytes, count);
	MyProcPort->raw_buf = fed.data;
	MyProcPort->raw_buf_consumed = 0;
	MyProcPort->raw_buf_remaining = count;
}

static void
prepare_input(void)
{
	initStringInfo(&fed);
}
#else
static void
put_input(const char *bytes, uint32 count)
{
	ssize_t		sent = send(feed[1], bytes, count, MSG_NOSIGNAL | MSG_DONTWAIT);

	if (sent != count)
		ereport(FATAL, (errmsg("hawser: a message of %u bytes did not fit into a socket pair", count)));
	MyProcPort->sock = feed[0];
}

static void
prepare_input(void)
{
	if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, feed) != 0)
		ereport(ERROR, (errmsg("could not make a socket pair: %m")));
}
#endif

/* The server reads this next. */
static void
feed_server(const char *bytes, uint32 count)
{
	put_input(bytes, count);
	room_runs(held_count > 0);
	ended = failed = parsed = false;
	resetStringInfo(&reports);
}

/* The length of the message at `at`, if it is whole and of this kind; 0: it is not. */
static uint32
whole(uint32 at, char kind)
{
	uint32		length;

	if (input_bytes - at < HEADER_BYTES || input[at] != kind)
		return 0;
	memcpy(&length, input + at + 1, 4);
	length = pg_ntoh32(length);
	return length >= 4 && length < INPUT_BYTES_MAX && length + 1 <= input_bytes - at ? length + 1 : 0;
}

/* The text at `at` that ends before `end`; its length with NUL, or 0. */
static uint32
text_at(uint32 at, uint32 end)
{
	const char *nul = at < end ? memchr(input + at, '\0', end - at) : NULL;

	return nul == NULL ? 0 : nul - (input + at) + 1;
}

/* Whether from `at` on there is an optional Describe of the unnamed portal, its Execute, and Sync, and no more. */
static bool
is_tail(uint32 at)
{
	static const char describe[] = {'D', 0, 0, 0, 6, 'P', 0};
	static const char execute[] = {'E', 0, 0, 0, 9, 0};

	if (input_bytes - at >= sizeof(describe) && memcmp(input + at, describe, sizeof(describe)) == 0)
		at += sizeof(describe);
	return input_bytes - at == sizeof(execute) + 4 + sizeof(sync_message) &&
		memcmp(input + at, execute, sizeof(execute)) == 0 &&
		memcmp(input + at + sizeof(execute) + 4, sync_message, sizeof(sync_message)) == 0;
}

/* The body of the Parse of the unnamed statement with which the input begins, after the name; its length, or 0. */
static uint32
unnamed_body(const char **body)
{
	uint32		end = whole(0, 'P');

	*body = input + HEADER_BYTES + 1;
	return end <= HEADER_BYTES + 1 || input[HEADER_BYTES] != '\0' ? 0 : end - HEADER_BYTES - 1;
}

/* Whether the input is a Parse of the unnamed statement, its Bind to the unnamed portal, and the rest. */
static bool
is_unnamed(void)
{
	const char *body;
	uint32		bytes = unnamed_body(&body);
	uint32		bind = HEADER_BYTES + 1 + bytes;
	uint32		bind_bytes;

	if (bytes == 0 || bytes > UNNAMED_BYTES || memchr(body, '\0', bytes) == NULL)
		return false;
	bind_bytes = whole(bind, 'B');
	return bind_bytes > HEADER_BYTES + 2 && input[bind + HEADER_BYTES] == '\0' && input[bind + HEADER_BYTES + 1] == '\0' &&
		is_tail(bind + bind_bytes) && inside_is_plain(body);
}

static void
begin_message(StringInfo out, char kind, uint32 body_bytes)
{
	uint32		length = pg_hton32(4 + body_bytes);

	appendStringInfoChar(out, kind);
	appendBinaryStringInfo(out, (char *) &length, 4);
}

/* A Parse, and the Sync after which an error of it is over. */
static void
append_parse(StringInfo out, const char *name, uint32 name_bytes, const char *body, uint32 body_bytes)
{
	begin_message(out, 'P', name_bytes + 1 + body_bytes);
	appendBinaryStringInfo(out, name, name_bytes);
	appendStringInfoChar(out, '\0');
	appendBinaryStringInfo(out, body, body_bytes);
	appendBinaryStringInfo(out, sync_message, sizeof(sync_message));
}

/* A pipeline of a named statement: with the shared name. False: it is for the pooler. */
static bool
take_named(uint32 bind_end, bool *missing)
{
	uint32		name_at = HEADER_BYTES + 1;
	uint32		name_bytes = text_at(name_at, bind_end);
	uint32		count = room_name_count(&client);

	if (input[HEADER_BYTES] != '\0' || name_bytes < 2 || !is_tail(bind_end) || room_has_old_statements())
		return false;
	for (uint32 i = 0; i < count; i++)
	{
		InsideName	name;
		const char *own;
		uint32		own_bytes;
		uint32		rest = name_at + name_bytes;

		if (!room_name(&client, i, &name, &own, &own_bytes))
			return false;
		if (own_bytes != name_bytes - 1 || memcmp(own, input + name_at, own_bytes) != 0)
			continue;
		*missing = FetchPreparedStatement(name.shared, false) == NULL;
		/* one that is there has passed */
		if (*missing && (name.body_bytes > INPUT_BYTES_MAX || !inside_is_plain(name.body)))
			return false;
		begin_message(&rewritten, 'B', 1 + strlen(name.shared) + 1 + bind_end - rest);
		appendStringInfoChar(&rewritten, '\0');
		appendBinaryStringInfo(&rewritten, name.shared, strlen(name.shared) + 1);
		appendBinaryStringInfo(&rewritten, input + rest, input_bytes - rest);
		if (*missing)
		{
			StringInfoData parse;

			initStringInfo(&parse);
			append_parse(&parse, name.shared, strlen(name.shared), name.body, name.body_bytes);
			phase = PHASE_PARSING;
			feed_server(parse.data, parse.len);
			pfree(parse.data);
		}
		return true;
	}
	return false;
}

/* Whether the input is one whole message or pipeline that may run here; `*missing`: after the Parse that runs first. */
static bool
take_input(bool *missing)
{
	uint32		first;

	*missing = false;
	resetStringInfo(&rewritten);
	if ((first = whole(0, 'Q')) == input_bytes && first > 0)
	{
		if (text_at(HEADER_BYTES, first) != first - HEADER_BYTES || !inside_is_plain(input + HEADER_BYTES))
			return false;
		/* any Query ends it */
		room_note_unnamed(&client, NULL, 0);
		return true;
	}
	if (is_unnamed())
	{
		room_note_unnamed(&client, NULL, 0);
		return true;
	}
	if ((first = whole(0, 'B')) > HEADER_BYTES + 2)
		return take_named(first, missing);
	return false;
}

/* Settings. */

static bool
is_among(const char *name, const char *texts, uint32 bytes)
{
	const char *end = texts + bytes;

	while (texts < end)
	{
		if (strcmp(texts, name) == 0)
			return true;
		texts += strlen(texts) + 1;
		texts += strlen(texts) + 1;
	}
	return false;
}

static void
set_to(const char *name, const char *value)
{
	if (set_config_option(name, value, rights, PGC_S_SESSION, GUC_ACTION_SET, true, WARNING, false) <= 0)
		ereport(FATAL, (errmsg("hawser: setting \"%s\" could not be given to a client", name)));
}

/*
 * Whether all of a set can be applied here, where no catalog can be read: who
 * may set what only some may is written there.
 */
static bool
may_apply(uint32 id, const char *texts, uint32 bytes)
{
	MemoryContext old;

	if (bms_is_member(id, checked))
		return true;
	for (const char *at = texts; at < texts + bytes;)
	{
		const Setting *setting = strchr(at, '.') != NULL ? settings_find(at) : NULL;

		if (setting != NULL && setting->context != PGC_USERSET && rights == PGC_USERSET)
			return false;
		at += strlen(at) + 1;
		/* an odd number of texts */
		if (at >= texts + bytes)
			return false;
		at += strlen(at) + 1;
	}
	old = MemoryContextSwitchTo(TopMemoryContext);
	checked = bms_add_member(checked, id);
	MemoryContextSwitchTo(old);
	return true;
}

/* The settings of the client are in force; others are reset. False: they cannot be read. */
static bool
apply_settings(void)
{
	const char *texts;
	uint32		id,
				bytes;

	if (!room_settings(&client, &id, &texts, &bytes))
		return false;
	if (id == applied_id)
		return true;
	if (id >= SETS_MAX || !may_apply(id, texts, bytes))
		return false;
	for (const char *at = applied; at < applied + applied_bytes;)
	{
		if (!is_among(at, texts, bytes))
			set_to(at, NULL);
		at += strlen(at) + 1;
		at += strlen(at) + 1;
	}
	for (const char *at = texts; at < texts + bytes;)
	{
		const char *value = at + strlen(at) + 1;

		set_to(at, value);
		at = value + strlen(value) + 1;
	}
	applied = applied == NULL ? MemoryContextAlloc(TopMemoryContext, bytes + 1) : repalloc(applied, bytes + 1);
	memcpy(applied, texts, bytes);
	applied_bytes = bytes;
	applied_id = id;
	state_take_as_given();
	return true;
}

/* Clients. */

static void
leave_client(void)
{
	MyProcPort->sock = home_socket;
	phase = PHASE_HOME;
	in_block = false;
	output_bytes = output_sent = 0;
}

/*
 * Client and session go to the pooler together. `count` bytes of the client's
 * are read and not run; `owed`: its last message has no ReadyForQuery yet.
 *
 * The pooler asks by a Sync for all that this session has to say: what came
 * unasked could reach it together with the answer that began all this.
 */
static void
hand_over(uint32 count, bool owed)
{
	/* the pooler prepares under the same names what it does not know to be here */
	DropAllPreparedStatements();
	leave_client();
	serving = false;
	PqCommMethods = home;
	room_hand_over(&client, input, count, owed);
	for (int at = 0; owed && at < reports.len;)
	{
		uint32		length;

		memcpy(&length, reports.data + at + 1, 4);
		length = pg_ntoh32(length);
		(void) home->putmessage('S', reports.data + at + HEADER_BYTES, length - 4);
		at += 1 + length;
	}
	state_report_again();
}

/* The last of the answer. */
static void
answer_ready(void)
{
	busy = true;
	put_bytes(reports.data, reports.len);
	put_bytes(ready, sizeof(ready) - 1);
	put_bytes(&status, 1);
	busy = false;
	flush_output();
}

/* Whether the answer is the last of its transaction, short, and there is room for it in the client's socket. */
static bool
may_hold(void)
{
	struct pollfd room_in_socket = {.fd = client.fd, .events = POLLOUT};

	return !broken && status == 'I' && sent_bytes == 0 && output_bytes + reports.len + sizeof(ready) <= HELD_BYTES &&
		poll(&room_in_socket, 1, 0) == 1;
}

static void
hold_answer(void)
{
	uint32		bytes = output_bytes + reports.len + sizeof(ready);
	char	   *at = held[held_count].answer;

	memcpy(at, output, output_bytes);
	memcpy(at + output_bytes, reports.data, reports.len);
	memcpy(at + bytes - sizeof(ready), ready, sizeof(ready));
	held[held_count].client = client;
	held[held_count].bytes = sent_bytes = bytes;
	held_count++;
	output_bytes = 0;
	room_hold(&client);
}

/* A message of the client's has been answered. */
static void
count_answer(uint32 parsed_count)
{
	TimestampTz now = GetCurrentTimestamp();

	if (phase != PHASE_ROLLING_BACK)
		room_count_query(input_bytes, sent_bytes, input[0] != 'Q', parsed_count, now - sent_at);
	if (status == 'I')
		room_count_transaction(now - begun);
}

/*
 * Reads of the client what there is; -1: nothing yet; 0: its end, or something
 * that is the pooler's to read (EIO: a record of TLS without data).
 */
static ssize_t
receive(void)
{
	ssize_t		got;

	do
		got = recv(client.fd, input, INPUT_BYTES_MAX, MSG_DONTWAIT);
	while (got < 0 && errno == EINTR);
	if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
		return -1;
	input_bytes = Max(got, 0);
	sent_bytes = parses = 0;
	sent_at = GetCurrentTimestamp();
	return input_bytes;
}

/* Gives the server what has been received, if it may run here. */
static bool
run_input(void)
{
	bool		missing;

	if (!take_input(&missing))
		return false;
	if (!missing)
	{
		phase = PHASE_SERVING;
		if (rewritten.len > 0)
			feed_server(rewritten.data, rewritten.len);
		else
			feed_server(input, input_bytes);
	}
	return true;
}

/* Gives the server the next plain message of a client. */
static void
serve_next(void)
{
	room_has_run();
	/* the last words of this session, if that ends here, are flushed, too */
	ended = false;
	for (;;)
	{
		ssize_t		got;

		if (!room_next(&client))
			continue;
		got = receive();
		if (got < 0)
		{
			room_release(&client);
			continue;
		}
		broken = false;
		begun = sent_at;
		/* one that this backend was to end before must not get its last words */
		if (got > 0 && !ProcDiePending && apply_settings() && run_input())
			return;
		room_return(&client, input, input_bytes);
	}
}

/* Ends the transaction of a client that has gone. */
static void
roll_back(void)
{
	static const char rollback[] = {'Q', 0, 0, 0, 13, 'R', 'O', 'L', 'L', 'B', 'A', 'C', 'K', 0};

	phase = PHASE_ROLLING_BACK;
	broken = true;
	QueryCancelPending = false;
	feed_server(rollback, sizeof(rollback));
}

/* The same for the client that has a transaction open. */
static void
serve_in_block(void)
{
	ended = false;
	in_block = true;
	for (;;)
	{
		ssize_t		got = receive();

		if (got < 0)
		{
			if (room_wait(&client))
				continue;
			hand_over(0, false);	/* it is to be disconnected */
		}
		else if (got == 0)
			roll_back();
		else
		{
			room_heed_cancel(&client);
			if (!run_input())
				hand_over(input_bytes, false);
		}
		return;
	}
}

static void
after_answer(void)
{
	bool		left = state_take_mark();
	bool		drew = state_take_draw();
	const char *body;
	uint32		bytes = parsed ? unnamed_body(&body) : 0;
	bool		holds;

	if (bytes > 0)
		room_note_unnamed(&client, body, bytes);
	/* (the pooler counts what it gets) */
	if (!broken && (left || (drew && room_keeps_draws()) || (status != 'I' && reports.len > 0)))
	{
		flush_output();
		hand_over(0, true);
		return;
	}
	holds = may_hold();
	if (!broken && !holds)
		answer_ready();
	room_has_run();
	if (holds)
		hold_answer();
	count_answer(parses + (bytes > 0));
	if (status != 'I')
	{
		if (!broken)
			serve_in_block();
		else if (phase != PHASE_ROLLING_BACK)
			roll_back();
		else
			proc_exit(0);
		return;
	}
	/* what it has left would be the next client's */
	if (left)
		proc_exit(0);
	if (drew)
		state_forget_draws();
	leave_client();
	/* a handler that ends this process flushes */
	ended = false;
	if (broken)
		room_lost(&client);
	else if (!holds)
		room_release(&client);
	else if (held_count == HELD_MAX)
		inside_send_held();
	serve_next();
}

/* The missing statement is there, or cannot be. */
static void
after_parse(void)
{
	/* as if its Bind had failed */
	if (failed && in_block)
		after_answer();
	else if (failed || room_has_old_statements() || (!in_block && state_take_mark()))
	{
		/* the pooler, which has the text too, finds out why */
		if (in_block)
			hand_over(input_bytes, false);
		else
		{
			leave_client();
			room_return(&client, input, input_bytes);
			serve_next();
		}
	}
	else
	{
		parses++;
		phase = PHASE_SERVING;
		feed_server(rewritten.data, rewritten.len);
	}
}

static int
inside_flush(void)
{
	if (phase == PHASE_HOME)
	{
		int			result = home->flush();

		if (serving && ended)
		{
			(void) state_take_mark();
			serve_next();
		}
		return result;
	}
	if (busy)
		return 0;
	if (!ended)
		flush_output();
	else if (phase == PHASE_PARSING)
		after_parse();
	else
		after_answer();
	return 0;
}

static const PQcommMethods inside_methods = {
	inside_reset, inside_flush, inside_flush_if_writable, inside_is_send_pending,
	inside_putmessage, inside_putmessage_noblock
};

/* The last message of this session goes to the client that it serves, if there is one. */
static void
at_exit(int code, Datum argument)
{
	if (phase == PHASE_SERVING)
		(void) send_output(false);
}

Datum
hawser_serve_inside(PG_FUNCTION_ARGS)
{
	char	   *socket_path = text_to_cstring(PG_GETARG_TEXT_PP(0));
	char	   *token = text_to_cstring(PG_GETARG_TEXT_PP(1));
	MemoryContext before;

	if (!hawser_inside)
		ereport(ERROR, (errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE), errmsg("hawser.inside is off")));
	if (serving || !is_regular_backend() || !hawser_report || IsTransactionBlock() || !state_is_known())
		ereport(ERROR, (errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
						errmsg("this session cannot serve clients inside"),
						errhint("It must have begun with hawser.report = on, and hawser must be in shared_preload_libraries.")));
	if (IdleSessionTimeout > 0)
		ereport(ERROR, (errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
						errmsg("idle_session_timeout would end sessions that serve clients inside"),
						errhint("Set it to 0 for the role that Hawser logs in as.")));
	if (MyBEEntry->st_ssl)
		ereport(ERROR, (errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
						errmsg("a session over TLS cannot serve clients inside")));
	if (!local_is_pooler(socket_path))
		ereport(ERROR, (errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
						errmsg("\"%s\" is not among hawser.control_sockets", socket_path)));
	input = MemoryContextAlloc(TopMemoryContext, INPUT_BYTES_MAX);
	before = MemoryContextSwitchTo(TopMemoryContext);
	prepare_input();
	initStringInfo(&rewritten);
	initStringInfo(&reports);
	MemoryContextSwitchTo(before);
	output = MemoryContextAlloc(TopMemoryContext, OUTPUT_BYTES);
	/* outside of transactions it cannot be looked up */
	rights = superuser() ? PGC_SUSET : PGC_USERSET;
	room_enter(socket_path, token);
	on_proc_exit(at_exit, (Datum) 0);
	home = PqCommMethods;
	home_socket = MyProcPort->sock;
	PqCommMethods = &inside_methods;
	serving = true;
	ended = false;
	PG_RETURN_VOID();
}

/* At preloading. */
void
inside_define(void)
{
	DefineCustomBoolVariable("hawser.inside",
							 "Lets backends of a Hawser on this host serve its clients themselves.",
							 NULL, &hawser_inside, false, PGC_SIGHUP, 0, NULL, NULL, NULL);
}
