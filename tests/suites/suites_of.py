"""Each driver's own suite: where it comes from, what its makers ask for, how it is run and how one test of it is run again.

A suite has `fetch()`, which raises Missing; `run(place, directory, tests, full, how)`, which gives {test: Outcome} (`place` is host,
port and sslmode); and the
statements that its makers ask for before it (`prepare`). `tests` names single tests; without them `full` is all, else the short form.
`how` is the way to the server, None for the direct one.
"""

import json
import os
import pathlib
import re
import shutil
import subprocess
import sys

import fetching
import outcomes
from fetching import Missing

HERE = pathlib.Path(__file__).resolve().parent
# The whole of a suite, and one of its tests.
SUITE_SECONDS = 1500
TEST_SECONDS = 60
# Of drivers in three languages; with TLS those whose suites take the mode from outside.
WITH_EXTENSION = ("transaction", "transaction+extension")
WITH_TLS = ("transaction+tls", "transaction+extension")
# How often the rest of a Go package is run again without the test that ended it.
PANICS_MAX = 3


def execute(command, directory, environment, log, seconds=SUITE_SECONDS):
    """The exit code, or None where it had to be ended."""
    with open(log, "ab") as out:
        process = subprocess.Popen(list(map(str, command)), cwd=directory, env={**os.environ, **environment}, stdin=subprocess.DEVNULL,
                                   stdout=out, stderr=subprocess.STDOUT, start_new_session=True)
        try:
            return process.wait(seconds)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, 9)
            process.wait()
            return None


class Suite:
    prepare = ()  # (database, SQL), as superuser
    user, database = "postgres", "suite"
    faults = ()  # what the last run says of the program itself
    ways = ("transaction",)  # through Hawser, where --through names none
    takes_seconds = 30  # all of its ways, about: the longest begin first

    def variables(self, place):
        return {"PGHOST": place[0], "PGPORT": str(place[1]), "PGSSLMODE": place[2], "PGUSER": self.user, "PGDATABASE": self.database}


class Pytest(Suite):
    """A suite in Python, run by pytest with a plugin that records each test."""

    requirements = ()  # besides pytest
    sources = ("pytest==8.4.2", "pytest-timeout==2.4.0")
    arguments = ()
    short = ("tests",)  # files, or options of pytest
    whole = ("tests",)

    def fetch(self):
        self.packages = fetching.wheels(self.name, (*self.sources, *self.requirements))
        self.tree = self.source()

    def selected(self, test):
        """What names this test to pytest again."""
        return test

    def run(self, place, directory, tests, full, how):
        record = directory / "record.jsonl"
        chosen = [self.selected(test) for test in tests] if tests else self.whole if full else self.short
        environment = {**self.variables(place), "PYTHONPATH": f"{self.packages}:{HERE}:{self.tree}", "SUITE_RECORD": str(record),
                       "PYTHONDONTWRITEBYTECODE": "1"}
        command = [sys.executable, "-m", "pytest", "-p", "record_pytest", "-o", f"cache_dir={directory}/cache", "-o", "addopts=",
                   "-q", "--timeout", TEST_SECONDS,
                   *self.arguments, *self.dsn(place), *dict.fromkeys(chosen)]
        code = execute(command, self.tree, environment, directory / "log")
        self.faults = () if code in (0, 1) else (f"pytest ended with {code}",)
        return {self.named(test): outcome for test, outcome in outcomes.from_record(record).items()}

    def named(self, test):
        return test

    def dsn(self, place):
        return ()


class Asyncpg(Pytest):
    name = "asyncpg"
    takes_seconds = 75
    version = "0.32.0"
    requirements = (f"asyncpg=={version}", "uvloop==0.22.1", "distro==1.9.0")
    # asyncpg's own race, with no byte of ours in it: a pool that is closed cancels the task that connects to
    # restore min_size, and if that waits for the socket of a connection whose protocol exists already, its future
    # ends with "unexpected connection_lost() call", which nothing awaits. On a busy machine 9 of 40 runs of this
    # test fail so directly.
    RACES = ("tests/test_pool.py::TestPool::test_pool_config_persistence",)
    arguments = ("--assert=plain", "--import-mode=importlib", *(f"--deselect={test}" for test in RACES))
    short = whole = ("tests",)

    prepare = (("postgres", "create database suite"),)

    def source(self):
        tree = fetching.sdist("asyncpg", self.version)
        # Else the sources, which have no compiled parts, are taken for the package.
        shutil.rmtree(tree / "asyncpg", ignore_errors=True)
        return tree


