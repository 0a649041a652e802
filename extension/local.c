/*
 * local.c: what a pooler on this host is asked.
 *
 * A Hawser listens beside its control socket, on the same path with ".server"
 * appended. One question a connection, one line; the answer:
 *
 *     hawser 1 POOLER            version, and the pooler's number in hexadecimal
 *     FIELD<TAB>FIELD...         any number of lines; \\, \t, \n within fields
 *     end                        without it the answer is not whole
 *
 *     clients | client ID        id, address, port, database, user,
 *                                application_name, state, backend's process id
 *     cancel ID USER             no line: there is no such client; else "done".
 *     terminate ID USER          USER is the user that the client is known to have
 *     lent | lent NUMBER         number of the pooler's connection, backend's process id, and
 *                                that of the client that has it now
 *     start NUMBER               name and value, in hexadecimal digits, of the settings that the
 *                                client began with that has this connection of the pooler's
 *
 * The listener must be root, the user that this server runs as, or the one
 * that owns the directory of the socket: in /tmp any user may make a socket.
 */
#include "postgres.h"

#include "hawser.h"

#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include "mb/pg_wchar.h"
#include "miscadmin.h"
#include "postmaster/postmaster.h"
#include "utils/builtins.h"
#include "utils/varlena.h"

#define SUFFIX ".server"
/* It answers at once; this is against a wait for ever. */
#define ANSWER_SECONDS_MAX 5
/* 100,000 clients with long names. */
#define ANSWER_BYTES_MAX (256 * 1024 * 1024)
#define FIELDS_MAX 10

bool
local_may_listen(int connection, const char *path)
{
	struct ucred peer;
	socklen_t	length = sizeof(peer);
	struct stat directory;
	char	   *parent = pstrdup(path);

	if (getsockopt(connection, SOL_SOCKET, SO_PEERCRED, &peer, &length) != 0)
		return false;
	get_parent_directory(parent);
	return peer.uid == 0 || peer.uid == geteuid() ||
		(stat(parent, &directory) == 0 && directory.st_uid == peer.uid);
}

/* The whole answer; NULL if there is no listener, or after a warning, which is a failure. */
static char *
ask(const char *path, const char *question, bool *failed)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	struct timeval limit = {.tv_sec = ANSWER_SECONDS_MAX};
	int			connection;
	StringInfoData answer;
	volatile bool worked = false;
	volatile bool nobody = false;

	*failed = true;
	if (strlen(path) >= sizeof(address.sun_path))
	{
		ereport(WARNING, (errmsg("the path \"%s\" is too long for a socket", path)));
		return NULL;
	}
	strlcpy(address.sun_path, path, sizeof(address.sun_path));
	initStringInfo(&answer);
	connection = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (connection < 0)
	{
		ereport(WARNING, (errmsg("could not make a socket: %m")));
		return NULL;
	}
	/* an interrupt must not leave the socket open */
	PG_TRY();
	{
		if (setsockopt(connection, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit)) != 0 ||
			setsockopt(connection, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof(limit)) != 0 ||
			connect(connection, (struct sockaddr *) &address, sizeof(address)) != 0)
			nobody = errno == ENOENT || errno == ECONNREFUSED;
		else if (!local_may_listen(connection, path))
			errno = EPERM;
		else if (send(connection, question, strlen(question), MSG_NOSIGNAL) == strlen(question))
		{
			for (;;)
			{
				ssize_t		got;

				enlargeStringInfo(&answer, 8192);
				got = recv(connection, answer.data + answer.len, 8192, 0);
				CHECK_FOR_INTERRUPTS();
				if (got < 0 && errno == EINTR)
					continue;
				if (got <= 0 || answer.len + got > ANSWER_BYTES_MAX)
				{
					worked = got == 0;
					break;
				}
				answer.len += got;
				answer.data[answer.len] = '\0';
			}
		}
	}
	PG_FINALLY();
	{
		int			error = errno;

		close(connection);
		errno = error;
	}
	PG_END_TRY();
	if (worked && answer.len >= 4 && strcmp(answer.data + answer.len - 4, "end\n") == 0)
	{
		*failed = false;
		answer.data[answer.len - 4] = '\0';
		return answer.data;
	}
	*failed = !nobody;
	if (!nobody)
		ereport(WARNING, (worked ? errmsg("the answer of the pooler at \"%s\" is not whole", path)
						  : errmsg("the pooler at \"%s\" was not asked: %m", path)));
	return NULL;
}

