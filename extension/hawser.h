/*
 * hawser.h: what the files of the extension share.
 *
 *   hawser.c      loading, settings of the extension, hooks put in their chains
 *   state.c       the text of hawser.state, and when it is sent
 *   track.c       what can only be learned while it happens (hooks)
 *   temporary.c   whether the session has temporary objects
 *   pooler.c      the background worker that starts the hawser program
 *   supervisor.c  the process that watches and stops it
 *   mptcp.c       what the kernel knows of the MPTCP sockets of backends
 *   compat.c      everything that differs between PostgreSQL 14 and 18
 */
#ifndef HAWSER_H
#define HAWSER_H

#include "postgres.h"

#include "lib/stringinfo.h"
#include "nodes/parsenodes.h"
#include "utils/guc.h"

/* The name under which state is reported, and the version of its text. */
#define STATE_NAME "hawser.state"
#define STATE_VERSION "1"

/* hawser.c: settings */
extern bool hawser_report;
extern char *hawser_listen;
extern int	hawser_pool_size;
extern char *hawser_program;
extern char *hawser_config_file;

/* state.c */
extern void state_define(void);
extern void state_report_to_client(void);
extern void state_install(bool in_mid_session);

/*
 * track.c: each is true from when it happened until it is known to be over.
 * They are hints in one direction: never false while the state exists.
 */
typedef struct Traces
{
	bool		sequences;		/* currval or lastval may be defined */
	bool		seed;			/* setseed() or SET seed */
	bool		loads;			/* LOAD */
	bool		slots;			/* a replication slot was made by this session */
	bool		listen;			/* LISTEN or UNLISTEN since channels were read */
	bool		settings;		/* SQL has set or reset one since they were read */
	bool		foreign;		/* C code runs here that may set any, at any time */
} Traces;

extern Traces traces;
extern void track_install(void);
extern void track_begin(void);
extern bool track_statements_changed(void);
extern bool track_cursors_changed(void);
extern void track_append_statements(StringInfo out);
extern void track_append_cursors(StringInfo out);

/* state.c: one more element of a list of names, escaped */
extern void state_append_escaped(StringInfo out, const char *text, size_t length_max);

/* temporary.c */
extern void temporary_created(void);
extern void temporary_dropping(Oid class_id, Oid object_id);
extern void temporary_before_commit(void);
extern bool temporary_committed(void);
extern void temporary_aborted(void);
extern bool temporary_present(void);

/* pooler.c */
extern void pooler_define(void);
extern void pooler_register(void);

/* supervisor.c */
extern void supervise(char *arguments[], int postmaster_pipe);

#endif							/* HAWSER_H */
