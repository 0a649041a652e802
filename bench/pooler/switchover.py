#!/usr/bin/env python3
"""What clients notice of switchovers and failovers by Patroni: etcd, two servers, Hawser, pgbench.

    python3 bench/pooler/switchover.py [--switchovers 20] [--kills 5] [--clients 100] [--without]

For each switchover pgbench runs through Hawser, Patroni's `before_stop` runs SWITCHOVER on Hawser's console, and Patroni stops
the primary fast. For each kill Patroni and its server are killed. Printed for each: clients that pgbench gave up after an error,
and the longest transaction. --without: `before_stop` does nothing. PATRONI names the program, HAWSER a release build.
"""

import argparse
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "tests"))
from harness import etcd
from harness.pooler import binary
from harness.postgres import SERVER_USER, bin_directories, free_port

TRUST = "local all all trust\nhost all all 127.0.0.0/8 trust\n"
POOL_SIZE = 10
PATIENCE = 90
HAWSER = """
[listen]
address = "127.0.0.1:{port}"
[[database]]
name = "postgres"
servers = [{servers}]
target_session_attrs = "primary"
pool_size = {pool_size}
[auth]
hba_file = "{own}/pg_hba.conf"
users_file = "{own}/userlist.txt"
admin_users = ["postgres"]
[log]
log_connections = false
log_disconnections = false
[admin]
http_address = ""
control_socket = "{own}/hawser.sock"
"""


def as_server(command):
    """PostgreSQL and Patroni do not run as root."""
    if os.getuid():
        return command
    return ["setpriv", f"--reuid={SERVER_USER}", f"--regid={SERVER_USER}", "--init-groups", *command]


def wait_for(what, condition):
    end = time.monotonic() + PATIENCE
    while not (found := condition()):
        if time.monotonic() > end:
            raise SystemExit(f"{what}: not within {PATIENCE} s")
        time.sleep(0.1)
    return found


class Node:
    """One Patroni with its server."""

    def __init__(self, directory, name, etcd_port, command):
        """`command`: what the shell runs before the primary stops."""
        self.name, self.rest, self.port = name, free_port(), free_port()
        self.directory = directory / name
        self.directory.mkdir()
        before_stop = self.directory / "before_stop"
        primary = f"psql -h {self.directory} -p {self.port} -U postgres -Atc 'SELECT pg_is_in_recovery()'"
        before_stop.write_text(f'#!/bin/sh\n[ "$({primary})" = t ] || {command}\n')
        before_stop.chmod(0o755)
        trust = (TRUST + "host replication all 127.0.0.0/8 trust\n").splitlines()
        postgresql = {
            "listen": f"127.0.0.1:{self.port}", "connect_address": f"127.0.0.1:{self.port}", "data_dir": f"{self.directory}/data",
            "bin_dir": bin_directories()[0], "pgpass": f"{self.directory}/pgpass", "pg_hba": trust, "before_stop": str(before_stop),
            "use_pg_rewind": True, "remove_data_directory_on_rewind_failure": True, "remove_data_directory_on_diverged_timelines": True,
            "authentication": {"superuser": {"username": "postgres"}, "replication": {"username": "postgres"}},
            "parameters": {"unix_socket_directories": str(self.directory), "fsync": "off", "max_connections": 150},
        }  # fmt: skip
        dcs = {"ttl": 20, "loop_wait": 2, "retry_timeout": 5, "postgresql": {"use_pg_rewind": True,
               "parameters": {"wal_log_hints": "on", "fsync": "off"}}}  # fmt: skip
        settings = {"scope": "bench", "name": name, "restapi": {"listen": f"127.0.0.1:{self.rest}",
                    "connect_address": f"127.0.0.1:{self.rest}"}, "etcd3": {"host": f"127.0.0.1:{etcd_port}"},
                    "bootstrap": {"dcs": dcs, "initdb": [{"auth": "trust"}, {"encoding": "UTF8"}]}, "postgresql": postgresql}  # fmt: skip
        self.config = self.directory / "patroni.yml"
        self.config.write_text(json.dumps(settings))  # JSON is YAML
        if os.getuid() == 0:
            for path in (self.directory, self.config):
                shutil.chown(path, SERVER_USER, SERVER_USER)
        self.process = None

    def start(self):
        program = os.environ.get("PATRONI") or shutil.which("patroni")
        with open(self.directory / "log", "ab") as log:
            self.process = subprocess.Popen(as_server([program, str(self.config)]), stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                                            cwd="/", env={**os.environ, "LC_ALL": "C.UTF-8"})  # fmt: skip

    def ask(self, path, **body):
        request = urllib.request.Request(f"http://127.0.0.1:{self.rest}{path}", json.dumps(body).encode() if body else None,
                                         {"Content-Type": "application/json"})  # fmt: skip
        try:
            with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
                return answer.read().decode()
        except (OSError, urllib.error.URLError):
            return None

    def state(self):
        """{name: (role, state)} of the cluster."""
        answer = self.ask("/cluster")
        return {one["name"]: (one["role"], one["state"]) for one in json.loads(answer)["members"]} if answer else {}

    def kill(self):
        """Patroni and its server, as by a power cut of the machine."""
        postmaster = int((self.directory / "data/postmaster.pid").read_text().split()[0])
        self.process.kill()
        self.process.wait()
        os.kill(postmaster, signal.SIGKILL)

    def stop(self):
        if self.process and self.process.poll() is None:
            self.process.terminate()
            self.process.wait()


