#!/usr/bin/env python3
"""The local bypass against TCP, in turns: the table of docs/bypass.md.

    bench/bypass/bypass.py [CASE...] [--rounds N] [--seconds N] [--chaos-seconds N]

Cases: pgbench, hawser, redis, sockperf, bulk, unread, churn, chaos; all without one. Needs root, and a bpffs and cgroup v2 that it
may write to; makes a mount namespace of its own. Prints a line for each figure, TCP and bypass beside each other.
"""

import argparse
import contextlib
import json
import os
import pathlib
import random
import re
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "common"))
from cluster import free_port, stop
from cpu import process_cpu_s

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
HAWSER = os.environ.get("HAWSER", str(ROOT / "target/release/hawser"))
PG_BIN = pathlib.Path(os.environ.get("PG_BIN", "/usr/lib/postgresql/15/bin"))
CHAOS = HERE / "bypass_chaos.py"
STOP_S = 20


def own_mounts():
    """This program again, where bpffs is mounted for it alone."""
    if os.environ.get("BYPASS_BENCH_INSIDE"):
        return
    script = "mountpoint -q /sys/fs/bpf || mount -t bpf bpf /sys/fs/bpf; exec \"$@\""
    os.environ["BYPASS_BENCH_INSIDE"] = "1"
    os.execvp("unshare", ["unshare", "--mount", "--propagation", "private", "sh", "-c", script, "sh", sys.executable, *sys.argv])


def bypass(*words, **how):
    return subprocess.run([HAWSER, "bypass", *words], capture_output=True, text=True, **how)


def standing():
    return json.loads(bypass("status", "--json", check=True).stdout)


def within(past, *command, blocking=False):
    """The command, past TCP or not."""
    return [HAWSER, "bypass", "run", *(["--blocking"] if blocking else []), "--", *map(str, command)] if past else list(map(str, command))


def wait_until(what, seconds):
    """Whether it has come about within this time."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if what():
            return True
        time.sleep(0.05)
    return False


def listens(port):
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
        return True
    return False


def wait_for_port(port, seconds=20):
    if not wait_until(lambda: listens(port), seconds):
        raise RuntimeError(f"nothing listens on {port}")


def line(what, tcp, past, unit="", note=""):
    """Medians beside each other."""
    a, b = statistics.median(tcp), statistics.median(past)
    ratio = statistics.median(y / x for x, y in zip(tcp, past) if x) if any(tcp) else float("nan")
    print(f"{what:<56} {a:>12.2f} {b:>12.2f} {unit:<8} {ratio:>6.2f}{'  ' + note if note else ''}", flush=True)


@contextlib.contextmanager
def postgres(directory, past):
    """A PostgreSQL on a port of TCP, past TCP or not."""
    data, port = pathlib.Path(directory) / f"data-{random.getrandbits(32):x}", free_port()
    data.mkdir()
    shutil.chown(data, "postgres", "postgres")
    user = ["setpriv", "--reuid=postgres", "--regid=postgres", "--init-groups"]
    subprocess.run([*user, PG_BIN / "initdb", "-D", data, "-A", "trust", "-U", "postgres", "--no-sync"], check=True, capture_output=True, cwd="/")
    server = subprocess.Popen(
        within(past, *user, PG_BIN / "postgres", "-D", data, "-p", port, "-c", "listen_addresses=127.0.0.1",
               "-c", "unix_socket_directories=", "-c", "fsync=off", "-c", "max_connections=300"),
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd="/")
    try:
        wait_for_port(port)
        while subprocess.run([PG_BIN / "pg_isready", "-q", "-h", "127.0.0.1", "-p", str(port)]).returncode == 1:  # it is starting
            time.sleep(0.1)
        environment = {**os.environ, "PGHOST": "127.0.0.1", "PGPORT": str(port), "PGUSER": "postgres", "PGDATABASE": "postgres", "PGSSLMODE": "disable"}
        subprocess.run([PG_BIN / "pgbench", "-i", "-q", "-s", "5"], env=environment, check=True, capture_output=True)
        yield port, environment
    finally:
        stop(server, signal.SIGTERM if past else signal.SIGINT, STOP_S)


def pgbench(environment, past, clients, seconds):
    """(TPS, latency p50, p99 in us)"""
    with tempfile.TemporaryDirectory() as logs:
        done = subprocess.run(within(past, PG_BIN / "pgbench", "-n", "-S", "-M", "prepared", "-c", clients, "-j", min(clients, 2), "-T", seconds, "-l"),
                              env=environment, capture_output=True, text=True, cwd=logs, check=False)
        if done.returncode:
            raise RuntimeError(done.stderr)
        times = sorted(int(row.split()[2]) for log in pathlib.Path(logs).iterdir() for row in log.read_text().splitlines())
    tps = re.search(r"tps = ([\d.]+)", done.stdout)
    if not tps:
        raise RuntimeError(f"pgbench has measured nothing, give it more --seconds: {done.stdout}")
    tps = float(tps[1])
    return tps, times[len(times) // 2], times[len(times) * 99 // 100]


def case_pgbench(arguments):
    with tempfile.TemporaryDirectory() as directory:
        os.chmod(directory, 0o755)
        with postgres(directory, False) as (_, plain), postgres(directory, True) as (_, quick):
            for clients in (1, 8, 100):
                turns = [[], []]
                for _ in range(arguments.rounds):
                    for past, environment in ((0, plain), (1, quick)):
                        turns[past].append(pgbench(environment, past, clients, arguments.seconds))
                for column, what, unit in ((0, "TPS", ""), (1, "p50", "us"), (2, "p99", "us")):
                    line(f"pgbench -S prepared, direct, {clients} connections, {what}", *([t[column] for t in turn] for turn in turns), unit)


@contextlib.contextmanager
def pooler(directory, port, enable):
    here = free_port()
    path = pathlib.Path(directory) / f"hawser-{here}.toml"
    path.write_text(f"""[listen]
