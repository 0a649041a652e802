"""Several servers to a database: a primary and a standby that follows it, and which of them will do."""

import itertools
import socket
import subprocess
import threading
import time

from harness import messages as m
from harness.pooler import binary
from harness.postgres import Standby
from harness.suite import Background, crowd, equal, limit, pooler_only, until
from harness.wire import ServerError

SAME_FOR_ALL_SERVERS = True
TAKES_SECONDS = 125

NUMBERS = itertools.count(1)
PROBED = {"server_probe_interval": "100ms"}
FAILOVERS = 10
SWITCHOVERS = 5
SETTINGS = {"query_wait_timeout": "10s", "server_login_retry": "100ms", "server_connect_timeout": "2s"}


def standby(env):
    return Standby(env.cluster, f"{env.directory}/standby{next(NUMBERS)}")


def role(client):
    return "standby" if client.value("select pg_is_in_recovery()") == "t" else "primary"


def role_now(env, target):
    """Of the server that a new client gets; None while there is none."""
    try:
        with target.connect() as client:
            return role(client)
    except ServerError:
        return None


def refusal(console, text):
    """The SQLSTATE of a command that is refused."""
    try:
        console.execute(text)
    except ServerError as error:
        return error.sqlstate
    raise AssertionError(f"{text} was not refused")


@pooler_only
@limit(120)
def test_target_session_attrs_choose_the_server(env):
    with standby(env) as second:
        order = {"primary first": [env.cluster.address, second.address], "standby first": [second.address, env.cluster.address]}
        expected = {"primary": ("primary", "primary"), "read-write": ("primary", "primary"),
                    "standby": ("standby", "standby"), "read-only": ("standby", "standby"),
                    "prefer-standby": ("standby", "standby"), "any": ("primary", "standby")}

        def chosen(attrs, name, wanted):
            with env.pooler_with(servers=order[name], target_session_attrs=attrs, pool_size=2) as target:
                equal(role(env.connect(target)), wanted, f"{attrs}, {name}")

        for place, name in enumerate(order):
            cases = [(attrs, name, wanted[place]) for attrs, wanted in expected.items()]
            crowd(len(cases), lambda number, cases=cases: chosen(*cases[number]))


@pooler_only
@limit(60)
def test_a_primary_that_is_made_read_only_is_no_read_write_server(env):
    with standby(env) as second:
        admin = env.server("postgres")
        admin.execute("alter system set default_transaction_read_only = on")
        admin.execute("select pg_reload_conf()")
        try:
            until(lambda: env.cluster.target.connect("postgres", "app",
                                                     host=str(env.cluster.socket_dir)).value("show default_transaction_read_only") == "on",
                                                     "reloaded")
            servers = [second.address, env.cluster.address]
            with env.pooler_with(servers=servers, target_session_attrs="read-only") as target:
                equal(role(env.connect(target)), "standby")
            with env.pooler_with(servers=servers, target_session_attrs="read-write", query_wait_timeout="1s") as target:
                try:
                    raise AssertionError(f"served by a {role(env.connect(target))}")
                except ServerError as error:
                    equal(error.sqlstate, "08006")
                    assert "read-write" in str(error), error
        finally:
            admin.execute("set default_transaction_read_only = off")
            admin.execute("alter system reset default_transaction_read_only")
            admin.execute("select pg_reload_conf()")


@pooler_only
@limit(90)
def test_clients_follow_the_primary_to_a_promoted_standby(env):
    with standby(env) as second:
        servers = [env.cluster.address, second.address]
        with env.pooler_with(servers=servers, target_session_attrs="primary") as target:
            idle = env.connect(target, application_name="stays")
            idle.execute("select 1")
            equal(role(idle), "primary")
            env.cluster.stop("immediate")
            second.promote()
            # The client is the same: only its server is another.
            equal((role(idle), idle.value("show application_name")), ("primary", "stays"))
            equal(idle.value("show port"), str(second.port))
            equal(env.connect(target).value("show port"), str(second.port))


