/*
 * inside_plain.c: whether a text may run inside.
 *
 * Model       One statement, which begins with one of few words, and mentions
 *             nothing that the pooler answers, or knows better, itself. What a
 *             text that passes leaves behind all the same is found at the end
 *             of its transaction (state.c), and costs its client the place
 *             inside, not its session: so this need not be exact.
 * Invariants  What names statements, or a process, does not pass: there the
 *             pooler has other names than the server.
 */
#include "postgres.h"

#include "inside.h"

/* What begins a statement. */
static const char *const beginnings[] = {
	"select", "insert", "update", "delete", "values", "with",
	"begin", "start", "commit", "end", "rollback", "abort", "savepoint", "release",
};

/* What must be in it nowhere, not even in a string. */
static const char *const mentions[] = {
	"advisory", "currval", "dblink", "hawser", "lastval", "pg_backend_pid", "pg_blocking_pids",
	"pg_cancel", "pg_cursors", "pg_listening", "pg_locks", "pg_my_temp", "pg_notify", "pg_prepared",
	"pg_replication", "pg_settings", "pg_stat", "pg_temp", "pg_terminate", "prepared", "set_config", "setseed",
};

static char
lower(char c)
{
	return c >= 'A' && c <= 'Z' ? c - 'A' + 'a' : c;
}

static bool
begins_with(const char *text, const char *with)
{
	for (; *with != '\0'; text++, with++)
		if (lower(*text) != *with)
			return false;
	return true;
}

static bool
is_space(char c)
{
	return c == ' ' || c == '\t' || c == '\n' || c == '\r' || c == '\f';
}

static bool
is_letter(char c)
{
	return (lower(c) >= 'a' && lower(c) <= 'z') || c == '_' || IS_HIGHBIT_SET(c);
}

bool
inside_is_plain(const char *text)
{
	bool		begins = false;
	bool		in_word = false;

	while (is_space(*text))
		text++;
	for (int i = 0; i < lengthof(beginnings) && !begins; i++)
		begins = begins_with(text, beginnings[i]) && !is_letter(text[strlen(beginnings[i])]);
	if (!begins)
		return false;
	for (; *text != '\0'; text++)
	{
		if (*text == ';')
		{
			/* the end, or a second statement, or a string that this does not read */
			for (text++; is_space(*text); text++)
				;
			return *text == '\0';
		}
		if (!in_word && is_letter(*text))
			for (int i = 0; i < lengthof(mentions); i++)
				if (begins_with(text, mentions[i]))
					return false;
		in_word = is_letter(*text) || (*text >= '0' && *text <= '9');
	}
	return true;
}
