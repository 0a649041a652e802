#!/usr/bin/env python3
"""Clients of a real hawser program on this host: hawser_sessions, pg_cancel_backend() and pg_terminate_backend() of their ids.

    HAWSER=/path/of/hawser extension/clients_test.py [--pg-config PG_CONFIG]

The last line is "N passed, N failed, N skipped"; without the program all are skipped.
"""

import contextlib
import os
import pathlib
import socket
import subprocess
import sys
import threading
import time

from with_program import WAIT_SECONDS, eventually, main
from harness import messages as m  # its path was set by with_program
from harness.wire import Connection, Target

IPPROTO_MPTCP = 262

SETUP = """create role alice login; create role bob login; create role watcher login; grant pg_monitor to watcher;
create role signaller login; grant pg_signal_backend to signaller; create extension hawser"""


def equal(got, expected):
    assert got == expected, f"{got!r}, expected {expected!r}"


class Host:
    """A server that runs the program; clients come through it."""

    def __init__(self, server, port):
        self.server = server
        self.through = Target(port, "", {})
        self.direct = server.target

    def client(self, user="alice", **parameters):
        return self.through.connect(user, "postgres", **parameters)

    def serves(self):
        try:
            with self.client() as client:
                return client.value("select 1") == "1"
        except Exception:  # not there, or not yet: asked again
            return False

    def asleep(self, client):
        """The client runs pg_sleep(), and the server knows."""
        client.send(m.query("select pg_sleep(20)"))
        with self.direct.connect("postgres", "postgres") as owner:
            eventually("it sleeps", lambda: owner.value(
                "select count(*) from pg_stat_activity where wait_event = 'PgSleep'") == "1")

    def tell(self, sql, user="postgres"):
        with self.direct.connect(user, "postgres") as other:
            return other.attempt(sql)


def all_clients_are_in_the_view_with_what_they_do(host):
    with host.client(application_name="tab\there") as idle, host.client("bob") as busy, host.direct.connect("postgres",
        "postgres") as owner:
        host.asleep(busy)
        rows = [list(row) for row in owner.rows(
            "select pid, client_addr, datname, usename, state, backend is not null, local from hawser.hawser_sessions order by usename")]
        equal(rows, [[str(idle.pid), "127.0.0.1", "postgres", "alice", "idle", "f", "t"],
                     [str(busy.pid), "127.0.0.1", "postgres", "bob", "active", "t", "t"]])
        port = str(idle.sock.getsockname()[1])
        equal(owner.value(f"select client_port from hawser.hawser_sessions where pid = {idle.pid}"), port)
        sleeps = "select pid from pg_stat_activity where wait_event = 'PgSleep'"
        equal(owner.value(sleeps), str(busy.pid))
        owner.execute("set hawser.client_pids = off")
        equal(owner.value(f"select backend from hawser.hawser_sessions where pid = {busy.pid}"), owner.value(sleeps))
        for user, seen in (("alice", ["alice"]), ("bob", ["bob"]), ("watcher", ["alice", "bob"]), ("signaller", [])):
            with host.direct.connect(user, "postgres") as other:
                equal([row[0] for row in other.rows("select usename from hawser.hawser_sessions order by 1")], seen)
        host.tell(f"select pg_cancel_backend({busy.pid})")
        equal(busy.collect().sqlstate, "57014")


def clients_connections_are_in_pg_stat_mptcp_and_marked(host):
    def rows(user, more=""):
        with host.direct.connect(user, "postgres") as other:
            return [list(row) for row in other.rows(
                "select pid, mptcp, fallback, subflows, local_token is not null, array_length(subflow_rates, 1), "
                f"pooler ~ '^[0-9a-f]{{16}}$' from hawser.pg_stat_mptcp where pooler is not null {more} order by mptcp")]
    with host.client() as plain, host.direct.connect("postgres", "postgres") as owner:
        of_plain = [str(plain.pid), "f", None, None, "f", None, "t"]
        equal(rows("postgres"), [of_plain])
        equal(rows("watcher"), [of_plain])
        equal(rows("bob"), [])
        equal(owner.value(f"select count(*) from hawser.pg_stat_mptcp where pid = {owner.pid} and pooler is null"), "1")
        try:
            sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM, IPPROTO_MPTCP)
        except OSError as error:
            print(f"        without clients over MPTCP: {error}")
            return
        sock.connect(("127.0.0.1", host.through.port))
        with Connection(sock) as client:
            client.send(m.startup({"user": "bob", "database": "postgres"}))
            client.login()
            of_mptcp = [str(client.pid), "t", "f", "1", "t", "1", "t"]
            equal(rows("postgres"), [of_plain, of_mptcp])
            equal(rows("bob"), [of_mptcp])
            # in mid-COPY, and nobody reads
            client.send(m.query("copy (select repeat('x', 1000) from generate_series(1, 100000)) to stdout"))
            sent = f"select bytes_sent > 10000 from hawser.pg_stat_mptcp where pid = {client.pid}"
            eventually("what has been sent is seen", lambda: owner.value(sent) == "t")


