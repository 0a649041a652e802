/* One client of bench/multipath/mptcp_run.py: carries out orders, line by line, and
 * prints their cost.
 *
 *   KIND COUNT          a line on standard input
 *   CPU ELAPSED         nanoseconds, on standard output: of this process, and of the clock
 *
 * It lives as long as the measurement, so that its start is in no figure, and its blocks can be short and next to those of
 * a client that runs otherwise.
 */
#include <libpq-fe.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static long long now(clockid_t clock) {
    struct timespec at;
    clock_gettime(clock, &at);
    return at.tv_sec * 1000000000LL + at.tv_nsec;
}

static void fail(const char *what, PGconn *server) {
    fprintf(stderr, "%s: %s\n", what, server ? PQerrorMessage(server) : "");
    exit(1);
}

int main(int count, char **words) {
    if (count != 2) fail("run_cost CONNINFO", NULL);
    PGconn *server = PQconnectdb(words[1]);
    if (PQstatus(server) != CONNECTION_OK) fail("connect", server);
    PQclear(PQprepare(server, "row", "select abalance from pgbench_accounts where aid = $1::int", 0, NULL));
    int pair[2];
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, pair)) fail("socketpair", NULL);
    char kind, text[32], byte = 'x';
    long times;
    setvbuf(stdout, NULL, _IOLBF, 0);
    while (scanf(" %c %ld", &kind, &times) == 2) {
        long long cpu = now(CLOCK_PROCESS_CPUTIME_ID), begun = now(CLOCK_MONOTONIC);
        for (long at = 0; at < times; at++) {
            switch (kind) {
            case 'q': { /* a transaction of pgbench -S -M prepared */
                snprintf(text, sizeof text, "%ld", at * 7919 % 100000 + 1);
                const char *values[] = {text};
                PGresult *result = PQexecPrepared(server, "row", 1, values, NULL, NULL, 0);
                if (PQresultStatus(result) != PGRES_TUPLES_OK || PQntuples(result) != 1) fail("query", server);
                PQclear(result);
                break;
            }
            case 'c': { /* 2 MB, row by row */
                PQclear(PQexec(server, "copy (select repeat('x', 1000) from generate_series(1, 2000)) to stdout"));
                char *row;
                while (PQgetCopyData(server, &row, 0) > 0) PQfreemem(row);
                PQclear(PQgetResult(server));
                PQclear(PQgetResult(server));
                break;
            }
            case 'g': /* a system call that does nothing */
                syscall(SYS_getppid);
                break;
            case 'r': /* two that carry a byte, without the network */
                if (write(pair[0], &byte, 1) != 1 || read(pair[1], &byte, 1) != 1) fail("read", NULL);
                break;
            case 's': { /* one that the supervisor is asked about */
                int made = socket(AF_INET, SOCK_STREAM, 0);
                if (made < 0) fail("socket", NULL);
                close(made);
                break;
            }
            default:
                fail("kind", NULL);
            }
        }
        cpu = now(CLOCK_PROCESS_CPUTIME_ID) - cpu;
        printf("%lld %lld\n", cpu, now(CLOCK_MONOTONIC) - begun);
    }
    PQfinish(server);
    return 0;
}
