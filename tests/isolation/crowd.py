"""Many sessions at once, under the same names: the isolation test.

# Model       PROCESSES processes of SESSIONS_A_PROCESS threads; each session draws operations until the time is over,
#             and begins anew at once, under the same names, when it has ended
#             Deaths: server processes are ended at random besides; a session that is told so begins anew, and all others go on
# Limits      a seed draws the same operations again, not the same order among the sessions
"""

import collections
import contextlib
import multiprocessing
import os
import random
import threading
import time
import traceback

from operations import OPERATIONS, WITHOUT_DEATHS, give_up_what_pins
from session import ROLES, ROLES_SETUP, SETUP, Gone, Lost, Session, WatchedTarget, Wrong
from harness import extension

# For the pooler. Sessions wait for what others keep; none is sent away for it.
SETTINGS = {"pool_size": 4, "max_pinned": 0, "query_wait_timeout": "35s"}
USERS = list(ROLES)
POOLER_ROLE = "isolated_pooler"  # owns the server connections that users share
INSIDE_SIZE = 2
PROCESSES = 4
SESSIONS_A_PROCESS = 10
# After the time is over, until what is under way has ended.
GRACE_SECONDS = 60.0
FAILURES_SHOWN = 10


def prepare(cluster):
    """Users, tables and functions of the test, in both databases."""
    with cluster.superuser("postgres") as session:
        session.execute(ROLES_SETUP)
    for database in ("app", "other"):
        with cluster.superuser(database) as session:
            session.execute(SETUP)


def clear(cluster):
    """What `prepare` has made, roles too: other tests look at the functions of these databases."""
    for database in ("app", "other"):
        with cluster.superuser(database) as session:
            session.execute("drop schema if exists isolated cascade; drop table if exists public.whereabouts")
    with cluster.superuser("postgres") as session:
        session.execute("drop role if exists isolated_one, isolated_two")


@contextlib.contextmanager
def shared(cluster, directory, library):
    """Users share server connections meanwhile: the extension is preloaded. The value is the settings of the pooler for that."""
    text = "what the crowd's pooler and its server know"
    paths = [extension.secret_file(directory, f"{of}-isolation.secret", text, owner)
             for of, owner in (("server", "postgres"), ("pooler", None))]
    with extension.preloaded(cluster, library, paths[0], POOLER_ROLE):
        with cluster.superuser("postgres") as owner:
            owner.execute(f"create role {POOLER_ROLE} login")
        try:
            for database in ("app", "other"):
                with cluster.superuser(database) as owner:
                    owner.execute(extension.functions(library))
            yield {"user": POOLER_ROLE, "hand_over_secret_file": str(paths[1])}
        finally:
            for database in ("app", "other"):
                with cluster.superuser(database) as owner:
                    owner.execute("drop schema hawser cascade")
            with cluster.superuser("postgres") as owner:
                owner.execute(f"drop role {POOLER_ROLE}")


@contextlib.contextmanager
def inside(cluster, directory, library, control_socket):
    """The server serves clients itself meanwhile. The value is the settings of the pooler for that, and what its file ends with."""
    secret = extension.secret_file(directory, "server-isolation.secret", "x" * 32, "postgres")
    more = f"hawser.inside = on\nhawser.control_sockets = '{control_socket}'\nsession_preload_libraries = 'plpgsql'\n"
    with extension.preloaded(cluster, library, secret, POOLER_ROLE, more):
        for database in ("app", "other"):
            with cluster.superuser(database) as owner:
                owner.execute(extension.functions(library))
        try:
            yield {"inside_size": INSIDE_SIZE}, 'user = "postgres"\n' if os.geteuid() == 0 else ""
        finally:
            for database in ("app", "other"):
                with cluster.superuser(database) as owner:
                    owner.execute("drop schema hawser cascade")


def mismatches(pooler):
    """Server connections whose servers told of other settings than they were given, and how many servers tell."""
    rows = pooler.show("POOLS")
    return sum(int(row["settings_mismatches"]) for row in rows), sum(int(row["sv_exact"]) for row in rows)


