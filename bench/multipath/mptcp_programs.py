#!/usr/bin/env python3
"""Programs as they are over MPTCP: a streaming replica that catches up, and rsync, over `per-flow`.

    python3 bench/multipath/mptcp_programs.py                      # plain once, the others five times
    python3 bench/multipath/mptcp_programs.py --only rsync --runs 1

Each run has a network with a seed of its own: flows are hashed to other limits. The ways are those of bench/multipath/mptcp.py.

    replica    a standby that is 100 MB of WAL behind, from the start of its server until all is received, and replayed
    rsync      a file of 100 MB that does not compress, from rsync's own daemon, start-up included

It needs root, PostgreSQL, rsync, and MPTCP in the kernel. Runs are added to bench/out/mptcp-programs.json, whatever ends it.
"""

import argparse
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "common"))
from far_server import HAWSER, ROOT, Cluster, as_server, late_share, median, run, shown
from mptcp import WAYS, Laboratory

MEGABYTES = 100
WAL_BYTES = MEGABYTES << 20
FAR = "10.77.0.2"
# Rows of about 8 kB of WAL that do not compress, 8 MB a statement.
INSERT = ("insert into taken select string_agg(md5(random()::text || g || h), '') "
          "from generate_series(1, 1000) g, generate_series(1, 250) h group by g")


class Programs(Laboratory):
    """A network without a server of its own: each case starts what it needs."""

    def __enter__(self):
        run(HAWSER, "lab", "up", self.network, "--name", self.name, "--seed", self.seed)
        if self.way == "manage":
            self.start("far", HAWSER, "mptcp", "manage")
            self.start("near", HAWSER, "mptcp", "manage")
            time.sleep(1)
        elif self.way == "kernel":
            run(*self.inside("far", HAWSER, "mptcp", "setup", "server"))
            run(*self.inside("near", HAWSER, "mptcp", "setup", "client"))
        return self

    def __exit__(self, *_):
        self.report = json.loads(run(HAWSER, "lab", "report", self.name, "--json", check=False).stdout or "{}")
        if self.way == "kernel":
            for host in ("near", "far"):
                run(*self.inside(host, HAWSER, "mptcp", "undo"), check=False)
        run(HAWSER, "lab", "down", self.name, check=False)
        for process in self.started:
            try:
                process.wait(5)
            except subprocess.TimeoutExpired:
                process.kill()

    def program(self, host, *command):
        """Starts a program in this way."""
        under = [] if self.way == "plain" else [HAWSER, "mptcp", "run", "--"]
        return self.start(host, *under, *command)


def ready(cluster, data, process):
    for _ in range(300):
        if run("pg_isready", "-h", data, "-p", cluster.port, check=False).returncode == 0:
            return
        assert process.poll() is None, f"a server does not start: {(data.parent / 'log').read_text()[-1500:]}"
        time.sleep(0.1)
    raise AssertionError("a server does not answer")


def ask(cluster, data, statement):
    return run("psql", "-XqAt", "-h", data, "-p", cluster.port, "-U", "postgres", "-c", statement, "postgres").stdout.strip()


def stop(cluster, data):
    run(*as_server(), f"{cluster.bin}/pg_ctl", "-D", data, "-m", "immediate", "stop", check=False, cwd="/")


def behind(cluster):
    """A standby's directory, taken before the primary writes 100 MB of WAL; and the end of that."""
    standby = cluster.data.with_name("standby")
    if (standby / "target").exists():
        return standby, (standby / "target").read_text()
    with open(cluster.data / "postgresql.conf", "a") as settings:
        settings.write("wal_keep_size=2GB\nwal_sender_timeout=0\nfull_page_writes=off\ncheckpoint_timeout=1h\n")
    run(*as_server(), f"{cluster.bin}/pg_ctl", "-D", cluster.data, "-w", "-l", cluster.data / "log", "start", cwd="/")
    standby.mkdir(mode=0o700)
    shutil.chown(standby, "postgres", "postgres")
    run(*as_server(), f"{cluster.bin}/pg_basebackup", "-h", cluster.data, "-p", cluster.port, "-U", "postgres", "-D", standby, "-c", "fast",
        cwd="/")
    first = ask(cluster, cluster.data, "select pg_current_wal_lsn()")
    while ask(cluster, cluster.data, f"select pg_wal_lsn_diff(pg_current_wal_lsn(), '{first}') > {WAL_BYTES}") == "f":
        ask(cluster, cluster.data, INSERT)
    target = ask(cluster, cluster.data, "select pg_current_wal_flush_lsn()")
    stopped = run(*as_server(), f"{cluster.bin}/pg_ctl", "-D", cluster.data, "-w", "-m", "fast", "stop", check=False, cwd="/")
    assert stopped.returncode == 0, stopped.stderr
    (standby / "standby.signal").touch()
    (standby / "target").write_text(target)
    with open(standby / "postgresql.conf", "a") as settings:
        settings.write(f"unix_socket_directories='{standby}.run'\nprimary_conninfo='host={FAR} port={cluster.port} user=postgres "
                       f"sslmode=disable'\n"
                       "wal_receiver_status_interval=1s\n")
    return standby, target


