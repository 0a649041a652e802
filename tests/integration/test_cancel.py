"""Cancel requests: they end the query that the client is running, and nothing else."""

import contextlib
import random
import socket
import struct
import time

from harness import messages as m
from harness.pooler import free_port
from harness.silent import SilentServer
from harness.suite import Background, crowd, equal, limit, pooler_only, until
from harness.way import Way


def running(env, marker, count=1):
    return env.cluster.wait_for_backends(f"state = 'active' and query like '%{marker}%' and query not like '%pg_stat_activity%'", count)


def cancelled(env, client, by, marker):
    """A query that `marker` names is cancelled by a request to `by`."""
    client.send(m.query(f"select pg_sleep(20) /* {marker} */"))
    running(env, marker)
    begun = time.monotonic()
    client.cancel(by)
    result = client.collect()
    equal((result.sqlstate, result.status), ("57014", "I"), marker)
    assert time.monotonic() - begun < 5, marker


def test_cancel_ends_the_running_query(env):
    client = env.connect()
    cancelled(env, client, env.target, "cancel me")
    equal(client.value("select 1"), "1")


def test_a_client_that_asks_for_a_cancel_and_leaves_leaves_nothing_running(env):
    """As pgx does when a context ends, whose own test looks for the query among those of idle server connections, too."""
    client = env.connect()
    client.send(m.query("select pg_sleep(20) /* left behind */"))
    running(env, "left behind")
    client.cancel(env.target)
    client.close()
    running(env, "left behind", 0)


def test_cancel_in_a_transaction_fails_the_transaction(env):
    client = env.connect()
    client.execute("begin")
    client.send(m.run("select pg_sleep(20) /* cancel in tx */"), m.SYNC)
    running(env, "cancel in tx")
    client.cancel(env.target)
    result = client.collect()
    equal((result.sqlstate, result.status), ("57014", "E"))
    client.execute("rollback")


def test_cancel_over_the_unix_socket_and_over_tls(env):
    client = env.connect()
    client.send(m.query("select pg_sleep(20) /* by socket */"))
    running(env, "by socket")
    with env.target.open(env.target.socket_dir) as other:
        other.send(m.cancel_request(client.pid, client.key))
    equal(client.collect().sqlstate, "57014")
    client.send(m.query("select pg_sleep(20) /* by tls */"))
    running(env, "by tls")
    with env.target.open() as other:
        other.start_tls(env.tls(), "localhost")
        other.send(m.cancel_request(client.pid, client.key))
        other.is_closed()
    equal(client.collect().sqlstate, "57014")


def test_cancel_of_an_idle_client_changes_nothing(env):
    client, others = env.connect(), [env.connect() for _ in range(4)]
    client.value("select 1")
    for other in others:
        other.send(m.query("select pg_sleep(0.5) /* bystander */"))
    running(env, "bystander", 4)
    for _ in range(10):
        client.cancel(env.target)
    for other in others:
        equal(other.collect().sqlstate, None, "a neighbour's query was cancelled")
    equal(client.value("select 1"), "1")


def test_cancel_of_an_idle_client_in_a_transaction(env):
    client = env.connect()
    client.execute("begin; select 1")
    client.cancel(env.target)
    time.sleep(0.1)  # it has come, and finds nothing to cancel
    equal(client.execute("select 2").status, "T")
    client.execute("commit")


def test_trap_16_a_cancel_never_hits_the_next_clients_query(env):
    """trap 16: the cancel of a query that has just ended arrives when the backend works for somebody else."""
    with env.pooler_with(pool_size=1) as target:
        canceller, victim = env.connect(target), env.connect(target)
        stop = []

        def work():
            while not stop:
                result = victim.attempt("select pg_sleep(0.003)")
                assert not result.errors, f"a foreign cancel ended this query: {result.errors}"
        background = Background(work)
        for _ in range(150):
            canceller.send(m.query("select 1"))
            with target.open() as other:
                other.send(m.cancel_request(canceller.pid, canceller.key))
            result = canceller.collect()
            assert result.sqlstate in (None, "57014"), result.errors
        stop.append(True)
        background.join()


