"""How server connections are opened: what `connect_query` leaves, what logins wait for and what they are told."""

import contextlib
import re
import socket
import threading
import time

from harness import messages as m
from harness.suite import Background, equal, limit, pooler_only, until
from harness.wire import ServerError

SAME_FOR_ALL_SERVERS = True
TAKES_SECONDS = 30


class Gate:
    """A TCP forwarder in front of a server. `mode`: "forward", "close" what comes, or "hang"; `hold`: while it is set, the
    server's words wait."""

    def __init__(self, port):
        self.to = port
        self.listener = socket.create_server(("127.0.0.1", 0), backlog=1024)
        self.port = self.listener.getsockname()[1]
        self.mode, self.hold, self.ended = "forward", False, False
        self.accepted, self.socks = 0, []
        threading.Thread(target=self._run, daemon=True).start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.ended, self.hold = True, False
        for sock in [self.listener, *self.socks]:
            sock.close()

    def _run(self):
        while not self.ended:
            try:
                sock, _ = self.listener.accept()
            except OSError:
                return
            self.accepted += 1
            if self.mode == "close":
                sock.close()
                continue
            self.socks.append(sock)
            if self.mode == "hang":
                continue
            server = socket.create_connection(("127.0.0.1", self.to))
            self.socks.append(server)
            for source, sink, waits in ((sock, server, False), (server, sock, True)):
                threading.Thread(target=self._pump, args=(source, sink, waits), daemon=True).start()

    def _pump(self, source, sink, waits):
        try:
            while data := source.recv(65536):
                while waits and self.hold:
                    time.sleep(0.01)
                with contextlib.suppress(BlockingIOError):
                    data += source.recv(65536, socket.MSG_DONTWAIT)  # what came meanwhile, in the same write
                sink.sendall(data)
        except OSError:
            pass
        for sock in (source, sink):
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)


def database(env, query, **more):
    entry = {"connect_query": query, **more}
    lines = "".join(f"{name} = {value if isinstance(value, int) else chr(34) + value + chr(34)}\n" for name, value in entry.items())
    return f'\n[[database]]\nname = "q"\nservers = ["{env.cluster.address}"]\ndbname = "app"\n{lines}'


def refusal(target, **how):
    """What a login is told, and after how many seconds."""
    began = time.monotonic()
    try:
        target.connect(user="app_trust", **how).close()
    except ServerError as error:
        return error.fields, time.monotonic() - began
    raise AssertionError("it is let in")


def outcomes(target):
    """Attempts to log in to servers that were done, and that failed."""
    page = target.pooler.http("/metrics")[1]
    return [int(re.search(rf'hawser_server_logins_total\{{outcome="{outcome}"\}} (\d+)', page)[1]) for outcome in ("done", "failed")]


# What connect_query leaves

@pooler_only
def test_a_connect_query_that_leaves_a_transaction_open_makes_no_server_connection(env):
    """The first client was in a transaction that it had not begun: its INSERT was lost."""
    for query in ("begin; set local work_mem = '5MB'", "begin; select nosuch(); commit"):
        with env.pooler_with(append=database(env, query), pool_size=1) as target:
            told, seconds = refusal(target, database="q")
            equal(told["C"], "08006")
            for word in ("connect_query", '"q"', str(env.cluster.port), "transaction"):
                assert word in told["M"], told
            assert seconds < 5, f"waiting does not mend it: {seconds:.1f} s"
            assert "nosuch" not in query or "nosuch" in told["M"], told


@pooler_only
def test_what_connect_query_sets_is_what_sessions_begin_with(env):
    """Clients were told the server's own value, had the other one, and got the server's after another client."""
    query = "set timezone = 'Asia/Tokyo'; set datestyle = 'German'"
    with env.pooler_with(append=database(env, query), pool_size=1) as target:
        first = env.connect(target, database="q")
        equal((first.parameters["TimeZone"], first.parameters["DateStyle"]), ("Asia/Tokyo", "German, DMY"))
        equal(first.value("show timezone"), "Asia/Tokyo")
        second = env.connect(target, database="q", TimeZone="Europe/Paris")
        equal(second.value("show timezone"), "Europe/Paris")
        equal(first.value("show timezone"), "Asia/Tokyo")
        second.execute("set timezone = 'Africa/Cairo'")
        equal(first.value("show timezone"), "Asia/Tokyo")


@pooler_only
def test_a_connect_query_that_ends_its_session_is_a_failed_login(env):
    """The dead connection went into the pool."""
    query = "select pg_terminate_backend(pg_backend_pid())"
    with env.pooler_with(append=database(env, query), pool_size=1, query_wait_timeout="1s", function_census=False) as target:
        told, _ = refusal(target, database="q")
        equal(told["C"], "08006")
        for word in ("connect_query", '"q"', str(env.cluster.port)):
            assert word in told["M"], told
        failed = outcomes(target)[1]
        assert failed >= 1, failed
        assert all("connect_query" in pool["last_error"] for pool in target.pooler.show("POOLS") if pool["database"] == "q")


