/*
 * pooler.c: the hawser program, started by the server.
 *
 * A background worker writes the program's configuration, forks the supervisor
 * (supervisor.c) and ends. It does no more because of what a server does when
 * a worker dies by a signal: from PostgreSQL 15 on it restarts the whole
 * cluster, whether or not the worker ever used shared memory. A worker that
 * has ended can no longer die.
 */
#include "postgres.h"

#include "hawser.h"
#include "compat.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/file_perm.h"
#include "common/username.h"
#include "miscadmin.h"
#include "postmaster/bgworker.h"
#include "postmaster/postmaster.h"
#include "storage/fd.h"
#include "storage/ipc.h"
#include "utils/ps_status.h"
#include "utils/varlena.h"

/* Relative to the data directory, which is the working directory. */
#define CONFIGURATION "hawser.toml"
/* One that fails, for want of space perhaps, is tried again after this. */
#define RETRY_SECONDS 60

char	   *hawser_listen = NULL;
int			hawser_pool_size = 20;
char	   *hawser_program = NULL;
char	   *hawser_config_file = NULL;
char	   *hawser_control_sockets = NULL;
static bool hawser_listen_mptcp = false;

extern PGDLLEXPORT void hawser_pooler_main(Datum argument);

void
pooler_define(void)
{
	DefineCustomStringVariable("hawser.listen",
							   "Where the hawser program listens for clients.",
							   "Addresses with commas: host:port, or a directory for a unix socket. Empty: it is not started, unless hawser.config_file is set.",
							   &hawser_listen, "", PGC_POSTMASTER, 0, NULL, NULL, NULL);
	DefineCustomIntVariable("hawser.pool_size",
							"Server connections of the hawser program for each user and database.",
							NULL, &hawser_pool_size, 20, 1, 10000, PGC_POSTMASTER, 0, NULL, NULL, NULL);
	DefineCustomBoolVariable("hawser.listen_mptcp",
							 "Whether the hawser program takes Multipath TCP.",
							 NULL, &hawser_listen_mptcp, false, PGC_POSTMASTER, 0, NULL, NULL, NULL);
	DefineCustomStringVariable("hawser.program",
							   "The hawser program.",
							   "A path, or a name that is looked for in PATH.",
							   &hawser_program, "hawser", PGC_POSTMASTER, GUC_SUPERUSER_ONLY, NULL, NULL, NULL);
	DefineCustomStringVariable("hawser.config_file",
							   "The configuration of the hawser program.",
							   "Empty: one is written, from the settings of the server.",
							   &hawser_config_file, "", PGC_POSTMASTER, GUC_SUPERUSER_ONLY, NULL, NULL, NULL);
}

void
pooler_register(void)
{
	BackgroundWorker worker;

	/* the server is pg_upgrade's alone */
	if (IsBinaryUpgrade)
		return;
	if (hawser_listen[0] == '\0' && hawser_config_file[0] == '\0')
		return;
	memset(&worker, 0, sizeof(worker));
	strlcpy(worker.bgw_name, "hawser starter", BGW_MAXLEN);
	strlcpy(worker.bgw_type, "hawser starter", BGW_MAXLEN);
	strlcpy(worker.bgw_library_name, "hawser", sizeof(worker.bgw_library_name));
	strlcpy(worker.bgw_function_name, "hawser_pooler_main", BGW_MAXLEN);
	worker.bgw_flags = worker_flags();
	worker.bgw_start_time = BgWorkerStart_ConsistentState;
	worker.bgw_restart_time = RETRY_SECONDS;
	RegisterBackgroundWorker(&worker);
}

/* `key = "value"`, as a basic string of TOML. */
static void
append_string(StringInfo out, const char *key, const char *value)
{
	appendStringInfo(out, "%s = \"", key);
	for (const char *at = value; *at != '\0'; at++)
	{
		if ((unsigned char) *at < 0x20 || *at == 0x7f)
			appendStringInfo(out, "\\u%04X", (unsigned int) *at);
		else
		{
			if (*at == '"' || *at == '\\')
				appendStringInfoChar(out, '\\');
			appendStringInfoChar(out, *at);
		}
	}
	appendStringInfoString(out, "\"\n");
}

/* The first directory of the server's unix sockets, or NULL. */
char *
pooler_socket_directory(void)
{
	List	   *directories = NIL;
	char	   *copy = pstrdup(Unix_socket_directories);
	char	   *first;

	if (!SplitDirectoriesString(copy, ',', &directories) || directories == NIL)
		return NULL;
	first = linitial(directories);
	return first[0] == '/' ? first : NULL;
}

