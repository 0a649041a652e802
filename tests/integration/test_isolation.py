"""Forty sessions with the same names and a secret each on four server connections: none hears another's, and each hears its own.

What they do, and what is compared: tests/isolation. There a seed can be played by hand, and for longer.
"""

import contextlib
import pathlib
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "isolation"))

import crowd
from harness import extension
from harness.suite import THOROUGH, equal, limit, pooler_only
from integration.test_session_extension import library

SAME_FOR_ALL_SERVERS = True
TAKES_SECONDS = 80

SECONDS = 60 if THOROUGH else 20
SHARED_SECONDS = 40 if THOROUGH else 20
# Each as often as there is one to be counted on: of less it is not known whether it works.
OPERATIONS_MIN = 500


def play(env, tells, seconds=SECONDS, **settings):
    """`tells`: the servers say what their sessions hold."""
    seed = int(time.time())
    crowd.prepare(env.cluster)
    with contextlib.ExitStack() as stack:
        stack.callback(crowd.clear, env.cluster)
        target = stack.enter_context(env.pooler_with(**crowd.SETTINGS, **settings))
        found = crowd.run(target, seed, seconds)
        if target.pooler:
            mismatches, telling = crowd.mismatches(target.pooler)
            equal((mismatches, telling > 0), (0, tells), f"seed {seed}: server connections with other settings than they were given, and "
                                                         f"whether any tells")
    print(f"    seed {seed}: {sum(found.done.values())} operations")
    assert not found.failures, f"seed {seed}: {found}"
    assert sum(found.done.values()) > OPERATIONS_MIN and len(found.done) == len(crowd.OPERATIONS), f"seed {seed}: {found.done}"


@limit(240)
def test_sessions_with_the_same_names_are_apart(env):
    play(env, tells=False)


@limit(240)
def test_sessions_with_the_same_names_are_apart_on_servers_with_the_extension(env):
    with extension.loaded(env.cluster, library(env), crowd.USERS):
        play(env, tells=True)


@pooler_only
@limit(240)
def test_sessions_with_the_same_names_are_apart_where_users_share_server_connections(env):
    with crowd.shared(env.cluster, env.directory, library(env)) as settings:
        play(env, True, SHARED_SECONDS, **settings)
