/*
 * supervisor.c: the process that watches the hawser program.
 *
 * Model       worker ─fork─► supervisor ─fork─► hawser serve
 *                                 └──────fork─► spare
 *             The supervisor is no child of the server's, has no shared memory
 *             and no descriptor of it but the read end of the pipe that closes
 *             when the server ends. So whatever becomes of it or of the
 *             program, the server sees nothing of it and restarts nothing.
 *             The spare waits for the supervisor's death, and takes its place:
 *             after a kill -9 of any one of the three there are three again.
 * States      waiting ─(its time has come)─► running ─(program ends)─► waiting
 *             running ─(server ends, SIGTERM)─► stopping ─(program ends)─► gone
 *             stopping ─(STOP_SECONDS)─► SIGKILL
 * Limits      Linux. If the server itself is process 1, as in a container
 *             without an init, orphans become its children, and it takes one
 *             that is killed for a crash of its own.
 *
 * Nothing here calls the server's code after the fork: no elog, no palloc.
 */
#include "postgres.h"

#include <dirent.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "hawser.h"

/* Open transactions have this long at the end, as `shutdown_timeout` in the file. */
#define STOP_SECONDS 15
/* A program that ends is started again after this, twice as long each time... */
#define RESTART_SECONDS_MIN 1
#define RESTART_SECONDS_MAX 30
/* ...up to here; one that ran this long is as good as new. */
#define SETTLED_SECONDS 60

#undef fprintf
#undef vfprintf
#undef strerror

static time_t
now(void)
{
	struct timespec at;

	clock_gettime(CLOCK_MONOTONIC, &at);
	return at.tv_sec;
}

/* A line in the server's log, which standard error is. */
static void say(const char *format,...) pg_attribute_printf(1, 2);

static void
say(const char *format,...)
{
	char		stamp[64];
	char		line[512];
	time_t		at = time(NULL);
	struct tm	parts;
	va_list		arguments;

	strftime(stamp, sizeof(stamp), "%Y-%m-%d %H:%M:%S UTC", gmtime_r(&at, &parts));
	va_start(arguments, format);
	vsnprintf(line, sizeof(line), format, arguments);
	va_end(arguments);
	fprintf(stderr, "%s [%d] LOG:  hawser: %s\n", stamp, (int) getpid(), line);
}

/* All but 0, 1, 2 and `kept`: sockets of the server must not outlive it. */
static void
close_all_but(int kept)
{
	DIR		   *directory = opendir("/proc/self/fd");
	struct dirent *entry;

	if (directory == NULL)
	{
		for (int fd = 3; fd < 1024; fd++)
			if (fd != kept)
				close(fd);
		return;
	}
	while ((entry = readdir(directory)) != NULL)
	{
		int			fd = atoi(entry->d_name);

		if (fd > 2 && fd != kept && fd != dirfd(directory))
			close(fd);
	}
	closedir(directory);
}

static pid_t
start_program(char *arguments[])
{
	pid_t		parent = getpid();
	pid_t		program = fork();

	if (program == 0)
	{
		sigset_t	none;
		int			nothing = open("/dev/null", O_RDONLY);

		for (int number = 1; number < NSIG; number++)
			signal(number, SIG_DFL);
		sigemptyset(&none);
		sigprocmask(SIG_SETMASK, &none, NULL);
		prctl(PR_SET_PDEATHSIG, SIGTERM);
		if (getppid() != parent)
			_exit(1);
		dup2(nothing, 0);
		dup2(2, 1);
		close_all_but(-1);
		execvp(arguments[0], arguments);
		say("cannot run \"%s\": %s", arguments[0], strerror(errno));
		_exit(127);
	}
	if (program < 0)
		say("cannot start the program: %s", strerror(errno));
	return program;
}

/*
 * Forks the spare. Returns its pid in the supervisor; in the spare it returns
 * 0, once the supervisor has died. `held` is what dies with the supervisor.
 */
static pid_t
start_spare(int *held)
{
	int			ends[2];
	pid_t		spare;

	if (*held >= 0)
		close(*held);
	*held = -1;
	if (pipe2(ends, O_CLOEXEC) != 0)
		return -1;
	spare = fork();
	if (spare == 0)
	{
		char		byte;
		ssize_t		got;

		close(ends[1]);
		/* nothing is ever written: what comes is the end */
		do
			got = read(ends[0], &byte, 1);
		while (got < 0 && errno == EINTR);
		close(ends[0]);
		return 0;
	}
	close(ends[0]);
	*held = ends[1];
	return spare;
}

static bool
server_has_ended(int postmaster_pipe)
{
	struct pollfd pipe = {.fd = postmaster_pipe, .events = POLLIN};

	return poll(&pipe, 1, 0) > 0 && pipe.revents != 0;
}

