#!/usr/bin/env python3
"""What one destination's own congestion control gives other programs: MariaDB replication and rsync over `long-fat`.

    python3 bench/congestion/replication.py                              # writes bench/out/replication.md
    python3 bench/congestion/replication.py --runs 1 --only rsync

The far host has the data, and cubic as its default. Each run is once with nothing done, and once after

    hawser cc apply --to 10.77.0.1/32 --algorithm bbr

on the far host: a route, no setting of either program. Each has a network of its own, in real time.

    rsync      a file of 128 MB that does not compress, from rsync's own daemon
    MariaDB    a replica that is 128 MB of binary log behind, until it has them (IO thread) and has applied them

It needs root, and of Debian's packages rsync and mariadb-server; cubic has to be in
net.ipv4.tcp_allowed_congestion_control. Nothing of an installed MariaDB is touched.
"""

import argparse
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "common"))
from cluster import free_port
from far_server import HAWSER, ROOT, late_share, median, run, shown

MEGABYTES = 128
NEAR, FAR = "10.77.0.1", "10.77.0.2"
WAYS = ("cubic", "bbr by `cc apply --to`")
ROWS = "INSERT INTO bench.bulk (t) VALUES " + ", ".join(["(RANDOM_BYTES(1024))"] * 1000)


class Network:
    """`long-fat`; whatever runs inside ends with it."""

    def __init__(self, way, seed):
        self.name, self.way, self.seed = f"replication-{time.monotonic_ns() % 10**9}", way, seed

    def inside(self, host, *command):
        return [HAWSER, "lab", "run", self.name, "--on", host, "--accept-unfaithful", "--", *map(str, command)]

    def __enter__(self):
        run(HAWSER, "lab", "up", "long-fat", "--name", self.name, "--seed", self.seed)
        try:
            for host in ("near", "far"):
                run(*self.inside(host, "sysctl", "-qw", "net.ipv4.tcp_congestion_control=cubic"))
            if self.way != "cubic":
                print(run(*self.inside("far", HAWSER, "cc", "apply", "--to", f"{NEAR}/32", "--algorithm", "bbr")).stdout.strip())
        except subprocess.SubprocessError:
            run(HAWSER, "lab", "down", self.name, check=False)
            raise
        return self

    def used(self):
        """The algorithm of the connection that has sent most, as the kernel says."""
        known = pathlib.Path("/proc/sys/net/ipv4/tcp_available_congestion_control").read_text().split()
        sent = []
        for line in run(*self.inside("far", "ss", "-tinH", "state", "established"), check=False).stdout.splitlines():
            words = line.split()
            found = [word for word in words if word.startswith("bytes_sent:")]
            if found:
                sent.append((int(found[0].split(":")[1]), next((word for word in words if word in known), "unknown")))
        return max(sent, default=(0, "unknown"))[1]

    def __exit__(self, *_):
        self.report = json.loads(run(HAWSER, "lab", "report", self.name, "--json", check=False).stdout or "{}")
        run(HAWSER, "lab", "down", self.name, check=False)


def by_rsync(network, directory):
    source, target = directory / "source", directory / f"copy-{network.seed}-{network.way[:3]}"
    if not source.exists():
        source.mkdir()
        (source / "file").write_bytes(os.urandom(MEGABYTES << 20))
    conf = directory / "rsyncd.conf"
    conf.write_text(f"use chroot = no\nuid = root\ngid = root\nreverse lookup = no\n[data]\npath = {source}\nread only = yes\n")
    daemon = subprocess.Popen(network.inside("far", "rsync", "--daemon", "--no-detach", f"--config={conf}", "--port=8730"))
    time.sleep(1)
    assert daemon.poll() is None, "rsync's daemon has not come up"
    began = time.monotonic()
    copy = subprocess.Popen(network.inside("near", "rsync", "--whole-file", f"rsync://{FAR}:8730/data/file", target))
    time.sleep(4)
    used = network.used()
    assert copy.wait(600) == 0, "rsync failed"
    took = time.monotonic() - began
    assert target.stat().st_size == MEGABYTES << 20
    target.unlink()
    return {"seconds": took, "mbit": (MEGABYTES << 23) / took / 1e6, "used": used}