@pooler_only
@limit(90)
def test_clients_wait_for_a_standby_to_be_promoted(env):
    with standby(env) as second:
        with env.pooler_with(servers=[env.cluster.address, second.address], target_session_attrs="primary") as target:
            client = env.connect(target)
            client.execute("select 1")
            env.cluster.stop("immediate")
            client.send(m.query("show port"))
            assert not client.pending(1), "answered although there is no primary"
            second.promote()
            equal(client.collect().value, str(second.port))


@pooler_only
@limit(90)
def test_readers_prefer_the_standby_and_go_on_without_it(env):
    with standby(env) as second:
        with env.pooler_with(servers=[env.cluster.address, second.address], target_session_attrs="prefer-standby") as target:
            client = env.connect(target)
            equal(role(client), "standby")
            second.stop("immediate")
            until(lambda: role_now(env, target) == "primary", "the primary serves")
            equal(role(client), "primary")


@pooler_only
@limit(90)
def test_a_standby_that_is_promoted_is_left(env):
    """Whoever asked for a standby is not served by a primary for the rest of server_lifetime."""
    with standby(env) as second, standby(env) as third:
        with env.pooler_with(servers=[second.address, third.address], target_session_attrs="standby", **PROBED) as target:
            client = env.connect(target)
            equal(client.value("show port"), str(second.port))
            second.promote()
            until(lambda: client.value("show port") == str(third.port), "the other standby serves", seconds=10)
            equal(role(client), "standby")


class Load:
    """Clients that run short transactions without a pause, each on a connection of its own, until the end of `with`.
    No error is taken; `counts` are the transactions that were committed."""

    def __init__(self, connect, work, clients=8):
        self.ended = threading.Event()
        self.counts = [0] * clients
        self.work = work
        self.threads = [Background(self.run, number, connect()) for number in range(clients)]

    def run(self, number, client):
        while not self.ended.is_set():
            self.work(client)
            self.counts[number] += 1
        client.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.ended.set()
        for thread in self.threads:
            thread.join(30)

    def goes_on(self):
        """Every client commits again."""
        before = list(self.counts)
        until(lambda: self.gone_on_since(before), "all clients go on", seconds=20)

    def gone_on_since(self, before):
        for thread in self.threads:
            if not thread.is_running():
                thread.join()  # raises what has ended it
        return all(now > then for now, then in zip(self.counts, before))


@pooler_only
@limit(90)
def test_a_standby_that_lags_is_left_until_it_has_caught_up(env):
    """By clients that pause nowhere and see no error; an idle primary makes no lag."""
    with standby(env) as second:
        servers = [env.cluster.address, second.address]
        with env.pooler_with(servers=servers, target_session_attrs="prefer-standby", pool_size=2, **PROBED,
                             max_replica_lag="700ms") as target:
            roles = []
            with Load(lambda: env.connect(target), lambda client: roles.append(role(client)), clients=4) as load:
                load.goes_on()
                time.sleep(1.5)  # twice max_replica_lag, in which an idle primary writes nothing
                load.goes_on()
                equal(set(roles), {"standby"})
                with second.superuser("postgres") as admin, env.server("postgres") as primary:
                    admin.execute("select pg_wal_replay_pause()")
                    primary.execute("create table lag_of_a_standby ()")
                    until(lambda: "primary" in roles[-4:], "the primary serves")
                    roles.clear()
                    load.goes_on()
                    equal(set(roles), {"primary"})
                    admin.execute("select pg_wal_replay_resume()")
                    until(lambda: "standby" in roles[-4:], "the standby serves again")
                    roles.clear()
                    load.goes_on()
                    equal(set(roles), {"standby"})
                    primary.execute("drop table lag_of_a_standby")
            log = target.pooler.text()
            assert "more than max_replica_lag behind" in log and "the server is used again" in log, log


