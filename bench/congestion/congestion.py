#!/usr/bin/env python3
"""Congestion control of Hawser's connections to clients: COPY out of a real PostgreSQL over the laboratory, in real time.

    python3 bench/congestion/congestion.py --runs 3                      # all cases; writes docs/benchmarks/congestion.md
    python3 bench/congestion/congestion.py --only long-fat --runs 1      # one of them
    python3 bench/congestion/congestion.py --list

Each run has a network of its own, with a seed of its own. The server and `hawser serve` are on the far host, psql is
on the near one. Rates are TCP payload that psql has received, from second 10 to the end; "start" is that of the first
ten. A case is one of these ways, all of them with cubic as the far host's default:

    cubic    congestion = "default"
    bbr      congestion = "bbr": the best by hand of those that most kernels have
    auto     congestion = "auto"

It needs root, PostgreSQL's server and client, and bbr in the kernel.
"""

import argparse
import concurrent.futures
import contextlib
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "common"))
from cluster import free_port
from far_server import HAWSER, ROOT, ROW_BYTES, Cluster, as_server, late_share, median, rate, run, shown

WAYS = ("cubic", "bbr", "auto")
LIMITED = ('[[link]]\nname = "wan"\nrtt = "{rtt}"\nrate = "{mbit}Mbit/s"\nqueue = "{queue}packets"\nloss = "{loss}%"\n').format
LONG_FAT = {"rtt": "217ms", "mbit": 95, "queue": 1000}
# As much as 95 Mbit/s over 217 ms may need; not SO_SNDBUF, which ends the kernel's own tuning.
BUFFERS = "4096 131072 33554432"
STEADY_FROM = 10.0
# psql writes rows; on the wire each is a CopyData message, with a type and a length before it. Other figures of this
# path, its ceiling of 90.9 Mbit/s above all, are of TCP payload.
PAYLOAD_PER_ROW_BYTE = (ROW_BYTES + 5) / ROW_BYTES
SERVE = """
[listen]
address = "0.0.0.0:{port}"
congestion = "{algorithm}"
[[database]]
name = "postgres"
servers = ["{directory}:{server_port}"]
pool_size = 4
[auth]
hba_file = "{own}/pg_hba.conf"
users_file = "{own}/userlist.txt"
[admin]
http_address = ""
control_socket = ""
"""


