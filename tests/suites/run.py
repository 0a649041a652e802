#!/usr/bin/env python3
"""The drivers' own test suites through Hawser, and direct where a test fails.

    tests/suites/run.py [NAME...] [--through HOW]... [--full]

A test is lost where it fails through Hawser twice (up to five of a suite: three times) and passes on the same server directly. Both are
found out in this run,
each way against a new copy of one cluster. A lost test fails the run unless tests/drivers/differences.md lists it with its
reason; a listed one that is lost no more is reported. Without --full a suite runs its short form.

Nothing is committed of the suites: they are fetched from the registries, pinned by version, into .run/suites. One that cannot
be fetched is skipped with its reason. The last line is `N passed, N failed, N skipped`, where skipped counts listed tests and
suites that could not be run; what fails directly, too, or is skipped by the suite, is not counted.
"""

import argparse
import concurrent.futures
import fnmatch
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
sys.dont_write_bytecode = True

from places import ROOT, Hawser, Installation, Missing, Place, Template, give_to_server
from report import Report, failed, listed
from suites_of import SUITES
from harness.certificates import Certificates
from harness.pooler import NotBuilt, binary

HOWS = ("transaction", "transaction+tls", "transaction+extension", "transaction+extension+tls", "transaction+extension+inside",
        "session")
# The default of `pool_size`.
POOL_SIZE = 20
# So many lost tests are tried a third time; more are not held up by chance.
AGAIN_MAX = 5


def build_extension(bin_directory, work):
    """The library alone, loaded by its path: nothing is installed into the server."""
    installation = Installation(f"{bin_directory}/pg_config" if os.access(f"{bin_directory}/pg_config", os.X_OK) else "pg_config")
    shutil.copytree(ROOT / "extension", work / "extension", ignore=shutil.ignore_patterns("*.o", "*.so", "*.bc", "results"))
    done = subprocess.run(["make", "-s", "-C", work / "extension", f"PG_CONFIG={installation.pg_config}", "with_llvm=no"],
                          capture_output=True, text=True)
    if done.returncode:
        raise Missing(f"the extension cannot be built: {done.stderr[-600:]}")
    return work / "extension/hawser.so"


class Runner:
    def __init__(self, chosen, template, work, kept, library, report):
        self.chosen, self.template, self.work, self.kept, self.shared_library, self.report = chosen, template, work, kept, library, report
        self.certificates = Certificates(work / "certificates")
        give_to_server(self.certificates.directory)

    def once(self, suite, how, tests, turn):
        """{test: Outcome}; `how` none is direct."""
        directory = pathlib.Path(tempfile.mkdtemp(prefix=f"{suite.name}-", dir=self.work))
        directory.chmod(0o755)
        out = self.kept / suite.name / f"{how or 'direct'}-{turn}"
        shutil.rmtree(out, ignore_errors=True)
        out.mkdir(parents=True)
        extension, tls, inside = (how is not None and f"+{part}" in how for part in ("extension", "tls", "inside"))
        asks = directory / "hawser/hawser.sock" if extension else None
        server = Place(self.template, directory / "cluster", self.shared_library if extension else None, asks, inside)
        try:
            server.create()
            server.prepare(suite.prepare)
            if how is None:
                return suite.run((*server.place, "disable"), out, tests, self.chosen.full, how)
            with Hawser(directory / "hawser", server, how.partition("+")[0], POOL_SIZE, self.certificates if tls else None) as hawser:
                found = suite.run((*hawser.place, "require" if tls else "disable"), out, tests, self.chosen.full, how)
            shutil.copy(hawser.log, out / "hawser.log")
            if fault := hawser.fault():
                self.report.fault(f"{suite.name}, {how}: {fault}")
            for fault in suite.faults if not tests else ():
                self.report.fault(f"{suite.name}, {how}: {fault}; the end of {out}/log says more")
            return found
        finally:
            server.destroy()
            shutil.rmtree(directory, ignore_errors=True)

    def ways(self, suite):
        """All through Hawser that are asked for, and can be had."""
        return [how for how in self.chosen.through or suite.ways if self.shared_library or "extension" not in how]

    def first(self, suite):
        """All ways through Hawser, and with --full directly as well. None where it cannot be had."""
        started = time.monotonic()
        try:
            suite.fetch()
        except Missing as missing:
            return str(missing)
        print(f"==> {suite.name}: fetched after {time.monotonic() - started:.0f} s", flush=True)
        found = {}
        for how in [*self.ways(suite), *([None] if self.chosen.full else [])]:
            started = time.monotonic()
            found[how] = self.once(suite, how, None, 1)
            print(f"==> {suite.name}, {how or 'direct'}: {len(found[how])} tests, {time.monotonic() - started:.0f} s", flush=True)
            if not found[how]:
                self.report.fault(f"{suite.name}, {how or 'direct'}: no test ran; see {self.kept}/{suite.name}")
        return found

    def second(self, suite, found):
        """What failed, again and by itself, then directly; with --full that also which is listed."""
        for how in self.ways(suite):
            through = found[how]
            broken = sorted(test for test, outcome in through.items()
                            if failed(outcome) and (self.chosen.full or not self.report.is_listed(suite.name, how, test)))
            again = self.once(suite, how, broken, 2) if broken else {}
            # One that is not found again by its name keeps its first outcome.
            left = [test for test in broken if failed(again.get(test, through[test]))]
            direct = dict(found.get(None, {}))
            direct.update(self.once(suite, None, left, f"after-{how}") if left else {})
            # Many suites give their own tests 50 or 100 ms: a third try, by then alone on the machine.
            lost = [test for test in left if not failed(direct.get(test)) and not self.report.is_listed(suite.name, how, test)]
            if 0 < len(lost) <= AGAIN_MAX:
                again.update(self.once(suite, how, lost, 3))
            self.report.compare(suite.name, how, through, again, direct)


