"""hawser doctor: each trouble, made with a real server, is found, with what to do."""

import contextlib
import json
import subprocess
import threading

from harness.pooler import binary
from harness.suite import equal, limit, pooler_only, until

SAME_FOR_ALL_SERVERS = True
TAKES_SECONDS = 40
ALONE = "processes"


def doctor(target, *options):
    """(exit code, findings by kind)."""
    asked = subprocess.run([binary(), "doctor", "-c", str(target.pooler.config), "--seconds", "1", "--json", *options],
                           capture_output=True, text=True)
    report = json.loads(asked.stdout)
    return asked.returncode, {finding["kind"]: finding for finding in report["findings"]}


def finding(target, kind):
    """The first finding, which is of this kind."""
    def first():
        code, found = doctor(target)
        return (code, next(iter(found.values()))) if next(iter(found), None) == kind else None
    code, found = until(first, kind)
    equal(code, 1)
    return found


@contextlib.contextmanager
def crowd_at_work(env, target, count, statement):
    """So many clients, each running the statement again and again."""
    over = threading.Event()

    def work(client):
        while not over.is_set():
            client.attempt(statement)
    threads = [threading.Thread(target=work, args=(env.connect(target),), daemon=True) for _ in range(count)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        over.set()
        for thread in threads:
            thread.join(30)


@pooler_only
def test_nothing_is_found_where_nothing_is_wrong(env):
    with env.pooler_with(pool_size=5) as target:
        env.connect(target).value("select 1")
        equal(doctor(target), (0, {}))
        said = subprocess.run([binary(), "doctor", "-c", str(target.pooler.config), "--seconds", "1"],
                              capture_output=True, text=True)
        equal(said.returncode, 0)
        begins = "nothing to change: looked 1 s at pools: 1 (0 transactions/s; server connections: 1 of 5; "
        assert said.stdout.startswith(begins), said.stdout


@pooler_only
def test_a_client_idle_in_a_transaction_is_named_for_whom_others_wait(env):
    with env.pooler_with(pool_size=1, idle_transaction_reserve=0) as target:
        holder, other = env.connect(target, application_name="report"), env.connect(target)
        holder.execute("begin")
        waiting = threading.Thread(target=other.value, args=("select 1",), daemon=True)
        waiting.start()
        found = finding(target, "idle_in_transaction")
        begins = "clients of app/app idle in a transaction: 1, on 1 of 1 server connections, and 1 client waits; "
        assert found["urgent"] and found["wrong"].startswith(begins), found
        assert 'from 127.0.0.1 (application_name "report", id ' in found["wrong"], found
        number = found["mend"].split("KILL_CLIENT ")[1].split(" ")[0]
        page = target.pooler.http("/")[1]
        assert "Change first: clients of app/app idle in a transaction: 1" in page, page
        with target.pooler.admin() as admin:
            admin.execute(f"KILL_CLIENT {number}")
        waiting.join(30)
        until(lambda: doctor(target) == (0, {}), "it is over")


@pooler_only
@limit(60)
def test_a_pool_too_small_is_told_with_its_size_and_a_statement_that_holds_it_by_its_digest(env):
    with env.pooler_with(pool_size=2) as target:
        with crowd_at_work(env, target, 8, "select pg_sleep(0.02)"):
            found = finding(target, "pool_too_small")
            assert found["wrong"].startswith("pool app/app is too small: ") and "with pool_size 2" in found["wrong"], found
            assert found["mend"].startswith("Set pool_size = 4 for database app."), found
            with crowd_at_work(env, target, 2, "select pg_sleep(0.4), 'heavy'"):
                found = finding(target, "heavy_statement")
                assert '"select pg_sleep(?), ?" of app (digest ' in found["wrong"], found
                command = found["mend"].split("on the console: ")[1]
                with target.pooler.admin() as admin:
                    equal(admin.execute(command.replace("MAX_RUNNING 1", "REFUSE 'not now'")).tags, ["RULE ADD"])
                    code, found = until(lambda: (got := doctor(target)) and "rule_refuses" in got[1] and got, "the rule refuses")
                    assert found["rule_refuses"]["wrong"].startswith("rule heavy refused "), found


@pooler_only
def test_pins_are_told_by_reason(env):
    with env.pooler_with(pool_size=2) as target:
        client = env.connect(target, application_name="importer")
        client.execute("create temporary table pinned (a int)")
        found = finding(target, "pinned")
        assert found["wrong"].startswith("pinned clients of app/app: 1, with pool_size 2 (1 temporary object); "), found
        assert 'application_name "importer"' in found["wrong"] and not found["urgent"], found
        assert found["page"].endswith("docs/session-state.md#what-pins"), found
        client.execute("drop table pinned")
        until(lambda: doctor(target) == (0, {}), "it is over")


@pooler_only
@limit(60)
def test_a_stopped_server_comes_first(env):
    with env.pooler_with(pool_size=2) as target:
        client = env.connect(target)
        client.value("select 1")
        env.cluster.stop("immediate")
        try:
            waiting = threading.Thread(target=client.attempt, args=("select 1",), daemon=True)
            waiting.start()
            found = finding(target, "server_down")
            assert found["urgent"] and f".s.PGSQL.{env.cluster.port} of database * is down: " in found["wrong"], found
        finally:
            env.cluster.start()
        waiting.join(30)
        until(lambda: "server_down" not in doctor(target)[1], "it is over")
