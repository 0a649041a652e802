#!/usr/bin/env python3
"""What `hawser mptcp run` costs a program: pgbench -S straight to a server over loopback, in turns.

    python3 bench/mptcp_run.py                          # writes bench/out/mptcp-run.md

    plain          pgbench as it is
    supervised     under `hawser cc run --algorithm cubic`: the same filter and supervisor, and sockets of TCP
    mptcp          under `hawser mptcp run`, to a server that takes TCP: MPTCP sockets that fall back

One connection a client for the whole run, so that what remains is the filter that each system call passes. CPU is user
and system time of pgbench and its supervisor, a transaction; ratios to plain are taken within a round.
"""

import argparse
import json
import pathlib
import re
import resource
import statistics
import subprocess

from cluster import DATABASE, USER, Cluster

ROOT = pathlib.Path(__file__).resolve().parent.parent
FIGURES = (("cpu_us", "CPU a transaction", "us"), ("latency_ms", "time of a transaction", "ms"))


def measure(cluster, under, given):
    command = [*under, cluster.program("pgbench"), "-n", "-S", "-M", "prepared", "-c", given.clients, "-T", given.seconds,
               "-h", "127.0.0.1", "-p", cluster.port, "-U", USER, DATABASE]
    spent = lambda: sum(resource.getrusage(resource.RUSAGE_CHILDREN)[:2])
    begin = spent()
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, cwd="/", check=True)
    used = spent() - begin
    count = int(re.search(r"transactions actually processed: (\d+)", done.stdout).group(1))
    return {"cpu_us": used * 1e6 / count, "latency_ms": float(re.search(r"latency average = ([\d.]+) ms", done.stdout).group(1))}


def report(rounds, ways, given):
    lines = [f"`pgbench -S -M prepared -c {given.clients}` for {given.seconds} s, {len(rounds)} rounds in turns; medians, and quartiles of the rounds' ratios.", "",
             "| | " + " | ".join(ways) + " |", "|---|" + "---|" * len(ways)]
    for name, title, unit in FIGURES:
        cells = [f"{statistics.median(one['plain'][name] for one in rounds):.3f} {unit}"]
        for way in list(ways)[1:]:
            low, middle, high = statistics.quantiles([one[way][name] / one["plain"][name] for one in rounds], n=4)
            cells.append(f"**{middle:.3f}** x ({low:.3f} to {high:.3f})")
        lines.append(f"| {title} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--rounds", type=int, default=40)
    arguments.add_argument("--seconds", type=int, default=2)
    arguments.add_argument("--clients", type=int, default=4)
    arguments.add_argument("--hawser", default=str(ROOT / "target/release/hawser"))
    arguments.add_argument("--out", type=pathlib.Path, default=ROOT / "bench/out")
    given = arguments.parse_args()
    ways = {"plain": [], "supervised": [given.hawser, "cc", "run", "--algorithm", "cubic", "--"], "mptcp": [given.hawser, "mptcp", "run", "--"]}
    rounds = []
    with Cluster(1, 100) as cluster:
        for number in range(given.rounds):
            order = list(ways)
            order = order[number % 3:] + order[:number % 3]
            rounds.append({way: measure(cluster, ways[way], given) for way in order})
            print(number, json.dumps(rounds[-1]), flush=True)
    given.out.mkdir(parents=True, exist_ok=True)
    (given.out / "mptcp-run.md").write_text(report(rounds, ways, given))
    print(report(rounds, ways, given))


if __name__ == "__main__":
    main()
