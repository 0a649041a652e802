#!/usr/bin/env python3
"""One database connection over many paths: real PostgreSQL, in the laboratory, in real time.

    python3 bench/multipath/mptcp.py --runs 5                     # all cases; writes docs/benchmarks/mptcp.md and plots
    python3 bench/multipath/mptcp.py --only copy-out --runs 1     # one of them
    python3 bench/multipath/mptcp.py --list

Each run has a network of its own, with a seed of its own: flows are hashed to other limits. The server is
PostgreSQL under `hawser mptcp run`. Times and rates are the receiver's, rates those of TCP payload. A case is one of
three ways:

    plain    the client as it is: one TCP flow
    kernel   the client under `hawser mptcp run`, both ends set up by `hawser mptcp setup`: five subflows
    manage   the client under `hawser mptcp run`, `hawser mptcp manage` on both ends

It needs root, PostgreSQL's server and client, and MPTCP in the kernel.
"""

import argparse
import json
import os
import pathlib
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "common"))
from far_server import HAWSER, ROOT, ROW_BYTES, ROWS, TABLE_BYTES, Cluster, as_server, ended, late_share, median, rate, run, shown
from plot import BOTTOM, COLOURS, GRID, HEIGHT, LEFT, RIGHT, TOP, WIDTH, step_of, text

CEILING = 75.3  # Mbit/s: 8 classes of 10 Mbit/s, less headers
WAYS = ("plain", "kernel", "manage")
# psql writes rows; on the wire each is a CopyData message, with a type and a length before it. The ceiling is of TCP
# payload, so are the rates.
PAYLOAD_PER_ROW_BYTE = (ROW_BYTES + 5) / ROW_BYTES


class Laboratory:
    """A network with the server on its far host."""

    def __init__(self, network, seed, cluster, way, directory):
        self.name = f"bench-{os.getpid()}-{time.monotonic_ns() % 10**9}"
        self.cluster, self.way, self.directory = cluster, way, pathlib.Path(directory)
        self.network, self.seed = network, seed
        self.started = []

    def inside(self, host, *command):
        return [HAWSER, "lab", "run", self.name, "--on", host, "--accept-unfaithful", "--", *map(str, command)]

    def start(self, host, *command, **how):
        log = open(self.directory / "log", "ab")
        process = subprocess.Popen(self.inside(host, *command), stdout=log, stderr=log, cwd="/", **how)
        self.started.append(process)
        return process

    def __enter__(self):
        run(HAWSER, "lab", "up", self.network, "--name", self.name, "--seed", self.seed)
        self.up = time.monotonic()
        self.trace = self.directory / "trace"
        if self.way == "manage":
            self.start("far", HAWSER, "mptcp", "manage")
            self.start("near", HAWSER, "mptcp", "manage", "--trace", self.trace)
            time.sleep(1)
        elif self.way == "kernel":
            run(*self.inside("far", HAWSER, "mptcp", "setup", "server"))
            run(*self.inside("near", HAWSER, "mptcp", "setup", "client"))
        server = self.start("far", HAWSER, "mptcp", "run", "--", *self.cluster.command())
        for _ in range(300):
            if run("pg_isready", "-h", self.cluster.data, "-p", self.cluster.port, check=False).returncode == 0:
                return self
            assert server.poll() is None, (self.directory / "log").read_text()
            time.sleep(0.1)
        raise AssertionError("the server does not start")

    def __exit__(self, *_):
        late = json.loads(run(HAWSER, "lab", "report", self.name, "--json", check=False).stdout or "{}")
        self.report = late
        if self.way == "kernel":
            for host in ("near", "far"):
                run(*self.inside(host, HAWSER, "mptcp", "undo"), check=False)
        run(*as_server(), f"{self.cluster.bin}/pg_ctl", "-D", self.cluster.data, "-m", "immediate", "stop", check=False, cwd="/")
        run(HAWSER, "lab", "down", self.name, check=False)
        ended(self.started)

    def client(self, *command):
        """A command on the near host, in this way."""
        under = [] if self.way == "plain" else [HAWSER, "mptcp", "run", "--"]
        return self.inside("near", *under, *command)

    def conninfo(self, more=""):
        return f"host=10.77.0.2 port={self.cluster.port} user=postgres sslmode=disable {more}"


