/*
 * inside_room.c: the clients of a pool that its backends share.
 *
 * Model       One epoll set for all backends, edge-triggered, in which the
 *             pooler alone puts clients and takes them out. Whose client has
 *             sent something is found by the first backend that waits; the
 *             owner word of its slot says who may touch it. See inside.h.
 * Invariants  A client is touched by its owner only. A backend that leaves
 *             gives up all that it owns.
 *             Nothing in the memory is believed: each offset is checked
 *             before it is used.
 * Places      Only H_PLACES backends look for clients and run what they send: more
 *             would take the processors from each other in the middle of
 *             transactions. One that runs for PLACE_MS may be blocked, and one
 *             that waits for its client in a transaction is: both give their
 *             place up. Transactions that are open go on at once, with more
 *             places than there are; until these are fewer again nobody looks
 *             for another client.
 * Signals     While there is nothing to do they are blocked from the last look
 *             for interrupts up to the wait, so that none is slept through.
 *             The handlers of the two timers run while a statement does. They
 *             use owner words and sockets of clients, and say() if that is not
 *             being used.
 */
#include "postgres.h"

#include "connection.h"
#include "hawser.h"
#include "compat.h"
#include "inside.h"

#include <fcntl.h>
#include <linux/futex.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "commands/async.h"
#include "libpq/pqsignal.h"
#include "miscadmin.h"
#include "port/pg_bitutils.h"
#include "postmaster/interrupt.h"
#include "storage/ipc.h"
#include "storage/latch.h"
#include "storage/pmsignal.h"
#include "storage/sinval.h"
#include "utils/guc.h"
#include "utils/memutils.h"
#include "utils/timeout.h"
#include "utils/wait_event.h"

#define SUFFIX ".inside"
/* The pooler answers at once; this is against a wait for ever. */
#define ANSWER_SECONDS_MAX 5
/* How long a wait lasts at most, in which the pooler and the postmaster may have gone. */
#define WAIT_MS 1000
/* The same for a client with an open transaction, which may be wanted back. */
#define BLOCK_WAIT_MS 200
/* How long a statement keeps its place. */
#define PLACE_MS 20
/* How long it keeps answers and messages of others waiting. */
#define HOLD_MS 1
#define HOLD_AGAIN_MS 10
/* How long a cancel request may be on its way. */
#define CANCEL_WAIT_MS 10000
/* Clients that have sent more while they were served, and are served again. */
#define AGAIN_MAX 64
/* What clients have room for of a record: as the server itself sends them. */
#define TLS_RECORD_BYTES 8192
#define SLOTS_FIRST (HEADER_WORDS + BACKENDS * BACKEND_WORDS)

static int	control = -1;
static int	ready_set = -1;
static uint32 *words = NULL;
static uint32 word_count;
static uint32 slot_count;
static uint32 arena_first;
static uint32 own_number;
static volatile uint32 *counted;	/* words of this backend */

/* Descriptors of clients, by slot. */
typedef struct Known
{
	uint32		generation;
	int			fd;				/* -1: none */
	uint32		send_bytes_max;
} Known;

static Known *known;
static uint32 known_room = 0;
static uint32 again[AGAIN_MAX];
static int	again_count = 0;
static bool again_next = false; /* the next is one of those */
static time_t looked_at = 0;
static TimeoutId place_timeout;
static TimeoutId hold_timeout;
static uint32 served = PG_UINT32_MAX;	/* slot of the client that this backend serves */
static volatile bool saying = false;

static pg_atomic_uint32 *
word(uint32 slot, int which)
{
	return (pg_atomic_uint32 *) &words[SLOTS_FIRST + slot * SLOT_WORDS + which];
}

static bool
change_owner(uint32 slot, uint32 from, uint32 to)
{
	return pg_atomic_compare_exchange_u32(word(slot, S_OWNER), &from, to);
}