def what_a_client_began_with_is_the_clients_in_pg_settings(host):
    shown = ("select name, setting, source, reset_val from pg_settings where name in "
             "('work_mem', 'DateStyle', 'seq_page_cost', 'geqo', 'enable_sort', 'default_text_search_config', 'lock_timeout') order "
             "by lower(name)")
    start = {"DateStyle": "German, DMY", "default_text_search_config": "pg_catalog.german",
             "options": "-c work_mem=5MB -c seq_page_cost=1.23456789 -c geqo=off -c enable_sort=off"}
    for user in ("alice", "postgres"):
        with host.client(user, **start) as client, host.direct.connect(user, "postgres",
                                                                       **start) as direct, host.client(user) as stranger, \
                host.direct.connect(user, "postgres") as direct_stranger:
            for text in ("select 1", "set enable_sort = on", "set lock_timeout = '1s'", "begin; set local geqo = on", "commit",
                         "reset enable_sort",
                         "set DateStyle = 'ISO, DMY'", "discard all"):
                for one in (client, direct):
                    one.execute(text)
                equal([list(row) for row in client.rows(shown)], [list(row) for row in direct.rows(shown)])
            # (What the server reports goes back by a SET.)
            of_stranger = shown.replace("'DateStyle', ", "")
            equal([list(row) for row in stranger.rows(of_stranger)], [list(row) for row in direct_stranger.rows(of_stranger)])
            joined = ("select count(*) from pg_settings a join pg_settings b using (name) "
                      "where a.source = 'client' and b.reset_val = a.setting")
            equal(client.value(joined + " and name = 'work_mem'"), "1")


def a_query_is_cancelled_and_its_client_goes_on(host):
    with host.client() as client:
        host.asleep(client)
        equal(host.tell(f"select pg_cancel_backend({client.pid})").value, "t")
        equal(client.collect().sqlstate, "57014")
        equal(client.value("select 1"), "1")
        # nothing to cancel is no failure, as on the server
        equal(host.tell(f"select pg_cancel_backend({client.pid})").value, "t")
        equal(client.value("select 2"), "2")


def a_client_is_ended_idle_or_not(host):
    for busy in (True, False):
        with host.client() as client:
            if busy:
                host.asleep(client)
            equal(host.tell(f"select pg_terminate_backend({client.pid}, 5000)").value, "t")
            result = client.collect()
            equal((result.sqlstate, result.closed), ("57P01", True))
            equal(host.tell(f"select pg_terminate_backend({client.pid})").value, "f")


def rights_are_those_of_the_server(host):
    with host.client() as client, host.client("postgres") as chief:
        host.asleep(client)
        equal(host.tell(f"select pg_cancel_backend({client.pid})", "bob").sqlstate, "42501")
        equal(host.tell(f"select pg_terminate_backend({client.pid})", "bob").sqlstate, "42501")
        assert not client.pending(0.3)
        equal(host.tell(f"select pg_cancel_backend({client.pid})", "signaller").value, "t")
        equal(client.collect().sqlstate, "57014")
        for user in ("alice", "signaller"):
            equal(host.tell(f"select pg_terminate_backend({chief.pid})", user).sqlstate, "42501")
        equal(chief.value("select 1"), "1")
        # through the pooler itself as well, and for itself
        host.asleep(client)
        with host.client() as other:
            equal(other.value(f"select pg_cancel_backend({client.pid})"), "t")
        equal(client.collect().sqlstate, "57014")


def conversation(host, question):
    with socket.socket(socket.AF_UNIX) as asking:
        asking.settimeout(WAIT_SECONDS)
        asking.connect(f"{host.server.directory}/.s.HAWSER.{host.server.port}.server")
        try:
            asking.sendall(question)
            asking.shutdown(socket.SHUT_WR)
            return b"".join(iter(lambda: asking.recv(4096), b""))
        except (ConnectionResetError, BrokenPipeError):  # what it did not read was too long
            return b""


def the_pooler_follows_no_order_for_another_user(host):
    with host.client() as client:
        host.asleep(client)
        equal(conversation(host, b"cancel %d bob\n" % client.pid).split(b"\n")[1:], [b"end", b""])
        for wrong in (b"", b"\n", b"cancel\n", b"cancel x alice\n", b"\xff\xfe\n", b"clients", b"c" * 4000 + b"\n"):
            assert not conversation(host, wrong).endswith(b"end\n"), wrong
        assert not client.pending(0.3)
        equal(conversation(host, b"cancel %d alice\n" % client.pid).split(b"\n")[1:], [b"done", b"end", b""])
        equal(client.collect().sqlstate, "57014")


