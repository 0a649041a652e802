"""The cases: what is run against each contestant, and the figures that come out.

A case gives a dictionary of figures for one contestant in one round:

    tps, logins_per_s   what ended in a second of the window
    cpu_us              CPU of the pooler for each of these, all processes and threads
    instructions        user-space instructions of the pooler for each, where the machine counts
    p50_us ... p999_us  latency, seen by the client
    load_cpu_us         CPU of the load generator for each: what the rest has to live with
    foreign_cpu_share   cores that were busy with neither: noise
"""

import os
import re
import resource
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import cpu
import growth
import users
from cluster import DATABASE, FEW_ROWS, USER, Unavailable
from generator import Generator
from poolers import OF_MANY_USERS, OURS
from report import CURVES
from targets import INSIDE, OPEN_TRANSACTIONS

POOLERS = ("pgbouncer", "pgbouncer2", "hawser", "odyssey", "pgdog", "pgagroal")
EVERYBODY = ("direct", *POOLERS)
WITH_INSIDE = (*EVERYBODY, INSIDE)
# A server process for each: beyond this, direct connections are not tried.
DIRECT_CLIENTS_MAX = 1000
# Logins under way at the same time in the storm of logins.
LOGIN_SLOTS = 64
READY_LIMIT_S = 300
# pgbench's CPU includes its logins: they must not weigh.
PGBENCH_SECONDS_MIN = 5
# Less than any pooler's best, so that it is the same storm for all.
STORM_LOGINS_PER_S = 200
# The generator ends what is left over after its window: much, after 18,000 clients.
RESULT_LIMIT_S = 60


@dataclass
class Setting:
    """What a case may use."""

    cluster: object
    program: str
    seconds: float
    warmup: float
    many_clients: int
    scale: int
    instructions: bool


@dataclass
class Case:
    """name in data, title for people, who takes part, whether clients use TLS, and whether the
    server has the extension and many users."""

    name: str
    title: str
    run: Callable
    contestants: tuple = EVERYBODY
    tls: bool = False
    curve: bool = field(default=False, kw_only=True)
    users: bool = field(default=False, kw_only=True)


def load(setting, running, mode="run", server=(), **options):
    """Runs the generator once and returns the figures of its window; of the server's CPU as well, if
    its process is given."""
    options = {
        "seconds": setting.seconds,
        "warmup": setting.warmup,
        "scale": setting.scale,
    } | {name.replace("_", "-"): value for name, value in options.items()}
    wanted = options.get("clients", 1)
    with Generator(setting.program, mode, running.port, options) as generator:
        ready = generator.expect("ready", READY_LIMIT_S)
        if mode == "run" and ready["connected"] < wanted:
            raise Unavailable(
                f"{ready['connected']} of {wanted} clients came in: {ready['first_error']}"
            )
        generator.tell()
        generator.expect("start", options["warmup"] + 30)
        window, servers = cpu.Window(running.pids), cpu.Window(server)
        counter = None
        if setting.instructions and running.pids:
            # A little less than the window: it starts later, too.
            counter = cpu.Instructions(running.pids, max(0.5, options["seconds"] - 0.5))
        generator.expect("end", options["seconds"] + 30)
        rates, server_rates = window.end(), servers.end()
        result = generator.expect("result", RESULT_LIMIT_S)
    per_second = result["per_second"]
    figures = {name: result[name] for name in ("p50_us", "p95_us", "p99_us", "p999_us")}
    figures |= {name: result[name] for name in ("errors", "lost")}
    if "open-transactions" in options:
        figures["open"] = ready["connected"] - wanted
    if result["first_error"] and (result["errors"] or result["lost"]):
        figures["first_error"] = result["first_error"]
    figures["logins_per_s" if mode == "connect" else "tps"] = per_second
    figures |= {name: rates[name] for name in ("foreign_cpu_share", "stolen_cpu_share")}
    if per_second > 0:
        figures["load_cpu_us"] = result["cpu_seconds"] / result["done"] * 1e6
        if running.pids:
            figures["cpu_us"] = rates["cpu_share"] / per_second * 1e6
        if server:
            figures["server_cpu_us"] = server_rates["cpu_share"] / per_second * 1e6
    if counter and (count := counter.per_second()) and per_second > 0:
        figures["instructions"] = count / per_second
    return figures