class MariaDB:
    """A server on a host of the network, with a data directory of its own."""

    def __init__(self, network, host, number, directory):
        self.network, self.host = network, host
        self.data = directory / f"mariadb-{network.seed}-{network.way[:3]}-{number}"
        self.port, self.socket, self.number = free_port(), self.data / "socket", number

    def __enter__(self):
        run("mariadb-install-db", "--no-defaults", "--user=mysql", f"--datadir={self.data}",
            "--skip-test-db", "--auth-root-authentication-method=normal")
        address = FAR if self.host == "far" else NEAR
        self.log = open(self.data.with_suffix(".log"), "ab")
        self.process = subprocess.Popen(self.network.inside(
            self.host, "mariadbd", "--no-defaults", "--user=mysql", f"--datadir={self.data}", f"--socket={self.socket}",
            f"--port={self.port}",
            f"--bind-address={address}", f"--server-id={self.number}", "--log-bin=binlog", "--binlog-format=ROW", "--skip-name-resolve",
            "--innodb-flush-log-at-trx-commit=0", "--sync-binlog=0", f"--pid-file={self.data}/pid"), stdout=self.log, stderr=self.log,
            cwd="/")
        for _ in range(300):
            if run("mariadb-admin", "--no-defaults", "-uroot", f"--socket={self.socket}", "ping", check=False).returncode == 0:
                return self
            assert self.process.poll() is None, self.data.with_suffix(".log").read_text(errors="replace")[-2000:]
            time.sleep(0.1)
        raise AssertionError("MariaDB does not start")

    def sql(self, statement):
        return run("mariadb", "--no-defaults", "-uroot", f"--socket={self.socket}", "-N", "-B", "-e", statement).stdout

    def replica(self):
        """SHOW SLAVE STATUS as {name: value}."""
        text = run("mariadb", "--no-defaults", "-uroot", f"--socket={self.socket}", "-E", "-e", "SHOW SLAVE STATUS").stdout
        return {name.strip(): value.strip() for name, _, value in (line.partition(": ") for line in text.splitlines())}

    def __exit__(self, *_):
        run("mariadb-admin", "--no-defaults", "-uroot", f"--socket={self.socket}", "shutdown", check=False)
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.process.kill()
        self.log.close()
        shutil.rmtree(self.data, ignore_errors=True)


def by_mariadb(network, directory):
    with MariaDB(network, "far", 1, directory) as primary, MariaDB(network, "near", 2, directory) as replica:
        primary.sql(f"CREATE USER replica@'{NEAR}' IDENTIFIED BY 'replica'; GRANT REPLICATION SLAVE ON *.* TO replica@'{NEAR}'")
        file, position = primary.sql("SHOW MASTER STATUS").split()[:2]
        replica.sql(f"CHANGE MASTER TO MASTER_HOST='{FAR}', MASTER_PORT={primary.port}, MASTER_USER='replica', MASTER_PASSWORD='replica', "
                    f"MASTER_LOG_FILE='{file}', MASTER_LOG_POS={position}")
        primary.sql("CREATE DATABASE bench; CREATE TABLE bench.bulk (id INT AUTO_INCREMENT PRIMARY KEY, t VARBINARY(1024))")
        while int(primary.sql("SHOW MASTER STATUS").split()[1]) < MEGABYTES << 20:
            primary.sql(ROWS)
        whole, rows = int(primary.sql("SHOW MASTER STATUS").split()[1]), int(primary.sql("SELECT count(*) FROM bench.bulk"))
        began = time.monotonic()
        replica.sql("START SLAVE")
        got = used = None
        while True:
            state = replica.replica()
            assert not state.get("Last_Error") and not state.get("Last_IO_Error"), state
            now = time.monotonic() - began
            if got is None and int(state["Read_Master_Log_Pos"]) >= whole:
                got = now
            if used is None and now > 4:
                used = network.used()
            if int(state["Exec_Master_Log_Pos"]) >= whole:
                break
            assert now < 600, state
            time.sleep(0.1)
        assert int(replica.sql("SELECT count(*) FROM bench.bulk")) == rows
        replica.sql("STOP SLAVE")
        return {"seconds": got, "applied": now, "mbit": (whole - int(position)) * 8 / got / 1e6, "used": used}


