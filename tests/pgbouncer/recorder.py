"""A plugin of pytest: PgBouncer's suite without pytest-xdist, and each test's outcome as a line of JSON in $SUITE_RECORD."""

import json
import os

import pytest


@pytest.fixture(scope="session")
def worker_id():
    """What pytest-xdist calls a run that is not shared between processes."""
    return "master"


def pytest_runtest_logreport(report):
    if report.when == "call" or report.outcome != "passed":
        verdict = "skipped" if report.skipped else report.outcome
        why = "" if report.passed else str(getattr(report.longrepr, "reprcrash", None) and report.longrepr.reprcrash.message
                                           or report.longrepr)
        with open(os.environ["SUITE_RECORD"], "a") as record:
            record.write(json.dumps({"test": report.nodeid, "verdict": verdict, "seconds": round(report.duration, 2), "why": why[-2000:]})
                         + "\n")