@pooler_only
@limit(90)
def test_a_user_that_only_reads_has_the_standby(env):
    """`target_session_attrs` of [[user]] goes before that of [[database]]; each user leaves servers by itself, also after a reload."""
    user = '\n[[user]]\nname = "app2"\ntarget_session_attrs = "prefer-standby"\nmax_replica_lag = "700ms"\n'
    with standby(env) as second:
        servers = [env.cluster.address, second.address]
        with env.pooler_with(append=user, servers=servers, target_session_attrs="primary", pool_size=2, **PROBED) as target:
            reader, writer = env.connect(target, user="app2"), env.connect(target)
            until(lambda: role(reader) == "standby", "it reads from the standby")
            equal(role(writer), "primary")
            with second.superuser("postgres") as admin, env.server("postgres") as primary:
                admin.execute("select pg_wal_replay_pause()")
                primary.execute("create table lag_of_a_standby ()")
                until(lambda: role(reader) == "primary", "the primary serves while the standby lags")
                admin.execute("select pg_wal_replay_resume()")
                until(lambda: role(reader) == "standby", "the standby serves again")
                primary.execute("drop table lag_of_a_standby")
            equal(role(writer), "primary")
            pooler = target.pooler
            left = [line for line in pooler.text().splitlines() if "the server is left" in line and "user=" in line]
            assert left and all("app2" in line for line in left), pooler.text()
            pooler.append = ""
            pooler.write()
            pooler.reload()
            until(lambda: role(reader) == "primary", "the reload takes it back")


@pooler_only
@limit(90)
def test_how_servers_stand_is_shown_with_the_reason(env):
    """SHOW HOSTS, the metrics and `hawser status`: up, spare, left, down, unknown."""
    def shown(target):
        rows = target.pooler.show("hosts")
        equal({row["database"] for row in rows}, {"*"})
        return {row["server"]: row for row in rows}

    with standby(env) as second:
        servers = [env.cluster.address, second.address]
        primary, replica = (f"{server.socket_dir}/.s.PGSQL.{server.port}" for server in (env.cluster, second))
        with env.pooler_with(servers=servers, target_session_attrs="prefer-standby", **PROBED, max_replica_lag="700ms") as target:
            equal({row["state"] for row in shown(target).values()}, {"unknown"})
            equal(role(env.connect(target)), "standby")
            until(lambda: shown(target)[replica]["role"] == "standby", "it has been looked at")
            rows = shown(target)
            equal((rows[replica]["state"], rows[replica]["reason"], rows[primary]["role"]), ("up", None, "primary"))
            equal(rows[primary]["state"], "spare")
            assert "prefer-standby" in rows[primary]["reason"], rows
            metrics = target.pooler.http("/metrics")[1]
            for line in (f'hawser_server_up{{database="*",server="{primary}"}} 1',
                         f'hawser_server_fit{{database="*",server="{primary}"}} 0',
                         f'hawser_server_fit{{database="*",server="{replica}"}} 1',
                         f'hawser_server_role{{database="*",server="{primary}",role="primary"}} 1',
                         f'hawser_server_role{{database="*",server="{replica}",role="standby"}} 1'):
                assert line in metrics, (line, metrics)
            with second.superuser("postgres") as admin, env.server("postgres") as writer:
                admin.execute("select pg_wal_replay_pause()")
                writer.execute("create table lag_of_a_standby ()")
                until(lambda: shown(target)[replica]["state"] == "left", "it lags")
                rows = shown(target)
                equal(rows[primary]["state"], "up")
                assert "max_replica_lag" in rows[replica]["reason"] and int(rows[replica]["lag_ms"]) >= 700, rows
                metrics = target.pooler.http("/metrics")[1]
                assert f'hawser_server_up{{database="*",server="{replica}"}} 0' in metrics, metrics
                assert f'hawser_server_up{{database="*",server="{primary}"}} 1' in metrics, metrics
                assert f'hawser_server_lag_seconds{{database="*",server="{replica}"}} ' in metrics, metrics
                admin.execute("select pg_wal_replay_resume()")
                writer.execute("drop table lag_of_a_standby")
            second.stop("immediate")
            until(lambda: shown(target)[replica]["state"] == "down", "it is gone")
            row = shown(target)[replica]
            assert row["reason"] and int(row["failures"]) >= 0, row
            status = subprocess.run([binary(), "status", "-c", str(target.pooler.config)], capture_output=True, text=True, timeout=10)
            assert f"server       {replica} of * is down: " in status.stdout, (status.stdout, status.stderr)
            page = target.pooler.http("/")[1]
            assert f"{replica} of * is down: " in page, page


