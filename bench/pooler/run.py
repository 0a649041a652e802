#!/usr/bin/env python3
"""Benchmarks: direct, PgBouncer and Hawser in turns on one throw-away PostgreSQL.

See docs/benchmarks/README.md. In each round of a case every contestant takes its turn, so that the
drift of the machine hits all alike.
"""

import argparse
import contextlib
import dataclasses
import json
import os
import pathlib
import platform
import subprocess
import sys
import time
from statistics import median

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "common"))
import cases
import cpu
import poolers
import report
import users
from cluster import Cluster, Unavailable, memory_bytes, raise_descriptor_limit
from extension import Extension, Inside
from targets import INSIDE

ROOT = str(pathlib.Path(__file__).resolve().parents[2])
PUBLISHED = os.path.join(ROOT, "docs", "benchmarks")
TRIAL = os.path.join(ROOT, "bench", "out")
# Fewer rounds are a trial, not a result.
PUBLISHED_ROUNDS = 5
CLIENTS_MAX = 100_000
# Descriptors of a pooler that are not its clients'.
DESCRIPTORS_ASIDE = 2000
WARMUP_INSIDE_S = 4.0


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, help="turns of each contestant [5; quick: 3]")
    parser.add_argument("--seconds", type=float, help="of each measurement [5; quick: 2]")
    parser.add_argument("--quick", action="store_true", help="short runs, no curves, fewer idle clients")
    parser.add_argument("--only", action="append", default=[], metavar="CASE",
                        help="only this case (a name, or its beginning with *); may be repeated")  # fmt: skip
    parser.add_argument("--contestants", help="only these, separated by commas")
    parser.add_argument("--clients", type=int, help="connections where it is about many [what the limit allows]")
    parser.add_argument("--scale", type=int, default=10, help="pgbench's scale [10]")
    parser.add_argument("--out", help="directory of the results")
    parser.add_argument("--list", action="store_true", help="show the cases")
    parser.add_argument("--selftest", action="store_true", help="check the arithmetic")
    parser.add_argument("--resume", action="store_true",
                        help="keep the cases that an interrupted run of the same settings has in the directory")  # fmt: skip
    parser.add_argument("--report", metavar="JSON", help="write the report of earlier data again")
    given = parser.parse_args()
    given.rounds = given.rounds or (3 if given.quick else PUBLISHED_ROUNDS)
    given.seconds = given.seconds or (2.0 if given.quick else 5.0)
    if not given.out:
        whole = not (given.quick or given.contestants) and (given.resume or not given.only)
        given.out = PUBLISHED if whole and given.rounds >= PUBLISHED_ROUNDS else TRIAL
    return given


