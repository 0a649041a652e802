#!/usr/bin/env python3
"""What session state costs clients that have none: Hawser beside a program from before sessions moved.

    git worktree add /tmp/before 6f5b078        # the last commit before
    (cd /tmp/before && cargo build --release -p hawser)
    python3 bench/pooler/unused_state.py --before /tmp/before/target/release/hawser --out docs/benchmarks

Instructions in user space are counted by valgrind (cachegrind without its caches), since virtual machines often count none:
the whole program, twice, with few transactions and with many; what the rest of these takes, by their number, is one
transaction's. What it does by the clock while nobody asks (timers) is counted apart, and taken off: under valgrind a
transaction takes long. 4 clients take turns on the pool, so that each transaction is of another client than the one before. Time is CPU
time a transaction with 100 clients at work, in turns, as in bench/pooler/run.py.
"""

import argparse
import itertools
import os
import pathlib
import re
import shutil
import signal
import socket
import struct
import sys
import time
from statistics import median

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "common"))
import cases
import cluster
import poolers
import report
import run
from cluster import DATABASE, USER, Cluster, Unavailable, raise_descriptor_limit, stop

cluster.START_LIMIT_S = 180  # valgrind takes its time
CLIENTS = 4
FEW, MANY = 1000, 4000
IDLE_S = 10
INSTRUCTIONS_MAX = 1.02
TIME_MAX = 1.05
VALGRIND_STOP_S = 60
QUERY = "SELECT abalance FROM pgbench_accounts WHERE aid = "
LOADS = {
    "prepared": "Bind and Execute of a prepared statement",
    "extended": "Parse, Bind and Execute",
    "simple": "a simple query",
    "block": "BEGIN, UPDATE, SELECT, COMMIT as simple queries",
}
TIMED = {
    "prepared": {},
    "simple": {"protocol": "simple"},
    "7 statements": {"workload": "tpcb"},
}


def message(kind, body):
    return kind + struct.pack("!I", len(body) + 4) + body


def query(sql):
    return message(b"Q", sql.encode() + b"\0")


def execute(name, value):
    """Bind of one text parameter, Describe of the portal, Execute, Sync."""
    text = str(value).encode()
    bind = b"\0" + name + b"\0" + struct.pack("!HHi", 0, 1, len(text)) + text + struct.pack("!HH", 1, 0)
    return message(b"B", bind) + message(b"D", b"P\0") + message(b"E", b"\0\0\0\0\0") + message(b"S", b"")


def parse(name):
    return message(b"P", name + b"\0" + QUERY.encode() + b"$1\0\0\0")


def exchanges(load, value):
    """What a client sends for one transaction; each waits for its ReadyForQuery."""
    if load == "prepared":
        return [execute(b"s", value)]
    if load == "extended":
        return [parse(b"") + execute(b"", value)]
    if load == "simple":
        return [query(f"{QUERY}{value}")]
    update = f"UPDATE pgbench_accounts SET abalance = abalance + 1 WHERE aid = {value}"
    return [query("BEGIN"), query(update), query(f"{QUERY}{value}"), query("COMMIT")]


class Client:
    def __init__(self, port):
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=60)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        fields = f"user\0{USER}\0database\0{DATABASE}\0\0".encode()
        self.exchange(struct.pack("!II", 8 + len(fields), 196608) + fields)
        self.exchange(parse(b"s") + message(b"S", b""))

    def exchange(self, sent):
        self.socket.sendall(sent)
        pending = b""
        while not pending.endswith(b"Z\0\0\0\5I") and not pending.endswith(b"Z\0\0\0\5T"):
            if not (some := self.socket.recv(65536)):
                raise Unavailable("the connection has ended")
            if some[:1] == b"E":
                raise Unavailable(f"an error: {some!r}")
            pending += some


def refs_while(contestant, server, play):
    """Instructions of the whole program, from its start to its end, while `play` is given it as it runs."""
    with contestant.start(server, tls=False) as running:
        play(running)
        [process] = running.processes
        stop(process, signal.SIGTERM, VALGRIND_STOP_S)
        with open(running.log, errors="replace") as log:
            found = re.search(r"I\s+refs:\s+([\d,]+)", log.read())
    if not found:
        raise Unavailable("valgrind gave no count")
    return int(found.group(1).replace(",", ""))


def instructions(contestant, server, load, transactions, rest_s=0):
    """Of the whole program, from its start to its end; and the seconds that its clients were there."""
    seconds = 0.0

    def play(running):
        nonlocal seconds
        begin = time.monotonic()
        clients = [Client(running.port) for _ in range(CLIENTS)]
        for number, client in zip(range(transactions), itertools.cycle(clients)):
            for sent in exchanges(load, 10_000 + number):
                client.exchange(sent)
        time.sleep(rest_s)
        seconds = time.monotonic() - begin
        for client in clients:
            client.socket.close()

    return refs_while(contestant, server, play), seconds


