#!/usr/bin/env python3
"""pg_stat_mptcp of a server that takes Multipath TCP, in mid-COPY.

    HAWSER=/path/of/hawser extension/mptcp_test.py [--pg-config PG_CONFIG]

The server listens by `hawser mptcp run`. The last line is "N passed, N failed, N skipped"; without the program or
MPTCP in the kernel all are skipped.
"""

import argparse
import os
import pathlib
import shutil
import socket
import subprocess
import sys

from report_test import Server
from harness import messages as m  # its path was set by report_test
from harness.wire import Connection

IPPROTO_MPTCP = 262
# What the buffers of both ends take at the least.
SENT_BYTES_MIN = 10_000


def over_mptcp(server):
    sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM, IPPROTO_MPTCP)
    sock.connect(("127.0.0.1", server.port))
    connection = Connection(sock)
    connection.send(m.startup({"user": "postgres", "database": "postgres"}))
    return connection.login()


def row(client, pid):
    rows = client.rows("select mptcp, fallback, subflows, bytes_sent, array_length(subflow_rates, 1), local_token is not null "
                       f"from hawser.pg_stat_mptcp where pid = {pid}")
    assert len(rows) == 1, f"{len(rows)} rows"
    return rows[0]


def plain_tcp_is_none(server, observer):
    with server.target.connect("postgres", "postgres") as client:
        assert row(observer, client.pid)[0] == "f"


def a_unix_socket_is_none(server, observer):
    with server.target.connect("postgres", "postgres", host=str(server.directory)) as client:
        assert row(observer, client.pid)[0] == "f"


def one_subflow_over_loopback(server, observer):
    with over_mptcp(server) as client:
        mptcp, fallback, subflows, _, rates, token = row(observer, client.pid)
        assert (mptcp, fallback, subflows, rates, token) == ("t", "f", "1", "1", "t"), (mptcp, fallback, subflows, rates, token)


def a_backend_in_the_middle_of_copy(server, observer):
    with over_mptcp(server) as client:
        # nobody reads: the backend is stuck in COPY, and cannot answer for itself
        client.send(m.query("copy (select repeat('x', 1000) from generate_series(1, 100000)) to stdout"))
        sent = 0
        for _ in range(100):
            observer.execute("select pg_sleep(0.05)")
            mptcp, _, _, now, _, _ = row(observer, client.pid)
            assert mptcp == "t"
            if int(now) > SENT_BYTES_MIN and int(now) == sent:
                break
            sent = int(now)
        waits = observer.value(f"select wait_event from pg_stat_activity where pid = {client.pid}")
        assert waits == "ClientWrite", f"it waits for {waits}"
        assert sent > SENT_BYTES_MIN, f"{sent} bytes sent"


TESTS = [plain_tcp_is_none, a_unix_socket_is_none, one_subflow_over_loopback, a_backend_in_the_middle_of_copy]


class MptcpServer(Server):
    """Started below `hawser mptcp run`, whose supervisor ends with it."""

    hawser = None

    def program(self, name, *arguments):
        if name == "pg_ctl" and arguments[-1] == "start":
            command = [self.hawser, "mptcp", "run", "--", str(self.bin / name), *arguments]
            if os.geteuid() == 0:
                command = ["runuser", "-u", "postgres", "--", *command]
            with open(self.directory / "run.log", "w", encoding="utf-8") as log:
                self.run = subprocess.Popen(command, stdout=log, stderr=log, cwd=self.directory)
            for _ in range(100):
                if subprocess.run([str(self.bin / "pg_isready"), "-q", "-h", "127.0.0.1", "-p", str(self.port)],
                                  check=False).returncode == 0:
                    return
                subprocess.run(["sleep", "0.1"], check=True)
            raise AssertionError((self.directory / "run.log").read_text(encoding="utf-8"))
        super().program(name, *arguments)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pg-config", default=os.environ.get("PG_CONFIG", "pg_config"))
    arguments = parser.parse_args()
    MptcpServer.hawser = shutil.which(os.environ.get("HAWSER", "hawser"))
    enabled = pathlib.Path("/proc/sys/net/mptcp/enabled")
    if MptcpServer.hawser is None or not enabled.exists() or enabled.read_text(encoding="ascii").strip() != "1":
        print(f"skipped: no hawser program, or a kernel without MPTCP\n0 passed, 0 failed, {len(TESTS)} skipped")
        return 0
    failures = 0
    with MptcpServer(arguments.pg_config) as server:
        print(server.version)
        with server.target.connect("postgres", "postgres") as observer:
            observer.execute("create extension hawser")
            for test in TESTS:
                try:
                    test(server, observer)
                    print(f"ok      {test.__name__}")
                except (AssertionError, OSError) as error:
                    failures += 1
                    print(f"FAILED  {test.__name__}: {error}")
    print(f"{len(TESTS) - failures} passed, {failures} failed, 0 skipped")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
