/*
 * kept.c: what this process keeps to its end, and another session would stumble over.
 *
 * Model       hawser.process is a parameter like hawser.state, reported
 *             before the ReadyForQuery of a transaction's end, if it has
 *             changed.
 * Text        README.md, "The text of hawser.process"
 * Invariants  The hook reads no catalog and raises no error: it runs outside
 *             transactions.
 */
#include "postgres.h"

#include "hawser.h"
#include "compat.h"

#include "access/xact.h"
#include "miscadmin.h"
#include "storage/bufmgr.h"
#include "utils/memutils.h"

/* A longer text is cut at an item: what is not in it is not known to be kept. */
#define KEPT_BYTES_MAX (16 * 1024)

static char *kept_variable = NULL;	/* the parameter's own value: of no meaning */
static StringInfoData kept_text;
static char **start_names = NULL;	/* of libraries' settings that the session began with */
static int	start_name_count = -1;
static int	buffers_reported = 0;

static bool
is_defined_by_library(const Setting *setting)
{
	return setting->group == CUSTOM_OPTIONS && (setting->flags & GUC_CUSTOM_PLACEHOLDER) == 0;
}

/* Without rights that were granted for single settings. */
static bool
may_be_set(const Setting *setting)
{
	return setting->context == PGC_USERSET || (setting->context == PGC_SUSET && GetSessionUserIsSuperuser());
}

static bool
is_start_name(const char *name)
{
	for (int i = 0; i < start_name_count; i++)
		if (strcmp(start_names[i], name) == 0)
			return true;
	return false;
}

static void
remember_start(Setting **all, int count)
{
	start_names = MemoryContextAlloc(TopMemoryContext, count * sizeof(char *));
	start_name_count = 0;
	for (int i = 0; i < count; i++)
		if (is_defined_by_library(all[i]))
			start_names[start_name_count++] = MemoryContextStrdup(TopMemoryContext, all[i]->name);
}

static void
compute(void)
{
	int			count;
	Setting   **all = settings_all(&count);
	bool		first = true;

	if (start_name_count < 0)
		remember_start(all, count);
	resetStringInfo(&kept_text);
	appendStringInfoString(&kept_text, KEPT_VERSION);
	buffers_reported = NLocBuffer;
	if (buffers_reported > 0)
		appendStringInfo(&kept_text, " buffers=%d", buffers_reported * (BLCKSZ / 1024));
	for (int i = 0; PREFIXES_ARE_RESERVED && i < count && kept_text.len < KEPT_BYTES_MAX; i++)
	{
		if (!is_defined_by_library(all[i]) || !may_be_set(all[i]) || is_start_name(all[i]->name))
			continue;
		appendStringInfoString(&kept_text, first ? " defined=" : ",");
		first = false;
		state_append_escaped(&kept_text, all[i]->name, NAMEDATALEN);
	}
	pfree(all);
}

static const char *
show_kept(void)
{
	if (!hawser_report || !is_regular_backend())
		return "";
	compute();
	return kept_text.data;
}

static void
at_transaction_end(XactEvent event, void *arg)
{
	if (!hawser_report || (event != XACT_EVENT_COMMIT && event != XACT_EVENT_ABORT && event != XACT_EVENT_PREPARE))
		return;
	if (NLocBuffer != buffers_reported || settings_names_changed())
		SetConfigOption(KEPT_NAME, "", PGC_INTERNAL, PGC_S_OVERRIDE);
}

/* The session has asked for it: from now on the parameter is reported. */
void
kept_report_to_client(void)
{
	Setting    *setting = settings_find(KEPT_NAME);

	if (setting != NULL)
	{
		setting->flags |= GUC_REPORT;
		report_from_the_start(KEPT_NAME);
	}
}

void
kept_define(void)
{
	MemoryContext old = MemoryContextSwitchTo(TopMemoryContext);

	initStringInfo(&kept_text);
	MemoryContextSwitchTo(old);
	DefineCustomStringVariable(KEPT_NAME,
							   "What this process keeps to its end that a pooler must know of.",
							   "Sent to clients that started with hawser.report = on.",
							   &kept_variable, "", PGC_INTERNAL,
							   GUC_NO_SHOW_ALL | GUC_NOT_IN_SAMPLE | GUC_DISALLOW_IN_FILE,
							   NULL, NULL, show_kept);
	RegisterXactCallback(at_transaction_end, NULL);
}