class Network:
    """A network with PostgreSQL behind `hawser serve` on its far host."""

    def __init__(self, description, seed, cluster, directory, buffers=None):
        self.own = pathlib.Path(tempfile.mkdtemp(dir=directory))
        self.name = self.own.name.replace("_", "-")
        self.description, self.seed, self.cluster, self.buffers = description, seed, cluster, buffers
        self.started = []

    def inside(self, host, *command):
        return [HAWSER, "lab", "run", self.name, "--on", host, "--accept-unfaithful", "--", *map(str, command)]

    def __enter__(self):
        network = self.description
        if "\n" in network:
            network = self.own / "network.toml"
            network.write_text(self.description)
        run(HAWSER, "lab", "up", network, "--name", self.name, "--seed", self.seed)
        settings = ["net.ipv4.tcp_congestion_control=cubic", "net.ipv4.tcp_no_metrics_save=1"]
        if self.buffers:
            settings += [f"net.ipv4.tcp_wmem={self.buffers}", f"net.ipv4.tcp_rmem={self.buffers}"]
        try:
            for host in ("near", "far"):
                for setting in settings:
                    run(*self.inside(host, "sysctl", "-qw", setting))
        except subprocess.SubprocessError:
            run(HAWSER, "lab", "down", self.name, check=False)
            raise
        return self

    def serve(self, algorithm):
        """`hawser serve` on the far host: (port, its process id)."""
        port, own = free_port(), self.own / f"serve{len(self.started)}"
        own.mkdir()
        (own / "pg_hba.conf").write_text("local all all trust\nhost all all 0.0.0.0/0 trust\n")
        (own / "userlist.txt").write_text('"postgres" ""\n')
        chosen = {"cubic": "default"}.get(algorithm, algorithm)
        (own / "hawser.toml").write_text(SERVE.format(
            port=port, algorithm=chosen, directory=self.cluster.data, server_port=self.cluster.port, own=own))
        pid_file, log = own / "pid", open(own / "log", "wb")
        script = f"echo $$ > {pid_file}; exec {HAWSER} serve -c {own}/hawser.toml"
        process = subprocess.Popen(self.inside("far", "sh", "-c", script), stdout=log, stderr=log, cwd="/")
        self.started.append((process, own / "log"))
        for _ in range(100):
            if run(*self.inside("near", "pg_isready", "-q", "-h", "10.77.0.2", "-p", port), check=False).returncode == 0:
                return port, int(pid_file.read_text())
            assert process.poll() is None, (own / "log").read_text()
            time.sleep(0.1)
        raise AssertionError((own / "log").read_text())

    def decisions(self):
        text = "".join(log.read_text(errors="replace") for _, log in self.started)
        return re.findall(r"congestion control of [^\n]*", text)

    def __exit__(self, *_):
        self.report = json.loads(run(HAWSER, "lab", "report", self.name, "--json", check=False).stdout or "{}")
        run(HAWSER, "lab", "down", self.name, check=False)
        for process, _ in self.started:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(10)
            if process.poll() is None:
                process.kill()

    def copy(self, port, seconds):
        """Reads a COPY for so long: [(seconds, bytes of TCP payload)]."""
        statement = "copy (select t from bulk, generate_series(1, 1000)) to stdout"
        target = f"host=10.77.0.2 port={port} user=postgres dbname=postgres sslmode=disable"
        process = subprocess.Popen(self.inside("near", "psql", "-Xq", target, "-c", statement),
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd="/", start_new_session=True)
        began, points, total = time.monotonic(), [(0.0, 0)], 0
        try:
            while (now := time.monotonic() - began) < seconds:
                piece = os.read(process.stdout.fileno(), 1 << 20)
                assert piece, process.stderr.read().decode()
                total += len(piece)
                if now - points[-1][0] >= 0.05:
                    points.append((now, total * PAYLOAD_PER_ROW_BYTE))
        finally:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            process.stdout.close()
            process.stderr.close()
        return points


def cpu_seconds(pid):
    fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def thread_seconds(pid, name=None):
    """What a process's threads, or the one of that name, have had of processors: to the nanosecond (CONFIG_SCHED_INFO)."""
    total = 0
    for task in pathlib.Path(f"/proc/{pid}/task").iterdir():
        if name is None or (task / "comm").read_text().strip() == name:
            total += int((task / "schedstat").read_text().split()[0])
    return total / 1e9


def alone(network, way, seconds):
    port, pid = network.serve(way)
    before, whole, tuner = cpu_seconds(pid), thread_seconds(pid), thread_seconds(pid, "congestion")
    points = network.copy(port, seconds)
    used = cpu_seconds(pid) - before
    whole, tuner = thread_seconds(pid) - whole, thread_seconds(pid, "congestion") - tuner
    return {"steady": rate(points, STEADY_FROM, seconds), "start": rate(points, 0, STEADY_FROM),
            "cpu_ms_per_mb": 1e9 * used / max(points[-1][1], 1), "cpu_of_auto": tuner / max(whole, 1e-9), "decisions": network.decisions()}


def beside_cubic(network, way, seconds):
    """What a cubic connection has beside one of this way; its own one begins 3 s later."""
    neighbour, _ = network.serve("cubic")
    port, _ = network.serve(way)
    found = {}
    other = threading.Thread(target=lambda: found.update(points=network.copy(neighbour, seconds)))
    other.start()
    time.sleep(3)
    points = network.copy(port, seconds - 3)
    other.join()
    return {"steady": rate(points, STEADY_FROM, seconds - 3), "neighbour": rate(found["points"], STEADY_FROM + 3, seconds),
            "decisions": network.decisions()}


def long_fat(loss):
    return LIMITED(loss=loss, **LONG_FAT)


