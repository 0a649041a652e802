/*
 * compat.c: everything that differs between PostgreSQL 14 and 18.
 */
#include "postgres.h"

#include "compat.h"

#include "access/xact.h"
#include "access/xlog.h"
#include "catalog/pg_database.h"
#include "catalog/pg_proc.h"
#include "miscadmin.h"
#include "postmaster/autovacuum.h"
#include "postmaster/bgworker.h"
#include "replication/walsender.h"
#include "storage/dsm.h"
#include "storage/ipc.h"
#include "storage/lwlock.h"
#include "storage/pg_shmem.h"
#include "storage/proc.h"
#include "utils/acl.h"
#include "utils/memutils.h"
#if PG_VERSION_NUM >= 160000
#include "lib/ilist.h"
#endif

#if PG_VERSION_NUM < 160000

/*
 * 14 and 15: the server's own array, always current. The number of settings
 * tells whether there is a new name.
 */
static int	settings_known = -1;

Setting   **
settings_all(int *count)
{
	Setting   **own;

	*count = settings_known = GetNumConfigOptions();
	own = palloc(*count * sizeof(Setting *));
	memcpy(own, get_guc_variables(), *count * sizeof(Setting *));
	return own;
}

/* Whether a name has come since settings_all(). */
bool
settings_names_changed(void)
{
	return GetNumConfigOptions() != settings_known;
}

/*
 * Whether this transaction has touched a setting. Whatever SET changes within
 * a transaction has an entry on its stack up to AtEOXact_GUC, which is after
 * the callbacks.
 */
bool
settings_touched(void)
{
	int			count = GetNumConfigOptions();
	Setting   **all = get_guc_variables();

	for (int i = 0; i < count; i++)
		if (all[i]->stack != NULL)
			return true;
	return false;
}

void
settings_name_used(const char *name)
{
}

void
settings_names_unknown(void)
{
}

Setting *
settings_find(const char *name)
{
	int			count = GetNumConfigOptions();
	Setting   **all = get_guc_variables();

	for (int i = 0; i < count; i++)
		if (pg_strcasecmp(all[i]->name, name) == 0)
			return all[i];
	return NULL;
}

#else

/*
 * 16 and later: settings are in a hash table that only get_guc_variables()
 * gives, which allocates and sorts (32 us). So pointers to those that are no
 * placeholders are kept: these records are never freed. Placeholders are kept
 * by name. A new name is learned from who makes it: SET, set_config() and
 * functions with a SET clause, by the hooks in track.c.
 *
 * Limits: another extension's C code that gives a value to a new custom name
 * by SetConfigOption() is seen with the next name that SQL sets.
 */
static Setting **kept = NULL;
static int	kept_count = 0;
static char **placeholders = NULL;
static int	placeholder_count = 0;
static bool names_stale = true; /* there may be others */
static bool names_changed = true;	/* there are, since settings_all() */

static bool
are_known(Setting **fresh, int fresh_count, char **names, int name_count)
{
	if (fresh_count != kept_count || name_count != placeholder_count)
		return false;
	for (int i = 0; i < name_count; i++)
		if (strcmp(names[i], placeholders[i]) != 0)
			return false;
	return fresh_count == 0 || memcmp(fresh, kept, fresh_count * sizeof(Setting *)) == 0;
}

static void
refresh(void)
{
	int			count;
	Setting   **all = get_guc_variables(&count);
	MemoryContext old = MemoryContextSwitchTo(TopMemoryContext);
	Setting   **fresh = palloc(count * sizeof(Setting *));
	char	  **names = palloc(count * sizeof(char *));
	int			fresh_count = 0;
	int			name_count = 0;

	for (int i = 0; i < count; i++)
	{
		if (all[i]->flags & GUC_CUSTOM_PLACEHOLDER)
			names[name_count++] = pstrdup(all[i]->name);
		else
			fresh[fresh_count++] = all[i];
	}
	MemoryContextSwitchTo(old);
	names_changed |= !are_known(fresh, fresh_count, names, name_count);
	if (kept != NULL)
	{
		for (int i = 0; i < placeholder_count; i++)
			pfree(placeholders[i]);
		pfree(placeholders);
		pfree(kept);
	}
	kept = fresh;
	kept_count = fresh_count;
	placeholders = names;
	placeholder_count = name_count;
	names_stale = false;
	pfree(all);
}

