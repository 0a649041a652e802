/*
 * track.c: what can only be learned while it happens.
 *
 * The server has no way to ask which prepared statements, held cursors or
 * sequences a session has, or none that may be used between transactions. So
 * hooks note the moment at which such state can begin; whether it still
 * exists is then asked of the server by name.
 *
 * A note errs to one side: state may be noted that did not come about (EXPLAIN
 * of an INSERT notes its sequence), never the other way round.
 *
 * Sequences   An expression is noted when it is set up, not at each call, and
 *             may live as long as its transaction: a function in PL/pgSQL, an
 *             open cursor. So DISCARD SEQUENCES undoes no note of its own
 *             transaction.
 *
 * Settings    SQL changes them by SET, RESET, DISCARD ALL and set_config(), which
 *             hooks see. C code of other libraries may do as it likes: once such
 *             a library may be loaded (`foreign`), the settings themselves are
 *             looked at, at each end of a transaction. That is not done always
 *             because there are 350 of them, each in a cache line of its own:
 *             0.3 us in a loop, and more after a transaction that has used
 *             the cache for itself.
 * Limits      C code of other extensions that calls nextval_internal(),
 *             StorePreparedStatement() or the like itself is not seen.
 */
#include "postgres.h"

#include "hawser.h"
#include "compat.h"

#include "access/htup_details.h"
#include "access/sysattr.h"
#include "access/table.h"
#include "catalog/objectaccess.h"
#include "catalog/pg_language.h"
#include "catalog/pg_proc.h"
#include "catalog/pg_type.h"
#include "commands/prepare.h"
#include "executor/executor.h"
#include "fmgr.h"
#include "miscadmin.h"
#include "nodes/execnodes.h"
#include "tcop/utility.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/memutils.h"
#include "utils/portal.h"
#include "utils/rel.h"
#include "utils/syscache.h"
#include "utils/varlena.h"

Traces		traces;
static bool expression_draws = false;	/* one was set up in this transaction */

static ProcessUtility_hook_type next_utility = NULL;
static ExecutorStart_hook_type next_executor_start = NULL;
static object_access_hook_type next_object_access = NULL;

/* Names of things that SQL made; those that are gone are taken out. */
typedef struct Names
{
	char	  **names;
	int			count;
	int			room;
	bool		grown;			/* since names_changed() */
} Names;

static Names statements;
static Names cursors;
static Names libraries;			/* of C functions that were called, and languages: never shorter */

static void
names_add(Names *list, const char *name)
{
	for (int i = 0; i < list->count; i++)
		if (strcmp(list->names[i], name) == 0)
			return;
	if (list->count == list->room)
	{
		int			room = Max(8, list->room * 2);
		Size		size = room * sizeof(char *);

		list->names = list->names == NULL
			? MemoryContextAlloc(TopMemoryContext, size)
			: repalloc(list->names, size);
		list->room = room;
	}
	list->names[list->count++] = MemoryContextStrdup(TopMemoryContext, name);
	list->grown = true;
}

/* Takes out what is gone; whether the list has changed since the last call. */
static bool
names_changed(Names *list, bool (*exists) (const char *name))
{
	bool		changed = list->grown;
	int			left = 0;

	for (int i = 0; i < list->count; i++)
	{
		if (exists(list->names[i]))
			list->names[left++] = list->names[i];
		else
		{
			pfree(list->names[i]);
			changed = true;
		}
	}
	list->count = left;
	list->grown = false;
	return changed;
}

static void
names_append(StringInfo out, const char *word, const Names *list)
{
	for (int i = 0; i < list->count; i++)
	{
		appendStringInfo(out, "%s", i == 0 ? word : ",");
		state_append_escaped(out, list->names[i], NAMEDATALEN);
	}
}

/* A statement of the protocol with the same name is not SQL's. */
static bool
statement_exists(const char *name)
{
	PreparedStatement *statement = FetchPreparedStatement(name, false);

	return statement != NULL && statement->from_sql;
}

/* Held: it has outlived the transaction that declared it. */
static bool
cursor_exists(const char *name)
{
	Portal		portal = GetPortalByName(name);

	return PortalIsValid(portal) && (portal->cursorOptions & CURSOR_OPT_HOLD) != 0 &&
		portal->createSubid == InvalidSubTransactionId;
}

bool
track_statements_changed(void)
{
	return names_changed(&statements, statement_exists);
}

bool
track_cursors_changed(void)
{
	return names_changed(&cursors, cursor_exists);
}