static bool
send_whole(struct iovec parts[2])
{
	struct msghdr out = {.msg_iov = parts, .msg_iovlen = 2};

	while (parts[0].iov_len + parts[1].iov_len > 0)
	{
		ssize_t		sent = sendmsg(control, &out, MSG_NOSIGNAL);

		if (sent < 0 && errno == EINTR)
			continue;
		if (sent <= 0)
			return false;
		for (int i = 0; i < 2; i++)
		{
			size_t		taken = Min(parts[i].iov_len, (size_t) sent);

			parts[i].iov_base = (char *) parts[i].iov_base + taken;
			parts[i].iov_len -= taken;
			sent -= taken;
		}
	}
	return true;
}

/* Sends it whole. The pooler reads at once; if it does not, it has gone. */
static bool
say(uint32 kind, uint32 slot, uint32 generation, const void *bytes, uint32 count)
{
	InsideMessage message = {kind, slot, generation, count};
	struct iovec parts[2] = {{&message, sizeof(message)}, {(void *) bytes, count}};
	bool		sent;

	saying = true;
	sent = send_whole(parts);
	saying = false;
	return sent;
}

/* One answer, with its descriptors, which are -1 where there are none. */
static bool
hear(InsideMessage *message, int fds[2])
{
	size_t		filled = 0;

	fds[0] = fds[1] = -1;
	while (filled < sizeof(*message))
	{
		char		space[CMSG_SPACE(sizeof(int) * 2)];
		struct iovec part = {(char *) message + filled, sizeof(*message) - filled};
		struct msghdr in = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = space, .msg_controllen = sizeof(space)};
		ssize_t		got = recvmsg(control, &in, MSG_CMSG_CLOEXEC);

		if (got < 0 && errno == EINTR)
			continue;
		if (got <= 0)
			return false;
		for (struct cmsghdr *extra = CMSG_FIRSTHDR(&in); extra != NULL; extra = CMSG_NXTHDR(&in, extra))
			if (extra->cmsg_level == SOL_SOCKET && extra->cmsg_type == SCM_RIGHTS)
				memcpy(fds, CMSG_DATA(extra), Min(sizeof(int) * 2, extra->cmsg_len - CMSG_LEN(0)));
		filled += got;
	}
	return true;
}

static void
forget(uint32 slot)
{
	if (known[slot].fd >= 0)
		close(known[slot].fd);
	known[slot].fd = -1;
}

/* Descriptors of clients that are here no more keep their connections open. */
static void
forget_departed(void)
{
	for (uint32 slot = 0; slot < known_room; slot++)
		if (known[slot].fd >= 0 && pg_atomic_read_u32(word(slot, S_GENERATION)) != known[slot].generation)
			forget(slot);
}

/* What one send() to a client may have. */
static uint32
send_bytes_max(int fd)
{
	char		name[16] = "";
	socklen_t	length = sizeof(name) - 1;

	/* a socket of another kind has no such option */
	if (getsockopt(fd, IPPROTO_TCP, TCP_ULP, name, &length) == 0 && strcmp(name, "tls") == 0)
		return TLS_RECORD_BYTES;
	return PG_UINT32_MAX;
}

/* The descriptor of a client that this backend owns; -1: there is none. */
static int
fetch(uint32 slot, uint32 generation)
{
	InsideMessage answer;
	int			fds[2];

	if (slot >= known_room)
	{
		uint32		room = Min(slot_count, Max(slot + 1, Max(64, known_room * 2)));
		Size		size = room * sizeof(Known);

		known = known == NULL ? MemoryContextAlloc(TopMemoryContext, size) : repalloc(known, size);
		for (uint32 i = known_room; i < room; i++)
			known[i].fd = -1;
		known_room = room;
	}
	if (known[slot].fd >= 0 && known[slot].generation == generation)
		return known[slot].fd;
	forget(slot);
	inside_send_held();
	if (!say(TO_POOLER_FETCH, slot, generation, NULL, 0) || !hear(&answer, fds))
		proc_exit(0);			/* the pooler has gone */
	if (answer.kind != TO_BACKEND_CLIENT)
		return -1;
	if (fds[0] < 0)
	{
		static bool said = false;

		if (!said)
			ereport(LOG, (errmsg("no descriptor is left for a client inside: the pooler serves it"),
						  errhint("Raise the limit of open files of the server (LimitNOFILE), or lower inside_size.")));
		said = true;
		return -1;
	}
	known[slot].fd = fds[0];
	known[slot].generation = generation;
	known[slot].send_bytes_max = send_bytes_max(fds[0]);
	return fds[0];
}

