#!/usr/bin/env python3
"""Chaos for `hawser bypass`: is a byte lost, doubled, or out of order? Run by bench/bypass/bypass.py and the integration tests.

    hawser bypass run -- bench/bypass/bypass_chaos.py --seconds 60 [--seed N] [--connections N]

Two processes, many connections over 127.0.0.1 and ::1, both directions at once: random sizes from 1 byte to 600 KB,
pauses, readers that stop, half closes, resets, closes with bytes unread, blocking readers with MSG_WAITALL, and the
death of the process that connects. Every byte has a value by its stream's seed and its place; a stream that ends in
order must be whole. Prints a JSON line of counts; exit code 1 and the reason at the first wrong byte.
"""

import argparse
import errno
import json
import os
import random
import selectors
import signal
import socket
import struct
import sys
import threading
import time

HEADER = struct.Struct("!QQI")  # seed, length of what follows, whether it ends in order
PERIOD = 65521  # a prime: no size of a buffer divides it
SIZES = (16, 3_000, 40_000, 600_000)
LENGTHS = (100, 20_000, 600_000, 4_000_000)
STALL_SECONDS = 120  # a machine may be busy; what is lost is lost for ever


class Wrong(Exception):
    pass


def pattern(seed):
    block = random.Random(seed).randbytes(PERIOD)
    return block * (2 * SIZES[-1] // PERIOD + 2)


class Stream:
    """What one end sends."""

    def __init__(self, rng, talks):
        self.sizes = SIZES[:2] if talks else SIZES
        self.seed, self.length = rng.getrandbits(63), rng.randrange(1, rng.choice(LENGTHS))
        # in order: all, then a FIN; reset, drop: it ends somewhere
        self.ending = rng.choices(("order", "reset", "drop"), (8, 1, 1))[0]
        self.stop = self.length if self.ending == "order" else rng.randrange(self.length)
        self.header = HEADER.pack(self.seed, self.length, self.ending == "order")
        self.pattern, self.sent = pattern(self.seed), 0

    def next(self, size):
        if self.sent < len(self.header):
            return self.header[self.sent:]
        place = self.sent - len(self.header)
        begin = place % PERIOD
        return self.pattern[begin:begin + min(size, self.stop - place)]

    @property
    def done(self):
        return self.sent >= len(self.header) + self.stop


class Check:
    """What one end has received."""

    def __init__(self):
        self.head, self.pattern, self.place, self.length, self.in_order, self.ended = b"", None, 0, None, None, False

    def take(self, data):
        if self.pattern is None:
            self.head += data
            if len(self.head) < HEADER.size:
                return
            seed, self.length, self.in_order = HEADER.unpack(self.head[:HEADER.size])
            self.pattern, data = pattern(seed), self.head[HEADER.size:]
        begin = self.place % PERIOD
        if data != self.pattern[begin:begin + len(data)]:
            at = next(n for n, (a, b) in enumerate(zip(data, self.pattern[begin:])) if a != b)
            raise Wrong(f"byte {self.place + at} of {self.length} is not what was sent")
        self.place += len(data)
        if self.place > self.length:
            raise Wrong(f"{self.place} bytes of {self.length} came")

    def end(self):
        """The stream has ended. Whether it is whole."""
        self.ended = True
        return self.pattern is not None and self.place == self.length


class Connection:
    def __init__(self, sock, rng, counts, excused):
        self.sock, self.rng, self.counts, self.excused = sock, rng, counts, excused
        # One that talks sends little, and lets its reader come after it: most of that goes past TCP.
        talks = rng.random() < 0.5
        self.out, self.into, self.shut, self.closed = Stream(rng, talks), Check(), False, False
        self.read_at = self.write_at = self.moved = time.monotonic()
        self.born = self.moved
        sock.setblocking(False)
        if rng.random() < 0.5:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.writes_lazily = 0.002 if talks else rng.choice((0, 0, 0.001, 0.02))
        self.reads_lazily = rng.choice((0, 0, 0, 0.001, 0.02))

    def pause(self, now, lazy):
        return now + (self.rng.expovariate(1 / lazy) if lazy else 0) + (0.3 if self.rng.random() < 0.002 else 0)

    def close(self, reset=False):
        if reset:
            self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.sock.close()
        self.closed = True
        self.counts["connections"] += 1

    def early(self, reason):
        """The other end has gone before its stream was whole: is it allowed?"""
        # A reset discards what was sent before it, so the word of the other end may not have come.
        allowed = self.into.in_order is None or not self.into.in_order or self.out.ending != "order" or self.excused(self.born)
        if not allowed:
            raise Wrong(f"{reason} after {self.into.place} bytes of {self.into.length}, {self.out.sent} sent")
        self.counts["cut"] += 1
        self.close()

    def step(self, now):
        if not self.out.done and now >= self.write_at:
            data = self.out.next(self.rng.randrange(1, self.rng.choice(self.out.sizes)))
            try:
                if data:
                    self.out.sent += self.sock.send(data)
                    self.moved = now
            except BlockingIOError:
                pass
            except (BrokenPipeError, ConnectionResetError) as error:
                return self.early(f"sending: {error}")
            self.write_at = self.pause(now, self.writes_lazily)
        if self.out.done and not self.shut:
            if self.out.ending == "order":
                try:
                    self.sock.shutdown(socket.SHUT_WR)
                except OSError as error:
                    return self.early(f"shutdown: {error}")
                self.shut = True
            else:
                return self.close(reset=self.out.ending == "reset")
        if not self.into.ended and now >= self.read_at:
            try:
                data = self.sock.recv(self.rng.randrange(1, self.rng.choice(SIZES)))
            except BlockingIOError:
                pass
            except ConnectionResetError as error:
                return self.early(f"receiving: {error}")
            else:
                self.moved = now
                self.counts["bytes"] += len(data)
                if data:
                    self.into.take(data)
                elif not self.into.end():
                    return self.early("the end")
            self.read_at = self.pause(now, self.reads_lazily)
        if self.shut and self.into.ended:
            self.counts["whole"] += 1
            self.close()
        elif now - self.moved > STALL_SECONDS:
            raise Wrong(f"nothing moves: {self.out.sent} sent, {self.into.place} of {self.into.length} received, done={self.out.done}")


def blocking_reader(sock, rng, counts, excused, failures):
    """A reader that waits in recv(2), for all that it asks for."""
    born = time.monotonic()
    try:
        sock.setblocking(True)
        sock.sendall(HEADER.pack(0, 0, True))
        sock.shutdown(socket.SHUT_WR)
        check = Check()
        while True:
            size = rng.randrange(1, 40_000) if check.pattern else HEADER.size
            try:
                data = sock.recv(size, socket.MSG_WAITALL)
            except BlockingIOError:
                counts["spurious_eagain"] += 1
                continue
            counts["bytes"] += len(data)
            if len(data) < size and check.pattern and check.place + len(data) < check.length and check.in_order and not excused(born):
                raise Wrong(f"MSG_WAITALL gave {len(data)} of {size} at {check.place}")
            if data:
                check.take(data)
            else:
                if not check.end() and check.in_order and not excused(born):
                    raise Wrong(f"the end after {check.place} of {check.length} (blocking)")
                break
        counts["blocking"] += 1
    except (ConnectionResetError, BrokenPipeError):
        counts["cut"] += 1
    except OSError as error:
        if error.errno != errno.ENOTCONN:
            failures.append(f"blocking reader: {error}")
    except Wrong as error:
        failures.append(f"blocking reader: {error}")
    finally:
        sock.close()


def new_counts():
    return dict.fromkeys(("connections", "whole", "cut", "bytes", "blocking", "spurious_eagain"), 0)


def dial(port, v6, rng):
    """By a descriptor that does not wait: others are not taken in."""
    sock = socket.socket(socket.AF_INET6 if v6 else socket.AF_INET)
    sock.setblocking(False)
    if rng.random() < 0.2:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, rng.choice((4096, 65536, 1 << 20)))
    sock.connect_ex(("::1" if v6 else "127.0.0.1", port))
    return sock


