"""`hawser rds`: reliable datagrams, over loopback and in the laboratory, and against peers that do wrong."""

import contextlib
import json
import os
import pathlib
import re
import select
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time

from harness.suite import Skip, equal, limit, until
from integration.test_cc import here
from integration.test_lab import lab, network

SAME_FOR_ALL_SERVERS = True
ALONE = "datagrams"
TAKES_SECONDS = 150

ABSENT = 69
MAP = struct.pack(">QQIHHBBIHH", 0, 0, 8192, 0, 0, 1, 0, 0, 0, 0)[:32] + bytes(16) + bytes(8192)
# What Linux up to 6.18 says of itself in a probe: eight lanes.
OLD_KERNEL = bytes([5, 0, 8]) + bytes(13)


def header(sequence, length, sport, dport, flags=0, extensions=bytes(16)):
    return struct.pack(">QQIHHBB", sequence, 0, length, sport, dport, flags, 0) + bytes(6) + extensions


def free_port():
    with socket.socket() as probe:
        probe.bind(("0.0.0.0", 0))
        return probe.getsockname()[1]


def rds(*arguments, check=0, seconds=60):
    run = subprocess.run([os.environ["HAWSER"], "rds", *map(str, arguments)], capture_output=True, text=True, timeout=seconds)
    assert check is None or run.returncode == check, f"exit code {run.returncode}: {run.stderr}{run.stdout}"
    return run


class Proxy:
    """`hawser rds proxy` at an address, on a TCP port that is free on all of them."""

    def __init__(self, address, tcp_port, *options, launcher=()):
        self.directory = tempfile.TemporaryDirectory()
        self.path = pathlib.Path(self.directory.name, "rds.sock")
        self.address, self.tcp_port = address, tcp_port
        command = [*launcher, os.environ["HAWSER"], "rds", "proxy", "--address", address, "--tcp-port", str(tcp_port), "--socket", str(self.path), *options]
        self.log = open(pathlib.Path(self.directory.name, "log"), "w+")
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=self.log, text=True)
        assert self.process.stdout.readline().startswith("RDS on"), self.logged()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.terminate()
        equal(self.process.wait(10), 0, "exit code of the proxy")
        assert not self.path.exists(), "its socket is left"
        self.directory.cleanup()

    def logged(self):
        self.log.flush()
        return pathlib.Path(self.log.name).read_text()

    def info(self):
        return json.loads(rds("info", "--socket", self.path, "--json").stdout)

    def program(self, port=0):
        return Program(self, port)


class Program:
    """A client of a proxy, as any language could be one."""

    def __init__(self, proxy, port=0):
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.socket.settimeout(20)
        self.socket.connect(str(proxy.path))
        self.address = proxy.address
        self.port = None
        if port is not None:
            self.socket.send(b"B" + struct.pack(">H", port))
            answer = self.socket.recv(100)
            equal(answer[:1], b"B")
            self.port = struct.unpack(">H", answer[1:])[0]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.socket.close()

    def send(self, to, body):
        """`to` is a program, or an address and a port."""
        address, port = (to.address, to.port) if isinstance(to, Program) else to
        part = 32 << 10
        while len(body) > part:
            self.socket.send(b"s" + body[:part])
            body = body[part:]
        mapped = bytes(10) + b"\xff\xff" + socket.inet_aton(address)
        self.socket.send(b"S" + struct.pack(">H", port) + mapped + body)

    def receive(self):
        """The next datagram: whose, and its bytes; or an error's code."""
        body = b""
        while True:
            message = self.socket.recv(64 << 10)
            kind = message[:1]
            if kind == b"r":
                body += message[1:]
            elif kind == b"R":
                address = socket.inet_ntoa(message[15:19])
                return (address, struct.unpack(">H", message[1:3])[0]), body + message[19:]
            elif kind == b"E":
                return message[1], message[2:].decode()
            else:
                raise AssertionError(message[:40])

    def has_something(self):
        return bool(select.select([self.socket], [], [], 0.2)[0])


@contextlib.contextmanager
def two_hosts(*options, tcp_port=None):
    tcp_port = tcp_port or free_port()
    with Proxy("127.0.0.1", tcp_port, *options) as small, Proxy("127.0.0.2", tcp_port, *options) as large:
        yield small, large


@here
def test_programs_exchange_datagrams_of_all_sizes(env):
    with two_hosts() as (small, large):
        for near, far in ((small, large), (large, small), (small, small)):
            with near.program() as one, far.program(5000) as other:
                for size in (0, 1, 32 << 10, (32 << 10) + 1, 200_000, 1 << 20):
                    body = os.urandom(size)
                    one.send(other, body)
                    equal(other.receive(), ((near.address, one.port), body), f"{size} bytes")
                    other.send(one, body[::-1])
                    equal(one.receive()[1], body[::-1])
        assert not small.logged() and not large.logged(), small.logged() + large.logged()


@here
def test_each_program_gets_what_is_for_its_port_and_nothing_else(env):
    with two_hosts() as (small, large), contextlib.ExitStack() as stack:
        senders = [stack.enter_context(small.program()) for _ in range(10)]
        receivers = [stack.enter_context(large.program()) for _ in range(10)]
        for round_ in range(20):
            for sender in senders:
                for receiver in receivers:
                    sender.send(receiver, f"{sender.port} {receiver.port} {round_}".encode())
        for receiver in receivers:
            seen = {sender.port: 0 for sender in senders}
            for _ in range(200):
                (_, port), body = receiver.receive()
                equal(body.decode(), f"{port} {receiver.port} {seen[port]}")
                seen[port] += 1
            assert not receiver.has_something()
        paths = small.info()["peers"][0]
        equal(paths["paths"], 8)
        equal({lane["state"] for lane in paths["lanes"]}, {"up"})