/*
 * What PostgresMain does while it waits for its client. There is no statement
 * that an error could be the end of, so one ends the session; a cancel request
 * that comes now is for a statement before.
 */
static void
heed_interrupts(void)
{
	bool		before = ExitOnAnyError;

	ResetLatch(MyLatch);
	ExitOnAnyError = true;
	HOLD_CANCEL_INTERRUPTS();
	CHECK_FOR_INTERRUPTS();
	RESUME_CANCEL_INTERRUPTS();
	QueryCancelPending = false;
	if (catchupInterruptPending)
		ProcessCatchupInterrupt();
	if (notifyInterruptPending)
		ProcessNotifyInterrupt(false);
	ExitOnAnyError = before;
}

/* Neither the postmaster nor the pooler has gone. */
static void
look_for_both(void)
{
	struct pollfd pooler = {.fd = control, .events = POLLIN};

	if (!PostmasterIsAlive())
		proc_exit(1);
	/* it says nothing unasked: this is its end */
	if (poll(&pooler, 1, 0) > 0)
		proc_exit(0);
}

static void
while_idle(void)
{
	heed_interrupts();
	if (ConfigReloadPending)
	{
		ConfigReloadPending = false;
		ProcessConfigFile(PGC_SIGHUP);
	}
	if (!hawser_inside)
		proc_exit(0);
	look_for_both();
}

static void
look_around(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC_COARSE, &now);
	if (!InterruptPending && !ConfigReloadPending && !MyLatch->is_set && now.tv_sec == looked_at)
		return;
	if (now.tv_sec != looked_at)
		forget_departed();
	looked_at = now.tv_sec;
	while_idle();
}

/* Places. */

static pg_atomic_uint32 *
header(int which)
{
	return (pg_atomic_uint32 *) &words[which];
}

static uint32
places(void)
{
	return Max(1, pg_atomic_read_u32(header(H_PLACES)));
}

static void
give_place(void)
{
	if (counted[B_PLACE] == 0)
		return;
	counted[B_PLACE] = 0;
	if (pg_atomic_sub_fetch_u32(header(H_HELD), 1) < places() && pg_atomic_read_u32(header(H_WAITING)) > 0)
		(void) syscall(SYS_futex, header(H_HELD), FUTEX_WAKE, 1, NULL, NULL, 0);
}

static void
on_place_timeout(void)
{
	int			saved = errno;

	give_place();
	errno = saved;
}

/* The pooler goes on with it, from what is in its socket. */
static void
return_unread(uint32 slot)
{
	uint32		generation = pg_atomic_read_u32(word(slot, S_GENERATION));

	forget(slot);
	pg_atomic_write_u32(word(slot, S_OWNER), OWNER_OF(OWNER_POOLER, own_number));
	(void) say(TO_POOLER_RETURN, slot, generation, NULL, 0);
}

/* Clients whose messages would wait here for another client. */
static void
return_again(void)
{
	while (again_count > 0)
		return_unread(again[--again_count]);
}

static void
on_hold_timeout(void)
{
	int			saved = errno;

	if (saying)
		enable_timeout_after(hold_timeout, HOLD_AGAIN_MS);
	else
	{
		inside_send_held_meanwhile();
		return_again();
	}
	errno = saved;
}

/* A statement begins. `holds`: while answers of others wait. */
void
room_runs(bool holds)
{
	if (holds || again_count > 0)
		enable_timeout_after(hold_timeout, HOLD_MS);
	if (counted[B_PLACE] != 0)
		enable_timeout_after(place_timeout, PLACE_MS);
}