/* In place; what is not valid in this database's encoding is shown as "?". */
static void
unescape(char *field)
{
	char	   *out = field;
	bool		as_it_is;

	for (char *at = field; *at != '\0'; at++)
	{
		char		c = *at;

		if (c == '\\' && at[1] != '\0')
		{
			at++;
			c = *at == 't' ? '\t' : *at == 'n' ? '\n' : *at;
		}
		*out++ = c;
	}
	*out = '\0';
	as_it_is = GetDatabaseEncoding() == PG_UTF8 && pg_verifymbstr(field, strlen(field), true);
	for (out = field; !as_it_is && *out != '\0'; out++)
		if (IS_HIGHBIT_SET(*out))
			*out = '?';
}

/* Takes the first line off; false if it is not Hawser's, of this version. */
static bool
greeting(char **answer, uint64 *pooler)
{
	char	   *end;

	if (strncmp(*answer, "hawser 1 ", 9) != 0)
		return false;
	*pooler = strtoull(*answer + 9, &end, 16);
	if (*end != '\n')
		return false;
	*answer = end + 1;
	return true;
}

/* Whether it is an answer of Hawser's. */
static bool
read_lines(const char *socket, char *answer, int field_count, LocalLine line, void *context)
{
	uint64		pooler;
	char	   *fields[FIELDS_MAX];

	if (!greeting(&answer, &pooler))
	{
		ereport(WARNING, (errmsg("what listens at \"%s\" is of another version", socket)));
		return false;
	}
	line(context, socket, pooler, NULL);
	while (*answer != '\0')
	{
		char	   *end = strchr(answer, '\n');
		char	   *field = answer;
		int			count = 0;

		if (end == NULL)
			break;
		*end = '\0';
		while (field != NULL && count < FIELDS_MAX)
		{
			char	   *tab = strchr(field, '\t');

			if (tab != NULL)
				*tab = '\0';
			unescape(field);
			fields[count++] = field;
			field = tab == NULL ? NULL : tab + 1;
		}
		/* a line of another form is left out */
		if (count == field_count && field == NULL)
			line(context, socket, pooler, fields);
		answer = end + 1;
	}
	return true;
}

static List *
sockets(void)
{
	char	   *directory;
	List	   *found = NIL;
	List	   *own = NIL;
	ListCell   *cell;

	if (hawser_control_sockets == NULL)
		return NIL;				/* not preloaded */
	if (hawser_control_sockets[0] != '\0')
	{
		if (!SplitDirectoriesString(pstrdup(hawser_control_sockets), ',', &found))
			ereport(WARNING, (errmsg("hawser.control_sockets is not a list of paths")));
	}
	else if ((directory = pooler_socket_directory()) != NULL)
		found = list_make1(psprintf("%s/.s.HAWSER.%d", directory, PostPortNumber));
	foreach(cell, found)
		own = lappend(own, psprintf("%s" SUFFIX, (char *) lfirst(cell)));
	return own;
}

/* Whether a pooler of this host may listen there. */
bool
local_is_pooler(const char *control_socket)
{
	char	   *wanted = psprintf("%s" SUFFIX, control_socket);
	List	   *all = sockets();
	ListCell   *cell;

	foreach(cell, all)
		if (strcmp(lfirst(cell), wanted) == 0)
			return true;
	return false;
}

/*
 * Asks the pooler at one socket; what it says stays in the current memory
 * context. False, and a warning: that is not known.
 */
bool
local_ask(const char *socket, const char *question, int field_count, LocalLine line, void *context)
{
	bool		failed;
	char	   *answer = ask(socket, question, &failed);

	if (answer == NULL)
		return !failed;
	return read_lines(socket, answer, field_count, line, context);
}

/* Asks every pooler on this host. */
void
local_ask_all(const char *question, int field_count, LocalLine line, void *context)
{
	ListCell   *cell;
	List	   *all = sockets();

	foreach(cell, all)
		(void) local_ask(lfirst(cell), question, field_count, line, context);
}

/* Whether this very pooler has followed the order. */
bool
local_order(const char *socket, uint64 pooler, const char *order)
{
	bool		failed;
	char	   *answer = ask(socket, order, &failed);
	uint64		who;

	return answer != NULL && greeting(&answer, &who) && who == pooler &&
		strcmp(answer, "done\n") == 0;
}
