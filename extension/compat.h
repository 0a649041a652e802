/*
 * compat.h: everything that differs between PostgreSQL 14 and 18.
 *
 * The other files name no version.
 */
#ifndef HAWSER_COMPAT_H
#define HAWSER_COMPAT_H

#include "postgres.h"

#include "storage/lock.h"
#include "utils/backend_status.h"
#include "utils/guc_tables.h"

#if PG_VERSION_NUM < 140000 || PG_VERSION_NUM >= 190000
#error "hawser is for PostgreSQL 14 to 18"
#endif

typedef struct config_generic Setting;

/*
 * Settings.
 *
 * A custom name (my.user) is a placeholder: a record that the server makes at
 * the first SET, never takes away, and frees when a library defines the name.
 */
extern Setting **settings_all(int *count);	/* palloc'd, sorted by name */
extern bool settings_touched(void);
extern bool settings_names_changed(void);
extern void settings_name_used(const char *name);
extern void settings_names_unknown(void);
extern Setting *settings_find(const char *name);
extern char *settings_reset_value(const Setting *setting);	/* palloc'd */

/* A library that defines settings keeps others from names with its prefix. */
#define PREFIXES_ARE_RESERVED (PG_VERSION_NUM >= 150000)

/* User (advisory) locks of this process, as the shared table has them. */
extern int	user_locks_held(void);

/* What is reported is known to the client from its session's start. */
extern void report_from_the_start(const char *name);

/* Others' rows of the table of backends; NULL past the last. */
extern PgBackendStatus *backend_status(int index);

/* Functions that have other names or numbers of arguments. */
extern bool backup_is_running(void);

/* What a background worker must ask for, at the least. */
extern int	worker_flags(void);
extern void worker_detach(void);	/* from the server's memory, in a child of the worker's */

extern bool is_regular_backend(void);

/* Shared memory: what asks for it, and how many backends there may be. */
extern void on_shmem_request(void (*request) (void));
extern int	slots_wanted(void);
extern int	backend_number(void);	/* from 0 on, of this process */

/* Roles: what a login does, and what roles may. */
extern void initialize_session_user(const char *name, Oid role);
extern bool may_connect(Oid database, Oid role);
extern bool may_execute(Oid function, Oid role);

/* How the server says that there is no such process. */
extern const char *no_such_process(void);

#if PG_VERSION_NUM < 150000
#define MarkGUCPrefixReserved(prefix) EmitWarningsOnPlaceholders(prefix)
#endif

#endif							/* HAWSER_COMPAT_H */