Setting *
settings_find(const char *name)
{
	return find_option(name, false, true, 0);
}

static int
by_name(const void *a, const void *b)
{
	return strcmp((*(Setting *const *) a)->name, (*(Setting *const *) b)->name);
}

Setting   **
settings_all(int *count)
{
	Setting   **own;
	int			n;

	if (names_stale)
		refresh();
	names_changed = false;
	own = palloc((kept_count + placeholder_count) * sizeof(Setting *));
	memcpy(own, kept, kept_count * sizeof(Setting *));
	n = kept_count;
	for (int i = 0; i < placeholder_count; i++)
	{
		Setting    *setting = settings_find(placeholders[i]);

		if (setting == NULL)
			continue;
		own[n++] = setting;
	}
	/* kept is sorted: only a placeholder can be out of its place */
	if (n > kept_count)
		qsort(own, n, sizeof(Setting *), by_name);
	*count = n;
	return own;
}

bool
settings_names_changed(void)
{
	if (names_stale)
		refresh();
	return names_changed;
}

bool
settings_touched(void)
{
	for (int i = 0; i < kept_count; i++)
		if (kept[i]->stack != NULL)
			return true;
	for (int i = 0; i < placeholder_count; i++)
	{
		Setting    *setting = settings_find(placeholders[i]);

		if (setting != NULL && setting->stack != NULL)
			return true;
	}
	return false;
}

void
settings_name_used(const char *name)
{
	Setting    *setting;

	if (names_stale || strchr(name, '.') == NULL)
		return;
	for (int i = 0; i < placeholder_count; i++)
		if (pg_strcasecmp(placeholders[i], name) == 0)
			return;
	setting = settings_find(name);
	for (int i = 0; setting != NULL && i < kept_count; i++)
		if (kept[i] == setting)
			return;
	names_stale = true;
}

void
settings_names_unknown(void)
{
	names_stale = true;
}

#endif

/*
 * What RESET gives, as text. GetConfigOptionResetString() does not tell a role
 * of what only superusers see, and rounds numbers.
 */
char *
settings_reset_value(const Setting *setting)
{
	switch (setting->vartype)
	{
		case PGC_BOOL:
			return pstrdup(((const struct config_bool *) setting)->reset_val ? "on" : "off");
		case PGC_INT:
			return psprintf("%d", ((const struct config_int *) setting)->reset_val);
		case PGC_REAL:
			return psprintf("%.17g", ((const struct config_real *) setting)->reset_val);
		case PGC_STRING:
			{
				const char *value = ((const struct config_string *) setting)->reset_val;

				return pstrdup(value != NULL ? value : "");
			}
		case PGC_ENUM:
			{
				struct config_enum *one = (struct config_enum *) setting;

				return pstrdup(config_enum_lookup_by_value(one, one->reset_val));
			}
	}
	return pstrdup("");
}

/*
 * How many user locks this process has. Outside a transaction these are
 * session-level locks: the shared table does not tell one from the other, but
 * the end of a transaction has released its own.
 *
 * A list without entries is read without its lock, as LockReleaseAll() does:
 * no other process adds a user lock to it.
 */
int
user_locks_held(void)
{
	int			held = 0;

	for (int i = 0; i < NUM_LOCK_PARTITIONS; i++)
	{
		LWLock	   *partition = LockHashPartitionLockByIndex(i);
#if PG_VERSION_NUM < 160000
		SHM_QUEUE  *list = &MyProc->myProcLocks[i];
		PROCLOCK   *lock;

		if (SHMQueueNext(list, list, offsetof(PROCLOCK, procLink)) == NULL)
			continue;
		LWLockAcquire(partition, LW_SHARED);
		for (lock = (PROCLOCK *) SHMQueueNext(list, list, offsetof(PROCLOCK, procLink));
			 lock != NULL;
			 lock = (PROCLOCK *) SHMQueueNext(list, &lock->procLink, offsetof(PROCLOCK, procLink)))
			if (PROCLOCK_LOCKMETHOD(*lock) == USER_LOCKMETHOD && lock->holdMask != 0)
				held++;
#else
		dlist_head *list = &MyProc->myProcLocks[i];
		dlist_iter	at;

		if (dlist_is_empty(list))
			continue;
		LWLockAcquire(partition, LW_SHARED);
		dlist_foreach(at, list)
		{
			PROCLOCK   *lock = dlist_container(PROCLOCK, procLink, at.cur);

			if (PROCLOCK_LOCKMETHOD(*lock) == USER_LOCKMETHOD && lock->holdMask != 0)
				held++;
		}
#endif
		LWLockRelease(partition);
	}
	return held;
}