@pooler_only
@limit(60)
def test_the_standby_of_a_pair_is_up_and_one_that_a_user_wants_is_fit(env):
    """The alert on servers that are down was there for ever on a pair of which nothing was wrong."""
    with standby(env) as second:
        servers, replica = [env.cluster.address, second.address], f"{second.socket_dir}/.s.PGSQL.{second.port}"
        for append, state, fit in (("", "spare", 0), ('\n[[user]]\nname = "app2"\ntarget_session_attrs = "standby"\n', "up", 1)):
            with env.pooler_with(append=append, servers=servers, target_session_attrs="primary", **PROBED) as target:
                equal(role(env.connect(target)), "primary")
                until(lambda: {row["server"]: row for row in target.pooler.show("hosts")}[replica]["state"] == state,
                      f"the standby is {state}")
                metrics = target.pooler.http("/metrics")[1]
                assert f'hawser_server_up{{database="*",server="{replica}"}} 1' in metrics, metrics
                assert f'hawser_server_fit{{database="*",server="{replica}"}} {fit}' in metrics, metrics


@pooler_only
@limit(60)
def test_lag_that_is_not_known_is_not_shown_as_none(env):
    """A standby that is cut off has replayed all that it has received."""
    with standby(env) as second:
        with env.pooler_with(servers=[second.address], target_session_attrs="standby", max_replica_lag="1s", **PROBED) as target:
            pooler = target.pooler
            equal(role(env.connect(target)), "standby")
            until(lambda: pooler.show("hosts")[0]["role"] == "standby", "it has been looked at")
            until(lambda: "how far standbys lag is not known" in pooler.text(), "it is said")
            equal(pooler.show("hosts")[0]["lag_ms"], None)
            assert "hawser_server_lag_seconds{" not in pooler.http("/metrics")[1]
            checked = subprocess.run([binary(), "check", "-c", str(pooler.config)], capture_output=True, text=True, timeout=20)
            assert "max_replica_lag: with one server there is no primary to compare it with" in checked.stdout + checked.stderr, checked
        with env.pooler_with(servers=[second.address, env.cluster.address], target_session_attrs="standby", max_replica_lag="1s",
                             **PROBED) as target:
            equal(role(env.connect(target)), "standby")
            until(lambda: "hawser_server_lag_seconds{" in target.pooler.http("/metrics")[1], "it is measured")
            time.sleep(1)  # ten looks more
            assert "is not known" not in target.pooler.text(), target.pooler.text()


@pooler_only
@limit(90)
def test_a_smart_shutdown_does_not_wait_for_a_listening_connection_that_nobody_uses(env):
    """It stays 30 s for the next client that listens: not through a shutdown."""
    with standby(env) as second:
        second.promote()
        with env.pooler_with(servers=[second.address], target_session_attrs="primary", **PROBED) as target:
            client = env.connect(target)
            client.execute("listen news")
            until(lambda: any(row["state"] == "listen" for row in target.pooler.show("servers")), "a connection listens", seconds=10)
            client.execute("unlisten news")
            began = time.monotonic()
            second.stop("smart")
            took = time.monotonic() - began
            assert took < 10, f"the smart shutdown took {took:.1f} s"


@pooler_only
@limit(90)
def test_clients_of_a_standby_that_lags_are_told_so(env):
    with standby(env) as second:
        with env.pooler_with(servers=[env.cluster.address, second.address], target_session_attrs="standby", **PROBED,
                             query_wait_timeout="2s", max_replica_lag="300ms") as target:
            client = env.connect(target)
            equal(role(client), "standby")
            with second.superuser("postgres") as admin, env.server("postgres") as primary:
                admin.execute("select pg_wal_replay_pause()")
                primary.execute("create table lag_of_a_standby ()")
                until(lambda: not [row for row in target.pooler.show("servers")], "idle server connections are closed")
                with_error = client.attempt("select 1")
                assert with_error.sqlstate == "08006", with_error
                admin.execute("select pg_wal_replay_resume()")
                primary.execute("drop table lag_of_a_standby")
            until(lambda: role_now(env, target) == "standby", "the standby serves again")


