#!/usr/bin/env python3
"""Reliable datagrams: the table of what they shall reach, and what this machine makes of it.

    bench/datagrams/rds.py [--seconds 10] [--runs 3] [--at-once 1] [--only interop,limits,cpu,kernel,lanes,small,memory] [--json FILE]

`make bench-datagrams` fetches what it needs, and runs it. `limits` and `lanes` need root (the laboratory's network
namespaces), `interop` what `make test-kernel` needs, `kernel` what bench/datagrams/rds_kernel.py needs; what cannot run is said, with
the reason, and the exit code is 1 then. `--at-once` has so many networks of `limits` at one time, which makes the hosts busy. Rates are of messages with their headers, which is TCP payload. The load of the machine when
it began is printed: on a busy one rates without a network's limit say little, but seconds of a processor for each message
do.
"""

import argparse
import concurrent.futures
import json
import os
import pathlib
import resource
import shutil
import socket
import subprocess
import sys
import time

import rds_kernel

ROOT = pathlib.Path(__file__).resolve().parents[2]
HAWSER = os.environ.get("HAWSER", str(ROOT / "target/release/hawser"))
HEADER = 48
REQUEST, REPLY = 8192, 256
# TCP payload of `per-flow`: eight limits of 10 Mbit/s, less headers (bench/multipath/mptcp.py).
CEILING = 75.3


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
        run = subprocess.run([*near, HAWSER, "rds", "stress", "-s", address, "--json", *map(str, options)], capture_output=True, text=True, timeout=900)
        assert run.returncode == 0, run.stderr
        passive.communicate(timeout=60)
    finally:
        passive.kill()
        passive.wait()
    return json.loads(run.stdout.splitlines()[-1]), children_seconds() - before


def one_core(*options):
    """Over loopback, each end on a core of its own: requests, and seconds of a processor for each message, sent and received."""
    cores = sorted(os.sched_getaffinity(0))
    pin = [["taskset", "-c", str(core)] if shutil.which("taskset") else [] for core in (cores[0], cores[-1])]
    found, cpu = stress(pin[0], pin[1], "127.0.0.2", "-r", "127.0.0.1", "--tcp-port", free_port(), *options)
    # All that was sent and received, uncounted seconds included: of lanes, and both ends sent as much.
    messages = 2 * sum(lane["sent"] for lane in found["lanes"])
    return found, cpu / messages


class Limits:
    """`per-flow`, as long as it is needed."""

    def __init__(self, seed):
        self.name, self.seed = f"bench-rds-{os.getpid()}-{seed}", seed

    def __enter__(self):
        up = subprocess.run([HAWSER, "lab", "up", "per-flow", "--name", self.name, "--seed", str(self.seed)], capture_output=True, text=True)
        if up.returncode:
            raise Missing(up.stderr.strip())
        return self

    def __exit__(self, *_):
        subprocess.run([HAWSER, "lab", "down", self.name], capture_output=True)

    def inside(self, host):
        return [HAWSER, "lab", "run", self.name, "--on", host, "--accept-unfaithful", "--"]

    def each_second(self, lanes, seconds):
        """Mbit/s of TCP payload in each second, and the summary. The first four seconds of traffic are among none."""
        found, _ = stress(self.inside("near"), self.inside("far"), "10.77.0.2", "-t", 32, "-q", REQUEST, "-a", REPLY, "-o", "--lanes", lanes, "-T", seconds)
        return [requests * (REQUEST + HEADER) * 8 / 1e6 for requests in found["requests_each_second"]], found


class Missing(Exception):
    """What a case needs is not here."""


def mean(numbers):
    return sum(numbers) / max(len(numbers), 1)


def interop(given):
    if not (ROOT / ".run/bpf-kernel/rds_tcp.ko").exists():
        raise Missing("there is no kernel with rds_tcp: make test-kernel builds it, and runs the same tests")
    began = time.monotonic()
    run = subprocess.run([sys.executable, str(ROOT / "tests/run.py"), "--no-skips", "-k", "test_rds_kernel"], capture_output=True, text=True, env={**os.environ, "HAWSER": HAWSER})
    counts = next((line for line in reversed(run.stdout.splitlines()) if " passed, " in line), "no test ran")
    return [("interop with the kernel's rds_tcp", counts, "every case", f"Linux 6.12 in an emulator, {time.monotonic() - began:.0f} s; exit code {run.returncode}")]


