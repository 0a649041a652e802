"""Limits and timeouts, each with PostgreSQL's own SQLSTATE; fairness; long transactions."""

import re
import time

from harness import messages as m
from harness.suite import Background, crowd, equal, limit, pooler_only, until
from harness.wire import Disconnected, ServerError


def refused(target, **how):
    """The SQLSTATE with which a login is refused."""
    try:
        with target.connect(**how):
            return None
    except ServerError as error:
        return error.sqlstate


@pooler_only
def test_a_full_pool_times_out_with_53300(env):
    with env.pooler_with(pool_size=1, query_wait_timeout="1s", idle_transaction_reserve=0) as target:
        holder, waiting = env.connect(target), env.connect(target)
        holder.execute("begin; select 1")
        started = time.monotonic()
        result = waiting.attempt("select 1")
        spent = time.monotonic() - started
        equal(result.sqlstate, "53300")
        assert 0.8 < spent < 3, f"after {spent:.1f} s"
        holder.execute("commit")


@pooler_only
def test_a_query_wait_timeout_is_told_to_extended_queries_too(env):
    with env.pooler_with(pool_size=1, query_wait_timeout="1s", idle_transaction_reserve=0) as target:
        holder, waiting = env.connect(target), env.connect(target)
        holder.execute("begin; select 1")
        equal(waiting.exchange(m.run("select 1"), m.SYNC).sqlstate, "53300")
        holder.execute("commit")


@pooler_only
def test_trap_25_the_connection_limit_is_53300(env):
    """trap 25: the connection limit was answered by 08P01 or a bare reset instead of 53300."""
    with env.pooler_with(max_client_conn=5) as target:
        clients = [env.connect(target) for _ in range(5)]
        equal(refused(target), "53300")
        clients[0].value("select 1")
        clients.pop().close()
        time.sleep(0.2)
        equal(env.connect(target).value("select 1"), "1")


@pooler_only
def test_limits_by_user_and_by_database_are_53300(env):
    with env.pooler_with(max_user_client_connections=2) as target:
        kept = [env.connect(target) for _ in range(2)]
        equal(refused(target), "53300")
        equal(refused(target, user="app2"), None)
        kept[0].value("select 1")
    with env.pooler_with(max_db_client_connections=2) as target:
        kept = [env.connect(target) for _ in range(2)]
        equal(refused(target, user="app2"), "53300")
        equal(refused(target, database="other"), None)
        kept[0].value("select 1")


@pooler_only
def test_pool_size_is_never_exceeded(env):
    with env.pooler_with(pool_size=3) as target:
        def work(_):
            with target.connect(application_name="counted") as client:
                for _ in range(20):
                    client.value("select pg_sleep(0.005)")
        clients = Background(crowd, 20, work)
        most = 0
        while clients.is_running():
            most = max(most, len(env.cluster.backends("usename = 'app'")))
            time.sleep(0.02)
        clients.join()
        assert 1 <= most <= 3, f"{most} backends"


@pooler_only
def test_pools_are_by_user_and_database(env):
    with env.pooler_with(pool_size=1) as target:
        clients = [env.connect(target, user=user, database=database) for user in ("app", "app2") for database in ("app", "other")]
        for client in clients:
            client.execute("begin; select 1")
        equal(len(env.cluster.backends("state = 'idle in transaction'")), 4)
        for client in clients:
            client.execute("commit")


@pooler_only
def test_max_db_connections_evicts_idle_backends_of_other_pools(env):
    with env.pooler_with(pool_size=2, max_db_connections=2) as target:
        for _ in range(3):
            for user in ("app", "app2", "app3"):
                clients = [env.connect(target, user=user) for _ in range(2)]
                for client in clients:
                    client.value("select 1")
        count = len(env.cluster.backends("datname = 'app' and usename in ('app', 'app2', 'app3')"))
        assert count <= 2, f"{count} backends"