@here
def test_what_a_program_may_not_say_is_answered(env):
    with two_hosts() as (small, large):
        with small.program(7000) as first:
            with Program(small, None) as second:
                second.socket.send(b"S" + bytes(18) + b"x")
                equal(second.receive()[0], 1, "no port yet")
                second.socket.send(b"B" + struct.pack(">H", 7000))
                equal(second.receive()[0], 1, "the port is another's")
                second.socket.send(b"B" + struct.pack(">H", 1))
                equal(second.receive()[0], 1, "port 1 is for probes")
                second.socket.send(b"?")
                equal(second.receive()[0], 4)
                equal(second.socket.recv(10), b"", "and that was all")
            for address in ("0.0.0.0", "224.0.0.1", "255.255.255.255"):
                first.send((address, 9), b"x")
                equal(first.receive()[0], 3, address)
            with large.program() as other:
                first.send(other, bytes(1 << 20))
                equal(len(other.receive()[1]), 1 << 20)
                first.send(other, b"still there")
                equal(other.receive()[1], b"still there")
                with small.program() as third:
                    third.send(other, bytes((1 << 20) + 100_000))
                    equal(third.receive()[0], 2)
                    third.send(other, b"and it goes on")
                    equal(other.receive()[1], b"and it goes on")
                assert not other.has_something()


@here
def test_a_port_whose_program_has_gone_can_be_taken_though_its_last_datagrams_cannot_be_sent(env):
    gone = ("127.0.0.222", 9)
    with two_hosts() as (small, large), large.program(6000) as receiver:
        def end_while_one_waits(port):
            first = small.program(port)
            first.socket.settimeout(1)
            with contextlib.suppress(TimeoutError):
                while True:
                    first.send(gone, bytes(30_000))
            first.socket.close()
        # Its last datagram waits, for the host does not answer.
        end_while_one_waits(5555)
        until(lambda: "cannot be reached" in small.logged(), "why is said", 10)
        with small.program(5555) as second:
            second.send(receiver, b"to a host that is there")
            equal(receiver.receive()[1], b"to a host that is there")
        # All is queued, and the program has gone.
        first = small.program(5556)
        for _ in range(60):
            first.send(gone, bytes(30_000))
        time.sleep(0.3)
        first.socket.close()
        time.sleep(0.3)
        with small.program(5556) as second:
            for _ in range(80):
                second.send(receiver, bytes(30_000))
                equal(len(receiver.receive()[1]), 30_000)
        # Nobody asks for the port: it is free after a while all the same.
        end_while_one_waits(5557)
        until(lambda: 5557 not in [port["port"] for port in small.info()["ports"]], "its port is free", 15)
        equal(small.logged().count("cannot be reached"), 1, "once")


@here
def test_a_program_of_another_user_sees_no_port_but_its_own(env):
    if os.geteuid() != 0:
        raise Skip("no rights: another user's program needs root")
    script = """
import socket, struct, sys
s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET); s.settimeout(10); s.connect(sys.argv[1])
s.send(b"B" + struct.pack(">H", 7001)); assert s.recv(10)[:1] == b"B"
s.send(b"I"); answer = s.recv(1 << 16); assert answer[:1] == b"I"
print(answer[1:].decode())
"""
    with two_hosts("--mode", "666") as (small, large), small.program(7000) as one, large.program() as other:
        one.send(other, b"x")
        equal(other.receive()[1], b"x")
        os.chmod(small.directory.name, 0o755)
        other_user = ["setpriv", "--reuid=65534", "--clear-groups", sys.executable, "-c", script, str(small.path)]
        seen = json.loads(subprocess.run(other_user, capture_output=True, text=True, check=True, cwd="/").stdout)
        equal(([port["port"] for port in seen["ports"]], seen["peers"]), ([7001], []))
        seen = small.info()
        equal(([port["port"] for port in seen["ports"]], len(seen["peers"])), ([7000], 1))


@here
def test_a_datagram_with_a_part_that_is_too_long_is_refused_whole(env):
    with two_hosts() as (small, large), small.program() as one, large.program() as other:
        for kind in b"s", b"S":
            one.socket.send(b"s" + b"begin")
            one.socket.send(kind + bytes(70_000))
            equal(one.receive()[0], 2)
            if kind == b"s":
                one.send(other, b"end of that")
            one.send(other, b"next")
            equal(other.receive()[1], b"next")
        assert not other.has_something()


@here
def test_an_address_that_no_peer_knows_and_a_host_that_is_not_there_are_said(env):
    for address in ("0.0.0.0", "224.0.0.1"):
        run = rds("proxy", "--address", address, "--tcp-port", free_port(), "--socket", "/nowhere/rds.sock", check=None)
        assert run.returncode != 0 and "give one of this machine's addresses" in run.stderr, run.stderr
    run = rds("ping", "127.0.0.66", "-I", "127.0.0.65", "-c", "1", "--tcp-port", free_port(), check=1)
    assert "127.0.0.66 cannot be reached: Connection refused" in run.stderr and "no answer from 127.0.0.66" in run.stderr, run.stderr