/* It has ended: from now on no signal takes the place away, or sends what waits. */
void
room_has_run(void)
{
	disable_timeout(hold_timeout, false);
	disable_timeout(place_timeout, false);
}

static void
leave_place(void)
{
	room_has_run();
	give_place();
}

static void
take_place(void)
{
	if (counted[B_PLACE] == 0)
		pg_atomic_fetch_add_u32(header(H_HELD), 1);
	counted[B_PLACE] = 1;
}

/*
 * Whether this backend may look for another client; if not, it has waited a
 * moment. (A signal that comes just before is seen after that.)
 */
static bool
may_look(void)
{
	struct timespec moment = {.tv_sec = WAIT_MS / 1000};
	uint32		held = pg_atomic_read_u32(header(H_HELD));

	if (counted[B_PLACE] != 0 && held > places())
		leave_place();
	while (counted[B_PLACE] == 0 && held < places())
		if (pg_atomic_compare_exchange_u32(header(H_HELD), &held, held + 1))
			counted[B_PLACE] = 1;
	if (counted[B_PLACE] != 0)
		return true;
	pg_atomic_fetch_add_u32(header(H_WAITING), 1);
	held = pg_atomic_read_u32(header(H_HELD));
	if (held >= places())
		inside_send_held();
	if (held >= places() && again_count == 0)
		(void) syscall(SYS_futex, header(H_HELD), FUTEX_WAIT, held, &moment, NULL, 0);
	pg_atomic_fetch_sub_u32(header(H_WAITING), 1);
	return false;
}

/* One event, if there is one at once, or within WAIT_MS. */
static bool
event_comes(struct epoll_event *event, bool waits)
{
	int			count = epoll_wait(ready_set, event, 1, 0);
	sigset_t	before;

	if (count != 0 || !waits)
		return count == 1;
	inside_send_held();
	if (again_count > 0)
		return false;
	sigprocmask(SIG_BLOCK, &BlockSig, &before);
	if (!InterruptPending && !ConfigReloadPending && !MyLatch->is_set)
		count = epoll_pwait(ready_set, event, 1, WAIT_MS, &before);
	sigprocmask(SIG_SETMASK, &before, NULL);
	return count == 1;
}

/* Whether this backend owns the client of an event now. */
static bool
take(uint32 slot)
{
	for (;;)
	{
		uint32		owner = pg_atomic_read_u32(word(slot, S_OWNER));

		switch (OWNER_STATE(owner))
		{
			case OWNER_IDLE:
				if (change_owner(slot, owner, OWNER_OF(OWNER_BUSY, own_number)))
					return true;
				break;
			case OWNER_BUSY:
				/* who serves it goes on with this */
				if (change_owner(slot, owner, OWNER_OF(OWNER_PENDING, owner >> 8)))
					return false;
				break;
			case OWNER_HELD:
				/* likewise, once its answer has been sent */
				if (change_owner(slot, owner, OWNER_OF(OWNER_AGAIN, owner >> 8)))
					return false;
				break;
			default:
				return false;
		}
	}
}

/*
 * Its client sends no more. That has no event of its own if it came together
 * with a message: who serves that gives the client back after it, to the
 * pooler, which reads up to the end.
 */
static void
note_end(uint32 slot, uint32 events)
{
	uint32		none = 0;

	if (events & (EPOLLRDHUP | EPOLLHUP | EPOLLERR))
		(void) pg_atomic_compare_exchange_u32(word(slot, S_RECALL), &none, 1);
}

