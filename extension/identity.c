/*
 * identity.c: a session of the pooler's role becomes one of a client's.
 *
 * Model       The role is what it would be had it logged in itself: session and
 *             current user, authenticated user (so that RESET and SET SESSION
 *             AUTHORIZATION lead no further), the settings of ALTER ROLE as
 *             the values that RESET restores, CONNECT on the database and the
 *             role's own limit of connections, counted over backends.
 * Invariants  Only a session that has logged in as hawser.pooler_role takes
 *             other roles, and a superuser's only if that one is a superuser.
 *             After each change it is looked at what the session has become:
 *             a server that does it otherwise than the known ones ends it.
 * Limits      Not with a server built with assertions: it has one that a session's
 *             user is set once. system_user stays the pooler's, event triggers
 *             on login are not fired.
 */
#include "postgres.h"

#include "connection.h"
#include "hawser.h"
#include "compat.h"

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/table.h"
#include "catalog/indexing.h"
#include "catalog/pg_authid.h"
#include "catalog/pg_database.h"
#include "catalog/pg_db_role_setting.h"
#include "catalog/pg_type.h"
#include "commands/dbcommands.h"
#include "miscadmin.h"
#include "storage/procarray.h"
#include "utils/acl.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/inval.h"
#include "utils/memutils.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"
#include "utils/syscache.h"

char	   *hawser_pooler_role = NULL;

/* The role that logged in, and whose the session is now. */
static Oid	login = InvalidOid;
static Oid	current = InvalidOid;

/* A setting of a role's, and what RESET gave before. */
typedef struct Before
{
	char	   *name;
	char	   *value;			/* NULL: the name did not exist */
	GucSource	source;
} Before;

static Before *befores = NULL;
static int	before_count = 0;
static int	before_room = 0;

/* The role's rows of pg_db_role_setting, in this database and in all: who wrote those that are in force. */
#define SETTING_ROWS 2
static TransactionId writers[SETTING_ROWS];

typedef struct Role
{
	Oid			id;
	char		name[NAMEDATALEN];
	bool		superuser;
} Role;

/* Whether the session may be this role's; errors as at a login. */
static Role
look_up(const char *name)
{
	HeapTuple	row;
	Form_pg_authid form;
	Role		role;
	int			limit;
	bool		can_log_in;

	AcceptInvalidationMessages();
	row = SearchSysCache1(AUTHNAME, CStringGetDatum(name));
	if (!HeapTupleIsValid(row))
		ereport(ERROR, (errcode(ERRCODE_INVALID_AUTHORIZATION_SPECIFICATION),
						errmsg("role \"%s\" does not exist", name)));
	form = (Form_pg_authid) GETSTRUCT(row);
	role.id = form->oid;
	strlcpy(role.name, NameStr(form->rolname), NAMEDATALEN);
	role.superuser = form->rolsuper;
	limit = form->rolconnlimit;
	can_log_in = form->rolcanlogin;
	ReleaseSysCache(row);

	if (role.id == login)
		return role;
#ifdef USE_ASSERT_CHECKING
	ereport(ERROR, (errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
					errmsg("a server with assertions does not change a session's user")));
#endif
	if (hawser_pooler_role[0] == '\0' || get_role_oid(hawser_pooler_role, true) != login)
		ereport(ERROR, (errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
						errmsg("this session may not be handed over to other roles"),
						errhint("It must have logged in as the role that hawser.pooler_role names.")));
	if (role.superuser && !superuser_arg(login))
		ereport(ERROR, (errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
						errmsg("role \"%s\" is a superuser, and the pooler's is none", role.name)));
	if (!can_log_in)
		ereport(ERROR, (errcode(ERRCODE_INVALID_AUTHORIZATION_SPECIFICATION),
						errmsg("role \"%s\" is not permitted to log in", role.name)));
	if (!may_connect(MyDatabaseId, role.id))
		ereport(ERROR, (errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
						errmsg("permission denied for database \"%s\"", get_database_name(MyDatabaseId)),
						errdetail("User does not have CONNECT privilege.")));
	/* as at a login not exact: two may come at the same time */
	if (limit >= 0 && !role.superuser && role.id != current && CountUserBackends(role.id) >= limit)
		ereport(ERROR, (errcode(ERRCODE_TOO_MANY_CONNECTIONS),
						errmsg("too many connections for role \"%s\"", role.name)));
	return role;
}

/* What a session has SET is no longer so. The records are the server's own, and stay where they are. */
static void
reset(Setting **setting, const char *name)
{
	if (*setting == NULL)
		*setting = settings_find(name);
	if ((*setting)->source == PGC_S_SESSION)
	{
		(void) set_config_option(name, NULL, PGC_SUSET, PGC_S_SESSION, GUC_ACTION_SET, true, ERROR, false);
		/* no hook sees it, and the pooler would take what was reported last for the next client's */
		traces.settings = true;
	}
}

static void
remember(const char *name)
{
	Setting    *setting = settings_find(name);
	Before	   *before;
	MemoryContext old;

	for (int i = 0; i < before_count; i++)
		if (pg_strcasecmp(befores[i].name, name) == 0)
			return;
	old = MemoryContextSwitchTo(TopMemoryContext);
	if (before_count == before_room)
	{
		before_room = Max(8, before_room * 2);
		befores = befores == NULL ? palloc(before_room * sizeof(Before))
			: repalloc(befores, before_room * sizeof(Before));
	}
	before = &befores[before_count];
	before->name = pstrdup(name);
	before->value = NULL;
	before->source = PGC_S_DYNAMIC_DEFAULT;
	if (setting != NULL)
	{
		before->value = settings_reset_value(setting);
		/* a server keeps a list of those whose source is another than `default` */
		before->source = Max(setting->reset_source, PGC_S_DYNAMIC_DEFAULT);
	}
	before_count++;
	MemoryContextSwitchTo(old);
}