def many_clients(descriptors, given):
    """As many clients as the limit lets one pooler have, in thousands."""
    allowed = min(CLIENTS_MAX, (descriptors - DESCRIPTORS_ASIDE) // 1000 * 1000)
    wanted = given.clients or (4000 if given.quick else CLIENTS_MAX)
    return max(1000, min(allowed, wanted))


def is_wanted(case, given):
    if given.only:
        return any(
            case.name == only or (only.endswith("*") and case.name.startswith(only[:-1]))
            for only in given.only
        )
    return not (given.quick and case.curve)


def target_directory():
    return os.environ.get("CARGO_TARGET_DIR") or os.path.join(ROOT, "target")


def generator_program():
    """HAWSER_LOAD, or what cargo builds now."""
    if program := os.environ.get("HAWSER_LOAD"):
        return os.path.abspath(program)
    done = subprocess.run(["cargo", "build", "--release", "-q", "-p", "hawser-load"], cwd=ROOT)
    if done.returncode != 0:
        raise Unavailable("the load generator does not build")
    return os.path.join(target_directory(), "release", "hawser-load")


def machine(cluster, descriptors, instructions):
    model = "unknown"
    with open("/proc/cpuinfo") as info:
        for line in info:
            if line.startswith("model name"):
                model = line.partition(":")[2].strip()
                break
    return {
        "cores": len(os.sched_getaffinity(0)),
        "cpu": model,
        "memory_gib": round(memory_bytes() / (1 << 30)),
        "kernel": platform.release(),
        "postgres": cluster.version(),
        "descriptors": descriptors,
        "instructions": instructions,
    }


def measure(case, contestant, setting):
    """One turn: its figures, or the reason why there are none."""
    try:
        with contestant.start(setting.cluster, case.tls) as running:
            return case.run(setting, running)
    except (Unavailable, OSError, ZeroDivisionError) as error:
        return {"failed": str(error).replace(setting.cluster.directory, "...")}


def short(point):
    """One line for the terminal."""
    if "failed" in point:
        return f"failed: {point['failed']}"
    shown = []
    for name, _, form in report.COLUMNS:
        if point.get(name) is not None and name not in ("p95_us", "p999_us", "errors", "lost"):
            shown.append(f"{name} {form.format(point[name])}")
    for name in ("errors", "lost"):
        if point.get(name):
            shown.append(f"{name} {point[name]} ({point.get('first_error')})")
    return "  ".join(shown)


def run_case(case, contestants, setting, rounds, inside=None):
    """`inside`: the setting of the contestant whose server serves the clients itself."""
    found = {one.name: [] for one in contestants if one.name in case.contestants and not one.missing}
    for number in range(rounds):
        for contestant in contestants:
            if contestant.name not in found:
                continue
            its = inside if contestant.name == INSIDE else setting
            its.cluster.settle()
            if case.tls and not its.cluster.has_tls:
                point = {"failed": "there is no openssl to make a certificate"}
            else:
                point = measure(case, contestant, its)
            found[contestant.name].append(point)
            print(f"  {number + 1} {contestant.name:<11} {short(point)}", flush=True)
    if rounds > 1:
        for name, points in found.items():
            tps = [point["tps"] for point in points if point.get("tps") is not None]
            if tps:
                print(f"    {name:<11} median TPS {median(tps):,.0f}", flush=True)
    return found


def earlier_cases(data, out):
    """What an earlier run with the same settings, contestants and machine has measured, by case."""
    try:
        with open(os.path.join(out, "results.json")) as file:
            earlier = json.load(file)
    except FileNotFoundError:
        return {}, {}

    def conditions(of):
        # Whoever has joined since is in none of the earlier cases.
        known = {name: about for name, about in of["contestants"].items() if name in earlier["contestants"]}
        settings = {name: value for name, value in of["settings"].items() if name != "date"}
        return settings, of["machine"], known

    if conditions(earlier) != conditions(data):
        raise Unavailable(
            f"--resume: the results in {out} are of other settings, contestants or another machine"
        )
    return earlier["cases"], earlier["titles"]


@contextlib.contextmanager
def server_of_many_users(scale):
    """A server with the extension, for the case that takes it."""
    with Cluster(scale, cases.DIRECT_CLIENTS_MAX + 50, Extension) as cluster:
        cluster.extension.create(cluster)
        users.create(cluster)
        yield cluster


def run_case_of_users(case, contestants, setting, rounds):
    """On its own server: where there can be none, all have failed."""
    try:
        with server_of_many_users(setting.scale) as cluster:
            return run_case(case, contestants, dataclasses.replace(setting, cluster=cluster), rounds)
    except Unavailable as error:
        print(f"  {error}", flush=True)
        return {name: [{"failed": str(error)}] for name in case.contestants}


def server_of_inside(servers, contestants, cases, setting):
    """The setting with a server that serves clients itself, where a case asks for it; None where there is none."""
    wanted = [one for one in contestants if one.name == INSIDE and not one.missing]
    if not wanted or not any(INSIDE in case.contestants for case in cases):
        return None
    try:
        cluster = servers.enter_context(Cluster(setting.scale, setting.cluster.max_connections, Inside))
        cluster.extension.create(cluster)
        poolers.check_starts(wanted[0], cluster)
    except Unavailable as error:
        wanted[0].missing = str(error)
        return None
    # Clients go inside after their first transactions: those are not what is measured.
    return dataclasses.replace(setting, cluster=cluster, warmup=max(setting.warmup, WARMUP_INSIDE_S))


def run(given):
    descriptors = raise_descriptor_limit()
    clients = many_clients(descriptors, given)
    program = generator_program()
    order = [case.name for case in cases.all_cases(clients)]
    wanted = [case for case in cases.all_cases(clients) if is_wanted(case, given)]
    if not wanted:
        raise Unavailable("no case has such a name; --list shows them")
    instructions = cpu.counts_instructions()
    contestants = poolers.find_all(os.path.join(target_directory(), "release", "hawser"))
    if given.contestants:
        names = given.contestants.split(",")
        contestants = [one for one in contestants if one.name in names]
    print("A throw-away PostgreSQL is set up ...", flush=True)
    with contextlib.ExitStack() as servers:
        cluster = servers.enter_context(Cluster(given.scale, cases.DIRECT_CLIENTS_MAX + 50))
        warmup = min(1.0, given.seconds / 2)
        setting = cases.Setting(cluster, program, given.seconds, warmup, clients, given.scale,
                                instructions)  # fmt: skip
        inside = server_of_inside(servers, contestants, wanted, setting)
        for contestant in contestants:
            if contestant.users:
                continue
            if contestant.name != INSIDE:
                poolers.check_starts(contestant, cluster)
            print(f"{contestant.title}: {contestant.missing or 'takes part'}", flush=True)
        data = {
            "machine": machine(cluster, descriptors, instructions),
            "settings": {
                "rounds": given.rounds,
                "seconds": given.seconds,
                "warmup": warmup,
                "scale": given.scale,
                "many_clients": clients,
                "date": time.strftime("%Y-%m-%d"),
            },
            "contestants": {
                one.name: {"title": one.title, "missing": one.missing} for one in contestants
            },
            "titles": {case.name: case.title for case in wanted},
            "cases": {},
        }
        if given.resume:
            done, titles = earlier_cases(data, given.out)
            wanted = [case for case in wanted if case.name not in done]
            data["cases"] = done
            data["titles"] |= titles
            print(f"{len(done)} cases are there already, {len(wanted)} are to be measured")
        for case in wanted:
            print(f"{case.title} ({case.name})", flush=True)
            if case.users:
                found = run_case_of_users(case, contestants, setting, given.rounds)
            else:
                found = run_case(case, contestants, setting, given.rounds, inside)
            if found:
                data["cases"][case.name] = found
                data["cases"] = {name: data["cases"][name] for name in order if name in data["cases"]}
                report.write(data, given.out)  # also what an interrupted run has
    print()
    print(report.target_table(data))
    print(f"Written: results.md, results.json and plots in {os.path.relpath(given.out)}")


def main():
    given = arguments()
    try:
        if given.selftest:
            import selftest

            return selftest.main()
        if given.list:
            for case in cases.all_cases(many_clients(raise_descriptor_limit(), given)):
                print(f"{case.name:<20} {case.title}")
        elif given.report:
            with open(given.report) as data:
                report.write(json.load(data), given.out)
        else:
            run(given)
    except Unavailable as error:
        print(f"bench: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
