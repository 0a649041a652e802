"""`hawser link`: TCP services over several paths that break, with peers that do wrong, on loopback and in the laboratory."""

import contextlib
import dataclasses
import hashlib
import json
import os
import pathlib
import re
import signal
import socket
import ssl
import subprocess
import sys
import tempfile
import threading
import time

from harness import messages as m
from harness.suite import Background, Skip, equal, limit, pooler_only, until
from harness.wire import ServerError
from integration.test_lab import by_reno, here, network

SAME_FOR_ALL_SERVERS = True
ALONE = "lines"
TAKES_SECONDS = 100

ABSENT = 69


def hawser():
    return os.environ["HAWSER"]


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def link(*arguments, check=0, seconds=30):
    run = subprocess.run([hawser(), "link", *map(str, arguments)], capture_output=True, text=True, timeout=seconds)
    assert check is None or run.returncode == check, f"exit code {run.returncode}: {run.stderr}{run.stdout}"
    return run


class Keys:
    """A directory with a key for each name."""

    def __init__(self, *names):
        self.directory = tempfile.TemporaryDirectory()
        self.public = {name: link("keygen", self.path(name)).stdout.strip() for name in names}

    def path(self, name):
        return pathlib.Path(self.directory.name, name)


class End:
    """A running `hawser link accept` or `dial`."""

    def __init__(self, *command, inside=()):
        self.directory = tempfile.TemporaryDirectory()
        self.socket = pathlib.Path(self.directory.name, "link.sock")
        self.log = open(pathlib.Path(self.directory.name, "log"), "w+")
        whole = [*inside, hawser(), "link", *map(str, command), "--socket", str(self.socket)]
        self.process = subprocess.Popen(whole, stdout=self.log, stderr=self.log)
        until(lambda: "listens on" in self.text() or self.process.poll() is not None, "it listens")
        assert self.process.poll() is None, self.text()

    def text(self):
        return pathlib.Path(self.log.name).read_text()

    def report(self):
        return json.loads(link("status", "--socket", self.socket, "--json").stdout)

    def session(self):
        return (self.report()["sessions"] or [{"paths": [], "up": False, "streams_open": 0}])[0]

    def up(self):
        return [path for path in self.session()["paths"] if path["stage"] == "up"]

    def kill(self):
        self.process.kill()
        self.process.wait()

    def end(self):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            equal(self.process.wait(10), 0, "exit code")
        assert "panicked" not in self.text(), self.text()


class Relay:
    """Stands between near and far: cuts paths, or swallows what goes by them."""

    def __init__(self, to):
        self.listener = socket.create_server(("127.0.0.1", 0), backlog=64)
        self.port, self.to = self.listener.getsockname()[1], to
        self.pairs, self.swallows, self.closed, self.refuses = [], set(), False, False
        self.pause = 0
        self.keeps, self.seen = True, b""
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        while not self.closed:
            try:
                near = self.listener.accept()[0]
            except OSError:
                return
            if self.refuses:
                near.close()
                continue
            try:
                far = socket.create_connection(("127.0.0.1", self.to))
            except OSError:  # the far end was killed
                near.close()
                continue
            pair = (near, far)
            self.pairs.append(pair)
            for one, other in (pair, pair[::-1]):
                threading.Thread(target=self.carry, args=(pair, one, other), daemon=True).start()

    def carry(self, pair, one, other):
        with contextlib.suppress(OSError):
            while piece := one.recv(1 << 16):
                if self.keeps:
                    self.seen = (self.seen + piece)[-(4 << 20):]
                time.sleep(self.pause)
                if pair not in self.swallows:
                    other.sendall(piece)
        if pair not in self.swallows:
            self.cut(pair)

    def cut(self, pair):
        if pair in self.pairs:
            self.pairs.remove(pair)
        for end in pair:
            with contextlib.suppress(OSError):
                end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
                end.shutdown(socket.SHUT_RDWR)
                end.close()

    def cut_one(self):
        if self.pairs:
            self.cut(self.pairs[0])

    def cut_all(self):
        for pair in list(self.pairs):
            self.cut(pair)

    def close(self):
        self.closed = True
        self.listener.close()
        self.cut_all()


@contextlib.contextmanager
def linked(target_port, *options, paths=3, grace="20s", allow=None, keys=None):
    """A near and a far end, with a relay between; gives near, far, relay and the port for programs."""
    keys = keys or Keys("near", "far")
    far_port, port = free_port(), free_port()
    target = f"127.0.0.1:{target_port}"
    far = End("accept", "--listen", f"127.0.0.1:{far_port}", "--key", keys.path("far"), "--peer", keys.public["near"], "--allow", allow or target, "--grace", grace)
    relay = Relay(far_port)
    near = End("dial", "--far", f"127.0.0.1:{relay.port}", "--key", keys.path("near"), "--peer", keys.public["far"], "--paths", paths,
               "--listen", f"127.0.0.1:{port}", "--to", target, "--grace", grace, *options)
    try:
        until(lambda: len(near.up()) == paths, "all paths are up", 20)
        yield near, far, relay, port
        near.end()
        far.end()
    finally:
        relay.close()
        for end in (near, far):
            if end.process.poll() is None:
                end.kill()


