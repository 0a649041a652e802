"""Many clients, and what looks at all of them: others wait for none of it, and the process holds no more than a page."""

import multiprocessing
import pathlib
import re
import resource
import socket
import time

from harness import messages as m
from harness.suite import Background, Skip, equal, limit, pooler_only, until
from harness.wire import Connection

SAME_FOR_ALL_SERVERS = True
ALONE = "processes"
TAKES_SECONDS = 90

CLIENTS = 15_000
BATCH = 200
PROBE_EVERY_SECONDS = 0.01
MB = 1 << 20
IP_BIND_ADDRESS_NO_PORT = 24  # linux/in.h


class Crowd:
    """Idle clients, from so many addresses that there are ports for them."""

    PORTS = 10_000  # of an address

    def __init__(self, target, count=CLIENTS):
        if resource.getrlimit(resource.RLIMIT_NOFILE)[0] < count + 1000:
            raise Skip(f"a process may not open {count + 1000} descriptors here (ulimit -n)")
        self.all = []
        packet = m.startup({"user": "app_trust", "database": "app"})
        while len(self.all) < count:
            batch = [self._open(target, number) for number in range(len(self.all), min(count, len(self.all) + BATCH))]
            for one in batch:
                one.send(packet)
            self.all += [one.login() for one in batch]

    def _open(self, target, number):
        sock = socket.socket()
        sock.setsockopt(socket.IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, 1)  # ports of other pairs of addresses count as free
        # Not of the addresses that other tests bind ports of: these take all there are.
        sock.bind((f"127.0.1.{1 + number // self.PORTS}", 0))
        sock.connect((target.host, target.port))
        return Connection(sock)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for one in self.all:
            one.sock.close()


def probe(target, stop, told):
    """How long a loop takes for an answer of its own, again and again."""
    waits = []
    with target.connect("app_trust") as client:
        while not stop.is_set():
            began = time.monotonic()
            client.exchange(m.SYNC)
            waits.append((time.monotonic() - began) * 1000)
            time.sleep(PROBE_EVERY_SECONDS)
    told.put(sorted(waits))


class Probe:
    """A process of its own that asks every 10 ms; then `p99` and `worst`, in milliseconds."""

    def __init__(self, target):
        self.stop, self.told = multiprocessing.Event(), multiprocessing.Queue()
        self.process = multiprocessing.Process(target=probe, args=(target, self.stop, self.told), daemon=True)

    def __enter__(self):
        self.process.start()
        time.sleep(0.3)  # it has logged in, and measures
        return self

    def __exit__(self, *_):
        self.stop.set()
        waits = self.told.get(timeout=30)
        self.process.join()
        self.worst, self.p99 = waits[-1], waits[len(waits) * 99 // 100]


def peak_bytes(pooler):
    status = pathlib.Path(f"/proc/{pooler.process.pid}/status").read_text()
    return int(re.search(r"VmHWM:\s+(\d+)", status).group(1)) * 1024


def count_rows(console, sql):
    """Rows, without keeping them."""
    console.send(m.query(sql))
    rows = 0
    while (message := console.receive()).kind != "Z":
        assert message.kind != "E", message.fields()
        rows += message.kind == "D"
    return rows


def crowded(env, **settings):
    return env.pooler_with(loops=1, max_client_conn=CLIENTS + 100, **settings)


@pooler_only
@limit(150)
def test_show_of_many_clients_holds_up_no_other_and_is_not_kept_in_memory(env):
    with crowded(env) as target, Crowd(target), target.pooler.admin() as console:
        with target.connect("app_trust") as client:
            client.execute("begin")
            before = peak_bytes(target.pooler)
            for topic, least in (("CLIENTS", CLIENTS), ("SOCKETS", CLIENTS), ("SERVERS", 1), ("PINS", 0)):
                with Probe(target) as probe:
                    end = time.monotonic() + 3
                    while time.monotonic() < end:
                        assert count_rows(console, f"SHOW {topic}") >= least, topic
                # In one piece it took 33 ms for CLIENTS, and 65 ms for SERVERS again and again, of an optimized program.
                assert probe.p99 < 25, f"SHOW {topic}: {probe.p99:.0f} ms, at worst {probe.worst:.0f} ms"
            grown = peak_bytes(target.pooler) - before
            assert grown < 5 * MB, f"{grown / MB:.0f} MB for pages"


@pooler_only
@limit(150)
def test_a_console_that_reads_nothing_holds_up_neither_clients_nor_another_console_nor_memory(env):
    with crowded(env) as target, Crowd(target):
        dead = []
        for _ in range(8):
            console = target.pooler.admin()
            console.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            dead.append(console)
        before = peak_bytes(target.pooler)
        for console in dead:
            console.send(*[m.query("SHOW SOCKETS")] * 20)
        time.sleep(0.5)  # their answers fill the sockets, and are read by none
        with Probe(target) as probe:
            with target.pooler.admin() as console:
                assert count_rows(console, "SHOW CLIENTS") >= CLIENTS
            time.sleep(1)  # the probe measures meanwhile
        assert probe.p99 < 25, f"{probe.p99:.0f} ms, at worst {probe.worst:.0f} ms"
        grown = peak_bytes(target.pooler) - before
        assert grown < 8 * MB, f"{grown / MB:.0f} MB for 8 consoles"
        for console in dead:
            console.sock.close()


@pooler_only
@limit(150)
def test_many_clients_that_are_killed_leave_without_holding_up_others(env):
    with crowded(env, log_disconnections=False) as target, Crowd(target) as crowd:
        with target.pooler.admin() as console, Probe(target_of_other_database(target)) as probe:
            console.execute("KILL app")
            until(lambda: len(target.pooler.show("CLIENTS")) <= 2, "all of the database are gone")
        equal({one.receive().sqlstate() for one in crowd.all}, {"57P01"})
        assert probe.p99 < 40, f"{probe.p99:.0f} ms, at worst {probe.worst:.0f} ms"


class target_of_other_database:
    """The same pooler for clients of the other database."""

    def __init__(self, target):
        self.target = target

    def connect(self, user):
        return self.target.connect(user, "other")


@pooler_only
@limit(120)
def test_a_client_with_ever_new_statements_takes_its_share_of_memory_and_holds_up_no_other(env):
    with env.pooler_with(loops=1, prepared_statements_memory="64MiB") as target:
        with target.connect("app_trust") as client:
            client.execute("select 1")
        before = target.pooler.rss_bytes()
        with Probe(target) as probe, target.connect("app_trust") as client:
            count, padding = 20_000, "x" * 3_000
            texts = lambda first: b"".join(m.parse(f"select {n} -- {padding}", f"s{n}") for n in range(first, first + 100))
            writer = Background(lambda: [client.sock.sendall(texts(first) + m.SYNC) for first in range(0, count, 100)])
            result = client.collect(ready=count // 100)
            writer.join(30)
            equal(result.errors, [])
            grown = target.pooler.rss_bytes() - before
            # Each is there: those that are shared, and those beyond its share, for which it keeps its server connection.
            equal([row["reason"] for row in target.pooler.show("PINS")], ["protocol_statement"])
            for number in (0, 1, count // 2, count - 1):
                equal(client.exchange(m.bind(f"s{number}"), m.execute(), m.SYNC).rows, [(str(number),)])
            client.execute("deallocate all")
            equal(client.exchange(m.bind("s1"), m.SYNC).sqlstate, "26000")
        assert grown < 12 * MB, f"{grown / MB:.0f} MB for one client, of 64 MiB for all"
        assert probe.worst < 500, f"{probe.worst:.0f} ms"