/* The next client that may have sent something; it is this backend's own. False: look for interrupts first. */
bool
room_next(InsideClient *client)
{
	struct epoll_event event;
	uint32		slot;

	look_around();
	if (again_count > 0)
		take_place();
	else if (!may_look())
		return false;
	if (again_next && again_count > 0)
	{
		again_next = false;
		/* its last answer may be among them */
		inside_send_held();
		slot = again[0];
		memmove(again, again + 1, --again_count * sizeof(again[0]));
		pg_atomic_write_u32(word(slot, S_OWNER), OWNER_OF(OWNER_BUSY, own_number));
	}
	else if (event_comes(&event, again_count == 0))
	{
		again_next = true;
		slot = (uint32) event.data.u64;
		if (slot >= slot_count)
			return false;
		note_end(slot, event.events);
		if (!take(slot))
			return false;
	}
	else
	{
		again_next = true;
		return false;
	}
	served = slot;
	client->slot = slot;
	client->generation = pg_atomic_read_u32(word(slot, S_GENERATION));
	client->fd = fetch(slot, client->generation);
	if (client->fd < 0)
	{
		room_return(client, NULL, 0);
		return false;
	}
	client->send_bytes_max = known[slot].send_bytes_max;
	pg_atomic_write_u32(word(slot, S_TRANSACTIONS), pg_atomic_read_u32(word(slot, S_TRANSACTIONS)) + 1);
	return true;
}

/* A cancel request that has been sent for this slot's client must not reach the next one. */
static void
let_cancel_arrive(uint32 slot)
{
	inside_send_held();
	for (int waited = 0; pg_atomic_read_u32(word(slot, S_CANCEL)) != 0 && waited < CANCEL_WAIT_MS; waited++)
		pg_usleep(1000);
	/* it may still come, for another client */
	if (pg_atomic_read_u32(word(slot, S_CANCEL)) != 0)
		proc_exit(0);
	/* a signal that was sent is delivered at the latest when a system call returns */
	(void) getppid();
	QueryCancelPending = false;
}

/* One more that has taken so many us. */
static void
count_time(int first, int64 us)
{
	uint32		time = Max(0, Min(us, PG_INT32_MAX));
	int			class = time <= 50 ? 0 : pg_leftmost_one_pos32((time - 1) / 50) + 1;

	counted[first + T_COUNT]++;
	counted[first + T_US] += time;
	counted[first + T_CLASSES + Min(class, CLASSES - 1)]++;
}

/* A message of the client that is served has been answered, after so many us. */
void
room_count_query(uint32 received, uint32 sent, bool binds, uint32 parses, int64 us)
{
	counted[B_RECEIVED] += received;
	counted[B_SENT] += sent;
	counted[B_BINDS] += binds;
	counted[B_PARSES] += parses;
	count_time(B_QUERIES, us);
}

/* Its transaction has ended, likewise. */
void
room_count_transaction(int64 us)
{
	count_time(B_TRANSACTIONS, us);
}

/* Before this backend runs something else. */
static void
heed_cancel(uint32 slot)
{
	/* the pooler sets this first, and then looks who owns it */
	pg_memory_barrier();
	if (pg_atomic_read_u32(word(slot, S_CANCEL)) != 0)
		let_cancel_arrive(slot);
}

/* A client that has been released, and was recalled before. */
static void
return_recalled(const InsideClient *client)
{
	uint32		slot = client->slot;

	if (pg_atomic_read_u32(word(slot, S_RECALL)) != 0 && change_owner(slot, OWNER_IDLE, OWNER_OF(OWNER_POOLER, own_number)))
		(void) say(TO_POOLER_RETURN, slot, client->generation, NULL, 0);
}

static char *
unnamed_of(uint32 slot)
{
	return (char *) &words[SLOTS_FIRST + slot_count * SLOT_WORDS + slot * UNNAMED_WORDS];
}

/* It has this unnamed statement from now on, of which no part is too long; no bytes: none. */
void
room_note_unnamed(const InsideClient *client, const char *body, uint32 bytes)
{
	if (bytes > 0)
		memcpy(unnamed_of(client->slot), body, bytes);
	pg_atomic_write_u32(word(client->slot, S_UNNAMED), bytes + 1);
}

/*
 * Its transaction has ended, its answer waits to be sent: no other backend
 * takes it, and no cancel request for it comes here any more.
 */