def transactions(clients, **options):
    """All of so many clients at work."""

    def run(setting, running):
        if not running.pids and clients > DIRECT_CLIENTS_MAX:
            raise Unavailable(f"no server has {clients} direct connections")
        return load(setting, running, server=[setting.cluster.process.pid], clients=clients, **options)

    return run


def logins(tls):
    def run(setting, running):
        return load(setting, running, mode="connect", clients=LOGIN_SLOTS, tls=tls)

    return run


def one_window(setting, running, mode, options, ready_limit_s):
    """One run of the generator: its result, and the pooler's CPU in its window."""
    with Generator(setting.program, mode, running.port, options) as generator:
        generator.expect("ready", ready_limit_s)
        generator.tell()
        generator.expect("start", 30)
        window = cpu.Window(running.pids)
        generator.expect("end", options["seconds"] + 60)
        rates = window.end()
        return generator.expect("result", 30), rates


def bulk(sql):
    def run(setting, running):
        options = {"sql": sql, "seconds": max(1.0, setting.seconds / 2)}
        result, rates = one_window(setting, running, "bulk", options, 60)
        megabytes = result["bytes"] / 1e6
        figures = {
            "mb_per_s": megabytes / result["seconds"],
            "load_cpu_us": result["cpu_seconds"] / megabytes * 1e6,
            "foreign_cpu_share": rates["foreign_cpu_share"],
            "stolen_cpu_share": rates["stolen_cpu_share"],
        }
        if running.pids:
            figures["cpu_us_per_mb"] = rates["cpu_share"] * result["seconds"] / megabytes * 1e6
        return figures

    return run


def listen(setting, running):
    """1,000 clients on 100 channels: 1,000 notifications a second, then as many as can be."""

    def notify(rate):
        options = {"seconds": setting.seconds, "clients": 1000, "channels": 100, "rate": rate}
        result, rates = one_window(setting, running, "listen", options, READY_LIMIT_S)
        if result["errors"] or result["lost"]:
            raise Unavailable(f"{result['errors']} notifications and {result['lost']} clients lost")
        return result, rates

    paced, _ = notify(1000)
    fast, rates = notify(None)
    figures = {
        "tps": fast["per_second"],
        "p50_us": paced["p50_us"],
        "p99_us": paced["p99_us"],
        "load_cpu_us": fast["cpu_seconds"] / fast["done"] * 1e6,
        "foreign_cpu_share": rates["foreign_cpu_share"],
        "stolen_cpu_share": rates["stolen_cpu_share"],
    }
    if running.pids:
        figures["cpu_us"] = rates["cpu_share"] / fast["per_second"] * 1e6
    return figures


def memory(tls):
    """Idle clients: those that have only logged in, and then the same after one transaction."""

    def run(setting, running):
        clients = setting.many_clients
        both = [setting.cluster.process.pid, *running.pids]
        # The pools and caches that any use brings about are not the idle clients' own.
        load(setting, running, clients=50, seconds=0.5, warmup=0.2, tls=tls, protocol="simple")
        time.sleep(0.5)
        pss, rss = cpu.memory_kib(running.pids)
        with_server, _ = cpu.memory_kib(both)
        kernel = cpu.kernel_memory_kib()
        options = {"clients": clients, "tls": tls, "protocol": "simple", "scale": setting.scale}
        with Generator(setting.program, "hold", running.port, options) as generator:
            ready = generator.expect("ready", READY_LIMIT_S)
            held = ready["connected"]
            if held < clients:
                raise Unavailable(f"{held} of {clients} clients came in: {ready['first_error']}")
            time.sleep(1.0)
            idle_pss, idle_rss = cpu.memory_kib(running.pids)
            idle_kernel = cpu.kernel_memory_kib()
            generator.tell()
            generator.expect("touched", READY_LIMIT_S)
            time.sleep(1.0)
            used_pss, _ = cpu.memory_kib(running.pids)
            used_with_server, _ = cpu.memory_kib(both)
        return {
            "clients": held,
            "idle_kib": (idle_pss - pss) / held,
            "idle_rss_kib": (idle_rss - rss) / held,
            "after_one_kib": (used_pss - pss) / held,
            "after_one_with_server_kib": (used_with_server - with_server) / held,
            "kernel_both_ends_kib": (idle_kernel - kernel) / held,
        }

    return run


