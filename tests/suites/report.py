"""What is lost, what of it is listed, and what the list says too much.

# Model       lost = failed through Hawser, failed there again, and did not fail directly; lost and not listed fails the run
# Invariants  a listed test is neither run again nor directly in the short form: it counts as lost where it fails.
#             A test that failed twice and of which the direct run says nothing is lost, too: nothing is lost in silence.
#             A listed test that is lost no more is reported, where it ran
"""

from harness import flaky

# Reasons that begin so do not ask for a failure in each run.
UNSTEADY = "not in each run"


def listed(text):
    """{(suite, how): {test or pattern: reason}} of the tables below the headings `## SUITE, HOW`."""
    found, table = {}, None
    for line in text.splitlines():
        if line.startswith("## "):
            suite, _, how = line[3:].partition(", ")
            table = found.setdefault((suite, how), {})
        elif line.startswith("| `") and table is not None:
            test, _, reason = line[3:].partition("` |")
            table[test] = reason.strip(" |")
    return found


def names(pattern, test):
    """A line of the list names a test, or with `*` at its end several."""
    return test.startswith(pattern[:-1]) if pattern.endswith("*") else pattern == test


def failed(outcome):
    return outcome is not None and outcome.verdict == "failed"


class Report:
    def __init__(self, reasons):
        self.reasons = reasons
        self.passed = self.failed = self.skipped = 0
        self.unexpected, self.summary, self.flaky = [], [], {}

    def is_listed(self, suite, how, test):
        return any(names(pattern, test) for pattern in self.reasons.get((suite, how), {}))

    def fault(self, text):
        self.failed += 1
        self.unexpected.append(text)
        print(f"FAILED  {text}", flush=True)

    def skip(self, suite, why):
        self.skipped += 1
        self.summary.append(f"{suite:<20} skipped: {why}")
        print(f"==> {suite} skipped: {why}", flush=True)

    def compare(self, suite, how, through, again, direct):
        """`through` is the first run's {test: Outcome}, `again` of what failed in it, `direct` of what failed again."""
        reasons = self.reasons.get((suite, how), {})
        broken = sorted(test for test, outcome in through.items() if failed(outcome))
        second = [test for test in broken if not failed(again.get(test, through[test]))]
        both = [test for test in broken if test not in second and failed(direct.get(test))]
        lost = [test for test in broken if test not in second and test not in both]
        seen = set()
        for test in lost:
            if pattern := next((pattern for pattern in reasons if names(pattern, test)), None):
                seen.add(pattern)
                self.skipped += 1
                print(f"listed  {suite}, {how}: {test}: {reasons[pattern]}")
            else:
                said = (again.get(test, through[test]).why.strip().splitlines() or [""])[-1]
                self.fault(f"{suite}, {how}: {test}: {said[:300]}" + ("" if test in direct else " (the direct run says nothing of it)"))
        for pattern in reasons:
            if pattern not in seen and not reasons[pattern].startswith(UNSTEADY) and any(names(pattern, test) for test in through):
                print(f"{suite}, {how}: {pattern} is listed, and lost no more: take it off the list")
        passed = sum(outcome.verdict == "passed" for outcome in through.values())
        self.passed += passed
        self.flaky |= {f"{suite}/{how}/{test.replace(' ', '/')}": through[test].why for test in second}
        self.summary.append(f"{suite:<20} {how:<21} {passed:>6} pass, {len(lost):>4} lost; {len(both)} fail directly, too; "
                            f"{len(second)} flaky")

    def end(self, kept):
        print("\n" + "\n".join(self.summary))
        self.failed += flaky.say(self.flaky)
        if self.unexpected:
            print("\nfailed:\n  " + "\n  ".join(self.unexpected))
        print(f"\nlogs: {kept}\n\n{self.passed} passed, {self.failed} failed, {self.skipped} skipped")
        return 1 if self.failed else 0
