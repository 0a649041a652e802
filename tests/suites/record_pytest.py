"""A plugin of pytest: one JSON line for each test, in $SUITE_RECORD, as it ends. A line with no verdict says that it began."""

import json
import os

_out = open(os.environ["SUITE_RECORD"], "a", buffering=1)
_found = {}


def _say(**line):
    _out.write(json.dumps(line) + "\n")


def pytest_runtest_logstart(nodeid, location):
    _found[nodeid] = ("passed", "")
    _say(test=nodeid)


def pytest_runtest_logreport(report):
    if report.failed and _found.get(report.nodeid, ("", ""))[0] != "failed":  # not what the cleaning up says of it
        _found[report.nodeid] = ("failed", str(report.longrepr)[-3000:])
    elif report.skipped and _found.get(report.nodeid, ("", ""))[0] == "passed" and not hasattr(report, "wasxfail"):
        _found[report.nodeid] = ("skipped", "")


def pytest_runtest_logfinish(nodeid, location):
    verdict, why = _found.get(nodeid, ("passed", ""))
    _say(test=nodeid, verdict=verdict, why=why)


def pytest_collectreport(report):
    if report.failed:
        _say(test=f"{report.nodeid} (collected)", verdict="failed", why=str(report.longrepr)[-3000:])