def test_trap_16_a_cancel_never_hits_what_the_pooler_itself_sends(env):
    """trap 16: the settings applied ahead of a query must hold even when a cancel falls between them and the query."""
    with env.pooler_with(pool_size=1) as target:
        first = env.connect(target, timezone="Asia/Tokyo", application_name="first")
        second = env.connect(target, timezone="UTC", application_name="second")
        for _ in range(100):
            first.send(m.query("select current_setting('timezone'), current_setting('application_name')"))
            with target.open() as other:
                other.send(m.cancel_request(first.pid, first.key))
            result = first.collect()
            assert result.sqlstate == "57014" or result.rows == [("Asia/Tokyo", "first")], (result.rows, result.errors)
            equal(second.rows("select current_setting('timezone'), current_setting('application_name')"), [("UTC", "second")])


def test_trap_25_stray_cancels_end_nothing(env):
    """trap 25: random and guessed keys, also with a live process id."""
    victims = [env.connect() for _ in range(4)]
    for victim in victims:
        victim.send(m.query("select pg_sleep(1.5) /* guessed */"))
    running(env, "guessed", 4)
    chance = random.Random(1)
    for n in range(300):
        pid = victims[n % 4].pid if n % 2 else chance.randrange(1, 1 << 31)
        key = victims[(n + 1) % 4].key if n % 3 == 0 else chance.randbytes(4)
        with env.target.open() as other:
            other.send(m.cancel_request(pid, key))
    for victim in victims:
        equal(victim.collect().sqlstate, None, "ended by a stray cancel")


def test_malformed_cancels_are_dropped(env):
    victim = env.connect()
    victim.send(m.query("select pg_sleep(0.7) /* malformed cancel */"))
    running(env, "malformed cancel")
    code = struct.pack("!i", m.CANCEL_CODE)
    for body in (code, code + struct.pack("!i", victim.pid), code + struct.pack("!i", victim.pid) + victim.key[:3],
                 code + struct.pack("!i", victim.pid) + victim.key + b"\0" * 300):
        with env.target.open() as other:
            other.send(m.packet(body))
            assert other.is_closed(), "kept open"
    equal(victim.collect().sqlstate, None)


@pooler_only
def test_a_cancel_ends_the_wait_of_a_waiting_client(env):
    with env.pooler_with(pool_size=1) as target:
        holder, waiting = env.connect(target), env.connect(target)
        holder.send(m.query("select pg_sleep(60)"))
        env.cluster.wait_for_backends("state = 'active' and query = 'select pg_sleep(60)'", 1)
        waiting.send(m.query("select 'waited'"))
        until(lambda: any(row["cl_waiting"] == "1" for row in target.pooler.show("pools")), "it waits")
        started = time.monotonic()
        waiting.cancel(target)
        result = waiting.collect()
        equal(result.sqlstate, "57014")
        assert time.monotonic() - started < 2, "waited for the backend all the same"
        assert not holder.pending(0.2), "the holder's query was hit"
        holder.cancel(target)
        equal(holder.collect().sqlstate, "57014")
        if not result.closed:
            equal(waiting.value("select 1"), "1")


@pooler_only
def test_process_ids_and_keys_are_each_clients_own(env):
    clients = [env.connect() for _ in range(50)]
    equal(len({client.pid for client in clients}), 50, "different process ids")
    equal(len({client.key for client in clients}), 50, "different keys")


@pooler_only
def test_transaction_modes_process_ids_are_above_every_real_one(env):
    with open("/proc/sys/kernel/pid_max") as limit_file:
        highest = int(limit_file.read())
    assert env.connect().pid > highest


