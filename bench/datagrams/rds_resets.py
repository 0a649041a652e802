#!/usr/bin/env python3
"""What Linux's RDS loses, and what it delivers twice, when the connections between two of them are reset.

    bench/datagrams/rds_resets.py [--ports 16] [--messages 400] [--resets 6] [--runs 3]

Two network namespaces of one kernel (`make bpf-kernel` fetches it), in an emulator, joined by a veth pair: no Hawser has
a part in it. Each of `--ports` ports of one side sends numbered messages of 20 kB to a port of the other, both ways, while
all connections between the two, which are eight, are reset some times (`ss -K`). It needs root and qemu-system-x86.
"""

import argparse
import ctypes
import json
import pathlib
import socket
import subprocess
import sys
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests"))

from harness import emulator
from harness.rds_guest import SO_RCVBUFFORCE, SO_SNDBUFFORCE, exchange

NEAR, FAR = "10.9.0.1", "10.9.0.2"
RDS_PORT, FIRST = 16385, 4001
SIZE, BUFFER = 20_000, 8 << 20
CLONE_NEWNET = 0x4000_0000
QUIET = 5


def enter(path):
    with open(path) as place:
        assert ctypes.CDLL(None).setns(place.fileno(), CLONE_NEWNET) == 0, path


def bound(address, ports):
    """Sockets of this thread's namespace."""
    found = []
    for port in range(FIRST, FIRST + ports):
        made = socket.socket(socket.AF_RDS, socket.SOCK_SEQPACKET, 0)
        made.setsockopt(socket.SOL_SOCKET, SO_SNDBUFFORCE, BUFFER)
        made.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, 16 * BUFFER)
        made.bind((address, port))
        found.append(made)
    return found


def inside(ports, messages, resets):
    """In that kernel."""
    for command in ("ip netns add far", "ip link add near type veth peer name far netns far", f"ip addr add {NEAR}/24 dev near",
                    "ip link set near up", f"ip -n far addr add {FAR}/24 dev far", "ip -n far link set far up", "ip -n far link set lo up"):
        subprocess.run(command.split(), check=True)
    near = bound(NEAR, ports)
    enter("/run/netns/far")
    far = bound(FAR, ports)
    enter("/proc/1/ns/net")
    seen = {}

    def side(name, sockets, there):
        pairs = [(one, (there, FIRST + at)) for at, one in enumerate(sockets)]
        seen[name] = exchange(pairs, messages, SIZE, QUIET)
    sides = [threading.Thread(target=side, args=args) for args in (("near", near, FAR), ("far", far, NEAR))]
    for side in sides:
        side.start()
    connections = 0
    for _ in range(resets):
        time.sleep(1)
        shown = subprocess.run(["ss", "-Htn", "state", "established", "dst", FAR], capture_output=True, text=True).stdout
        connections = max(connections, shown.count(f":{RDS_PORT}"))
        subprocess.run(["ss", "-K", "dst", FAR], capture_output=True)
    for side in sides:
        side.join()
    found = {"connections": connections}
    for name, ways in seen.items():
        found[name] = {"sent": ports * messages, "twice": sum(len(way) - len(set(way)) for way in ways),
                       "missing": sum(messages - len(set(way)) for way in ways)}
    print("found:", json.dumps(found), flush=True)


def run(ports, messages, resets):
    command = ["/usr/bin/python3", __file__, "--inside", "--ports", ports, "--messages", messages, "--resets", resets]
    modules = ("veth", "inet_diag", "tcp_diag", "rds", "rds_tcp")
    with emulator.machine(command, {"PYTHONDONTWRITEBYTECODE": 1}, modules) as (arguments, _):
        done = subprocess.run(arguments, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", timeout=900)
    lines = [line for line in done.stdout.splitlines() if line.startswith("found: ")]
    if not lines:
        raise SystemExit(f"no figures: {done.stdout[-3000:]}{done.stderr[-1000:]}")
    return json.loads(lines[0].split(" ", 1)[1])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ports", type=int, default=16)
    parser.add_argument("--messages", type=int, default=400)
    parser.add_argument("--resets", type=int, default=6)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.inside:
        return inside(given.ports, given.messages, given.resets)
    for _ in range(given.runs):
        found = run(given.ports, given.messages, given.resets)
        print(f"{found['connections']} connections, {given.resets} resets of all: " + "; ".join(
            f"to the {'smaller' if side == 'near' else 'larger'} address {found[side]['sent']} messages sent, {found[side]['twice']} came "
            f"twice, {found[side]['missing']} never" for side in ("near", "far")), flush=True)


if __name__ == "__main__":
    sys.exit(main())