def mostly_idle(setting, running):
    """1,000 clients at work: alone, among many idle ones, and all of the many in turns."""
    active = 1000
    alone = load(setting, running, clients=active)
    among = load(setting, running, clients=setting.many_clients, active=active)
    turns = load(setting, running, clients=setting.many_clients, active=active, rotate=True)
    return {
        "clients": setting.many_clients,
        "tps_alone": alone["tps"],
        "tps": among["tps"],
        "tps_turns": turns["tps"],
        "share": among["tps"] / alone["tps"],
        "turns_share": turns["tps"] / alone["tps"],
        "cpu_us": among.get("cpu_us"),
        "p50_us": among["p50_us"],
        "p99_us": among["p99_us"],
        "foreign_cpu_share": among["foreign_cpu_share"],
    }


def open_transactions(setting, running):
    """What transactions that others leave open cost: as many of them as the pool is large.

    A pooler may have no room for all of them: `open` says how many there were.
    """
    without = load(setting, running, clients=100)
    beside = load(setting, running, clients=100, open_transactions=OPEN_TRANSACTIONS)
    return {
        "open": beside["open"],
        "tps_without": without["tps"],
        "tps": beside["tps"],
        "share": beside["tps"] / without["tps"],
        "p50_us": beside["p50_us"],
        "quiet_p99_us": without["p99_us"],
        "p99_us": beside["p99_us"],
        "foreign_cpu_share": beside["foreign_cpu_share"],
    }


def login_storm(setting, running):
    """Queries of clients that are not busy, before and during a storm of TLS logins.

    The storm's own clients are held to one core, and its rate is fixed: what the others feel is the
    handshakes' place in the pooler, not a machine without CPU.
    """
    others = {"clients": 20, "think_ms": 10}
    quiet = load(setting, running, **others)
    options = {
        "clients": LOGIN_SLOTS, "tls": True, "rate": STORM_LOGINS_PER_S, "threads": 1,
        "seconds": setting.seconds, "warmup": setting.warmup + 1,
    }  # fmt: skip
    core = min(os.sched_getaffinity(0))
    with Generator(setting.program, "connect", running.port, options, cores=[core]) as storm:
        storm.expect("ready", 60)
        storm.tell()
        during = load(setting, running, **others)
        storm.expect("start", 60)
        storm.expect("end", 60)
        result = storm.expect("result", RESULT_LIMIT_S)
    return {
        "logins_per_s": result["per_second"],
        "quiet_p99_us": quiet["p99_us"],
        "p50_us": during["p50_us"],
        "p99_us": during["p99_us"],
        "p99_times": during["p99_us"] / quiet["p99_us"],
        "foreign_cpu_share": during["foreign_cpu_share"],
    }


def generator_cost(setting, running):
    """The load generator beside pgbench, both directly on the server, 100 clients, prepared."""
    ours = load(setting, running, clients=100)
    command = [
        setting.cluster.program("pgbench"), "-n", "-S", "-M", "prepared", "-c", "100", "-j", "2",
        "-T", str(max(PGBENCH_SECONDS_MIN, round(setting.seconds))), "-h", "127.0.0.1", "-p", str(running.port),
        "-U", USER, DATABASE,
    ]  # fmt: skip
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    # libpq would ask for TLS of its own accord.
    plain = os.environ | {"PGSSLMODE": "disable", "PGGSSENCMODE": "disable"}
    done = subprocess.run(command, capture_output=True, text=True, env=plain)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    count = re.search(r"actually processed: (\d+)", done.stdout)
    rate = re.search(r"^tps = ([\d.]+)", done.stdout, re.MULTILINE)
    if done.returncode != 0 or not count or not rate:
        raise Unavailable(f"pgbench: {done.stderr.strip()[-200:]}")
    used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {
        "tps": ours["tps"],
        "load_cpu_us": ours["load_cpu_us"],
        "p50_us": ours["p50_us"],
        "pgbench_tps": float(rate.group(1)),
        "pgbench_cpu_us": used / int(count.group(1)) * 1e6,
        "foreign_cpu_share": ours["foreign_cpu_share"],
    }