def whole(nodes):
    """The leader, if one leads and the other follows it."""
    states = next((state for node in nodes if (state := node.state())), {})
    leaders = [node for node in nodes if states.get(node.name) == ("leader", "running")]
    followers = [name for name, state in states.items() if state == ("replica", "streaming")]
    return leaders[0] if len(leaders) == 1 and len(followers) == 1 else None


def hawser(directory, port, nodes):
    own = directory / "hawser"
    own.mkdir()
    (own / "pg_hba.conf").write_text(TRUST)
    (own / "userlist.txt").write_text('"postgres" ""\n')
    servers = ", ".join(f'"127.0.0.1:{node.port}"' for node in nodes)
    (own / "hawser.toml").write_text(HAWSER.format(port=port, servers=servers, pool_size=POOL_SIZE, own=own))
    with open(own / "log", "wb") as log:
        return subprocess.Popen([binary(), "serve", "-c", str(own / "hawser.toml")], stdin=subprocess.DEVNULL, stdout=log, stderr=log)


def under_load(port, clients, seconds, event):
    """What pgbench says when `event` happens in its third second: (clients given up, longest transaction in s, TPS, errors)."""
    with tempfile.TemporaryDirectory() as logs:
        command = ["pgbench", "-n", "-M", "prepared", "-N", "-h", "127.0.0.1", "-p", str(port), "-U", "postgres", "-c", str(clients),
                   "-j", "2", "-T", str(seconds), "-l", "--log-prefix", f"{logs}/log", "postgres"]  # fmt: skip
        load = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        time.sleep(3)
        event()
        said = load.communicate()[0]
        times = [int(line.split()[2]) for path in pathlib.Path(logs).iterdir() for line in path.read_text().splitlines()]
    if not times:
        raise SystemExit(f"pgbench ran no transaction:\n{said}")
    errors = sorted(set(re.findall(r"(?:ERROR|FATAL): +(.*)", said)))
    tps = re.search(r"tps = ([0-9.]+)", said)
    return said.count(" aborted in "), max(times) / 1e6, float(tps.group(1)) if tps else 0.0, errors


def main():
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--switchovers", type=int, default=20)
    options.add_argument("--kills", type=int, default=5)
    options.add_argument("--clients", type=int, default=100)
    options.add_argument("--without", action="store_true")
    chosen = options.parse_args()
    directory = pathlib.Path(tempfile.mkdtemp(prefix="hawser-switchover-"))
    directory.chmod(0o755)
    port, started = free_port(), []
    switchover = f"psql -h 127.0.0.1 -p {port} -U postgres -d hawser -c 'SWITCHOVER postgres'"
    store = etcd.Etcd(directory / "etcd").start()
    try:
        nodes = [Node(directory, name, store.port, "true" if chosen.without else switchover) for name in ("one", "two")]
        for node in nodes:
            node.start()
            started.append(node.stop)
            wait_for(f"Patroni {node.name}", node.state)
        leader = wait_for("a cluster", lambda: whole(nodes))
        pooler = hawser(directory, port, nodes)
        started.append(lambda: (pooler.terminate(), pooler.wait()))
        wait_for("Hawser", lambda: subprocess.run(["pg_isready", "-q", "-h", "127.0.0.1", "-p", str(port)]).returncode == 0)
        subprocess.run(["pgbench", "-q", "-i", "-s", "10", "-h", "127.0.0.1", "-p", str(leader.port), "-U", "postgres", "postgres"],
                       check=True, stderr=subprocess.DEVNULL)  # fmt: skip
        totals = {}
        for kind, count, seconds in (("switchover", chosen.switchovers, 12), ("kill", chosen.kills, 45)):
            for number in range(count):
                leader = wait_for("a whole cluster", lambda: whole(nodes))
                candidate = next(node for node in nodes if node is not leader)
                if kind == "switchover":
                    names = {"leader": leader.name, "candidate": candidate.name}
                    event = lambda leader=leader, names=names: leader.ask("/switchover", **names)
                else:
                    event = leader.kill
                lost, longest, tps, errors = under_load(port, chosen.clients, seconds, event)
                print(f"{kind} {number + 1}: {lost} clients lost, longest transaction {longest:.2f} s, {tps:.0f} TPS {errors}", flush=True)
                totals.setdefault(kind, []).append((lost, longest))
                if kind == "kill":
                    leader.start()
        for kind, all_of in totals.items():
            times = sorted(longest for _, longest in all_of)
            print(f"{len(all_of)} {kind}s: {sum(lost for lost, _ in all_of)} clients lost, longest transaction {times[-1]:.2f} s, "
                  f"median {times[len(times) // 2]:.2f} s")  # fmt: skip
    finally:
        for end in reversed(started):
            end()
        store.kill()
        shutil.rmtree(directory, ignore_errors=True)


if __name__ == "__main__":
    main()
