"""Settings do what PgBouncer's of the same name do."""

import re
import shutil
import socket
import subprocess
import time

from harness import messages as m
from harness.suite import Skip, equal, limit, pooler_only, until

SAME_FOR_ALL_SERVERS = True


def backend_of(client):
    return client.value("select pg_backend_pid()")


@pooler_only
def test_server_reset_query_is_what_session_mode_runs(env):
    with env.pooler_with(pool_mode="session", pool_size=1, server_reset_query="set statement_timeout = '77s'") as target:
        with target.connect() as first:
            pid = backend_of(first)
            first.execute("set work_mem = '7MB'; create temp table left_behind ()")
        second = env.connect(target)
        equal(backend_of(second), pid, "backend")
        equal(second.value("show statement_timeout"), "77s")
        equal(second.value("show work_mem"), "7MB", "what DISCARD ALL would have taken away")
        equal(second.value("select to_regclass('left_behind') is not null"), "t")


@pooler_only
def test_an_empty_server_reset_query_sends_nothing(env):
    with env.pooler_with(pool_mode="session", pool_size=1, server_reset_query="") as target:
        with target.connect() as first:
            pid = backend_of(first)
            first.execute("set work_mem = '7MB'")
        second = env.connect(target)
        equal((backend_of(second), second.value("show work_mem")), (pid, "7MB"))


@pooler_only
def test_a_server_reset_query_that_fails_costs_the_server_connection(env):
    with env.pooler_with(pool_mode="session", pool_size=1, server_reset_query="select no_such_function()") as target:
        with target.connect() as first:
            pid = backend_of(first)
        second = env.connect(target)
        assert backend_of(second) != pid, "given to the next client unreset"


@pooler_only
def test_what_a_reset_query_has_left_does_not_reach_transaction_mode(env):
    with env.pooler_with(pool_mode="session", pool_size=1, server_reset_query="") as target:
        with target.connect() as first:
            first.execute("set work_mem = '7MB'")
        target.pooler.write(pool_mode="transaction")
        target.pooler.reload()
        second = env.connect(target)
        equal(second.value("show work_mem"), "4MB")


@pooler_only
def test_server_round_robin_uses_all_in_turn(env):
    for setting, used in ((False, 1), (True, 3)):
        with env.pooler_with(pool_size=3, server_round_robin=setting) as target:
            clients = [env.connect(target) for _ in range(3)]
            for client in clients:
                client.execute("begin; select 1")
            for client in clients:
                client.execute("commit")
            pids = {backend_of(clients[0]) for _ in range(6)}
            equal(len(pids), used, f"server_round_robin = {setting}: backends used by one client")


@pooler_only
def test_max_packet_size_bounds_single_messages_and_not_results(env):
    with env.pooler_with(max_packet_size=100_000) as target:
        other = env.connect(target)
        client = env.connect(target)
        equal(client.value("select length('" + "x" * 99_000 + "')"), "99000")
        equal(len(client.rows("select repeat('y', 1000) from generate_series(1, 1000)")), 1000, "rows of a result of 1 MB")
        equal(client.attempt("select length('" + "x" * 100_000 + "')").sqlstate, "54000")
        assert client.is_closed()
        client = env.connect(target)
        result = client.attempt("select repeat('y', 100000)")
        assert result.sqlstate in ("08006", None) and client.is_closed(), result
        equal(other.value("select 1"), "1")
        target.pooler.write(max_packet_size=200_000)
        target.pooler.reload()
        until(lambda: not env.connect(target).attempt("select repeat('y', 100000)").errors, "a reload changes it")


@pooler_only
@limit(60)
def test_prepared_statements_memory_bounds_what_is_kept(env):
    with env.pooler_with(prepared_statements_memory="1MiB", pool_size=2) as target:
        before = target.pooler.rss_bytes()
        text = "select $1::int + length('" + "x" * 10_000 + "')"
        # 30 MB of texts that no client names any more.
        client = env.connect(target)
        for number in range(3000):
            client.exchange(m.parse(f"{text} + {number}", "s"), m.close_statement("s"), m.SYNC)
        grown = target.pooler.rss_bytes() - before
        assert grown < 16 << 20, f"{grown >> 20} MiB for statements that nobody names"
        # Named ones beyond it still work, on a connection of their own.
        named = env.connect(target)
        for number in range(150):
            named.exchange(m.parse(f"{text} + {number}", f"n{number}"), m.SYNC)
        for number in (0, 75, 149):
            equal(named.exchange(m.bind(f"n{number}", values=["1"]), m.execute(), m.SYNC).value, str(10_001 + number))
        equal(env.connect(target).value("select 1"), "1", "another client")


def sockets_of(port):
    """`ss` of the connections that the pooler has accepted."""
    if shutil.which("ss") is None:
        raise Skip("there is no ss: install iproute2")
    done = subprocess.run(["ss", "-tmnH", "state", "established", f"sport = :{port}"], capture_output=True, text=True)
    return done.stdout


@pooler_only
def test_tcp_socket_buffer_is_set_on_connections(env):
    with env.pooler_with(tcp_socket_buffer="64KiB") as target:
        client = env.connect(target)
        found = re.search(r"rb(\d+),t\d+,tb(\d+)", sockets_of(target.port))
        assert found, f"no sizes in {sockets_of(target.port)!r}"
        equal(found.groups(), ("131072", "131072"), "the kernel doubles what it is told")
        equal(client.value("select 1"), "1")


@pooler_only
def test_tcp_defer_accept_holds_silent_connections_back(env):
    for setting in (True, False):
        with env.pooler_with(tcp_defer_accept=setting) as target:
            target.connect().close()
            before = target.pooler.open_files()
            silent = [socket.create_connection((target.host, target.port)) for _ in range(5)]
            time.sleep(0.3)  # those that are not held back are accepted
            taken = target.pooler.open_files() - before
            equal(taken >= 3, not setting, f"tcp_defer_accept = {setting}: {taken} accepted")
            equal(env.connect(target).value("select 1"), "1")
            for connection in silent:
                connection.close()


@pooler_only
def test_server_lifetime_of_nothing_gives_each_transaction_a_server_connection_of_its_own(env):
    with env.pooler_with(pool_size=2, server_lifetime="0s") as target, target.connect() as client:
        pids = [client.value("select pg_backend_pid()") for _ in range(5)]
        equal(len(set(pids)), 5, f"server processes {pids}")
