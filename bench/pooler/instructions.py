#!/usr/bin/env python3
"""Instructions in user space for a transaction with many clients: most of them wait for a server connection.

    python3 bench/pooler/instructions.py [PROGRAM ...] [--clients 50] [--load prepared] [--profile DIRECTORY]

Valgrind counts the whole program twice, with few transactions of pgbench and with many; what the rest takes, by their
number, is one transaction's. `--profile` keeps callgrind's files of the longer run, for callgrind_annotate.
Counts repeat to 2 % or so: how many events a turn of a loop brings is chance.
"""

import argparse
import os
import pathlib
import re
import signal
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "common"))
import cluster
import poolers
import run
from cluster import DATABASE, USER, Cluster, Unavailable, raise_descriptor_limit, stop
from unused_state import VALGRIND_STOP_S, under_valgrind

FEW, MANY = 5_000, 25_000
SELECTS = 5
BLOCK = "\\set aid random(1, 100000)\nBEGIN;\n" + "SELECT abalance FROM pgbench_accounts WHERE aid = :aid;\n" * SELECTS + "COMMIT;\n"
# What pgbench is told; the block is of as many messages as seven transactions.
LOADS = {
    "prepared": ["-S", "-M", "prepared"],
    "extended": ["-S", "-M", "extended"],
    "simple": ["-S"],
    "block": ["-f", "BLOCK"],
    "block_prepared": ["-M", "prepared", "-f", "BLOCK"],
}


def counted(log):
    found = re.search(r"I\s+refs:\s+([\d,]+)", log) or re.search(r"Collected : (\d+)", log)
    if not found:
        raise Unavailable("valgrind gave no count")
    return int(found.group(1).replace(",", ""))


def instructions(program, server, load, transactions, clients):
    """Of the whole program, from its start to its end, and the transactions that it has run."""
    each = max(1, transactions // clients)
    block = os.path.join(server.directory, "block.sql")
    with open(block, "w") as out:
        out.write(BLOCK)
    told = [block if word == "BLOCK" else word for word in LOADS[load]]
    with poolers.Contestant("hawser", load, program).start(server, tls=False) as running:
        command = [server.program("pgbench"), "-n", "-h", "127.0.0.1", "-p", str(running.port), "-U", USER,
                   "-c", str(clients), "-j", "1", "-t", str(each), *told, DATABASE]  # fmt: skip
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode != 0:
            raise Unavailable(f"pgbench: {done.stderr.strip()[-200:]}")
        [process] = running.processes
        stop(process, signal.SIGTERM, VALGRIND_STOP_S)
        with open(running.log, errors="replace") as log:
            return counted(log.read()), each * clients


def under_callgrind(program, directory, profile):
    path = os.path.join(directory, f"profiled-{os.path.basename(program)}")
    with open(path, "w") as out:
        out.write(f'#!/bin/sh\nexec valgrind --tool=callgrind --callgrind-out-file="{profile}" "{program}" "$@"\n')
    os.chmod(path, 0o755)
    return path


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    default = os.environ.get("HAWSER") or os.path.join(run.target_directory(), "release", "hawser")
    parser.add_argument("programs", nargs="*", default=[default], help="that are counted, in turns")
    parser.add_argument("--clients", type=int, default=50)
    parser.add_argument("--load", action="append", choices=LOADS, help="may be given several times [all]")
    parser.add_argument("--profile", help="a directory that poolers may write to, for callgrind's files")
    given = parser.parse_args()
    cluster.START_LIMIT_S = 180  # valgrind takes its time
    try:
        raise_descriptor_limit()
        with Cluster(1, 200) as server:
            for load in given.load or LOADS:
                # A block is as much work as several.
                few, many = (FEW, MANY) if "block" not in load else (FEW // SELECTS, MANY // SELECTS)
                for number, program in enumerate(given.programs):
                    program = os.path.abspath(program)
                    counting = under_valgrind(program, server.directory)
                    first, first_n = instructions(counting, server, load, few, given.clients)
                    if given.profile:
                        profile = os.path.join(os.path.abspath(given.profile), f"{load}.{number}")
                        counting = under_callgrind(program, server.directory, profile)
                    last, last_n = instructions(counting, server, load, many, given.clients)
                    print(f"{load}: {program}: {(last - first) / (last_n - first_n):,.0f}", flush=True)
    except Unavailable as error:
        print(f"bench: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