def case_replica(lab, directory):
    cluster = lab.cluster
    kept, target = behind(cluster)
    standby = pathlib.Path(directory) / f"standby-{lab.seed}-{lab.way}"
    sockets = pathlib.Path(f"{kept}.run")
    sockets.mkdir(exist_ok=True)
    shutil.chown(sockets, "postgres")
    run("cp", "-a", kept, standby)
    primary = lab.program("far", *cluster.command())
    ready(cluster, cluster.data, primary)
    received = None
    try:
        began = time.monotonic()
        process = lab.program("near", *as_server(), f"{cluster.bin}/postgres", "-D", str(standby))
        ready(cluster, sockets, process)
        first = ask(cluster, sockets, "select pg_last_wal_replay_lsn()")
        while True:
            got, done = ask(cluster, sockets,
                            f"select pg_last_wal_receive_lsn() >= '{target}', pg_last_wal_replay_lsn() >= '{target}'").split("|")
            now = time.monotonic() - began
            if received is None and got == "t":
                received = now
            if done == "t":
                break
            assert now < 400, "the standby does not catch up"
            time.sleep(0.1)
        assert ask(cluster, sockets, "select count(*) from taken") == ask(cluster, cluster.data, "select count(*) from taken")
        size = int(ask(cluster, sockets, f"select pg_wal_lsn_diff('{target}', '{first}')"))
        return {"seconds": received, "replayed": now, "bytes": size}
    finally:
        stop(cluster, standby)
        stop(cluster, cluster.data)
        shutil.rmtree(standby, ignore_errors=True)


def case_rsync(lab, directory):
    source, target = pathlib.Path(directory) / "source", pathlib.Path(directory) / f"copy-{lab.seed}-{lab.way}"
    if not source.exists():
        source.mkdir()
        (source / "file").write_bytes(os.urandom(MEGABYTES << 20))
    conf = pathlib.Path(directory) / "rsyncd.conf"
    conf.write_text(f"use chroot = no\nuid = root\ngid = root\nreverse lookup = no\n[data]\npath = {source}\nread only = yes\n")
    daemon = lab.program("far", "rsync", "--daemon", "--no-detach", f"--config={conf}", "--port=8730")
    time.sleep(1)
    assert daemon.poll() is None, "rsync's daemon has not come up"
    began = time.monotonic()
    copy = lab.program("near", "rsync", "--whole-file", f"rsync://{FAR}:8730/data/file", target)
    assert copy.wait(400) == 0, (lab.directory / "log").read_text()[-2000:]
    took = time.monotonic() - began
    assert target.read_bytes() == (source / "file").read_bytes()
    target.unlink()
    return {"seconds": took, "bytes": MEGABYTES << 20}


CASES = {"replica": case_replica, "rsync": case_rsync}


def table(results):
    lines = ["| case | way | median | x plain | Mbit/s | runs | late |", "|---|---|---|---|---|---|---|"]
    for case in CASES:
        for way in WAYS:
            runs = results.get(f"{case}/{way}", [])
            good = [one for one in runs if "error" not in one]
            if not good:
                continue
            took, slow = (median([one["seconds"] for one in results.get(f"{case}/{of}", []) if "error" not in one])
                          for of in (way, "plain"))
            failed = f", {len(runs) - len(good)} failed" if len(good) < len(runs) else ""
            lines.append(f"| {case} | {way} | **{shown(took, 2)}** s | {shown(slow / took if slow else None)} | "
                         f"{shown(median([one['bytes'] * 8e-6 / one['seconds'] for one in good]))} | "
                         f"{', '.join(shown(one['seconds'], 2) for one in good)}{failed} | "
                         f"{'/'.join(shown(one.get('late'), 2) for one in runs)} |")
    return "\n".join(lines) + "\n"


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--runs", type=int, default=5)
    arguments.add_argument("--only", choices=CASES, action="append")
    arguments.add_argument("--way", choices=WAYS, action="append")
    arguments.add_argument("--seed", type=int, default=1)
    arguments.add_argument("--out", type=pathlib.Path, default=ROOT / "bench/out")
    given = arguments.parse_args()
    if os.geteuid() != 0:
        sys.exit("the laboratory's network namespaces, and PostgreSQL's own user, need root")
    given.out.mkdir(parents=True, exist_ok=True)
    store = given.out / "mptcp-programs.json"
    results = json.loads(store.read_text()) if store.exists() else {}
    directory = tempfile.mkdtemp(prefix="hawser-bench-")
    os.chmod(directory, 0o755)
    try:
        cluster = Cluster(directory, "bulk")
        for name in given.only or CASES:
            for number in range(given.runs):
                for way in given.way or WAYS:
                    if way == "plain" and number:
                        continue  # one limit is one limit, whichever it is
                    lab = Programs("per-flow", given.seed + number, cluster, way, directory)
                    try:
                        with lab:
                            result = CASES[name](lab, directory)
                    except (AssertionError, subprocess.SubprocessError) as error:
                        result = {"error": str(error)[:2000]}
                    result["late"] = late_share(lab)
                    results.setdefault(f"{name}/{way}", []).append(result)
                    print(name, way, number, json.dumps(result), flush=True)
                    store.write_text(json.dumps(results, indent=1) + "\n")
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    print(table(results))
    (given.out / "mptcp-programs.md").write_text(table(results))


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    main()
