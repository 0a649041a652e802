"""What the log says of logins and of what administrators do."""

import json
import re

from harness.suite import equal, pooler_only, until
from harness.wire import ServerError

SAME_FOR_ALL_SERVERS = True


def lines_of(pooler):
    """Of a log in JSON; the last line may not be whole yet."""
    return [json.loads(line) for line in pooler.text().splitlines() if line.startswith("{") and line.endswith("}")]


def said(pooler, message, **fields):
    return [line for line in lines_of(pooler) if line["message"] == message and fields.items() <= line.items()]


def the_one(pooler, message, **fields):
    until(lambda: said(pooler, message, **fields), f"{message} {fields}")
    (line,) = said(pooler, message, **fields)
    return line


def refusal(target, *who):
    try:
        target.connect(*who).close()
    except ServerError as error:
        return error
    raise AssertionError(f"{who} got in")


@pooler_only
def test_logins_name_the_client_and_refusals_name_user_and_database(env):
    with env.pooler_with(format="json") as target:
        pooler = target.pooler
        client = env.connect(target)
        port = client.sock.getsockname()[1]
        client.close()
        entered = the_one(pooler, "client logged in", port=port)
        left = the_one(pooler, "client left", port=port)
        for line in (entered, left):
            equal([line[name] for name in ("client", "address", "database", "user")], [entered["client"], "127.0.0.1", "app", "app"])
        assert entered["client"], entered
        refusal(target, "stranger", "shop", None, "wrong")
        the_one(pooler, "login refused", user="stranger", database="shop", code="28P01", address="127.0.0.1")
        refusal(target, "app", "hawser")
        the_one(pooler, "login refused", user="app", database="hawser", code="28000")
        refusal(target, "app", "nodb")
        the_one(pooler, "login refused", user="app", database="nodb", code="3D000")
        equal([line for line in lines_of(pooler) if "functions" in line["message"]], [], "advice for a client's mistake")
        admin = env.connect(target, user="admin", database="hawser")
        the_one(pooler, "an operator has logged in to the admin console", user="admin", port=admin.sock.getsockname()[1])


@pooler_only
def test_no_login_is_logged_where_none_is_wanted(env):
    """The console's were, and SET of log_disconnections changed nothing."""
    with env.pooler_with(format="json") as target:
        pooler = target.pooler
        admin = env.connect(target, user="admin", database="hawser")
        admin.execute("set log_connections = 0")
        admin.execute("set log_disconnections = 0")
        before = len(lines_of(pooler))
        env.connect(target, user="admin", database="pgbouncer").close()
        env.connect(target).close()
        until(lambda: len([row for row in pooler.show("clients") if row["database"] == "app"]) == 0, "the client has left")
        refusal(target, "app", "hawser")
        the_one(pooler, "login refused")
        messages = {line["message"] for line in lines_of(pooler)[before:]}
        equal(messages & {"client logged in", "client left", "an operator has logged in to the admin console"}, set())


@pooler_only
def test_what_an_administrator_does_is_logged_with_its_object_and_values(env):
    with env.pooler_with(format="json", query_wait_timeout="5s") as target:
        pooler = target.pooler
        env.connect(target).value("select 1")
        admin = env.connect(target, user="admin", database="hawser")
        for command in ("set query_wait_timeout = 7", "pause", "resume", "pause app", "resume app"):
            admin.execute(command)
        change = the_one(pooler, "changed by an administrator until the next reload", setting="query_wait_timeout")
        equal(change["changes"], "query_wait_timeout: 5 -> 7")
        for message in ("paused by an administrator", "resumed by an administrator"):
            the_one(pooler, message, databases="all")
            the_one(pooler, message, database="app")


@pooler_only
def test_numbers_are_numbers_with_their_unit_in_the_key(env):
    with env.pooler_with(format="json", log_min_duration="1ms", stats_period="1s") as target:
        env.connect(target).value("select pg_sleep(0.1)")
        until(lambda: said(target.pooler, "slow transaction"), "the transaction is logged")
        until(lambda: any("transaction_us" in line for line in lines_of(target.pooler)), "the totals are logged")
        slow = said(target.pooler, "slow transaction")[0]
        assert slow["duration_ms"] >= 100 and slow["wait_ms"] >= 0, slow
        with_unit = [(name, value) for line in lines_of(target.pooler) for name, value in line.items()
                     if isinstance(value, str) and re.fullmatch(r"[0-9.]+ ?(us|ms|s|min|[KMG]?i?B|bytes)", value)]
        equal(with_unit, [])