@here
def test_a_program_that_reads_nothing_stops_its_senders_and_no_others(env):
    with two_hosts() as (small, large):
        with small.program() as sender, large.program() as deaf, large.program() as other, small.program() as third:
            sender.socket.settimeout(3)
            sent = 0
            try:
                while sent < 2000:
                    sender.send(deaf, bytes(20_000))
                    sent += 1
            except TimeoutError:
                pass
            assert 100 < sent < 2000, f"{sent} messages of 20 kB were taken"
            third.send(other, b"others go on")
            equal(other.receive()[1], b"others go on")
            port = next(port for port in large.info()["ports"] if port["port"] == deaf.port)
            assert port["congested"] and port["queued_bytes"] < 16 << 20, port
            until(lambda: f"the program with port {deaf.port} reads nothing" in large.logged(), "it is said", 15)
            for _ in range(sent):
                equal(len(deaf.receive()[1]), 20_000)


@here
def test_ping_is_answered_and_says_how_fast(env):
    tcp_port = free_port()
    with Proxy("127.0.0.2", tcp_port):
        said = rds("ping", "127.0.0.2", "-I", "127.0.0.1", "-c", 10, "-i", "10ms", "--tcp-port", tcp_port).stdout.splitlines()
        equal(sorted(int(line.split(":")[0]) for line in said), list(range(1, 11)), "each once; by lanes of their own they may overtake each other")
        assert all(line.endswith(" usec") for line in said), said
    nobody = rds("ping", "127.0.0.2", "-I", "127.0.0.1", "-c", 1, "-i", "10ms", "--tcp-port", tcp_port, check=1)
    equal(nobody.stdout, "")


@here
def test_the_larger_address_pings_too(env):
    tcp_port = free_port()
    with Proxy("127.0.0.1", tcp_port):
        said = rds("ping", "127.0.0.1", "-I", "127.0.0.2", "-c", 3, "-i", "50ms", "--tcp-port", tcp_port).stdout
        equal(len(said.splitlines()), 3)


@here
def test_info_shows_lanes_and_ports(env):
    with two_hosts("--lanes", "2") as (small, large):
        with small.program(6000) as one, large.program(6001) as other:
            one.send(other, b"x")
            other.receive()
            text = rds("info", "--socket", small.path).stdout
            assert "peer 127.0.0.2: 2 lanes, dialled" in text, text
            assert any(line.split()[:1] == ["6000"] for line in text.splitlines()), text
    assert "no proxy answers" in rds("info", "--socket", small.path, check=ABSENT).stderr


