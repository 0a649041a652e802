"""Real drivers as they come from their registries: a small program each in tests/drivers, which prints a line for each test.

# Model       a program prints `ok NAME`, `FAIL NAME why` or `skip NAME why`; each line is a test of the suite, `driver.DRIVER.NAME`
# Invariants  nothing is fetched unless ALL=1 or --drivers says so; versions are pinned in the driver's own files
# Limits      a driver whose language is not installed, or which is not fetched, is one skip with its reason
"""

import os
import pathlib
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from .pooler import Pooler
from .suite import AGAIN_MAX

HERE = pathlib.Path(__file__).resolve().parents[1] / "drivers"
INSTALL_SECONDS = 900
# Before each attempt: registries have bad moments.
INSTALL_PAUSES = (0, 15)
RUN_SECONDS = 180


@dataclass
class Driver:
    """`install` fetches and builds into the driver's directory; `product` is there once that was done."""

    name: str
    needs: str
    product: str
    install: list
    command: list
    environment: dict = field(default_factory=dict)
    lacks: Callable[[], str | None] = lambda: None  # why the language alone is not enough, or None

    @property
    def directory(self):
        return HERE / self.name

    def missing(self):
        """Why it cannot run now, or None."""
        if shutil.which(self.needs) is None:
            return f"{self.needs} is not installed"
        if not (self.directory / self.product).exists():
            return "not fetched: run with ALL=1"
        return self.lacks()


def _pdo_pgsql():
    modules = subprocess.run(["php", "-m"], capture_output=True, text=True).stdout.split()
    return None if "pdo_pgsql" in modules else "php has no pdo_pgsql: install php-pgsql"


def _pip(name):
    return Driver(name, sys.executable, ".packages",
                  [[sys.executable, "-m", "pip", "install", "-q", "--root-user-action=ignore", "--target", ".packages",
                    "-r", "requirements.txt"]],
                  [sys.executable, "test.py"])


ALL = [
    _pip("psycopg"),
    _pip("asyncpg"),
    _pip("django"),
    _pip("sqlalchemy"),
    Driver("php-pdo", "php", "test.php", [], ["php", "test.php"], lacks=_pdo_pgsql),
    Driver("pgx", "go", "bin/test", [["go", "build", "-mod=readonly", "-o", "bin/test", "."]], ["bin/test"]),
    Driver("pgjdbc", "java", "lib", [["mvn", "-q", "-B", "dependency:copy-dependencies", "-DoutputDirectory=lib"]],
           ["java", "-cp", "lib/*", "PgjdbcTest.java"]),
    # Compiled ahead: Hibernate does not find classes that java compiles itself from a source file.
    Driver("hibernate", "java", "bin/HibernateTest.class",
           [["mvn", "-q", "-B", "dependency:copy-dependencies", "-DoutputDirectory=lib"],
            ["javac", "-cp", "lib/*", "-d", "bin", "HibernateTest.java"]],
           ["java", "-cp", "bin:lib/*", "HibernateTest"]),
    Driver("node-postgres", "node", "node_modules", [["npm", "ci", "--silent"]], ["node", "test.js"]),
    Driver("tokio-postgres", "cargo", "target/debug/hawser-driver-tokio-postgres", [["cargo", "build", "--locked", "--quiet"]],
           ["target/debug/hawser-driver-tokio-postgres"], {"CARGO_TARGET_DIR": "target"}),
]


def install(driver):
    """Raises RuntimeError with what the package manager said."""
    environment = {**os.environ, **driver.environment}
    for command in driver.install:
        if shutil.which(command[0]) is None:
            raise RuntimeError(f"{command[0]} is not installed")
        for pause in INSTALL_PAUSES:
            time.sleep(pause)
            done = subprocess.run(command, cwd=driver.directory, env=environment, capture_output=True, text=True, timeout=INSTALL_SECONDS)
            if not done.returncode:
                break
        else:
            raise RuntimeError(f"{' '.join(command[:3])}: {(done.stderr or done.stdout)[-500:]}")


def run(drivers, cluster, directory, direct, fetch, report):
    """Each driver against the pooler (transaction mode, fewer backends than connections) or, direct, the server."""
    ready = []
    for driver in drivers:
        if fetch and shutil.which(driver.needs):
            try:
                install(driver)
            except (RuntimeError, subprocess.TimeoutExpired) as error:
                report.fail(f"driver.{driver.name}", f"cannot be installed: {error}")
                continue
        if reason := driver.missing():
            report.skip(f"driver.{driver.name}", reason)
        else:
            ready.append(driver)
    for driver in ready:
        before = report.mark()
        _try(driver, f"{directory}/pooler-{driver.name}", cluster, direct, report)
        if 0 < len(names := report.failures_since(before)) <= AGAIN_MAX:
            print(f"\nonce more, {driver.name}: {', '.join(names)}")
            report.go_back_to(before)
            _try(driver, f"{directory}/pooler-{driver.name}-again", cluster, direct, report)
            again = report.failures_since(before)
            for name in names:
                if name not in again:
                    report.is_flaky(name)


def _try(driver, directory, cluster, direct, report):
    pooler = None if direct else Pooler(directory, cluster, {"pool_size": 5})
    try:
        target = cluster.target if direct else pooler.start().target
        _run(driver, target, cluster, report)
        if pooler:
            pooler.stop()
    except (AssertionError, subprocess.TimeoutExpired) as error:
        report.fail(f"driver.{driver.name}", str(error))
        if pooler and pooler.is_alive():
            pooler.kill()


def _run(driver, target, cluster, report):
    variables = {
        "PGHOST": target.host, "PGPORT": str(target.port), "PGUSER": "app", "PGPASSWORD": target.secrets["app"], "PGDATABASE": "app",
        "TEST_CA": cluster.certificates.path("ca.crt"), "TEST_OTHER_CA": cluster.certificates.path("other-ca.crt"),
    }
    done = subprocess.run(driver.command, cwd=driver.directory, env={**os.environ, **variables}, capture_output=True, text=True,
                          timeout=RUN_SECONDS)
    tests = 0
    for line in done.stdout.splitlines():
        verdict, _, rest = line.partition(" ")
        name, _, why = rest.partition(" ")
        if verdict == "ok":
            report.ok(f"driver.{driver.name}.{name}", 0)
        elif verdict == "FAIL":
            report.fail(f"driver.{driver.name}.{name}", why)
        elif verdict == "skip":
            report.skip(f"driver.{driver.name}.{name}", why)
        else:
            continue
        tests += 1
    if tests == 0 or (done.returncode != 0 and "FAIL" not in done.stdout):
        report.fail(f"driver.{driver.name}", f"ended with {done.returncode} after {tests} tests: {done.stderr[-500:]}")
