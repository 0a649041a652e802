/*
 * inside.h: what a backend that serves clients inside shares with the pooler.
 *
 * A memory file that the pooler makes, and seals so that it can neither
 * shrink nor grow: an array of 32-bit words in the machine's order. The same
 * layout is in crates/hawser/src/inside/memory.rs; a change of it changes
 * INSIDE_VERSION.
 *
 *     header (HEADER_WORDS) | backends (BACKEND_WORDS each) | slots (SLOT_WORDS each)
 *         | unnamed statements (UNNAMED_WORDS each) | arena
 *
 * Owner of a slot: who may touch its client and its other words.
 *
 *            event                    done
 *     IDLE ─────────► BUSY ─────────────────────► IDLE
 *                      │ ▲ another's event          ▲
 *                      ▼ │ (that one goes on)       │ the pooler puts one in
 *                    PENDING ──► AGAIN ──► BUSY     │
 *     BUSY, PENDING, IDLE ──► POOLER ───────────────┘
 *     BUSY ──► HELD ──► IDLE, or AGAIN by another's event
 *
 * A backend takes IDLE to BUSY, and BUSY or PENDING to what it likes while it
 * is the one that serves. Any backend takes BUSY to PENDING, and HELD to AGAIN.
 * The pooler takes IDLE to POOLER, and puts clients in; of a backend that has
 * ended it takes all. A record is written while the owner is POOLER.
 */
#ifndef HAWSER_INSIDE_H
#define HAWSER_INSIDE_H

#include "postgres.h"

#include "port/atomics.h"

#define INSIDE_MAGIC 0x48415749
#define INSIDE_VERSION 3

/* Words of the header. */
#define HEADER_WORDS 32
#define H_MAGIC 0
#define H_VERSION 1
#define H_SLOTS 2
#define H_ARENA 3				/* its first word */
#define H_WORDS 4				/* of all */
#define H_SCHEMA 5				/* not 0: what statements mean may have changed */
#define H_PATIENCE 6			/* ms for which a client may take nothing of its answer while others wait; 0: no bound */
#define H_DRAWS 7				/* not 0: what a transaction draws from sequences may be asked for later */
#define H_PLACES 8				/* so many backends look for clients at once */
#define H_HELD 9				/* so many do, or run what they have found; a futex */
#define H_WAITING 10			/* so many wait until it is less than H_PLACES */

/*
 * Words of a backend: what it has counted, in cache lines of its own. The
 * pooler adds up the differences. Of messages and of transactions there are
 * the number, the time and the classes of times.
 */
#define BACKENDS 4096
#define BACKEND_WORDS 64
#define B_RECEIVED 0			/* bytes */
#define B_SENT 1
#define B_BINDS 2
#define B_PARSES 3				/* of statements that were missing */
#define B_QUERIES 4
#define B_TRANSACTIONS (B_QUERIES + TIME_WORDS)
#define T_COUNT 0
#define T_US 1
#define T_CLASSES 2				/* up to 50 us, 100 us, 200 us ... */
#define CLASSES 21
#define TIME_WORDS (T_CLASSES + CLASSES)
#define B_PLACE (B_TRANSACTIONS + TIME_WORDS)	/* 1: it is one of H_HELD */

/* Words of a slot: one cache line. */
#define SLOT_WORDS 16
#define S_OWNER 0
#define S_GENERATION 1			/* odd: in use */
#define S_UNNAMED 2				/* 0: it has had no unnamed statement here; else one more than the bytes of that */
#define S_RECALL 3				/* not 0: the pooler gets it back, once it is in no transaction */
#define S_CANCEL 4				/* not 0: a cancel request is on its way to the backend that serves it */
#define S_RECORD 5				/* first word in the arena */
#define S_RECORD_WORDS 6
#define S_TRANSACTIONS 7

/* A recall: it is to be disconnected, in a transaction or not. */
#define RECALL_TO_END 2

/* Of each slot: the body of the Parse that its client has sent last, after the name. */
#define UNNAMED_WORDS 128
#define UNNAMED_BYTES (UNNAMED_WORDS * 4)

