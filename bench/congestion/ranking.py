#!/usr/bin/env python3
"""Is the ranking of `hawser cc bench` that of iperf3? Runs of 60 s by each, in turns, over `long-fat` in real time.

    python3 bench/congestion/ranking.py                                  # writes bench/out/ranking.md
    python3 bench/congestion/ranking.py --runs 1 --seconds 20            # a shorter one

The far host sends. Both give what the receiver had after the first 5 s, medians of the runs. Each of the two has a
network of its own, both with the same seed: the n-th packet of either is lost or not alike. They run at the same time.

It needs root, iperf3 3.1 or later, and the algorithms in the kernel; cubic as the hosts' default needs to be in
net.ipv4.tcp_allowed_congestion_control.
"""

import argparse
import concurrent.futures
import contextlib
import json
import pathlib
import subprocess
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "common"))
from far_server import HAWSER, ROOT, late_share, median, run, shown

STARTUP = 5
TOKEN = "a token for this benchmark"
# Two figures that differ by less than this part of the larger one are in no order.
ALIKE = 0.2


class Network:
    """`long-fat`, with a server on its far host."""

    def __init__(self, name, seed):
        self.name, self.seed = f"ranking-{name}-{time.monotonic_ns() % 10**9}", seed

    def inside(self, host, *command):
        return [HAWSER, "lab", "run", self.name, "--on", host, "--accept-unfaithful", "--", *map(str, command)]

    @contextlib.contextmanager
    def up(self, *server):
        run(HAWSER, "lab", "up", "long-fat", "--name", self.name, "--seed", self.seed)
        try:
            process = subprocess.Popen(self.inside("far", *server), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            time.sleep(1)
            assert process.poll() is None, f"{server[0]} has not come up"
            yield self
        finally:
            self.report = json.loads(run(HAWSER, "lab", "report", self.name, "--json", check=False).stdout or "{}")
            run(HAWSER, "lab", "down", self.name, check=False)


def by_iperf3(algorithms, given):
    network, found = Network("iperf3", given.seed), {name: [] for name in algorithms}
    with network.up("iperf3", "-s"):
        for number in range(given.runs):
            for place in range(len(algorithms)):
                name = algorithms[(place + number) % len(algorithms)]
                said = run(*network.inside("near", "iperf3", "-c", "10.77.0.2", "-R", "-C", name, "-O", STARTUP,
                                           "-t", given.seconds - STARTUP, "-J"), check=False)
                try:
                    rate = json.loads(said.stdout)["end"]["sum_received"]["bits_per_second"] / 1e6
                except (KeyError, ValueError):
                    raise AssertionError(f"iperf3 -C {name}: {said.stdout[-500:]}{said.stderr}") from None
                found[name].append(rate)
                print("iperf3", name, f"{rate:.2f} Mbit/s", flush=True)
    return found, late_share(network)


def by_bench(algorithms, given):
    network = Network("bench", given.seed)
    with network.up("env", f"HAWSER_CC_TOKEN={TOKEN}", HAWSER, "cc", "serve", "--listen", "10.77.0.2:6480"):
        said = run(*network.inside("near", "env", f"HAWSER_CC_TOKEN={TOKEN}", HAWSER, "cc", "bench", "10.77.0.2", "--only", "down",
                                   "--no-udp",
                                   "--algorithms", ",".join(algorithms), "--seconds", given.seconds, "--rounds", given.runs, "--json"),
                                   check=False)
        assert said.returncode == 0, said.stderr
        print(said.stderr, end="", flush=True)
    outcomes = {one["algorithm"]: [each["steady"] / 1e6 for each in one["runs"]] for one in json.loads(said.stdout)["outcomes"]}
    return outcomes, late_share(network)


def disagreements(one, other):
    """Pairs that both tell apart, and not in the same order."""
    names, found = sorted(one), []
    apart = lambda rates, a, b: abs(rates[a] - rates[b]) > ALIKE * max(rates[a], rates[b])
    for place, a in enumerate(names):
        for b in names[place + 1:]:
            if apart(one, a, b) and apart(other, a, b) and (one[a] > one[b]) != (other[a] > other[b]):
                found.append(f"{a} and {b}")
    return found


def report(bench, bench_late, iperf3, iperf3_late, given):
    medians = [{name: median(rates) for name, rates in found.items()} for found in (bench, iperf3)]
    wrong = disagreements(*medians)
    lines = ["# The ranking of `hawser cc bench` against iperf3", "",
             f"Written by `bench/congestion/ranking.py`: `long-fat` in real time, the far host sends, runs of {given.seconds} s by each in "
             f"turns, both at the "
             f"same time on networks of the same seed ({given.seed}). Mbit/s at the receiver after the first {STARTUP} s, medians, "
             f"then every run.", "",
             "| algorithm | `cc bench` | iperf3 | ratio | runs of `cc bench` | of iperf3 |", "|---|---|---|---|---|---|"]
    for name in sorted(bench, key=lambda name: -medians[0][name]):
        ours, theirs = medians[0][name], medians[1][name]
        lines.append(f"| {name} | **{shown(ours, 2)}** | **{shown(theirs, 2)}** | {ours / theirs:.2f} | "
                     f"{', '.join(shown(rate, 2) for rate in bench[name])} | {', '.join(shown(rate, 2) for rate in iperf3[name])} |")
    lines += ["", "The order of those that differ by 20 % is " + ("the same." if not wrong else "**not** the same: " + ", ".join(wrong)
                                                                  + "."),
              f"Packets that left more than 1 ms late: {shown(bench_late, 2)} % and {shown(iperf3_late, 2)} %."]
    return "\n".join(lines) + "\n"


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--algorithms", default="reno,cubic,bbr")
    arguments.add_argument("--runs", type=int, default=3)
    arguments.add_argument("--seconds", type=int, default=60)
    arguments.add_argument("--seed", type=int, default=1)
    arguments.add_argument("--out", type=pathlib.Path, default=ROOT / "bench/out")
    given = arguments.parse_args()
    algorithms = given.algorithms.split(",")
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        bench, iperf3 = pool.submit(by_bench, algorithms, given), pool.submit(by_iperf3, algorithms, given)
        text = report(*bench.result(), *iperf3.result(), given)
    given.out.mkdir(parents=True, exist_ok=True)
    (given.out / "ranking.md").write_text(text)
    print(text)
    sys.exit("**not**" in text)


if __name__ == "__main__":
    main()
