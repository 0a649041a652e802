#!/usr/bin/env python3
"""What `hawser mptcp run` costs a program: the same client, plain and under `run`, in blocks of milliseconds in turns.

    python3 bench/multipath/mptcp_run.py                          # writes bench/out/mptcp-run.md

    plain          the client as it is
    supervised     under `hawser cc run --algorithm cubic`: the same filter and supervisor, and sockets of TCP
    mptcp          under `hawser mptcp run`, to a server that takes TCP: MPTCP sockets that fall back

Rounds of seconds differ by a fifth on a machine that others use, and no number of them shows one in a hundred. So three
clients (bench/multipath/run_cost.c, by libpq), each with one connection, on one processor together with the server, take turns: a
few milliseconds of work each, of which the clients count their own time of the processor. A ratio is that of two blocks
that are next to each other, in both orders. But where a process and its server's process lie in memory alone makes one
per cent, of whole sets of clients: so there are many sets, and of each the median ratio counts. Shown is the median of
those, and within what it lies with 95 % (the order statistics that the binomial distribution gives).
"""

import argparse
import json
import math
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "common"))
from cluster import DATABASE, USER, Cluster

ROOT = pathlib.Path(__file__).resolve().parents[2]
# What is done, how often in a block, and what it is called.
KINDS = {
    "q": (100, "`pgbench -S -M prepared`'s transaction, by libpq"),
    "c": (1, "COPY of 2 MB to the client, by libpq"),
    "g": (20_000, "getppid()"),
    "r": (4_000, "write() and read() of a byte on a unix socket pair"),
    "s": (20, "socket() and close()"),
}


class Client:
    """One that takes blocks."""

    def __init__(self, program, under, conninfo):
        self.process = subprocess.Popen([*under, program, conninfo], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd="/")

    def block(self, kind, count):
        """Nanoseconds of the processor and of the clock, for each."""
        self.process.stdin.write(f"{kind} {count}\n")
        self.process.stdin.flush()
        return [int(word) / count for word in self.process.stdout.readline().split()]

    def end(self):
        self.process.stdin.close()
        self.process.wait()


def interval(values):
    """The median, and between which of the values it lies with 95 %."""
    values, count = sorted(values), len(values)
    aside = math.ceil(1.96 * math.sqrt(count) / 2)
    return statistics.median(values), values[max(count // 2 - aside, 0)], values[min(count // 2 + aside, count - 1)]


def turns(clients, kind, count, rounds):
    """{way: [block]}: in each round every way once, in an order that turns."""
    names, blocks = list(clients), {name: [] for name in clients}
    for name in names:  # not counted
        clients[name].block(kind, count)
    for number in range(rounds):
        order = names[number % 3:] + names[:number % 3]
        for name in reversed(order) if number % 2 else order:
            blocks[name].append(clients[name].block(kind, count))
    return blocks


def report(measured, rounds):
    lines = ["| | plain | supervised, more | mptcp, more |", "|---|---|---|---|"]
    for kind, blocks in measured.items():
        for figure, title in ((0, "time of the processor"), (1, "time")):
            # Of system calls there is one kind of time; of socket() the supervisor's is not the program's.
            if kind in "gr" and figure == 1 or kind == "s" and figure == 0:
                continue
            plain = [block[figure] for block in blocks["plain"]]
            cells = [f"{statistics.median(plain) / 1000:.3f} us"]
            for way in ("supervised", "mptcp"):
                pairs = list(zip(blocks[way], plain))
                of_sets = [pairs[at:at + rounds] for at in range(0, len(pairs), rounds)]
                ratio, low, high = interval([statistics.median(block[figure] / base - 1 for block, base in one) for one in of_sets])
                more, least, most = interval([statistics.median(block[figure] - base for block, base in one) for one in of_sets])
                cells.append(f"**{ratio * 100:+.2f} %** ({low * 100:+.2f} to {high * 100:+.2f}), {more:+.0f} ns ({least:+.0f} to "
                             f"{most:+.0f})")
            lines.append(f"| {KINDS[kind][1]}: {title} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def build(directory):
    include, library = (subprocess.run(["pg_config", f"--{what}"], capture_output=True, text=True, check=True).stdout.strip()
                        for what in ("includedir", "libdir"))
    program = pathlib.Path(directory) / "run_cost"
    subprocess.run(["cc", "-O2", f"-I{include}", "-o", program, ROOT / "bench/multipath/run_cost.c", f"-L{library}", "-lpq"], check=True)
    return str(program)


def main():
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--sets", type=int, default=60)
    arguments.add_argument("--rounds", type=int, default=60, help="of each set")
    arguments.add_argument("--only", action="append", choices=KINDS)
    arguments.add_argument("--processor", type=int, default=max(os.sched_getaffinity(0)))
    arguments.add_argument("--hawser", default=str(ROOT / "target/release/hawser"))
    arguments.add_argument("--out", type=pathlib.Path, default=ROOT / "bench/out")
    given = arguments.parse_args()
    under = {"plain": [], "supervised": [given.hawser, "cc", "run", "--algorithm", "cubic", "--"],
             "mptcp": [given.hawser, "mptcp", "run", "--"]}
    os.sched_setaffinity(0, {given.processor})
    with Cluster(1, 100) as cluster, tempfile.TemporaryDirectory() as directory:
        os.chmod(directory, 0o755)
        program = build(directory)
        conninfo = f"host=127.0.0.1 port={cluster.port} user={USER} dbname={DATABASE} sslmode=disable"
        measured = {kind: {way: [] for way in under} for kind in given.only or KINDS}
        for _ in range(given.sets):
            clients = {way: Client(program, words, conninfo) for way, words in under.items()}
            for kind, blocks in measured.items():
                for way, more in turns(clients, kind, KINDS[kind][0], given.rounds).items():
                    blocks[way] += more
            for client in clients.values():
                client.end()
    given.out.mkdir(parents=True, exist_ok=True)
    (given.out / "mptcp-run.json").write_text(json.dumps(measured))
    (given.out / "mptcp-run.md").write_text(report(measured, given.rounds))
    print(report(measured, given.rounds))


if __name__ == "__main__":
    main()
