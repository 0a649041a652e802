"""Floods of connections that do not log in: others get in all the same, and it costs little."""

import contextlib
import socket
import time

from harness import messages as m
from harness.suite import equal, pooler_only, until
from harness.wire import Connection

SAME_FOR_ALL_SERVERS = True

ALONE = "processes"

LOGINS_BEYOND = 1000  # crates/hawser/src/limits.rs
CLIENTS = 5


class Flood:
    """Connections of one address that send `data` and nothing more."""

    def __init__(self, target, address="127.0.0.1"):
        self.target, self.address = target, address
        self.all = []

    def add(self, count, data=b""):
        for _ in range(count):
            sock = socket.create_connection(("127.0.0.1", self.target.port), timeout=20, source_address=(self.address, 0))
            if data:
                with contextlib.suppress(OSError):
                    sock.sendall(data)
            self.all.append(Connection(sock))
        return self

    def open(self):
        """Of how many nothing has come."""
        return sum(not connection.pending() for connection in self.all)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for connection in self.all:
            connection.sock.close()


def displaced(target):
    page = target.pooler.http("/metrics")[1]
    return int(float(next(line.split()[1] for line in page.splitlines() if line.startswith("hawser_logins_displaced_total "))))


def settings(**more):
    # The kernel would hold back who says nothing, for about a second.
    return dict(max_client_conn=CLIENTS, tcp_defer_accept=False, **more)


@pooler_only
def test_silent_connections_keep_nobody_out(env):
    with env.pooler_with(**settings()) as target, Flood(target) as flood:
        kept = env.connect(target)
        flood.add(CLIENTS + LOGINS_BEYOND + 20)
        until(lambda: displaced(target) >= 20, "those beyond all places have displaced others")
        equal(flood.all[0].receive().sqlstate(), "53300")
        equal(flood.all[-1].pending(), False, "the newest is told")
        equal(env.connect(target).value("select 1"), "1")
        equal(env.connect(target, host=target.socket_dir).value("select 1"), "1")
        equal(env.connect(target, tls=env.tls(), hostname="localhost").value("select 1"), "1")
        with target.pooler.admin() as console:
            assert console.execute("SHOW VERSION").rows
        equal(kept.value("select 1"), "1")
        text = target.pooler.text()
        equal(text.count("there is no place for one more login"), 1)


@pooler_only
def test_of_silent_connections_the_crowds_own_give_way_first(env):
    with env.pooler_with(**settings()) as target, Flood(target) as few, Flood(target, "127.0.0.2") as many:
        few.add(10)
        many.add(CLIENTS + LOGINS_BEYOND + 50)
        until(lambda: displaced(target) >= 50, "those beyond all places have displaced others")
        equal(few.open(), 10)


@pooler_only
def test_a_login_that_is_under_way_survives_a_flood_of_silent_ones(env):
    with env.pooler_with(**settings()) as target, Flood(target) as flood:
        half = env.raw(target)
        half.send(m.startup({"user": "app", "database": "app"}))
        assert half.pending(5)
        flood.add(CLIENTS + 2 * LOGINS_BEYOND)
        half.login(target.secrets["app"], "app")
        equal(half.value("select 1"), "1")


@pooler_only
def test_those_who_do_not_prove_themselves_keep_no_other_network_out(env):
    with env.pooler_with(**settings()) as target, Flood(target) as flood:
        flood.add(CLIENTS + 5, m.startup({"user": "app", "database": "app"}))
        until(lambda: flood.open() == 0, "each is asked for its proof, or refused")
        equal(env.connect(target, host=target.socket_dir).value("select 1"), "1")
        with target.pooler.admin() as console:
            assert console.execute("SHOW VERSION").rows
        # After a while, not even its own.
        time.sleep(5.2)  # longer than the pause for the network of those who do not prove themselves
        equal(env.connect(target).value("select 1"), "1")


@pooler_only
def test_those_who_stop_in_the_handshake_keep_no_other_network_from_tls(env):
    with env.pooler_with(**settings()) as target, Flood(target) as flood:
        flood.add(CLIENTS + LOGINS_BEYOND + 20, m.SSL_REQUEST)
        with Flood(target, "127.0.0.2") as other:
            connection = other.add(1).all[0]
            connection.start_tls(env.tls(), "localhost")
            connection.send(m.startup({"user": "app", "database": "app"}))
            connection.login(target.secrets["app"], "app")
            equal(connection.value("select 1"), "1")


@pooler_only
def test_a_flood_costs_little(env):
    with env.pooler_with(**settings()) as target, Flood(target) as flood:
        cpu = target.pooler.cpu_seconds()
        flood.add(LOGINS_BEYOND)
        for thousand in range(10):
            if thousand == 3:
                memory = target.pooler.rss_bytes()  # what an allocator keeps, it keeps by now
            flood.add(1000)
            for connection in flood.all[:1000]:
                connection.sock.close()
            del flood.all[:1000]
        spent = target.pooler.cpu_seconds() - cpu
        assert spent < 5, f"11,000 connections took {spent} s of CPU"
        grown = target.pooler.rss_bytes() - memory
        assert grown < 8 << 20, f"{grown} bytes more after 7,000 connections"
        cpu = target.pooler.cpu_seconds()
        time.sleep(1)  # idle
        assert target.pooler.cpu_seconds() - cpu < 0.2, "it spins"
