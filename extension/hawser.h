/*
 * hawser.h: what the files of the extension share.
 *
 *   hawser.c      loading, settings of the extension, hooks put in their chains
 *   state.c       the text of hawser.state, and when it is sent
 *   track.c       what can only be learned while it happens (hooks)
 *   temporary.c   whether the session has temporary objects
 *   kept.c        what the process keeps to its end: hawser.process
 *   pooler.c      the background worker that starts the hawser program
 *   supervisor.c  the process that watches and stops it
 *   mptcp.c       what the kernel knows of the MPTCP sockets of backends, and of clients of poolers
 *   handover.c    this backend serves another client: the pooler's message
 *   secret.c      the proof that the message is the pooler's
 *   identity.c    the session is another role's
 *   slots.c       which client each backend serves, in shared memory
 *   clients.c     clients of the poolers: hawser_sessions
 *   local.c       questions to a pooler on this host
 *   signals.c     pg_cancel_backend() and pg_terminate_backend() of a client
 *   settings.c    pg_settings of a pooler's client
 *   inside.c      this backend serves a pooler's clients itself: inside.h
 *   inside_room.c the clients that a pool's backends share, in shared memory
 *   inside_plain.c whether a text may run so
 *   processes.c   pg_backend_pid(), and the views that show process ids
 *   compat.c      everything that differs between PostgreSQL 14 and 18
 */
#ifndef HAWSER_H
#define HAWSER_H

#include "postgres.h"

#include "lib/stringinfo.h"
#include "libpq/pqcomm.h"
#include "nodes/parsenodes.h"
#include "utils/guc.h"

/* The name under which state is reported, and the version of its text. */
#define STATE_NAME "hawser.state"
#define STATE_VERSION "1"

/* The name under which changes of the schema are reported. */
#define SCHEMA_NAME "hawser.schema"

/* The name under which it is reported what the process keeps, and the version of that text. */
#define KEPT_NAME "hawser.process"
#define KEPT_VERSION "1"

/* hawser.c: settings */
extern bool hawser_report;
extern char *hawser_listen;
extern int	hawser_pool_size;
extern char *hawser_program;
extern char *hawser_config_file;
extern char *hawser_control_sockets;
extern char *hawser_pooler_role;

/* Process ids that poolers give to their clients begin here: above any of the system's. */
#define CLIENT_ID_FIRST 0x400000

/* state.c */
extern void state_define(void);
extern void state_report_to_client(void);
extern void state_install(bool in_mid_session);

/* schema.c */
extern void schema_define(void);
extern void schema_report_to_client(void);

/* kept.c */
extern void kept_define(void);
extern void kept_report_to_client(void);

/*
 * track.c: each is true from when it happened until it is known to be over.
 * They are hints in one direction: never false while the state exists.
 */
typedef struct Traces
{
	bool		sequences;		/* currval or lastval may be defined */
	bool		seed;			/* setseed() or SET seed */
	bool		loads;			/* LOAD, or dblink_connect() */
	bool		slots;			/* a replication slot was made by this session */
	bool		listen;			/* LISTEN or UNLISTEN since channels were read */
	bool		settings;		/* SQL has set or reset one since they were read */
	bool		foreign;		/* C code runs here that may set any, at any time */
} Traces;

extern Traces traces;
extern void track_install(void);
extern void track_begin(void);
extern void track_transaction_ended(void);
extern bool track_statements_changed(void);
extern bool track_cursors_changed(void);
extern void track_append_statements(StringInfo out);
extern void track_append_cursors(StringInfo out);

/* state.c: as SHOW gives it, but with all digits of a number; NULL: there is none */
struct config_generic;
extern char *setting_value(const struct config_generic *setting);

/* state.c: one more element of a list of names, escaped */
extern void state_append_escaped(StringInfo out, const char *text, size_t length_max);

/* state.c: whether a transaction has left something since the last time that this was taken */
extern bool state_is_known(void);
extern bool state_is_marked(void);
extern bool state_take_mark(void);
/* state.c: settings that have been given to this session since are no state of it */
extern void state_take_as_given(void);
/* state.c: whether a transaction has drawn from sequences; that is no mark, for state_forget_draws() undoes it */
extern bool state_take_draw(void);
extern void state_forget_draws(void);
/* state.c: the client learns the state again, whatever it has been told */
extern void state_report_again(void);

