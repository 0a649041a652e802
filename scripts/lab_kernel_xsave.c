/*
 * For user-mode Linux on processors whose register state is larger than its buffer (AMX: 11 kB, of
 * which it knows 2.7): ptrace(PTRACE_SETREGSET, NT_X86_XSTATE) takes the whole area or none, and
 * fails with EFAULT.
 *
 *     cc -shared -fPIC -O2 -o xsave.so lab_kernel_xsave.c; LD_PRELOAD=./xsave.so ./linux ...
 *
 * Model       where the kernel refuses the part, the whole is read, the part laid over it, and the
 *             whole written. Of XSTATE_BV the bits stay that lie in the part (x87, SSE, AVX, AVX-512
 *             and PKRU: 0x2e7): the others' state would be what a former process left.
 * Limits      $HAWSER_XSAVE_WHOLE=1 does so at each call, which tries it where it is not needed
 */
#define _GNU_SOURCE
#include <elf.h>
#include <errno.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

/* Of the legacy area 512 bytes, then the header of which XSTATE_BV is the first word. */
#define XSTATE_BV 512
#define KNOWN_STATES 0x2e7ULL
/* All that processors of today have. */
#define WHOLE_BYTES 16384

static long raw(int request, pid_t pid, void *address, void *data)
{
	return syscall(SYS_ptrace, request, pid, address, data);
}

static long set_whole(pid_t pid, void *kind, const struct iovec *part)
{
	static __thread unsigned char area[WHOLE_BYTES] __attribute__((aligned(64)));
	struct iovec whole = { area, sizeof(area) };
	uint64_t states;

	if (raw(PTRACE_GETREGSET, pid, kind, &whole) < 0)
		return -1;
	if (part->iov_len < XSTATE_BV + sizeof(states) || whole.iov_len < XSTATE_BV + sizeof(states)) {
		errno = EFAULT;
		return -1;
	}
	memcpy(area, part->iov_base, part->iov_len < whole.iov_len ? part->iov_len : whole.iov_len);
	memcpy(&states, area + XSTATE_BV, sizeof(states));
	states &= KNOWN_STATES;
	memcpy(area + XSTATE_BV, &states, sizeof(states));
	return raw(PTRACE_SETREGSET, pid, kind, &whole);
}

long ptrace(enum __ptrace_request request, ...)
{
	static int always = -1;
	va_list more;
	pid_t pid;
	void *address, *data;
	long result;

	va_start(more, request);
	pid = va_arg(more, pid_t);
	address = va_arg(more, void *);
	data = va_arg(more, void *);
	va_end(more);

	if (request >= PTRACE_PEEKTEXT && request <= PTRACE_PEEKUSER) {
		/* As libc's: the word is the result. */
		long word;

		result = raw(request, pid, address, &word);
		if (result < 0)
			return result;
		errno = 0;
		return word;
	}
	if (request != PTRACE_SETREGSET || (uintptr_t)address != NT_X86_XSTATE)
		return raw(request, pid, address, data);
	if (always < 0)
		always = getenv("HAWSER_XSAVE_WHOLE") != NULL;
	if (!always) {
		result = raw(request, pid, address, data);
		if (result == 0 || errno != EFAULT)
			return result;
	}
	return set_whole(pid, address, data);
}
