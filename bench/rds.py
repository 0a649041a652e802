#!/usr/bin/env python3
"""Reliable datagrams: the table of what they shall reach, as far as it can be measured on this machine.

    bench/rds.py [--seconds 10] [--only limits,small,lanes,memory] [--json FILE]

`limits` needs root (the laboratory's network namespaces); what cannot run is said, with the reason. The load of the
machine when it began is printed: on a busy one the figures of `small` and `lanes` say nothing.
"""

import argparse
import json
import os
import pathlib
import resource
import socket
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
HAWSER = os.environ.get("HAWSER", str(ROOT / "target/release/hawser"))


def free_port():
    with socket.socket() as probe:
        probe.bind(("0.0.0.0", 0))
        return probe.getsockname()[1]


def children_seconds():
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def stress(near, far, address, *options):
    """One run: its summary, and the processors' seconds of both ends. `near` and `far` are what comes before the commands."""
    before = children_seconds()
    passive = subprocess.Popen([*far, HAWSER, "rds", "stress", "-z"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert passive.stdout.readline().startswith("waiting"), passive.stderr.read()
        run = subprocess.run([*near, HAWSER, "rds", "stress", "-s", address, "--json", *map(str, options)], capture_output=True, text=True, timeout=600)
        assert run.returncode == 0, run.stderr
        passive.communicate(timeout=60)
    finally:
        passive.kill()
        passive.wait()
    return json.loads(run.stdout.splitlines()[-1]), children_seconds() - before


def loopback(given, *options):
    # 4 s of start are not counted, and 1 s comes after.
    found, cpu = stress([], [], "127.0.0.2", "-r", "127.0.0.1", "--tcp-port", free_port(), "-T", given.seconds, *options)
    return found, cpu / (given.seconds + 3)


def limits(given):
    name = f"bench-rds-{os.getpid()}"
    lab = [HAWSER, "lab"]
    up = subprocess.run([*lab, "up", "per-flow", "--name", name, "--seed", str(given.seed)], capture_output=True, text=True)
    if up.returncode:
        return [("8 limits of 10 Mbit/s, Mbit/s", None, "71", up.stderr.strip())]
    try:
        inside = [*lab, "run", name, "--accept-unfaithful"]
        seconds = max(given.seconds, 60)
        found, _ = stress([*inside, "--"], [*inside, "--on", "far", "--"], "10.77.0.2", "-t", 32, "-q", "8K", "-a", 256, "-o", "-T", seconds)
    finally:
        subprocess.run([*lab, "down", name], capture_output=True)
    dials = sum(lane["connections"] for lane in found["lanes"]) - len(found["lanes"])
    rate = found["bytes_s"] * 8 / 1e6
    return [("8 limits of 10 Mbit/s: Mbit/s of messages, mean of all seconds", f"{rate:.1f}", "71", f"{seconds} s, {dials} lanes dialled again")]


def small(given):
    found, cpu = loopback(given, "-t", 8, "-d", 32, "-q", 64, "-a", 64, "--lanes", 8)
    # Each end sends and receives both requests and answers.
    messages = 2 * (found["requests_sent_s"] + found["requests_received_s"]) / 2
    return [("64-byte messages a second each way", f"{messages:,.0f}", "500,000 on one core", f"{cpu:.2f} cores for both ends; {messages * 2 / max(cpu, 0.01):,.0f} messages sent and received for each second of a core")]


def lanes(given):
    rows = []
    for count in (1, 2, 4, 8):
        found, cpu = loopback(given, "-t", 8, "-d", 4, "-q", "8K", "-a", 256, "--lanes", count)
        messages = found["requests_sent_s"] + found["requests_received_s"]
        rows.append((f"8 KiB requests, 256 B replies, {count} lane{'s' * (count > 1)}: requests a second", f"{messages:,.0f}", "within 1.5 x of the kernel's CPU", f"{found['bytes_s'] * 8 / 1e9:.1f} Gbit/s, {cpu:.2f} cores for both ends, rtt {found['rtt_us']:.0f} us"))
    return rows


def memory(given):
    """Peers that have been used once, by the proxy's own count and by its resident size."""
    port, path = free_port(), f"/tmp/bench-rds-{os.getpid()}.sock"
    proxy = subprocess.Popen([HAWSER, "rds", "proxy", "--address", "127.0.0.1", "--tcp-port", str(port), "--socket", path], stdout=subprocess.PIPE, text=True)
    try:
        proxy.stdout.readline()
        resident = lambda: int(next(line for line in open(f"/proc/{proxy.pid}/status") if line.startswith("VmRSS")).split()[1])
        # What the first ones take is the program's own, for the most part.
        first, peers = 20, 60
        for number in range(first + peers):
            if number == first:
                time.sleep(3)
                before = resident()
            subprocess.run([HAWSER, "rds", "ping", "127.0.0.1", "-I", f"127.0.1.{number + 1}", "-c", "1", "--tcp-port", str(port)], capture_output=True, check=True)
        time.sleep(3)
        info = json.loads(subprocess.run([HAWSER, "rds", "info", "--socket", path, "--json"], capture_output=True, text=True, check=True).stdout)
        most = max(peer["memory_bytes"] for peer in info["peers"])
        return [("bytes for an idle peer", f"{most:,}", "under 4,096", f"{len(info['peers'])} peers; resident size grew by {(resident() - before) * 1024 // peers:,} bytes for each")]
    finally:
        proxy.terminate()
        proxy.wait()


def main():
    cases = {"limits": limits, "small": small, "lanes": lanes, "memory": memory}
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=int, default=10)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", default=",".join(cases))
    parser.add_argument("--json")
    given = parser.parse_args()
    print(f"load when it began: {os.getloadavg()[0]:.1f} on {os.cpu_count()} processors\n")
    print("| | measured | wanted | |\n|---|---|---|---|")
    print("| interop with the kernel's rds_tcp | `make test-kernel` says | every case | Linux 6.12 in an emulator |", flush=True)
    rows = []
    for name in given.only.split(","):
        for row in cases[name](given):
            rows.append(row)
            what, measured, wanted, note = row
            print(f"| {what} | {measured or 'not measured'} | {wanted} | {note} |", flush=True)
    if given.json:
        pathlib.Path(given.json).write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    sys.exit(main())
