#!/usr/bin/env python3
"""PgBouncer's own test suite, with Hawser called by the name `pgbouncer`.

    tests/pgbouncer/run.py [TEST...] [--full]

TEST is as pytest takes it (test_admin.py, test_admin.py::test_show). Without one and without --full, the short form runs.
Nothing of the suite is committed: it comes from the release's tarball, pinned by version below, or from $PGBOUNCER_SOURCE, an
unpacked source of PgBouncer. Where neither can be had, all of it is skipped, with the reason.

A test that fails twice and is not listed in differences.md, with its reason, fails the run; a listed one that passes is
reported. The last line is `N passed, N failed, N skipped`, where skipped counts what is listed and what the suite leaves out.
"""

import argparse
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path[:0] = [str(HERE.parent), str(HERE.parent / "suites")]
sys.dont_write_bytecode = True

import fetching
from places import Missing, give_to_server, own
from harness import flaky
from harness.pooler import NotBuilt, binary
from harness.postgres import bin_directories

VERSION = "1.25.2"
URL = f"https://www.pgbouncer.org/downloads/files/{VERSION}/pgbouncer-{VERSION}.tar.gz"
REQUIREMENTS = ("pytest==9.2.0", "pytest-asyncio==1.5.0", "pytest-timeout==2.4.0", "psycopg[binary]==3.3.9", "filelock==4.2.12")
# Files of the short form, for three minutes at most; the others wait for timeouts, or start many poolers.
SHORT = ("test_admin.py", "test_cancel.py", "test_copy.py", "test_no_database.py", "test_no_user.py", "test_load_balance_hosts.py")
SHORT_SECONDS = 180
# Of one test, its server's start included.
TEST_SECONDS = 60
# What its configure would write: which of its tests make sense.
FEATURES = "ldap_support = no\npam_support = no\ntls_support = yes\n"
# Reasons that begin so do not ask for a failure in each run.
UNSTEADY = "not in each run"


def source():
    """The directory of PgBouncer's source."""
    if "PGBOUNCER_SOURCE" in os.environ:
        place = pathlib.Path(os.environ["PGBOUNCER_SOURCE"]).resolve()
        if not (place / "test/conftest.py").exists():
            raise Missing(f"PGBOUNCER_SOURCE={place} has no test/conftest.py")
        return place

    def make(directory):
        archive = directory / "archive.tar.gz"
        try:
            with urllib.request.urlopen(URL, timeout=30) as answer:
                archive.write_bytes(answer.read())
        except OSError as error:
            raise Missing(f"{URL}: {error}; PGBOUNCER_SOURCE may name an unpacked source") from None
        fetching.unpack(archive, directory)
    return fetching.kept(f"pgbouncer-{VERSION}", make)


def python():
    """An interpreter that the server's user may run, of this one's version: the packages have compiled parts."""
    for each in (sys.executable, "/usr/bin/python3"):
        ask = [*as_server(), each, "-c", "import sys; print(sys.version_info[:2])"]
        done = subprocess.run(ask, capture_output=True, text=True) if shutil.which(each) else None
        if done and done.stdout.strip() == str(tuple(sys.version_info[:2])):
            return each
    raise Missing("no Python of this version that the server's user may run")


def as_server():
    """The suite starts PostgreSQL, which root may not."""
    return ["runuser", "-u", "postgres", "--"] if os.geteuid() == 0 else []


def listed():
    """{test or pattern: reason} of differences.md."""
    found = {}
    for line in (HERE / "differences.md").read_text().splitlines():
        if line.startswith("| `"):
            test, _, reason = line[3:].partition("` |")
            found[test] = reason.strip(" |")
    return found


def reason_of(reasons, test):
    """A line names a test, or with `*` at its end several."""
    return next((pattern for pattern in reasons if (test.startswith(pattern[:-1]) if pattern.endswith("*") else pattern == test)), None)


