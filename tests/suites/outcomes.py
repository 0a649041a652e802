"""What a suite's program said of each of its tests, as {test: Outcome}.

# Invariants  a test that began and did not end has failed; one that the program never came to is not in the result
"""

import json
import re
import xml.etree.ElementTree
from dataclasses import dataclass


@dataclass
class Outcome:
    """`verdict` is passed, failed or skipped."""

    verdict: str
    why: str = ""


DID_NOT_END = "began, and did not end"


def from_record(path):
    """The lines of record_pytest.py and record_django.py."""
    found = {}
    for line in path.read_text(errors="replace").splitlines() if path.exists() else ():
        said = json.loads(line)
        if "verdict" not in said:
            found.setdefault(said["test"], Outcome("failed", DID_NOT_END))
        elif found.get(said["test"], Outcome("")).verdict != "failed" or found[said["test"]].why == DID_NOT_END:
            found[said["test"]] = Outcome(said["verdict"], said["why"])
    return found


def from_go(path):
    """`go test -json`. A test with subtests counts by them: its own failure says nothing more, but where it has none."""
    found, output = {}, {}
    verdicts = {"pass": "passed", "fail": "failed", "skip": "skipped"}
    for line in path.read_text(errors="replace").splitlines() if path.exists() else ():
        try:
            said = json.loads(line)
        except ValueError:
            continue
        package = said.get("Package", said.get("ImportPath", ""))
        name = f"{package} {said['Test']}" if "Test" in said else f"{package} (package)"
        if said["Action"] == "run":
            found[name] = Outcome("failed", DID_NOT_END)
        elif said["Action"] == "output" and not said["Output"].startswith("=== "):
            output[name] = (output.get(name, "") + said["Output"])[-3000:]
        elif said["Action"] in verdicts and ("Test" in said or said["Action"] == "fail"):
            found[name] = Outcome(verdicts[said["Action"]], output.get(name, ""))
    broken = {name.split(" ")[0] for name, outcome in found.items() if outcome.verdict == "failed" and not name.endswith(" (package)")}
    parents = {name.rsplit("/", 1)[0] for name, outcome in found.items() if outcome.verdict == "failed" and "/" in name.partition(" ")[2]}
    # A package that failed with one of its tests says nothing more either.
    return {name: outcome for name, outcome in found.items()
            if name not in parents and not (name.endswith(" (package)") and name.split(" ")[0] in broken)}


def died_in_go(path):
    """{package: tests} of those whose last run ended within tests, by a panic or for its time: all tests that it was ended in so far."""
    within, died, last = {}, {}, {}
    for line in path.read_text(errors="replace").splitlines() if path.exists() else ():
        try:
            said = json.loads(line)
        except ValueError:
            continue
        package, test = said.get("Package", ""), said.get("Test", "").split("/")[0]
        if said["Action"] == "start":
            within[package], last[package] = set(), False
        elif test and said["Action"] == "run":
            within.setdefault(package, set()).add(test)
        elif "panic: test timed out" in said.get("Output", "") or (
                said["Action"] == "output" and said["Output"].startswith("panic: ") and "[recovered" in said["Output"]):
            last[package] = True
            died.setdefault(package, set()).update({test} - {""})
        elif said["Action"] in ("pass", "fail", "skip") and test and "/" not in said["Test"]:
            within.get(package, set()).discard(test)
    return {package: died[package] or within[package] for package in died if last[package]}


def from_libtest(path):
    """Rust's own harness: `test NAME ... ok`, and what failed tests printed."""
    text = path.read_text(errors="replace") if path.exists() else ""
    verdicts = {"ok": "passed", "FAILED": "failed", "ignored": "skipped"}
    printed = dict(re.findall(r"^---- (\S+) stdout ----\n(.*?)(?=^---- |^failures:|\Z)", text, re.M | re.S))
    return {name: Outcome(verdicts[verdict], printed.get(name, "")[-3000:])
            for name, verdict in re.findall(r"^test (\S+)(?: - should panic)? \.\.\. (ok|FAILED|ignored)", text, re.M)}


def from_mocha(path, file):
    """The JSON that mocha writes of a file at its end, and only then."""
    if not path.exists():
        return {}
    said = json.loads(path.read_text())
    pending = {test["fullTitle"] for test in said["pending"]}
    found = {}
    for test in sorted(said["tests"], key=lambda test: bool(test["err"])):  # of two with one name, one that failed counts
        verdict = "failed" if test["err"] else "skipped" if test["fullTitle"] in pending else "passed"
        found[f"{file}: {test['fullTitle']}"] = Outcome(verdict, test["err"].get("stack", test["err"].get("message", ""))[-3000:])
    return found


def from_surefire(directory):
    """JUnit's XML, a file for each class."""
    found = {}
    for path in sorted(directory.glob("TEST-*.xml")):
        for case in xml.etree.ElementTree.parse(path).iter("testcase"):
            name = f"{case.get('classname')}.{case.get('name')}"
            bad = next((child for child in case if child.tag in ("failure", "error")), None)
            if bad is not None:
                found[name] = Outcome("failed", (bad.text or bad.get("message") or "")[-3000:])
            elif found.get(name, Outcome("")).verdict != "failed":
                found[name] = Outcome("skipped" if case.find("skipped") is not None else "passed")
    return found