class Service:
    """A TCP service: `serve(connection)` on a thread for each."""

    def __init__(self, serve):
        self.listener = socket.create_server(("127.0.0.1", 0), backlog=64)
        self.port, self.serve, self.connections = self.listener.getsockname()[1], serve, []
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        with contextlib.suppress(OSError):
            while True:
                connection = self.listener.accept()[0]
                self.connections.append(connection)
                threading.Thread(target=self.one, args=(connection,), daemon=True).start()

    def one(self, connection):
        with contextlib.suppress(OSError):
            self.serve(connection)


def echo(connection):
    while piece := connection.recv(1 << 16):
        connection.sendall(piece)
    connection.close()


def client(port, seconds=30):
    connection = socket.create_connection(("127.0.0.1", port), timeout=seconds)
    connection.settimeout(seconds)
    return connection


def whole(connection):
    data = b""
    while piece := connection.recv(1 << 18):
        data += piece
    return data


def is_reset(connection):
    try:
        return connection.recv(1) is None
    except ConnectionResetError:
        return True


def is_turned_away(port):
    """Whether a new connection is reset: on a busy host the reset may come while connect() has not returned."""
    try:
        with client(port) as connection:
            return is_reset(connection)
    except ConnectionResetError:
        return True


@here
def test_bytes_and_half_closes_go_through_both_ways(env):
    with linked(Service(echo).port) as (near, far, _, port):
        for size in (0, 1, 100_000, 3_000_000):
            body = os.urandom(size)
            with client(port) as connection:
                sender = Background(lambda: (connection.sendall(body), connection.shutdown(socket.SHUT_WR)))
                equal(hashlib.sha256(whole(connection)).digest(), hashlib.sha256(body).digest(), f"{size} bytes")
                sender.join()
        until(lambda: near.session()["streams_open"] == far.session()["streams_open"] == 0, "all streams have ended")
        assert "up" in link("status", "--socket", near.socket).stdout
    assert "no link answers" in link("status", "--socket", near.socket, check=ABSENT).stderr


@here
@limit(120)
def test_postgresql_copies_both_ways_while_paths_are_cut(env):
    # By TCP, as from another host.
    with linked(env.cluster.target.port) as (near, _, relay, port):
        through = dataclasses.replace(env.cluster.target, port=port)
        equal(env.program("psql", "-XAtc", "select 41 + 1", database="app", target=through).stdout, "42\n")
        rows, row = 40_000, 500
        text = "".join(f"{number:0{row - 1}d}\n" for number in range(rows))
        out = f"copy (select lpad(n::text, {row - 1}, '0') from generate_series(0, {rows - 1}) n) to stdout"
        stop = threading.Event()

        def cutting():
            while not stop.wait(0.25):
                relay.cut_one()
        cutter = Background(cutting)
        try:
            copied = env.program("psql", "-Xqc", out, database="app", target=through).stdout
            equal(hashlib.sha256(copied.encode()).hexdigest(), hashlib.sha256(text.encode()).hexdigest(), "COPY TO")
            table = f"link_{os.getpid()}"
            commands = f"create temp table {table} (x text);\ncopy {table} from stdin;\n{text}\\.\nselect count(*), md5(string_agg(x, '' order by x)) from {table};\n"
            said = env.program("psql", "-XqAt", database="app", target=through, stdin=commands).stdout
            equal(said.strip(), f"{rows}|{hashlib.md5(text.replace(chr(10), '').encode()).hexdigest()}", "COPY FROM")
        finally:
            stop.set()
            cutter.join()
        assert near.session()["paths_lost"] > 0, "paths were cut"


@here
def test_a_path_that_swallows_everything_is_found_and_nothing_is_lost(env):
    with linked(Service(echo).port) as (near, far, relay, port):
        body = os.urandom(4_000_000)
        with client(port) as connection:
            connection.sendall(body[:1000])
            equal(connection.recv(1000), body[:1000])
            relay.swallows.add(relay.pairs[0])
            sender = Background(lambda: (connection.sendall(body), connection.shutdown(socket.SHUT_WR)))
            equal(hashlib.sha256(whole(connection)).digest(), hashlib.sha256(body).digest())
            sender.join()
        why = "nothing has come back", "nothing gets through"
        until(lambda: any(words in near.text() + far.text() for words in why), "the path was found dead", 15)