address = "127.0.0.1:{here}"
[bypass]
enable = "{enable}"
[admin]
control_socket = "{directory}/hawser-{here}.sock"
http_address = ""
[[database]]
name = "*"
servers = ["127.0.0.1:{port}"]
pool_size = 20
[[user]]
name = "postgres"
password = "p"
""")
    server = subprocess.Popen([HAWSER, "serve", "-c", path], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        wait_for_port(here)
        yield here, server.pid
    finally:
        stop(server, limit_s=STOP_S)


def case_hawser(arguments):
    with tempfile.TemporaryDirectory() as directory:
        os.chmod(directory, 0o755)
        with contextlib.ExitStack() as stack:
            port, environment = stack.enter_context(postgres(directory, False))
            poolers = [stack.enter_context(pooler(directory, port, enable)) for enable in ("off", "on")]
            for clients in (1, 8, 100):
                turns, costs = [[], []], [[], []]
                for _ in range(arguments.rounds):
                    for past, (here, pid) in enumerate(poolers):
                        before = process_cpu_s(pid)
                        said = pgbench({**environment, "PGPORT": str(here), "PGPASSWORD": "p"}, False, clients, arguments.seconds)
                        turns[past].append(said)
                        costs[past].append((process_cpu_s(pid) - before) / (said[0] * arguments.seconds) * 1e6)
                for column, what, unit in ((0, "TPS", ""), (1, "p50", "us"), (2, "p99", "us")):
                    line(f"through Hawser, both legs, {clients} connections, {what}", *([t[column] for t in turn] for turn in turns), unit)
                line(f"through Hawser, both legs, {clients} connections, CPU", *costs, "us")
            print(f"  {json.dumps(standing())}")


def case_redis(arguments):
    server, load = shutil.which("redis-server"), shutil.which("redis-benchmark")
    if not server or not load:
        print("redis: skipped, there is no redis-server here")
        return
    turns = [[], []]
    for _ in range(arguments.rounds):
        for past in (0, 1):
            port = free_port()
            serving = subprocess.Popen(within(past, server, "--port", port, "--save", "", "--bind", "127.0.0.1"), stdout=subprocess.DEVNULL)
            try:
                wait_for_port(port)
                done = subprocess.run(within(past, load, "-p", port, "-c", 50, "-n", 100_000, "-t", "get", "--csv"), capture_output=True, text=True, check=True)
                row = done.stdout.splitlines()[-1].replace('"', "").split(",")
                turns[past].append((float(row[1]), float(row[4]), float(row[6])))
            finally:
                stop(serving, limit_s=STOP_S)
    for column, what, unit in ((0, "requests/s", ""), (1, "p50", "ms"), (2, "p99", "ms")):
        line(f"redis-benchmark c50 GET, {what}", *([t[column] for t in turn] for turn in turns), unit)


def case_sockperf(arguments):
    if not shutil.which("sockperf"):
        print("sockperf: skipped, it is not installed")
        return
    turns = [[], []]
    for _ in range(arguments.rounds):
        for past in (0, 1):
            port = free_port()
            words = ("--tcp", "-i", "127.0.0.1", "-p", port)
            serving = subprocess.Popen(within(past, "sockperf", "server", *words, blocking=True), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            try:
                wait_for_port(port)
                done = subprocess.run(within(past, "sockperf", "ping-pong", *words, "-t", arguments.seconds, blocking=True), capture_output=True, text=True, check=True)
                percentiles = dict(re.findall(r"percentile ([\d.]+) = +([\d.]+)", done.stdout))
                average = re.search(r"avg-latency=([\d.]+)", done.stdout)[1]
                turns[past].append([float(figure) for figure in (average, *(percentiles[name] for name in ("50.000", "90.000", "99.000", "99.900")))])
            finally:
                stop(serving, limit_s=STOP_S)
    for column, what in enumerate(("average", "p50", "p90", "p99", "p99.9")):
        line(f"sockperf ping-pong, both ends block, one way, {what}", *([t[column] for t in turn] for turn in turns), "us")


PAIR = """
import json, os, select, socket, struct, sys, time
def pair():
    listener = socket.socket(); listener.bind(("127.0.0.1", 0)); listener.listen()
    near = socket.socket(); near.setblocking(False); near.connect_ex(listener.getsockname())
    far, _ = listener.accept(); far.setblocking(False); listener.close()
    wait = select.poll(); wait.register(near, select.POLLOUT); wait.poll()
    return near, far
