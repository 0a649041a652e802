#!/usr/bin/env python3
"""All of Linux's congestion control algorithms over `long-fat`, in virtual time.

    python3 bench/congestion/algorithms.py                               # writes bench/out/algorithms.md
    python3 bench/congestion/algorithms.py --rounds 1 --seconds 20       # a shorter one
    python3 bench/congestion/algorithms.py --report                      # the report of the results that are there

It needs the kernel that `make lab-kernel` builds, and no rights.
"""

import argparse
import json
import pathlib
import secrets
import shlex
import subprocess
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "common"))
import virtual_kernel
from far_server import HAWSER, ROOT, median, shown

LARGE = "4096 131072 33554432"
# `long-fat`, with as much room as its path can need; not SO_SNDBUF, which ends the kernel's own tuning.
LARGER = "".join(f'[[host]]\nname = "{host}"\nsysctl = {{ "net.ipv4.tcp_rmem" = "{LARGE}", "net.ipv4.tcp_wmem" = "{LARGE}" }}\n'
                 for host in ("near", "far"))
# Measured before, in Mbit/s: a real path of 217 ms and 95 Mbit/s, as published, and a laboratory with netem at
# 217 ms, 95 Mbit/s and 0.034 % loss, in virtual time too.
PUBLISHED = {"bbr": 56.7, "bic": 24.5, "hybla": 20.6, "dctcp": 17.6, "cubic": 8.38, "illinois": 7.24, "westwood": 3.83, "htcp": 3.55,
             "yeah": 3.20, "scalable": 2.50, "reno": 2.36, "lp": 2.13, "veno": 1.70, "vegas": 1.51, "highspeed": 1.50, "nv": 1.47,
             "cdg": 0.891}
NETEM = {"bbr": 66.7, "cubic": 7.7, "reno": 3.3, "illinois": 25.7, "hybla": 23.1, "scalable": 15.2, "yeah": 12.8, "westwood": 12.7,
         "htcp": 12.7,
         "bic": 12.4, "veno": 7.4, "nv": 6.2, "vegas": 4.5, "highspeed": 4.4, "dctcp": 4.0, "lp": 3.6, "cdg": 3.6}


# One network, in the kernel: `cc serve` on its last host sends to `cc bench` on its first.
COMMANDS = """
export HAWSER_CC_TOKEN={token}
{hawser} lab up --name kernel --seed {seed} -- network.toml
far=$({hawser} lab run kernel -- printenv HAWSER_LAB_FAR):6480
{hawser} lab run kernel --on far --accept-unfaithful -- {hawser} cc serve --seconds 300 --listen $far >served &
until grep -q listening served; do sleep 0.1; done
{hawser} lab run kernel --report-json report -- {hawser} cc bench $far --only down --json {options} >comparison
"""


def compare(network, seed, *options):
    """What `cc bench` says of a network, in the kernel's virtual time, what the network says, and seconds of ours."""
    commands = COMMANDS.format(token=secrets.token_urlsafe(), hawser=shlex.quote(HAWSER), seed=seed, options=shlex.join(map(str, options)))
    began = time.monotonic()
    code, found = virtual_kernel.run(commands, {"network.toml": network})
    if code:
        sys.exit(code)
    return {"seed": seed, "real_seconds": time.monotonic() - began, "comparison": json.loads(found["comparison"]),
            "report": json.loads(found["report"])}


def measure(given, store):
    named = subprocess.run([HAWSER, "lab", "show", "long-fat"], capture_output=True, text=True, check=True).stdout
    options = ["--seconds", given.seconds, "--rounds", given.rounds]
    found = {"plain": compare(named, given.seed, *options)}
    store.write_text(json.dumps(found, indent=1) + "\n")
    if given.larger:
        found["larger"] = compare(LARGER + named, given.seed, *options, "--algorithms", given.larger)
        store.write_text(json.dumps(found, indent=1) + "\n")


def spearman(one, other):
    """Rank correlation of two {name: figure}."""
    names = sorted(set(one) & set(other))
    ranks = [{name: place for place, name in enumerate(sorted(names, key=figures.get))} for figures in (one, other)]
    count = len(names)
    return 1 - 6 * sum((ranks[0][name] - ranks[1][name]) ** 2 for name in names) / (count * (count * count - 1))


def steady(found):
    return {one["algorithm"]: [run["steady"] / 1e6 for run in one["runs"]] for one in found["comparison"]["outcomes"]}


def report(found):
    comparison = found["plain"]["comparison"]
    runs = steady(found["plain"])
    outcomes = {one["algorithm"]: one for one in comparison["outcomes"]}
    medians = {name: median(rates) for name, rates in runs.items()}
    transfers = len(runs) * comparison["rounds"]
    lines = ["# All congestion control algorithms over `long-fat`", "",
             f"Written by `bench/congestion/algorithms.py`: Linux {comparison['far_kernel']} in virtual time, 217 "
             f"ms, 95 Mbit/s, 0.034 % loss "
             f"each way; one connection of {comparison['seconds']} s, {comparison['rounds']} rounds, seed {found['plain']['seed']}; "
             f"{transfers} transfers took "
             f"{found['plain']['real_seconds']:.0f} s. Mbit/s at "
             "the receiver after the first 5 s, medians, then every run. *Published* is a real path of 217 ms and 95 Mbit/s, *netem* "
             "another laboratory's "
             "figures for the same path.", "",
             "| algorithm | steady | runs | first 5 s | sent again, % | netem | published |", "|---|---|---|---|---|---|---|"]
    for name in sorted(medians, key=lambda name: -medians[name]):
        lines.append(f"| {name} | **{shown(medians[name], 1)}** | {', '.join(shown(rate, 1) for rate in runs[name])} | "
                     f"{shown(outcomes[name]['startup'] / 1e6, 1)} | "
                     f"{shown(100 * outcomes[name]['again'], 3)} | {NETEM.get(name, '')} | {PUBLISHED.get(name, '')} |")
    if "larger" in found:
        larger = steady(found["larger"]).items()
        lines += ["", "With tcp_rmem and tcp_wmem up to 32 MiB: " + ", ".join(f"{name} **{shown(median(rates), 1)}**"
                                                                              for name, rates in larger) + "."]
    lines += ["", f"Rank correlation (Spearman) with the netem laboratory {spearman(medians, NETEM):.2f}, with the published path "
              f"{spearman(medians, PUBLISHED):.2f}; of these two with each other {spearman(NETEM, PUBLISHED):.2f}."]
    return "\n".join(lines) + "\n"


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--rounds", type=int, default=1)
    arguments.add_argument("--seconds", type=int, default=60)
    arguments.add_argument("--seed", type=int, default=1)
    arguments.add_argument("--larger", default="bbr,cubic", help="the algorithms that are compared with larger buffers, too")
    arguments.add_argument("--out", type=pathlib.Path, default=ROOT / "bench/out")
    arguments.add_argument("--report", action="store_true")
    given = arguments.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    store = given.out / "algorithms.json"
    if not given.report:
        measure(given, store)
    text = report(json.loads(store.read_text()))
    (given.out / "algorithms.md").write_text(text)
    print(text)


if __name__ == "__main__":
    main()