@here
def test_all_paths_out_for_a_while_stall_and_lose_nothing(env):
    with linked(Service(echo).port) as (near, _, relay, port):
        with client(port) as connection:
            connection.sendall(b"before")
            equal(connection.recv(6), b"before")
            relay.refuses = True
            relay.cut_all()
            until(lambda: not near.session()["up"], "it is seen that no path works")
            ended = near.session()["past"][0]
            assert ended["addresses"] and ended["end"] and ended["why"] == "always wanted", ended
            assert "no path works, for" in link("status", "--socket", near.socket).stdout
            connection.sendall(b"meanwhile")
            time.sleep(3)
            relay.refuses = False
            equal(connection.recv(9), b"meanwhile")


@here
def test_an_outage_beyond_grace_resets_both_ends(env):
    service = Service(lambda connection: connection.recv(1) and connection.recv(1))
    with linked(service.port, grace="2s") as (near, far, relay, port):
        with client(port) as connection:
            connection.sendall(b"x")
            until(lambda: service.connections, "the target is connected")
            relay.refuses = True
            began = time.monotonic()
            relay.cut_all()
            assert is_reset(connection), "the near end's program is told"
            assert 1 < time.monotonic() - began < 10, "after the grace time"
        until(lambda: not far.report()["sessions"], "the far end keeps nothing")
        assert "grace" in near.text(), near.text()
        relay.refuses = False
        until(near.up, "a new session begins", 15)
        with client(port) as connection:
            connection.sendall(b"x")
            until(lambda: len(service.connections) == 2, "and serves")


@here
def test_a_killed_process_resets_the_other_end_s_connections_and_replays_nothing(env):
    seen = []

    def serve(connection):
        data = b""
        with contextlib.suppress(OSError):
            while piece := connection.recv(100):
                data += piece
        seen.append(data)
    for which in ("near", "far"):
        seen.clear()
        service = Service(serve)
        keys = Keys("near", "far")
        with linked(service.port, grace="2s", keys=keys) as (near, far, relay, port):
            with client(port) as connection:
                connection.sendall(b"once")
                until(lambda: service.connections, "connected")
                time.sleep(0.3)
                (near if which == "near" else far).kill()
                if which == "far":
                    assert is_reset(connection), "the program is told"
                else:
                    with contextlib.suppress(OSError):
                        equal(connection.recv(1), b"", "the program's connection ends with the process")
                until(lambda: seen, "the target's connection ends", 15)
                equal(seen, [b"once"], f"{which} was killed")


@here
def test_a_target_s_last_words_arrive_before_its_reset(env):
    words = os.urandom(30_000)  # what TCP itself delivers before a reset

    def serve(connection):
        connection.recv(1)
        connection.sendall(words)
        connection.close()  # with bytes unread: a reset
    with linked(Service(serve).port) as (near, far, _, port):
        for _ in range(5):
            with client(port) as connection:
                def send():
                    with contextlib.suppress(OSError):
                        while True:
                            connection.sendall(bytes(1 << 16))
                sender = Background(send)
                got = b""
                with contextlib.suppress(ConnectionResetError):
                    while piece := connection.recv(1 << 18):
                        got += piece
                sender.join()
            assert got == words, f"{len(got)} of {len(words)} bytes"
        until(lambda: near.session()["streams_open"] == far.session()["streams_open"] == 0, "nothing is kept")


@here
def test_a_process_that_ends_under_load_ends_both_ends_at_once(env):
    for which in ("near", "far"):
        ended = threading.Event()

        def serve(connection):
            with contextlib.suppress(OSError):
                echo(connection)
            ended.set()
        keys = Keys("near", "far")
        with linked(Service(serve).port, paths=2, keys=keys) as (near, far, relay, port):
            with client(port) as connection:
                def send():
                    with contextlib.suppress(OSError):
                        while True:
                            connection.sendall(bytes(1 << 16))
                sender = Background(send)
                relay.pause = 0.002  # the paths are full
                for _ in range(20):
                    assert connection.recv(1 << 18), "bytes come back"
                began = time.monotonic()
                (near if which == "near" else far).process.send_signal(signal.SIGTERM)
                with contextlib.suppress(OSError):
                    while connection.recv(1 << 18):
                        pass
                sender.join()
                assert ended.wait(10), f"{which} ended: the target's connection stays"
                took = time.monotonic() - began
                assert took < 3, f"{which} ended: the other end knows after {took:.1f} s"


