/*
 * TCP sockets of a program as it is become MPTCP ones: for long-lived servers, where the supervisor of
 * `hawser mptcp run` is not wanted.
 *
 *     cc -shared -fPIC -O2 -o libhawser-mptcp.so hawser-mptcp.c
 *     PGMPTCP=1 LD_PRELOAD=/usr/lib/hawser/libhawser-mptcp.so COMMAND
 *
 * Model       socket(AF_INET or AF_INET6, SOCK_STREAM, 0 or TCP) asks the kernel for protocol 262, and
 *             where it refuses, for what was asked
 * Limits      dynamically linked programs, and no setuid ones (ld.so(8)); an option that MPTCP refuses
 *             is refused to the program: nothing puts that socket back to TCP, as `run` does
 */
#define _GNU_SOURCE
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#ifndef IPPROTO_MPTCP
#define IPPROTO_MPTCP 262
#endif
#define PROTOCOL_TCP 6

static int turned_off(void)
{
	const char *value = getenv("PGMPTCP");

	return value && value[0] == '0' && value[1] == '\0';
}

int socket(int domain, int type, int protocol)
{
	int kind = type & ~(SOCK_NONBLOCK | SOCK_CLOEXEC);

	if ((domain == AF_INET || domain == AF_INET6) && kind == SOCK_STREAM &&
	    (protocol == 0 || protocol == PROTOCOL_TCP) && !turned_off()) {
		int fd = (int)syscall(SYS_socket, domain, type, IPPROTO_MPTCP);

		if (fd >= 0)
			return fd;
	}
	return (int)syscall(SYS_socket, domain, type, protocol);
}