/* Rules of pg_hba.conf may ask for TLS: it is the server's own certificate that clients know. */
static void
append_tls(StringInfo out)
{
	static const char *const files[][2] = {
		{"ssl_cert_file", "client_tls_cert_file"},
		{"ssl_key_file", "client_tls_key_file"},
		{"ssl_ca_file", "client_tls_ca_file"},
	};
	const char *on = GetConfigOption("ssl", true, false);

	if (on == NULL || strcmp(on, "on") != 0)
		return;
	appendStringInfoString(out, "\n[tls]\nclient_tls_sslmode = \"allow\"\n");
	for (int i = 0; i < lengthof(files); i++)
	{
		const char *file = GetConfigOption(files[i][0], true, false);

		/* relative ones begin at the data directory, for both */
		if (file != NULL && file[0] != '\0')
			append_string(out, files[i][1], file);
	}
}

/*
 * Clients log in by the server's own rules, with the secrets of pg_authid:
 * the program logs in as the user that the server runs as to look them up.
 */
static void
append_configuration(StringInfo out)
{
	char	   *directory = pooler_socket_directory();
	char	   *error = NULL;
	const char *user = get_user_name(&error);

	if (user == NULL)
		ereport(ERROR, (errmsg("hawser: %s", error)));
	appendStringInfoString(out,
						   "# Written by the server at each start, from its settings hawser.*\n"
						   "# To have your own: copy it, and set hawser.config_file.\n\n"
						   "[listen]\n");
	append_string(out, "address", hawser_listen);
	if (hawser_listen_mptcp)
		appendStringInfoString(out, "mptcp = true\n");
	appendStringInfoString(out, "\n[[database]]\nname = \"*\"\n");
	append_string(out, "servers", directory != NULL
				  ? psprintf("%s:%d", directory, PostPortNumber)
				  : psprintf("127.0.0.1:%d", PostPortNumber));
	appendStringInfo(out, "pool_size = %d\n\n[auth]\n", hawser_pool_size);
	append_string(out, "hba_file", HbaFileName);
	append_string(out, "ident_file", IdentFileName);
	append_string(out, "auth_user", user);
	append_tls(out);
	appendStringInfoString(out, "\n[process]\nshutdown_timeout = \"10s\"\n\n[admin]\nhttp_address = \"\"\n");
	if (directory != NULL)
		append_string(out, "control_socket", psprintf("%s/.s.HAWSER.%d", directory, PostPortNumber));
}

static void
write_configuration(void)
{
	StringInfoData text;
	int			fd;

	initStringInfo(&text);
	append_configuration(&text);
	fd = OpenTransientFilePerm(CONFIGURATION ".new", O_CREAT | O_TRUNC | O_WRONLY | PG_BINARY, 0600);
	if (fd < 0)
		ereport(ERROR, (errcode_for_file_access(),
						errmsg("could not create file \"%s\": %m", CONFIGURATION ".new")));
	errno = 0;
	if (write(fd, text.data, text.len) != text.len)
	{
		/* a short write is a full disk */
		if (errno == 0)
			errno = ENOSPC;
		ereport(ERROR, (errcode_for_file_access(),
						errmsg("could not write file \"%s\": %m", CONFIGURATION ".new")));
	}
	if (CloseTransientFile(fd) != 0 || rename(CONFIGURATION ".new", CONFIGURATION) != 0)
		ereport(ERROR, (errcode_for_file_access(),
						errmsg("could not write file \"%s\": %m", CONFIGURATION)));
}

void
hawser_pooler_main(Datum argument)
{
	/* for the supervisor: it allocates nothing */
	static char *arguments[8];
	int			count = 0;
	pid_t		supervisor;

	BackgroundWorkerUnblockSignals();
	if (PostmasterPid == 1)
		ereport(WARNING,
				(errmsg("hawser: a kill of the hawser program's supervisor will restart this server"),
				 errdetail("The server is process 1, and takes orphans that are killed for crashes of its own."),
				 errhint("Give the container an init, as by docker run --init.")));
	arguments[count++] = hawser_program;
	arguments[count++] = "serve";
	arguments[count++] = "-c";
	if (hawser_config_file[0] == '\0')
	{
		write_configuration();
		arguments[count++] = CONFIGURATION;
	}
	else
	{
		arguments[count++] = hawser_config_file;
		if (hawser_listen[0] != '\0')
		{
			arguments[count++] = "--listen";
			arguments[count++] = hawser_listen;
		}
	}
	arguments[count] = NULL;

	supervisor = fork();
	if (supervisor < 0)
		ereport(ERROR, (errmsg("hawser: could not fork: %m")));
	if (supervisor == 0)
	{
		/* none of the server's cleanup is the supervisor's, nor its memory */
		set_ps_display("watches the hawser program");
		on_exit_reset();
		worker_detach();
		supervise(arguments, postmaster_alive_fds[POSTMASTER_FD_WATCH]);
		_exit(0);
	}
	ereport(LOG, (errmsg("hawser: process %d starts and watches \"%s\"", (int) supervisor, hawser_program)));
	/* 0: the server forgets this worker */
	proc_exit(0);
}