class Psycopg2(Pytest):
    name = "psycopg2"
    ways = WITH_TLS
    takes_seconds = 40
    version = "2.9.11"
    requirements = (f"psycopg2-binary=={version}",)
    short = whole = ("tests",)
    prepare = (("postgres", "create database suite"), ("suite", "create extension hstore"))

    def source(self):
        return fetching.sdist("psycopg2", self.version)

    def variables(self, place):
        return {**super().variables(place), "PSYCOPG2_TESTDB": self.database, "PSYCOPG2_TEST_FAST": "1"}


class Psycopg(Pytest):
    """Its source distributions have no tests: PSYCOPG_SOURCE names a checkout."""

    name = "psycopg"
    ways = ("transaction", "transaction+tls", "transaction+extension")
    takes_seconds = 900
    arguments = ("-p", "no:randomly")
    whole = ("tests", "--ignore=tests/crdb", "--ignore=tests/test_typing.py", "--ignore=tests/test_module.py",
             "--ignore=tests/pool/test_module.py")
    short = (*whole, "-m", "not slow")
    prepare = (("postgres", "create database suite"),)

    def fetch(self):
        if not os.environ.get("PSYCOPG_SOURCE"):
            raise Missing("psycopg 3's source distributions have no tests; PSYCOPG_SOURCE may name a checkout of it")
        self.tree = pathlib.Path(os.environ["PSYCOPG_SOURCE"]).resolve()
        version, pool = (re.search(r'^version = "([^"]+)"', (self.tree / package / "pyproject.toml").read_text(), re.M).group(1)
                         for package in ("psycopg", "psycopg_pool"))
        self.packages = fetching.wheels(f"psycopg-{version}-pool-{pool}", (
            *self.sources, f"psycopg[binary]=={version}", f"psycopg-pool=={pool}", "anyio==4.9.0", "pproxy==2.7.9"))

    def dsn(self, place):
        return ("--test-dsn", f"host={place[0]} port={place[1]} user={self.user} dbname={self.database} sslmode={place[2]}")


class SqlAlchemy(Pytest):
    version = "2.1.9"
    takes_seconds = 250
    arguments = ("--backend-only", "--tb=native", "-p", "no:warnings", "-p", "no:logging", "--maxfail=100000")
    # The dialect's own, and the suite that each dialect must pass.
    short = ("test/dialect/postgresql", "test/engine/test_transaction.py")
    whole = ("test",)
    prepare = (("postgres", "create database suite"), ("suite", "create schema test_schema; create schema test_schema_2; create extension "
                                                                "hstore; create extension citext"))

    def __init__(self, driver, requirement):
        self.name = f"sqlalchemy-{driver}"
        self.driver = driver
        self.requirements = (requirement, "greenlet==3.2.4", "typing-extensions==4.15.0")

    def source(self):
        return fetching.sdist("sqlalchemy", self.version)  # the suite tests the package beside it

    def dsn(self, place):
        return ("--dburi", f"postgresql+{self.driver}://{self.user}:any@{place[0]}:{place[1]}/{self.database}")

    # Each class is collected once for each database, and is then named for it and the server's version.
    def named(self, test):
        return re.sub(rf"_postgresql\+{self.driver}_(?:async_)?[0-9_]+(?=::|$)", "", test)


class Django(Suite):
    name = "django"
    version = "5.2.19"
    database = "postgres"
    takes_seconds = 90
    parallel = 1
    short = ("backends", "postgres_tests", "queries", "transactions", "migrations", "schema")
    prepare = (("postgres", "create database django"), ("postgres", "create database django2"))

    def fetch(self):
        self.packages = fetching.wheels("django", (f"django=={self.version}", "psycopg[binary,pool]==3.3.9", "jinja2==3.1.6",
                                                   "tblib==3.1.0", "tzdata==2025.2"))
        self.tree = fetching.sdist("django", self.version)

    def run(self, place, directory, tests, full, how):
        record = directory / "record.jsonl"
        environment = {**self.variables(place), "PYTHONPATH": f"{self.packages}:{HERE}:{self.tree}", "SUITE_RECORD": str(record),
                       "PYTHONDONTWRITEBYTECODE": "1"}
        labels = [test for test in tests or () if "databases" not in test.split(".")[0]]
        if not labels:
            labels = [] if full and not tests else ["transactions"] if tests else list(self.short)
        # "setUpClass (queries.tests.Class)" is all of the class.
        labels = list(dict.fromkeys(re.sub(r"^\w+ \((.*)\)$", r"\1", label) for label in labels))
        code = execute([sys.executable, self.tree / "tests/runtests.py", "--settings=record_django", f"--parallel={self.parallel}",
                        "--noinput", *labels],
                       self.tree / "tests", environment, directory / "log")
        self.faults = ("did not end",) if code is None else ()
        return outcomes.from_record(record)