def received(command):
    """Runs it; the seconds and bytes of what it writes, read as it comes."""
    began = time.monotonic()
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd="/")
    points, total = [(0.0, 0)], 0
    while piece := os.read(process.stdout.fileno(), 1 << 20):
        total += len(piece)
        now = time.monotonic() - began
        if now - points[-1][0] >= 0.05:
            points.append((now, total))
    points.append((time.monotonic() - began, total))
    errors = process.stderr.read().decode()
    assert process.wait() == 0, errors
    return points


def stall(points, begin, end):
    """The longest time without a byte."""
    inside = [p for p in points if begin <= p[0] <= end]
    return max((b[0] - a[0] for a, b in zip(inside, inside[1:])), default=0.0)


def copy_out(lab, times=1):
    statement = f"copy (select t from bulk, generate_series(1, {times})) to stdout"
    points = received(lab.client("psql", "-Xq", lab.conninfo("dbname=postgres"), "-c", statement))
    assert points[-1][1] == TABLE_BYTES * times, points[-1]
    return [(seconds, total * PAYLOAD_PER_ROW_BYTE) for seconds, total in points]


def case_copy_out(lab):
    points = copy_out(lab)
    return {"seconds": points[-1][0], "points": points}


def case_steady(lab):
    """448 MB, a minute: how fast it becomes, and how soon."""
    points = copy_out(lab, 9 if lab.way == "manage" else 1)
    end = points[-1][0]
    window = 3.0
    reached = next((t for t, _ in points if t + window <= end and rate(points, t, t + window) >= 71), None)
    return {"seconds": end, "steady": rate(points, end / 2, end - 0.5), "third": rate(points, end * 2 / 3, end - 0.5), "reached": reached,
            "points": points}


def case_basebackup(lab):
    points = received(lab.client(f"{lab.cluster.bin}/pg_basebackup", "-d", lab.conninfo(), "-D", "-", "-Ft", "-X", "fetch", "-c", "fast"))
    return {"seconds": points[-1][0], "bytes": points[-1][1], "points": points}