@here
def test_what_is_opened_in_an_outage_outlives_a_far_end_that_starts_anew(env):
    keys = Keys("near", "far")
    with linked(Service(echo).port, paths=1, keys=keys) as (near, far, relay, port):
        with client(port) as early:
            early.sendall(b"x")
            equal(early.recv(1), b"x")
            command = pathlib.Path(f"/proc/{far.process.pid}/cmdline").read_text().split("\0")[2:-1]
            far.kill()
            until(lambda: not near.session()["up"], "it is seen that no path works")
            ended = near.session()["past"][0]
            assert ended["addresses"] and ended["end"] and ended["why"] == "always wanted", ended
            assert "no path works, for" in link("status", "--socket", near.socket).stdout
            with client(port) as late:
                late.sendall(b"sent in the outage")
                time.sleep(0.3)
                again = End(*command[:command.index("--socket")])
                equal(late.recv(100), b"sent in the outage")
                assert is_reset(early), "the far end may have run what the other one sent"
                again.end()


@here
def test_an_end_takes_as_many_descriptors_as_it_may(env):
    keys = Keys("near", "far")
    few = ("sh", "-c", 'ulimit -Sn 64; exec "$@"', "sh")
    far = End("accept", "--listen", "127.0.0.1:0", "--key", keys.path("far"), "--peer", keys.public["near"], "--allow", "127.0.0.1:1", inside=few)
    limits = pathlib.Path(f"/proc/{far.process.pid}/limits").read_text()
    soft, hard = next(line.split()[3:5] for line in limits.splitlines() if line.startswith("Max open files"))
    equal(soft, hard)
    far.end()


@here
def test_a_target_that_is_not_allowed_is_refused_and_said(env):
    with linked(Service(echo).port, allow="127.0.0.1:1") as (near, far, _, port):
        assert is_turned_away(port)
        until(lambda: "does not allow this target" in near.text(), "the near end says why")
        assert "not allowed" in far.text(), far.text()


@here
def test_a_target_that_is_not_there_is_refused_and_said(env):
    with linked(free_port()) as (near, _, _, port):
        assert is_turned_away(port)
        until(lambda: "cannot reach the target" in near.text(), "the near end says why")


@here
def test_a_far_end_that_reads_nothing_holds_up_its_own_stream_alone(env):
    def serve(connection):
        if connection.recv(1) == b"d":
            time.sleep(60)
        echo(connection)
    with linked(Service(serve).port) as (near, far, _, port):
        with client(port, 3) as deaf, client(port) as other:
            deaf.sendall(b"d")
            sent = 0
            with contextlib.suppress(TimeoutError):
                while sent < 200 << 20:
                    sent += deaf.send(bytes(1 << 16))
            assert sent < 100 << 20, "it is held up"
            held = sum(stream["held_bytes"] for end in (near, far) for stream in end.session()["streams"])
            assert held < 64 << 20, held
            other.sendall(b"-hello")
            equal(other.recv(5), b"hello")


@here
def test_paths_have_the_congestion_control_that_is_asked_for(env):
    for wanted, fallbacks in (("reno", 0), ("nosuchthing", 1)):  # each kernel has reno
        with linked(Service(echo).port, "--congestion", wanted) as (near, _, _, port):
            has = {path["congestion"] for path in near.up()}
            assert (has == {"reno"}) == (wanted == "reno") and has, has
            said = near.report()["fallbacks"]
            equal((len(said), all("paths of the link" in what for what in said)), (fallbacks, True), said)
            with client(port) as connection:
                connection.sendall(b"hello")
                equal(connection.recv(5), b"hello")


@here
def test_bulk_that_shrinks_is_compressed_where_paths_are_slow_and_only_if_that_is_asked_for(env):
    text = b"".join(b"%d\t%d\tpaid\tsome words of an order\n" % (row, row % 97) for row in range(600_000))
    for options, most in (((), 1.2), (("--compression", "auto"), 0.7)):
        with linked(Service(echo).port, *options, paths=2) as (near, _, relay, port):
            relay.pause = 0.005  # 64 KiB at once at most: some 10 MB a second by a path, which shows once buffers are full
            with client(port, 60) as connection:
                sender = threading.Thread(target=lambda: (connection.sendall(text), connection.shutdown(socket.SHUT_WR)))
                sender.start()
                assert whole(connection) == text, "other bytes come back"
                sender.join()
            sent = sum(path["sent_bytes"] for path in near.session()["paths"])
            totals = near.session()
            # (What paths have carried that were replaced since is not in it.)
            assert sent / len(text) <= most, (options, sent, len(text))
            assert (totals["compressed_from_bytes"] > len(text) / 2) == bool(options), totals
            assert totals["compressed_to_bytes"] <= 0.875 * totals["compressed_from_bytes"], totals