void
room_hold(const InsideClient *client)
{
	uint32		slot = client->slot;

	served = PG_UINT32_MAX;
	if (!change_owner(slot, OWNER_OF(OWNER_BUSY, own_number), OWNER_OF(OWNER_HELD, own_number)))
		/* it has sent more meanwhile */
		pg_atomic_write_u32(word(slot, S_OWNER), OWNER_OF(OWNER_AGAIN, own_number));
	heed_cancel(slot);
}

/* Its answer has been sent from a signal handler: while a statement of another client runs. */
void
room_release_held(const InsideClient *client)
{
	uint32		slot = client->slot;

	/* else it has sent more, which must not wait for the end of that statement */
	if (pg_atomic_read_u32(word(slot, S_RECALL)) == 0 && change_owner(slot, OWNER_OF(OWNER_HELD, own_number), OWNER_IDLE))
		return_recalled(client);
	else
		return_unread(slot);
}

/* Before its next message within a transaction runs: a cancel request was for the one before. */
void
room_heed_cancel(const InsideClient *client)
{
	heed_cancel(client->slot);
}

/* It waits for its next message from now on, where any backend gets it. */
void
room_release(const InsideClient *client)
{
	uint32		slot = client->slot;

	if (slot == served)
		served = PG_UINT32_MAX;
	if (pg_atomic_read_u32(word(slot, S_RECALL)) != 0)
	{
		room_return(client, NULL, 0);
		return;
	}
	if (!change_owner(slot, OWNER_OF(OWNER_BUSY, own_number), OWNER_IDLE) &&
		!change_owner(slot, OWNER_OF(OWNER_HELD, own_number), OWNER_IDLE))
	{
		/* it has sent more meanwhile; others get their turn first */
		if (again_count == AGAIN_MAX)
		{
			room_return(client, NULL, 0);
			return;
		}
		again[again_count++] = slot;
		pg_atomic_write_u32(word(slot, S_OWNER), OWNER_OF(OWNER_AGAIN, own_number));
	}
	heed_cancel(slot);
	return_recalled(client);
}

static void
give_up(uint32 slot, uint32 kind, const void *bytes, uint32 count)
{
	uint32		generation = pg_atomic_read_u32(word(slot, S_GENERATION));

	if (slot == served)
		served = PG_UINT32_MAX;
	forget(slot);
	pg_atomic_write_u32(word(slot, S_OWNER), OWNER_OF(OWNER_POOLER, own_number));
	heed_cancel(slot);
	(void) say(kind, slot, generation, bytes, count);
}

/* The pooler goes on with it, beginning with these bytes. */
void
room_return(const InsideClient *client, const char *bytes, uint32 count)
{
	give_up(client->slot, TO_POOLER_RETURN, bytes, count);
}

/* Its connection is broken, or has had a last message. */
void
room_lost(const InsideClient *client)
{
	give_up(client->slot, TO_POOLER_LOST, NULL, 0);
}

/*
 * Waits a moment for a message of the client, which has a transaction open.
 * False: it is to be disconnected.
 */
bool
room_wait(const InsideClient *client)
{
	struct pollfd sent = {.fd = client->fd, .events = POLLIN};
	struct timespec moment = {.tv_nsec = BLOCK_WAIT_MS * 1000000L};
	int			found = -1;
	sigset_t	before;

	inside_send_held();
	return_again();
	leave_place();
	pgstat_report_wait_start(WAIT_EVENT_CLIENT_READ);
	sigprocmask(SIG_BLOCK, &BlockSig, &before);
	if (!InterruptPending && !MyLatch->is_set)
		found = ppoll(&sent, 1, &moment, &before);
	sigprocmask(SIG_SETMASK, &before, NULL);
	pgstat_report_wait_end();
	heed_interrupts();
	if (found == 0)
		look_for_both();
	if (found > 0)
		take_place();
	return found > 0 || pg_atomic_read_u32(word(client->slot, S_RECALL)) != RECALL_TO_END;
}

