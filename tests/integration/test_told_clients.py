"""Pools of one user whose server is told of each client: the server sees address, TLS and process id of the client.

The extension is built from extension/ and preloaded by its path, as in test_shared_users.
"""

import contextlib
import json
import socket
import subprocess
import threading

from harness import messages as m
from harness import pooler as poolers
from harness.extension import secret_file
from harness.suite import equal, limit, pooler_only, until
from harness.wire import Connection, ServerError
from integration.test_mptcp import IPPROTO_MPTCP, needs_mptcp
from integration.test_shared_users import HBA, SECRET, WHO, connect, refused, server, told_nothing

SAME_FOR_ALL_SERVERS = True
TAKES_SECONDS = 40

SETTINGS = {}
ADDRESS = "select inet_client_addr(), inet_client_port()"
SEEN = "select client_addr, client_port from pg_stat_activity where pid = pg_backend_pid()"
TLS = "select ssl, version is not null from pg_stat_ssl where pid = pg_backend_pid()"


@contextlib.contextmanager
def telling(env, secret=SECRET, with_functions=True, **settings):
    """A pooler that tells the server of its clients."""
    with server(env, with_functions=with_functions):
        with told_pooler(env, secret, **settings) as target:
            yield target


@contextlib.contextmanager
def told_pooler(env, secret=SECRET, **settings):
    file = secret_file(env.directory, "pooler.secret", secret)
    # The pools are by user: [[database]] has none.
    with env.pooler_with(hba=HBA, hand_over_secret_file=str(file), hand_over="addresses", **settings) as target:
        yield target


def own_address(client):
    return [("127.0.0.1", str(client.sock.getsockname()[1]))]


@pooler_only
@limit(120)
def test_the_server_sees_the_client_and_not_the_pooler(env):
    with telling(env, pool_size=1) as target:
        one, two = connect(env, target, "ann"), connect(env, target, "ann")
        for client in (one, two, two, one):
            equal(client.rows(ADDRESS), own_address(client))
            equal(client.rows(SEEN), own_address(client))
            equal(client.extended(ADDRESS, name="").rows, own_address(client))
        with env.cluster.superuser("shared") as owner:
            one.execute("begin")
            equal(owner.rows(f"select usename, backend <> 0 from hawser.hawser_sessions where pid = {one.pid}"), [("ann", "t")])
            one.execute("commit")
        one.attempt("do $$ begin raise warning 'who is it'; end $$")
        line = next(line for line in reversed(env.cluster.log.read_text().splitlines()) if "who is it" in line)
        assert line.startswith("<127.0.0.1 ann>"), line


@pooler_only
@limit(120)
def test_many_clients_are_each_told_of(env):
    with telling(env, pool_size=3) as target:
        clients = [connect(env, target, user) for user in ("ann", "bob") for _ in range(8)]
        wrong = []

        def work(client):
            for turn in range(40):
                got = client.extended(ADDRESS, name=("" if turn % 3 else f"s{turn}")).rows if turn % 2 else client.rows(ADDRESS)
                if got != own_address(client):
                    wrong.append((own_address(client), got))

        threads = [threading.Thread(target=work, args=[client]) for client in clients]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        equal(wrong, [])


@pooler_only
@limit(120)
def test_sessions_are_what_they_are_without(env):
    with telling(env, pool_size=1) as target:
        one, two = connect(env, target, "ann", options="-c statement_timeout=92s"), connect(env, target, "ann")
        one.execute("set role sub")
        two.execute("set work_mem = '9MB'")
        two.execute("prepare p as select current_setting('work_mem')")
        for _ in range(3):
            equal(one.rows(WHO), [("ann", "sub", "ann")])
            equal(two.rows(WHO), [("ann", "ann", "ann")])
            equal(one.value("select current_setting('statement_timeout')"), "92s")
            equal(two.value("execute p"), "9MB")
            equal(one.value("select current_setting('work_mem')"), "7MB")
        one.execute("reset role")
        equal(one.rows(WHO), [("ann", "ann", "ann")])
        # Within a pipeline, and in a block that fails.
        result = two.exchange(m.run("select inet_client_port()", ()), m.run("select 1/0", ()), m.SYNC)
        equal((result.rows, result.sqlstate), ([(own_address(two)[0][1],)], "22012"))
        two.execute("begin")
        assert two.attempt("select 1/0").errors
        two.execute("rollback")
        equal(one.rows(ADDRESS), own_address(one))
        equal(two.rows(ADDRESS), own_address(two))


@pooler_only
@limit(120)
def test_superusers_and_any_role_can_be_told_of(env):
    with telling(env, pool_size=1) as target:
        for _ in range(2):
            clients = [connect(env, target, "postgres") for _ in range(2)]
            for client in clients:
                equal(client.rows(ADDRESS), own_address(client))
                equal(client.rows(WHO), [("postgres", "postgres", "postgres")])


@pooler_only
@limit(120)
def test_tls_of_the_client_is_seen(env):
    with telling(env, pool_size=1) as target:
        plain = connect(env, target, "ann")
        private = connect(env, target, "ann", tls=env.tls(), hostname="localhost")
        for _ in range(2):
            equal(plain.rows(TLS), [("f", "f")])
            equal(private.rows(TLS), [("t", "t")])
            equal(private.rows(ADDRESS), own_address(private))


