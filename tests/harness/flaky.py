"""Tests that fail and pass when run again: named with the first failure's reason, counted neither as passed nor as failed."""

# More of them fail a run. scripts/test.sh holds the sum of its parts to the same number.
FLAKY_MAX = 3


def say(flaky):
    """Prints {name: reason} as scripts/test.sh reads it. Returns the number of failures that this is."""
    if flaky:
        print("\nflaky (failed, and passed when run again):")
        for name, reason in flaky.items():
            print(f"  {name}: {(reason.strip().splitlines() or ['no reason given'])[0][:300]}")
    if len(flaky) > FLAKY_MAX:
        print(f"\nFAILED  {len(flaky)} flaky tests, at most {FLAKY_MAX} are allowed")
        return 1
    return 0