CASES = {
    "long-fat": ("long-fat", alone, WAYS, None),
    "long-fat, larger buffers": ("long-fat", alone, ("bbr", "auto"), BUFFERS),
    **{f"217 ms, loss {loss} %": (long_fat(loss), alone, WAYS, None) for loss in ("0", "0.01", "0.1", "0.3", "1", "3")},
    "lan": ("lan", alone, ("cubic", "auto"), None),
    "neighbour, no loss": (LIMITED(rtt="60ms", mbit=20, queue=100, loss=0), beside_cubic, WAYS, None),
    "neighbour, loss 0.1 %": (LIMITED(rtt="100ms", mbit=50, queue=400, loss=0.1), beside_cubic, WAYS, None),
}


def one_run(case, way, number, given, cluster, directory):
    description, measure, _, buffers = CASES[case]
    network = Network(description, given.seed + number, cluster, directory, buffers)
    try:
        with network:
            result = measure(network, way, min(given.seconds, 20.0) if case == "lan" else given.seconds)
    except (AssertionError, subprocess.SubprocessError) as error:
        result = {"error": str(error)[:2000]}
    result["late"] = late_share(network)
    return result


def write_report(results, given, out):
    lines = ["# Congestion control in the laboratory", "",
             f"Written by `bench/congestion/congestion.py`: COPY out of PostgreSQL through `hawser serve`, {given.seconds:.0f} s each, "
             f"over `hawser lab`'s "
             "networks in real time; cubic is the default of the sending host. Mbit/s of TCP payload as psql received it (its rows of 100 "
             "bytes, and 5 "
             "of CopyData's header around each), from second 10 on, medians of all runs, then every run. *Late* is the share of packets "
             "that the emulator sent more than 1 ms late, in %.", "",
             "| case | way | median | x bbr | runs | first 10 s | late |", "|---|---|---|---|---|---|---|"]
    for case, (_, measure, ways, _) in CASES.items():
        best = median([r.get("steady") for r in results.get(f"{case}/bbr", [])])
        for way in ways:
            runs = results.get(f"{case}/{way}", [])
            if not runs:
                continue
            steady = [r.get("steady") for r in runs]
            part = f"{median(steady) / best:.2f}" if best and median(steady) is not None else ""
            name = way if measure is alone else f"{way}, beside cubic"
            lines.append(f"| {case} | {name} | **{shown(median(steady))}** | {part} | {', '.join(map(shown, steady))} | "
                         f"{shown(median([r.get('start') for r in runs]))} | {', '.join(shown(r.get('late'), 2) for r in runs)} |")
            if measure is beside_cubic:
                have = [r.get("neighbour") for r in runs]
                own = median([r.get("neighbour") for r in results.get(f"{case}/cubic", [])])
                kept = f"{median(have) / own:.2f} x" if own and median(have) is not None else ""
                lines.append(f"| | its cubic neighbour | **{shown(median(have))}** | {kept and kept + ' of beside cubic'} | "
                             f"{', '.join(map(shown, have))} | | |")
    cpu = {way: median([r.get("cpu_ms_per_mb") for r in results.get(f"lan/{way}", [])]) for way in ("cubic", "auto")}
    if all(cpu.values()):
        lines += ["", f"On `lan`, CPU of `hawser serve`: {cpu['auto']:.3f} us a kB with `auto`, {cpu['cubic']:.3f} without; runs differ by "
                      f"more than that."]
    shares = {case: [(100 * r["cpu_of_auto"], 100 * r["cpu_of_auto"] * r["cpu_ms_per_mb"] * r["steady"] / 8e3)
                     for r in results.get(f"{case}/auto", [])
                     if r.get("cpu_of_auto")] for case in CASES}
    if any(shares.values()):
        lines += ["", "All that `auto` does while data flows is done by one thread of its own (`congestion`), whose time the kernel "
                      "counts, to the nanosecond:", "",
                  "| case | of all CPU time of `hawser serve`, % | of one processor, % |", "|---|---|---|"]
        lines += [f"| {case} | {', '.join(shown(one, 3) for one, _ in runs)} | {', '.join(shown(one, 3) for _, one in runs)} |"
                  for case, runs in shares.items() if runs]
    lines += ["", "With larger buffers, what is missing to the 90.9 Mbit/s of TCP payload that fit through the path is bbr's own: every 10 "
                  "s it sends next to "
              "nothing for 200 ms and a round trip, to see the path empty (4 %), and it paces 1 % below the rate that it has measured. "
              "That leaves 86.4. "
              "Of what psql writes, 4.8 % less arrives than of TCP payload: each row of 100 bytes is a message with a header of 5.", "",
              "## What `auto` decided", ""]
    for case in CASES:
        for number, r in enumerate(results.get(f"{case}/auto", [])):
            lines += [f"* {case}, run {number + 1}: " + ("; ".join(d.removeprefix("congestion control of ")
                                                                   for d in r.get("decisions", [])) or "nothing")]
    (out / "congestion.md").write_text("\n".join(lines) + "\n")


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--runs", type=int, default=3)
    arguments.add_argument("--seconds", type=float, default=60.0)
    arguments.add_argument("--only", action="append", metavar="CASE", help="a case, or its beginning")
    arguments.add_argument("--way", action="append", choices=WAYS)
    arguments.add_argument("--seed", type=int, default=1)
    arguments.add_argument("--parallel", type=int, default=1, help="networks at a time; slow paths leave room for others")
    arguments.add_argument("--list", action="store_true")
    arguments.add_argument("--out", type=pathlib.Path, default=ROOT / "bench/out")
    arguments.add_argument("--add", action="store_true", help="to the results that are there, in place of the same cases")
    arguments.add_argument("--report", action="store_true", help="only write the report of the results that are there")
    given = arguments.parse_args()
    chosen = [name for name in CASES if not given.only or any(name.startswith(only) for only in given.only)]
    if given.list:
        return print("\n".join(chosen))
    given.out.mkdir(parents=True, exist_ok=True)
    store = given.out / "congestion.json"
    results = json.loads(store.read_text()) if (given.add or given.report) and store.exists() else {}
    if given.report:
        return write_report(results, given, given.out)
    if os.geteuid() != 0:
        sys.exit("the laboratory's network namespaces, and PostgreSQL's own user, need root")
    allowed = pathlib.Path("/proc/sys/net/ipv4/tcp_allowed_congestion_control").read_text().split()
    if "cubic" not in allowed:
        # Network namespaces may have no other as their default.
        sys.exit(f'cubic is not for all users here: sysctl -w net.ipv4.tcp_allowed_congestion_control="{" ".join([*allowed, "cubic"])}"')
    directory = tempfile.mkdtemp(prefix="hawser-cc-")
    os.chmod(directory, 0o755)
    cluster = Cluster(directory, "bulk")
    server = subprocess.Popen([*cluster.command()], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd="/")
    try:
        while run("pg_isready", "-q", "-h", cluster.data, "-p", cluster.port, check=False).returncode:
            time.sleep(0.1)
        plan = [(case, way, number) for case in chosen for number in range(given.runs)
                for way in CASES[case][2] if not given.way or way in given.way]
        for case, way, _ in plan:
            results[f"{case}/{way}"] = []
        with concurrent.futures.ThreadPoolExecutor(given.parallel) as pool:
            runs = {pool.submit(one_run, case, way, number, given, cluster, directory): (case, way, number) for case, way, number in plan}
            for done in concurrent.futures.as_completed(runs):
                case, way, number = runs[done]
                results[f"{case}/{way}"].append(done.result())
                print(case, way, number, json.dumps(done.result()), flush=True)
                store.write_text(json.dumps(results, indent=1) + "\n")
        write_report(results, given, given.out)
    finally:
        run(*as_server(), f"{cluster.bin}/pg_ctl", "-D", cluster.data, "-m", "immediate", "stop", check=False, cwd="/")
        server.wait()
        shutil.rmtree(directory, ignore_errors=True)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    main()
