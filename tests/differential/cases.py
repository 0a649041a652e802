"""Cases: made from a seed, kept in cases/*.json, played, and made smaller where they fail.

# Model       Arena: one cluster with two databases of equal contents, one reached directly, one through Hawser
# Invariants  a case begins with new server connections and the same contents: it depends on no case before it
"""

import contextlib
import itertools
import json
import pathlib
import random
import re
import sys
import time

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))
sys.path.insert(0, str(HERE))

from generator import FEATURES, RESET, SETUP, Changing, Generator
from play import ENDS, Capacity, Different, Match, Side
from harness.postgres import HBA
from harness.wire import Target

DIRECT, THROUGH = "differ_direct", "differ_through"
USERS = ("differ", "differ_super")
STEPS_A_CASE = 100
POOL_SIZE = 2
SETTLE_SECONDS = 2.0
# One seed in so many changes the schema.
CHANGING_SEEDS = 4
SHRINK_TRIALS = 400
SHRINK_SECONDS = 120.0

# What the generator does not make, with the reason. What Hawser is to do and does not is also a case of cases/.
LIMITS = {
    "setting_sources": "start values are set on server connections: pg_settings.source is `session` there where it is `client` directly",
    "hidden": "what functions do inside is seen with the extension only: docs/sessions/functions.md",
}

# For pooler_with().
POOLER = {"pool_size": POOL_SIZE, "idle_transaction_reserve": 0, "max_pinned": 0, "query_wait_timeout": "8s"}
APPEND = "".join(f'\n[[user]]\nname = "{user}"\npassword = ""\n' for user in USERS)
POOLER_HBA = f"host all {','.join(USERS)} all trust\n{HBA}"


class Arena:
    def __init__(self, cluster, pooler, pool_size=POOL_SIZE):
        """`pooler` is the harness's; None plays both sides directly, which finds what is wrong with the test itself."""
        self.cluster, self.pooler, self.pool_size = cluster, pooler, pool_size
        self.direct = Target(cluster.port, str(cluster.socket_dir), {}, host=str(cluster.socket_dir))
        self.through = Target(pooler.port, str(pooler.directory), {user: "" for user in USERS}) if pooler else self.direct
        self.console = pooler.admin() if pooler else None
        self.watch = cluster.superuser("postgres")
        self.watch.execute("create role differ login; create role differ_super superuser login; create role differ_other; "
                           "grant differ_other, helper_role to differ")
        for database in (DIRECT, THROUGH):
            self.watch.execute(f"create database {database}")
            with cluster.superuser(database) as session:
                session.execute(SETUP)

    def close(self):
        if self.console:
            self.console.close()
        self._end_backends()
        for database in (DIRECT, THROUGH):
            self.watch.execute(f"drop database {database} with (force)")
        self.watch.execute("drop role differ, differ_super, differ_other")
        self.watch.close()

    def _end_backends(self):
        theirs = f"datname in ('{DIRECT}', '{THROUGH}')"
        self.watch.execute(f"select pg_terminate_backend(pid) from pg_stat_activity where {theirs}")
        end = time.monotonic() + SETTLE_SECONDS
        while self.watch.value(f"select count(*) from pg_stat_activity where {theirs}") != "0" and time.monotonic() < end:
            time.sleep(0.005)

    def _settle(self, pid):
        """The direct session that had this process id is gone, and as many advisory locks are held on either side."""
        gone = f"not exists (select from pg_stat_activity where pid = {pid or 0})"
        question = (f"select {gone} and count(*) filter (where datname = '{DIRECT}') = count(*) filter (where datname = '{THROUGH}') "
                    "from pg_locks l join pg_database d on d.oid = l.database where locktype = 'advisory'")
        end = time.monotonic() + SETTLE_SECONDS
        while self.watch.value(question) != "t" and time.monotonic() < end:
            time.sleep(0.005)

    @contextlib.contextmanager
    def match(self, user):
        self._end_backends()
        for database in (DIRECT, THROUGH):
            with self.cluster.superuser(database) as session:
                session.execute(RESET)
        through = Side(self.through, user, THROUGH)
        capacity = Capacity(self.console, through, self.pool_size) if self.console else None
        match = Match(Side(self.direct, user, DIRECT), through, capacity, self._settle)
        try:
            yield match
        finally:
            match.end()

    def play(self, case):
        """The Different of a case, or None."""
        with self.match(case["user"]) as match:
            try:
                match.begin(case["sessions"])
                for number, kind, payload in case["steps"]:
                    match.step(number, kind, payload)
            except Different as found:
                return found
        return None

    def generate(self, seed, steps, features):
        """Plays a new case: (the case as played, its Different or None, the steps that made room)."""
        rng = random.Random(seed)
        user = rng.choice((USERS[0], USERS[0], USERS[0], USERS[1]))
        changes = seed % CHANGING_SEEDS == 0
        session = Changing if changes else Generator
        sessions = [session(rng, features, user == USERS[1]) for _ in range(rng.choice((3, 4, 5)))]
        case = {"user": user, "sessions": [session.start() for session in sessions]}
        found = None
        with self.match(user) as match:
            try:
                match.begin(case["sessions"])
                while len(match.record) < steps:
                    number = rng.randrange(len(sessions))
                    # A change waits for whoever uses the table in a transaction.
                    if changes and rng.random() < 0.3 and all(match.direct.status(n) == "I" for n in range(len(sessions))):
                        match.step(number, "query", sessions[number].change())
                        continue
                    match.step(number, *sessions[number].next_step(match.direct.status(number)))
            except Different as different:
                found = different
            return {**case, "steps": match.record}, found, match.relieved


