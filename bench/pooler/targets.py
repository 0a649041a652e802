"""What is required of Hawser, and the arithmetic that says whether it is met.

A ratio is taken within a round, between runs that are minutes apart at most, and the median of the
rounds' ratios counts: the machine's drift from round to round drops out.
"""

from collections.abc import Callable
from dataclasses import dataclass
from statistics import median

OPEN_TRANSACTIONS = 10
# Hawser on a server of its own, which serves the clients itself.
INSIDE = "hawser_inside"


@dataclass(frozen=True)
class Target:
    """One required figure.

    figure      gives it from one round: a function of (figures of a contestant in this round)
    required    and aim: the bounds; `at_least` says on which side of them is good
    """

    row: str
    what: str
    figure: Callable
    required: float
    aim: float
    at_least: bool
    form: str = "{:.2f} x"


class Missing(Exception):
    """A round lacks what the figure needs."""


def ratio(case, name, other="pgbouncer", how="hawser"):
    """Hawser's figure by another's. `how`: which Hawser."""

    def figure(of):
        return divide(of(case, how, name), of(case, other, name))

    return figure


def divide(ours, theirs):
    if not theirs:
        raise Missing
    return ours / theirs


def own(case, name, whose="hawser"):
    """Hawser's figure as it is."""
    return lambda of: of(case, whose, name)


def beside(case, other, name, how="hawser", whose="hawser"):
    """Hawser's figure in one case by one in another. `how`: which Hawser in the first; `whose` the other is."""
    return lambda of: divide(of(case, how, name), of(other, whose, name))


def all_cpu(case, other):
    """CPU of the server and of Hawser inside it, by that of the server and another."""

    def whole(of, whose):
        return of(case, whose, "server_cpu_us") + of(case, whose, "cpu_us")

    return lambda of: divide(whole(of, INSIDE), whole(of, other))


def added_latency(of):
    direct = of("latency_1", "direct", "p50_us")
    added = of("latency_1", "pgbouncer", "p50_us") - direct
    return divide(of("latency_1", "hawser", "p50_us") - direct, added)


def bulk(case):
    """How far of the lesser of 1.2 x PgBouncer and 0.95 x direct: 1 is just enough."""

    def figure(of):
        least = min(
            1.2 * of(case, "pgbouncer", "mb_per_s"),
            0.95 * of(case, "direct", "mb_per_s"),
        )
        return divide(of(case, "hawser", "mb_per_s"), least)

    return figure


def kept_beside_open(of):
    """TPS by that without open transactions; nothing if not all of them could be opened."""
    all_open = of("open_transactions", "hawser", "open") == OPEN_TRANSACTIONS
    return of("open_transactions", "hawser", "share") if all_open else 0.0


