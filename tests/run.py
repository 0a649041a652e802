#!/usr/bin/env python3
"""Runs the integration tests: real PostgreSQL, `hawser serve` in front of it, and clients that speak the protocol by hand.

    tests/run.py [-k PATTERN]... [--list] [--direct | --extension | --inside] [--keep] [--drivers] [--jobs N] [--no-skips]

--direct points the same clients at PostgreSQL itself: what passes there and fails through the pooler is the pooler's
fault. The last line but for warnings is `N passed, N failed, N skipped`; the exit code is 0 only without failures
(with --no-skips: only if tests ran, and all of them).
--jobs N runs N modules at a time, each with a cluster of its own, the longest first: those that take half a minute and
more say so in TAKES_SECONDS. Modules that measure, or change what the machine has only once, name in ALONE a queue in which
they wait for each other. The queues `networks` and `lines` are two of the N, which go on with what is in no queue, and the drivers
run beside them; the other queues run after these, beside each other. What took longest is said at the end.
ALL=1 in the environment also installs and runs what needs more than Python and PostgreSQL (the drivers).
"""

import argparse
import contextlib
import importlib
import io
import itertools
import multiprocessing
import os
import pathlib
import queue
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
sys.dont_write_bytecode = True

from harness import drivers, extension, flaky, inside, pooler, postgres, suite
from harness.wire import ServerError

# Of modules that say ALONE. Those of `networks` and `lines` make networks with limits of their own and wait for what is sent
# there most of the time: two at a time fill no processor. Those of `processes` measure, or hold up, processes of this host; those
# of `clocks` and `datagrams` wait for what ends by the clock.
BESIDE_ALL, AFTERWARDS = ("networks", "lines"), ("processes", "clocks", "datagrams")
# The descriptors that a thousand clients and their pooler take: many systems give 1,024 until they are asked for more.
DESCRIPTORS = 65_536
# So many modules, and tests, are named at the end with the time that they took.
SLOWEST = 15


class OutOfTime(BaseException):
    """Not an Exception: a test's own handlers must not swallow it."""


def on_alarm(_number, _frame):
    raise OutOfTime


def collect(patterns):
    """[(module, [tests])] in order of file name and of place in the file; a test is kept if any pattern is in `module.test`."""
    found = []
    for path in sorted((HERE / "integration").glob("test_*.py")):
        module = importlib.import_module(f"integration.{path.stem}")
        tests = [value for name, value in vars(module).items() if name.startswith("test_") and callable(value)
                 and value.__module__ == module.__name__]
        tests = [test for test in tests if not patterns or any(pattern in f"{path.stem}.{test.__name__}" for pattern in patterns)]
        if tests:
            found.append((module, tests))
    return found


class Report:
    def __init__(self):
        self.passed = self.failed = self.skipped = 0
        self.failures = []
        self.reasons = {}  # of each failure, the first
        self.flaky = {}  # name: why it failed before it passed
        self.modules = {}  # name: seconds, and how many of them processors worked for
        self.tests = {}  # the same of each test that passed

    def say(self, name, verdict, detail=""):
        print(f"{name:<100} {verdict}{': ' + detail if detail else ''}", flush=True)

    def ok(self, name, seconds):
        self.passed += 1
        self.tests[name] = seconds
        self.say(name, "ok", f"{seconds:.1f} s" if seconds >= 1 else "")

    def skip(self, name, reason):
        self.skipped += 1
        self.say(name, "skip", reason)

    def fail(self, name, reason):
        self.failed += 1
        self.failures.append(name)
        self.reasons.setdefault(name, reason)
        self.say(name, "FAIL", reason)

    def take_back(self, names):
        """Those that failed, to be run again."""
        self.failures = [name for name in self.failures if name not in names]
        self.failed -= len(names)

    def is_flaky(self, name):
        """It has failed, and passed when it was run again."""
        self.flaky[name] = self.reasons[name]
        self.passed -= name in self.tests

    def absorb(self, other):
        """What another process has counted."""
        self.passed += other.passed
        self.failed += other.failed
        self.skipped += other.skipped
        self.failures += other.failures
        self.reasons |= other.reasons
        self.flaky |= other.flaky
        self.modules |= other.modules
        self.tests |= other.tests

    def mark(self):
        """Where it stands, for `failures_since` and `go_back_to`."""
        return self.passed, self.failed, self.skipped, len(self.failures)

    def failures_since(self, mark):
        return self.failures[mark[3]:]

    def go_back_to(self, mark):
        """What has been counted since does not count: it is run again."""
        self.passed, self.failed, self.skipped, failures = mark
        del self.failures[failures:]

    def slowest(self):
        """A line for each of the modules and tests that took longest."""
        modules = {name: seconds for name, (seconds, _) in self.modules.items()}
        for what, all_of_them in (("modules", modules), ("tests", self.tests)):
            longest = sorted(all_of_them, key=all_of_them.get, reverse=True)[:SLOWEST]
            print(f"\nthe longest {what}, of {sum(all_of_them.values()):.0f} s:")
            for name in longest:
                worked = f", {self.modules[name][1]:5.1f} s of processors" if name in self.modules else ""
                print(f"  {all_of_them[name]:6.1f} s{worked}  {name}")

    def end(self, no_skips=False):
        self.failed += flaky.say(self.flaky)
        if self.failures:
            print("\nfailed:\n  " + "\n  ".join(self.failures))
        print(f"\n{self.passed} passed, {self.failed} failed, {self.skipped} skipped")
        incomplete = no_skips and (self.skipped or not self.passed)
        if incomplete:
            print("warning: not all tests ran, and --no-skips asks for all")
        return 1 if self.failed or incomplete else 0


