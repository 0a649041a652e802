/* Requests and replies over the kernel's RDS sockets, as rds-stress sends them with -o: what bench/datagrams/rds_kernel.py
 * compares `hawser rds stress -o` with. (rds-tools is no package of Debian's.)
 *
 *   rds_load HERE THERE tasks depth request reply warm-up seconds     sends requests; prints replies a second
 *   rds_load HERE THERE tasks 0 request reply 0 0                     says "ready" for each task, and answers until
 *                                                                     it is ended
 *
 * Task n of each end is a process with port 4001 + n; each sends to every task of the other end and keeps `depth`
 * requests to each unanswered.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { FAMILY = 21, BUFFER = 2 << 20, TASKS_MAX = 64, MESSAGE_MAX = 1 << 20, FIRST_PORT = 4001 };

static double now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec + t.tv_nsec / 1e9;
}

static void fail(const char *what)
{
	perror(what);
	exit(1);
}

static struct sockaddr_in at(const char *address, int port)
{
	struct sockaddr_in name = { .sin_family = AF_INET, .sin_port = htons(port) };

	if (inet_pton(AF_INET, address, &name.sin_addr) != 1)
		fail(address);
	return name;
}

struct plan {
	const char *here, *there;
	int tasks, depth, request, reply;
	double from, to; /* what is counted */
};

static void task(const struct plan *plan, int number, uint64_t *replies)
{
	static char message[MESSAGE_MAX];
	int due[TASKS_MAX] = { 0 }, unanswered[TASKS_MAX] = { 0 }, buffer = BUFFER;
	int fd = socket(FAMILY, SOCK_SEQPACKET | SOCK_NONBLOCK, 0);
	struct sockaddr_in name = at(plan->here, FIRST_PORT + number);

	if (fd < 0)
		fail("socket");
	setsockopt(fd, SOL_SOCKET, SO_SNDBUFFORCE, &buffer, sizeof buffer);
	setsockopt(fd, SOL_SOCKET, SO_RCVBUFFORCE, &buffer, sizeof buffer);
	if (bind(fd, (struct sockaddr *)&name, sizeof name))
		fail("bind");
	if (!plan->depth) {
		puts("ready");
		fflush(stdout);
	}
	for (;;) {
		int blocked = 0;
		ssize_t length;
		socklen_t size = sizeof name;

		while ((length = recvfrom(fd, message, sizeof message, 0, (struct sockaddr *)&name, &size)) >= 0) {
			int other = ntohs(name.sin_port) - FIRST_PORT;

			if (other < 0 || other >= plan->tasks)
				continue;
			if (!plan->depth)
				due[other]++;
			else {
				unanswered[other]--;
				if (now() >= plan->from && now() < plan->to)
					++*replies;
			}
		}
		for (int other = 0; other < plan->tasks && !blocked; other++) {
			name = at(plan->there, FIRST_PORT + other);
			while (plan->depth ? unanswered[other] < plan->depth : due[other] > 0) {
				if (sendto(fd, message, plan->depth ? plan->request : plan->reply, 0, (struct sockaddr *)&name, sizeof name) < 0) {
					if (errno != EAGAIN && errno != ENOBUFS)
						fail("sendto");
					blocked = 1;
					break;
				}
				if (plan->depth)
					unanswered[other]++;
				else
					due[other]--;
			}
		}
		if (plan->depth && now() > plan->to)
			exit(0);
		struct pollfd polled = { .fd = fd, .events = POLLIN | (blocked ? POLLOUT : 0) };

		poll(&polled, 1, 100);
	}
}

int main(int argc, char **argv)
{
	if (argc != 9) {
		fprintf(stderr, "usage: see the top of the source\n");
		return 2;
	}
	struct plan plan = { argv[1], argv[2], atoi(argv[3]), atoi(argv[4]), atoi(argv[5]), atoi(argv[6]), 0, 0 };
	uint64_t *replies = mmap(NULL, TASKS_MAX * sizeof *replies, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	uint64_t all = 0;

	if (replies == MAP_FAILED || plan.tasks < 1 || plan.tasks > TASKS_MAX)
		fail("tasks");
	plan.from = now() + atof(argv[7]);
	plan.to = plan.from + atof(argv[8]);
	for (int number = 0; number < plan.tasks; number++)
		if (fork() == 0)
			task(&plan, number, &replies[number]);
	while (wait(NULL) > 0)
		;
	for (int number = 0; number < plan.tasks; number++)
		all += replies[number];
	printf("%.1f\n", all / atof(argv[8]));
	return 0;
}