def under_valgrind(program, directory):
    """A program that runs the other one, to be started as a pooler is."""
    valgrind = shutil.which("valgrind")
    if not valgrind:
        raise Unavailable("there is no valgrind")
    path = os.path.join(directory, f"counted-{os.path.basename(program)}-{abs(hash(program))}")
    with open(path, "w") as out:
        out.write(f'#!/bin/sh\nexec "{valgrind}" --tool=cachegrind --cache-sim=no --cachegrind-out-file=/dev/null "{program}" "$@"\n')
    os.chmod(path, 0o755)
    return path


def count(programs, cluster):
    """{load: {name: instructions a transaction}}"""
    found, a_second = {}, {}
    for load in LOADS:
        found[load] = {}
        for name, (program, extra) in programs.items():
            counted = poolers.Contestant("hawser", name, under_valgrind(program, cluster.directory), extra=extra)
            few, few_s = instructions(counted, cluster, load, FEW)
            if name not in a_second:
                rests, rests_s = instructions(counted, cluster, load, FEW, IDLE_S)
                a_second[name] = (rests - few) / (rests_s - few_s)
            many, many_s = instructions(counted, cluster, load, MANY)
            found[load][name] = (many - few - a_second[name] * (many_s - few_s)) / (MANY - FEW)
        print(f"  {load}: " + ", ".join(f"{name} {value:,.0f}" for name, value in found[load].items()), flush=True)
    return found


def time_them(programs, cluster, generator, rounds, seconds):
    """{load: {name: [CPU us a transaction of each round]}}"""
    setting = cases.Setting(cluster, generator, seconds, 1.0, 0, cluster.scale, False)
    found = {load: {name: [] for name in programs} for load in TIMED}
    for number in range(rounds):
        for load, options in TIMED.items():
            for name, (program, extra) in programs.items():
                with poolers.Contestant("hawser", name, program, extra=extra).start(cluster, tls=False) as running:
                    figures = cases.load(setting, running, clients=100, **options)
                found[load][name].append(figures["cpu_us"])
            print(f"  {number + 1} {load}: " + ", ".join(f"{name} {of[-1]:.1f}" for name, of in found[load].items()), flush=True)
    return found


def verdict(ratio, most):
    return "yes" if ratio <= most else "**no**"


def write(counted, timed, about, what, out):
    names = ["before", "full", "classic"]
    lines = [
        "# What session state costs those who have none", "",
        "Written by `bench/pooler/unused_state.py`, which says how. `before` is commit 6f5b078, the last one in which no setting, role, "
        f"LISTEN or PREPARE moved; `full` and `classic` are {what} with that `fidelity`.", "",
        f"{about}", "",
        f"## Instructions a transaction (at most {INSTRUCTIONS_MAX} x)", "",
    ]  # fmt: skip
    rows = [[LOADS[load], *(f"{of[name]:,.0f}" for name in names), f"{of['full'] / of['before']:.3f} x",
             f"{of['classic'] / of['before']:.3f} x", verdict(of["full"] / of["before"], INSTRUCTIONS_MAX)]
            for load, of in counted.items()]  # fmt: skip
    lines += [report.table(["", *names, "full / before", "classic / before", "met"], rows)]
    if timed:
        lines += [f"## CPU us a transaction, 100 clients (at most {TIME_MAX} x)", "",
                  "Medians of the rounds; the ratio is the median of those within a round.", ""]  # fmt: skip
        rows = []
        for load, of in timed.items():
            ratios = [full / before for full, before in zip(of["full"], of["before"], strict=True)]
            shown = f"{median(ratios):.3f} x ({min(ratios):.2f} to {max(ratios):.2f})"
            rows.append([load, *(f"{median(of[name]):.1f}" for name in names), shown, verdict(median(ratios), TIME_MAX)])
        lines += [report.table(["", *names, "full / before", "met"], rows)]
    os.makedirs(out, exist_ok=True)
    with open(os.path.join(out, "unused-state.md"), "w") as file:
        file.write("\n".join(lines))
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--before", required=True, help="the program from before")
    parser.add_argument("--program", default=os.environ.get("HAWSER") or os.path.join(run.target_directory(), "release", "hawser"))
    parser.add_argument("--what", default="the present program", help="what --program is, for the report")
    parser.add_argument("--rounds", type=int, default=7, help="of the timed part [7]; 0: none")
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--out", default=run.TRIAL)
    given = parser.parse_args()
    classic = 'fidelity = "classic"\n'
    programs = {"before": (os.path.abspath(given.before), ""), "full": (os.path.abspath(given.program), ""),
                "classic": (os.path.abspath(given.program), classic)}  # fmt: skip
    try:
        descriptors = raise_descriptor_limit()
        generator = run.generator_program() if given.rounds else ""
        with Cluster(10, 200) as cluster:
            about = run.machine(cluster, descriptors, False)
            counted = count(programs, cluster)
            timed = time_them(programs, cluster, generator, given.rounds, given.seconds) if given.rounds else {}
        text = f"{about['cores']} cores ({about['cpu']}), Linux {about['kernel']}, PostgreSQL {about['postgres']}, 10 server connections."
        print(write(counted, timed, text, given.what, given.out))
    except Unavailable as error:
        print(f"bench: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