def explain(error):
    """The reason in a line, then the lines of the test that led to it."""
    if isinstance(error, OutOfTime):
        reason = "out of time"
    else:
        reason = f"{type(error).__name__}: {error}" if str(error) or not isinstance(error, AssertionError) else "AssertionError"
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if "/integration/" in frame.filename
              or "/harness/" in frame.filename]
    where = "".join(f"\n    {pathlib.Path(f.filename).name}:{f.lineno}: {f.line}" for f in frames[-4:])
    return reason + where


def run_test(name, test, env, report):
    seconds = getattr(test, "limit_seconds", suite.DEFAULT_LIMIT_SECONDS)
    started, error = time.monotonic(), None
    # The cleaning up has a time of its own: it must happen after a test that ran out of it.
    for step, allowed in ((lambda: test(env), seconds), (env.end_test, 20)):
        signal.alarm(allowed)
        try:
            step()
        except KeyboardInterrupt:
            raise
        except BaseException as raised:  # a failing test must not end the run
            error = error or raised
        finally:
            signal.alarm(0)
    if isinstance(error, suite.Skip):
        report.skip(name, str(error))
    elif error:
        report.fail(name, explain(error))
    else:
        report.ok(name, time.monotonic() - started)


def run_module(module, tests, cluster, directory, direct, report):
    names = {test: f"{module.__name__.split('.')[-1]}.{test.__name__}" for test in tests}
    if direct:
        for test in tests:
            if getattr(test, "pooler_only", False):
                report.skip(names[test], "only a pooler has this")
        tests = [test for test in tests if not getattr(test, "pooler_only", False)]
    if not tests:
        return
    started, (own, server) = time.monotonic(), processor_seconds(cluster)
    try:
        run_tests(module, tests, names, suite.Env(cluster, directory, direct, getattr(module, "SETTINGS", {})), report)
    finally:
        now, servers = processor_seconds(cluster)
        worked = now - own + sum(seconds - server.get(pid, 0) for pid, seconds in servers.items())
        report.modules[module.__name__.split(".")[-1]] = time.monotonic() - started, worked


def processor_seconds(cluster):
    """What this process has used, with its children that have ended; and {postmaster: the same of it}, of that which runs."""
    own, server = sum(os.times()[:4]), {}
    with contextlib.suppress(OSError):
        pid = (cluster.data / "postmaster.pid").read_text().split()[0]
        times = pathlib.Path("/proc", pid, "stat").read_text().rpartition(")")[2].split()[11:15]
        server[pid] = sum(map(int, times)) / os.sysconf("SC_CLK_TCK")
    return own, server


def run_tests(module, tests, names, env, report):
    cluster, direct = env.cluster, env.direct
    try:
        cluster.make_databases()
        env.begin_module()
    except (AssertionError, ServerError) as error:
        for test in tests:
            report.fail(names[test], f"no database or no pooler: {error}")
        return
    for test in tests:
        run_test(names[test], test, env, report)
        # What a test killed has failed that test already; the next one deserves both processes.
        if not postgres.is_ready(cluster):
            cluster.restart("immediate") if cluster.is_running() else cluster.start()
        if not direct and not env.pooler.is_alive():
            env.pooler.process = None
            try:
                env.begin_module()
            except AssertionError as error:
                report.fail(names[test], f"no pooler afterwards: {error}")
                return
    try:
        env.end_module()
    except AssertionError as error:
        report.fail(f"{module.__name__.split('.')[-1]} (the pooler's end)", str(error))