@pooler_only
@limit(90)
def test_a_primary_that_becomes_read_only_is_left_without_an_error(env):
    with standby(env) as first, standby(env) as second:
        first.promote()
        second.promote()
        with env.pooler_with(servers=[first.address, second.address], target_session_attrs="read-write", **PROBED) as target:
            client = env.connect(target)
            equal(client.value("show port"), str(first.port))
            with first.superuser("postgres") as admin:
                admin.execute("alter system set default_transaction_read_only = on")
                admin.execute("select pg_reload_conf()")
            until(lambda: "default_transaction_read_only is on" in target.pooler.text(), "it is seen")
            until(lambda: not target.pooler.show("servers"), "its idle server connections are closed")
            equal(client.value("show port"), str(second.port))
            client.execute("create temp table t ()")


@pooler_only
@limit(90)
def test_a_transaction_that_a_read_only_server_refuses_at_once_starts_again_on_another(env):
    """Before any probe has seen it: an operator makes the old primary read-only, and promotes."""
    with standby(env) as first, standby(env) as second:
        for server in (first, second):
            server.promote()
            with server.superuser("postgres") as admin:
                admin.execute("create table written (n int)")
                admin.execute("grant all on written to public")
        with env.pooler_with(servers=[first.address, second.address], target_session_attrs="read-write", server_probe_interval="1h",
                             dbname="postgres", pool_size=8) as target:
            texts = (("update written set n = 1",), ("begin", "insert into written values (1)", "commit"),
                     ("delete from written where n = 2",))
            clients = [env.connect(target) for _ in range(6)]
            prepared, reader, open_one = env.connect(target), env.connect(target), env.connect(target)
            prepared.exchange(m.parse("update written set n = 1", "s"), m.SYNC)
            open_one.execute("begin")
            for client in (*clients, prepared, reader):
                client.send(m.query("select pg_sleep(0.2)"))
            for client in (*clients, prepared, reader):
                assert client.collect().status == "I"  # several server connections sit idle now
            with first.superuser("postgres") as admin:
                admin.execute("alter system set default_transaction_read_only = on")
                admin.execute("select pg_reload_conf()")
            until(lambda: first.superuser("postgres").value("show default_transaction_read_only") == "on", "it is in force")
            equal(reader.value("select 1"), "1")
            for client, transaction in zip(clients, itertools.cycle(texts)):
                results = [client.attempt(text) for text in transaction]
                equal(([result.errors for result in results], results[-1].status), ([[]] * len(transaction), "I"), transaction)
            result = prepared.exchange(m.bind("s"), m.execute(), m.SYNC)
            equal((result.errors, result.tags), ([], ["UPDATE 2"]))
            for client in (*clients, prepared, reader):
                client.execute("begin")
                equal((client.value("show default_transaction_read_only"), client.value("show port")), ("off", str(second.port)))
                client.execute("commit")
            with first.superuser("postgres") as admin:
                equal(admin.value("select count(*) from written"), "0")
            # What was open when it came is its client's.
            equal(open_one.attempt("insert into written values (1)").sqlstate, None)


@pooler_only
@limit(300)
def test_planned_failovers_under_load_cost_no_client_an_error(env):
    """Ten times a smart shutdown of the primary, then promotion: server connections leave as transactions end."""
    with standby(env) as first:
        first.promote()
        with Standby(first, f"{env.directory}/standby{next(NUMBERS)}") as second:
            with first.superuser() as admin:
                admin.execute("create table committed (number int)")
                admin.execute("grant all on committed to public")
            with env.pooler_with(servers=[first.address, second.address], target_session_attrs="primary", pool_size=5, **PROBED) as target:
                def work(client):
                    started = time.monotonic()
                    client.execute("begin")
                    client.execute("insert into committed values (1)")
                    client.execute("commit")
                    waits.append(time.monotonic() - started)

                waits = []
                with Load(lambda: env.connect(target), work, clients=20) as load:
                    load.goes_on()
                    primary, other = first, second
                    for _ in range(FAILOVERS):
                        with primary.superuser() as admin:
                            until(lambda: admin.value("select count(*) from pg_stat_replication where state = 'streaming'") == "1",
                                  "the standby follows")
                        began = time.monotonic()
                        primary.stop("smart")
                        stopped = time.monotonic()
                        other.promote()
                        promoted = time.monotonic()
                        load.goes_on()
                        print(f"    smart shutdown {stopped - began:.2f} s, promotion {promoted - stopped:.2f} s, the longest transaction "
                              f"{max(waits):.2f} s")
                        waits.clear()
                        primary.follow(other)
                        primary, other = other, primary
                equal(env.connect(target).value("show port"), str(primary.port))
                equal(env.connect(target).value("select count(*) from committed"), str(sum(load.counts)))