static const char *
ending(int status, char *text, size_t size)
{
	if (WIFSIGNALED(status))
		snprintf(text, size, "was ended by signal %d", WTERMSIG(status));
	else
		snprintf(text, size, "ended with exit code %d", WEXITSTATUS(status));
	return text;
}

/* What a supervisor has. */
typedef struct Watch
{
	char	  **arguments;
	int			postmaster_pipe;
	int			signals;
	int			held;
	pid_t		spare;
	pid_t		program;		/* -1: none */
	bool		stopping;
	time_t		started;
	time_t		deadline;		/* to start the program; when stopping, to kill it */
	int			delay;
} Watch;

/* Starts or kills what is due. */
static void
act(Watch *w)
{
	if (!w->stopping && w->program < 0 && now() >= w->deadline)
	{
		w->program = start_program(w->arguments);
		w->started = now();
		/* where the fork failed, the next attempt */
		w->deadline = w->started + w->delay;
	}
	if (w->stopping && w->program > 0 && now() >= w->deadline)
	{
		say("the program did not end within %d s, and is killed", STOP_SECONDS);
		kill(w->program, SIGKILL);
		w->deadline = now() + STOP_SECONDS;
	}
}

/* Waits for the server's end, a signal or the time to act; true: stop. */
static bool
wait_for_news(Watch *w)
{
	struct pollfd waits[2] = {{.fd = w->signals, .events = POLLIN},
	{.fd = w->stopping ? -1 : w->postmaster_pipe, .events = POLLIN}};
	struct signalfd_siginfo news;
	bool		stop;
	int			timeout = -1;

	if (w->program < 0 || w->stopping)
		timeout = Max(0, (int) (w->deadline - now())) * 1000 + 10;
	if (poll(waits, 2, timeout) <= 0)
		return false;
	stop = waits[1].revents != 0;
	while (read(w->signals, &news, sizeof(news)) == sizeof(news))
	{
		if (news.ssi_signo == SIGHUP)
		{
			if (w->program > 0)
				kill(w->program, SIGHUP);
		}
		else if (news.ssi_signo != SIGCHLD)
			stop = true;
	}
	return stop;
}

static void
program_has_ended(Watch *w, int status)
{
	char		how[64];

	w->program = -1;
	if (w->stopping)
		return;
	if (now() - w->started >= SETTLED_SECONDS)
		w->delay = RESTART_SECONDS_MIN;
	w->deadline = now() + w->delay;
	say("the program %s; it is started again in %d s", ending(status, how, sizeof(how)), w->delay);
	w->delay = Min(w->delay * 2, RESTART_SECONDS_MAX);
}

/* Returns only in a spare whose supervisor has died. */
static void
watch(char *arguments[], int postmaster_pipe, int first_start_seconds)
{
	sigset_t	watched;
	Watch		w = {.arguments = arguments, .postmaster_pipe = postmaster_pipe, .held = -1,
	.program = -1, .delay = RESTART_SECONDS_MIN, .deadline = now() + first_start_seconds};

	close_all_but(postmaster_pipe);
	sigemptyset(&watched);
	sigaddset(&watched, SIGCHLD);
	sigaddset(&watched, SIGTERM);
	sigaddset(&watched, SIGINT);
	sigaddset(&watched, SIGQUIT);
	sigaddset(&watched, SIGHUP);
	sigprocmask(SIG_SETMASK, &watched, NULL);
	w.spare = start_spare(&w.held);
	if (w.spare == 0)
		return;
	w.signals = signalfd(-1, &watched, SFD_CLOEXEC | SFD_NONBLOCK);

	for (;;)
	{
		int			status;
		pid_t		ended;

		act(&w);
		if (wait_for_news(&w) && !w.stopping)
		{
			w.stopping = true;
			w.deadline = now() + STOP_SECONDS;
			if (w.program > 0)
				kill(w.program, SIGTERM);
		}
		while ((ended = waitpid(-1, &status, WNOHANG)) > 0)
		{
			if (ended == w.program)
				program_has_ended(&w, status);
			else if (ended == w.spare && !w.stopping)
			{
				w.spare = start_spare(&w.held);
				if (w.spare == 0)
					return;
			}
		}
		if (w.stopping && w.program < 0)
		{
			if (w.spare > 0)
				kill(w.spare, SIGKILL);
			_exit(0);
		}
	}
}

/* Does not return. `postmaster_pipe` is readable when the server has ended. */
void
supervise(char *arguments[], int postmaster_pipe)
{
	int			first_start_seconds = 0;

	setsid();
	for (int number = 1; number < NSIG; number++)
		signal(number, SIG_DFL);
	for (;;)
	{
		watch(arguments, postmaster_pipe, first_start_seconds);
		if (server_has_ended(postmaster_pipe))
			_exit(0);
		/* the program was ordered to end with its supervisor: give it that time */
		say("the supervisor has died; its spare goes on");
		first_start_seconds = RESTART_SECONDS_MIN;
	}
}