@here
def test_a_stranger_gets_nothing_and_no_reason(env):
    keys = Keys("near", "far", "stranger")
    with linked(Service(echo).port, keys=keys) as (near, far, relay, port):
        # A near end with another key, and one that takes the far end for another.
        for key, peer in (("stranger", "far"), ("near", "stranger")):
            end = End("dial", "--far", f"127.0.0.1:{relay.to}", "--key", keys.path(key), "--peer", keys.public[peer], "--listen", "127.0.0.1:0", "--to", "127.0.0.1:1")
            time.sleep(1)
            equal(end.up(), [], f"{key} that expects {peer}")
            end.end()
            # Each end's log says which key was refused.
            refused, by = ("stranger", far) if key == "stranger" else ("far", end)
            assert f"its key, {keys.public[refused]}, is not among" in by.text(), by.text()
            if key == "stranger":
                assert "as it does if it does not know this end's key" in end.text(), end.text()
                assert re.search("a path is refused.* from=\"127.0.0.1:", far.text()), far.text()
        # One without a key: what it gets ends with its handshake.
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        with client(relay.to) as plain:
            try:
                with context.wrap_socket(plain) as wrapped:
                    equal(wrapped.recv(100), b"")
            except OSError as error:
                assert not isinstance(error, TimeoutError), error
        # One that speaks no TLS.
        with client(relay.to) as plain:
            plain.sendall(b"GET / HTTP/1.1\r\n\r\n")
            with contextlib.suppress(ConnectionResetError):
                equal(plain.recv(100), b"", "it is not answered")
        with client(port) as connection:
            connection.sendall(b"still there")
            equal(connection.recv(100), b"still there")


@here
def test_nothing_goes_over_the_wire_in_plain(env):
    with linked(Service(echo).port) as (_, _, relay, port):
        with client(port) as connection:
            secret = b"a secret that must not be seen"
            connection.sendall(secret)
            equal(connection.recv(100), secret)
        assert relay.seen and secret not in relay.seen and b"127.0.0.1:" not in relay.seen


@here
def test_a_key_is_changed_without_an_outage_and_a_revoked_one_is_out(env):
    keys = Keys("near", "new", "far")
    service = Service(echo)
    far_port, port = free_port(), free_port()
    known = keys.path("known")
    known.write_text(f"{keys.public['near']} old\n")
    target = f"127.0.0.1:{service.port}"
    far = End("accept", "--listen", f"127.0.0.1:{far_port}", "--key", keys.path("far"), "--peers", known, "--allow", target)

    def dial(key, port):
        return End("dial", "--far", f"127.0.0.1:{far_port}", "--key", keys.path(key), "--peer", keys.public["far"], "--listen", f"127.0.0.1:{port}", "--to", target)
    old = dial("near", port)
    until(old.up, "the old key is in", 15)
    known.write_text(f"{keys.public['near']} old\n{keys.public['new']} new\n")
    far.process.send_signal(signal.SIGHUP)
    new = dial("new", free_port())
    until(new.up, "the new key is in", 15)
    assert old.up(), "and the old one, still"
    known.write_text(f"{keys.public['new']} new\n")
    far.process.send_signal(signal.SIGHUP)
    until(lambda: not old.up(), "the old key is out", 10)
    assert new.up()
    known.write_text("nonsense\n")
    far.process.send_signal(signal.SIGHUP)
    until(lambda: "reload refused" in far.text(), "a wrong file is refused", 5)
    assert new.up()
    known.write_text("# all are revoked\n")
    far.process.send_signal(signal.SIGHUP)
    until(lambda: "no key of a peer is left" in far.text(), "it is said", 5)
    until(lambda: not new.up(), "the last key is out", 10)
    time.sleep(1)
    assert not new.up() and not old.up(), "nobody comes in again"
    known.write_text(f"{keys.public['new']} new\n")
    far.process.send_signal(signal.SIGHUP)
    until(new.up, "a key is let in again", 15)
    for end in (old, new, far):
        end.end()


@here
def test_many_streams_at_once_are_each_their_own(env):
    with linked(Service(echo).port) as (near, _, relay, port):
        connections = [client(port) for _ in range(200)]
        for round_ in range(3):
            for number, connection in enumerate(connections):
                connection.sendall(f"{number} {round_};".encode())
            relay.cut_one()
            for number, connection in enumerate(connections):
                expected = f"{number} {round_};".encode()
                got = b""
                while len(got) < len(expected):
                    got += connection.recv(len(expected) - len(got))
                equal(got, expected)
        equal(near.session()["streams_open"], 200)
        for connection in connections:
            connection.close()
        until(lambda: near.session()["streams_open"] == 0, "all have ended")