PgBackendStatus *
backend_status(int index)
{
	LocalPgBackendStatus *local;

	if (index >= pgstat_fetch_stat_numbackends())
		return NULL;
#if PG_VERSION_NUM < 160000
	local = pgstat_fetch_stat_local_beentry(index + 1);
#else
	local = pgstat_get_local_beentry_by_index(index + 1);
#endif
	return local == NULL ? NULL : &local->backendStatus;
}

bool
backup_is_running(void)
{
#if PG_VERSION_NUM < 150000
	/* an exclusive one is no session's own */
	return get_backup_status() == SESSION_BACKUP_NON_EXCLUSIVE;
#else
	return get_backup_status() == SESSION_BACKUP_RUNNING;
#endif
}

bool
is_regular_backend(void)
{
	return IsUnderPostmaster && MyBackendType == B_BACKEND;
}

/* 15 and later start no worker without this flag; 14 detaches one without it by itself. */
int
worker_flags(void)
{
#if PG_VERSION_NUM < 150000
	return 0;
#else
	return BGWORKER_SHMEM_ACCESS;
#endif
}

void
worker_detach(void)
{
#if PG_VERSION_NUM >= 150000
	dsm_detach_all();
	PGSharedMemoryDetach();
#endif
}

#if PG_VERSION_NUM < 150000

/* 14: libraries ask while they are loaded, and MaxBackends is computed later. */
void
on_shmem_request(void (*request) (void))
{
	request();
}

int
slots_wanted(void)
{
	return MaxConnections + autovacuum_max_workers + 1 + max_worker_processes + max_wal_senders;
}

#else

static shmem_request_hook_type next_shmem_request = NULL;
static void (*shmem_requester) (void) = NULL;

static void
request_shmem(void)
{
	if (next_shmem_request)
		next_shmem_request();
	shmem_requester();
}

void
on_shmem_request(void (*request) (void))
{
	shmem_requester = request;
	next_shmem_request = shmem_request_hook;
	shmem_request_hook = request_shmem;
}

int
slots_wanted(void)
{
	return MaxBackends;
}

#endif

int
backend_number(void)
{
#if PG_VERSION_NUM < 170000
	return MyProc == NULL ? -1 : MyProc->pgprocno;
#else
	return MyProcNumber;
#endif
}

void
initialize_session_user(const char *name, Oid role)
{
#if PG_VERSION_NUM < 170000
	InitializeSessionUserId(name, role);
#else
	InitializeSessionUserId(name, role, false);
#endif
}

bool
may_connect(Oid database, Oid role)
{
#if PG_VERSION_NUM < 160000
	return pg_database_aclcheck(database, role, ACL_CONNECT) == ACLCHECK_OK;
#else
	return object_aclcheck(DatabaseRelationId, database, role, ACL_CONNECT) == ACLCHECK_OK;
#endif
}

bool
may_execute(Oid function, Oid role)
{
#if PG_VERSION_NUM < 160000
	return pg_proc_aclcheck(function, role, ACL_EXECUTE) == ACLCHECK_OK;
#else
	return object_aclcheck(ProcedureRelationId, function, role, ACL_EXECUTE) == ACLCHECK_OK;
#endif
}

const char *
no_such_process(void)
{
#if PG_VERSION_NUM < 150000
	return "PID %d is not a PostgreSQL server process";
#else
	return "PID %d is not a PostgreSQL backend process";
#endif
}

/*
 * 14 tells its client what is reported before it loads
 * session_preload_libraries: what those define has to be marked.
 */
void
report_from_the_start(const char *name)
{
#if PG_VERSION_NUM < 150000
	if (MyProcPort != NULL && !IsTransactionState())
		SetConfigOption(name, "", PGC_INTERNAL, PGC_S_OVERRIDE);
#endif
}