@contextlib.contextmanager
def passive_stress(address, port):
    process = subprocess.Popen([os.environ["HAWSER"], "rds", "stress", "-r", address, "-p", str(port)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stdout.readline().startswith("waiting for incoming connection on")
        yield process
        out, error = process.communicate(timeout=30)
        assert process.returncode == 0, out + error
        assert "(average)" in out, out
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()


@here
def test_the_pages_commands_and_its_program(env):
    """The first commands of docs/datagrams.md in their order, on two addresses, and its program."""
    page = (pathlib.Path(__file__).parents[2] / "docs/datagrams.md").read_text()
    commands = re.findall(r"^(one|other)\$ +hawser rds (\w+) ?(.*?)(?:  .*)?$", page, re.MULTILINE)
    equal([command for _, command, _ in commands], ["stress", "stress", "proxy", "ping", "info"])
    program = re.search(r"```python\n(.*?)```", page, re.DOTALL)[1] + "\nprint(message[19:].decode())\n"
    tcp_port, meeting = free_port(), free_port()
    with tempfile.TemporaryDirectory() as directory, contextlib.ExitStack() as running:
        def arguments(command, options, host="192.0.2.1"):
            own = {"stress": ["-r", host, "-p", meeting, "--tcp-port", tcp_port], "ping": ["-I", host, "-c", 3, "-i", "50ms", "--tcp-port", tcp_port],
                   "proxy": ["--socket", f"{directory}/{host}", "--tcp-port", tcp_port], "info": ["--socket", f"{directory}/{host}"]}[command]
            return [here_on(str(one)) for one in [command, *options.replace("-T 30", "-T 1").split(), *own]]

        def here_on(text):
            return text.replace("192.0.2.", "127.0.0.")

        def start(command, *more):
            process = running.enter_context(subprocess.Popen([os.environ["HAWSER"], "rds", *arguments(command, *more)], stdout=subprocess.PIPE, text=True))
            running.callback(process.terminate)
            return process
        for host, command, options in commands:
            address = {"one": "192.0.2.1", "other": "192.0.2.2"}[host]
            if command == "proxy":
                start(command, options).stdout.readline()
            elif command == "stress" and not options:
                waiting = start(command, options)
            else:
                said = rds(*arguments(command, options, address)).stdout
                assert {"stress": "(average)", "ping": "usec", "info": "peer 127.0.0.2"}[command] in said, said
        equal(waiting.wait(10), 0, "exit code of the waiting end")
        with Proxy("127.0.0.2", tcp_port) as other, other.program(5000) as far:
            text = here_on(program.replace("/run/hawser/rds.sock", f"{directory}/192.0.2.1"))
            near = running.enter_context(subprocess.Popen([sys.executable, "-c", text], stdout=subprocess.PIPE, text=True))
            equal(far.receive(), (("127.0.0.1", 5000), b"hello"))
            far.send(("127.0.0.1", 5000), b"to you")
            equal(near.communicate(timeout=20)[0].strip(), "to you")


@here
def test_stress_prints_rds_stress_s_columns_and_both_ends_end(env):
    port, tcp_port = 20_000 + os.getpid() % 10_000, free_port()
    with passive_stress("127.0.0.2", port):
        said = rds("stress", "-s", "127.0.0.2", "-r", "127.0.0.1", "-p", port, "-t", 4, "-d", 2, "-q", "8K", "-a", 256, "-T", 2, "-v", "-c", "--tcp-port", tcp_port).stdout.splitlines()
    columns = next(number for number, line in enumerate(said) if line.split()[:3] == ["tsks", "tx/s", "rx/s"])
    equal(said[columns].split(), "tsks tx/s rx/s tx+rx K/s mbi K/s mbo K/s tx us/c rtt us cpu %".split())
    average = said[-1].split()
    equal((average[0], average[-1]), ("4", "(average)"))
    sent, received, rtt = float(average[1]), float(average[2]), float(average[7])
    assert sent > 100 and received > 100 and rtt > 0 and float(average[8]) > 0, average


@here
def test_stress_says_that_the_other_end_has_ended_and_counts_no_second_after_the_end(env):
    def waiting(port):
        process = subprocess.Popen([os.environ["HAWSER"], "rds", "stress", "-r", "127.0.0.2", "-p", str(port)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        assert process.stdout.readline().startswith("waiting")
        return process
    port = free_port()
    other = waiting(port)
    run = subprocess.Popen([os.environ["HAWSER"], "rds", "stress", "-s", "127.0.0.2", "-r", "127.0.0.1", "-p", str(port), "-T", "20", "--tcp-port", str(free_port())],
                           stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    time.sleep(2.5)
    other.kill()
    other.communicate()
    said = run.communicate(timeout=10)[1]
    assert run.returncode != 0 and "the other end has ended" in said, (run.returncode, said)
    port = free_port()
    other = waiting(port)
    mine = rds("stress", "-s", "127.0.0.2", "-r", "127.0.0.1", "-p", port, "-T", 3, "--tcp-port", free_port()).stdout.splitlines()
    theirs = other.communicate(timeout=10)[0].splitlines()
    equal(other.returncode, 0)
    averages = [[float(number) for number in said[-1].split()[1:3]] for said in (mine, theirs)]
    for sent, received in zip(averages[0], averages[1]):
        assert 0.5 < sent / received < 2, averages


@here
def test_a_waiting_stress_is_neither_delayed_nor_ended_by_those_that_do_not_go_on(env):
    port, tcp_port = 20_000 + os.getpid() % 10_000, free_port()
    plan = dict(port=port, depth=1, request_bytes=1024, answer_bytes=63, tasks=1, seconds=1, one_way=False, verify=False, tcp_port=tcp_port, lanes=8, buffer_bytes=2 << 20)
    with passive_stress("127.0.0.2", port), contextlib.ExitStack() as others:
        silent = [others.enter_context(socket.create_connection(("127.0.0.2", port))) for _ in range(10)]
        hostile = others.enter_context(socket.create_connection(("127.0.0.2", port)))
        hostile.settimeout(20)
        hostile.sendall(json.dumps(plan).encode() + b"\n")
        began = time.monotonic()
        equal(hostile.recv(100), b"ready\n")
        assert time.monotonic() - began < 4, "those that say nothing have delayed it"
        # It does not say that it begins. The next one waits for that, and then does what it came for.
        said = rds("stress", "-s", "127.0.0.2", "-r", "127.0.0.1", "-p", port, "-T", 1, "-z", "--tcp-port", tcp_port).stdout
        assert "(average)" in said, said
        assert b"within 5 s" in hostile.recv(200)
        assert all(one.recv(200) for one in silent), "they are told why they are refused"


@here
def test_stress_refuses_sizes_that_no_message_has(env):
    for wrong in (("-q", 62), ("-q", (1 << 20) + 1), ("-t", 0), ("-d", 0)):
        assert wrong[0] in rds("stress", "-s", "127.0.0.1", *wrong, check=2).stderr


def connect(proxy, source="127.0.0.1"):
    """A peer made by hand: with the smaller address it dials."""
    stream = socket.create_connection((proxy.address, proxy.tcp_port), source_address=(source, 0))
    stream.settimeout(20)
    return stream


def read_message(stream):
    data = b""
    while len(data) < 48:
        piece = stream.recv(48 - len(data))
        if not piece:
            raise EOFError
        data += piece
    sequence, _, length, sport, dport, flags = struct.unpack(">QQIHHB", data[:25])
    body = b""
    while len(body) < length:
        body += stream.recv(length - len(body))
    return sequence, sport, dport, flags, data[32:48], body


@here
def test_a_peer_as_an_old_kernel_is_understood(env):
    with Proxy("127.0.0.2", free_port()) as proxy, proxy.program(5000) as program:
        with connect(proxy) as kernel:
            kernel.sendall(MAP + header(1, 0, 1, 0, extensions=OLD_KERNEL) + header(2, 5, 4000, 5000) + b"hello")
            equal(program.receive(), (("127.0.0.1", 4000), b"hello"))
            program.send(("127.0.0.1", 4000), b"world")
            seen = []
            # Its map, its probe and the answer to ours; "world" may go by a lane that is not there yet.
            while len(seen) < 3:
                seen.append(read_message(kernel))
            equal((seen[0][3], len(seen[0][5])), (1, 8192))
            probes = [message for message in seen if (message[1], message[2]) in ((1, 0), (0, 1))]
            assert len(probes) == 2 and all(message[4][:3] == bytes([5, 0, 8]) for message in probes), seen
            # Seven more, in any order: each goes to the next lane that is free.
            lanes = [connect(proxy) for _ in range(7)]
            try:
                until(lambda: [lane["state"] for lane in proxy.info()["peers"][0]["lanes"]] == ["up"] * 8, "eight lanes")
                for number, lane in enumerate(lanes):
                    lane.sendall(header(1, 1, 4000 + number, 5000) + bytes([number]))
                got = sorted(program.receive()[1][0] for _ in lanes)
                equal(got, list(range(7)))
            finally:
                for lane in lanes:
                    lane.close()


@here
def test_duplicates_are_dropped_across_a_new_connection(env):
    with Proxy("127.0.0.2", free_port()) as proxy, proxy.program(5000) as program:
        with connect(proxy) as kernel:
            kernel.sendall(MAP + header(1, 3, 4000, 5000) + b"one" + header(2, 3, 4000, 5000) + b"two" + header(3, 5, 4000, 5000) + b"thr")
            equal([program.receive()[1] for _ in range(2)], [b"one", b"two"])
        until(lambda: proxy.info()["peers"][0]["lanes"][0]["state"] == "down", "the lane's end")
        with connect(proxy) as kernel:
            kernel.sendall(MAP + header(2, 3, 4000, 5000, 4) + b"two" + header(3, 5, 4000, 5000, 4) + b"three")
            equal(program.receive()[1], b"three")
            lane = proxy.info()["peers"][0]["lanes"][0]
            equal((lane["duplicates"], lane["expected_sequence"], lane["connections"]), (1, 4, 2))


@here
def test_what_peers_do_wrong_is_bounded_said_once_and_no_concern_of_others(env):
    with Proxy("127.0.0.9", free_port()) as proxy, Proxy("127.0.0.1", proxy.tcp_port) as good, proxy.program(5000) as program, good.program() as friend:
        # A length beyond the most: the lane is reset, each time, and said once.
        for _ in range(2):
            with connect(proxy, "127.0.0.2") as bad:
                bad.sendall(MAP + header(1, (1 << 20) + 1, 9, 5000))
                with contextlib.suppress(ConnectionError, EOFError):
                    while True:
                        read_message(bad)
            time.sleep(1.1)
        # Extension headers that lie, unknown ones, a map of another length, a jump of the numbers, port 0 from port 0.
        with connect(proxy, "127.0.0.3") as odd:
            odd.sendall(MAP + header(1, 0, 1, 0, extensions=bytes([255] * 16)) + header(2, 0, 1, 0, extensions=bytes([5]) + bytes([255] * 15)))
            odd.sendall(header(0, 10, 0, 0, 1) + bytes(10) + header(3, 0, 0, 0) + header(1 << 63, 3, 9, 5000) + b"odd")
            equal(program.receive(), (("127.0.0.3", 9), b"odd"))
            odd.sendall(header(5, 4, 9, 5000) + b"back")
            equal(program.receive()[1], b"back")
        # Ports that nobody has.
        with connect(proxy, "127.0.0.4") as lost:
            lost.sendall(MAP + b"".join(header(number, 1, 9, number) + b"x" for number in range(100, 1100)))
            until(lambda: proxy.info()["messages_to_no_port"] >= 1000, "all of them")
        # More lanes than there are: those wait, or are reset; none is taken.
        with connect(proxy, "127.0.0.5") as first, contextlib.ExitStack() as stack:
            first.sendall(MAP)
            flood = [stack.enter_context(connect(proxy, "127.0.0.5")) for _ in range(50)]
            for stream in flood:
                with contextlib.suppress(OSError):
                    stream.sendall(header(1, 4, 9, 5000) + b"lane")
            until(lambda: any(peer["address"] == "127.0.0.5" for peer in proxy.info()["peers"]), "the flooding peer")
            until(lambda: proxy.info()["connections_refused"] >= 42, "eight wait, the others are reset")
            peer = next(peer for peer in proxy.info()["peers"] if peer["address"] == "127.0.0.5")
            equal(len(peer["lanes"]), 1)
        # Pings of one that does not read.
        with connect(proxy, "127.0.0.6") as deaf:
            deaf.sendall(MAP)
            deaf.settimeout(3)
            with contextlib.suppress(TimeoutError):
                for number in range(40):
                    deaf.sendall(b"".join(header(number * 5000 + n, 0, 77, 0) for n in range(5000)))
            until(lambda: proxy.info()["pings"] > 10_000, "pings")
            peer = next(peer for peer in proxy.info()["peers"] if peer["address"] == "127.0.0.6")
            assert peer["lanes"][0]["queued"] <= 1100, peer
        friend.send(program, b"unharmed")
        seen = b""
        while seen != b"unharmed":
            seen = program.receive()[1]
        log = proxy.logged()
        for what in ("1048577 bytes", "which no program has", "congestion map", "extension header of type 255", "more connections than there are lanes", "does not read the answers"):
            equal(log.count(what), 1, what)


@limit(120)
@here
def test_a_peer_that_never_reads_stops_who_sends_to_it_and_no_other(env):
    tcp_port = free_port()
    with socket.create_server(("127.0.0.9", tcp_port)) as listener, two_hosts(tcp_port=tcp_port) as (small, large):
        with small.program() as sender, small.program() as other, large.program() as receiver:
            sender.socket.settimeout(3)
            sender.send(("127.0.0.9", 9), b"x")
            lane = listener.accept()[0]
            with lane:
                lane.sendall(MAP + header(1, 0, 1, 0))
                sent = 0
                with contextlib.suppress(TimeoutError):
                    while sent < 3000:
                        sender.send(("127.0.0.9", 9), bytes(20_000))
                        sent += 1
                assert 10 < sent < 3000, f"{sent} messages of 20 kB were taken"
                peer = next(peer for peer in small.info()["peers"] if peer["address"] == "127.0.0.9")
                assert peer["lanes"][0]["queued_bytes"] < 3 << 20, peer
                for number in range(50):
                    other.send(receiver, f"{number}".encode())
                    equal(receiver.receive()[1], f"{number}".encode())


@limit(120)
@here
def test_a_program_that_never_reads_what_a_peer_forces_on_it_is_ended_and_said(env):
    """The peer does not care for congestion: the lane that brings too much stands still, until the program is ended."""
    with Proxy("127.0.0.9", free_port(), "--buffer", "1M") as proxy, Proxy("127.0.0.1", proxy.tcp_port) as good, proxy.program(5000) as deaf, proxy.program(5001) as other, good.program() as friend:
        with connect(proxy, "127.0.0.2") as bad:
            bad.sendall(MAP + header(1, 0, 1, 0))
            bad.settimeout(1)
            # More than its buffer, what may be under way, and what the sockets hold.
            with contextlib.suppress(TimeoutError, BlockingIOError):
                for number in range(60):
                    bad.sendall(header(2 + number, 1 << 20, 9, 5000) + bytes(1 << 20))
            friend.send(other, b"unharmed")
            equal(other.receive()[1], b"unharmed")
            until(lambda: not any(port["port"] == 5000 for port in proxy.info()["ports"]), "its end")
        said = [line for line in proxy.logged().splitlines() if "the program with port 5000 is ended" in line]
        equal(len(said), 1, proxy.logged())
        deaf.socket.settimeout(5)


@limit(120)
@here
def test_a_program_that_reads_a_little_and_then_nothing_stops_others_for_seconds_only(env):
    """It read until its queue was under the bound: lanes stood still for it for good, and it was not ended."""
    with Proxy("127.0.200.8", free_port()) as proxy, proxy.program(6000) as other, proxy.program(7000) as hog, contextlib.ExitStack() as stack:
        def peer(number, *messages):
            stream = stack.enter_context(connect(proxy, f"127.0.101.{number}"))
            stream.settimeout(0.5)
            with contextlib.suppress(TimeoutError):
                stream.sendall(MAP + b"".join(header(at, len(body), 9, port) + body for at, (port, body) in enumerate(messages, 1)))

        def queued():
            return next((port["queued_bytes"] for port in proxy.info()["ports"] if port["port"] == 7000), 0)
        for number in range(1, 13):
            peer(number, (7000, bytes(1 << 20)))
        until(lambda: queued() > (2 << 20) + (8 << 20), "a full queue")
        peer(99, (7000, b"waits"), (6000, b"after it"))
        hog.receive()
        other.socket.settimeout(12)
        equal(other.receive()[1], b"after it")
        assert "the program with port 7000 is ended" in proxy.logged(), proxy.logged()


@limit(120)
@here
def test_peers_that_never_stop_bring_no_more_to_a_full_port_than_one(env):
    with Proxy("127.0.200.9", free_port()) as proxy, proxy.program(5000), contextlib.ExitStack() as stack:
        for number in range(60):
            stream = stack.enter_context(connect(proxy, f"127.0.100.{number + 1}"))
            stream.settimeout(0.5)
            with contextlib.suppress(TimeoutError):
                stream.sendall(MAP + header(1, 1 << 20, 9, 5000) + bytes(1 << 20))
        port = next(port for port in proxy.info()["ports"] if port["port"] == 5000)
        assert port["queued_bytes"] < (2 << 20) + (8 << 20) + (2 << 20), port


@limit(120)
@here
def test_what_a_program_has_sent_goes_though_it_leaves_with_something_unread(env):
    with two_hosts() as (small, large), large.program(6000) as receiver, large.program() as back:
        with small.program() as first:
            first.send(receiver, b"warm")
            equal(receiver.receive()[1], b"warm")

        def leave(case, before, after):
            program = Program(small, None)
            program.socket.send(b"B" + struct.pack(">H", 5050))
            before(program)
            os.kill(small.process.pid, signal.SIGSTOP)
            for number in range(5):
                program.send(receiver, b"%d" % number)
            program.socket.close()
            after()
            os.kill(small.process.pid, signal.SIGCONT)
            equal([receiver.receive()[1] for _ in range(5)], [b"%d" % number for number in range(5)], case)
            until(lambda: not any(port["port"] == 5050 for port in small.info()["ports"]), "its end")

        def late():
            back.send((small.address, 5050), b"late")
            time.sleep(0.3)

        def unread(program):
            equal(program.socket.recv(100)[:1], b"B")
            back.send((small.address, 5050), b"unread")
            assert program.has_something() or program.has_something()
        leave("the answer to B unread", lambda program: time.sleep(0.2), lambda: None)
        leave("a datagram unread", unread, lambda: None)
        leave("a datagram comes meanwhile", lambda program: program.socket.recv(100), late)


@limit(120)
@here
def test_a_proxy_that_is_ended_sends_what_programs_have_sent_for_a_while(env):
    tcp_port = free_port()
    with Proxy("127.0.0.2", tcp_port) as other, other.program(700) as receiver, Proxy("127.0.0.1", tcp_port) as ends:
        with ends.program() as program:
            program.send(receiver, b"first")
            equal(receiver.receive()[1], b"first")
            # The other host takes what its socket's buffer has room for, and the rest when it goes on.
            other.process.send_signal(signal.SIGSTOP)
            for number in range(100):
                program.send(receiver, bytes([number]) * 10_000)
            until(lambda: ends.info()["ports"][0]["sent"] == 101, "the proxy has taken all of them")
        ends.process.terminate()
        time.sleep(1.2)
        equal(ends.process.poll(), None)
        other.process.send_signal(signal.SIGCONT)
        for number in range(100):
            equal(receiver.receive()[1], bytes([number]) * 10_000)
        equal(ends.process.wait(10), 0)
        assert "not acknowledged" not in ends.logged(), ends.logged()
    # Nobody is there: it says what is dropped, and a second signal ends it at once.
    for signals, seconds in ((1, 5), (2, 0)):
        with Proxy("127.0.0.1", free_port()) as ends, ends.program() as program:
            program.send(("127.0.0.2", 700), b"lost")
            until(lambda: ends.info()["ports"][0]["unacknowledged_bytes"] > 0, "the proxy has taken it")
            began = time.monotonic()
            for _ in range(signals):
                ends.process.terminate()
                time.sleep(0.2)
            equal(ends.process.wait(10), 0)
            assert seconds - 0.5 < time.monotonic() - began < seconds + 3, time.monotonic() - began
            assert "1 datagrams of programs were not acknowledged" in ends.logged(), ends.logged()


@here
def test_a_program_that_sends_to_many_hosts_that_are_not_there_shuts_out_no_others(env):
    with two_hosts() as (small, large), small.program() as greedy, small.program() as other, large.program(5) as far:
        refused = 0
        for number in range(600):
            greedy.send((f"127.79.{number // 200}.{number % 200 + 1}", 9), b"")
        while greedy.has_something():
            equal(greedy.receive()[0], 3)
            refused += 1
        equal(refused, 600 - 256)
        other.send(far, b"hello")
        equal(far.receive()[1], b"hello")
        lines = small.logged().count("cannot be reached")
        assert lines <= 200, f"{lines} lines"


@limit(60)
@here
def test_a_peer_that_takes_connections_and_ends_them_is_called_ever_later(env):
    tcp_port = free_port()
    with socket.create_server(("127.0.0.12", tcp_port)) as listener, Proxy("127.0.0.11", tcp_port) as proxy, proxy.program() as program:
        counts = []
        for says in (b"", MAP):
            program.send(("127.0.0.12", 9), b"x")
            end, count = time.monotonic() + 4, 0
            while (left := end - time.monotonic()) > 0:
                listener.settimeout(left)
                with contextlib.suppress(TimeoutError, ConnectionError):
                    stream = listener.accept()[0]
                    count += 1
                    stream.sendall(says)
                    stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                    stream.close()
            counts.append(count)
        assert all(2 <= count < 100 for count in counts), counts
        equal(len(proxy.logged().splitlines()), 1, proxy.logged())


@limit(60)
@here
def test_ping_goes_on_after_answers_were_lost(env):
    tcp_port = free_port()
    ping = [os.environ["HAWSER"], "rds", "ping", "-i", "0.1", "-c", "60", "-I", "127.0.0.1", "--tcp-port", str(tcp_port), "127.0.0.2"]
    # It dies with pings that TCP has acknowledged and it has not answered.
    first = Proxy("127.0.0.2", tcp_port)
    pinging = subprocess.Popen(ping, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    time.sleep(1)
    os.kill(first.process.pid, signal.SIGSTOP)
    time.sleep(1)
    first.process.kill()
    first.process.wait()
    first.directory.cleanup()
    with Proxy("127.0.0.2", tcp_port):
        numbers = [int(line.split(":")[0]) for line in pinging.communicate(timeout=40)[0].splitlines()]
    assert len([number for number in numbers if number > 40]) > 10, numbers


def processor_seconds(pid):
    """User and system time of a process."""
    fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@here
def test_without_descriptors_it_waits_and_goes_on_when_there_are_some(env):
    with Proxy("127.0.1.1", free_port(), launcher=("prlimit", "--nofile=32:32")) as proxy:
        flood = [connect(proxy, f"127.0.0.{host}") for host in range(2, 62)]
        until(lambda: "no connection is accepted for a second" in proxy.logged(), "descriptors run out")
        before = processor_seconds(proxy.process.pid)
        time.sleep(2)
        used = processor_seconds(proxy.process.pid) - before
        assert used < 0.5, f"{used} s of a processor in 2 s"
        for stream in flood:
            stream.close()
        time.sleep(2)
        with proxy.program() as one, proxy.program() as other:
            one.send(other, b"again")
            equal(other.receive()[1], b"again")


@here
def test_a_program_that_comes_while_descriptors_have_run_out_is_served_when_there_are_some(env):
    with Proxy("127.0.1.1", free_port(), launcher=("prlimit", "--nofile=32:32")) as proxy, contextlib.ExitStack() as stack:
        programs = [stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)) for _ in range(40)]
        for program in programs:
            program.connect(str(proxy.path))
        until(lambda: "no program is accepted for a second" in proxy.logged(), "descriptors run out")
        before = processor_seconds(proxy.process.pid)
        time.sleep(2)
        used = processor_seconds(proxy.process.pid) - before
        assert used < 0.5, f"{used} s of a processor in 2 s"
        # The last one waits still, and no other comes.
        programs[-1].settimeout(20)
        programs[-1].send(b"B" + struct.pack(">H", 7000))
        for program in programs[:30]:
            program.close()
        equal(programs[-1].recv(10), b"B" + struct.pack(">H", 7000))
        assert proxy.logged().count("no program is accepted") < 10, proxy.logged()


@here
def test_a_program_that_asks_and_does_not_read_the_answers_is_ended(env):
    with two_hosts() as (small, large), small.program() as one, large.program() as other, Program(small, None) as deaf, Program(small, None) as slow:
        deaf.socket.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            for _ in range(100_000):
                deaf.socket.send(b"I")
        # Another one that takes its time gets all that it asked for.
        slow.socket.send(b"I")
        one.send(other, b"unharmed")
        equal(other.receive()[1], b"unharmed")
        until(lambda: "asked what the proxy is doing, and reads nothing" in small.logged(), "its end")
        equal(slow.socket.recv(64 << 10)[:1], b"I")
        one.send(other, b"unharmed still")
        equal(other.receive()[1], b"unharmed still")


@here
def test_peers_that_pinged_and_went_are_not_called_for_their_answers(env):
    """They were dialled each second, which took all descriptors of a proxy that had few."""
    with Proxy("127.0.1.1", free_port()) as proxy:
        flood = [connect(proxy, f"127.0.0.{host}") for host in range(2, 30)]
        for stream in flood:
            stream.sendall(MAP + header(1, 0, 77, 0))
        until(lambda: proxy.info()["pings"] >= 28, "pings")
        for stream in flood:
            stream.close()
        until(lambda: {lane["state"] for peer in proxy.info()["peers"] for lane in peer["lanes"]} == {"down"}, "their ends")
        listeners = [socket.create_server((f"127.0.0.{host}", proxy.tcp_port)) for host in range(2, 30)]
        time.sleep(2.5)
        called = select.select(listeners, [], [], 0)[0]
        for listener in listeners:
            listener.close()
        equal(len(called), 0, "peers that were called")


@here
def test_a_message_larger_than_the_send_buffer_is_refused_and_the_next_is_not(env):
    with two_hosts("--buffer", "1M") as (small, large), small.program() as one, large.program() as other:
        one.send(other, bytes(1 << 20))
        equal(len(other.receive()[1]), 1 << 20)
        with contextlib.suppress(OSError):
            one.send(other, bytes((1 << 20) + 1))
        equal(one.receive()[0], 2)
        one.send(other, b"small")
        equal(other.receive()[1], b"small")


def whole_messages(data):
    """Those of a stream that are whole: number, flags, bytes."""
    while len(data) >= 48:
        sequence, _, length, sport, dport, flags = struct.unpack(">QQIHHB", data[:25])
        if len(data) < 48 + length:
            return
        yield sequence, dport, flags, data[48:48 + length]
        data = data[48 + length:]


@limit(120)
@here
def test_messages_come_once_and_in_order_although_their_lane_is_cut_anywhere(env):
    """A peer by hand, which ends each connection after some bytes and reads what is left: a lane that is cut in mid-message."""
    tcp_port = free_port()
    with socket.create_server(("127.0.0.2", tcp_port)) as listener, Proxy("127.0.0.1", tcp_port) as proxy, proxy.program() as program:
        listener.settimeout(20)
        # So little that much of what was sent is not acknowledged when the lane ends.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8192)
        count, expected, got, connections, again = 1500, 0, [], 0, 0

        def send():
            for number in range(count):
                program.send(("127.0.0.2", 9), struct.pack(">I", number) + bytes(number * 37 % 3000))
        sender = threading.Thread(target=send, daemon=True)
        sender.start()
        while len(got) < count:
            connections += 1
            stream = listener.accept()[0]
            stream.settimeout(20)
            with stream:
                # One lane: its probe is answered without a number of lanes.
                stream.sendall(MAP + header(1, 0, 0, 1))
                data = b""
                while len(data) < 8240 + 20_011 * connections % 150_000:
                    piece = select.select([stream], [], [], 1)[0] and stream.recv(7919)
                    if not piece:
                        break
                    data += piece
                stream.shutdown(socket.SHUT_WR)
                with contextlib.suppress(ConnectionError):
                    while piece := stream.recv(65536):
                        data += piece
            for sequence, port, flags, body in whole_messages(data):
                again += bool(flags & 4)
                if flags == 1 or (sequence < expected and flags & 4):
                    continue
                expected = sequence + 1
                if port == 9:
                    got.append(struct.unpack(">I", body[:4])[0])
                    equal(len(body), 4 + got[-1] * 37 % 3000)
        equal(got, list(range(count)))
        assert connections > 3 and again > 3, (connections, again)


@limit(120)
@here
def test_lanes_use_several_limits_of_the_laboratory(env):
    with network("per-flow", "--seed", "3") as name:
        inside = [os.environ["HAWSER"], "lab", "run", name, "--accept-unfaithful"]
        far = subprocess.Popen([*inside, "--on", "far", "--", os.environ["HAWSER"], "rds", "stress"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        try:
            assert far.stdout.readline().startswith("waiting")
            stress = [os.environ["HAWSER"], "rds", "stress", "-s", "10.77.0.2", "-t", "32", "-q", "8K", "-a", "256", "-o", "-T", "6", "--json"]
            said = json.loads(lab("run", name, "--accept-unfaithful", "--", *stress, seconds=90).stdout)
            far.communicate(timeout=30)
        finally:
            far.kill()
        equal([lane["connections"] >= 1 for lane in said["lanes"]], [True] * 8)
        assert sum(lane["bytes_sent"] > 500_000 for lane in said["lanes"]) == 8, said
        rate = said["bytes_s"] * 8 / 1e6
        assert 20 < rate < 80, f"{rate:.1f} Mbit/s, and one limit is 10"