def kept():
    """[(name, case)] of cases/. A case with `not_yet` fails for the reason that it gives."""
    return [(path.stem, json.loads(path.read_text())) for path in sorted((HERE / "cases").glob("*.json"))]


def known(found, cases):
    """The name of the kept case that fails like this: whose `sign`, regular expressions for the step and for the two texts
    where the answers part, fits."""
    texts = (json.dumps(found.step), *parted(found))
    for name, case in cases:
        if "not_yet" in case and all(re.search(sign, text) for sign, text in zip(case["sign"], texts)):
            return name
    return None


def parted(found):
    """The first texts of the two answers that differ."""
    for direct, through in itertools.zip_longest(found.direct, found.through, fillvalue="nothing"):
        if direct != through:
            return direct, through
    raise AssertionError("equal answers")


class Shrink:
    """ddmin over a failing case: fewer steps, fewer sessions, shorter texts and pipelines. It fails all the while, and not as
    one of `cases` does."""

    def __init__(self, arena, case, cases):
        self.arena, self.case, self.cases = arena, case, cases
        self.trials = SHRINK_TRIALS
        self.end = time.monotonic() + SHRINK_SECONDS

    def fails(self, case):
        self.trials -= 1
        if self.trials <= 0 or time.monotonic() > self.end:
            return False
        found = self.arena.play(case)
        return found is not None and known(found, self.cases) is None

    def keep(self, **change):
        candidate = {**self.case, **change}
        if not self.fails(candidate):
            return False
        self.case = candidate
        return True

    def steps(self):
        size = max(1, len(self.case["steps"]) // 2)
        while True:
            at = 0
            while at < len(self.case["steps"]):
                rest = self.case["steps"][:at] + self.case["steps"][at + size:]
                at += 0 if rest and self.keep(steps=rest) else size
            if size == 1:
                return
            size //= 2

    def sessions(self):
        for number in reversed(range(len(self.case["sessions"]))):
            if len(self.case["sessions"]) > 1 and all(step[0] != number for step in self.case["steps"]):
                self.keep(sessions=self.case["sessions"][:number] + self.case["sessions"][number + 1:],
                          steps=[[at - (at > number), kind, payload] for at, kind, payload in self.case["steps"]])
            elif self.case["sessions"][number]:
                self.keep(sessions=[{} if at == number else start for at, start in enumerate(self.case["sessions"])])

    def insides(self):
        for at, (number, kind, payload) in enumerate(self.case["steps"]):
            if kind in ENDS:
                continue
            parts = payload.split("; ") if kind == "query" else payload
            for part in reversed(range(len(parts))):
                fewer = parts[:part] + parts[part + 1:]
                if not fewer or kind == "pipeline" and fewer[-1] != ["sync"]:
                    continue
                changed = [number, kind, "; ".join(fewer) if kind == "query" else fewer]
                if self.keep(steps=self.case["steps"][:at] + [changed] + self.case["steps"][at + 1:]):
                    parts = fewer

    def run(self):
        self.steps()
        self.insides()
        self.steps()
        self.sessions()
        return self.case


def features(extra=()):
    return [name for name in FEATURES if name not in LIMITS or name in extra]


def written(case):
    """As a file of cases/: a line for each step."""
    steps = ",\n".join("    " + json.dumps(step) for step in case["steps"])
    head = {name: value for name, value in case.items() if name != "steps"}
    return json.dumps(head, indent=2)[:-2] + ',\n  "steps": [\n' + steps + "\n  ]\n}\n"


def explained(found):
    """What differs, with a little of what went before it."""
    at = next((at for at, (one, other) in enumerate(zip(found.direct, found.through)) if one != other),
              min(len(found.direct), len(found.through)))
    first = max(0, at - 3)
    lines = [f"step {found.at}: {json.dumps(found.step)}"]
    for name, answer in (("direct ", found.direct), ("through", found.through)):
        lines += [f"  {name} {text[:400]}" for text in answer[first:at + 3]] or [f"  {name} nothing"]
    return "\n".join(lines)
