#!/usr/bin/env python3
"""What clients gain whose server serves them itself: Hawser's proxy, inside, and the server alone, in turns.

    python3 bench/pooler/inside.py [--clients 1,10,100,1000] [--modes prepared,simple] [--rounds 5] [--seconds 5]
                                   [--builtin select-only] [--contestants direct,proxy,inside]

pgbench (-S, or another --builtin: simple-update is -N) against a throw-away server with the extension; each run starts its
own Hawser. Each is measured once its clients have been at work for --warm seconds: by then those that go inside are there.
The CPU is that of the server and of Hawser by their CPU clocks. HAWSER names the program, PROXY another one for the proxy
alone (a release build, where HAWSER is none).
"""

import argparse
import os
import pathlib
import re
import statistics
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "common"))
import cpu
from cluster import DATABASE, USER, Cluster, Unavailable, raise_descriptor_limit
from extension import Inside
from poolers import POOL_SIZE, Contestant
from targets import INSIDE

# How the command line names them.
NAMES = {"direct": "direct", "proxy": "hawser", "inside": INSIDE, "pgbouncer": "pgbouncer"}


def run_once(cluster, contestant, mode, clients, arguments):
    """(transactions a second, CPU us of each, p99 in ms). `inside:N`: with N places."""
    name, _, places = contestant.partition(":")
    extra = f"inside_places = {places}\n" if places else ""
    with Contestant(NAMES[name], name, arguments.programs.get(name), extra=extra).start(cluster, tls=False) as running:
        return measure(cluster, running.port, running.pids, mode, clients, arguments)


def measure(cluster, port, pids, mode, clients, arguments):
    warm, seconds = arguments.warm, arguments.seconds
    with tempfile.TemporaryDirectory() as logs:
        command = [cluster.program("pgbench"), "-h", "127.0.0.1", "-p", str(port), "-U", USER, "-n", "-b", arguments.builtin, "-M", mode,
                   "-c", str(clients), "-j", str(min(clients, 2)), "-T", str(10 * (warm + seconds)), "-P", "1",
                   "-l", "--sampling-rate=0.1", "--log-prefix", f"{logs}/l",
                   DATABASE]  # fmt: skip
        measured = [cluster.process.pid, *pids]
        with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, cwd=logs) as pgbench:
            ends, rates, said = [], [], []
            for line in pgbench.stderr:
                said.append(line)
                if found := re.match(r"progress: .* ([\d.]+) tps", line):
                    rates.append(float(found[1]))
                    if len(rates) in (warm, warm + seconds):
                        ends.append((time.time(), cpu.tree_cpu_s(measured)))
                if len(ends) == 2:
                    pgbench.terminate()
        if len(ends) < 2:
            raise Unavailable(f"pgbench: {''.join(said)[-400:]}")
        (begun, before), (ended, after) = ends
        tps = statistics.mean(rates[warm : warm + seconds])
        lines = (line.split() for name in os.listdir(logs) for line in open(os.path.join(logs, name)))
        latencies = sorted(int(line[2]) for line in lines if len(line) == 6 and begun < float(line[4]) < ended)
    return tps, (after - before) / max(tps * (ended - begun), 1) * 1e6, latencies[int(len(latencies) * 0.99)] / 1000 if latencies else 0.0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", default="1,10,100,1000")
    parser.add_argument("--modes", default="prepared,simple")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--warm", type=int, default=4)
    parser.add_argument("--seconds", type=int, default=5)
    parser.add_argument("--builtin", default="select-only")
    parser.add_argument("--contestants", default="direct,proxy,inside", help="inside:N is with N places")
    arguments = parser.parse_args()
    raise_descriptor_limit()
    root = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    own = os.environ.get("HAWSER", os.path.join(root, "target/release/hawser"))
    arguments.programs = {"inside": own, "proxy": os.environ.get("PROXY", own),
                          "pgbouncer": os.environ.get("PGBOUNCER", "/usr/sbin/pgbouncer")}  # fmt: skip
    contestants = arguments.contestants.split(",")
    try:
        with Cluster(1, 1100, Inside) as cluster:
            cluster.extension.create(cluster)
            print(f"PostgreSQL {cluster.version()}, pool {POOL_SIZE}, medians of {arguments.rounds} rounds in turns")
            print("mode      clients  contestant      TPS   CPU us   p99 ms")
            for mode in arguments.modes.split(","):
                for clients in map(int, arguments.clients.split(",")):
                    found = {name: [] for name in contestants}
                    for _ in range(arguments.rounds):
                        for name in contestants:
                            found[name].append(run_once(cluster, name, mode, clients, arguments))
                            time.sleep(0.2)
                    for name, runs in found.items():
                        tps, us, p99 = (statistics.median(column) for column in zip(*runs))
                        print(f"{mode:9} {clients:7}  {name:10} {tps:8.0f} {us:8.1f} {p99:8.1f}", flush=True)
    except Unavailable as error:
        sys.exit(f"skipped: {error}")


if __name__ == "__main__":
    main()