@pooler_only
def test_a_connect_query_that_copies_leaves_no_answer_for_a_client(env):
    """Each client got the answer to the query before, another client's too: the Sync after the CopyFail had an answer of its own."""
    with env.connect() as maker:
        maker.execute("drop table if exists copied_at_connect; create table copied_at_connect (a int)")
        maker.execute("grant all on copied_at_connect to app_trust")
    with env.pooler_with(append=database(env, "copy copied_at_connect from stdin"), pool_size=1) as target:
        for number in range(4):
            with env.connect(target, database="q", user="app_trust") as client:
                for query in range(3):
                    equal(client.value(f"select '{number}.{query}'"), f"{number}.{query}")
        assert "connect_query failed" in target.pooler.text()


@pooler_only
def test_a_server_connection_that_is_ended_as_soon_as_it_is_open_is_told_with_the_servers_words(env):
    """`the server broke the protocol: messages after ReadyForQuery`, where a superuser or a shutdown had ended it."""
    admin = env.server()
    with Gate(env.cluster.port) as gate, env.pooler_with(servers=[f"127.0.0.1:{gate.port}"], server_tls_sslmode="disable",
                                                         function_census=False, pool_size=2) as target:
        busy = env.connect(target, user="app_trust")
        busy.execute("begin")
        waits = env.connect(target, user="app_trust")
        begun = "from pg_stat_activity where usename = 'app_trust' and state = 'idle' and application_name <> 'hawser'"
        gate.hold = True
        waits.send(m.query("select 'served'"))
        until(lambda: admin.value(f"select count(*) {begun}") == "1", "the server has let it in")
        admin.execute(f"select pg_terminate_backend(pid, 5000) {begun}")
        time.sleep(0.2)  # its last word has come to the gate
        gate.hold = False
        equal(waits.collect().rows, [("served",)])
        said = [line for line in target.pooler.text().splitlines() if "no server connection can be opened" in line]
        assert len(said) == 1 and "terminating connection due to administrator command (57P01)" in said[0], said


@pooler_only
@limit(90)
def test_a_connect_query_that_takes_too_long_leaves_no_process_that_no_limit_counts(env):
    keeper = env.server()
    keeper.execute("create table if not exists locked (n int); grant all on locked to public")
    waiting = "select count(*) from pg_stat_activity where query like '%from locked%' and wait_event_type = 'Lock'"
    append = database(env, "select * from locked", max_db_connections=2)
    with env.pooler_with(append=append, pool_size=2, server_connect_timeout="500ms", query_wait_timeout="30s",
                         client_login_timeout="20s") as target:
        keeper.execute("begin; lock locked")
        try:
            told, _ = refusal(target, database="q")
            for word in ("connect_query", '"q"', str(env.cluster.port), "server_connect_timeout"):
                assert word in told["M"], told
            for _ in range(8):
                assert refusal(target, database="q")[0]["C"] == "08006"
                assert int(env.server().value(waiting)) <= 2
            until(lambda: env.server().value(waiting) == "0", "the last one is cancelled", 10)
        finally:
            keeper.execute("rollback")
        equal(env.connect(target, user="app_trust", database="q").value("select 1"), "1")


# What servers say at connect

@pooler_only
def test_an_opening_of_before_a_reconnect_does_not_bring_the_old_values_back(env):
    admin = env.server()
    with Gate(env.cluster.port) as gate, env.pooler_with(servers=[f"127.0.0.1:{gate.port}"], server_tls_sslmode="disable",
                                                         pool_size=2) as target:
        try:
            busy = env.connect(target, user="app_trust")
            busy.execute("begin")
            waits = env.connect(target, user="app_trust")
            gate.hold = True
            waits.send(m.query("select 1"))
            time.sleep(0.5)  # the opening is under way
            waits.vanish()  # nobody waits for the opening any more: none of the new epoch follows it
            time.sleep(0.2)  # its end has been seen
            admin.execute("alter system set timezone = 'Asia/Tokyo'")
            admin.execute("select pg_reload_conf()")
            until(lambda: env.server().value("show timezone") == "Asia/Tokyo", "the server has read it")
            with target.pooler.admin() as console:
                console.execute("RECONNECT")
            gate.hold = False
            time.sleep(0.5)  # the opening of before has ended
            late = env.connect(target, user="app_trust")
            equal((late.parameters["TimeZone"], late.value("show timezone")), ("Asia/Tokyo", "Asia/Tokyo"))
        finally:
            gate.hold = False
            admin.execute("alter system reset timezone")
            admin.execute("select pg_reload_conf()")