class DjangoParallel(Django):
    """As its users run their tests on several processors: databases are made as copies of others, each process has its own,
    and all are dropped."""

    name = "django-parallel"
    takes_seconds = 40
    parallel = 3
    short = ("aggregation", "basic", "constraints", "get_or_create", "transactions", "transaction_hooks")


class Go(Suite):
    short = whole = ("./...",)
    left_out = {}  # of the short form: {way: tests}

    def fetch(self):
        if shutil.which("go") is None:
            raise Missing("go is not installed")
        self.tree = fetching.go_module(self.module, self.version)

    def run(self, place, directory, tests, full, how):
        environment = {**self.variables(place), "GOFLAGS": "-mod=mod"}
        packages = self.whole if full else self.short
        left_out = set() if full else set(self.left_out.get(how, ()))
        runs = [(packages, ["-skip", alternatives(left_out)] if left_out else [])]
        if tests:
            chosen = {}
            for test in tests:
                package, _, name = test.partition(" ")
                chosen.setdefault(package, set()).add(name)
            # Of a subtest the whole test: many need what their parents have set up.
            runs = [((package,), [] if "(package)" in names else ["-run", alternatives(names)]) for package, names in chosen.items()]
        self.faults = ()
        for packages, chosen in runs:
            self.test(packages, chosen, directory / "log", environment)
        if tests:
            return outcomes.from_go(directory / "log")
        # A test that panics, or hangs, ends its package: the others of it have another go without it.
        for _ in range(PANICS_MAX):
            for package, names in outcomes.died_in_go(directory / "log").items():
                self.test((package,), ["-skip", alternatives(names | left_out)], directory / "log", environment)
        if died := outcomes.died_in_go(directory / "log"):
            self.faults += (f"after {PANICS_MAX} panics, tests of {', '.join(died)} were left that did not run",)
        return outcomes.from_go(directory / "log")

    def test(self, packages, chosen, log, environment):
        command = ["go", "test", "-json", "-count=1", "-p", "1", f"-timeout={TEST_SECONDS * 5}s", *chosen, *packages]
        if execute(command, self.tree, environment, log) is None:
            self.faults += ("did not end",)


def alternatives(names):
    """A pattern of go test for these tests, each with all of its subtests."""
    return "^(" + "|".join(sorted({re.escape(name.split("/")[0]) for name in names})) + ")$"


class Pgx(Go):
    name = "pgx"
    module, version = "github.com/jackc/pgx/v5", "v5.7.6"
    short = (".", "./pgconn", "./pgxpool", "./stdlib")  # pgtype's tests are nearly all of one round trip and a value
    # The first two end their server connection by the id that the client was given at connect, which without the extension
    # is not the server's, and wait for two minutes; the one is lost (differences.md), to the other its own time limit is as
    # good. On a busy machine a goroutine of the second outlives it, and ends all others. The third needs no extension, and
    # 105,000 round trips.
    left_out = {"transaction": ("TestConnCheckConn", "TestConnCopyFromConnectionTerminated"),
                "transaction+extension+tls": ("TestConnCopyFromConnectionTerminated", "TestListenNotifyWhileBusyIsSafe")}
    ways = ("transaction", "transaction+extension+tls")
    takes_seconds = 260
    prepare = (("postgres", "create database suite"),
               ("suite", """create extension hstore; create extension ltree; create domain uint64 as numeric(20,0);
                create role " tricky, ' } "" \\ test user " superuser password 'secret'"""))

    def variables(self, place):
        connection = f"host={place[0]} port={place[1]} user={self.user} database={self.database} sslmode={place[2]}"
        return {**super().variables(place), "PGX_TEST_DATABASE": connection, "PGX_TEST_TCP_CONN_STRING": connection}


class LibPq(Go):
    name = "lib-pq"
    module, version = "github.com/lib/pq", "v1.12.3"
    user = database = "pqgo"
    prepare = (("postgres", "create role pqgo superuser login"), ("postgres", "create database pqgo owner pqgo"),
               ("postgres", "create role pqgossl login; create role pqgosslcert login; create role pqgopassword login password 'wordpass'"),
               ("pqgo", "create extension hstore"))


