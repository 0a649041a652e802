#!/usr/bin/env python3
"""What it costs that shared statements grow old (`parse_max_age`): clients that parse on each connect, and those that never do again.

    python3 bench/pooler/parse_age.py --out docs/benchmarks

The same program three times: `never`, with an age that no run reaches (a Parse is answered with what the server has, as before
statements had an age), `1s`, the default, and `each`, in which every Parse goes to the server. Instructions of the pooler are
counted as in bench/pooler/unused_state.py. CPU time is that of pooler and server by their CPU clocks, in turns: within a round each
setting serves the same number of clients, which connect, run one of TEXTS statements by Parse, Bind, Execute, and leave.
"""

import argparse
import itertools
import os
import pathlib
import socket
import struct
import sys
from statistics import median

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "common"))
import cpu
import poolers
import report
import run
import unused_state
from cluster import Cluster, Unavailable, raise_descriptor_limit
from unused_state import Client, execute, message

AGES = {"never": "1d", "1s": "1s", "each": "0"}
TEXTS = 20
# Under valgrind.
FEW, MANY = 200, 800
# Clients of one setting in a round.
CLIENTS = 3000
COST_MAX = 1.03


class Visit(Client):
    """Connects, runs one statement, leaves: what a script does for each request."""

    def __init__(self, port, number):
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=60)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        fields = f"user\0{unused_state.USER}\0database\0{unused_state.DATABASE}\0\0".encode()
        self.exchange(struct.pack("!II", 8 + len(fields), 196608) + fields)
        text = f"/* {number % TEXTS} */ {unused_state.QUERY}$1"
        self.exchange(message(b"P", b"\0" + text.encode() + b"\0\0\0") + execute(b"", 10_000 + number))
        self.socket.sendall(message(b"X", b""))
        self.socket.close()


def contestant(age, program):
    return poolers.Contestant("hawser", age, program, pool=f'parse_max_age = "{AGES[age]}"\n')


def visits(running, count):
    for number in range(count):
        Visit(running.port, number)


def steady(running, count):
    clients = [Client(running.port) for _ in range(unused_state.CLIENTS)]
    for number, client in zip(range(count), itertools.cycle(clients)):
        client.exchange(execute(b"s", 10_000 + number))
    for client in clients:
        client.socket.close()


def count(program, cluster):
    """{load: {age: instructions of the pooler for one client or transaction}}; its timers are in both runs, and in the difference
    little."""
    found = {}
    for load, play, scale in (("visits", visits, 1), ("steady", steady, 5)):
        found[load] = {}
        for age in AGES:
            counted = contestant(age, unused_state.under_valgrind(program, cluster.directory))
            few, many = (unused_state.refs_while(counted, cluster, lambda running: play(running, of * scale)) for of in (FEW, MANY))
            found[load][age] = (many - few) / ((MANY - FEW) * scale)
        print(f"  {load}: " + ", ".join(f"{age} {value:,.0f}" for age, value in found[load].items()), flush=True)
    return found


def time_them(program, cluster, rounds):
    """{age: [(CPU us of the pooler, of the server) for one visit, of each round]}, and visits a second of the last."""
    found = {age: [] for age in AGES}
    for number in range(rounds):
        for age in AGES:
            with contestant(age, program).start(cluster, tls=False) as running:
                visits(running, 10 * TEXTS)
                looks = [lambda: cpu.tree_cpu_s(running.pids), lambda: cpu.tree_cpu_s([cluster.process.pid])]
                begin = [look() for look in looks]
                visits(running, CLIENTS)
                found[age].append([(look() - was) * 1e6 / CLIENTS for look, was in zip(looks, begin)])
        print(f"  {number + 1}: " + ", ".join(f"{age} {of[-1][0]:.0f} + {of[-1][1]:.0f}" for age, of in found.items()), flush=True)
    return found


def written(counted, timed, about):
    ages = list(AGES)
    lines = ["# What it costs that shared statements grow old", "", "Written by `bench/pooler/parse_age.py`, which says how. `never`: no "
                                                                    "statement grows old; `1s`: "
             "the default of [`parse_max_age`](../configuration.md#parse_max_age); `each`: every Parse goes to the server. "
             "Why statements grow old: [decision 6](../decisions/0006-statements-grow-old.md).", "", about, ""]
    titles = {"visits": "a client that connects, parses, executes and leaves", "steady": "Bind and Execute of a prepared statement"}
    lines += ["## Instructions of the pooler", "", report.table(
        ["", *ages, "1s / never", "each / never"],
        [[titles[load], *(f"{of[age]:,.0f}" for age in ages), *(f"{of[age] / of['never']:.3f} x" for age in ages[1:])]
         for load, of in counted.items()])]
    if timed:
        rows = []
        for title, pick in (("pooler", lambda it: it[0]), ("server", lambda it: it[1]), ("both", sum)):
            by = {age: [pick(it) for it in of] for age, of in timed.items()}
            ratios = [f"{median(one / never for one, never in zip(by[age], by['never'])):.3f} x" for age in ages[1:]]
            rows.append([title, *(f"{median(by[age]):.0f}" for age in ages), *ratios])
        rounds = len(timed["never"])
        lines += ["## CPU us for a client that connects, parses, executes and leaves", "",
                  f"Medians of {rounds} rounds of {CLIENTS:,} clients, one after the other, {TEXTS} texts; the ratio is the median of "
                  f"those within a round. "
                  f"At most {COST_MAX} x is the aim of `1s`.", "", report.table(["", *ages, "1s / never", "each / never"], rows)]
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--program", default=os.environ.get("HAWSER") or os.path.join(run.target_directory(), "release", "hawser"))
    parser.add_argument("--rounds", type=int, default=7, help="of the timed part [7]; 0: none")
    parser.add_argument("--out", default=run.TRIAL)
    given = parser.parse_args()
    program = os.path.abspath(given.program)
    try:
        descriptors = raise_descriptor_limit()
        with Cluster(10, 200) as cluster:
            about = run.machine(cluster, descriptors, False)
            counted = count(program, cluster)
            timed = time_them(program, cluster, given.rounds) if given.rounds else {}
    except Unavailable as error:
        print(f"bench: {error}", file=sys.stderr)
        return 1
    text = written(counted, timed, f"{about['cores']} cores ({about['cpu']}), Linux {about['kernel']}, PostgreSQL {about['postgres']}, "
                                   f"{poolers.POOL_SIZE} server connections.")
    os.makedirs(given.out, exist_ok=True)
    with open(os.path.join(given.out, "parse-age.md"), "w") as file:
        file.write(text)
    print(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
