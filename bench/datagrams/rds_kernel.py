#!/usr/bin/env python3
"""What a request of 8 KiB and its reply of 256 bytes cost, by the kernel's RDS and by Hawser's: in instructions.

    bench/datagrams/rds_kernel.py [--tasks 8] [--depth 1] [--seconds 3]

Both run in one kernel (`make bpf-kernel` fetches it) in an emulator that counts instructions and makes time of them:
what other programs of this machine do has no part in it. There is one processor, which is always busy, so requests a
second of that time are instructions for each request, both ends together: network namespaces that a veth pair joins.
It says nothing of caches, and weighs all instructions the same. It needs root, qemu-system-x86 and a C compiler.
"""

import argparse
import json
import pathlib
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests"))

from harness import emulator

NEAR, FAR = "10.9.0.1", "10.9.0.2"
# 2 ** 3 nanoseconds for an instruction.
SHIFT = 3
MIPS = 1000 / 2**SHIFT
COUNTED = ["-icount", f"shift={SHIFT}", "-rtc", "clock=vm"]


def far(*command):
    return ["ip", "netns", "exec", "far", *map(str, command)]


def inside(hawser, load, tasks, depth, seconds):
    """In that kernel: requests a second of both."""
    for command in ("ip netns add far", "ip link add near type veth peer name far netns far", f"ip addr add {NEAR}/24 dev near",
                    "ip link set near up", f"ip -n far addr add {FAR}/24 dev far", "ip -n far link set far up", "ip -n far link set lo up"):
        subprocess.run(command.split(), check=True)
    sizes = (8192, 256)
    answering = subprocess.Popen(far(load, FAR, NEAR, tasks, 0, *sizes, 0, 0), stdout=subprocess.PIPE, text=True)
    for _ in range(tasks):
        answering.stdout.readline()
    said = subprocess.run([load, NEAR, FAR, *map(str, (tasks, depth, *sizes, 2, seconds))], capture_output=True, text=True)
    answering.kill()
    print("kernel:", said.stdout.strip() or said.stderr.strip(), flush=True)
    options = ["-t", tasks, "-d", depth, "-q", sizes[0], "-a", sizes[1], "-o", "-T", seconds, "--tcp-port", 17_000]
    passive = subprocess.Popen(far(hawser, "rds", "stress", "-r", FAR, "-z"), stdout=subprocess.PIPE, text=True)
    passive.stdout.readline()
    said = subprocess.run([hawser, "rds", "stress", "-s", FAR, "-r", NEAR, "--json", *map(str, options)], capture_output=True, text=True)
    passive.kill()
    print("hawser:", json.loads(said.stdout.splitlines()[-1])["requests_sent_s"] if said.returncode == 0 else said.stderr.strip(),
          flush=True)


def compare(hawser, tasks, depth, seconds):
    """Requests a second of a processor of `MIPS` million instructions a second: of the kernel, and of Hawser."""
    with tempfile.TemporaryDirectory(dir=emulator.KERNEL) as directory:
        load = pathlib.Path(directory, "rds_load")
        subprocess.run(["cc", "-O2", "-static", "-o", load, ROOT / "bench/datagrams/rds_load.c"], check=True)
        # (This machine's /tmp is another one there.)
        hawser = shutil.copy(hawser, pathlib.Path(directory, "hawser"))
        command = ["/usr/bin/python3", __file__, "--inside", hawser, load, "--tasks", tasks, "--depth", depth, "--seconds", seconds]
        modules = ("veth", "rds", "rds_tcp")
        with emulator.machine(command, {"PYTHONDONTWRITEBYTECODE": 1}, modules) as (arguments, _):
            one = {"tcg,thread=multi": "tcg,thread=single"}
            arguments = [one.get(word, word) for word in arguments]
            arguments[arguments.index("-smp") + 1] = "1"
            done = subprocess.run([*arguments, *COUNTED], stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace",
                                  timeout=1800)
    lines = dict(line.split(": ", 1) for line in done.stdout.splitlines() if line.startswith(("kernel: ", "hawser: ")))
    try:
        return float(lines["kernel"]), float(lines["hawser"])
    except (KeyError, ValueError):
        raise SystemExit(f"no figures: {done.stdout[-3000:]}{done.stderr[-1000:]}") from None


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", type=int, default=8)
    parser.add_argument("--depth", type=int, default=1)
    parser.add_argument("--seconds", type=int, default=3)
    parser.add_argument("--hawser", default=str(ROOT / "target/release/hawser"))
    parser.add_argument("--inside", nargs=2, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.inside:
        return inside(*given.inside, given.tasks, given.depth, given.seconds)
    kernel, hawser = compare(given.hawser, given.tasks, given.depth, given.seconds)
    print(f"kernel {MIPS * 1e6 / kernel:,.0f} instructions a request, Hawser {MIPS * 1e6 / hawser:,.0f}: {kernel / hawser:.2f} times")


if __name__ == "__main__":
    sys.exit(main())