@pooler_only
@limit(120)
def test_session_mode_is_told_of_as_well(env):
    with telling(env, pool_size=1, pool_mode="session") as target:
        for user in ("ann", "ann", "bob"):
            with target.connect(user, "shared") as client:
                equal(client.rows(ADDRESS), own_address(client))


@pooler_only
@limit(120)
def test_replication_goes_on_without(env):
    with telling(env, pool_size=1) as target:
        with env.cluster.superuser("postgres") as owner:
            owner.execute("alter role ann replication")
        client = connect(env, target, "ann", replication="database")
        equal(client.rows("IDENTIFY_SYSTEM")[0][3], "shared")


@pooler_only
@limit(120)
def test_a_cancel_by_the_id_of_the_client_hits_it(env):
    with telling(env, pool_size=1) as target:
        ann = connect(env, target, "ann")
        ann.send(m.query("select pg_sleep(20)"))
        with env.cluster.superuser("shared") as owner:
            until(lambda: owner.value(f"select count(*) from hawser.hawser_sessions where pid = {ann.pid} and state = 'active'") == "1",
                  "ann is known")
            owner.execute(f"select hawser.cancel_backend({ann.pid})")
        equal(ann.collect().sqlstate, "57014")
        equal(ann.rows(ADDRESS), own_address(ann))


@pooler_only
@limit(120)
def test_where_the_function_goes_the_session_stays_its_users(env):
    with telling(env, pool_size=1) as target:
        one, two = connect(env, target, "ann"), connect(env, target, "ann")
        equal(one.rows(ADDRESS), own_address(one))
        with env.cluster.superuser("shared") as owner:
            owner.execute("drop schema hawser cascade")
        equal(two.rows(WHO), [("ann", "ann", "ann")])
        # That connection is not used again, and there can be no other.
        result = one.attempt(WHO)
        assert result.closed, result
        for message in (result.errors[0]["M"], refused(env, target, "bob", "08006").message):
            told_nothing(target, message, "CREATE EXTENSION hawser")


@pooler_only
@limit(120)
def test_what_is_missing_is_said(env):
    def check(target):
        done = subprocess.run([poolers.binary(), "check", "-c", str(target.pooler.config)], capture_output=True, text=True,
                              cwd=target.pooler.directory)
        return done.stdout

    entry = '\n[[database]]\nname = "shared"\nservers = "{}"\nuser = "ann"\nhand_over_secret_file = "{}"\nhand_over = "addresses"\n'
    with server(env) as cluster:
        good = secret_file(env.directory, "good.secret", SECRET)
        bad = secret_file(env.directory, "bad.secret", SECRET + "?")
        with env.pooler_with(append=entry.format(cluster.address, bad), hba=HBA) as target:
            told_nothing(target, refused(env, target, "bob", "08006").message, "hawser.secret_file")
            assert "the server cannot learn who clients are" in check(target), check(target)
        with env.pooler_with(append=entry.format(cluster.address, good), hba=HBA) as target:
            client = connect(env, target, "bob")
            equal(client.rows(WHO), [("ann", "ann", "ann")])  # `user` is who logs in, whoever the client is
            equal(client.rows(ADDRESS), own_address(client))
            assert 'database "shared": its server learns who each client is' in check(target), check(target)
    with env.pooler_with(append=entry.format(env.cluster.address, good).replace('name = "shared"', 'name = "app"').replace("ann", "app"),
                         hba=HBA) as target:
        try:
            env.connect(target, user="app2")
            raise AssertionError("logged in")
        except ServerError as error:
            told_nothing(target, error.message, "shared_preload_libraries")


@needs_mptcp
@limit(120)
def test_a_client_over_mptcp_of_a_pooler_elsewhere_is_in_pg_stat_mptcp(env):
    # Its control socket is where the server does not ask: the server knows what it is told, as of a pooler on another host.
    with telling(env, pool_size=2, mptcp=True) as target:
        connected = socket.socket(socket.AF_INET, socket.SOCK_STREAM, IPPROTO_MPTCP)
        connected.connect(("127.0.0.1", target.port))
        with contextlib.closing(connected), connect(env, target, "ann") as plain:
            client = Connection(connected)
            client.send(m.startup({"user": "ann", "database": "shared"}))
            client.login()
            for one in (client, plain):
                one.execute("begin")
            status = json.loads(subprocess.run([poolers.binary(), "mptcp", "status", "--json"], capture_output=True, text=True, timeout=20,
                                               check=True).stdout)
            own = connected.getsockname()[1]
            [token] = [one["token"] for one in status["connections"] if one["remote"] == f"127.0.0.1:{own}" and not one["dialled"]]
            columns = "mptcp, fallback, subflows, local_token, remote_token, bytes_sent, pooler is not null"
            with env.cluster.superuser("shared") as owner:
                seen = {one.pid: owner.rows(f"select {columns} from hawser.pg_stat_mptcp where pid = {one.pid}") for one in (client, plain)}
            equal(seen[client.pid], [("t", "f", "1", str(int(token, 16)), None, None, "t")])
            equal(seen[plain.pid], [("f", None, None, None, None, None, "t")])
            for one in (client, plain):
                one.execute("commit")
