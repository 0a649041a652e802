"""Backends and servers that die: who is hit, who waits, who goes on."""

import contextlib
import time

from harness import messages as m
from harness.suite import Background, crowd, equal, limit, pooler_only, until
from harness.wire import Disconnected, ServerError

SETTINGS = {"pool_size": 3, "query_wait_timeout": "5s", "server_login_retry": "1s"}


def terminate(env, pid):
    env.server().execute(f"select pg_terminate_backend({pid})")


def test_trap_19_pg_terminate_backend_in_a_transaction_hits_its_client_alone(env):
    """trap 19: pg_terminate_backend is not a failover."""
    client, other = env.connect(), env.connect()
    pid = client.execute("begin; select pg_backend_pid()").value
    other_pid = other.execute("begin; select pg_backend_pid()").value
    assert pid != other_pid
    terminate(env, pid)
    result = client.attempt("select 1")
    equal(result.sqlstate, "57P01")
    equal(other.execute("select 1; commit").status, "I")
    third = env.connect()
    equal(third.value("select 3"), "3")


def test_pg_terminate_backend_in_a_query(env):
    client = env.connect()
    client.send(m.query("select pg_sleep(20) /* to be terminated */"))
    ((pid, *_),) = env.cluster.wait_for_backends("state = 'active' and query like '%to be terminated%' and query not like "
                                                 "'%pg_stat_activity%'", 1)
    terminate(env, pid)
    result = client.collect()
    equal(result.sqlstate, "57P01")
    equal(result.errors[0]["S"], "FATAL")
    equal(env.connect().value("select 1"), "1")


def is_told_in_its_copy(client, goes_on):
    """A client whose backend has been terminated in a COPY FROM STDIN, and that waits, or goes on sending."""
    began = time.monotonic()
    while goes_on and not client.pending(0.001):
        assert time.monotonic() - began < 2, "it sends, and is not told"
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            client.send(m.copy_data(b"1\n"))
    result = client.collect()
    assert time.monotonic() - began < 2
    equal((result.sqlstate, result.closed), ("57P01", True))


def test_pg_terminate_backend_in_a_copy_from_stdin(env):
    """Its client learns of it at once: while it waits, while it sends, and by either protocol."""
    env.connect().execute("drop table if exists copy_terminated; create table copy_terminated (i int)")
    copy = "copy copy_terminated from stdin /* to be terminated */"
    for begins in ([m.query(copy)], [m.parse(copy), m.bind(), m.execute(), m.SYNC]):
        for goes_on in (False, True):
            client = env.connect()
            client.send(*begins)
            assert client.collect(until="G").kinds.endswith("G")
            client.send(m.copy_data(b"1\n"))
            ((pid, *_),) = env.cluster.wait_for_backends("state = 'active' and query like '%to be terminated%'", 1)
            terminate(env, pid)
            is_told_in_its_copy(client, goes_on)
    equal(env.connect().value("select count(*) from copy_terminated"), "0")


@pooler_only
def test_pg_terminate_backend_of_the_id_that_a_client_got_at_connect_finds_no_process(env):
    """Without the extension: a driver's test that ends its COPY so waits for its own time limit."""
    client = env.connect()
    client.execute("create temp table copied (i int)")
    client.send(m.query("copy copied from stdin"))
    assert client.collect(until="G").kinds.endswith("G")
    result = env.server().attempt(f"select pg_terminate_backend({client.pid})")
    equal((result.value, [notice["S"] for notice in result.notices]), ("f", ["WARNING"]))
    client.send(m.copy_data(b"1\n"), m.COPY_DONE)
    equal(client.collect().tags, ["COPY 1"])


@pooler_only
def test_pg_terminate_backend_of_an_idle_backend_hits_nobody(env):
    clients = [env.connect(timezone="Asia/Tokyo") for _ in range(6)]
    for client in clients:
        client.exchange(m.parse("select $1::int", "s"), m.SYNC)
        client.value("select 1")
    env.server().execute("select pg_terminate_backend(pid) from pg_stat_activity where usename = 'app'")
    env.cluster.wait_for_backends("usename = 'app'")
    for number, client in enumerate(clients):
        equal(client.value("show timezone"), "Asia/Tokyo")
        equal(client.exchange(m.bind("s", values=[number]), m.execute(), m.SYNC).value, str(number))


@pooler_only
def test_pg_terminate_backend_races_with_the_next_query(env):
    """The server's FATAL is on its way while the backend is lent: the client may get the server's error in its own
    transaction, never anything else, and never somebody else's."""
    clients = [env.connect() for _ in range(3)]
    server = env.server()
    for _ in range(30):
        server.execute("select pg_terminate_backend(pid) from pg_stat_activity where usename = 'app'")
        for number, client in enumerate(clients):
            result = client.attempt(f"select {number}")
            if result.errors:
                assert result.sqlstate in ("57P01", "08006"), result.errors
                if result.closed or result.errors[0]["S"] == "FATAL":
                    clients[number] = env.connect()
            else:
                equal(result.value, str(number))


@pooler_only
def test_a_pinned_client_gets_the_servers_own_error(env):
    owner, other = env.connect(), env.connect()
    owner.execute("create temp table pinned (i int)")
    pid = owner.value("select pg_backend_pid()")
    terminate(env, pid)
    time.sleep(0.2)  # the pooler has read its error
    result = owner.attempt("select * from pinned")
    equal((result.sqlstate, result.errors[0]["S"]), ("57P01", "FATAL"))
    assert owner.is_closed()
    equal(other.value("select 1"), "1")