@here
def test_keys_and_options_that_are_wrong_are_refused_with_the_reason(env):
    keys = Keys("near")
    assert "exists" in link("keygen", keys.path("near"), check=1).stderr
    equal(link("keygen", "--show", keys.path("near")).stdout.strip(), keys.public["near"])
    os.chmod(keys.path("near"), 0o644)
    base = ("accept", "--listen", "127.0.0.1:0", "--allow", "db:1")
    assert "others may read" in link(*base, "--key", keys.path("near"), "--peer", keys.public["near"], check=1).stderr
    os.chmod(keys.path("near"), 0o600)
    assert "no key of the other end" in link(*base, "--key", keys.path("near"), check=1).stderr
    link(*base, "--key", keys.path("near"), "--peer", "ed25519:short", check=2)


SOURCE = """
import socket, sys
listener = socket.create_server(("0.0.0.0", 7000))
print("listens", flush=True)
connection = listener.accept()[0]
for number in range(int(sys.argv[1])):
    connection.sendall(number.to_bytes(4, "big") * 16384)
connection.shutdown(socket.SHUT_WR)
connection.recv(1)
"""

SINK = """
import hashlib, socket, sys, time
connection = socket.create_connection((sys.argv[1], int(sys.argv[2])))
digest, began = hashlib.sha256(), time.monotonic()
while piece := connection.recv(1 << 18):
    digest.update(piece)
print(digest.hexdigest(), time.monotonic() - began, flush=True)
"""


@here
@limit(120)
def test_more_paths_carry_more_where_each_flow_is_limited(env):
    keys = Keys("near", "far")
    pieces = 300
    expected = hashlib.sha256()
    for number in range(pieces):
        expected.update(number.to_bytes(4, "big") * 16384)
    with network("per-flow", "--seed", "1") as name:
        run = [hawser(), "lab", "run", name, "--accept-unfaithful"]
        far_side, near_side = [*run, "--on", "far", "--"], [*run, "--on", "near", "--"]
        source = subprocess.Popen([*far_side, sys.executable, "-c", SOURCE, str(pieces)], stdout=subprocess.PIPE, text=True)
        ends = []
        try:
            equal(source.stdout.readline(), "listens\n")
            ends.append(End("accept", "--listen", "10.77.0.2:6433", "--key", keys.path("far"), "--peer", keys.public["near"], "--allow", "127.0.0.1:7000", inside=far_side))
            ends.append(End("dial", "--far", "10.77.0.2", "--key", keys.path("near"), "--peer", keys.public["far"], "--paths", "12",
                            "--listen", "127.0.0.1:7001", "--to", "127.0.0.1:7000", inside=near_side))
            until(lambda: len(ends[1].up()) == 12, "all paths are up", 20)
            said = subprocess.run([*near_side, sys.executable, "-c", SINK, "127.0.0.1", "7001"], capture_output=True, text=True, timeout=90)
            assert said.stdout, said.stderr
            digest, seconds = said.stdout.split()
        finally:
            source.kill()
            source.communicate()
            for end in ends:
                end.process.terminate()
                end.process.wait(10)
    equal(digest, expected.hexdigest(), "all bytes, once and in order")
    goodput = pieces * 65536 * 8 / 1e6 / float(seconds)
    # One flow carries 9.4; a busy machine costs a part of what there is.
    assert goodput > 20, f"{goodput:.1f} Mbit/s"
    print(f"    {goodput:.1f} Mbit/s over 12 paths")


ENDLESS = """
import contextlib, socket
listener = socket.create_server(("0.0.0.0", 7000))
print("listens", flush=True)
while True:
    connection = listener.accept()[0]
    with contextlib.suppress(OSError):
        while True:
            connection.sendall(bytes(1 << 18))
"""

# The longest time without a byte, then the bytes at the end of each second.
SECONDS = """
import socket, sys, time
connection = socket.create_connection(("127.0.0.1", 7001))
began = last = time.monotonic()
total, gap, marks = 0, 0, []
while time.monotonic() - began < float(sys.argv[1]):
    total += len(connection.recv(1 << 18))
    now = time.monotonic()
    gap, last = max(gap, now - last), now
    if now - began >= len(marks):
        marks.append(total)
print(gap, *marks, flush=True)
"""