/* The pooler goes on with the client in this session, beginning with these bytes. All others are left to their room. */
void
room_hand_over(const InsideClient *client, const char *bytes, uint32 count, bool owed)
{
	inside_send_held();
	return_again();
	leave_place();
	give_up(client->slot, owed ? TO_POOLER_PAIR_OWED : TO_POOLER_PAIR, bytes, count);
	for (uint32 slot = 0; slot < known_room; slot++)
		forget(slot);
	close(control);
	close(ready_set);
	munmap(words, word_count * sizeof(uint32));
	control = ready_set = -1;
	words = NULL;
}

/* Nothing in shared memory may lead out of it. */
static const uint32 *
in_arena(uint32 first, uint32 bytes)
{
	if (first < arena_first || first > word_count || bytes > (word_count - first) * sizeof(uint32))
		return NULL;
	return words + first;
}

static const uint32 *
record_of(const InsideClient *client, uint32 *length)
{
	uint32		first = pg_atomic_read_u32(word(client->slot, S_RECORD));

	*length = pg_atomic_read_u32(word(client->slot, S_RECORD_WORDS));
	if (*length < RECORD_WORDS || *length > word_count)
		return NULL;
	return in_arena(first, *length * sizeof(uint32));
}

/* The client's settings: texts that end with NUL, two by two. */
bool
room_settings(const InsideClient *client, uint32 *id, const char **texts, uint32 *bytes)
{
	uint32		length;
	const uint32 *record = record_of(client, &length);

	if (record == NULL)
		return false;
	*id = record[SET_ID];
	*bytes = record[SET_BYTES];
	*texts = *id == 0 ? "" : (const char *) in_arena(record[SET_TEXTS], *bytes);
	return *texts != NULL && (*id == 0 || (*bytes > 0 && (*texts)[*bytes - 1] == '\0'));
}

uint32
room_name_count(const InsideClient *client)
{
	uint32		length;
	const uint32 *record = record_of(client, &length);

	return record == NULL ? 0 : record[R_NAMES];
}

/* Where the name of this number is in a record, or what comes after the last; 0: beyond its end. */
static uint32
name_at(const uint32 *record, uint32 length, uint32 index)
{
	uint32		at = RECORD_WORDS;

	for (uint32 i = 0; i < index; i++)
	{
		if (at + NAME_WORDS > length || record[at + N_BYTES] > NAMEDATALEN * 4)
			return 0;
		at += NAME_WORDS + TYPEALIGN(4, record[at + N_BYTES]) / 4;
	}
	return at <= length ? at : 0;
}

/* What the client's name of this number stands for. */
bool
room_name(const InsideClient *client, uint32 index, InsideName *name, const char **own, uint32 *own_bytes)
{
	uint32		length;
	const uint32 *record = record_of(client, &length);
	const uint32 *entry;
	const char *blob;

	if (record == NULL || index >= record[R_NAMES] || name_at(record, length, index + 1) == 0)
		return false;
	entry = record + name_at(record, length, index);
	blob = (const char *) in_arena(entry[N_BODY], entry[N_BODY_BYTES]);
	if (blob == NULL || memchr(blob, '\0', Min(entry[N_BODY_BYTES], NAMEDATALEN)) == NULL)
		return false;
	name->id = entry[N_ID];
	name->shared = blob;
	name->body = blob + strlen(blob) + 1;
	name->body_bytes = entry[N_BODY_BYTES] - (name->body - blob);
	*own = (const char *) (entry + NAME_WORDS);
	*own_bytes = entry[N_BYTES];
	return memchr(name->body, '\0', name->body_bytes) != NULL;
}

/* Whether statements may have another meaning than when their clients prepared them. */
bool
room_has_old_statements(void)
{
	return pg_atomic_read_u32(header(H_SCHEMA)) != 0;
}

void
room_schema_changed(void)
{
	uint32		none = 0;

	if (words != NULL && pg_atomic_compare_exchange_u32(header(H_SCHEMA), &none, 1))
		(void) say(TO_POOLER_SCHEMA, 0, 0, NULL, 0);
}

