"""PostgreSQL's own suites against one target: pg_regress, pg_isolation_regress and libpq_pipeline.

# Model       prepare() copies a suite's inputs and builds its C parts; run() gives {test: Outcome} for one target
# Invariants  one run has a cluster and a directory of its own: what one leaves behind, another does not see
# Limits      a program that hangs is ended after its time; all else of its group in the schedule goes on
"""

import os
import pathlib
import pwd
import re
import shutil
import subprocess
from dataclasses import dataclass

# One file's client. On a busy machine of two cores the slowest of regress takes 30 s, that of isolation (`stats`) 7, and
# 45 where the server is asked which backend a client has.
FILE_SECONDS = {"regress": 120, "isolation": 120, "libpq_pipeline": 60}
# A step of an isolation test. The suite's own 300 s are for machines that are slower by far.
STEP_SECONDS = 15
# All of a suite.
SUITE_SECONDS = 1800
# What coreutils' timeout ends with.
TIMED_OUT = 124
DRIVER = "test/regress/pg_regress"
OPTIONAL_MODULES = {"refint": "contrib/spi/refint.c", "autoinc": "contrib/spi/autoinc.c"}


class Missing(Exception):
    """What a suite needs is not here; the message says what, and how to get it."""


@dataclass
class Outcome:
    """`verdict` is ok, FAILED (by the suite's own expected output) or hangs; `output` is the file that the test wrote."""

    verdict: str
    output: pathlib.Path
    seconds: float = 0.0

    def text(self):
        """Without what differs between two runs against the same server: where their directories are."""
        try:
            raw = self.output.read_bytes().decode("utf-8", "replace")
        except FileNotFoundError:
            return None
        return raw.replace(str(self.output.parents[1]), "OUTPUT")


class Installation:
    """The programs and headers of one server, by pg_config."""

    def __init__(self, pg_config):
        self.pg_config = pg_config
        self.bin = pathlib.Path(self.ask("--bindir"))
        self.version = self.ask("--version")
        self.major = int(re.search(r"\d+", self.version).group())
        self.pgxs = pathlib.Path(self.ask("--pgxs")).parents[1]

    def ask(self, what):
        try:
            return subprocess.run([self.pg_config, what], capture_output=True, text=True, check=True).stdout.strip()
        except (OSError, subprocess.CalledProcessError) as error:
            raise Missing(f"{self.pg_config} does not work ({error}); --pg-config names another") from error

    def program(self, place):
        path = self.pgxs / place
        if not os.access(path, os.X_OK):
            raise Missing(f"no {path}: install postgresql-server-dev-{self.major}")
        return path

    def compile(self, output, sources, *arguments):
        command = ["cc", "-O1", "-o", str(output), *map(str, sources), f"-I{self.ask('--includedir-server')}",
                   f"-I{self.ask('--includedir')}", *arguments]
        try:
            done = subprocess.run(command, capture_output=True, text=True)
        except OSError as error:
            raise Missing(f"no C compiler: {error}") from error
        if done.returncode:
            raise Missing(f"{output.name} cannot be built: {done.stderr[-600:]}")


def as_server(command):
    """As root, a test runs as the server does: both write into the test's directory."""
    if os.getuid():
        return command
    return ["setpriv", "--reuid=postgres", "--regid=postgres", "--init-groups", *command]


def give_to_server(path):
    if os.getuid() == 0:
        owner = pwd.getpwnam("postgres")
        for entry in (path, *path.rglob("*")):
            os.chown(entry, owner.pw_uid, owner.pw_gid, follow_symlinks=False)


def execute(command, directory, environment, log):
    with open(log, "wb") as out:
        process = subprocess.Popen(as_server(list(map(str, command))), cwd=directory, stdin=subprocess.DEVNULL, stdout=out,
                                   stderr=subprocess.STDOUT, start_new_session=True, env={**os.environ, **environment})
        try:
            return process.wait(SUITE_SECONDS)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, 9)
            process.wait()
            return TIMED_OUT


def read_verdicts(text):
    """{test: (passed, seconds, exit code)} from what pg_regress prints: up to 15 its own form, from 16 TAP."""
    found = {}
    own = re.compile(r"^(?:test)? +(\S+) +\.\.\. (ok|FAILED|failed \(ignored\))(.*)$", re.M)
    tap = re.compile(r"^(ok|not ok) \d+ +[-+] (\S+)(.*)$", re.M)
    rows = [(name, verdict == "ok", rest) for name, verdict, rest in own.findall(text)]
    rows += [(name, verdict == "ok", rest) for verdict, name, rest in tap.findall(text)]
    for name, passed, rest in rows:
        took = re.search(r"(\d+) ms", rest)
        code = re.search(r"exit code (\d+)", rest)
        found[name] = (passed, int(took.group(1)) / 1000 if took else 0.0, int(code.group(1)) if code else 0)
    # TAP says the exit code on a line of its own, behind the test's.
    for name, code in re.findall(r"^not ok \d+ +[-+] (\S+).*\n# \(test process exited with exit code (\d+)\)", text, re.M):
        found[name] = (*found[name][:2], int(code))
    return found


