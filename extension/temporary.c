/*
 * temporary.c: whether the session has temporary objects.
 *
 * Model       A temporary object is a row of pg_depend on the session's
 *             temporary schema: tables, views, sequences, functions and types
 *             have one; indexes, row types and TOAST tables hang from those.
 *             The rows are counted before a commit, where catalogs can still
 *             be read, and only in transactions that made or dropped something.
 * Why not     pg_my_temp_schema(): it stays after the last object is dropped.
 *             Counting what is created: at that time the namespace of the new
 *             object cannot be read yet.
 * Order       ON COMMIT DROP happens after PRE_COMMIT, without a chance to
 *             read catalogs after it. So the drops that follow are taken from
 *             the count one by one, while the rows of each are still there.
 *
 * The schema  The server gives a process its temporary schema at the first use,
 *             and never takes it away. A client that gets the process after
 *             another would find it: current_schema() makes none then, and
 *             PREPARE TRANSACTION takes what it refuses in a new session. So
 *             a process that has no temporary object left forgets its schema,
 *             and finds it again, by its name, at the next use.
 */
#include "postgres.h"

#include "hawser.h"

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/table.h"
#include "access/xact.h"
#include "catalog/dependency.h"
#include "catalog/indexing.h"
#include "catalog/namespace.h"
#include "catalog/pg_depend.h"
#include "catalog/pg_namespace.h"
#include "storage/proc.h"
#include "utils/fmgroids.h"

static bool objects_changed = false;	/* in this transaction */
static bool counted = false;	/* this transaction is past PRE_COMMIT */
static uint64 pending = 0;		/* as this transaction will leave it */
static bool present = false;	/* as committed */
static bool has_schema = false; /* as committed: the process knows its schema */
static bool cleans_at_exit = false; /* the server empties the schema at the process's end */

static Oid
temporary_schema(void)
{
	Oid			schema,
				toast_schema;

	GetTempNamespaceState(&schema, &toast_schema);
	return schema;
}

static uint64
objects_in(Oid schema)
{
	Relation	depend = table_open(DependRelationId, AccessShareLock);
	ScanKeyData key[2];
	SysScanDesc scan;
	uint64		count = 0;

	ScanKeyInit(&key[0], Anum_pg_depend_refclassid, BTEqualStrategyNumber, F_OIDEQ,
				ObjectIdGetDatum(NamespaceRelationId));
	ScanKeyInit(&key[1], Anum_pg_depend_refobjid, BTEqualStrategyNumber, F_OIDEQ,
				ObjectIdGetDatum(schema));
	scan = systable_beginscan(depend, DependReferenceIndexId, true, NULL, 2, key);
	while (HeapTupleIsValid(systable_getnext(scan)))
		count++;
	systable_endscan(scan);
	table_close(depend, AccessShareLock);
	return count;
}

/* Whether the object is one of those that objects_in() counts. */
static bool
is_in(Oid schema, Oid class_id, Oid object_id)
{
	Relation	depend = table_open(DependRelationId, AccessShareLock);
	ScanKeyData key[2];
	SysScanDesc scan;
	HeapTuple	row;
	bool		found = false;

	ScanKeyInit(&key[0], Anum_pg_depend_classid, BTEqualStrategyNumber, F_OIDEQ,
				ObjectIdGetDatum(class_id));
	ScanKeyInit(&key[1], Anum_pg_depend_objid, BTEqualStrategyNumber, F_OIDEQ,
				ObjectIdGetDatum(object_id));
	scan = systable_beginscan(depend, DependDependerIndexId, true, NULL, 2, key);
	while (!found && HeapTupleIsValid(row = systable_getnext(scan)))
	{
		Form_pg_depend entry = (Form_pg_depend) GETSTRUCT(row);

		found = entry->refclassid == NamespaceRelationId && entry->refobjid == schema;
	}
	systable_endscan(scan);
	table_close(depend, AccessShareLock);
	return found;
}

void
temporary_created(void)
{
	objects_changed = true;
}

/* An object is about to be dropped; its catalog rows are still there. */
void
temporary_dropping(Oid class_id, Oid object_id)
{
	Oid			schema;

	objects_changed = true;
	if (!counted || pending == 0)
		return;
	schema = temporary_schema();
	if (OidIsValid(schema) && is_in(schema, class_id, object_id))
		pending--;
}

void
temporary_before_commit(void)
{
	Oid			schema;

	if (!objects_changed)
		return;
	schema = temporary_schema();
	if (OidIsValid(schema))
	{
		/* what the last command did is not visible before this */
		CommandCounterIncrement();
		pending = objects_in(schema);
	}
	else
		pending = 0;
	counted = true;
}

/*
 * Before AtEOXact_Namespace(), which has the schema emptied at the process's
 * end, once for each transaction that has found it; there are places for 20.
 */
static void
settle_schema(void)
{
	bool		found = OidIsValid(temporary_schema()) && !has_schema;

	if (found && cleans_at_exit)
		AtEOSubXact_Namespace(true, TopSubTransactionId, InvalidSubTransactionId);
	cleans_at_exit |= found;
	has_schema = OidIsValid(temporary_schema());
#ifndef USE_ASSERT_CHECKING
	/* (with assertions this is for parallel workers alone) */
	if (has_schema && !present)
	{
		SetTempNamespaceState(InvalidOid, InvalidOid);
		MyProc->tempNamespaceId = InvalidOid;
		has_schema = false;
	}
#endif
}

/* `all_known`: the library was there when the session began. */
void
temporary_committed(bool all_known)
{
	if (counted)
		present = pending > 0;
	temporary_aborted();
	if (all_known)
		settle_schema();
}

/* What the transaction did is undone: `present` holds. */
void
temporary_aborted(void)
{
	objects_changed = counted = false;
	pending = 0;
}

bool
temporary_present(void)
{
	return present;
}