@pooler_only
@limit(90)
def test_logins_after_a_reconnect_try_a_server_that_refuses_as_one(env):
    """While a server connection of before was busy, each of them dialled ten times a second."""
    for size in (1, 5):
        with Gate(env.cluster.port) as gate, env.pooler_with(
                servers=[f"127.0.0.1:{gate.port}"], server_tls_sslmode="disable", function_census=False, pool_size=size,
                idle_transaction_reserve=0, client_login_timeout="30s", query_wait_timeout="30s", max_client_conn=500) as target:
            busy = env.connect(target, user="app_trust")
            busy.execute("begin; select 1")
            with target.pooler.admin() as console:
                console.execute("RECONNECT")
            gate.mode, gate.accepted = "close", 0
            logins = [Background(lambda: target.connect(user="app_trust", timeout=30).close()) for _ in range(50)]
            time.sleep(4)  # the pause between attempts grows meanwhile
            accepted, failed = gate.accepted, outcomes(target)[1]
            gate.mode = "forward"
            for login in logins:
                login.join(30)
            # A few for each doubling of the pause, then one in 0.4 s; lines that ask about start values beside them.
            assert accepted < 80, f"{accepted} connects with pool_size {size}"
            assert failed > 3, f"{failed} counted of {accepted} connects"


# What logins wait for

@pooler_only
@limit(60)
def test_a_login_is_not_refused_for_an_attempt_that_began_before_it(env):
    with Gate(env.cluster.port) as gate, env.pooler_with(
            servers=[f"127.0.0.1:{gate.port}"], function_census=False, server_tls_sslmode="disable", server_connect_timeout="3s",
            query_wait_timeout="30s") as target:
        gate.mode = "hang"
        early = Background(refusal, target)
        time.sleep(2.5)  # the attempt is almost out of time
        gate.mode = "forward"
        env.connect(target, user="app_trust").close()
        told, seconds = early.join()
        equal(told["C"], "08006")
        assert 2.5 < seconds < 6, seconds


@pooler_only
@limit(60)
def test_clients_that_leave_while_they_wait_for_a_server_give_their_places_back(env):
    """They held descriptors and places, and kept clients of other databases out, until their timeout."""
    good = f'\n[[database]]\nname = "good"\nservers = ["{env.cluster.address}"]\ndbname = "app"\n'
    with env.pooler_with(start=False, servers=["127.0.0.1:1"], max_client_conn=30, append=good,
                         client_login_timeout="50s", query_wait_timeout="50s") as target:
        pooler = target.pooler
        pooler.start()
        clients = [target.open() for _ in range(30)]
        for client in clients:
            client.send(m.startup({"user": "app_trust", "database": "app"}))

        def waiting():
            return sum(int(pool["cl_waiting"]) for pool in pooler.show("POOLS") if pool["database"] == "app")
        until(lambda: waiting() == 30, "all of them wait")
        for client in clients:
            client.sock.close()
        until(lambda: waiting() == 0, "they are gone", 5)
        equal(env.connect(target, user="app_trust", database="good").value("select 1"), "1")


@pooler_only
@limit(60)
def test_logins_that_wait_for_the_census_count_as_waiting(env):
    with Gate(env.cluster.port) as gate, env.pooler_with(
            servers=[f"127.0.0.1:{gate.port}"], server_tls_sslmode="disable", query_wait_timeout="30s") as target:
        gate.mode = "hang"
        clients = [env.raw(target) for _ in range(10)]
        for client in clients:
            client.send(m.startup({"user": "app_trust", "database": "app"}))
        began = time.monotonic()

        def figures():
            return [(pool["cl_active"], pool["cl_waiting"]) for pool in target.pooler.show("POOLS") if pool["database"] == "app"]
        until(lambda: figures() == [("0", "10")], "all of them wait", 3)
        assert time.monotonic() - began < 4, "before the census is given up"


@pooler_only
@limit(60)
def test_a_login_is_told_what_it_has_waited_for_in_vain(env):
    """client_login_timeout came first, and said nothing but that it did."""
    with env.pooler_with(start=False, servers=["127.0.0.1:1"], client_login_timeout="2s", query_wait_timeout="20s") as target:
        target.pooler.start()
        told, seconds = refusal(target)
        equal(told["C"], "08006")
        assert "127.0.0.1:1" in told["M"] and seconds < 6, (told, seconds)
        assert "127.0.0.1:1" in next(line for line in target.pooler.text().splitlines() if "login refused" in line)
    with env.pooler_with(client_login_timeout="2s", query_wait_timeout="20s") as target, target.pooler.admin() as console:
        console.execute("PAUSE app")
        told, _ = refusal(target)
        equal((told["C"], told["M"]), ("57P03", 'database "app" is paused'))
        console.execute("RESUME app")
        equal(env.connect(target, user="app_trust").value("select 1"), "1")