def run_queued(number, queues, patterns, places, directory, direct, results):
    """A process of `run_together`: takes modules from each of `queues` until a None, and gives (module, output, Report) back."""
    signal.signal(signal.SIGALRM, on_alarm)
    directory = f"{directory}/{number}"
    os.mkdir(directory)
    os.chmod(directory, 0o755)
    modules = {module.__name__: (module, tests) for module, tests in collect(patterns)}
    cluster = postgres.Cluster(directory, places[0])
    try:
        cluster.create()
        inside.begin(cluster)
        for name in itertools.chain.from_iterable(iter(names.get, None) for names in queues):
            report, output = Report(), io.StringIO()
            with contextlib.redirect_stdout(output):
                run_module(*modules[name], cluster, directory, direct, report)
            results.put((name, output.getvalue(), report))
    finally:
        cluster.destroy()


def run_drivers(programs, fetch, places, directory, direct, results):
    """A process of `run_together`: the drivers, with a cluster of their own."""
    directory = f"{directory}/drivers"
    os.mkdir(directory)
    os.chmod(directory, 0o755)
    cluster = postgres.Cluster(directory, places[0])
    try:
        cluster.create()
        inside.begin(cluster)
        report, output = Report(), io.StringIO()
        with contextlib.redirect_stdout(output):
            drivers.run(programs, cluster, directory, direct, fetch, report)
        results.put(("drivers", output.getvalue(), report))
    finally:
        cluster.destroy()


def run_together(queues, others, jobs, programs, patterns, places, directory, direct, report):
    """Runs modules in processes, each with a cluster of its own, and the drivers `programs`, (drivers, whether to fetch them),
    in one more. Of `queues`, [(name, modules)], each has a process, which goes on with `others` as `jobs` more do. What no process gives
    back has failed."""
    context = multiprocessing.get_context("fork")
    results = context.Queue()

    def filled(modules, takers):
        names = context.Queue()
        for name in [module.__name__ for module, _ in modules] + [None] * takers:
            names.put(name)
        return names

    everyones = filled(others, len(queues) + jobs)
    takers = [(called, [filled(modules, 1), everyones]) for called, modules in queues]
    takers += [(f"module{number}", [everyones]) for number in range(jobs)]
    workers = [context.Process(target=run_queued, args=(called, takes, patterns, places, directory, direct, results))
               for called, takes in takers]
    missing = {module.__name__ for modules in [others, *(modules for _, modules in queues)] for module, _ in modules}
    if programs[0]:
        workers.append(context.Process(target=run_drivers, args=(*programs, places, directory, direct, results)))
        missing.add("drivers")
    sys.stdout.flush()
    for worker in workers:
        worker.start()
    while missing:
        try:
            name, output, counted = results.get(timeout=5)
        except queue.Empty:
            if any(worker.is_alive() for worker in workers):
                continue
            break
        print(output, end="", flush=True)
        report.absorb(counted)
        missing.discard(name)
    for worker in workers:
        worker.join()
    for name in missing:
        report.fail(name, "the process that ran it has died")


def run_all(modules, programs, jobs, patterns, places, directory, direct, report):
    """All modules and drivers, as --help says of --jobs."""
    seconds = lambda one: getattr(one[0], "TAKES_SECONDS", 0)
    modules = sorted(modules, key=seconds, reverse=True)
    queued = lambda called: [one for one in modules if getattr(one[0], "ALONE", None) == called]
    beside, afterwards = ([(called, queued(called)) for called in names if queued(called)] for names in (BESIDE_ALL, AFTERWARDS))
    others = queued(None)
    assert len(others) + sum(len(some) for _, some in beside + afterwards) == len(modules), "ALONE names no queue"
    run_together(beside, others, min(max(jobs - len(beside), 1), len(others)), programs, patterns, places, directory, direct, report)
    run_together(afterwards, [], 0, ([], False), patterns, places, directory, direct, report)


def run_again(modules, cluster, directory, direct, report):
    """The few tests that failed, once more, when all others have ended.

    Other programs on the machine hold a process up for seconds, and some tests measure time. What fails here as well has
    failed; what passes is flaky: see `harness.flaky`.
    """
    named = {f"{module.__name__.split('.')[-1]}.{test.__name__}": (module, test) for module, tests in modules for test in tests}
    failures = [name for name in report.failures if not name.startswith("driver.")]  # these have had their second run
    if not failures or len(failures) > suite.AGAIN_MAX or any(name not in named for name in failures):
        return
    print("\nonce more, what failed:")
    for name in failures:
        module, test = named[name]
        report.take_back([name])
        before = report.failed
        run_module(module, [test], cluster, directory, direct, report)
        if report.failed == before:
            report.is_flaky(name)