def received(description, seconds, *dial, accept=(), prepare=lambda far_side: None):
    """Over a link whose paths are chosen by itself: the longest time without a byte, the bytes at the end of each second, and
    what the near and the far end say in the end: a session and the log of each."""
    keys = Keys("near", "far")
    with network(description, "--seed", "1") as name:
        run = [hawser(), "lab", "run", name, "--accept-unfaithful"]
        far_side, near_side = [*run, "--on", "far", "--"], [*run, "--on", "near", "--"]
        prepare(far_side)
        source = subprocess.Popen([*far_side, sys.executable, "-c", ENDLESS], stdout=subprocess.PIPE, text=True)
        ends = []
        try:
            equal(source.stdout.readline(), "listens\n")
            ends.append(End("accept", "--listen", "0.0.0.0:6433", "--key", keys.path("far"), "--peer", keys.public["near"], "--allow", "127.0.0.1:7000", *accept, inside=far_side))
            ends.append(End("dial", *dial, "--key", keys.path("near"), "--peer", keys.public["far"], "--listen", "127.0.0.1:7001", "--to", "127.0.0.1:7000", inside=near_side))
            until(ends[1].up, "a path is up", 20)
            said = subprocess.run([*near_side, sys.executable, "-c", SECONDS, str(seconds)], capture_output=True, text=True, timeout=seconds + 60)
            assert said.stdout, said.stderr
            gap, *marks = said.stdout.split()
            near, far = ((end.session(), end.text()) for end in ends[::-1])
            return float(gap), [int(mark) for mark in marks], near, far
        finally:
            source.kill()
            source.communicate()
            for end in ends:
                end.process.terminate()
                end.process.wait(10)


@here
@limit(150)
def test_paths_are_dialled_until_all_limits_are_used_and_those_that_share_one_rest(env):
    _, marks, (session, log), _ = received("per-flow", 28, "--far", "10.77.0.2")
    rate = (marks[-1] - marks[16]) * 8 / 1e6 / (len(marks) - 17)
    carrying = [path for path in session["paths"] if path["stage"] == "up" and not path["rests"]]
    print(f"    {rate:.1f} Mbit/s, {len(carrying)} paths")
    # All limits together carry 75.3; a busy machine costs a part.
    assert rate > 55, f"{rate:.1f} Mbit/s: {marks}"
    # Those that share a limit rest before they are ended, which takes longer than this test has.
    assert len(carrying) <= 50, log


@here
@limit(150)
def test_a_line_that_is_cut_stalls_a_stream_for_less_than_two_seconds_and_is_used_again(env):
    with tempfile.TemporaryDirectory() as directory:
        description = pathlib.Path(directory, "lines.toml")
        description.write_text("""
[[link]]
name = "fibre"
rate = "50Mbit/s"
rtt = "20ms"
queue = "200packets"
outages = [{ at = "14s", lasts = "4s", every = "60s" }]
[[link]]
name = "dsl"
rate = "10Mbit/s"
rtt = "80ms"
queue = "100packets"
""")
        gap, marks, (session, log), _ = received(str(description), 28, "--far", "10.77.0.2", "--far", "10.77.1.2")
    rates = [(after - before) * 8 / 1e6 for before, after in zip(marks, marks[1:])]
    assert min(rates[4:]) < 20, f"it was never cut: {rates}"
    assert gap < 2, f"{gap:.1f} s without a byte: {rates}"
    assert max(rates[-5:]) > 40, f"the line is used again: {rates}\n{log}"
    equal(sorted({path["addresses"][1].split(":")[0] for path in session["paths"] if path["stage"] == "up"}), ["10.77.0.2", "10.77.1.2"])
    print(f"    {gap:.2f} s without a byte")


@here
@limit(150)
def test_auto_finds_a_congestion_control_for_a_path_of_the_link_that_loses_without_a_queue(env):
    def prepare(far_side):
        found = json.loads(subprocess.run([*far_side, hawser(), "cc", "list", "--json"], capture_output=True, text=True, check=True).stdout)
        if "bbr" not in found["allowed"]:
            raise Skip(f"bbr is not for all users here: there is {found['allowed']}")

    auto, rates = ("--congestion", "auto"), {}
    for options, seconds in (((), 16), (auto, 32)):
        with by_reno("long-fat") as description:
            _, marks, _, (session, log) = received(description, seconds, "--far", "10.77.0.2", "--paths", "1", accept=options, prepare=prepare)
        rates[options] = (marks[-1] - marks[-9]) * 8 / 1e6 / 8
        equal({path["congestion"] for path in session["paths"] if path["stage"] == "up"}, {"bbr" if options else "reno"}, log)
        equal("bbr is tried" in log, bool(options), log)
    print(f"    {rates[()]:.1f} Mbit/s by reno, {rates[auto]:.1f} by what auto has found")
    # Reno has 3 to 5, bbr 65 on a machine with nothing else to do.
    assert rates[auto] > max(15, 2 * rates[()]), rates


def in_configuration(keys, far_port, peers=("far",), more=""):
    known = ", ".join(f'"{keys.public[peer]}"' for peer in peers)
    return f'[link.main]\nfar = ["127.0.0.1:{far_port}"]\nkey = "{keys.path("near")}"\npeers = [{known}]\ngrace = "3s"\n{more}'


