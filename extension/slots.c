/*
 * slots.c: which client each backend serves, in shared memory.
 *
 * Model       A slot for each backend, written by it alone at a hand-over. Who
 *             signals a client's backend holds the slot's lock from finding the
 *             client there until kill() has returned; a hand-over takes the
 *             same lock. So a signal is sent to a backend either before its
 *             next hand-over or not at all, and what has been sent is taken in
 *             by slots_put(): the next client's query is never cancelled.
 * Invariants  Nothing is looked up in catalogs under a slot's lock.
 * Limits      Only where the library is in shared_preload_libraries.
 */
#include "postgres.h"

#include "hawser.h"
#include "compat.h"

#include <signal.h>
#include <unistd.h>

#include "miscadmin.h"
#include "storage/ipc.h"
#include "storage/lwlock.h"
#include "storage/shmem.h"

#define TRANCHE "hawser"

typedef struct Slot
{
	LWLockPadded *lock;
	Client		client;			/* .pid 0: none */
	ServerConnection	connection;		/* likewise */
} Slot;

static Slot *slots = NULL;
static int	slot_count = 0;
static Slot *mine = NULL;
static shmem_startup_hook_type next_startup = NULL;

static void
on_startup(void)
{
	bool		found;

	if (next_startup)
		next_startup();
	slot_count = slots_wanted();
	LWLockAcquire(AddinShmemInitLock, LW_EXCLUSIVE);
	slots = ShmemInitStruct("hawser slots", mul_size(slot_count, sizeof(Slot)), &found);
	if (!found)
	{
		LWLockPadded *locks = GetNamedLWLockTranche(TRANCHE);

		memset(slots, 0, mul_size(slot_count, sizeof(Slot)));
		for (int i = 0; i < slot_count; i++)
			slots[i].lock = &locks[i];
	}
	LWLockRelease(AddinShmemInitLock);
}

static void
request(void)
{
	RequestAddinShmemSpace(mul_size(slots_wanted(), sizeof(Slot)));
	RequestNamedLWLockTranche(TRANCHE, slots_wanted());
}

/* At preloading. */
void
slots_install(void)
{
	on_shmem_request(request);
	next_startup = shmem_startup_hook;
	shmem_startup_hook = on_startup;
}

static void
at_exit(int code, Datum argument)
{
	LWLockAcquire(&mine->lock->lock, LW_EXCLUSIVE);
	memset(&mine->client, 0, sizeof(mine->client));
	memset(&mine->connection, 0, sizeof(mine->connection));
	LWLockRelease(&mine->lock->lock);
}

/* This backend's slot, from now on; false: there is none. */
static bool
take_own(void)
{
	int			number = backend_number();

	if (mine != NULL)
		return true;
	if (slots == NULL || number < 0 || number >= slot_count)
		return false;
	mine = &slots[number];
	before_shmem_exit(at_exit, (Datum) 0);
	return true;
}

/* What the pooler calls its connection to this backend. */
void
slots_connect(uint64 pooler, uint64 number)
{
	if (!take_own())
		return;
	LWLockAcquire(&mine->lock->lock, LW_EXCLUSIVE);
	mine->connection.pid = MyProcPid;
	mine->connection.pooler = pooler;
	mine->connection.number = number;
	LWLockRelease(&mine->lock->lock);
}

/* The client that this backend serves from now on; NULL: none. */
void
slots_put(const Client *client)
{
	if (!take_own())
		elog(FATAL, "hawser: there is no slot for backend %d", backend_number());
	LWLockAcquire(&mine->lock->lock, LW_EXCLUSIVE);
	if (client != NULL)
		mine->client = *client;
	else
		memset(&mine->client, 0, sizeof(mine->client));
	LWLockRelease(&mine->lock->lock);

	/*
	 * A signal that was sent before is delivered at the latest when a system
	 * call returns. A cancel was for the client before; an order to end is for
	 * this process, and is obeyed before the next client's message is read.
	 */
	(void) getppid();
	QueryCancelPending = false;
	CHECK_FOR_INTERRUPTS();
}

/* What this backend itself has in its slot; false: nothing. */
bool
slots_own(Client *client, ServerConnection *connection)
{
	/* no other process writes to it */
	if (mine != NULL)
	{
		*client = mine->client;
		*connection = mine->connection;
		return true;
	}
	memset(client, 0, sizeof(*client));
	memset(connection, 0, sizeof(*connection));
	return false;
}

/* The client in slot `index`, and what its pooler calls the connection; false past the last. `.pid` 0 where there is none. */
bool
slots_get(int index, Client *client, ServerConnection *connection)
{
	Slot	   *slot;

	if (slots == NULL || index >= slot_count)
		return false;
	slot = &slots[index];
	/* most are empty: not worth a lock */
	if (slot->client.pid == 0 && (connection == NULL || slot->connection.pid == 0))
	{
		client->pid = 0;
		if (connection != NULL)
			connection->pid = 0;
		return true;
	}
	LWLockAcquire(&slot->lock->lock, LW_SHARED);
	*client = slot->client;
	if (connection != NULL)
		*connection = slot->connection;
	LWLockRelease(&slot->lock->lock);
	return true;
}

/* Signals the backend of this client, if it is still with it. */
bool
slots_signal(int index, const Client *client, int signal_number)
{
	Slot	   *slot = &slots[index];
	bool		done = false;

	LWLockAcquire(&slot->lock->lock, LW_EXCLUSIVE);
	if (slot->client.pid == client->pid && slot->client.id == client->id &&
		slot->client.pooler == client->pooler && slot->client.role == client->role)
		done = kill(-client->pid, signal_number) == 0 || kill(client->pid, signal_number) == 0;
	LWLockRelease(&slot->lock->lock);
	return done;
}
