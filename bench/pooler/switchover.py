#!/usr/bin/env python3
"""What clients notice of switchovers and failovers by Patroni: etcd, two servers, Hawser, pgbench.

    python3 bench/pooler/switchover.py [--switchovers 20] [--kills 5] [--clients 100] [--announced] [--without]

For each switchover pgbench runs through Hawser, Patroni's `before_stop` runs SWITCHOVER on Hawser's console, and Patroni stops
the primary fast. For each kill Patroni and its server are killed. Printed for each: clients that pgbench gave up after an error,
and the longest transaction. --announced: switchovers are scheduled, Hawser asks Patroni for them, and `before_stop` does nothing.
--without: neither. PATRONI names the program (else PATH, else PyPI has it), HAWSER a release build.
"""

import argparse
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "tests"))
from harness import etcd, patroni
from harness.patroni import TRUST, Node, wait_for, whole
from harness.pooler import binary
from harness.postgres import free_port

POOL_SIZE = 10
ANNOUNCED_SECONDS = 3
HAWSER = """
[listen]
address = "127.0.0.1:{port}"
[[database]]
name = "postgres"
servers = [{servers}]
patroni = [{patroni}]
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


def hawser(directory, port, nodes, asks):
    own = directory / "hawser"
    own.mkdir()
    (own / "pg_hba.conf").write_text(TRUST)
    (own / "userlist.txt").write_text('"postgres" ""\n')
    servers = ", ".join(f'"127.0.0.1:{node.port}"' for node in nodes)
    rest = ", ".join(f'"http://127.0.0.1:{node.rest}"' for node in nodes if asks)
    (own / "hawser.toml").write_text(HAWSER.format(port=port, servers=servers, patroni=rest, pool_size=POOL_SIZE, own=own))
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
    options.add_argument("--announced", action="store_true")
    options.add_argument("--without", action="store_true")
    chosen = options.parse_args()
    patroni.fetch()
    directory = pathlib.Path(tempfile.mkdtemp(prefix="hawser-switchover-"))
    directory.chmod(0o755)
    port, started = free_port(), []
    switchover = f"psql -h 127.0.0.1 -p {port} -U postgres -d hawser -c 'SWITCHOVER postgres'"
    store = etcd.Etcd(directory / "etcd").start()
    try:
        nodes = [Node(directory, name, store.port, "true" if chosen.without or chosen.announced else switchover) for name in ("one", "two")]
        for node in nodes:
            node.start()
            started.append(node.stop)
            wait_for(f"Patroni {node.name}", node.state)
        leader = wait_for("a cluster", lambda: whole(nodes))
        pooler = hawser(directory, port, nodes, chosen.announced)
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
                    after = ANNOUNCED_SECONDS if chosen.announced else None
                    event = lambda leader=leader, to=candidate, after=after: leader.switch_over(to, after)
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