/* The settings of the role before are gone, those that others have given are in force again. */
static void
forget_settings(void)
{
	while (before_count > 0)
	{
		Before	   *before = &befores[before_count - 1];
		Setting    *setting;

		/* the strongest of the sources that a role's settings have */
		(void) set_config_option(before->name, before->value != NULL ? before->value : "",
								 PGC_SUSET, PGC_S_DATABASE_USER, GUC_ACTION_SET, true, WARNING, false);
		setting = settings_find(before->name);
		if (setting != NULL)
		{
			if (setting->reset_source == PGC_S_DATABASE_USER)
				setting->reset_source = before->source;
			if (setting->source == PGC_S_DATABASE_USER)
				setting->source = before->source;
		}
		pfree(before->name);
		if (before->value != NULL)
			pfree(before->value);
		before_count--;
	}
}

/* Notes what a row of pg_db_role_setting is about to change. */
static void
remember_row(Relation settings, HeapTuple row)
{
	bool		is_null;
	Datum		array = heap_getattr(row, Anum_pg_db_role_setting_setconfig,
									 RelationGetDescr(settings), &is_null);
	Datum	   *elements;
	int			count;

	if (is_null)
		return;
	deconstruct_array(DatumGetArrayTypeP(array), TEXTOID, -1, false, TYPALIGN_INT,
					  &elements, NULL, &count);
	for (int i = 0; i < count; i++)
	{
		char	   *name = TextDatumGetCString(elements[i]);
		char	   *equals = strchr(name, '=');

		if (equals != NULL)
		{
			*equals = '\0';
			remember(name);
			settings_name_used(name);
		}
		pfree(name);
	}
}

/* Takes the settings of a role, unless they are the very rows of before. */
static void
take_settings(Oid role, bool changed)
{
	static const GucSource sources[SETTING_ROWS] = {PGC_S_DATABASE_USER, PGC_S_USER};
	Relation	settings = table_open(DbRoleSettingRelationId, AccessShareLock);
	Snapshot	snapshot = RegisterSnapshot(GetCatalogSnapshot(DbRoleSettingRelationId));
	HeapTuple	rows[SETTING_ROWS] = {NULL};

	for (int i = 0; i < SETTING_ROWS; i++)
	{
		Oid			database = sources[i] == PGC_S_DATABASE_USER ? MyDatabaseId : InvalidOid;
		ScanKeyData keys[2];
		SysScanDesc scan;
		HeapTuple	row;
		TransactionId writer = InvalidTransactionId;

		ScanKeyInit(&keys[0], Anum_pg_db_role_setting_setdatabase, BTEqualStrategyNumber,
					F_OIDEQ, ObjectIdGetDatum(database));
		ScanKeyInit(&keys[1], Anum_pg_db_role_setting_setrole, BTEqualStrategyNumber,
					F_OIDEQ, ObjectIdGetDatum(role));
		scan = systable_beginscan(settings, DbRoleSettingDatidRolidIndexId, true, snapshot, 2, keys);
		row = systable_getnext(scan);	/* the index is unique */
		if (HeapTupleIsValid(row))
		{
			rows[i] = heap_copytuple(row);
			writer = HeapTupleHeaderGetRawXmin(row->t_data);
		}
		systable_endscan(scan);
		changed |= writer != writers[i];
		writers[i] = writer;
	}
	if (changed)
	{
		forget_settings();
		traces.settings = true;
		for (int i = 0; i < SETTING_ROWS; i++)
			if (rows[i] != NULL)
				remember_row(settings, rows[i]);
		for (int i = 0; i < SETTING_ROWS; i++)
			ApplySetting(snapshot, sources[i] == PGC_S_DATABASE_USER ? MyDatabaseId : InvalidOid, role,
						 settings, sources[i]);
	}
	for (int i = 0; i < SETTING_ROWS; i++)
		if (rows[i] != NULL)
			heap_freetuple(rows[i]);
	UnregisterSnapshot(snapshot);
	table_close(settings, AccessShareLock);
}

/* Whether the session could be this role's; an error says why not. NULL: the role that logged in. */
void
identity_check(const char *name)
{
	if (!OidIsValid(login))
		login = current = GetAuthenticatedUserId();
	if (name != NULL)
		(void) look_up(name);
}

/* The session is this role's from now on; errors leave it half done. NULL: the role that logged in. */
void
identity_take(const char *name)
{
	static char user_name[NAMEDATALEN];
	static Setting *role_setting = NULL;
	static Setting *authorization_setting = NULL;
	Role		role;
	bool		changed;

	if (!OidIsValid(login))
		login = current = GetAuthenticatedUserId();
	if (name == NULL && current == login)
		role.id = login;
	else
	{
		char	   *own = name == NULL ? GetUserNameFromId(login, false) : NULL;

		role = look_up(name != NULL ? name : own);
	}

	changed = role.id != current;
	if (changed)
	{
		forget_settings();
		traces.settings = true;
	}
	reset(&role_setting, "role");
	reset(&authorization_setting, "session_authorization");
	if (changed)
	{
		initialize_session_user(role.name, role.id);
		/* %u in the log */
		strlcpy(user_name, role.name, NAMEDATALEN);
		MyProcPort->user_name = user_name;
		current = role.id;
	}
	/* a role of the same user's may have come back with the settings that it has */
	if (GetAuthenticatedUserId() != role.id || GetSessionUserId() != role.id ||
		(changed && (GetOuterUserId() != role.id || GetUserId() != role.id)))
		elog(ERROR, "hawser: the session's user is not the one that was set");
	/* the settings of the role that logged in are those that all begin with */
	if (role.id != login)
		take_settings(role.id, changed);
}