class NodePostgres(Suite):
    """What npm has of it has no tests: NODE_POSTGRES_SOURCE names a checkout. Each of pg's files is a program, and one test; those of
    the other packages are run by mocha, a process for each file."""

    name = "node-postgres"
    ways = WITH_EXTENSION
    takes_seconds = 200
    BY_MOCHA = ("pg-pool", "pg-cursor")
    NO_TEST = "setup.js"
    MOCHA_MS = 10_000  # for a test that names no limit: mocha's 2 s are short on a busy machine
    # What the tests themselves need, in their makers' versions.
    NEEDED = ("mocha@11.7.5", "expect.js@0.3.1", "lodash@4.17.21", "bluebird@3.7.2", "co@4.6.0", "async@2.6.4", "pg-copy-streams@0.3.0")
    prepare = (("postgres", "create database suite"),)

    def fetch(self):
        if not os.environ.get("NODE_POSTGRES_SOURCE"):
            raise Missing("npm's packages of node-postgres have no tests; NODE_POSTGRES_SOURCE may name a checkout of it")
        self.tree = pathlib.Path(os.environ["NODE_POSTGRES_SOURCE"]).resolve() / "packages"
        versions = {package: json.loads((self.tree / package / "package.json").read_text())["version"]
                    for package in ("pg", *self.BY_MOCHA)}

        def make(directory):
            fetching.call(["npm", "install", "--prefix", directory, "--no-save", "--no-audit", "--no-fund", "--ignore-scripts",
                           *(f"{package}@{version}" for package, version in versions.items()), *self.NEEDED])
        self.packages = fetching.kept(f"node-postgres-{versions['pg']}-packages", make) / "node_modules"

    def variables(self, place):
        # `require` asks for a certificate that can be verified, too.
        return {**super().variables(place), "PGSSLMODE": "no-verify" if place[2] == "require" else place[2],
                "NODE_PATH": str(self.packages)}

    def run(self, place, directory, tests, full, how):
        by_mocha = (file for package in self.BY_MOCHA for file in sorted(self.tree.glob(f"{package}/test/*.js"))
                    if file.name != self.NO_TEST)
        files = [file.relative_to(self.tree) for file in (*sorted(self.tree.glob("pg/test/integration/**/*-tests.js")), *by_mocha)]
        chosen = {test.partition(": ")[0] for test in tests or ()}
        # Some tests have 100 ms for a login. The first one to a database takes longer: Hawser reads what its functions do.
        execute(["psql", "-X", "-c", "select 1"], self.tree, super().variables(place), directory / "psql.log")
        found = {}
        for file in files:
            if not chosen or str(file) in chosen:
                found.update(self.one(file, directory / str(file).replace("/", "-"), self.variables(place)))
        return found

    def one(self, file, out, environment):
        package, within = file.parts[0], pathlib.Path(*file.parts[1:])
        log = out.with_suffix(".log")
        if package in self.BY_MOCHA:
            command = [self.packages / "mocha/bin/mocha.js", "--timeout", self.MOCHA_MS, "--reporter", "json",
                       "--reporter-option", f"output={out}.json", within]
        else:
            command = [within]
        code = execute(["node", *command], self.tree / package, environment, log, TEST_SECONDS)
        if package in self.BY_MOCHA and (found := outcomes.from_mocha(pathlib.Path(f"{out}.json"), str(file))):
            return found
        said = log.read_text(errors="replace")[-3000:]
        return {str(file): outcomes.Outcome("failed" if code != 0 else "passed", said)}


