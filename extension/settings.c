/*
 * settings.c: pg_settings of a pooler's client.
 *
 * Model       What a client asks for at its connect, the pooler SETs on a
 *             connection that others use, too. pg_settings calls it the
 *             session's then, where it is the client's on a direct connection,
 *             and gives the connection's own value as that of RESET. signals.c
 *             puts the function of this file in the place of the server's. It
 *             asks the pooler on this host what the client began with.
 * Limits      What the server reports, and a client had otherwise, goes back by a
 *             SET for the next: that is the session's.
 *             What a client SETs to the value that it began with stays the
 *             client's. What it asks for at its connect and the server has by
 *             itself is not among what the pooler tells.
 *             For a setting with a unit that the session has changed since,
 *             reset_val is the connection's own.
 */
#include "postgres.h"

#include "hawser.h"
#include "compat.h"

#include "access/htup_details.h"
#include "fmgr.h"
#include "funcapi.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/fmgrprotos.h"
#include "utils/memutils.h"
#include "utils/typcache.h"

#define START_FIELDS 2
#define COLUMNS_MAX 32

typedef struct StartValue
{
	char	   *name;
	char	   *value;
} StartValue;

/* Of the statement that has asked last: the same client's as of any other that goes on. */
static MemoryContext context = NULL;
static List *start_values = NIL;
static uint64 asked_pooler = 0;

static char *
decoded(const char *digits)
{
	size_t		length = strlen(digits);
	char	   *out = palloc(length / 2 + 1);

	out[hex_decode(digits, length - length % 2, out)] = '\0';
	return out;
}

static void
take(void *argument, const char *socket, uint64 pooler, char **fields)
{
	MemoryContext old;
	StartValue *one;

	if (fields == NULL || pooler != asked_pooler)
		return;
	old = MemoryContextSwitchTo(context);
	one = palloc(sizeof(StartValue));
	one->name = decoded(fields[0]);
	one->value = decoded(fields[1]);
	start_values = lappend(start_values, one);
	MemoryContextSwitchTo(old);
}

static void
ask(void)
{
	Client		client;
	ServerConnection connection;

	if (context == NULL)
		context = AllocSetContextCreate(TopMemoryContext, "hawser start values", ALLOCSET_SMALL_SIZES);
	MemoryContextReset(context);
	start_values = NIL;
	if (!slots_own(&client, &connection) || connection.pid == 0)
		return;
	asked_pooler = connection.pooler;
	local_ask_all(psprintf("start %llu\n", (unsigned long long) connection.number), START_FIELDS, take, NULL);
}

static const StartValue *
start_value(const char *name)
{
	ListCell   *cell;

	foreach(cell, start_values)
	{
		const StartValue *one = lfirst(cell);

		if (pg_strcasecmp(one->name, name) == 0)
			return one;
	}
	return NULL;
}

static int
column(TupleDesc columns, const char *name)
{
	for (int i = 0; i < columns->natts; i++)
		if (strcmp(NameStr(TupleDescAttr(columns, i)->attname), name) == 0)
			return i;
	return -1;
}

/* A row as it is for the client. */
static Datum
as_of_client(Datum row)
{
	HeapTupleHeader header = DatumGetHeapTupleHeader(row);
	TupleDesc	columns = lookup_rowtype_tupdesc_copy(HeapTupleHeaderGetTypeId(header), HeapTupleHeaderGetTypMod(header));
	HeapTupleData tuple = {.t_len = HeapTupleHeaderGetDatumLength(header), .t_data = header};
	int			name = column(columns, "name");
	int			setting = column(columns, "setting");
	int			unit = column(columns, "unit");
	int			source = column(columns, "source");
	int			reset = column(columns, "reset_val");
	Datum		values[COLUMNS_MAX];
	bool		nulls[COLUMNS_MAX];
	const StartValue *start;
	Setting    *record;
	char	   *value;

	if (columns->natts > COLUMNS_MAX || name < 0 || setting < 0 || unit < 0 || source < 0 || reset < 0)
		return row;
	heap_deform_tuple(&tuple, columns, values, nulls);
	if (nulls[name] || nulls[setting] || nulls[source])
		return row;
	start = start_value(TextDatumGetCString(values[name]));
	record = start == NULL ? NULL : settings_find(start->name);
	if (record == NULL || (value = setting_value(record)) == NULL)
		return row;
	if (strcmp(value, start->value) == 0)
	{
		if (strcmp(TextDatumGetCString(values[source]), "session") == 0)
			values[source] = CStringGetTextDatum("client");
		values[reset] = values[setting];
	}
	else if (nulls[unit])
		values[reset] = CStringGetTextDatum(start->value);
	else
		return row;
	nulls[reset] = false;
	return HeapTupleGetDatum(heap_form_tuple(columns, values, nulls));
}

PG_FUNCTION_INFO_V1(hawser_pg_show_all_settings);
Datum
hawser_pg_show_all_settings(PG_FUNCTION_ARGS)
{
	Datum		row;

	if (SRF_IS_FIRSTCALL())
	{
		check_execute(F_PG_SHOW_ALL_SETTINGS);
		ask();
	}
	row = show_all_settings(fcinfo);
	if (fcinfo->isnull || start_values == NIL || ((ReturnSetInfo *) fcinfo->resultinfo)->isDone == ExprEndResult)
		return row;
	return as_of_client(row);
}
