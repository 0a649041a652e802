"""Limits and timeouts, each with PostgreSQL's own SQLSTATE; fairness; long transactions."""

import pathlib
import re
import socket
import subprocess
import time

from harness import messages as m
from harness.pooler import binary
from harness.suite import Background, crowd, equal, limit, pooler_only, until
from harness.wire import Disconnected, ServerError

SAME_FOR_ALL_SERVERS = True
TAKES_SECONDS = 110


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
def test_a_client_that_waits_is_told_so_once_and_then_served(env):
    queued = "No server connection available in postgres backend, client being queued"
    with env.pooler_with(pool_size=1, query_wait_timeout="20s", query_wait_notify="1s", idle_transaction_reserve=0) as target:
        holder, waiting, quick = (env.connect(target) for _ in range(3))
        equal([notice["M"] for notice in quick.attempt("select 1").notices], [])
        for ask in ([m.query("select 2")], [m.run("select 2"), m.SYNC]):
            holder.execute("begin; select 1")
            waiting.send(*ask)
            assert waiting.pending(10), "nothing is said"
            time.sleep(1.2)  # a second notice would come after another second
            holder.execute("commit")
            result = waiting.collect()
            equal((result.value, [notice["M"] for notice in result.notices]), ("2", [queued]))
    # Until the limit, too.
    with env.pooler_with(pool_size=1, query_wait_timeout="2s", query_wait_notify="1s", idle_transaction_reserve=0) as target:
        holder, waiting = env.connect(target), env.connect(target)
        holder.execute("begin; select 1")
        result = waiting.attempt("select 1")
        equal((result.sqlstate, [notice["M"] for notice in result.notices]), ("53300", [queued]))
        holder.execute("commit")


@pooler_only
def test_trap_25_the_connection_limit_is_53300(env):
    """trap 25: the connection limit was answered by 08P01 or a bare reset instead of 53300."""
    with env.pooler_with(max_client_conn=5) as target:
        clients = [env.connect(target) for _ in range(5)]
        equal(refused(target), "53300")
        clients[0].value("select 1")
        clients.pop().close()
        until(lambda: refused(target) is None, "the place of the one that has left")


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
def test_pin_timeout(env):
    with env.pooler_with(pool_size=1, pin_timeout="1s") as target:
        client = env.connect(target)
        client.execute("create temp table kept (i int)")
        for _ in range(3):
            time.sleep(0.6)  # two of them are longer than pin_timeout
            client.execute("insert into kept values (1)")  # each use counts
        message = client.receive()
        equal(message.sqlstate(), "57P05")
        assert "temporary_object" in str(message.fields()), message.fields()
        assert client.is_closed()
        equal(env.connect(target).value("select to_regclass('pg_temp.kept') is null"), "t")


@pooler_only
def test_max_pinned_keeps_a_pool_alive(env):
    # By default one server connection is left: 2 + 1 - 1 may be kept.
    with env.pooler_with(pool_size=2, idle_transaction_reserve=1, query_wait_timeout="3s") as target:
        keepers = [env.connect(target) for _ in range(3)]
        for keeper in keepers[:2]:
            keeper.execute("create temp table kept (i int)")
        keepers[2].execute("begin; create temp table passing (i int) on commit drop; commit")
        keepers[2].execute("create temp table kept (i int)")
        message = keepers[2].receive()
        equal(message.sqlstate(), "53400")
        assert "max_pinned" in str(message.fields()), message.fields()
        assert keepers[2].is_closed()
        for _ in range(3):
            equal(env.connect(target).value("select 1"), "1")
        pins = [row for row in target.pooler.show("CLIENTS") if row["pins"]]
        equal([row["pins"] for row in pins], ["temporary_object"] * 2)
        assert all(0 <= int(row["pinned_seconds"]) < 60 for row in pins), pins
        equal([row["sv_pinned"] for row in target.pooler.show("POOLS") if row["database"] == "app"], ["2"])
        for keeper in keepers[:2]:
            equal(keeper.value("select count(*) from kept"), "0")


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
            time.sleep(0.6)  # two of them are longer than the timeout
        client.execute("begin; select 1")
        time.sleep(1.2)  # idle for longer than the timeout
        equal(client.execute("select 2; commit").rows, [("2",)])


@pooler_only
def test_client_login_timeout(env):
    with env.pooler_with(client_login_timeout="1s") as target:
        def waits_for_its_end(data):
            client = env.raw(target)
            client.send(data)
            started = time.monotonic()
            assert client.is_closed(5), f"still open after sending {data!r}"
            assert time.monotonic() - started > 0.5

        sent = (b"", m.startup({"user": "app", "database": "app"}), m.SSL_REQUEST, b"\0")
        crowd(len(sent), lambda number: waits_for_its_end(sent[number]))