@pooler_only
@limit(60)
def test_a_restart_of_the_server_is_survived_by_waiting_clients(env):
    """Fast, as an operator does it: idle clients keep their connection and their state; waiting ones are served after it."""
    clients = [env.connect(application_name=f"client {n}", timezone="Asia/Tokyo") for n in range(10)]
    for client in clients:
        client.exchange(m.parse("select $1::int + 1", "s"), m.SYNC)
    env.cluster.stop("fast")
    for client in clients:
        client.send(m.query("select current_setting('application_name'), current_setting('timezone')"))
    time.sleep(0.3)  # the queries have come, and wait
    env.cluster.start()
    for number, client in enumerate(clients):
        equal(client.collect().rows, [(f"client {number}", "Asia/Tokyo")])
        equal(client.exchange(m.bind("s", values=[number]), m.execute(), m.SYNC).value, str(number + 1))


@limit(60)
def test_an_immediate_restart_hits_those_in_a_transaction(env):
    """As a crash: the server's own error, 57P01 or 57P02, or a broken connection told as 08006."""
    busy, idle = env.connect(), env.connect()
    busy.execute("begin; select 1")
    idle.value("select 1")
    env.cluster.restart("immediate")
    result = busy.attempt("select 1")
    assert result.sqlstate in ("57P01", "57P02", "57P03", "08006", None), result.errors
    assert result.errors or result.closed, "the lost transaction went on"
    equal(env.connect().value("select 1"), "1")
    if env.pooler:
        equal(idle.value("select 2"), "2")


@pooler_only
@limit(60)
def test_a_crash_of_another_backend_is_survived_by_idle_clients(env):
    """kill -9 of one backend: PostgreSQL resets all of them. Clients outside of transactions go on."""
    import os
    import signal
    idle = [env.connect() for _ in range(4)]
    for client in idle:
        client.value("select 1")
    victim = env.server()
    os.kill(int(victim.value("select pg_backend_pid()")), signal.SIGKILL)
    time.sleep(0.3)  # the postmaster has ended all sessions
    for number, client in enumerate(idle):
        equal(client.value(f"select {number}"), str(number))


@pooler_only
@limit(60)
def test_a_server_that_is_down_is_told_as_08006_after_query_wait_timeout(env):
    with env.pooler_with(query_wait_timeout="2s") as target:
        client = env.connect(target)
        client.value("select 1")
        env.cluster.stop()
        try:
            started = time.monotonic()
            result = client.attempt("select 1")
            spent = time.monotonic() - started
            equal(result.sqlstate, "08006")
            assert 1.5 < spent < 5, f"after {spent:.1f} s, not query_wait_timeout"
            assert str(env.cluster.port) in result.errors[0]["M"] + result.errors[0].get("D", ""), f"which server? {result.errors[0]}"
        finally:
            env.cluster.start()
        late = env.connect(target)
        equal(late.value("select 2"), "2")


@pooler_only
@limit(60)
def test_new_clients_wait_too_while_the_server_is_down(env):
    env.cluster.stop()

    def come():
        with env.target.connect() as client:
            return client.value("select 1")
    waiting = [Background(come) for _ in range(5)]
    time.sleep(0.5)  # the logins have come, and wait
    env.cluster.start()
    equal([client.join() for client in waiting], ["1"] * 5)


@pooler_only
def test_the_next_server_takes_over(env):
    """The first address answers nobody: the second is used, without the client's notice."""
    from harness.postgres import free_port
    with env.pooler_with(servers=[f"127.0.0.1:{free_port()}", env.cluster.address]) as target:
        started = time.monotonic()
        equal(env.connect(target).value("select 1"), "1")
        assert time.monotonic() - started < 3


@pooler_only
@limit(60)
def test_a_load_goes_on_over_a_restart(env):
    """Every statement either gives its value or the server's error; afterwards all clients work."""
    stop, errors = [], []

    def work(number):
        client, turn = env.target.connect(), 0
        while not stop:
            turn += 1
            try:
                result = client.attempt(f"select {number * 100000 + turn}")
                if result.errors:
                    errors.append(result.sqlstate)
                else:
                    equal(result.value, str(number * 100000 + turn))
                if result.closed:
                    raise Disconnected
            except (Disconnected, ServerError, OSError):
                client.sock.close()
                client = until(lambda: attempt_login(env), "a new login", 15)
        equal(client.value("select 1"), "1")
        client.close()

    clients = [Background(work, number) for number in range(6)]
    time.sleep(0.5)  # under full load
    env.cluster.restart("fast")
    time.sleep(0.5)  # under full load
    env.cluster.restart("immediate")
    time.sleep(0.5)  # under full load
    stop.append(True)
    for client in clients:
        client.join(30)
    assert set(errors) <= {"57P01", "57P02", "57P03", "08006"}, set(errors)


def attempt_login(env):
    try:
        return env.target.connect()
    except (ServerError, Disconnected, OSError):
        return None


@pooler_only
def test_a_backend_that_dies_in_a_pipeline_ends_the_pipeline_clearly(env):
    client = env.connect()
    client.send(m.run("select 1"), m.SYNC, m.run("select pg_terminate_backend(pg_backend_pid())"), m.SYNC, m.run("select 3"), m.SYNC)
    result = client.collect(3)
    equal(result.rows[0], ("1",))
    equal(result.sqlstate, "57P01")
    assert ("3",) not in result.rows, "the rest of the pipeline ran elsewhere"


def test_trap_14_one_clients_error_is_not_delivered_to_another(env):
    """trap 14: on any doubt about framing, close the server connection."""
    def work(number):
        with env.target.connect() as client:
            for turn in range(60):
                if number % 2:
                    result = client.attempt(f"do $$ begin raise exception 'mine {number} {turn}'; end $$")
                    equal(result.errors[0]["M"], f"mine {number} {turn}")
                else:
                    equal(client.value(f"select 'mine {number} {turn}'"), f"mine {number} {turn}")
    crowd(10, work)