LESSER = "the lesser of 1.2 x PgBouncer and 0.95 x direct"
# Required, and the aim.
BY_PGBOUNCER = [
    ("prepared, 100 clients", "prepared_100", "cpu_us", 0.70, 0.62),
    ("prepared, 100 clients", "prepared_100", "tps", 1.45, 1.6),
    ("prepared, 1,000 clients", "prepared_1000", "cpu_us", 0.65, 0.58),
    ("prepared, 1,000 clients", "prepared_1000", "tps", 1.75, 2.0),
    ("prepared with TLS, 100 clients", "prepared_tls_100", "cpu_us", 0.68, 0.6),
    ("simple, 100 clients", "simple_100", "cpu_us", 0.75, 0.65),
    ("simple, 100 clients", "simple_100", "tps", 1.25, 1.4),
    ("unnamed extended, 100 clients", "extended_100", "cpu_us", 0.78, 0.7),
    ("unnamed extended, 100 clients", "extended_100", "tps", 1.2, 1.3),
    ("7 statements to a transaction, 100 clients", "tpcb_100", "cpu_us", 0.8, 0.7),
]
WHAT = {"cpu_us": "CPU a transaction, relative to PgBouncer", "tps": "TPS, relative to one PgBouncer"}
TARGETS = [
    *(Target(row, WHAT[name], ratio(case, name), *bounds, name == "tps") for row, case, name, *bounds in BY_PGBOUNCER),
    Target("1 client", "latency added to direct (p50), relative to PgBouncer",
           added_latency, 0.8, 0.6, False),
    *(Target(f"100 MB, rows of {width}, {how}", f"MB/s, relative to {LESSER}",
             bulk(f"bulk_{name}_{how.lower()}"), 1.0, 1.0, True)
      for name, width in (("100", "100 bytes"), ("8k", "8 kB")) for how in ("SELECT", "COPY")),
    Target("new connections", "a second, relative to one PgBouncer",
           ratio("connect_plain", "logins_per_s"), 1.3, 1.5, True),
    Target("new connections with TLS", "a second, relative to one PgBouncer",
           ratio("connect_tls", "logins_per_s"), 1.4, 2.0, True),
    Target("idle client", "memory of the process", own("memory_plain", "idle_kib"),
           0.27, 0.15, False, "{:.2f} KiB"),
    Target("idle client with TLS", "memory of the process", own("memory_tls", "idle_kib"),
           8.0, 6.0, False, "{:.1f} KiB"),
    Target("many connected, 1,000 at work", "TPS, relative to 1,000 connected",
           own("mostly_idle", "share"), 0.95, 0.98, True),
    Target("idle clients, eight times as many", "worst of lists, metrics, reload, idle CPU for each",
           own("growth", "growth"), 1.0, 0.5, False),
    Target("10 open transactions in a pool of 10", "TPS of the others, relative to none open",
           kept_beside_open, 0.9, 1.0, True),
    Target("storm of TLS logins", "p99 of other clients' queries, relative to no storm",
           own("login_storm", "p99_times"), 3.0, 3.0, False),
    Target("100 clients, each with settings of its own", "TPS, relative to those without",
           beside("sessions_own", "sessions_bare", "tps"), 0.8, 0.95, True),
    Target("the same, with 10 search_paths", "TPS, relative to those without",
           beside("sessions_paths_10", "sessions_bare", "tps"), 0.8, 0.95, True),
    Target("the same, with 100 search_paths", "TPS, relative to those without",
           beside("sessions_paths_100", "sessions_bare", "tps"), 0.6, 0.8, True),
    *(Target(f"{title}, custom_settings_in_plans = false", "TPS, relative to those without",
             beside(f"sessions_{case}", "sessions_bare", "tps", "hawser_plans"), least, wished, True)
      for title, case, least, wished in (
          ("settings of its own", "own", 0.8, 0.95), ("with 10 search_paths", "paths_10", 0.8, 0.95),
          ("with 100 search_paths", "paths_100", 0.6, 0.8))),
    Target("1,000 clients that LISTEN", "notifications a second, relative to direct",
           ratio("listen", "tps", "direct"), 0.5, 1.0, True),
    Target("1,000 clients that LISTEN", "p99 at 1,000 a second",
           own("listen", "p99_us"), 5000.0, 2000.0, False, "{:.0f} us"),
]  # fmt: skip
# Of Hawser inside the server, where it takes part.
INSIDE_TARGETS = [
    Target("inside the server: prepared, 1,000 clients", "TPS, relative to direct with 10 clients",
           beside("prepared_1000", "prepared_10", "tps", INSIDE, "direct"), 0.95, 1.15, True),
    *(Target(f"inside: {row}", f"TPS, relative to {title}", ratio(case, "tps", other, INSIDE), *bounds, True)
      for row, case, other, title, *bounds in (
          ("prepared, 1,000 clients", "prepared_1000", "direct", "direct", 3.4, 4.0),
          ("prepared, 1,000 clients", "prepared_1000", "pgbouncer", "one PgBouncer", 2.6, 3.2),
          ("prepared, 100 clients", "prepared_100", "direct", "direct", 1.15, 1.3),
          ("prepared, 10 clients", "prepared_10", "direct", "direct", 0.85, 0.95),
          ("1 client", "latency_1", "direct", "direct", 1.0, 1.05),
          ("simple, 1,000 clients", "simple_1000", "hawser", "Hawser's proxy", 1.6, 1.9),
          ("5 statements to a transaction, 100 clients", "update_100", "hawser", "Hawser's proxy", 1.15, 1.3))),
    Target("inside: prepared, 1,000 clients", "CPU of server and pooler, relative to PgBouncer",
           all_cpu("prepared_1000", "pgbouncer"), 0.4, 0.33, False),
    Target("inside: 5 statements to a transaction, 100 clients", "CPU of server and pooler, relative to Hawser's proxy",
           all_cpu("update_100", "hawser"), 0.75, 0.65, False),
    Target("inside: prepared, 1,000 clients", "p99, relative to Hawser's proxy",
           ratio("prepared_1000", "p99_us", "hawser", INSIDE), 0.6, 0.5, False),
    Target("inside: 100 clients, with 10 search_paths", "TPS, relative to those without",
           beside("sessions_paths_10", "sessions_bare", "tps", INSIDE, INSIDE), 0.9, 0.95, True),
    Target("client inside", "memory of server and Hawser", own("memory_plain", "after_one_with_server_kib", INSIDE),
           0.69, 0.44, False, "{:.2f} KiB"),
    Target("inside: 10 open transactions in a pool of 10", "p99 of the others, beyond that without",
           lambda of: of("open_transactions", INSIDE, "p99_us") - of("open_transactions", INSIDE, "quiet_p99_us"),
           20_000.0, 5_000.0, False, "{:.0f} us"),
]  # fmt: skip

# Points of a curve may lie so far below its best.
FLAT = 0.93


def rounds_of(data, case, contestant):
    """The figures of each round; failed ones are None."""
    points = data["cases"].get(case, {}).get(contestant, [])
    return [None if "failed" in point else point for point in points]


def values(data, case, contestant, name):
    """A figure in all rounds that have it."""
    points = rounds_of(data, case, contestant)
    return [point[name] for point in points if point and point.get(name) is not None]


def in_round(data, number):
    """A function that gives a figure of this round, or raises Missing."""

    def of(case, contestant, name):
        points = rounds_of(data, case, contestant)
        point = points[number] if number < len(points) else None
        if not point or point.get(name) is None:
            raise Missing
        return point[name]

    return of


def measure(data, target):
    """The target's figure in each round that has all it needs."""
    found = []
    for number in range(data["settings"]["rounds"]):
        try:
            found.append(target.figure(in_round(data, number)))
        except Missing:
            continue
    return found


def verdict(target, found):
    """(median or None, `yes`, `no` or `not measured`)."""
    if not found:
        return None, "not measured"
    middle = median(found)
    met = middle >= target.required if target.at_least else middle <= target.required
    if not met:
        return middle, "**no**"
    good = middle >= target.aim if target.at_least else middle <= target.aim
    return middle, "yes, and the aim" if good else "yes"


def flatness(data, cases, contestant):
    """Each point's median by the best median of the curve; points without data are left out."""
    medians = {case: values(data, case, contestant, "tps") for case in cases}
    medians = {case: median(found) for case, found in medians.items() if found}
    best = max(medians.values(), default=0)
    return {case: middle / best for case, middle in medians.items()} if best else {}