@limit(60)
def test_trap_16_a_flood_of_cancels_delays_nobody(env):
    """trap 16: 400 cancels of one query at once end that one, and no other."""
    clients = [env.connect() for _ in range(5)]
    for client in clients:
        client.send(m.query("select pg_sleep(3) /* flood */"))
    running(env, "flood", 5)
    target = clients[0]
    socks = []
    for _ in range(400):
        sock = socket.create_connection((env.target.host, env.target.port))
        sock.sendall(m.cancel_request(target.pid, target.key))
        socks.append(sock)
    equal(clients[0].collect().sqlstate, "57014")
    for client in clients[1:]:
        equal(client.collect().sqlstate, None)
    for sock in socks:
        sock.close()
    until(lambda: clients[0].value("select 1") == "1", "served")


@pooler_only
@limit(60)
def test_trap_16_cancels_in_flight_to_a_server_are_capped(env):
    """trap 16: 300 queries cancelled at once cost the server 256 more connections at a time, and each is cancelled in the end."""
    count, most = 300, 256
    with SilentServer() as server, env.pooler_with(servers=[f"127.0.0.1:{server.port}"], pool_size=count,
                                                   server_tls_sslmode="disable") as target:
        clients = [target.connect(user="app_trust") for _ in range(count)]
        for client in clients:
            client.send(m.query("select 1"))
        until(lambda: server.queries == count, "all have their server connection", 20)
        socks = []
        for client in clients:
            sock = socket.create_connection((target.host, target.port))
            sock.sendall(m.cancel_request(client.pid, client.key))
            socks.append(sock)
        until(lambda: len(server.held) >= most, "as many as may be", 20)
        time.sleep(0.5)  # no more are sent
        equal(server.most, most)
        server.let_go()
        until(lambda: server.cancels == count, "the others", 20)
        for sock in socks + [client.sock for client in clients]:
            sock.close()


def test_cancel_after_the_client_has_gone(env):
    client = env.connect()
    pid, key = client.pid, client.key
    client.close()
    other = env.connect()
    other.send(m.query("select pg_sleep(0.4) /* after */"))
    running(env, "after")
    with env.target.open() as stray:
        stray.send(m.cancel_request(pid, key))
        assert stray.is_closed()
    equal(other.collect().sqlstate, None)


def test_cancels_and_queries_of_many_clients(env):
    """Each of 8 clients cancels its own queries all the time; every answer is its own value or its own cancel."""
    def work(number):
        chance = random.Random(number)
        with env.target.connect() as client:
            for turn in range(25):
                client.send(m.query(f"select {number * 1000 + turn} from pg_sleep({chance.random() * 0.02})"))
                if chance.random() < 0.5:
                    client.cancel(env.target)
                result = client.collect()
                assert result.sqlstate == "57014" or result.value == str(number * 1000 + turn), (result.rows, result.errors)
            # A cancel that is still on its way may hit this one; the next cannot.
            time.sleep(0.05)  # that one would have come by then
            client.attempt("select 1")
            equal(client.value("select 'end'"), "end")
    crowd(8, work)


@pooler_only
def test_a_cancel_that_comes_to_another_pooler_is_sent_on(env):
    with contextlib.ExitStack() as stack:
        first, second, third = (stack.enter_context(env.pooler_with(start=False)) for _ in range(3))
        away = first.pooler.http_port  # nothing but its own pages listen there, and those take no such request
        peers = [f"1=127.0.0.1:{first.pooler.port}", f"2={second.pooler.directory}:{second.pooler.port}",
                 f"3=localhost:{third.pooler.port}", f"9=127.0.0.1:{away}"]
        for number, target in enumerate((first, second, third), 1):
            target.pooler.write(peer_id=number, peers=peers, cancel_wait_timeout="2s")
            target.pooler.start()
        for number, target in enumerate((first, second, third)):
            client = env.connect(target)
            for other in (first, second, third):
                cancelled(env, client, other, f"of {number}")
            equal(client.value("select 1"), "1")
        shown = first.pooler.show("PEERS")
        equal([(row["peer_id"], row["host"], row["port"]) for row in shown][::3],
              [("1", "127.0.0.1", str(first.pooler.port)), ("9", "127.0.0.1", str(away))])
        equal({row["sv_active_cancel"] for row in first.pooler.show("PEER_POOLS")}, {"0"})
        # A client of session mode has the server's own process id, of which all are asked.
        third.pooler.write(pool_mode="session")
        third.pooler.reload()
        client = env.connect(third)
        cancelled(env, client, first, "of a session")


