#!/usr/bin/env python3
"""The hawser program as the server starts it: what becomes of the server when something is killed.

    HAWSER=/path/of/hawser extension/pooler_test.py [--pg-config PG_CONFIG]

The last line is "N passed, N failed, N skipped"; without the program all are skipped.
"""

import os
import pathlib
import signal
import sys
import time

from with_program import eventually, main
from harness.wire import Target  # its path was set by with_program


class Pool:
    """A server that runs the program; `supervisor`, `spare` and `program` are found anew at each look."""

    def __init__(self, server, listen_port):
        self.server = server
        self.through = Target(listen_port, "", {})

    def look(self):
        """{pid: (parent's pid, command line)} of what was started by the server's worker."""
        found = {}
        for entry in pathlib.Path("/proc").iterdir():
            try:
                if not entry.name.isdigit() or os.readlink(entry / "cwd") != str(self.server.data):
                    continue
                command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode().strip()
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            except OSError:
                continue
            if "hawser" in command and (" serve " in command or "watches the hawser program" in command):
                found[int(entry.name)] = (parent, command)
        return found

    def complete(self):
        """(supervisor, spare, program) if there is one of each."""
        found = self.look()
        programs = [pid for pid, (_, command) in found.items() if " serve " in command]
        watchers = [pid for pid, (_, command) in found.items() if "watches" in command]
        spares = [pid for pid in watchers if found[pid][0] in watchers]
        if (len(programs), len(watchers), len(spares)) != (1, 2, 1):
            return None
        supervisor = found[spares[0]][0]
        return (supervisor, spares[0], programs[0]) if found[programs[0]][0] == supervisor else None

    def serves(self):
        try:
            with self.through.connect("postgres", "postgres") as client:
                return client.value("select 1") == "1"
        except Exception:  # not there, or not yet: asked again
            return False

    def settled(self):
        eventually("a client is served", self.serves)
        return eventually("one supervisor, one spare, one program", self.complete)

    def postmaster(self):
        """Its pid and start: another start is a restart of the cluster."""
        with self.server.target.connect("postgres", "postgres") as client:
            restarts = self.server.log.read_text(encoding="utf-8").count("database system is ready to accept connections")
            return client.value("select pg_postmaster_start_time()"), restarts


def is_served(pool):
    pool.settled()


def the_configuration_is_the_owners_alone(pool):
    mode = (pool.server.data / "hawser.toml").stat().st_mode & 0o777
    assert mode == 0o600, f"mode {mode:o}"
    assert "pool_size = 3" in (pool.server.data / "hawser.toml").read_text(encoding="utf-8")


def killed(which):
    def test(pool):
        before, server = pool.settled(), pool.postmaster()
        os.kill(before[which], signal.SIGKILL)
        eventually("another in its place", lambda: (now := pool.complete()) and now[which] != before[which])
        pool.settled()
        assert pool.postmaster() == server, "the cluster was restarted"
    return test


def a_backend_that_is_killed_leaves_one_of_each(pool):
    before, (_, restarts) = pool.settled(), pool.postmaster()
    with pool.server.target.connect("postgres", "postgres") as client:
        os.kill(client.pid, signal.SIGKILL)
    eventually("the cluster is up again", lambda: starts(pool) > restarts)
    time.sleep(1)
    assert pool.settled() == before, "started again for no reason"


def starts(pool):
    return pool.server.log.read_text(encoding="utf-8").count("database system is ready to accept connections")


def all_end_with_the_server(pool):
    pool.settled()
    pool.server.stop("fast")
    eventually("all have ended", lambda: not pool.look())


def all_end_with_a_server_that_is_killed(pool):
    pool.server.start()
    pool.settled()
    postmaster = int((pool.server.data / "postmaster.pid").read_text(encoding="utf-8").split()[0])
    os.kill(postmaster, signal.SIGKILL)
    eventually("all have ended", lambda: not pool.look())
    eventually("whoever is process 1 has reaped it", lambda: not pathlib.Path(f"/proc/{postmaster}").exists())
    pool.server.start()  # refused while anything has its shared memory
    pool.settled()


def pg_upgrade_starts_none(pool):
    pool.server.stop("fast")
    eventually("all have ended", lambda: not pool.look())
    pool.server.start("-b")
    time.sleep(1)
    found = pool.look()
    pool.server.stop("fast")
    pool.server.start()
    pool.settled()
    assert not found, found


TESTS = {
    "is_served": is_served,
    "the_configuration_is_the_owners_alone": the_configuration_is_the_owners_alone,
    "a_killed_supervisor_is_replaced_and_the_server_unharmed": killed(0),
    "a_killed_spare_is_replaced_and_the_server_unharmed": killed(1),
    "a_killed_program_is_replaced_and_the_server_unharmed": killed(2),
    "a_backend_that_is_killed_leaves_one_of_each": a_backend_that_is_killed_leaves_one_of_each,
    "all_end_with_the_server": all_end_with_the_server,
    "all_end_with_a_server_that_is_killed": all_end_with_a_server_that_is_killed,
    "pg_upgrade_starts_none": pg_upgrade_starts_none,
}


if __name__ == "__main__":
    sys.exit(main(__doc__, TESTS, Pool, lambda server: not Pool(server, 0).look(), settings="hawser.pool_size = 3\n"))