@pooler_only
def test_server_idle_timeout_and_lifetime(env):
    with env.pooler_with(server_idle_timeout="1s") as target:
        env.connect(target).value("select 1")
        env.cluster.wait_for_backends("usename = 'app' and pid <> pg_backend_pid()", 0, 6)
    with env.pooler_with(server_lifetime="1s", pool_size=1) as target:
        client = env.connect(target)
        first = client.value("select pg_backend_pid()")
        until(lambda: client.value("select pg_backend_pid()") != first, "the backend's end after server_lifetime", seconds=4)


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
            # First the number, then time for a process that gets none from the host just then.
            waiter.send(m.query("select nextval('served'), pg_sleep(0.03)"))
            time.sleep(0.02)
        for holder in holders:
            holder.collect()
        order = [int(waiter.collect().rows[0][0]) for waiter in waiters]
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
    Of neighbouring rounds the best pair counts: whoever delays the others delays them in each.
    """
    with env.pooler_with(pool_size=10, idle_transaction_reserve=20) as target:
        quiet, beside = [], []
        for _ in range(4):
            quiet.append(throughput(target, 8, 1.2))
            holders = [target.connect() for _ in range(10)]
            for holder in holders:
                holder.execute("begin; select 1")
            beside.append(throughput(target, 8, 1.2))
            for holder in holders:
                equal(holder.execute("commit").status, "I")
                holder.close()
        ratio = max(after / before for before, after in zip(quiet, beside))
        assert ratio > 0.9, f"{ratio:.2f} x the throughput: {quiet} {beside}"


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
        until(lambda: "no connection can be accepted" in target.pooler.text(), "the log says so")
        page = socket.create_connection(("127.0.0.1", target.pooler.http_port))
        until(lambda: "no connection on http_address can be accepted" in target.pooler.text(), "of the page, too")
        before = target.pooler.cpu_seconds()
        time.sleep(1.5)  # it would spin meanwhile
        assert target.pooler.cpu_seconds() - before < 0.5, "it spins"
        equal(first.value("select 'served'"), "served")
        for client in crowded:
            client.sock.close()
        resource.prlimit(pid, resource.RLIMIT_NOFILE, limits)
        equal(env.connect(target).value("select 1"), "1")
        until(lambda: "connections can be accepted again" in target.pooler.text(), "the log says that it is over")
        # One for each time that it begins, not for each try: on a busy machine a place may be free in between.
        for where in ("no connection can be accepted", "no connection on http_address can be accepted"):
            complaints = target.pooler.text().count(where)
            assert 1 <= complaints <= 10, complaints
        page.close()
        assert re.search(r"hawser_accept_failures_total [1-9]", target.pooler.http("/metrics")[1])


@pooler_only
@limit(60)
def test_server_max_memory_replaces_bloated_backends(env):
    """Private memory alone: what a backend maps of shared_buffers is no reason."""
    with env.pooler_with(pool_size=1, server_max_memory="24MiB") as target:
        client = env.connect(target)
        pid = client.value("select pg_backend_pid()")
        time.sleep(2.2)  # memory is looked at once a second
        equal(client.value("select pg_backend_pid()"), pid, "a slim backend is kept")
        client.execute("begin; set local work_mem = '600MB'; set local hash_mem_multiplier = 1; "
                       "create temp table grown on commit drop as select count(distinct md5(n::text)) from generate_series(1, 10) n")
        client.execute("prepare kept as select 1")  # pinned: it stays while it is in use, however large
        # That there is no such table is remembered for the life of the process.
        client.execute("select count(to_regclass('nothing_' || n)) from generate_series(1, 150000) n")
        pinned = client.value("select pg_backend_pid()") if not client.execute("commit").errors else None
        status = pathlib.Path(f"/proc/{pid}/status").read_text()
        grown = int(re.search(r"RssAnon:\s+(\d+)", status).group(1))
        assert grown > 24576, f"the test's backend has only {grown} kB"
        equal(pinned, pid)
        client.close()
        until(lambda: not pathlib.Path(f"/proc/{pid}").exists(), "the bloated backend ends")
        equal(env.connect(target).value("select 1"), "1")


def with_own_user(env, user, password=None, **settings):
    """A database "ready" beside "*", whose server connections are all of one user."""
    entry = f'\n[[database]]\nname = "ready"\ndbname = "app"\nservers = ["{env.cluster.address}"]\nuser = "{user}"\nmin_pool_size = 2\n'
    return env.pooler_with(append=entry + (f'password = "{password}"\n' if password else ""), **settings)


@pooler_only
def test_min_pool_size_of_a_database_with_a_user_needs_no_client(env):
    with with_own_user(env, "app3", "third secret"):
        env.cluster.wait_for_backends("usename = 'app3'", 2)


@pooler_only
def test_check_says_that_a_scram_verifier_opens_nothing_by_itself(env):
    """Over TCP, where the server asks for a proof: the pooler has a verifier and nothing to prove with."""
    with with_own_user(env, "app_scram", start=False) as target:
        said = subprocess.run([binary(), "check", "-c", str(target.pooler.config)], capture_output=True, text=True, timeout=30)
        equal(said.returncode, 0, said.stdout)
        assert re.search(r'warn.*"ready".*SCRAM verifier of user "app_scram"', said.stdout), said.stdout
    with with_own_user(env, "app3", "third secret", start=False) as target:
        said = subprocess.run([binary(), "check", "-c", str(target.pooler.config)], capture_output=True, text=True, timeout=30)
        assert "SCRAM verifier" not in said.stdout, said.stdout


@pooler_only
def test_min_pool_size_for_a_scram_verifier_begins_with_its_first_client(env):
    with env.pooler_with(servers=[f"127.0.0.1:{env.cluster.port}"], server_tls_sslmode="disable", min_pool_size=2) as target:
        time.sleep(1.5)  # pools are filled once a second: this one is not
        equal(env.cluster.backends("usename = 'app_scram'"), [])
        env.connect(target, user="app_scram").value("select 1")
        env.cluster.wait_for_backends("usename = 'app_scram'", 2)


def served_beside(env, target, crowds, seconds=4.0):
    """Queries of each user, all of whose clients are always busy: {user: queries}."""
    end = time.monotonic() + seconds
    counts = {user: 0 for user, _ in crowds}

    def work(user):
        with target.connect(user=user) as client:
            while time.monotonic() < end:
                client.value("select 1 from pg_sleep(0.01)")
                counts[user] += 1
    members = [Background(work, user) for user, count in crowds for _ in range(count)]
    for member in members:
        member.join(seconds + 15)
    return counts


@pooler_only
@limit(60)
def test_busy_pools_share_max_server_connections(env):
    """None is ever idle: whoever came first does not keep everything."""
    with env.pooler_with(max_server_connections=4, pool_size=4, query_wait_timeout="10s") as target:
        first = Background(served_beside, env, target, [("app", 8)], 6.0)
        time.sleep(1)  # it has come first, and has all
        counts = served_beside(env, target, [("app2", 8), ("app3", 1)])
        total = first.join()["app"]
        # Alone, four backends make some 400 queries a second.
        assert counts["app2"] > 150 and counts["app3"] > 40 and total > 400, (total, counts)
        equal(len(env.cluster.backends("usename in ('app', 'app2', 'app3')")) <= 4, True)


@pooler_only
@limit(60)
def test_busy_pools_take_turns_where_there_is_not_a_connection_for_each(env):
    """Three pools, two connections, nobody ever idle: each is served, again and again."""
    with env.pooler_with(max_server_connections=2, pool_size=2, query_wait_timeout="4s") as target:
        counts = served_beside(env, target, [("app", 4), ("app2", 4), ("app3", 4)], 6.0)
        # Alone, two connections make some 200 queries a second.
        assert min(counts.values()) > 40, counts
        assert len(env.cluster.backends("usename in ('app', 'app2', 'app3')")) <= 2


@pooler_only
def test_a_login_that_asks_the_server_waits_for_a_place_under_the_limit(env):
    """All that are allowed are in use: a start value that the server has to judge is asked for in turn."""
    with env.pooler_with(max_server_connections=1, pool_size=1) as target:
        holder = env.connect(target)
        holder.send(m.query("select pg_sleep(1)"))
        time.sleep(0.2)  # it has the only server connection
        equal(env.connect(target, work_mem="5MB").value("show work_mem"), "5MB")
        equal(holder.collect().sqlstate, None)


@pooler_only
@limit(60)
def test_min_pool_sizes_that_exceed_the_limit_take_nothing_from_each_other(env):
    with env.pooler_with(max_server_connections=3, pool_size=2, min_pool_size=2) as target:
        for user in ("app", "app2"):
            env.connect(target, user=user).value("select 1")
        env.cluster.wait_for_backends("usename in ('app', 'app2')", 3, 10)
        time.sleep(6)  # the line by which roles are looked at is closed, and its place taken
        pids = [row[0] for row in env.cluster.backends("usename in ('app', 'app2')")]
        time.sleep(4)  # longer than pools take turns
        equal(sorted(row[0] for row in env.cluster.backends("usename in ('app', 'app2')")), sorted(pids))


@pooler_only
def test_a_limit_on_server_connections_that_stays_reached_is_53300(env):
    with env.pooler_with(max_server_connections=2, pool_size=2, query_wait_timeout="3s", idle_transaction_reserve=0) as target:
        holders, waiting = [env.connect(target) for _ in range(2)], env.connect(target, user="app2")
        for holder in holders:
            holder.execute("begin; select 1")
        equal(waiting.attempt("select 1").sqlstate, "53300")


@pooler_only
def test_eviction_takes_the_idle_of_who_has_most_and_the_longest_idle_first(env):
    with env.pooler_with(max_server_connections=4, pool_size=4) as target:
        def held(user, count):
            clients = [env.connect(target, user=user) for _ in range(count)]
            for client in clients:
                client.execute("begin; select 1")
            pids = [client.value("select pg_backend_pid()") for client in clients]
            for client in clients:
                client.execute("commit")
                time.sleep(0.05)
            return pids
        rich, poor = held("app", 3), held("app2", 1)
        env.connect(target, user="app3").value("select 1")
        left = {row[0] for row in env.cluster.backends("usename in ('app', 'app2')")}
        # One of three for the pool of app3, and maybe one for the question whether roles have changed.
        kept = [pid in left for pid in rich]
        assert kept in ([False, True, True], [False, False, True]) and poor[0] in left, (rich, poor, left)


@pooler_only
@limit(60)
def test_who_waits_for_a_full_server_keeps_nobody_from_an_empty_one(env):
    full, empty = f"127.0.0.1:{env.cluster.port}", env.cluster.address
    database = '\n[[database]]\nname = "{}"\nservers = {}\ndbname = "app"\n'
    append = database.format("one", [full]) + database.format("two", [full, empty])
    with env.pooler_with(append=append.replace("'", '"'), max_server_connections_per_server=1, function_census=False,
                         query_wait_timeout="30s", client_login_timeout="30s") as target:
        holder = env.connect(target, user="app_trust", database="one")
        holder.execute("begin")
        def log_in(user):
            target.connect(user=user, database="one").close()

        waiting = [Background(log_in, user) for user in ("app", "app2", "app3")]
        until(lambda: sum(row["cl_waiting"] != "0" for row in target.pooler.show("pools")) == 3, "three pools wait")
        begun = time.monotonic()
        env.connect(target, user="app_trust", database="two").execute("select 1")
        took = time.monotonic() - begun
        assert took < 2, f"the pool with an empty server waited {took:.1f} s"
        holder.close()
        for login in waiting:
            login.join(30)


@pooler_only
@limit(60)
def test_a_limit_that_is_no_longer_reached_is_no_longer_the_last_error(env):
    def last_errors():
        return [row["last_error"] for row in target.pooler.show("pools") if row["last_error"]]

    with env.pooler_with(max_server_connections=1, query_wait_timeout="3s", function_census=False) as target:
        late = env.connect(target, user="app2")
        late.execute("select 1")
        holder = env.connect(target, user="app_trust")
        holder.execute("begin")
        equal(late.attempt("select 1").sqlstate, "53300")
        late.close()
        equal(last_errors(), ["no more server connections allowed"])
        holder.execute("commit")
        until(lambda: not last_errors(), "it is forgotten", seconds=10)


@pooler_only
@limit(60)
def test_clients_that_wait_for_a_lock_need_a_pool_larger_than_their_number(env):
    """Migrations under an advisory lock: the one that has it opens a second connection, as docs/session-state.md says."""
    for size, sqlstate in ((3, "53300"), (4, None)):
        with env.pooler_with(pool_size=size, max_pinned=0, query_wait_timeout="2s") as target:
            holder = env.connect(target, user="app_trust")
            holder.execute("select pg_advisory_lock(4242)")
            waiting = [env.connect(target, user="app_trust") for _ in range(3)]
            locks = [Background(client.attempt, "select pg_advisory_lock(4242), pg_advisory_unlock(4242)") for client in waiting]
            until(lambda: env.server().value("select count(*) from pg_locks where objid = 4242 and not granted") == "3", "three wait")
            equal(env.connect(target, user="app_trust").attempt("select 1").sqlstate, sqlstate, f"a pool of {size}")
            holder.execute("select pg_advisory_unlock(4242)")
            for lock in locks:
                lock.join(30)


@pooler_only
@limit(60)
def test_max_db_connections_counts_the_poolers_own_questions(env):
    own = ("select count(*), count(*) filter (where application_name = 'hawser') "
           "from pg_stat_activity where datname = 'app' and usename = 'app_trust'")
    with env.pooler_with(pool_size=10, max_db_connections=3) as target:
        clients, most, asked = [], 0, 0
        for _ in range(6):
            clients.append(Background(lambda: env.connect(target, user="app_trust").execute("select pg_sleep(1.5)")))
        end, server = time.monotonic() + 4, env.server()
        while time.monotonic() < end:
            ((together, questions),) = server.rows(own)
            most, asked = max(most, int(together)), max(asked, int(questions))
        for client in clients:
            client.join(30)
        assert asked > 0, "no connection of the pooler's own was seen"
        equal(most, 3, "server connections at most")