class TokioPostgres(Suite):
    name = "tokio-postgres"
    version = "0.7.18"
    database = "postgres"
    DEPENDENCIES = ("env_logger", "futures-executor", "futures-util", "tokio")
    prepare = (("postgres", "create role pass_user login password 'password'; create role scram_user login password 'password'; "
                "create role ssl_user login; set password_encryption = md5; create role md5_user login password 'password'"),
               ("postgres", "create extension hstore; create extension citext; create extension ltree"))

    def fetch(self):
        self.tree = fetching.crate("tokio-postgres", self.version)
        self.target = str(fetching.STORE / "tokio-postgres-target")
        manifest = self.tree / "Cargo.toml"
        text = manifest.read_text()
        if "[workspace]" not in text:
            # Of what tests of values of other crates need (features that are off) and the benchmark, nothing is built.
            parts = re.split(r"^(?=\[)", text, flags=re.M)
            wanted = [part for part in parts if not part.startswith("[[bench]]")
                      and (not part.startswith("[dev-dependencies.") or part.split("]")[0].partition(".")[2] in self.DEPENDENCIES)]
            manifest.write_text("[workspace]\n\n" + "".join(wanted))
        for path in (self.tree / "tests").rglob("*.rs"):
            # Its makers' port is written into the tests.
            path.write_text(re.sub(r'connect\("127\.0\.0\.1:5433"\)', 'connect(format!("127.0.0.1:{}", std::env::var("PGPORT").unwrap()))',
                                   path.read_text()))
        fetching.call(["cargo", "test", "--no-run", "--quiet", "--test", "test"], self.tree, {"CARGO_TARGET_DIR": self.target})

    def run(self, place, directory, tests, full, how):
        environment = {**self.variables(place), "CARGO_TARGET_DIR": self.target}
        command = ["cargo", "test", "--quiet", "--test", "test", "--"]
        if tests:
            command += ["--exact", *tests]
        code = execute([*command, "--format", "pretty"], self.tree, environment, directory / "log")
        self.faults = ("did not end",) if code is None else ()
        return outcomes.from_libtest(directory / "log")


class Pgjdbc(Suite):
    name = "pgjdbc"
    ways = WITH_EXTENSION
    takes_seconds = 100
    version = "42.7.7"
    user = "test"
    database = "test"
    prepare = (("postgres", "create role test login password 'test'"), ("postgres", "create database test owner test"),
               ("test", "create extension hstore; create extension citext"))
    short = tuple(f"org.postgresql.test.{name}Test" for name in (
        "jdbc2.BatchExecute", "jdbc2.Connection", "jdbc2.Copy", "jdbc2.CursorFetch", "jdbc2.Notify", "jdbc2.PreparedStatement",
        "jdbc2.ServerCursor",
        "jdbc2.ServerPreparedStmt", "jdbc2.Statement", "jdbc2.Timestamp", "jdbc2.UpdateableResult", "jdbc3.GeneratedKeys",
        "jdbc3.Jdbc3CallableStatement",
        "jdbc3.Jdbc3Savepoint", "jdbc3.ProcedureTransaction", "jdbc42.CustomizeDefaultFetchSize", "jdbc4.ClientInfo", "jdbc4.IsValid",
        "core.QueryExecutor"))

    def fetch(self):
        self.tree = fetching.maven_archive(f"org.postgresql:postgresql:{self.version}:tar.gz:jdbc-src", f"pgjdbc-{self.version}")
        if not (self.tree / "target/test-classes").exists():
            fetching.call(["mvn", "-q", "-B", "test-compile"], self.tree)

    def run(self, place, directory, tests, full, how):
        reports = directory / "reports"
        properties = {"test.url.PGHOST": place[0], "test.url.PGPORT": place[1], "test.url.PGDBNAME": self.database, "user": self.user,
                      "password": "test",
                      "privilegedUser": "postgres", "privilegedPassword": ""}
        text = (self.tree / "build.properties").read_text()
        text = "\n".join(line for line in text.splitlines() if line.partition("=")[0] not in properties)
        (self.tree / "build.local.properties").write_text("\n".join(f"{name}={value}" for name, value in properties.items()) + "\n")
        chosen = sorted({re.sub(r"[\[({].*", "", test).rpartition(".")[0] for test in tests}) if tests else None if full else self.short
        command = ["mvn", "-B", "surefire:test", f"-Dsurefire.reportsDirectory={reports}", f"-DreportsDirectory={reports}",
                   "-DtrimStackTrace=false"]
        if chosen:
            command.append("-Dtest=" + ",".join(chosen))
        shutil.rmtree(self.tree / "target/surefire-reports", ignore_errors=True)
        code = execute(command, self.tree, self.variables(place), directory / "log")
        self.faults = ("did not end",) if code is None else ()
        return outcomes.from_surefire(reports if reports.exists() else self.tree / "target/surefire-reports")


SUITES = {suite.name: suite for suite in (
    Asyncpg(), Psycopg2(), Psycopg(), SqlAlchemy("psycopg", "psycopg[binary]==3.3.9"), SqlAlchemy("asyncpg", "asyncpg==0.32.0"), Django(),
    DjangoParallel(), Pgx(), LibPq(),
    NodePostgres(), TokioPostgres(), Pgjdbc())}