"""

BULK = PAIR + """
size, total = int(sys.argv[1]), 1 << 30
near, far = pair()
begin = time.monotonic()
if os.fork() == 0:
    piece, left = bytes(size), total
    while left:
        select.select([], [near], [])
        left -= near.send(piece[:left])
    os._exit(0)
near.close()
read, buffer = 0, bytearray(1 << 18)
while read < total:
    select.select([far], [], [])
    read += far.recv_into(buffer)
print(total / (time.monotonic() - begin) / 1e9)
"""

UNREAD = PAIR + """
count, size = int(sys.argv[1]), int(sys.argv[2])
def kernel():
    # What is counted for TCP's sockets, and the heads of messages past TCP, which are counted nowhere (free memory
    # says nothing on a machine where others work). KiB.
    pages = int(open("/proc/net/sockstat").read().split("TCP: ")[1].split("mem ")[1].split()[0])
    heads = sum(int(row.split()[1]) for row in open("/proc/slabinfo") if row.split()[0] in ("kmalloc-1k", "kmalloc-cg-1k"))
    return pages * 4 + heads
import resource
resource.setrlimit(resource.RLIMIT_NOFILE, (16384, 16384))
pairs = [pair() for _ in range(count)]
time.sleep(0.5)
before, sent, errors = kernel(), 0, []
for near, far in pairs:
    mine = 0
    while mine < 64 << 20 and not (size < 100 and mine > 100_000):
        try: taken = near.send(bytes(size))
        except BlockingIOError: break
        except OSError as error: errors.append(str(error)); break
        mine += taken
    sent += mine
time.sleep(0.2)
print(json.dumps({"memory_mb": (kernel() - before) / 1024, "sent_mb": sent / 1e6, "errors": sorted(set(errors))}))
"""

CHURN = PAIR + """
count = int(sys.argv[1])
listener = socket.socket(); listener.bind(("127.0.0.1", 0)); listener.listen(64)
address = listener.getsockname()
for number in range(count):
    near = socket.socket(); near.setblocking(False); near.connect_ex(address)
    far, _ = listener.accept(); far.setblocking(False)
    near.send(b"ping")
    while True:
        try: assert far.recv(4) == b"ping"; break
        except BlockingIOError: pass
    # A reset leaves no TIME_WAIT: the ports last.
    near.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    near.close(); far.close()
