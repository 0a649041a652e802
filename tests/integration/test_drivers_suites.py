"""How tests/suites judges: what is lost, what is listed, what the list says too much, and what a program's output says."""

import contextlib
import io
import json
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "suites"))

from outcomes import Outcome, died_in_go, from_go, from_libtest, from_record, from_surefire
from report import Report, listed
from harness import flaky
from harness.suite import equal, pooler_only

SAME_FOR_ALL_SERVERS = True

PASSED, FAILED = Outcome("passed"), Outcome("failed", "reason\nlast line")


def judged(through, again, direct, text=""):
    """The report and what it printed."""
    report, said = Report(listed(text)), io.StringIO()
    with contextlib.redirect_stdout(said):
        report.compare("suite", "transaction", through, again, direct)
    return report, said.getvalue()


@pooler_only
def test_a_suites_test_is_lost_that_fails_twice_and_passes_directly(_env):
    report, said = judged({"a": PASSED, "b": FAILED}, {"b": FAILED}, {"b": PASSED})
    assert (report.passed, report.failed, report.skipped) == (1, 1, 0)
    assert "suite, transaction: b: last line" in said


@pooler_only
def test_a_suites_test_of_which_the_direct_run_says_nothing_is_lost_too(_env):
    report, said = judged({"b": FAILED}, {}, {})
    assert report.failed == 1 and "the direct run says nothing of it" in said


@pooler_only
def test_a_suites_test_that_fails_directly_or_passes_the_second_time_is_not_lost(_env):
    report, _ = judged({"a": FAILED, "b": FAILED}, {"a": FAILED, "b": PASSED}, {"a": FAILED})
    assert (report.passed, report.failed, report.flaky) == (0, 0, {"suite/transaction/b": FAILED.why})


@pooler_only
def test_three_flaky_tests_are_named_and_more_fail_the_run(_env):
    for count, fails in ((0, 0), (3, 0), (4, 1)):
        said = io.StringIO()
        with contextlib.redirect_stdout(said):
            equal(flaky.say({f"t{number}": "out of time\n    test.py:1" for number in range(count)}), fails)
        assert said.getvalue().count(": out of time\n") == count, said.getvalue()


@pooler_only
def test_a_listed_test_is_skipped_and_one_that_is_lost_no_more_is_reported(_env):
    text = ("## suite, transaction\n\n| test | reason |\n|---|---|\n| `b[*` | because |\n| `c` | old |\n"
            "| `d` | not in each run: seldom |\n| `e` | of the long form |\n")
    report, said = judged({"b[1]": FAILED, "b[2]": FAILED, "c": PASSED, "d": PASSED}, {}, {"b[1]": PASSED, "b[2]": PASSED}, text)
    assert (report.failed, report.skipped) == (0, 2)
    assert "b[1]: because" in said
    assert [line for line in said.splitlines()
            if "take it off" in line] == ["suite, transaction: c is listed, and lost no more: take it off the list"]


@pooler_only
def test_outputs_of_suites_are_read(env):
    place = pathlib.Path(env.directory) / "outputs"
    place.mkdir()
    (place / "record").write_text("".join(json.dumps(line) + "\n" for line in (
        {"test": "a"}, {"test": "a", "verdict": "passed", "why": ""}, {"test": "b"}, {"test": "c"},
        {"test": "c", "verdict": "failed", "why": "no"})))
    assert {name: found.verdict for name, found in from_record(place / "record").items()} == {"a": "passed", "b": "failed", "c": "failed"}
    (place / "go").write_text("".join(json.dumps(line) + "\n" for line in (
        {"Action": "run", "Package": "p", "Test": "T"}, {"Action": "run", "Package": "p", "Test": "T/x"},
        {"Action": "output", "Package": "p", "Test": "T/x", "Output": "no"},
        {"Action": "fail", "Package": "p", "Test": "T/x"}, {"Action": "fail", "Package": "p", "Test": "T"},
        {"Action": "fail", "Package": "p"},
        {"Action": "run", "Package": "p", "Test": "U"}, {"Action": "pass", "Package": "p", "Test": "U"},
        {"Action": "fail", "Package": "not built"})) + "not json\n")
    assert {name: found.verdict for name, found in from_go(place / "go").items()} == {"p T/x": "failed", "p U": "passed",
                                                                                      "not built (package)": "failed"}
    died = [{"Action": "start", "Package": "p"}, {"Action": "run", "Package": "p", "Test": "T"},
            {"Action": "output", "Package": "p", "Test": "T", "Output": "panic: x [recovered]"},
            {"Action": "fail", "Package": "p", "Test": "T"}, {"Action": "fail", "Package": "p"}]
    (place / "go").write_text("".join(json.dumps(line) + "\n" for line in died))
    assert died_in_go(place / "go") == {"p": {"T"}}
    (place / "go").write_text("".join(json.dumps(line) + "\n" for line in [*died, died[0], {"Action": "pass", "Package": "p"}]))
    assert died_in_go(place / "go") == {}, "it has had another go"
    (place / "libtest").write_text("test a ... ok\ntest b::c ... FAILED\ntest d ... ignored\n\n---- b::c stdout ----\nwhy\n\nfailures:\n")
    found = from_libtest(place / "libtest")
    assert {name: found[name].verdict for name in found} == {"a": "passed", "b::c": "failed",
                                                             "d": "skipped"} and found["b::c"].why.strip() == "why"
    (place / "TEST-x.xml").write_text('<testsuite><testcase classname="C" name="a"/><testcase classname="C" '
                                      'name="b"><failure>no</failure></testcase>'
                                      '<testcase classname="C" name="c"><skipped/></testcase></testsuite>')
    assert {name: found.verdict for name, found in from_surefire(place).items()} == {"C.a": "passed", "C.b": "failed", "C.c": "skipped"}
