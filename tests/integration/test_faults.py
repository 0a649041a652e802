"""Faults of what is around Hawser: a server that stands still, clients that read nothing, a network that is cut."""

import contextlib
import os
import signal
import time

from harness import messages as m
from harness.suite import Background, equal, limit, pooler_only, until
from harness.wire import Disconnected, ServerError

BIG = "select repeat('x', 8000) from generate_series(1, 20000)"  # 160 MB


def processes(cluster):
    """The postmaster and all of its children."""
    postmaster = int((cluster.data / "postmaster.pid").read_text().split()[0])
    with open(f"/proc/{postmaster}/task/{postmaster}/children") as children:
        return [postmaster, *map(int, children.read().split())]


@contextlib.contextmanager
def stopped(cluster):
    """A server of which every process stands still: its kernel takes connections, and nobody answers."""
    stopped = processes(cluster)
    for pid in stopped:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in stopped:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)


@pooler_only
@limit(90)
def test_logins_do_not_wait_for_a_server_that_stands_still(env):
    """Each of 50 logins, one after the other, waited half a second for a question that was never answered: 25 s."""
    with env.pooler_with(pool_size=5) as target:
        equal(env.connect(target).value("select 1"), "1")
        with stopped(env.cluster):
            began = time.monotonic()
            clients = []
            for _ in range(50):
                clients.append(env.connect(target))
                time.sleep(0.06)  # past the 50 ms in which one question serves all
            took = time.monotonic() - began
        assert took < 50 * 0.06 + 3, f"50 logins took {took:.1f} s"
        assert "does not say whether start values have changed" in target.pooler.text()
        equal(clients[-1].value("select 2"), "2")
        # Once it answers again, a change is noticed by whoever comes next, as before.
        server = env.server()
        try:
            until(lambda: env.connect(target).value("select 3") == "3", "served again")
            time.sleep(0.2)
            env.connect(target)
            server.execute("alter role app set statement_timeout = '4321ms'")
            time.sleep(0.1)
            until(lambda: env.connect(target).value("show statement_timeout") == "4321ms", "the change is noticed")
        finally:
            server.execute("alter role app reset statement_timeout")


@pooler_only
@limit(60)
def test_a_first_login_is_refused_once_the_server_has_not_answered_in_time(env):
    """It waited up to client_login_timeout, a minute."""
    with env.pooler_with(server_connect_timeout="1s", query_wait_timeout="40s") as target, stopped(env.cluster):
        began = time.monotonic()
        try:
            target.connect()
            raise AssertionError("it logged in")
        except ServerError as refused:
            equal(refused.sqlstate, "08006")
            assert "within 1 s" in str(refused), refused
        assert time.monotonic() - began < 4


@pooler_only
@limit(60)
def test_logins_with_auth_query_wait_for_one_answer_together(env):
    """They waited for each other's: ten of them ten times `server_connect_timeout`."""
    with env.pooler_with(auth_user="postgres", users_file=None, server_connect_timeout="2s", hba="local all all trust\nhost all all all scram-sha-256\n") as target:
        def login():
            began = time.monotonic()
            try:
                target.connect("app_scram")
            except (ServerError, Disconnected):
                return time.monotonic() - began
            raise AssertionError("it logged in")
        with stopped(env.cluster):
            attempts = [Background(login) for _ in range(8)]
            took = [attempt.join(30) for attempt in attempts]
        assert max(took) < 2 * 2 + 2, f"they were refused after {sorted(took)} s"