@pooler_only
def test_a_peer_that_is_away_is_named_and_a_request_is_sent_on_once(env):
    with contextlib.ExitStack() as stack:
        first, second = (stack.enter_context(env.pooler_with(start=False)) for _ in range(2))
        # The second one has a wrong address for itself: the first one's. A request for it goes there, and no further.
        peers = [f"1=127.0.0.1:{first.pooler.port}", f"2=127.0.0.1:{first.pooler.port}"]
        second.pooler.write(peer_id=2, peers=[f"1=127.0.0.1:{free_port()}"])
        first.pooler.write(peer_id=1, peers=peers)
        for target in (first, second):
            target.pooler.start()
        of_first, of_second = env.connect(first), env.connect(second)
        of_first.cancel(second)
        until(lambda: "did not reach peer 1" in second.pooler.text(), "the peer that is away")
        of_second.cancel(first)
        until(lambda: "check `peers` and `peer_id` in [process]" in first.pooler.text(), "the wrong address")
        for client in (of_first, of_second):
            equal(client.value("select 1"), "1")


@contextlib.contextmanager
def three_nodes(env):
    """Three poolers that are peers of each other, and the way from the first to the third."""
    with contextlib.ExitStack() as stack:
        nodes = [stack.enter_context(env.pooler_with(start=False)) for _ in range(3)]
        link = stack.enter_context(Way(nodes[2].pooler.port))
        for number, target in enumerate(nodes):
            peers = [f"{other + 1}=127.0.0.1:{peer.pooler.port}" for other, peer in enumerate(nodes)]
            if number == 0:
                peers[2] = f"3=127.0.0.1:{link.port}"
            target.pooler.write(peer_id=number + 1, peers=peers, cancel_wait_timeout="2s")
            target.pooler.start()
        yield nodes, link


@pooler_only
@limit(120)
def test_three_nodes_cancel_for_each_other_though_one_is_killed(env):
    with three_nodes(env) as (nodes, _):
        for victim, target in enumerate(nodes):
            left = [node for node in nodes if node is not target]
            lost = env.connect(target)
            equal(lost.value("select 1"), "1")
            target.pooler.kill()
            lost.cancel(left[0])  # for a client that is gone with its pooler
            for one, other in (left, left[::-1]):
                client = env.connect(one)
                cancelled(env, client, other, f"of a survivor of {victim}")
                equal(client.value("select 1"), "1")
            target.pooler.start()
            client = env.connect(target)
            cancelled(env, client, left[0], f"of {victim}, which is back")


@pooler_only
@limit(120)
def test_a_cancel_whose_way_is_cut_does_nothing_and_holds_up_no_other(env):
    with three_nodes(env) as (nodes, link):
        first, second, third = nodes
        client, bystander = env.connect(third), env.connect(second)
        cancelled(env, client, first, "while all is well")
        link.cut()
        client.send(m.query("select pg_sleep(20) /* cut off */"))
        running(env, "cut off")
        for _ in range(3):
            client.cancel(first)
        cancelled(env, bystander, first, "of a bystander")
        until(lambda: "did not reach peer 3" in first.pooler.text(), "the log says that it did not arrive", 15)
        running(env, "cut off")
        client.cancel(second)  # another way
        equal(client.collect().sqlstate, "57014")
        link.drop()
        link.mend()
        time.sleep(0.5)  # what was cut off would come now
        equal(client.value("select 1"), "1", "what was cut off comes to nobody later")
        cancelled(env, client, first, "when all is well again")
