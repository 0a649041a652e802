#!/usr/bin/env python3
"""PostgreSQL's own test suites, direct and through Hawser, compared file by file.

    tests/regress/run.py [--suite NAME]... [--through HOW]... [TEST...]

A suite is regress (the parallel schedule), isolation or libpq_pipeline. HOW is transaction or session (the pool mode),
with +extension where the server has the extension `hawser` loaded, and +extension+inside where it serves clients itself.
Without options: all that `make regress` runs.
The reference is what the same suite, run directly against an equal cluster, wrote in this very run: the sources may be
of another minor version than the server. A file that differs must be listed with its reason in differences.md.

The last line is `N passed, N failed, N skipped`: the same, different, different as listed. The exit code is 0 only
without failures, 2 where the suites cannot be run. TESTs are run one after the other, behind test_setup for regress.
"""

import argparse
import difflib
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path.insert(0, str(HERE))
sys.dont_write_bytecode = True

from suites import DRIVER, Installation, Missing, PgRegress, Pipeline, give_to_server
from targets import Hawser, Server
from harness.pooler import NotBuilt, binary
from harness.postgres import bin_directories

SUITES = ("regress", "isolation", "libpq_pipeline")
THROUGH = {
    "regress": ("transaction", "transaction+extension"),
    # In transaction mode without the extension a test that waits for a lock hangs, and takes its two minutes (differences.md): only
    # when asked for.
    "isolation": ("session", "transaction+extension"),
    "libpq_pipeline": ("transaction", "session"),
}
HOWS = ("transaction", "session", "transaction+extension", "session+extension", "transaction+extension+inside")
# The parallel schedule runs 20 files at once, an isolation test has up to 12 sessions that wait for each other.
POOL_SIZE = 20
DIFF_LINES = 400


def source_of(major):
    done = subprocess.run([ROOT / "scripts/postgres_source.sh", str(major)], capture_output=True, text=True)
    sys.stderr.write(done.stderr)
    if done.returncode:
        raise Missing(done.stderr.strip().splitlines()[-1] if done.stderr.strip() else "no source of PostgreSQL")
    return pathlib.Path(done.stdout.split("\n")[-2])


def build_extension(installation, work):
    """The library alone, loaded by its path: nothing is installed into the server."""
    copy = work / "extension"
    shutil.copytree(ROOT / "extension", copy, ignore=shutil.ignore_patterns("*.o", "*.so", "*.bc", "results"))
    done = subprocess.run(["make", "-s", "-C", copy, f"PG_CONFIG={installation.pg_config}", "with_llvm=no"], capture_output=True, text=True)
    if done.returncode:
        raise Missing(f"the extension cannot be built: {done.stderr[-600:]}")
    shutil.copy(copy / "hawser.so", work / "hawser.so")
    return work / "hawser.so"


def listed_differences():
    """{(suite, how): {file: reason}}, from the tables below the headings `## SUITE, HOW` of differences.md. A file `*` is
    any that has no line of its own."""
    listed, table = {}, None
    for line in (HERE / "differences.md").read_text().splitlines():
        if line.startswith("## "):
            suite, _, how = line[3:].partition(", ")
            table = listed.setdefault((suite, how), {})
        elif line.startswith("| `") and table is not None:
            file, reason = (cell.strip() for cell in line.strip("|").split("|", 1))
            table[file.strip("`")] = reason
    return listed


def verdict(direct, other):
    if other is None:
        return "not run"
    if other.verdict == "hangs":
        return "hangs"
    if other.verdict == "ok" and direct.verdict == "ok" or direct.text() == other.text():
        return "same"
    return "differs"


def keep_diff(directory, name, direct, other):
    """Where the difference can be read: below .run, which outlives the run."""
    directory.mkdir(parents=True, exist_ok=True)
    before, after = ((outcome.text() or "").splitlines(keepends=True) for outcome in (direct, other))
    with open(directory / f"{name}.diff", "w") as out:
        out.writelines(difflib.unified_diff(before, after, "direct", "through hawser"))


class Report:
    def __init__(self, listed):
        self.listed = listed
        self.passed = self.failed = self.skipped = 0
        self.unexpected = []
        self.summary = []

    def compare(self, suite, how, direct, through, kept, whole):
        reasons = self.listed.get((suite, how), {})
        same = 0
        print(f"\n{suite}, {how}\n{'file':<36} {'direct':<8} {'hawser':<8} verdict")
        for name, reference in direct.items():
            other = through.get(name)
            found = verdict(reference, other)
            note = ""
            if found == "same":
                same += 1
                self.passed += 1
                if whole and name in reasons and not reasons[name].startswith("not in each run"):
                    note = "  (listed, but the same now: take it off the list)"
            else:
                if other:
                    keep_diff(kept, name, reference, other)
                if reason := reasons.get(name) or reasons.get("*"):
                    self.skipped += 1
                    note = f": {reason}"
                else:
                    self.failed += 1
                    self.unexpected.append(f"{suite}, {how}: {name} {found}")
                    note = "  NOT LISTED"
            print(f"{name:<36} {reference.verdict:<8} {other.verdict if other else '-':<8} {found}{note}")
        ok = sum(outcome.verdict == "ok" for outcome in direct.values())
        self.summary.append(f"{suite:<16} {how:<24} direct {ok} of {len(direct)} as expected; through Hawser {same} the same")

    def fault(self, text):
        self.failed += 1
        self.unexpected.append(text)

    def end(self, kept):
        print("\n" + "\n".join(self.summary))
        if self.unexpected:
            print("\nfailed:\n  " + "\n  ".join(self.unexpected))
        if self.skipped or self.unexpected:
            print(f"differences, as diffs: {kept}")
        print(f"\n{self.passed} passed, {self.failed} failed, {self.skipped} skipped")
        return 1 if self.failed else 0