@pooler_only
@limit(180)
def test_no_transaction_fails_where_the_primary_is_stopped_fast_after_switchover(env):
    """As a cluster manager does it: SWITCHOVER, its answer, a fast shutdown, a promotion; nobody types RESUME."""
    with standby(env) as first:
        first.promote()
        with Standby(first, f"{env.directory}/other{next(NUMBERS)}") as second:
            with first.superuser() as admin:
                admin.execute("create table switched (n int)")
                admin.execute("grant all on switched to public")
            with env.pooler_with(servers=[first.address, second.address], target_session_attrs="primary", pool_size=8,
                                 **{**SETTINGS, "query_wait_timeout": "60s"}) as target:
                waits = []

                def work(client):
                    began = time.monotonic()
                    client.execute("begin; insert into switched values (1); commit")
                    waits.append(time.monotonic() - began)

                with Load(lambda: env.connect(target), work, clients=20) as load:
                    load.goes_on()
                    primary, other = first, second
                    for _ in range(SWITCHOVERS):
                        with primary.superuser() as admin:
                            until(lambda: admin.value("select count(*) from pg_stat_replication where state = 'streaming'") == "1",
                                  "the standby follows")
                        with target.pooler.admin() as console:
                            equal(console.execute("SWITCHOVER app").tags, ["SWITCHOVER"])
                        primary.stop("fast")
                        other.promote()
                        load.goes_on()
                        print(f"    the longest transaction {max(waits):.2f} s")
                        waits.clear()
                        primary.follow(other)
                        primary, other = other, primary
                equal(target.pooler.text().count("clients continue"), SWITCHOVERS)
                equal(env.connect(target).value("select count(*) from switched"), str(sum(load.counts)))


@pooler_only
@limit(60)
def test_a_switchover_that_does_not_happen_ends_by_itself(env):
    with standby(env) as second:
        with env.pooler_with(servers=[env.cluster.address, second.address], target_session_attrs="primary", **PROBED,
                             **{**SETTINGS, "query_wait_timeout": "4s"}) as target, target.pooler.admin() as console:
            client, open_client = env.connect(target), env.connect(target)
            client.execute("select 1")
            until(lambda: any(row["role"] == "primary" for row in target.pooler.show("hosts")), "they have been looked at")
            began = time.monotonic()
            equal(console.execute("SWITCHOVER app").tags, ["SWITCHOVER"])
            equal(refusal(console, "SWITCHOVER app"), "57P03")
            equal(client.value("select 1"), "1")
            took = time.monotonic() - began
            assert 1.5 < took < 3.9, f"clients waited {took:.1f} s of 4"
            assert "no other server has become the primary" in target.pooler.text()
            # A transaction that stays open is named; clients go on all the same.
            open_client.execute("begin; select 1")
            equal(refusal(console, "SWITCHOVER app"), "55006")
            open_client.execute("commit")
            equal(client.value("select 1"), "1")


@pooler_only
def test_a_switchover_needs_servers_that_are_watched(env):
    with env.pooler_with(pool_size=2) as target, target.pooler.admin() as console:
        equal(refusal(console, "SWITCHOVER app"), "55000")
        equal(refusal(console, "SWITCHOVER hawser"), "0A000")
        equal(env.connect(target).value("select 1"), "1")