@pooler_only
def test_idle_transaction_timeout(env):
    with env.pooler_with(pool_size=1, idle_transaction_timeout="1s") as target:
        client = env.connect(target)
        client.execute("begin; select 1")
        message = client.receive()
        equal(message.sqlstate(), "25P03")
        assert client.is_closed()
        equal(env.connect(target).value("select 1"), "1")


@pooler_only
def test_query_timeout(env):
    with env.pooler_with(query_timeout="1s") as target:
        client = env.connect(target)
        started = time.monotonic()
        result = client.attempt("select pg_sleep(20)")
        equal(result.sqlstate, "57014")
        assert time.monotonic() - started < 4


@pooler_only
def test_transaction_timeout(env):
    with env.pooler_with(pool_size=1, transaction_timeout="1s") as target:
        client = env.connect(target)
        client.execute("begin")
        end = time.monotonic() + 10
        try:
            while not (result := client.attempt("select pg_sleep(0.1)")).errors:
                assert time.monotonic() < end, "no timeout"
            equal(result.sqlstate, "25P04")
        except (Disconnected, OSError):
            raise AssertionError("closed without an error") from None
        equal(env.connect(target).value("select 1"), "1")


@pooler_only
def test_trap_19_client_idle_timeout_spares_clients_at_work(env):
    """trap 19: timeouts that fire with nothing in flight, or on those who wait for their query."""
    with env.pooler_with(client_idle_timeout="1s") as target:
        idle, busy = env.connect(target), env.connect(target)
        busy.send(m.query("select 'done' from pg_sleep(2.5)"))
        equal(idle.receive().sqlstate(), "57P05")
        assert idle.is_closed()
        equal(busy.collect().value, "done")


@pooler_only
def test_trap_19_query_timeout_does_not_fire_with_nothing_in_flight(env):
    with env.pooler_with(query_timeout="1s", pool_size=1) as target:
        client = env.connect(target)
        for _ in range(3):
            client.value("select 1")
            time.sleep(0.8)
        client.execute("begin; select 1")
        time.sleep(1.5)
        equal(client.execute("select 2; commit").rows, [("2",)])


@pooler_only
def test_client_login_timeout(env):
    with env.pooler_with(client_login_timeout="1s") as target:
        for data in (b"", m.startup({"user": "app", "database": "app"}), m.SSL_REQUEST, b"\0"):
            client = target.open()
            client.send(data)
            started = time.monotonic()
            assert client.is_closed(5), f"still open after sending {data!r}"
            assert time.monotonic() - started > 0.5
            client.sock.close()


@pooler_only
def test_server_idle_timeout_and_lifetime(env):
    with env.pooler_with(server_idle_timeout="1s") as target:
        env.connect(target).value("select 1")
        env.cluster.wait_for_backends("usename = 'app' and pid <> pg_backend_pid()", 0, 6)
    with env.pooler_with(server_lifetime="1s", pool_size=1) as target:
        client = env.connect(target)
        first = client.value("select pg_backend_pid()")
        time.sleep(1.5)
        client.value("select 1")
        time.sleep(0.2)
        assert client.value("select pg_backend_pid()") != first, "the backend outlived server_lifetime"


@pooler_only
def test_min_pool_size_keeps_backends(env):
    """For a database and user that are named; with "*" there is nothing to open."""
    with env.pooler_with(min_pool_size=3) as target:
        env.connect(target).value("select 1")
        env.cluster.wait_for_backends("usename = 'app' and datname = 'app'", 3)