def shows_itself(target, far_port):
    """`hawser status` and the metrics of a pooler have its link, and the path that it has."""
    def shown(*more):
        return subprocess.run([hawser(), "status", "--socket", str(target.pooler.directory / "hawser.sock"), *more], capture_output=True, text=True, check=True, timeout=20).stdout

    def line():
        links = json.loads(shown("--json"))["links"]
        return links and links[0]["sessions"] and [path for path in links[0]["sessions"][0]["paths"] if path["stage"] == "up"]
    path = until(line, "the link is in the status", 10)[0]
    equal((path["addresses"], path["why"]), (["127.0.0.1", f"127.0.0.1:{far_port}"], "always wanted"))
    text = shown()
    assert "link main, for" in text and f"127.0.0.1 and 127.0.0.1:{far_port}, always wanted" in text, text
    with socket.create_connection(("127.0.0.1", target.pooler.http_port)) as page:
        page.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
        metrics = b"".join(iter(lambda: page.recv(65536), b"")).decode()
    for sample in ('hawser_link_up{link="main",session="main"} 1', 'hawser_link_line_paths{link="main",session="main",own="127.0.0.1",peer="127.0.0.1"} 1'):
        assert sample in metrics, [line for line in metrics.splitlines() if "link" in line]


@pooler_only
@limit(120)
def test_a_pool_reaches_its_server_over_a_link_of_the_configuration(env):
    keys = Keys("near", "far", "other")
    far_port, place = free_port(), f"127.0.0.1:{env.cluster.target.port}"
    far = f'[link.far]\nlisten = ["127.0.0.1:{far_port}"]\nallow = ["{place}"]\nkey = "{keys.path("far")}"\npeers = ["{keys.public["near"]}"]\n'
    with env.pooler_with(append=far) as behind:
        socket_path = pathlib.Path(keys.directory.name, "link.sock")
        append = in_configuration(keys, far_port, more=f'socket = "{socket_path}"\n')
        with env.pooler_with(append=append, servers=[f"link://main/{place}"], target_session_attrs="primary") as target:
            client = env.connect(target)
            equal(client.value("select 41 + 1"), "42")
            equal(client.value("select count(*) from generate_series(1, 100000)"), "100000")
            session = json.loads(link("status", "--socket", socket_path, "--json").stdout)["sessions"][0]
            assert session["up"] and session["streams_open"] >= 1, session
            shows_itself(target, far_port)
            # A cancel request goes to the server over the link, too.
            client.send(m.query("select pg_sleep(20) /* over the link */"))
            until(lambda: env.server().value("select count(*) from pg_stat_activity where state = 'active' and query like '%over the link%' and pid <> pg_backend_pid()") == "1", "it runs")
            client.cancel(target)
            equal(client.collect().sqlstate, "57014")
            equal(client.value("select 1"), "1")
            # A key that is gone after a reload is revoked; one that comes is let in without an outage.
            behind.pooler.append = far.replace(keys.public["near"], keys.public["other"])
            behind.pooler.write()
            behind.pooler.reload()
            until(lambda: not json.loads(link("status", "--socket", socket_path, "--json").stdout)["sessions"][0]["up"], "its paths are closed")
            behind.pooler.append = far
            behind.pooler.write()
            behind.pooler.reload()
            until(lambda: env.connect(target).value("select 7") == "7", "it is let in again", 20)
            # A target that is not allowed: the pool says what it says of a server that hangs up.
            with env.pooler_with(append=append.replace("link.sock", "second.sock"), servers=["link://main/127.0.0.1:1"], query_wait_timeout="1s") as wrong:
                try:
                    env.connect(wrong).value("select 1")
                except ServerError as error:
                    assert error.sqlstate.startswith("08"), error
                else:
                    raise AssertionError("a target that is not allowed was reached")


@here
def test_links_of_the_configuration_that_are_wrong_are_refused_with_the_reason(env):
    keys = Keys("near", "far")
    good = in_configuration(keys, 6433)
    database = '[[database]]\nname = "app"\nservers = ["link://main/db:5432"]\n[auth]\nusers_file = "u"\n'
    for text, said in (
        (good.replace("[link.main]", "[link.other]"), "there is no [link.main]"),
        (good.replace('far = ["127.0.0.1:6433"]', 'listen = ["127.0.0.1:6433"]\nallow = ["db:1"]'), "does not dial"),
        (good + 'listen = ["127.0.0.1:1"]\n', "give one"),
        (good.replace("ed25519:", "rsa:"), "a public key is ed25519:"),
        (good.replace('key = ', "#"), "key: it is required"),
        (good + "paths = 65\n", "1 to 64"),
    ):
        file = pathlib.Path(keys.directory.name, "hawser.toml")
        file.write_text(text + database)
        run = subprocess.run([hawser(), "check", "-c", str(file)], capture_output=True, text=True, timeout=30)
        assert run.returncode != 0 and said in run.stderr + run.stdout, f"{said}: {run.stderr}{run.stdout}"