def all_cases(many_clients):
    """Every case, in the order in which they are run."""
    cases = [
        Case("prepared_100", "prepared, 100 clients", transactions(100), WITH_INSIDE),
        Case("prepared_1000", "prepared, 1,000 clients", transactions(1000), WITH_INSIDE),
        Case("prepared_tls_100", "prepared with TLS, 100 clients", transactions(100, tls=True),
             tls=True),
        Case("simple_100", "simple, 100 clients", transactions(100, protocol="simple"), WITH_INSIDE),
        Case("simple_1000", "simple, 1,000 clients", transactions(1000, protocol="simple"), (*CURVES, "pgbouncer2")),
        Case("extended_100", "extended, 100 clients", transactions(100, protocol="extended"), WITH_INSIDE),
        Case("tpcb_100", "7 statements to a transaction, 100 clients",
             transactions(100, workload="tpcb"), WITH_INSIDE),
        Case("update_100", "5 statements to a transaction, simple, 100 clients",
             transactions(100, protocol="simple", workload="simple-update"), WITH_INSIDE),
        Case("latency_1", "1 client", transactions(1), WITH_INSIDE),
        Case("bulk_100_select", "100 MB, rows of 100 bytes, SELECT",
             bulk("SELECT value FROM bulk_100")),
        Case("bulk_100_copy", "100 MB, rows of 100 bytes, COPY", bulk("COPY bulk_100 TO STDOUT")),
        Case("bulk_8k_select", "100 MB, rows of 8 kB, SELECT", bulk("SELECT value FROM bulk_8k")),
        Case("bulk_8k_copy", "100 MB, rows of 8 kB, COPY", bulk("COPY bulk_8k TO STDOUT")),
        Case("connect_plain", "new connections", logins(tls=False)),
        Case("connect_tls", "new connections with TLS", logins(tls=True), tls=True),
        Case("memory_plain", "idle clients", memory(tls=False), (*POOLERS, INSIDE)),
        Case("memory_tls", "idle clients with TLS", memory(tls=True), POOLERS, tls=True),
        Case("mostly_idle", f"{many_clients:,} connected, 1,000 at work", mostly_idle, (*POOLERS, INSIDE)),
        Case("growth", f"{many_clients:,} idle clients by an eighth of them", growth.growth, ("hawser",)),
        Case("open_transactions", "100 clients beside 10 open transactions", open_transactions,
             (*POOLERS, INSIDE)),
        Case("login_storm", "20 clients with rests, in a storm of TLS logins", login_storm, POOLERS,
             tls=True),
        Case("sessions_bare", "10 prepared statements each, 100 clients",
             transactions(100, statements=10), WITH_INSIDE),
        Case("sessions_own", "the same, each with an application_name and a custom setting of its own",
             transactions(100, statements=10, own_settings=True), (*OURS, INSIDE)),
        Case("sessions_paths_10", "the same, with 10 search_paths among them",
             transactions(100, statements=10, own_settings=True, search_paths=10), (*OURS, INSIDE)),
        Case("sessions_paths_100", "the same, with 100 search_paths",
             transactions(100, statements=10, own_settings=True, search_paths=100), OURS),
        Case("users", f"{users.USERS:,} users, {users.SHARED_POOL_SIZE} shared server connections or one for each",
             users.run(load), OF_MANY_USERS, users=True),
        Case("listen", "1,000 clients that LISTEN on 100 channels", listen, ("direct", "hawser")),
        Case("generator", "the load generator beside pgbench", generator_cost, ("direct",)),
        Case("prepared_10", "prepared, 10 clients", transactions(10), CURVES, curve=True),
    ]  # fmt: skip
    for clients in sorted({10_000, 18_000, many_clients}):
        if clients <= many_clients:
            title = f"prepared, {clients:,} clients"
            cases.append(Case(f"prepared_{clients}", title, transactions(clients), CURVES,
                              curve=True))  # fmt: skip
    for clients in range(100, 1001, 100):
        run = transactions(clients, workload="contention", few_rows=FEW_ROWS)
        title = f"contention, {clients:,} clients"
        cases.append(Case(f"contention_{clients}", title, run, CURVES, curve=True))
    return cases