@contextlib.contextmanager
def in_place_of_the_pooler(host):
    """Another that listens: (answers, listener, its path). Each answer is given once, the last one ever after."""
    where = pathlib.Path(host.server.directory) / "strange.server"
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(where))
    where.chmod(0o777)
    listener.listen(5)
    answers = []

    def serve():
        while True:
            try:
                asking, _ = listener.accept()
            except OSError:
                return
            with asking:
                asking.recv(100)
                asking.sendall(answers.pop(0) if len(answers) > 1 else answers[0])

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    host.tell(f"alter system set hawser.control_sockets = '{where.with_suffix('')}'")
    host.tell("select pg_reload_conf()")
    try:
        eventually("it is asked", lambda: host.tell("show hawser.control_sockets").value == str(where.with_suffix("")))
        yield answers, listener, where
    finally:
        listener.close()
        where.unlink(missing_ok=True)
        host.tell("alter system reset hawser.control_sockets")
        host.tell("select pg_reload_conf()")


STRANGERS_CLIENT = b"4194399\t10.0.0.1\t5\tpostgres\talice\tx\tidle\t0\t6432\t0\n"


def a_stranger_at_the_socket_is_not_believed(host):
    """Another user, one that is silent, one that says nonsense: a warning each, no row."""
    line = STRANGERS_CLIENT
    with in_place_of_the_pooler(host) as (said, listener, where):
        for answer, rows in ((b"hawser 1 7\n" + line + b"end\n", "1"), (b"hawser 1 7\n" + line, "0"),
                             (b"hawser 2 7\n" + line + b"end\n", "0"),
                             (b"", "0"), (b"\0\0\0", "0"), (b"hawser 1 7\n" + b"1\t2\n" + b"\t" * 50 + b"\nend\n", "0"),
                             (b"hawser 1 7\n" + b"1" * 100000 + b"\nend\n", "0")):
            said[:] = [answer]
            result = host.tell("select count(*) from hawser.hawser_sessions")
            equal((answer[:20], result.value), (answer[:20], rows))
        # a user without rights of his own, in a directory that is not his
        if os.geteuid() == 0:
            listener.close()
            where.unlink()
            said[:] = []
            command = (f"import socket; s = socket.socket(socket.AF_UNIX); s.bind({str(where)!r}); s.listen(5)\n"
                       "while True:\n c = s.accept()[0]; c.recv(100); c.sendall(b'hawser 1 7\\n" +
                       line.decode().replace("\t", "\\t").replace("\n", "\\n") + "end\\n'); c.close()")
            os.chmod(host.server.directory, 0o777)
            stranger = subprocess.Popen(["setpriv", "--reuid", "nobody", "--regid", "nogroup", "--clear-groups", sys.executable,
                                         "-c", command],
                                        stderr=subprocess.DEVNULL)
            try:
                eventually("it listens", where.exists)
                time.sleep(0.2)
                os.chmod(where, 0o777)
                result = host.tell("select count(*) from hawser.hawser_sessions")
                equal(result.value, "0")
                assert "was not asked" in result.notices[0]["M"], result.notices
            finally:
                stranger.kill()
                stranger.wait()
                os.chmod(host.server.directory, 0o700)


def a_pooler_that_answers_no_more_is_not_taken_for_a_client_that_has_ended(host):
    known = b"hawser 1 7\n" + STRANGERS_CLIENT + b"end\n"
    done = b"hawser 1 7\ndone\nend\n"
    ended = b"hawser 1 7\nend\n"
    for then, expected, said in (
        (ended, "t", []), (b"hawser 1 8\n" + STRANGERS_CLIENT + b"end\n", "t", []),
        (known, "f", ["did not end within 300 milliseconds"]),
        (b"", "f", ["is not whole", "it is not known whether"]),
        (b"hawser 2 7\nend\n", "f", ["is of another version", "it is not known whether"]),
    ):
        with in_place_of_the_pooler(host) as (answers, _, _):
            answers[:] = [known, done, known, known, then]
            result = host.tell("select pg_terminate_backend(4194399, 300)")
            equal((then, result.value, len(result.notices)), (then, expected, len(said)))
            for notice, words in zip(result.notices, said):
                assert words in notice["M"], result.notices


TESTS = [all_clients_are_in_the_view_with_what_they_do, clients_connections_are_in_pg_stat_mptcp_and_marked,
         what_a_client_began_with_is_the_clients_in_pg_settings, a_query_is_cancelled_and_its_client_goes_on, a_client_is_ended_idle_or_not,
         rights_are_those_of_the_server, the_pooler_follows_no_order_for_another_user, a_stranger_at_the_socket_is_not_believed,
         a_pooler_that_answers_no_more_is_not_taken_for_a_client_that_has_ended]


def has_ended(server):
    return not list(server.directory.glob(".s.HAWSER.*"))


if __name__ == "__main__":
    sys.exit(main(__doc__, {test.__name__: test for test in TESTS}, Host, has_ended, settings="hawser.listen_mptcp = on\n", setup=SETUP))