print(count)
"""


def script(past, text, *words):
    done = subprocess.run(within(past, sys.executable, "-c", text, *words), capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(done.stderr)
    return done.stdout.strip()


def case_bulk(arguments):
    for size in (4_000, 64_000, 1_000_000):
        turns = [[], []]
        for _ in range(arguments.rounds):
            for past in (0, 1):
                turns[past].append(float(script(past, BULK, size)))
        line(f"bulk, 1 GiB in pieces of {size}", *turns, "GB/s")


def case_unread(arguments):
    for count, size in ((1, 60_000), (1, 1), (arguments.unread, 60_000), (arguments.unread, 1)):
        tcp, past = (json.loads(script(way, UNREAD, count, size)) for way in (0, 1))
        line(f"never read, {count} connections, pieces of {size}", [tcp["memory_mb"]], [past["memory_mb"]], "MB",
             f"sent {tcp['sent_mb']:.1f} and {past['sent_mb']:.1f} MB; errors {tcp['errors']} {past['errors']}")


def slab_kb():
    return int(re.search(r"SUnreclaim: +(\d+)", pathlib.Path("/proc/meminfo").read_text())[1])


def case_churn(arguments):
    count, holder = arguments.churn, subprocess.Popen(within(True, "sleep", "3600"))
    try:
        while standing()["state"] != "on":
            time.sleep(0.1)
        script(True, CHURN, 1000)
        before = slab_kb()
        begin = time.monotonic()
        script(True, CHURN, count)
        said = standing()
        print(f"{count} connections opened and closed in {time.monotonic() - begin:.0f} s: {said['sockets']} sockets left, kernel's slabs "
              f"{(slab_kb() - before) / 1024:+.1f} MB, {said['redirected']} messages past TCP", flush=True)
    finally:
        stop(holder, limit_s=STOP_S)


def case_chaos(arguments):
    """Rounds of a minute: the loader is killed at a third of it, `off` comes at two thirds."""
    until, rounds = time.monotonic() + arguments.chaos_seconds, 0
    totals = {}
    while time.monotonic() < until:
        seconds, seed = min(60.0, max(6.0, until - time.monotonic())), random.getrandbits(32)
        running = subprocess.Popen(within(True, sys.executable, CHAOS, "--seconds", seconds, "--seed", seed), stdout=subprocess.PIPE, text=True)
        manner = rounds % 3
        # (On a busy machine the loader takes its time, and is not to die before it has loaded.)
        started = wait_until(lambda: standing()["runs"], seconds)
        if manner > 0:
            time.sleep(seconds / 3)
            running.kill()  # the loader; what it has started goes on
        else:
            time.sleep(seconds / 3)
        time.sleep(seconds / 3)
        counted = standing()
        if manner > 1:
            bypass("off", check=True)
        said = running.stdout.read()
        running.wait()
        bypass("off", check=True)
        found = json.loads(said or "{}")
        print(f"  chaos, {('to its end', 'loader killed', 'loader killed, then off')[manner]}: {said.strip()} {json.dumps(counted)}", flush=True)
        if not said or found["wrong"] or running.returncode not in (0, -signal.SIGKILL):
            print(f"chaos: WRONG, seed {seed}, exit code {running.returncode}, {'' if started else 'not '}started")
            sys.exit(1)
        for name, value in found.items():
            if isinstance(value, int) and name != "seed":
                totals[name] = totals.get(name, 0) + value
        rounds += 1
    print(f"chaos: {rounds} rounds, {json.dumps(totals)}: no byte lost, doubled or out of order", flush=True)


CASES = {name.removeprefix("case_"): value for name, value in list(globals().items()) if name.startswith("case_")}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("case", nargs="*", choices=[*CASES, []])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=int, default=5)
    parser.add_argument("--churn", type=int, default=1_000_000)
    parser.add_argument("--unread", type=int, default=1000, help="readers that never read; TCP alone holds some 4 MB of each")
    parser.add_argument("--chaos-seconds", type=int, default=600)
    arguments = parser.parse_args()
    own_mounts()
    print(f"{'':<56} {'TCP':>12} {'bypass':>12} {'':<8} {'ratio':>6}")
    for name in arguments.case or CASES:
        CASES[name](arguments)
    return 0


if __name__ == "__main__":
    sys.exit(main())