/* temporary.c */
extern void temporary_created(void);
extern void temporary_dropping(Oid class_id, Oid object_id);
extern void temporary_before_commit(void);
extern void temporary_committed(bool all_known);
extern void temporary_aborted(void);
extern bool temporary_present(void);

/* pooler.c */
extern void pooler_define(void);
extern void pooler_register(void);

extern char *pooler_socket_directory(void);

/* handover.c: the flags that its messages may have; poolers ask for them */
#define HAND_OVER_FLAGS 15

/* slots.c: a client, as a backend that serves it knows it */
typedef struct Client
{
	int			pid;			/* of the backend; 0: none */
	uint32		id;				/* the client's process id, in its BackendKeyData */
	uint64		pooler;			/* which pooler's: a random number of each */
	Oid			role;
	SockAddr	address;		/* salen 0: unknown */
	SockAddr	own_address;	/* of the pooler's connection */
	bool		has_transport;	/* the rest is known, as it was at the hand-over */
	bool		mptcp;
	bool		fallback;
	int			subflows;
	uint32		token;			/* at the pooler's end */
} Client;

/* slots.c: a pooler's name for its connection to a backend */
typedef struct ServerConnection
{
	int			pid;			/* of the backend; 0: it has said none */
	uint64		pooler;
	uint64		number;
} ServerConnection;

extern void slots_install(void);
extern void slots_put(const Client *client);
extern void slots_connect(uint64 pooler, uint64 number);
extern bool slots_get(int index, Client *client, ServerConnection *connection);
extern bool slots_own(Client *client, ServerConnection *connection);
extern bool slots_signal(int index, const Client *client, int signal_number);

/* secret.c */
extern void secret_read(const char *path);
extern bool secret_is_known(void);
extern const char *secret_challenge(void);
extern bool secret_made(const uint8 *message, size_t length);

/* identity.c */
extern void identity_check(const char *name);
extern void identity_take(const char *name);

/* local.c: each pooler that answers, with `fields` NULL, and each line of its answer */
typedef void (*LocalLine) (void *context, const char *socket, uint64 pooler, char **fields);
extern bool local_ask(const char *socket, const char *question, int field_count, LocalLine line, void *context);
extern bool local_is_pooler(const char *control_socket);
extern bool local_may_listen(int connection, const char *path);
extern void local_ask_all(const char *question, int field_count, LocalLine line, void *context);
extern bool local_order(const char *socket, uint64 pooler, const char *order);

/* clients.c: one that a pooler has, wherever that is known from */
typedef struct ClientRow
{
	uint32		id;
	uint64		pooler;
	Oid			role;			/* InvalidOid: the server has no such role */
	const char *user;
	const char *database;
	const char *application_name;	/* NULL: not known */
	const char *state;
	SockAddr	address;
	uint16		own_port;		/* the pooler's end of it; 0: a unix socket, or not known */
	bool		mptcp;			/* as its pooler says */
	int			backend;		/* process id of the server's; 0: none */
	const char *socket;			/* of its pooler; NULL: not on this host */
	int			slot;			/* where there is no socket */
	Client		client;			/* likewise */
} ClientRow;

/* Whether a client is still there. */
typedef enum Presence
{
	PRESENCE_THERE,
	PRESENCE_GONE,
	PRESENCE_UNKNOWN,			/* its pooler has not answered: there was a warning */
} Presence;

extern List *clients_known(uint32 id);	/* 0: all */
extern Presence client_presence(const ClientRow *row);

/* signals.c */
extern void signals_install(void);
extern void check_execute(Oid function);
extern void warn_of_equal_ids(int count, int id);

/* processes.c */
extern bool hawser_client_pids;
extern void processes_install(void);
extern bool is_own_client(int id);

/* supervisor.c */
extern void supervise(char *arguments[], int postmaster_pipe);

#endif							/* HAWSER_H */