void
track_append_statements(StringInfo out)
{
	names_append(out, " statements=", &statements);
}

void
track_append_cursors(StringInfo out)
{
	names_append(out, " cursors=", &cursors);
}

static bool
has_identity(Relation relation)
{
	TupleDesc	columns = RelationGetDescr(relation);

	for (int i = 0; i < columns->natts; i++)
		if (TupleDescAttr(columns, i)->attidentity != '\0')
			return true;
	return false;
}

/* Before the command, since one that fails may have had its effect. */
static void
note_before(Node *statement)
{
	if (IsA(statement, VariableSetStmt))
	{
		VariableSetStmt *set = (VariableSetStmt *) statement;

		traces.settings = true;
		if (set->name != NULL)
		{
			settings_name_used(set->name);
			if (strcmp(set->name, "seed") == 0)
				traces.seed = true;
		}
	}
	else if (IsA(statement, CreateFunctionStmt) || IsA(statement, AlterFunctionStmt) ||
			 IsA(statement, AlterRoleSetStmt) || IsA(statement, AlterDatabaseSetStmt))
		settings_names_unknown();	/* custom names in SET clauses are known from here on; they hold while a
									 * function's body is checked */
	else if (IsA(statement, LoadStmt))
	{
		traces.loads = traces.foreign = true;
		settings_names_unknown();
	}
	else if (IsA(statement, ListenStmt) || IsA(statement, UnlistenStmt))
		traces.listen = true;
	else if (IsA(statement, AlterTableStmt))
	{
		ListCell   *cell;

		/* a new identity column numbers the rows that are there */
		foreach(cell, ((AlterTableStmt *) statement)->cmds)
			if (((AlterTableCmd *) lfirst(cell))->subtype == AT_AddColumn)
				traces.sequences = true;
	}
	else if (IsA(statement, CopyStmt))
	{
		CopyStmt   *copy = (CopyStmt *) statement;

		/* identity columns are filled without the executor; this takes the lock that COPY would take next */
		if (copy->is_from && copy->relation != NULL)
		{
			Relation	relation = table_openrv_extended(copy->relation, RowExclusiveLock, true);

			if (relation != NULL)
			{
				if (has_identity(relation))
					traces.sequences = true;
				table_close(relation, NoLock);
			}
		}
	}
}

static void
note_after(Node *statement)
{
	if (IsA(statement, PrepareStmt))
		names_add(&statements, ((PrepareStmt *) statement)->name);
	else if (IsA(statement, DeclareCursorStmt))
	{
		DeclareCursorStmt *declare = (DeclareCursorStmt *) statement;

		if (declare->options & CURSOR_OPT_HOLD)
			names_add(&cursors, declare->portalname);
	}
}

static void
on_utility(PlannedStmt *planned, const char *text, bool read_only_tree,
		   ProcessUtilityContext context, ParamListInfo parameters,
		   QueryEnvironment *environment, DestReceiver *receiver,
		   QueryCompletion *completion)
{
	/* DISCARD ALL may free its own tree, and CALL with a COMMIT: nothing of those is read after */
	Node	   *after = NULL;
	bool		discards_sequences = false;

	if (hawser_report)
	{
		Node	   *statement = planned->utilityStmt;

		note_before(statement);
		if (IsA(statement, PrepareStmt) || IsA(statement, DeclareCursorStmt))
			after = statement;
		else if (IsA(statement, DiscardStmt))
		{
			DiscardMode what = ((DiscardStmt *) statement)->target;

			discards_sequences = what == DISCARD_ALL || what == DISCARD_SEQUENCES;
			if (what == DISCARD_ALL)
				traces.listen = traces.settings = true;
		}
	}
	if (next_utility)
		next_utility(planned, text, read_only_tree, context, parameters, environment,
					 receiver, completion);
	else
		standard_ProcessUtility(planned, text, read_only_tree, context, parameters,
								environment, receiver, completion);
	if (after != NULL)
		note_after(after);
	if (discards_sequences && !expression_draws)
		traces.sequences = false;
}

/* UPDATE ... SET identity = DEFAULT. */
static bool
updates_identity(ResultRelInfo *target, EState *estate)
{
	TupleDesc	columns = RelationGetDescr(target->ri_RelationDesc);
	Bitmapset  *updated;

	if (!has_identity(target->ri_RelationDesc))
		return false;
	updated = ExecGetUpdatedCols(target, estate);
	for (int i = 0; i < columns->natts; i++)
		if (TupleDescAttr(columns, i)->attidentity != '\0' &&
			bms_is_member(i + 1 - FirstLowInvalidHeapAttributeNumber, updated))
			return true;
	return false;
}