/* An owner: one of these, and above it the number of the backend that made it so. */
#define OWNER_STATE(owner) ((owner) & 0xff)
#define OWNER_OF(state, backend) ((state) | ((backend) << 8))
#define OWNER_IDLE 0
#define OWNER_BUSY 1
#define OWNER_PENDING 2
#define OWNER_POOLER 3
#define OWNER_AGAIN 4			/* in the queue of a backend that has served it */
#define OWNER_HELD 5			/* its last transaction has ended, and the answer waits to be sent */

/* Words of a record: a client's settings and the names of its statements. */
#define R_NAMES 3				/* how many: each NAME_WORDS and the bytes of the name, up to a whole word */
#define RECORD_WORDS 4
#define SET_TEXTS 0				/* name, NUL, value, NUL ... */
#define SET_BYTES 1
#define SET_ID 2				/* equal ids, equal settings; 0: none */
#define N_BODY 0				/* text of the shared name, NUL, body of Parse after the name */
#define N_BODY_BYTES 1
#define N_ID 2
#define N_BYTES 3				/* of the client's own name */
#define NAME_WORDS 4

/* Messages between backend and pooler: four words, and `bytes` more. */
typedef struct InsideMessage
{
	uint32		kind;
	uint32		slot;
	uint32		generation;
	uint32		bytes;
} InsideMessage;

#define TO_POOLER_HELLO 1		/* slot: version; the token */
#define TO_POOLER_FETCH 2		/* the client's descriptor is wanted */
#define TO_POOLER_RETURN 3		/* the client comes back, with what was read of it */
#define TO_POOLER_LOST 4		/* its connection is at its end */
#define TO_POOLER_PAIR 5		/* the client comes back with this backend, and with what was read of it */
#define TO_POOLER_SCHEMA 6
#define TO_POOLER_PAIR_OWED 7	/* the same; the ReadyForQuery that the pooler then asks for is the client's */
#define TO_BACKEND_WELCOME 1	/* slot: number of the backend; generation: which of the backends' words; descriptors of epoll set and memory */
#define TO_BACKEND_CLIENT 2		/* its descriptor */
#define TO_BACKEND_NONE 3		/* there is no such client */

/* A whole message, or pipeline, that is longer goes back to the pooler. */
#define INPUT_BYTES_MAX (64 * 1024)

/* inside_room.c: the shared memory, the descriptors, the conversation with the pooler */
typedef struct InsideClient
{
	uint32		slot;
	uint32		generation;
	int			fd;
	uint32		send_bytes_max; /* of one send(): a record of TLS, where the kernel makes these */
} InsideClient;

typedef struct InsideName
{
	uint32		id;
	const char *shared;			/* name of the shared statement */
	const char *body;			/* after it: text, NUL, types of parameters */
	uint32		body_bytes;
} InsideName;

extern bool hawser_inside;
extern void room_enter(const char *control_socket, const char *token);
extern bool room_next(InsideClient *client);
extern void room_runs(bool holds);
extern void room_has_run(void);
extern void room_count_query(uint32 received, uint32 sent, bool binds, uint32 parses, int64 us);
extern void room_count_transaction(int64 us);
extern void room_note_unnamed(const InsideClient *client, const char *body, uint32 bytes);
extern void room_hold(const InsideClient *client);
extern void room_heed_cancel(const InsideClient *client);
extern void room_release(const InsideClient *client);
extern void room_release_held(const InsideClient *client);
extern void room_return(const InsideClient *client, const char *bytes, uint32 count);
extern void room_lost(const InsideClient *client);
extern bool room_wait(const InsideClient *client);
extern void room_hand_over(const InsideClient *client, const char *bytes, uint32 count, bool owed);
extern bool room_settings(const InsideClient *client, uint32 *id, const char **texts, uint32 *bytes);
extern uint32 room_name_count(const InsideClient *client);
extern bool room_name(const InsideClient *client, uint32 index, InsideName *name, const char **own, uint32 *own_bytes);
extern bool room_has_old_statements(void);
extern void room_schema_changed(void);
extern uint32 room_patience(void);
extern bool room_keeps_draws(void);
extern bool room_has_waiters(void);

/* inside_plain.c: whether a text may run inside */
extern bool inside_is_plain(const char *text);

/* inside.c */
extern void inside_define(void);
extern void inside_send_held(void);
extern void inside_send_held_meanwhile(void);

#endif							/* HAWSER_INSIDE_H */