def main():
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("-k", action="append", default=[], metavar="PATTERN",
                         help="only tests whose module.name contains this; may be repeated")
    options.add_argument("--list", action="store_true", help="print names and stop")
    options.add_argument("--direct", action="store_true", help="clients connect to PostgreSQL itself")
    options.add_argument("--keep", action="store_true", help="leave the cluster's and the poolers' directories behind, and say where")
    options.add_argument("--drivers", action="store_true", help="the drivers of other languages too (as ALL=1 does)")
    options.add_argument("--jobs", type=int, default=1, metavar="N", help="modules that run at the same time")
    options.add_argument("--no-skips", action="store_true", help="a test that is skipped is a failure, and so is that there is none")
    options.add_argument("--another-server", action="store_true",
                         help="for a second version of the server: without the modules that say SAME_FOR_ALL_SERVERS, and the tests "
                              "that say ONCE")
    options.add_argument("--extension", action="store_true",
                         help="the server has the extension; without the modules that load it themselves")
    options.add_argument("--inside", action="store_true", help="the same, and it serves the clients of every pooler itself")
    chosen = options.parse_args()

    modules = collect(chosen.k)
    if chosen.inside or chosen.extension:
        inside.wanted = chosen.inside
        modules = [(module, tests) for module, tests in modules if not vars(module).keys() & {"extension", "library", "server"}]
    if chosen.another_server:
        same = [module.__name__.split(".")[-1] for module, _ in modules if getattr(module, "SAME_FOR_ALL_SERVERS", False)]
        print(f"left out, for they do not depend on the server's version: {', '.join(same)}")
        modules = [(module, tests) for module, tests in modules if not getattr(module, "SAME_FOR_ALL_SERVERS", False)]
        once = lambda module, name: name.startswith(getattr(module, "ONCE", ()))
        modules = [(module, [test for test in tests if not once(module, test.__name__)]) for module, tests in modules]
    with_drivers = chosen.drivers or os.environ.get("ALL") == "1"
    programs = [program for program in drivers.ALL if not chosen.k or any(k in f"driver.{program.name}" for k in chosen.k)]
    if chosen.list:
        for module, tests in modules:
            for test in tests:
                print(f"{module.__name__.split('.')[-1]}.{test.__name__}")
        for program in programs:
            print(f"driver.{program.name}")
        return 0

    report = Report()
    places = postgres.bin_directories()
    if not places:
        print("no PostgreSQL server programs: install postgresql, or set PG_BIN", file=sys.stderr)
        return 2
    if not chosen.direct:
        try:
            print(f"testing {pooler.binary()}")
        except pooler.NotBuilt as error:
            print(error, file=sys.stderr)
            return 2
    signal.signal(signal.SIGALRM, on_alarm)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, DESCRIPTORS)), hard))
    directory = extension.shared_directory = tempfile.mkdtemp(prefix="hawser-tests-")
    cluster = postgres.Cluster(directory, places[0])
    started = time.monotonic()
    try:
        cluster.create()
        inside.begin(cluster)
        print(f"PostgreSQL {cluster.version} of {places[0]}, {'direct' if chosen.direct else 'through hawser'}")
        if chosen.jobs > 1:
            run_all(modules, (programs, with_drivers), chosen.jobs, chosen.k, places, directory, chosen.direct, report)
        else:
            for module, tests in modules:
                run_module(module, tests, cluster, directory, chosen.direct, report)
            drivers.run(programs, cluster, directory, chosen.direct, with_drivers, report)
        run_again(modules, cluster, directory, chosen.direct, report)
    finally:
        cluster.destroy()
        if chosen.keep:
            print(f"kept: {directory}")
        else:
            shutil.rmtree(directory, ignore_errors=True)
        with contextlib.suppress(OSError):  # others may use it, and root has another place for control sockets
            os.rmdir(pathlib.Path(tempfile.gettempdir(), f"hawser-{os.geteuid()}"))
    if len(modules) > 1:
        report.slowest()
    print(f"{time.monotonic() - started:.0f} s")
    return report.end(chosen.no_skips)


if __name__ == "__main__":
    sys.exit(main())