/* How many ms a client may take nothing of its answer while others wait; 0: no bound. */
uint32
room_patience(void)
{
	return Min(pg_atomic_read_u32(header(H_PATIENCE)), PG_INT32_MAX);
}

/* Whether clients of this pool may ask for what they have drawn from sequences in an earlier transaction. */
bool
room_keeps_draws(void)
{
	return pg_atomic_read_u32(header(H_DRAWS)) != 0;
}

/* Whether a client has sent something that no backend has taken yet. */
bool
room_has_waiters(void)
{
	struct pollfd ready = {.fd = ready_set, .events = POLLIN};

	return poll(&ready, 1, 0) > 0;
}

static void
at_exit(int code, Datum argument)
{
	inside_send_held();
	if (served != PG_UINT32_MAX)
		give_up(served, TO_POOLER_LOST, NULL, 0);
	return_again();
	if (words != NULL)
		leave_place();
}

static void
map_memory(int fd)
{
	struct stat size;
	int			seals = fcntl(fd, F_GET_SEALS);

	/* memory that shrinks would end this process, and so the server, by a signal */
	if (seals < 0 || (seals & (F_SEAL_SHRINK | F_SEAL_GROW)) != (F_SEAL_SHRINK | F_SEAL_GROW) ||
		fstat(fd, &size) != 0 || size.st_size < SLOTS_FIRST * sizeof(uint32) ||
		size.st_size > (off_t) PG_INT32_MAX)
		ereport(ERROR, (errmsg("the pooler's memory is not what a room needs")));
	words = mmap(NULL, size.st_size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (words == MAP_FAILED)
	{
		words = NULL;
		ereport(ERROR, (errmsg("could not map the pooler's memory: %m")));
	}
	word_count = size.st_size / sizeof(uint32);
	slot_count = words[H_SLOTS];
	arena_first = words[H_ARENA];
	if (words[H_MAGIC] != INSIDE_MAGIC || words[H_VERSION] != INSIDE_VERSION || words[H_WORDS] != word_count ||
		arena_first > word_count || arena_first < SLOTS_FIRST || slot_count > (arena_first - SLOTS_FIRST) / (SLOT_WORDS + UNNAMED_WORDS))
		ereport(ERROR, (errmsg("the pooler's room is of another version")));
}

/* Joins the pooler's room; errors say why not. */
void
room_enter(const char *control_socket, const char *token)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	struct timeval limit = {.tv_sec = ANSWER_SECONDS_MAX};
	InsideMessage answer;
	int			fds[2];

	if (snprintf(address.sun_path, sizeof(address.sun_path), "%s" SUFFIX, control_socket) >= sizeof(address.sun_path))
		ereport(ERROR, (errmsg("the path \"%s\" is too long for a socket", control_socket)));
	control = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (control < 0 ||
		setsockopt(control, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit)) != 0 ||
		setsockopt(control, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof(limit)) != 0 ||
		connect(control, (struct sockaddr *) &address, sizeof(address)) != 0)
		ereport(ERROR, (errmsg("could not reach the pooler at \"%s\": %m", address.sun_path)));
	if (!local_may_listen(control, address.sun_path))
		ereport(ERROR, (errmsg("what listens at \"%s\" is of a user who may not", address.sun_path)));
	if (!say(TO_POOLER_HELLO, INSIDE_VERSION, MyProcPid, token, strlen(token)) || !hear(&answer, fds) ||
		answer.kind != TO_BACKEND_WELCOME || answer.generation >= BACKENDS || fds[1] < 0)
		ereport(ERROR, (errmsg("the pooler at \"%s\" has no room for this session", address.sun_path)));
	own_number = answer.slot;
	ready_set = fds[0];
	map_memory(fds[1]);
	counted = words + HEADER_WORDS + answer.generation * BACKEND_WORDS;
	close(fds[1]);
	place_timeout = RegisterTimeout(USER_TIMEOUT, on_place_timeout);
	hold_timeout = RegisterTimeout(USER_TIMEOUT, on_hold_timeout);
	on_proc_exit(at_exit, (Datum) 0);
}