def connected(sock):
    """Waits for it; False if the other end has reset it already."""
    deadline = time.monotonic() + STALL_SECONDS
    while True:
        try:
            sock.getpeername()
            return True
        except OSError as error:
            failed = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
            if failed in (errno.ECONNRESET, errno.EPIPE):
                return False
            if failed or time.monotonic() > deadline:
                raise Wrong(f"connect: {failed or error}") from None
            time.sleep(0.001)


def loop(live, until, more):
    """Steps connections; `more` gives new ones."""
    while time.monotonic() < until or live:
        now = time.monotonic()
        if now < until:
            live += more()
        else:
            # A lazy reader with a small buffer would take minutes for megabytes.
            for connection in live:
                connection.reads_lazily = 0
        for connection in live:
            if not connection.closed:
                connection.step(now)
        live[:] = [connection for connection in live if not connection.closed]
        if all(min(c.read_at if not c.into.ended else 1e18, c.write_at if not c.out.done else 1e18) > now for c in live):
            time.sleep(0.0005)


def accepting(listeners, until, seed, connections, kills):
    """`kills` has times at which the other process was killed: what was open then may be cut."""
    rng, counts, failures, threads = random.Random(seed), new_counts(), [], []
    excused = lambda born: any(born - 1 <= when for when in kills())
    chooser = selectors.DefaultSelector()
    for listener in listeners:
        listener.setblocking(False)
        chooser.register(listener, selectors.EVENT_READ)

    def more():
        if failures:
            raise Wrong(failures[0])
        found = []
        for key, _ in chooser.select(0):
            try:
                sock, _ = key.fileobj.accept()
            except (BlockingIOError, ConnectionAbortedError):
                continue
            threads[:] = [thread for thread in threads if thread.is_alive()]
            if rng.random() < 0.1 and len(threads) < 4:
                thread = threading.Thread(target=blocking_reader, args=(sock, rng, counts, excused, failures), daemon=True)
                thread.start()
                threads.append(thread)
            else:
                found.append(Connection(sock, rng, counts, excused))
        return found

    loop([], until, more)
    for thread in threads:
        thread.join(STALL_SECONDS)
        if thread.is_alive():
            raise Wrong("a blocking reader hangs")
    if failures:
        raise Wrong(failures[0])
    return counts