class Run:
    def __init__(self, work, tree, packages):
        self.work, self.packages, self.python = work, packages, python()
        self.turn = 0
        places = bin_directories()
        if not places:
            raise Missing("no PostgreSQL server programs: install postgresql, or set PG_BIN")
        self.tree = work / "source"
        shutil.copytree(tree, self.tree, symlinks=True, ignore=shutil.ignore_patterns("*.o", ".git", "pgbouncer", "__pycache__"))
        if not (self.tree / "config.mak").exists():
            (self.tree / "config.mak").write_text(FEATURES)
        shutil.copytree(packages, work / "packages")
        shutil.copy(HERE / "recorder.py", work / "packages")
        for place in (work, self.tree):  # 1.25's suite takes the one beside it, later ones that of $BOUNCER_EXE
            shutil.copy(binary(), place / "pgbouncer")
        own(work)
        self.environment = {**os.environ, "PATH": f"{places[0]}:{os.environ['PATH']}", "BOUNCER_EXE": str(work / "pgbouncer"),
                            "PYTHONPATH": str(work / "packages"), "PYTHONDONTWRITEBYTECODE": "1", "HOME": str(work), "TMPDIR": str(work)}

    def __call__(self, tests, seconds):
        """{test: what recorder.py says of it}."""
        self.turn += 1
        record, log = self.work / f"record{self.turn}", self.work / f"log{self.turn}"
        command = [*as_server(), self.python, "-m", "pytest", *(f"test/{test}" for test in tests), "-p", "no:cacheprovider",
                   "-p", "recorder", "-q",
                   "-o", "asyncio_default_fixture_loop_scope=function", "--timeout", str(TEST_SECONDS),
                   "--basetemp", str(self.work / f"base{self.turn}")]
        environment = {**self.environment, "SUITE_RECORD": str(record), "XDG_RUNTIME_DIR": str(self.work)}
        with open(log, "wb") as output:
            try:
                subprocess.run(command, cwd=self.tree, env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT,
                               timeout=seconds)
            except subprocess.TimeoutExpired:
                print(f"stopped after {seconds} s")
        found = {}
        for line in record.read_text().splitlines() if record.exists() else ():
            outcome = json.loads(line)
            test = outcome["test"].removeprefix("test/")
            if found.get(test, {}).get("verdict") != "failed":
                found[test] = outcome
        if not found:
            print(log.read_text(errors="replace")[-2000:])
        return found


def main():
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("tests", nargs="*", metavar="TEST")
    options.add_argument("--full", action="store_true", help="all files")
    options.add_argument("--ready", action="store_true", help="fetch the suite and what it needs, and no more; 1 where that cannot be had")
    chosen = options.parse_args()
    if chosen.ready:
        try:
            source(), fetching.wheels("pgbouncer", REQUIREMENTS), python()
        except Missing as missing:
            print(missing, file=sys.stderr)
            return 1
        return 0
    reasons = listed()
    work = pathlib.Path(tempfile.mkdtemp(prefix="hawser-pgbouncer-"))
    passed = failed = skipped = 0
    flaky_ones = {}
    try:
        give_to_server(work)
        work.chmod(0o755)
        tree = source()
        run = Run(work, tree, fetching.wheels("pgbouncer", REQUIREMENTS))
        print(f"testing {binary()} by the suite of {tree}", flush=True)
        files = chosen.tests or ([path.name for path in sorted((tree / "test").glob("test_*.py"))] if chosen.full else SHORT)
        started = time.monotonic()
        bound = None if chosen.full or chosen.tests else SHORT_SECONDS
        first = run(files, bound)
        broken = [test for test, outcome in first.items() if outcome["verdict"] == "failed" and reason_of(reasons, test) is None]
        left = None if bound is None else max(bound - (time.monotonic() - started), 20)
        again = run(broken, left) if broken else {}
        seen = set()
        for test, outcome in sorted(first.items()):
            pattern = reason_of(reasons, test)
            verdict = again.get(test, outcome)["verdict"]
            if verdict == "passed" and outcome["verdict"] == "failed":
                flaky_ones[test] = outcome["why"]
            elif verdict == "passed":
                passed += 1
            elif verdict == "skipped":
                skipped += 1
            elif verdict == "failed" and pattern is not None:
                seen.add(pattern)
                skipped += 1
            elif verdict == "failed":
                failed += 1
                print(f"FAILED  {test}: {again.get(test, outcome)['why'].strip()[-300:]}")
        for pattern, reason in reasons.items():
            if pattern not in seen and not reason.startswith(UNSTEADY) and any(reason_of([pattern], test) for test in first):
                print(f"{pattern} is listed, and passes: take it off the list")
        if not first:
            failed += 1
        print(f"{time.monotonic() - started:.0f} s")
    except (Missing, NotBuilt) as missing:
        skipped += 1
        print(f"==> PgBouncer's suite is skipped: {missing}")
    finally:
        shutil.rmtree(work, ignore_errors=True)
    failed += flaky.say(flaky_ones)
    print(f"{passed} passed, {failed} failed, {skipped} skipped")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