/* Identity columns call their sequence without a function that hooks see. */
static void
on_executor_start(QueryDesc *query, int flags)
{
	if (next_executor_start)
		next_executor_start(query, flags);
	else
		standard_ExecutorStart(query, flags);
	if (hawser_report && !traces.sequences)
	{
		bool		inserts = (query->operation != CMD_UPDATE && query->operation != CMD_DELETE) ||
			query->plannedstmt->hasModifyingCTE;
		ListCell   *cell;

		foreach(cell, query->estate->es_opened_result_relations)
		{
			ResultRelInfo *target = lfirst(cell);

			if (inserts ? has_identity(target->ri_RelationDesc) : updates_identity(target, query->estate))
				traces.sequences = true;
		}
	}
}

/* The expression with this function is about to be set up for execution. */
static void
note_function(Oid function)
{
	switch (function)
	{
		case F_SET_CONFIG:
			traces.settings = true;
			settings_names_unknown();
			break;
		case F_NEXTVAL:
		case F_SETVAL_REGCLASS_INT8:
		case F_SETVAL_REGCLASS_INT8_BOOL:
			traces.sequences = expression_draws = true;
			break;
		case F_SETSEED:
			traces.seed = true;
			break;
		case F_PG_CREATE_PHYSICAL_REPLICATION_SLOT:
		case F_PG_CREATE_LOGICAL_REPLICATION_SLOT:
		case F_PG_COPY_PHYSICAL_REPLICATION_SLOT_NAME_NAME_BOOL:
		case F_PG_COPY_LOGICAL_REPLICATION_SLOT_NAME_NAME_BOOL:
		case F_PG_COPY_LOGICAL_REPLICATION_SLOT_NAME_NAME_BOOL_NAME:
			traces.slots = true;
			break;
		default:
			break;
	}
}

static void
on_object_access(ObjectAccessType access, Oid class_id, Oid object_id, int sub_id, void *arg)
{
	if (next_object_access)
		next_object_access(access, class_id, object_id, sub_id, arg);
	if (!hawser_report)
		return;
	switch (access)
	{
		case OAT_FUNCTION_EXECUTE:
			note_function(object_id);
			break;
		case OAT_POST_CREATE:
			temporary_created();
			break;
		case OAT_DROP:
			if (sub_id == 0)
				temporary_dropping(class_id, object_id);
			break;
		default:
			break;
	}
}

static needs_fmgr_hook_type next_needs_fmgr = NULL;
static fmgr_hook_type next_fmgr = NULL;

/* The first time that this is called: what is loaded for it may define settings. */
static void
note_loading(const char *name)
{
	libraries.grown = false;
	names_add(&libraries, name);
	if (libraries.grown)
		settings_names_unknown();
}

/* Whether it is this library. Tests load it by a path, and must see what an installed one does. */
static bool
is_own_library(const char *name)
{
	const char *slash = last_dir_separator(name);
	const char *base = slash == NULL ? name : slash + 1;
	size_t		length = strlen("hawser");

	return strncmp(base, "hawser", length) == 0 && (base[length] == '\0' || strcmp(base + length, ".so") == 0);
}

/* The name in C of a function of the server's or of a library. */
static char *
source_of(HeapTuple function)
{
	bool		is_null;
	Datum		source = SysCacheGetAttr(PROCOID, function, Anum_pg_proc_prosrc, &is_null);

	return is_null ? pstrdup("") : TextDatumGetCString(source);
}

static bool
calls_dblink_connect(HeapTuple function)
{
	char	   *name = source_of(function);
	bool		calls = strcmp(name, "dblink_connect") == 0;

	pfree(name);
	return calls;
}

/* A function of the server under another name. */
static void
note_alias(HeapTuple function)
{
	char	   *name = source_of(function);

	note_function(fmgr_internal_function(name));
	pfree(name);
}

/*
 * C code that is not the server's: it may set, and loading it may define, any
 * setting. PL/pgSQL sets none by itself.
 */