def connecting(ports, until, seed, connections):
    rng, counts, live = random.Random(seed), new_counts(), []

    def more():
        found = []
        if len(live) < connections:
            v6, port = rng.choice(ports)
            sock = dial(port, v6, rng)
            if not connected(sock):
                counts["cut"] += 1
                sock.close()
                return found
            found.append(Connection(sock, rng, counts, lambda born: False))
        return found

    loop(live, until, more)
    return counts




def child(what, write_end):
    """Runs `what`, writes its counts or what was wrong, and ends."""
    code = 0
    try:
        os.write(write_end, json.dumps(what()).encode())
    except Wrong as error:
        os.write(write_end, json.dumps({"wrong": str(error)}).encode())
        code = 1
    except BaseException as error:  # a defect of this program is not to pass for success
        os.write(write_end, json.dumps({"wrong": f"{type(error).__name__}: {error}"}).encode())
        code = 1
    os._exit(code)


def fork(what):
    read_end, write_end = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(read_end)
        child(what, write_end)
    os.close(write_end)
    return pid, read_end


def finish(pid, read_end):
    said = b"".join(iter(lambda: os.read(read_end, 65536), b""))
    os.close(read_end)
    os.waitpid(pid, 0)
    return json.loads(said) if said else {}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--connections", type=int, default=24)
    parser.add_argument("--no-deaths", action="store_true")
    arguments = parser.parse_args()
    rng, until = random.Random(arguments.seed), time.monotonic() + arguments.seconds
    listeners = []
    for v6 in (False, True):
        listener = socket.socket(socket.AF_INET6 if v6 else socket.AF_INET)
        if v6:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)  # also for IPv4: one end of each family
        listener.bind(("::" if v6 else "127.0.0.1", 0))
        listener.listen(4096)  # one that is full drops what its clients take for connected
        listeners.append(listener)
    v4_port, both_port = (listener.getsockname()[1] for listener in listeners)
    ports = [(False, v4_port), (False, both_port), (True, both_port)]
    # The times of deaths, for the process that accepts.
    notes = os.memfd_create("kills")
    kills = lambda: [struct.unpack_from("d", data, at)[0] for data in [os.pread(notes, 1 << 16, 0)] for at in range(0, len(data), 8)]
    server, server_pipe = fork(lambda: accepting(listeners, until, arguments.seed, arguments.connections, kills))
    for listener in listeners:
        listener.close()
    totals, deaths, wrong = new_counts(), 0, None
    while time.monotonic() < until - 0.5 and not wrong:
        dies = not arguments.no_deaths and rng.random() < 0.5 and time.monotonic() < until - 5
        end = min(until, time.monotonic() + rng.uniform(2, 8))
        seed = rng.getrandbits(32)
        client, client_pipe = fork(lambda: connecting(ports, end if not dies else until, seed, arguments.connections))
        if dies:
            time.sleep(max(0, end - time.monotonic()))
            os.pwrite(notes, struct.pack("d", time.monotonic() + 1), deaths * 8)
            os.kill(client, signal.SIGKILL)
            deaths += 1
        said = finish(client, client_pipe)
        wrong = said.get("wrong")
        for name in totals:
            totals[name] += said.get(name, 0)
    if wrong:
        # Which of both was first?
        time.sleep(0.5)
        os.kill(server, signal.SIGKILL)
        wrong = f"{wrong}; the other process: {finish(server, server_pipe).get('wrong')}"
    else:
        said = finish(server, server_pipe)
        wrong = said.get("wrong") or (None if said else "the process that accepts has died")
        for name in totals:
            totals[name] += said.get(name, 0)
    print(json.dumps({"seed": arguments.seed, "deaths": deaths, **totals, "wrong": wrong}), flush=True)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
