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
import signal
import statistics
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "common"))
import cpu
from cluster import DATABASE, USER, Cluster, Unavailable, free_port, raise_descriptor_limit, stop, wait_for_port
from extension import Extension

POOL_SIZE = 10
CONFIG = """
[listen]
address = "127.0.0.1:{port}"
[[database]]
name = "{database}"
servers = ["{directory}:{server_port}"]
pool_size = {pool_size}
{inside}
[auth]
hba_file = "{own}/pg_hba.conf"
users_file = "{own}/userlist.txt"
[log]
log_connections = false
log_disconnections = false
[admin]
http_address = ""
control_socket = "{socket}"
[pool]
max_client_conn = 5000
"""


class WithInside(Extension):
    """The server lets its backends serve clients."""

    def __init__(self, cluster):
        super().__init__(cluster)
        self.socket = os.path.join(cluster.directory, "hawser.sock")

    def settings(self):
        return super().settings() | {"hawser.inside": "on", "hawser.control_sockets": self.socket}


class Hawser:
    """A running one: its port and process."""

    def __init__(self, cluster, program, places):
        """`places`: of a server that serves clients itself; None: it does not."""
        inside = "" if places is None else f"inside_size = {POOL_SIZE}\ninside_places = {places}"
        self.port = free_port()
        own = tempfile.mkdtemp(dir=cluster.directory)
        with open(os.path.join(own, "pg_hba.conf"), "w") as out:
            out.write("local all all trust\nhost all all 127.0.0.0/8 trust\n")
        with open(os.path.join(own, "userlist.txt"), "w") as out:
            out.write(f'"{USER}" ""\n')
        with open(os.path.join(own, "hawser.toml"), "w") as out:
            out.write(CONFIG.format(port=self.port, database=DATABASE, directory=cluster.directory, server_port=cluster.port,
                                    pool_size=POOL_SIZE, inside=inside, own=own,
                                    socket=cluster.extension.socket))  # fmt: skip
        if cluster.identity:
            subprocess.run(["chown", "-R", str(cluster.identity["user"]), own], check=True)
        self.log = os.path.join(own, "log")
        with open(self.log, "w") as log:
            self.process = subprocess.Popen([program, "serve", "-c", os.path.join(own, "hawser.toml")], stdout=log, stderr=log,
                                            stdin=subprocess.DEVNULL, **cluster.identity)  # fmt: skip
        wait_for_port(self.port, self.process, self.log)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        stop(self.process, signal.SIGTERM, 10)


def run_once(cluster, contestant, mode, clients, arguments):
    """(transactions a second, CPU us of each, p99 in ms). `inside:N`: with N places."""
    if contestant == "direct":
        return measure(cluster, cluster.port, [], mode, clients, arguments)
    name, _, places = contestant.partition(":")
    with Hawser(cluster, arguments.programs[name], int(places or 0) if name == "inside" else None) as hawser:
        return measure(cluster, hawser.port, [hawser.process.pid], mode, clients, arguments)


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
    arguments.programs = {"inside": own, "proxy": os.environ.get("PROXY", own)}
    contestants = arguments.contestants.split(",")
    try:
        with Cluster(1, 1100, WithInside) as cluster:
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