def limits(given):
    seconds = max(given.seconds, 60)

    def one(seed):
        with Limits(seed) as network:
            return network.each_second(8, seconds)
    halves, alls, firsts, dials = [], [], [], []
    for run in range(given.runs):
        with concurrent.futures.ThreadPoolExecutor(given.at_once) as pool:
            done = list(pool.map(one, range(given.seed + run * given.at_once, given.seed + (run + 1) * given.at_once)))
        for rates, found in done:
            # Half a second of requests may be counted a second late: means of three.
            smooth = [mean(rates[at:at + 3]) for at in range(len(rates) - 2)]
            firsts.append(next((at + 4 for at, rate in enumerate(smooth) if rate >= 71), None))
            halves.append(mean(rates[len(rates) // 2:]))
            alls.append(mean(rates))
            dials.append(sum(lane["connections"] for lane in found["lanes"]) - 8)
    shown = ", ".join
    note = (f"{given.runs} runs of {seconds} s, {given.at_once} at once, of {CEILING} at most; all seconds {shown(f'{rate:.1f}' for rate in alls)}; "
            f"71 after {shown(f'{at} s' if at is not None else 'never' for at in firsts)} of traffic; {shown(map(str, dials))} lanes dialled again; load {os.getloadavg()[0]:.1f} at the end")
    return [("8 limits of 10 Mbit/s, `stress`: Mbit/s, second half", shown(f"{rate:.1f}" for rate in halves), "71", note)]


def small(given):
    found, cpu = one_core("-t", 8, "-d", 32, "-q", 64, "-a", 64, "-T", given.seconds)
    # Each end sends requests and answers.
    each_way = found["requests_sent_s"] + found["requests_received_s"]
    note = f"{1e9 * cpu:.0f} ns of a processor for each, sent and received, kernel included: {0.5 / cpu:,.0f} each way with both ends on one core that has nothing else to do"
    return [("64-byte messages a second each way, an end on a core", f"{each_way:,.0f}", "500,000", note)]


def lanes(given):
    rows = []
    for count in (1, 2, 4, 8):
        with Limits(given.seed) as network:
            rates, _ = network.each_second(count, 40)
        rate = mean(rates[len(rates) // 2:])
        rows.append((f"8 KiB requests, 256 B replies, limits of 10 Mbit/s, {count} lane{'s' * (count > 1)}: Mbit/s", f"{rate:.1f}", f"{CEILING * count / 8:.1f} at most", "seconds 24 to 44"))
    return rows


def cpu(given):
    rows = []
    for count in (1, 8):
        found, each = one_core("-t", 8, "-d", 1, "-q", REQUEST, "-a", REPLY, "--lanes", count, "-T", given.seconds)
        requests = found["requests_sent_s"] + found["requests_received_s"]
        rows.append((f"no limits, 8 KiB requests, 256 B replies, {count} lane{'s' * (count > 1)} by 1: requests a second", f"{requests:,.0f}", "see the emulator's row",
                     f"{2e6 * each:.1f} us of a processor for a request and its reply, both ends; rtt {found['rtt_us']:.0f} us"))
    return rows


def kernel(given):
    try:
        theirs, ours = rds_kernel.compare(HAWSER, 8, 1, 3)
    except (Exception, SystemExit) as error:
        raise Missing(f"bench/datagrams/rds_kernel.py: {error}"[:200]) from error
    per = lambda rate: rds_kernel.MIPS * 1e6 / rate
    return [("the same in an emulator, instructions a request, Hawser's by the kernel's", f"{theirs / ours:.2f}", "1.5 at most", f"kernel {per(theirs):,.0f}, Hawser {per(ours):,.0f}, both ends; Linux 6.12")]


def memory(given):
    """Peers that are connected by eight lanes each and send nothing, by the proxy's own count and by its resident size."""
    port, path = free_port(), f"/tmp/bench-rds-{os.getpid()}.sock"
    proxy = subprocess.Popen([HAWSER, "rds", "proxy", "--address", "127.0.0.1", "--tcp-port", str(port), "--socket", path], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    pings = []

    def info():
        return json.loads(subprocess.run([HAWSER, "rds", "info", "--socket", path, "--json"], capture_output=True, text=True, check=True).stdout)["peers"]

    def resident():
        # (VmRSS is inexact by some hundred kilobytes.)
        return int(next(line for line in open(f"/proc/{proxy.pid}/smaps_rollup") if line.startswith("Anonymous:")).split()[1])

    def come(count):
        for _ in range(count):
            # It pings once in an hour, and holds its lanes.
            pings.append(subprocess.Popen([HAWSER, "rds", "ping", "127.0.0.1", "-I", f"127.0.1.{len(pings) + 1}", "-i", "3600", "--tcp-port", str(port)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))
        end = time.monotonic() + 120
        while sum(lane["state"] == "up" for peer in info() for lane in peer["lanes"]) < 8 * len(pings):
            assert time.monotonic() < end, "not all lanes have come up"
            time.sleep(0.5)
        # What lanes do not need when they are idle is given back. (The report is held as text for a moment.)
        time.sleep(6)
    try:
        proxy.stdout.readline()
        # What the first ones take is the program's own, for the most part.
        first, peers = 20, 100
        come(first)
        before = resident()
        come(peers)
        grown = resident() - before
        most = max(peer["memory_bytes"] for peer in info())
        return [("memory for an idle peer with eight lanes: bytes of resident size", f"{grown * 1024 // peers:,}", "under 4,096", f"{peers} peers that are connected; by its own count {most:,}")]
    finally:
        for process in [*pings, proxy]:
            process.terminate()
        for process in [*pings, proxy]:
            process.wait()


def main():
    cases = {"interop": interop, "limits": limits, "cpu": cpu, "kernel": kernel, "lanes": lanes, "small": small, "memory": memory}
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=int, default=10)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--at-once", type=int, default=1)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", default=",".join(cases))
    parser.add_argument("--json")
    given = parser.parse_args()
    print(f"load when it began: {os.getloadavg()[0]:.1f} on {os.cpu_count()} processors\n")
    print("| | measured | wanted | |\n|---|---|---|---|")
    rows = []
    for name in given.only.split(","):
        try:
            found = cases[name](given)
        except Missing as reason:
            found = [(name, None, "", f"{reason}")]
        for row in found:
            rows.append(row)
            what, measured, wanted, note = row
            print(f"| {what} | {measured or 'not measured'} | {wanted} | {note} |", flush=True)
    if given.json:
        pathlib.Path(given.json).write_text(json.dumps(rows, indent=1))
    return int(any(measured is None for _, measured, _, _ in rows))


if __name__ == "__main__":
    sys.exit(main())