CASES = {"rsync": by_rsync, "MariaDB": by_mariadb}


def report(results, given):
    versions = [run(program, "--version", check=False).stdout.splitlines()[0] for program in ("rsync", "mariadbd") if shutil.which(program)]
    lines = ["# MariaDB replication and rsync over `long-fat`", "",
             "Written by `bench/congestion/replication.py`: 217 ms, 95 Mbit/s, 0.034 % loss, in real time. The far host has the data and "
             "cubic as its default; "
             f"once nothing is done, once `hawser cc apply --to {NEAR}/32 --algorithm bbr` on the far host, a route and no setting of "
             f"either program. "
             f"{MEGABYTES} MB that do not compress, from the first connect to the last byte, start-up included.", "",
             "| program | way | seconds | Mbit/s | x cubic | runs, seconds | the connection had | late, % |",
             "|---|---|---|---|---|---|---|---|"]
    for case in CASES:
        for way in WAYS:
            runs = results.get((case, way), [])
            if not runs:
                continue
            took, slow = (median([one["seconds"] for one in results.get((case, of), [])]) for of in (way, WAYS[0]))
            lines.append(f"| {case} | {way} | **{shown(took)}** | {shown(median([one['mbit'] for one in runs]))} | {slow / took:.1f} | "
                         f"{', '.join(shown(one['seconds']) for one in runs)} | {', '.join(sorted({one['used'] for one in runs}))} | "
                         f"{', '.join(shown(one['late'], 2) for one in runs)} |")
    applied = {way: median([one["applied"] for one in results.get(("MariaDB", way), [])]) for way in WAYS}
    if all(applied.values()):
        lines += ["", "MariaDB's are those of the replica's IO thread; it had applied all after "
                  + " and ".join(f"{shown(took)} s ({way})" for way, took in applied.items()) + "."]
    lines += ["", f"{'; '.join(versions)}.", "", "## By hand", "", "```", "hawser lab up long-fat",
              f"hawser lab run long-fat --on far -- hawser cc apply --to {NEAR}/32 --algorithm bbr",
              "hawser lab run long-fat --on far -- rsync --daemon --no-detach --config=rsyncd.conf --port=8730 &",
              f"time hawser lab run long-fat -- rsync --whole-file rsync://{FAR}:8730/data/file copy",
              "hawser lab down long-fat", "```"]
    return "\n".join(lines) + "\n"


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--runs", type=int, default=3)
    arguments.add_argument("--only", choices=CASES, action="append")
    arguments.add_argument("--seed", type=int, default=1)
    arguments.add_argument("--out", type=pathlib.Path, default=ROOT / "bench/out")
    given = arguments.parse_args()
    directory = pathlib.Path(tempfile.mkdtemp(prefix="hawser-replication-"))
    directory.chmod(0o755)
    results = {}
    try:
        for number in range(given.runs):
            for case in given.only or CASES:
                for way in WAYS:
                    network = Network(way, given.seed + number)
                    with network:
                        result = CASES[case](network, directory)
                    result["late"] = late_share(network)
                    results.setdefault((case, way), []).append(result)
                    print(case, way, json.dumps(result), flush=True)
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    given.out.mkdir(parents=True, exist_ok=True)
    (given.out / "replication.md").write_text(report(results, given))
    print(report(results, given))


if __name__ == "__main__":
    main()