class Crowd:
    """What came of it: `done`, operations by name, and `failures`, texts."""

    def __init__(self, done, failures):
        self.done, self.failures = done, failures

    def __str__(self):
        shown = "\n".join(self.failures[:FAILURES_SHOWN]).strip()  # (a summary of failures shows the first line)
        lost = f", {self.done['lost']} ended with their server process" if self.done["lost"] else ""
        return f"{sum(self.done.values())} operations{lost}, {len(self.failures)} failures{': ' if shown else ''}{shown}"


def play(session, end, done, failures):
    drawn = {work: weight for work, weight in OPERATIONS.items() if not (session.deaths and work in WITHOUT_DEATHS)}
    works, weights = list(drawn), list(drawn.values())
    while time.monotonic() < end:
        work = session.rng.choices(works, weights)[0]
        try:
            if session.connection is None:
                session.begin()
            work(session)
            done[work.__name__] += 1
            if session.connection and session.rng.random() < 0.3:
                give_up_what_pins(session)
        except Exception as error:  # whatever it is, it is not as it must be
            if isinstance(error, Lost) or (session.deaths and isinstance(error, Gone)):
                done["lost"] += 1  # (who writes when it ends may not see why: the kernel drops what was to be read)
                session.end(resets=False)
                continue
            kind = "" if isinstance(error, (Wrong, Gone)) else "".join(traceback.format_tb(error.__traceback__)[-2:])
            history = "".join(f"\n      {line}" for line in session.history[-12:])
            failures.append(f"  session {session.number} as {session.user}, {work.__name__}: {type(error).__name__}: "
                            f"{error}{kind}{history}")
            session.end(resets=False)
    session.end(resets=False)


def process(number, seed, seconds, address, deaths, results):
    target = WatchedTarget(*address)
    done, failures, locks = collections.Counter(), [], {}
    end = time.monotonic() + seconds
    first = number * SESSIONS_A_PROCESS
    sessions = [Session(n, random.Random(seed * 1000 + n), target, locks, deaths) for n in range(first, first + SESSIONS_A_PROCESS)]
    threads = [threading.Thread(target=play, args=(session, end, done, failures), daemon=True) for session in sessions]
    for thread in threads:
        thread.start()
    for session, thread in zip(sessions, threads):
        thread.join(max(0.1, end + GRACE_SECONDS - time.monotonic()))
        if thread.is_alive():
            failures.append(f"  session {session.number} hangs: {session.history[-3:]}")
    results.put((done, failures))


def end_servers(cluster, rng, every, over):
    """Ends a server process at random about each `every` seconds, of those that clients could have."""
    sql = ("select pg_terminate_backend(pid) from pg_stat_activity where backend_type = 'client backend' and datname in ('app', 'other') "
           "and pid <> pg_backend_pid() order by random() limit 1")
    with cluster.superuser("postgres") as session:
        while not over.wait(rng.expovariate(1 / every)):
            session.execute(sql)


def run(target, seed, seconds, cluster=None, deaths=None):
    """Crowd of a run against a Target. `deaths`: seconds between two deaths of server processes of `cluster`."""
    context = multiprocessing.get_context("fork")
    results = context.Queue()
    address = (target.port, target.socket_dir, target.secrets)
    processes = [context.Process(target=process, args=(number, seed, seconds, address, bool(deaths), results), daemon=True)
                 for number in range(PROCESSES)]
    for one in processes:
        one.start()
    done, failures = collections.Counter(), []
    over = threading.Event()
    if deaths:
        threading.Thread(target=end_servers, args=(cluster, random.Random(seed), deaths, over), daemon=True).start()
    try:
        for _ in processes:
            its_done, its_failures = results.get(timeout=seconds + GRACE_SECONDS + 30)
            done.update(its_done)
            failures += its_failures
    finally:
        over.set()
        for one in processes:
            one.kill()
            one.join()
    return Crowd(done, failures)