static void
note_library(HeapTuple function)
{
	Oid			language = ((Form_pg_proc) GETSTRUCT(function))->prolang;
	Datum		library;
	bool		is_null;
	char	   *name;

	if (language != ClanguageId && language != INTERNALlanguageId && language != SQLlanguageId)
	{
		/* its handler is not looked up where hooks see it */
		char		handler[32];

		snprintf(handler, sizeof(handler), "language %u", language);
		note_loading(handler);
	}
	if (language == INTERNALlanguageId)
		note_alias(function);
	if (language != ClanguageId)
		return;
	library = SysCacheGetAttr(PROCOID, function, Anum_pg_proc_probin, &is_null);
	if (is_null)
		return;
	name = TextDatumGetCString(library);
	if (!is_own_library(name))
	{
		note_loading(name);
		if (strcmp(name, "$libdir/plpgsql") != 0)
			traces.foreign = true;
		/* its library keeps a connection to the session's end: whatever the function is called by now */
		if (strstr(name, "dblink") != NULL && calls_dblink_connect(function))
			traces.loads = true;
	}
	pfree(name);
}

/* Asked for each function that is not built in, when a call of it is set up. */
static bool
on_function_lookup(Oid function)
{
	if (hawser_report)
	{
		HeapTuple	row = SearchSysCache1(PROCOID, ObjectIdGetDatum(function));

		if (HeapTupleIsValid(row))
		{
			note_library(row);
			ReleaseSysCache(row);
		}
	}
	return next_needs_fmgr != NULL && next_needs_fmgr(function);
}

/* The names of a function's SET clauses: they come about without any command. */
static void
note_clauses(HeapTuple function)
{
	bool		is_null;
	Datum		clauses = SysCacheGetAttr(PROCOID, function, Anum_pg_proc_proconfig, &is_null);
	Datum	   *elements;
	int			count;

	if (is_null)
		return;
	deconstruct_array(DatumGetArrayTypeP(clauses), TEXTOID, -1, false, TYPALIGN_INT,
					  &elements, NULL, &count);
	for (int i = 0; i < count; i++)
	{
		char	   *name = TextDatumGetCString(elements[i]);
		char	   *equals = strchr(name, '=');

		if (equals != NULL)
		{
			*equals = '\0';
			settings_name_used(name);
		}
		pfree(name);
	}
}

/* Called for functions that have SET clauses or are SECURITY DEFINER, which are not looked up above. */
static void
on_function(FmgrHookEventType event, FmgrInfo *function, Datum *arg)
{
	if (next_fmgr)
		next_fmgr(event, function, arg);
	if (hawser_report && event == FHET_START)
	{
		HeapTuple	row = SearchSysCache1(PROCOID, ObjectIdGetDatum(function->fn_oid));

		if (!HeapTupleIsValid(row))
			return;
		note_clauses(row);
		note_library(row);
		ReleaseSysCache(row);
	}
}

/*
 * Whether libraries are preloaded that may have hooks of their own, in which
 * they change settings. Those in the list do not.
 */
static bool
foreign_is_preloaded(const char *libraries)
{
	static const char *const harmless[] = {"plpgsql", "pg_stat_statements", "auto_explain",
	"auth_delay", "passwordcheck"};
	char	   *copy = pstrdup(libraries);
	List	   *names = NIL;
	ListCell   *cell;

	if (!SplitDirectoriesString(copy, ',', &names))
		return true;
	foreach(cell, names)
	{
		const char *name = lfirst(cell);
		bool		known = is_own_library(name);

		if (strncmp(name, "$libdir/", strlen("$libdir/")) == 0)
			name += strlen("$libdir/");
		for (int i = 0; i < lengthof(harmless); i++)
			known |= strcmp(name, harmless[i]) == 0;
		if (!known)
			return true;
	}
	return false;
}

void
track_transaction_ended(void)
{
	expression_draws = false;
}

/* At the start of a session that is reported. */
void
track_begin(void)
{
	if (foreign_is_preloaded(shared_preload_libraries_string) ||
		foreign_is_preloaded(session_preload_libraries_string) ||
		foreign_is_preloaded(local_preload_libraries_string))
		traces.foreign = true;
}

void
track_install(void)
{
	next_utility = ProcessUtility_hook;
	ProcessUtility_hook = on_utility;
	next_executor_start = ExecutorStart_hook;
	ExecutorStart_hook = on_executor_start;
	next_object_access = object_access_hook;
	object_access_hook = on_object_access;
	next_needs_fmgr = needs_fmgr_hook;
	needs_fmgr_hook = on_function_lookup;
	next_fmgr = fmgr_hook;
	fmgr_hook = on_function;
}