def case_copy_in(lab):
    lab.cluster.sql("truncate taken")
    line = b"x" * (ROW_BYTES - 1) + b"\n"
    began = time.monotonic()
    process = subprocess.Popen(lab.client("psql", "-Xq", lab.conninfo("dbname=postgres"), "-c", "copy taken from stdin"),
                               stdin=subprocess.PIPE, stderr=subprocess.PIPE, cwd="/")
    for _ in range(ROWS // 1000):
        process.stdin.write(line * 1000)
    process.stdin.close()
    assert process.wait() == 0, process.stderr.read()
    seconds = time.monotonic() - began
    assert lab.cluster.sql("select count(*) from taken").strip() == str(ROWS)
    return {"seconds": seconds}


def case_outage(lab):
    """199 MB over two lines, one of which is cut from second 20 to 25 of the network."""
    offset = time.monotonic() - lab.up
    points = copy_out(lab, 4)
    cut, back = 20 - offset, 25 - offset
    end = points[-1][0]
    whole = rate(points, max(cut - 6, 0), cut)
    again = next((t - back for t, _ in points if t >= back and t + 1.5 <= end and rate(points, t, t + 1.5) >= 0.85 * whole), None)
    return {"seconds": end, "before": whole, "stall": stall(points, cut - 1, min(back + 10, end)), "during": rate(points, cut + 1, back),
            "again": again, "points": points}


def processor_seconds(lab):
    """What the server's ended processes and this script's have used of the processor."""
    postmaster = (lab.cluster.data / "postmaster.pid").read_text().split()[0]
    fields = pathlib.Path(f"/proc/{postmaster}/stat").read_text().rsplit(")", 1)[1].split()
    own = resource.getrusage(resource.RUSAGE_CHILDREN)
    return sum(map(int, fields[13:15])) / os.sysconf("SC_CLK_TCK") + own.ru_utime + own.ru_stime


def case_lan(lab):
    """2.5 GB: seconds of the clock and of the processor, both ends, the manager's not counted."""
    before, began = processor_seconds(lab), time.monotonic()
    statement = "copy (select t from bulk, generate_series(1, 50)) to stdout"
    done = run(*lab.client("psql", "-Xq", lab.conninfo("dbname=postgres"), "-o", "/dev/null", "-c", statement), check=False, cwd="/")
    assert done.returncode == 0, done.stderr
    seconds = time.monotonic() - began
    time.sleep(0.5)  # until the server has waited for its process
    return {"seconds": seconds, "processor": processor_seconds(lab) - before}


CASES = {
    "copy-out": ("per-flow", "bulk", case_copy_out, WAYS),
    "steady": ("per-flow", "bulk", case_steady, ("manage",)),
    "basebackup": ("per-flow", "pgbench", case_basebackup, WAYS),
    "copy-in": ("per-flow", "bulk", case_copy_in, WAYS),
    "outage": ("two-isps", "bulk", case_outage, ("kernel", "manage")),
    "lan": ("lan", "bulk", case_lan, ("plain", "kernel", "manage")),
}


def chart(title, y_title, lines, end):
    """Lines of (seconds, value) over time."""
    highest = max((y for line in lines.values() for _, y in line), default=1)
    step, across = step_of(highest), step_of(end, 8)
    top = step * max(1, -(-highest // step))
    wide, high = WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM
    x_of, y_of = (lambda t: LEFT + wide * t / end), (lambda v: TOP + high * (1 - v / top))
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif">',
           f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>', text(LEFT, 20, title, "start", 15, 'font-weight="bold"'),
           text(LEFT + wide / 2, HEIGHT - 12, "seconds"),
           text(16, TOP + high / 2, y_title, extra=f'transform="rotate(-90 16 {TOP + high / 2:.0f})"')]
    for tick in range(round(top / step) + 1):
        out.append(f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y_of(tick * step):.1f}" y2="{y_of(tick * step):.1f}" stroke="{GRID}"/>')
        out.append(text(LEFT - 8, y_of(tick * step) + 4, f"{tick * step:,.10g}", "end"))
    for tick in range(int(end / across) + 1):
        out.append(text(x_of(tick * across), HEIGHT - BOTTOM + 18, f"{tick * across:.10g}"))
    for number, (name, line) in enumerate(lines.items()):
        path = " ".join(f"{x_of(t):.1f},{y_of(v):.1f}" for t, v in line)
        width = 2.5 if name == "all" else 1
        colour = "#000000" if name == "all" else COLOURS[1 + number % (len(COLOURS) - 1)]
        out.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="{width}"/>')
    return "\n".join([*out, "</svg>\n"])


def subflow_rates(trace, window=1.0):
    """{subflow: [(seconds, Mbit/s)]} of the connection that carried most, and the sum as "all"."""
    looks = [json.loads(line) for line in trace.read_text().splitlines() if line.endswith("}")]
    total = {}
    for look in looks:
        total[look["connection"]] = sum(s["received"] + s["acked"] for s in look["subflows"])
    name = max(total, key=total.get)
    looks = [look for look in looks if look["connection"] == name]
    begin, lines, earlier = looks[0]["seconds"], {"all": []}, {}
    for look in looks:
        t = look["seconds"] - begin
        whole = 0.0
        for s in look["subflows"]:
            history = earlier.setdefault(s["cookie"], [])
            history.append((t, s["received"] + s["acked"]))
            while history[0][0] < t - window:
                history.pop(0)
            (t0, b0), (t1, b1) = history[0], history[-1]
            if t1 - t0 > window / 3:
                value = (b1 - b0) * 8 / 1e6 / (t1 - t0)
                whole += value
                lines.setdefault(s["cookie"], []).append((t, value))
        lines["all"].append((t, whole))
    return lines, looks[-1]["seconds"] - begin


def write_report(results, out):
    lines = ["# Multipath TCP in the laboratory", "",
             "Written by `bench/multipath/mptcp.py`: PostgreSQL 15 over `hawser lab`'s networks, in real time. Medians, then every run. "
             "*Late* is the "
             "share of packets that the emulator sent more than 1 ms late, in %: above 1 the machine was too busy for a strict "
             "measurement.", "",
             "| case | way | median | runs | late |", "|---|---|---|---|---|"]
    for key, runs in results.items():
        case, way = key.split("/")
        late = "/".join(shown(r.get("late"), 2) for r in runs)
        failed = sum("error" in r for r in runs)
        good = [r for r in runs if "error" not in r]
        wrong = f", {failed} failed" if failed else ""
        for name, unit in (("seconds", "s"), ("steady", "Mbit/s, second half"), ("third", "Mbit/s, last third"),
                           ("reached", "s until 71 Mbit/s"), ("before", "Mbit/s before the cut"),
                           ("during", "Mbit/s during the cut"), ("stall", "s longest stall"), ("again", "s until 85 % again"),
                           ("processor", "s of the processor")):
            if any(name in r for r in good):
                values = [r.get(name) for r in good]
                lines.append(f"| {case} | {way} | **{shown(median(values), 2)}** {unit} | "
                             f"{', '.join(shown(v, 2) for v in values)}{wrong} | {late} |")
        if not good:
            lines.append(f"| {case} | {way} | all failed | {runs[0]['error'][:200]} | |")
    lines += ["", f"The ceiling of `per-flow` is {CEILING} Mbit/s: 49.8 MB of rows, which are 52.3 MB of payload, in 5.6 s.", ""]
    for plot in sorted(out.glob("mptcp-*.svg")):
        lines += [f"![{plot.stem}]({plot.name})", ""]
    (out / "mptcp.md").write_text("\n".join(lines))


def main():
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--runs", type=int, default=5)
    arguments.add_argument("--only", action="append", choices=CASES)
    arguments.add_argument("--way", action="append", choices=WAYS)
    arguments.add_argument("--seed", type=int, default=1)
    arguments.add_argument("--list", action="store_true")
    arguments.add_argument("--out", type=pathlib.Path, default=ROOT / "bench/out")
    arguments.add_argument("--add", action="store_true", help="to the results that are there, in place of the same cases")
    given = arguments.parse_args()
    if given.list:
        return print("\n".join(f"{name}: {network}, {', '.join(ways)}" for name, (network, _, _, ways) in CASES.items()))
    if os.geteuid() != 0:
        sys.exit("the laboratory's network namespaces, and PostgreSQL's own user, need root")
    given.out.mkdir(parents=True, exist_ok=True)
    store = given.out / "mptcp.json"
    results = json.loads(store.read_text()) if given.add and store.exists() else {}
    directory = tempfile.mkdtemp(prefix="hawser-bench-")
    os.chmod(directory, 0o755)
    clusters = {}
    try:
        for name in given.only or CASES:
            network, kind, case, ways = CASES[name]
            cluster = clusters.get(kind) or clusters.setdefault(kind, Cluster(directory, kind))
            chosen = [way for way in ways if not given.way or way in given.way]
            for way in chosen:
                results[f"{name}/{way}"] = []
            for number in range(given.runs):
                for way in chosen:
                    lab = Laboratory(network, given.seed + number, cluster, way, directory)
                    try:
                        with lab:
                            result = case(lab)
                    except (AssertionError, subprocess.SubprocessError) as error:
                        result = {"error": str(error)[:2000]}
                    points = result.pop("points", None)
                    result["late"] = late_share(lab)
                    if number == 0 and way == "manage" and lab.trace.exists() and "error" not in result and network != "lan":
                        lines, end = subflow_rates(lab.trace)
                        title = f"{name}, {network}: rate of each subflow, and of all"
                        (given.out / f"mptcp-{name}.svg").write_text(chart(title, "Mbit/s", lines, end))
                    results[f"{name}/{way}"].append(result)
                    print(name, way, number, json.dumps(result), f"{len(points or [])} points", flush=True)
                    store.write_text(json.dumps(results, indent=1) + "\n")
        write_report(results, given.out)
    finally:
        shutil.rmtree(directory, ignore_errors=True)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    main()