@pooler_only
def test_waiters_are_served_in_order(env):
    """No waiter is overtaken by more than pool_size later ones, whatever loop it is on."""
    with env.pooler_with(pool_size=2) as target:
        admin = env.server()
        admin.execute("drop sequence if exists served; create sequence served; grant all on sequence served to app")
        holders = [env.connect(target) for _ in range(2)]
        waiters = [env.connect(target) for _ in range(30)]
        for holder in holders:
            holder.execute("begin; select 1")
            holder.send(m.query("select pg_sleep(1.5); commit"))  # at work: outside of idle_transaction_reserve
        for waiter in waiters:
            waiter.send(m.query("select nextval('served') from pg_sleep(0.005)"))
            time.sleep(0.02)
        for holder in holders:
            holder.collect()
        order = [int(waiter.collect().value) for waiter in waiters]
        for number, place in enumerate(order):
            overtaken = sum(1 for later in order[number + 1 :] if later < place)
            # Two for the bound, and two that are at work at the same time: either may come to nextval first.
            assert overtaken <= 4, f"waiter {number} was overtaken by {overtaken}: {order}"
        admin.execute("drop sequence served")


def throughput(target, clients, seconds):
    """Transactions a second of this many clients."""
    end = time.monotonic() + seconds

    def work(_):
        done = 0
        with target.connect() as client:
            while time.monotonic() < end:
                client.send(m.query("select 1"))
                client.collect()
                done += 1
        return done
    return sum(crowd(clients, work)) / seconds


@limit(60)
def test_long_transactions_delay_nobody_else(env):
    """Pool of 10, 10 transactions left open: others keep 0.9 x their throughput.

    The client is Python: it is the limit, not the pooler; so this shows that nobody waits, and the benchmarks the rest.
    Medians of interleaved rounds, and a margin for the machine's noise: 0.75.
    """
    with env.pooler_with(pool_size=10, idle_transaction_reserve=20) as target:
        quiet, beside = [], []
        for _ in range(3):
            quiet.append(throughput(target, 8, 1.2))
            holders = [target.connect() for _ in range(10)]
            for holder in holders:
                holder.execute("begin; select 1")
            beside.append(throughput(target, 8, 1.2))
            for holder in holders:
                equal(holder.execute("commit").status, "I")
                holder.close()
        ratio = sorted(beside)[1] / sorted(quiet)[1]
        assert ratio > 0.75, f"{ratio:.2f} x the throughput: {quiet} {beside}"


@pooler_only
@limit(60)
def test_the_reserve_for_idle_transactions_is_a_bound(env):
    with env.pooler_with(pool_size=2, idle_transaction_reserve=3, query_wait_timeout="1s") as target:
        holders = []
        for _ in range(5):
            holders.append(env.connect(target))
            holders[-1].execute("begin; select 1")
        late = env.connect(target)
        equal(late.attempt("begin").sqlstate or late.attempt("select 1").sqlstate, "53300")
        # All of them come back to work at once: each is served in the end.
        for holder in holders:
            equal(holder.execute("select 2; commit").status, "I")


@pooler_only
@limit(60)
def test_running_out_of_descriptors_never_spins_and_recovers(env):
    """The limit is lowered on the running process; clients above it wait or are refused, the others are served."""
    import resource
    with env.pooler_with() as target:
        first = env.connect(target)
        first.value("select 1")
        pid = target.pooler.process.pid
        limits = resource.prlimit(pid, resource.RLIMIT_NOFILE)
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (target.pooler.open_files() + 10, limits[1]))
        crowded = []
        for _ in range(40):
            client = target.open(timeout=5)
            crowded.append(client)
            client.send(m.startup({"user": "app_trust", "database": "app"}))
        time.sleep(0.3)
        before = target.pooler.cpu_seconds()
        time.sleep(1.5)
        assert target.pooler.cpu_seconds() - before < 0.5, "it spins"
        equal(first.value("select 'served'"), "served")
        for client in crowded:
            client.sock.close()
        resource.prlimit(pid, resource.RLIMIT_NOFILE, limits)
        time.sleep(0.3)
        equal(env.connect(target).value("select 1"), "1")
        until(lambda: "connections can be accepted again" in target.pooler.text(), "the log says that it is over")
        equal(target.pooler.text().count("no connection can be accepted"), 1, "complaints in the log")
        assert re.search(r"hawser_accept_failures_total [1-9]", target.pooler.http("/metrics")[1])