@pooler_only
@limit(90)
def test_a_silent_first_server_holds_nobody_up_while_another_serves(env):
    """It cost each new server connection server_connect_timeout, once server_login_retry had passed."""
    with socket.create_server(("127.0.0.1", 0), backlog=1024) as silent:
        servers = [f"127.0.0.1:{silent.getsockname()[1]}", env.cluster.address]
        with env.pooler_with(servers=servers, target_session_attrs="primary", pool_size=1, server_lifetime="100ms",
                             server_probe_interval="200ms", **{**SETTINGS, "server_connect_timeout": "4s"}) as target:
            client = env.connect(target, timeout=30)
            client.execute("select 1")
            until(lambda: any("gives no answer" in (row["reason"] or "") or row["failures"] != "0" for row in target.pooler.show("hosts")),
                  "it is known")
            time.sleep(2)  # ten looks, each of which the server leaves without an answer
            slowest = 0
            for _ in range(30):
                began = time.monotonic()
                client.execute("select 1")
                slowest = max(slowest, time.monotonic() - began)
                time.sleep(0.15)  # past server_lifetime: each query has a new server connection
            assert slowest < 3, f"a query took {slowest:.1f} s"


@pooler_only
@limit(90)
def test_a_password_command_that_hangs_delays_no_other_server(env):
    slow = (f'\n[[database]]\nname = "slow"\nservers = ["{env.cluster.address}"]\nuser = "app2"\ntarget_session_attrs = "primary"\n'
            'min_pool_size = 1\npassword_command = ["/bin/sh", "-c", "exec sleep 1000"]\n')
    with standby(env) as second:
        with env.pooler_with(append=slow, servers=[second.address], target_session_attrs="standby", **PROBED,
                             **{**SETTINGS, "server_connect_timeout": "15s"}) as target:
            equal(role(env.connect(target, user="app_trust")), "standby")
            until(lambda: any(row["database"] == "slow" for row in target.pooler.show("pools")), "its pool is there")
            time.sleep(2)  # its connection is being opened, and looks that it holds up would be late by now
            mark = len(target.pooler.text())
            second.promote()
            until(lambda: "the server is left" in target.pooler.text()[mark:], "the promoted standby is left", seconds=8)


@pooler_only
def test_databases_that_open_in_turns_use_all_servers_each(env):
    """With one count for all, each of two databases had one server to itself."""
    both = [env.cluster.address, f"127.0.0.1:{env.cluster.port}"]
    entry = '\n[[database]]\nname = "{}"\nservers = ["{}", "{}"]\ndbname = "app"\nload_balance_hosts = "round-robin"\n'
    with env.pooler_with(append="".join(entry.format(name, *both) for name in "pq"), pool_size=8, function_census=False) as target:
        for _ in range(6):
            for name in "pq":
                env.connect(target, user="app_trust", database=name).execute("begin")
        for name in "pq":
            places = [row["addr"] for row in target.pooler.show("servers") if row["database"] == name]
            equal(sorted(places.count(place) for place in set(places)), [3, 3], f"server connections of {name}")


@pooler_only
@limit(60)
def test_a_server_that_has_no_more_connections_for_a_role_is_not_down(env):
    """The alert for a server that is down fired at full load, also when probes were refused; with two servers no message said why."""
    with env.cluster.superuser("postgres") as owner:
        owner.execute("alter role app2 connection limit 2")
    try:
        # (Nothing listens at port 1.)
        for more, settings in (([], {}), (["127.0.0.1:1"], {}), ([], {"target_session_attrs": "primary", **PROBED})):
            servers = [env.cluster.address, *more]
            with env.pooler_with(servers=servers, pool_size=6, query_wait_timeout="2s", **settings) as target:
                clients = [env.connect(target, user="app2") for _ in range(3)]
                for client in clients:
                    client.send(m.query("select pg_sleep(0.3)"))
                equal([client.collect().sqlstate for client in clients], [None] * 3, "fewer connections serve all")
                error = next(filter(None, (error for client in clients for error in client.attempt("begin; select 1").errors)))
                assert "too many connections for role" in str(error), error
                if settings:
                    until(lambda: "the server refuses each login of its pools" in target.pooler.log.read_text(), "a refused probe")
                metrics = target.pooler.http("/metrics")[1]
                place = f"{env.cluster.socket_dir}/.s.PGSQL.{env.cluster.port}"
                assert f'hawser_server_up{{database="*",server="{place}"}} 1' in metrics, metrics
    finally:
        with env.cluster.superuser("postgres") as owner:
            owner.execute("alter role app2 connection limit -1")