def arguments():
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("names", nargs="*", metavar="NAME", help="of a suite: " + ", ".join(SUITES))
    options.add_argument("--through", action="append", choices=HOWS, help="this way (default: transaction, and of some suites with the "
                                                                          "extension or TLS too); may be repeated")
    options.add_argument("--full", action="store_true", help="all of each suite, and all of it directly, too")
    options.add_argument("--jobs", type=int, default=2, help="suites at once in the first turn (default %(default)s)")
    chosen = options.parse_args()
    if unknown := [name for name in chosen.names if not any(fnmatch.fnmatch(suite, name) for suite in SUITES)]:
        options.error(f"no suite {', '.join(unknown)}; there are {', '.join(SUITES)}")
    return chosen


def main():
    chosen = arguments()
    suites = [suite for name, suite in SUITES.items() if not chosen.names or any(fnmatch.fnmatch(name, pattern)
                                                                                 for pattern in chosen.names)]
    report = Report(listed((ROOT / "tests/drivers/differences.md").read_text()))
    kept = ROOT / ".run/suites/logs"
    work = pathlib.Path(tempfile.mkdtemp(prefix="hawser-suites-"))
    started = time.monotonic()
    try:
        print(f"testing {binary()}", flush=True)
        give_to_server(work)
        work.chmod(0o755)
        template = Template(work / "template")
        library = None
        if any("extension" in how for suite in suites for how in chosen.through or suite.ways):
            try:
                library = build_extension(template.bin, work)
            except Missing as missing:
                if chosen.through:
                    raise
                report.skip("all with the extension", str(missing))
        runner = Runner(chosen, template, work, kept, library, report)
        with concurrent.futures.ThreadPoolExecutor(chosen.jobs) as pool:
            firsts = {suite: pool.submit(runner.first, suite) for suite in sorted(suites, key=lambda one: one.takes_seconds, reverse=True)}
        for suite in suites:
            found = firsts[suite].result()
            if isinstance(found, str):
                report.skip(suite.name, found)
            else:
                runner.second(suite, found)
    except (Missing, NotBuilt) as error:
        print(f"cannot run: {error}", file=sys.stderr)
        return 2
    finally:
        shutil.rmtree(work, ignore_errors=True)
    used = os.times()
    print(f"{time.monotonic() - started:.0f} s, {used.user + used.system + used.children_user + used.children_system:.0f} s of processors")
    return report.end(kept)


if __name__ == "__main__":
    sys.exit(main())