def make_suite(name, installation, source, work):
    return Pipeline(installation, source, work) if name == "libpq_pipeline" else PgRegress(name, installation, source, work)


def run_direct(suite, installation, directory, tests):
    server = Server(directory / "cluster", installation.bin)
    try:
        server.create()
        return suite.run(server.place, directory / "out", tests)
    finally:
        server.destroy()


def run_through(suite, how, installation, directory, tests, pool_size, preload, report):
    mode, extension, inside = how.partition("+")[0], "+extension" in how, "+inside" in how
    asks = directory / "hawser/hawser.sock" if inside or extension and suite.name == "isolation" else None
    server = Server(directory / "cluster", installation.bin, preload if extension else None, asks, inside)
    try:
        server.create()
        with Hawser(directory / "hawser", server, mode, pool_size) as hawser:
            outcomes = suite.run(hawser.place, directory / "out", tests)
        if fault := hawser.fault():
            report.fault(f"{suite.name}, {how}: {fault}")
        return outcomes
    finally:
        server.destroy()


def arguments():
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--suite", action="append", choices=SUITES, help="only this one; may be repeated")
    options.add_argument("--through", action="append", choices=HOWS, help="only this way; may be repeated")
    options.add_argument("--pg-config", help="of the server to test with (default: that of the server programs that tests/run.py takes)")
    options.add_argument("--ready", action="store_true", help="fetch the source and see what else is needed; run nothing")
    options.add_argument("--pool-size", type=int, default=POOL_SIZE, help="server connections for each user and database (default "
                                                                          "%(default)s)")
    options.add_argument("--keep", action="store_true", help="leave clusters, outputs and logs behind, and say where")
    options.add_argument("tests", nargs="*", metavar="TEST", help="files of the suite, run one after the other")
    chosen = options.parse_args()
    if not chosen.pg_config:
        places = [f"{place}/pg_config" for place in bin_directories()]
        chosen.pg_config = next((path for path in places if os.access(path, os.X_OK)), "pg_config")
    if chosen.tests and len(chosen.suite or SUITES) != 1:
        options.error("single tests need --suite")
    return chosen


def run_suites(chosen, work, kept, report):
    installation = Installation(chosen.pg_config)
    installation.program(DRIVER)
    source = source_of(installation.major)
    if chosen.ready:
        return
    print(f"{installation.version}, source {source.name}, {binary()}", flush=True)
    give_to_server(work)
    work.chmod(0o755)
    for name in chosen.suite or SUITES:
        tests = chosen.tests and (["test_setup"] if name == "regress" else []) + [test for test in chosen.tests if test != "test_setup"]
        suite = make_suite(name, installation, source, work)
        hows = chosen.through or THROUGH[name]
        preload = build_extension(installation, work) if any("extension" in how
                                                             for how in hows) and not (work / "hawser.so").exists() else work / "hawser.so"
        started = time.monotonic()
        direct = run_direct(suite, installation, work / name / "direct", tests)
        print(f"{name}, direct: {time.monotonic() - started:.0f} s", flush=True)
        for how in hows:
            started = time.monotonic()
            through = run_through(suite, how, installation, work / name / how, tests, chosen.pool_size, preload, report)
            shutil.rmtree(kept / name / how, ignore_errors=True)
            report.compare(name, how, direct, through, kept / name / how, not tests)
            print(f"{name}, {how}: {time.monotonic() - started:.0f} s", flush=True)


def main():
    chosen = arguments()
    report = Report(listed_differences())
    kept = ROOT / ".run/regress"
    work = pathlib.Path(tempfile.mkdtemp(prefix="hawser-regress-"))
    try:
        run_suites(chosen, work, kept, report)
    except (Missing, NotBuilt) as error:
        print(f"cannot run: {error}", file=sys.stderr)
        return 2
    finally:
        if chosen.keep:
            print(f"kept: {work}")
        else:
            shutil.rmtree(work, ignore_errors=True)
    return 0 if chosen.ready else report.end(kept)


if __name__ == "__main__":
    sys.exit(main())
