#!/usr/bin/env python3
"""What `[listen] mptcp = true` costs clients that come over plain TCP: pgbench -S through two poolers in turns.

    python3 bench/multipath/mptcp_pooler.py                       # writes bench/out/mptcp-pooler.md
    python3 bench/multipath/mptcp_pooler.py --rounds 5

Two Hawsers, alike but for that setting, in front of one PostgreSQL; clients over loopback, prepared. A round is one of
each, the order in turns; a ratio is taken within a round, and their median counts. CPU is user and system time of the
pooler by its CPU clock, a transaction; where the machine counts instructions for us (perf), those as well. It needs
root or the rights of a user who may run PostgreSQL, and MPTCP in the kernel.
"""

import argparse
import json
import pathlib
import re
import statistics
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "common"))
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "pooler"))
import cpu
import poolers
from cluster import DATABASE, USER, Cluster, unprivileged

ROOT = pathlib.Path(__file__).resolve().parents[2]
WAYS = ("false", "true")


def layout(mptcp):
    def files(program, values, tls):
        made, commands = poolers.LAYOUTS["hawser"](program, values, tls)
        made["hawser.toml"] = made["hawser.toml"].replace("[listen]\n", f"[listen]\nmptcp = {mptcp}\n", 1)
        return made, commands
    return files


def measure(cluster, pooler, clients, seconds, instructions):
    """Transactions a second, latency, and the pooler's CPU for each."""
    command = [cluster.program("pgbench"), "-n", "-S", "-M", "prepared", "-c", clients, "-j", 1, "-T", seconds, "-h", "127.0.0.1",
               "-p", pooler.port, "-U", USER, DATABASE]
    counter = cpu.Instructions(pooler.pids, seconds) if instructions else None
    begin = cpu.tree_cpu_s(pooler.pids)
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, cwd="/", check=True, **unprivileged())
    used = cpu.tree_cpu_s(pooler.pids) - begin
    count = int(re.search(r"transactions actually processed: (\d+)", done.stdout).group(1))
    tps = float(re.search(r"tps = ([\d.]+)", done.stdout).group(1))
    latency = float(re.search(r"latency average = ([\d.]+) ms", done.stdout).group(1))
    result = {"tps": tps, "latency_ms": latency, "cpu_us": used * 1e6 / count}
    if counter:
        result["instructions"] = counter.per_second() * seconds / count
    return result


def report(rounds, given, instructions):
    # Of both figures more is worse.
    names = [("cpu_us", "CPU a transaction", "us"), ("latency_ms", "time of a transaction", "ms")]
    if instructions:
        names.append(("instructions", "instructions (user) a transaction", ""))
    lines = [f"`pgbench -S -M prepared -c {given.clients}` for {given.seconds} s, {len(rounds)} rounds of both ways in turns; medians, and "
             f"quartiles of the rounds' ratios.", "",
             "| | mptcp = false | mptcp = true | true by false | quartiles |", "|---|---|---|---|---|"]
    for name, title, unit in names:
        values = {way: statistics.median(one[way][name] for one in rounds) for way in WAYS}
        ratios = [one["true"][name] / one["false"][name] for one in rounds]
        low, middle, high = statistics.quantiles(ratios, n=4)
        lines.append(f"| {title} | {values['false']:.3f} {unit} | {values['true']:.3f} {unit} | **{middle:.3f}** | {low:.3f} to "
                     f"{high:.3f} |")
    return "\n".join(lines) + "\n"


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--rounds", type=int, default=60)
    arguments.add_argument("--seconds", type=int, default=2)
    arguments.add_argument("--clients", type=int, default=16)
    arguments.add_argument("--hawser", default=str(ROOT / "target/release/hawser"))
    arguments.add_argument("--out", type=pathlib.Path, default=ROOT / "bench/out")
    given = arguments.parse_args()
    instructions = cpu.counts_instructions()
    rounds = []
    for way in WAYS:
        poolers.LAYOUTS[f"hawser-{way}"] = layout(way)
    with Cluster(1, 100) as cluster:
        contestants = {way: poolers.Contestant(f"hawser-{way}", way, given.hawser) for way in WAYS}
        with contestants["false"].start(cluster, False) as off, contestants["true"].start(cluster, False) as on:
            running = {"false": off, "true": on}
            for way in WAYS:  # what the first one pays
                measure(cluster, running[way], given.clients, 1, False)
            for number in range(given.rounds):
                order = WAYS if number % 2 == 0 else WAYS[::-1]
                rounds.append({way: measure(cluster, running[way], given.clients, given.seconds, instructions) for way in order})
                print(number, json.dumps(rounds[-1]), flush=True)
    given.out.mkdir(parents=True, exist_ok=True)
    (given.out / "mptcp-pooler.md").write_text(report(rounds, given, instructions))
    print(report(rounds, given, instructions))


if __name__ == "__main__":
    main()