class PgRegress:
    """The regression suite, or the isolation suite, which has the same driver."""

    def __init__(self, name, installation, source, work):
        self.name = name
        self.installation = installation
        self.inputs = work / f"{name}-inputs"
        self.libraries = work / "lib"
        place = {"regress": "src/test/regress", "isolation": "src/test/isolation"}[name]
        self.driver = installation.program(DRIVER if name == "regress" else "test/isolation/pg_isolation_regress")
        self.schedule = "parallel_schedule" if name == "regress" else "isolation_schedule"
        shutil.copytree(source / place, self.inputs)
        self.libraries.mkdir(exist_ok=True)
        if name == "regress":
            installation.compile(self.libraries / "regress.so", [source / place / "regress.c"], "-shared", "-fPIC")
            for library, path in OPTIONAL_MODULES.items():
                if (source / path).exists():
                    installation.compile(self.libraries / f"{library}.so", [source / path], "-shared", "-fPIC")
        give_to_server(self.inputs)
        give_to_server(self.libraries)

    def run(self, target, directory, tests):
        """`target` is (host, port). `tests` none: the whole schedule, in parallel; else these, one after the other."""
        output = directory / self.name
        (output / "results").mkdir(parents=True)
        if self.name == "regress":
            # The server reads and writes beside its inputs (COPY), as in PostgreSQL's own build directory.
            (output / "testtablespace").mkdir()
        give_to_server(directory)
        command = [self.driver, f"--inputdir={self.inputs}", f"--outputdir={output}", f"--bindir={self.installation.bin}",
                   f"--dlpath={self.libraries}", "--max-concurrent-tests=20", f"--host={target[0]}", f"--port={target[1]}",
                   "--user=postgres", f"--launcher=timeout --kill-after=5 {FILE_SECONDS[self.name]}"]
        if self.name == "isolation":
            command.append("--dbname=isolation_regression")
        command += tests or [f"--schedule={self.inputs / self.schedule}"]
        log = directory / f"{self.name}.log"
        code = execute(command, directory, {"PGISOLATIONTIMEOUT": str(STEP_SECONDS)}, log)
        verdicts = read_verdicts(log.read_text(errors="replace"))
        if not verdicts:
            raise Missing(f"pg_regress ended with {code} and ran nothing:\n{log.read_text(errors='replace')[-1500:]}")
        return {name: Outcome("ok" if passed else "hangs" if exit_code == TIMED_OUT else "FAILED", output / "results" / f"{name}.out",
                              seconds)
                for name, (passed, seconds, exit_code) in verdicts.items()}


class Pipeline:
    """libpq_pipeline: each of its tests prints what it did, and a trace of the protocol."""

    name = "libpq_pipeline"
    ROWS = 700
    # Traces of these are the same in each run, says the suite's own t/001_libpq_pipeline.pl.
    TRACED = ("simple_pipeline", "nosync", "multi_pipelines", "prepared", "singlerow", "pipeline_abort", "pipeline_idle",
              "transaction", "disallowed_in_pipeline")

    def __init__(self, installation, source, work):
        (work / "bin").mkdir()
        self.program = work / "bin/libpq_pipeline"
        module = source / "src/test/modules/libpq_pipeline"
        self.traces = module / "traces"
        libraries = [f"-L{installation.ask('--libdir')}", f"-L{installation.ask('--pkglibdir')}"]
        installation.compile(self.program, [module / "libpq_pipeline.c"], *libraries, "-lpq", "-lpgcommon", "-lpgport")
        give_to_server(work / "bin")

    def run(self, target, directory, tests):
        output = directory / self.name / "results"
        output.mkdir(parents=True)
        give_to_server(directory)
        names = tests or subprocess.run([self.program, "tests"], capture_output=True, text=True, check=True).stdout.split()
        outcomes = {}
        for name in names:
            trace, said = output / f"{name}.trace", output / f"{name}.said"
            connection = f"host={target[0]} port={target[1]} user=postgres dbname=postgres"
            code = execute(["timeout", "--kill-after=5", FILE_SECONDS[self.name], self.program, "-r", self.ROWS, "-t", trace, name,
                            connection],
                           directory, {}, said)
            verdict = "ok" if code == 0 else "hangs" if code == TIMED_OUT else "FAILED"
            expected = self.traces / f"{name}.trace"
            if verdict == "ok" and name in self.TRACED and expected.exists() and trace.read_bytes() != expected.read_bytes():
                verdict = "FAILED"
            # Compared file by file: the trace of those whose trace is the same in each run, else what the test says.
            outcomes[name] = Outcome(verdict, trace if name in self.TRACED and code == 0 else said)
        return outcomes
