"""Sessions with random state, direct and through Hawser with fewer server connections than sessions: each message is the same.

What is made and compared, and what is put aside: tests/differential. There a seed can be played by hand, and for longer.
"""

import contextlib
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "differential"))

from cases import APPEND, POOLER, POOLER_HBA, STEPS_A_CASE, USERS, Arena, Shrink, explained, features, kept, known, written
from harness import extension
from harness.suite import THOROUGH, Skip, equal, limit, pooler_only
from integration.test_session_extension import library

TAKES_SECONDS = 60
# One of five does for a second version of the server: the kept cases run with both.
ONCE = ("test_random_sessions_2", "test_random_sessions_3", "test_random_sessions_4", "test_random_sessions_5")

STEPS_A_TEST = 1_000 if THOROUGH else 300
SEED_SPACE = 1_000


@contextlib.contextmanager
def arena(env):
    with env.pooler_with(append=APPEND, hba=POOLER_HBA, **POOLER) as target:
        with contextlib.closing(Arena(env.cluster, target.pooler)) as both:
            yield both


def play_seeds(env, first, loads=None):
    """Until STEPS_A_TEST steps are played. A case that fails as a kept one does is said, and does not fail the test. `loads`: a library,
    the servers have the extension; functions hide then, too, what they do."""
    also = ["hidden"] if loads else []
    cases, steps, seed, as_kept, room = kept(), 0, first, {}, 0
    with arena(env) as both, extension.loaded(env.cluster, loads, USERS) if loads else contextlib.nullcontext():
        while steps < STEPS_A_TEST:
            case, found, relieved = both.generate(seed, STEPS_A_CASE, features(also))
            steps += len(case["steps"])
            room += relieved
            if found is not None:
                name = known(found, cases)
                if name is None:
                    smaller = Shrink(both, case, cases).run()
                    again = both.play(smaller)
                    raise AssertionError(f"seed {seed} differs: {explained(found)}\nmade smaller, as a file of tests/differential/cases:\n"
                                         f"{written(smaller)}{explained(again) if again else 'which does not fail each time'}")
                as_kept[name] = as_kept.get(name, 0) + 1
            seed += 1
        if both.pooler:
            pools = both.pooler.show("POOLS")
            mismatches, telling = (sum(int(row[name]) for row in pools) for name in ("settings_mismatches", "sv_exact"))
            equal((mismatches, telling > 0), (0, bool(loads)), f"seeds {first} to {seed - 1}: servers with other settings than they were "
                                                               f"given, and whether any tells")
    known_failures = "".join(f", {count} as {name}" for name, count in sorted(as_kept.items()))
    print(f"    seeds {first} to {seed - 1}: {steps} steps, {room} of them to make room{known_failures}")


@limit(300)
def test_random_sessions_1(env):
    play_seeds(env, 1)


@limit(300)
def test_random_sessions_2(env):
    play_seeds(env, 1 + SEED_SPACE)


@limit(300)
def test_random_sessions_3(env):
    play_seeds(env, 1 + 2 * SEED_SPACE)


@limit(300)
def test_random_sessions_4(env):
    play_seeds(env, 1 + 3 * SEED_SPACE)


@limit(300)
def test_random_sessions_5(env):
    play_seeds(env, 1 + 4 * SEED_SPACE)


@pooler_only
@limit(300)
def test_random_sessions_on_servers_with_the_extension(env):
    """Functions hide what they do, too, and what the servers report of their sessions is compared with the books."""
    play_seeds(env, 1 + 5 * SEED_SPACE, library(env))


def kept_case(name, case):
    """A case once found. One with a reason why it fails still is tried each time, and it is said when it does no more."""
    def test(env):
        with arena(env) as both:
            found = both.play(case)
        if found and case.get("not_yet") and env.pooler:
            raise Skip(f"not yet: {case['not_yet']}")
        assert found is None, explained(found)
        if case.get("not_yet") and env.pooler:
            print(f"    {name} is the same now: take `not_yet` and `sign` out of tests/differential/cases/{name}.json")

    test.__name__ = f"test_kept_{name.replace('-', '_')}"
    return test


for _name, _case in kept():
    _test = kept_case(_name, _case)
    globals()[_test.__name__] = _test
