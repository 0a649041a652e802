"""Rules of the operator: refused, bounded and logged statements, by command and by file."""

import json
import time

from harness import messages as m
from harness.suite import Background, equal, pooler_only, until

SAME_FOR_ALL_SERVERS = True
TAKES_SECONDS = 20

REFUSES = """
[[rule]]
name = "by-day"
user = "app"
kind = "ddl"
refuse = "Schema changes wait until eight."
"""


def console(env, target):
    return env.connect(target, user="admin", database="hawser")


def rules(admin):
    result = admin.execute("SHOW RULES")
    return [dict(zip(result.columns, row, strict=True)) for row in result.rows]


def refused(result, sqlstate, words):
    equal(result.sqlstate, sqlstate)
    assert words in result.errors[0]["M"], result.errors[0]


@pooler_only
def test_a_rule_of_the_console_refuses_at_once_and_until_it_is_dropped(env):
    with env.pooler_with(pool_size=1) as target:
        client, other, admin = env.connect(target), env.connect(target, user="app2"), console(env, target)
        equal(client.value("select 1"), "1")
        equal(admin.execute("RULE ADD night USER app TEXT '(?i)pg_class' REFUSE 'not at night'").tags, ["RULE ADD"])
        refused(client.attempt("select count(*) from PG_CLASS"), "57014", "not at night")
        assert "night" in client.attempt("select 1 from pg_class").errors[0]["D"]
        equal(client.value("select 2"), "2")
        assert int(other.value("select count(*) from pg_class")) > 0
        (row,) = rules(admin)
        equal((row["name"], row["of"], row["matches"], row["refused"]), ("night", "console", "2", "2"))
        equal(row["matches_on"], "USER 'app' TEXT '(?i)pg_class'")
        assert 'hawser_rule_matches_total{rule="night"} 2' in target.pooler.http("/metrics")[1]
        equal(admin.execute("RULE DROP night").tags, ["RULE DROP"])
        assert int(client.value("select count(*) from pg_class")) > 0
        equal(admin.attempt("RULE DROP night").sqlstate, "42704")


@pooler_only
def test_a_refusal_is_an_error_like_the_servers_in_blocks_and_pipelines(env):
    with env.pooler_with(pool_size=2) as target:
        client, admin = env.connect(target), console(env, target)
        client.execute("create table if not exists ruled (a int)")
        client.extended("insert into ruled values ($1)", ["1"], name="named")
        client.execute("prepare old as insert into ruled values (2)")
        admin.execute("RULE ADD no_writes KIND write USER app REFUSE 'read only for now' SQLSTATE '25006'")
        refused(client.exchange(m.run("insert into ruled values (3)"), m.SYNC), "25006", "read only")
        refused(client.exchange(m.bind("named", "", ["4"]), m.execute(), m.SYNC), "25006", "read only")
        refused(client.attempt("execute old"), "25006", "read only")
        result = client.exchange(m.run("select 1"), m.run("insert into ruled values (5)"), m.run("select 2"), m.SYNC)
        equal(([value for (value,) in result.rows], result.sqlstate, result.status), (["1"], "25006", "I"))
        client.execute("begin")
        result = client.attempt("delete from ruled")
        equal((result.sqlstate, result.status), ("25006", "E"))
        equal(client.attempt("select 1").sqlstate, "25P02")
        equal(client.execute("rollback").status, "I")
        equal(client.value("select count(*) from ruled"), "1")
        admin.execute("RULE DROP no_writes")
        client.execute("execute old; drop table ruled")


@pooler_only
def test_only_so_many_run_at_once_and_none_for_longer_than_it_may(env):
    with env.pooler_with(pool_size=5) as target:
        admin, clients = console(env, target), [env.connect(target) for _ in range(3)]
        admin.execute("RULE ADD slow TEXT pg_sleep MAX_RUNNING 2 MAX_TIME '1500ms'")
        running = [Background(client.attempt, "select pg_sleep(30)") for client in clients[:2]]
        until(lambda: rules(admin)[0]["running"] == "2", "both run")
        refused(clients[2].attempt("select pg_sleep(0)"), "53400", 'rule "slow"')
        assert "again" in clients[2].attempt("select pg_sleep(0)").errors[0]["H"]
        equal(clients[2].value("select 'others run'"), "others run")
        for one in running:
            refused(one.join(), "57014", 'rule "slow"')
        equal(clients[2].attempt("select pg_sleep(0)").errors, [])
        (row,) = rules(admin)
        equal((row["running"], row["cut_off"], row["refused"]), ("0", "2", "2"))
        equal(clients[0].value("select 'it goes on'"), "it goes on")


@pooler_only
def test_a_rule_expires(env):
    with env.pooler_with() as target:
        client, admin = env.connect(target), console(env, target)
        admin.execute("RULE ADD soon KIND read USER app REFUSE 'wait' FOR '2 s'")
        refused(client.attempt("select 1"), "57014", "wait")
        assert int(rules(admin)[0]["expires_in"]) <= 2
        until(lambda: not client.attempt("select 1").errors, "it has expired")
        until(lambda: rules(admin) == [], "it is gone")


@pooler_only
def test_rules_of_the_file_come_with_a_reload_and_end_those_of_the_console(env):
    with env.pooler_with() as target:
        client, admin = env.connect(target), console(env, target)
        admin.execute("RULE ADD mine KIND read USER app REFUSE 'mine'")
        target.pooler.append = REFUSES
        target.pooler.write()
        target.pooler.reload()
        refused(client.attempt("create table x (a int)"), "57014", "until eight")
        equal(client.value("select 1"), "1")
        equal([(row["name"], row["of"]) for row in rules(admin)], [("by-day", "file")])
        good = target.pooler.config.read_text()
        for bad, place in ((good.replace('kind = "ddl"', 'text = "a(b"'), "character 2"),
                           (good.replace('user = "app"\nkind = "ddl"\n', ""), "every statement")):
            assert bad != good
            target.pooler.config.write_text(bad)
            result = admin.attempt("RELOAD")
            assert place in result.errors[0]["D"] and "hawser.toml:" in result.errors[0]["D"], result.errors
            equal(client.attempt("create table x (a int)").sqlstate, "57014")
        target.pooler.config.write_text(good)
        target.pooler.reload()
        equal(rules(admin)[0]["refused"], "3")


@pooler_only
def test_a_wrong_rule_is_refused_with_its_place_and_changes_nothing(env):
    with env.pooler_with() as target:
        admin = console(env, target)
        for command, words in (
            ("RULE ADD a TEXT '(b' REFUSE 'x'", "character 1"),
            ("RULE ADD a REFUSE 'x'", "every statement of every client"),
            ("RULE ADD a USER app", "does nothing"),
            ("RULE ADD a USERS app REFUSE 'x'", "USERS"),
            ("RULE ADD a USER app MAX_TIME soon", "MAX_TIME"),
            ("RULE ADD a USER app REFUSE", "has no value"),
            ("RULE ADD a USER app REFUSE 'x' FOR ever", "FOR"),
            ("RULE ADD a NETWORK 10.0.0.0/40 REFUSE 'x'", "network"),
        ):
            result = admin.attempt(command)
            assert result.errors and words in result.errors[0]["M"], (command, result.errors)
        equal(rules(admin), [])
        equal(admin.execute("RULE ADD a LOG 1 FORCE").tags, ["RULE ADD"])
        equal(admin.attempt("RULE ADD a USER app LOG 1").sqlstate, "42710")


@pooler_only
def test_one_of_so_many_goes_to_the_log(env):
    with env.pooler_with() as target:
        client, admin = env.connect(target), console(env, target)
        admin.execute("RULE ADD watched TEXT needle LOG 3")
        for number in range(7):
            client.value(f"select 'needle {number}'")
        until(lambda: "needle 6" in target.pooler.text(), "the seventh is logged")
        logged = [number for number in range(7) if f"needle {number}" in target.pooler.text()]
        equal(logged, [0, 3, 6])


@pooler_only
def test_a_flood_of_refused_statements_takes_no_server_connection(env):
    with env.pooler_with(pool_size=1) as target:
        busy, flood, admin = env.connect(target), env.connect(target), console(env, target)
        admin.execute("RULE ADD flood TEXT pg_sleep APPLICATION_NAME crawler REFUSE 'no'")
        named = env.connect(target, application_name="crawler")
        running = Background(busy.attempt, "select pg_sleep(1.5)")
        begun = time.monotonic()
        for _ in range(50):
            refused(named.attempt("select pg_sleep(1)"), "57014", "no")
        assert time.monotonic() - begun < 1.2, "they waited"
        equal(running.join().errors, [])
        flood.execute("set application_name = 'crawler'")
        refused(flood.attempt("select pg_sleep(1)"), "57014", "no")
        flood.execute("set application_name = 'other'")
        equal(flood.attempt("select pg_sleep(0)").errors, [])


@pooler_only
def test_psql_sees_a_refusal_as_any_error(env):
    with env.pooler_with() as target:
        console(env, target).execute("RULE ADD psql TEXT forbidden REFUSE 'ask the DBA'")
        done = env.program("psql", "-At", "-c", "select 'forbidden'", target=target, database="app", check=False)
        equal(done.returncode, 1)
        assert "ERROR:  ask the DBA" in done.stderr and 'Rule "psql"' in done.stderr, done.stderr
        equal(env.program("psql", "-At", "-c", "select 'allowed'", target=target, database="app").stdout, "allowed\n")


@pooler_only
def test_one_client_more_than_may_wait_is_refused_at_once(env):
    with env.pooler_with(pool_size=1, idle_transaction_reserve=0, queue_limit=1) as target:
        busy, waits, refused_ones = env.connect(target), env.connect(target), [env.connect(target) for _ in range(3)]

        def count(column):
            return sum(int(row[column]) for row in target.pooler.show("POOLS") if row["user"] == "app")

        running = Background(busy.attempt, "select pg_sleep(2)")
        until(lambda: count("sv_active") == 1, "one is served")
        waiting = Background(waits.attempt, "select 'in its turn'")
        until(lambda: count("cl_waiting") == 1, "one waits")
        for refused_one in refused_ones:
            result = refused_one.attempt("select 1")
            equal((result.sqlstate, result.closed), ("53300", True))
            assert "queue_limit" in result.errors[0]["D"], result.errors
            equal(result.errors[0]["H"], "Connect again later.")
        until(lambda: "queue_limit is reached" in target.pooler.text(), "it is said")
        equal(target.pooler.text().count("queue_limit is reached"), 1)
        assert "too many clients wait" not in target.pooler.text()
        equal(waiting.join().value, "in its turn")
        equal(running.join().errors, [])


@pooler_only
def test_the_audit_has_each_statement_that_a_rule_matches(env):
    with env.pooler_with(start=False, audit_file="audit.log") as target:
        target.pooler.start()
        client, admin = env.connect(target, application_name="night shift"), console(env, target)
        admin.execute("RULE ADD no_drop TEXT '(?i)^drop' USER app REFUSE 'not now'")
        admin.execute("RULE ADD schema KIND ddl USER app AUDIT")
        (row,) = (row for row in rules(admin) if row["name"] == "schema")
        equal(row["action"], "AUDIT")
        audit = target.pooler.directory / "audit.log"

        def lines():
            return [json.loads(line) for line in audit.read_text().splitlines()]

        client.execute("select 1")
        client.execute("create temp table audited (a int default 7)")
        refused(client.attempt("drop table audited"), "57014", "not now")
        comments = [f"comment on table audited is '{number}'" for number in range(3)]
        client.exchange(m.run(comments[0]), m.run(comments[1]), m.SYNC)  # a pipeline counts once, and both are there
        client.exchange(m.parse(comments[2], "named"), m.SYNC)
        client.exchange(m.bind("named"), m.execute(), m.SYNC)
        until(lambda: len(lines()) == 6, "six lines")
        first, second, *others = lines()
        equal((first["text"], first["refused"], first["rule"]), ("create temp table audited (a int default 7)", False, "schema"))
        equal((first["user"], first["database"], first["address"], first["application_name"]), ("app", "app", "127.0.0.1", "night shift"))
        equal((second["text"], second["refused"], second["bytes"]), ("drop table audited", True, 18))
        equal([line["text"] for line in others], [*comments, comments[2]])
        equal(audit.stat().st_mode & 0o777, 0o640)
        assert first["time"].endswith("Z") and len(first["digest"]) == 16, first
        page = target.pooler.http("/metrics")[1]
        assert "hawser_audit_statements_total 6" in page and "hawser_audit_statements_lost_total 0" in page
        audit.rename(audit.with_suffix(".1"))
        target.pooler.reload()  # it ends the rules of the console
        admin.execute("RULE ADD schema KIND ddl USER app AUDIT")
        client.execute("create temp table audited_again (a int)")
        until(lambda: audit.exists() and len(lines()) == 1, "a new file")


@pooler_only
def test_an_audit_that_takes_nothing_is_said_and_holds_nobody_up(env):
    with env.pooler_with(audit_file="/dev/full") as target:
        client, admin = env.connect(target), console(env, target)
        admin.execute("RULE ADD all KIND read USER app AUDIT")
        for number in range(100):
            equal(client.value(f"select {number}"), str(number))
        until(lambda: "hawser_audit_statements_lost_total 100" in target.pooler.http("/metrics")[1], "all are lost")
        equal(target.pooler.text().count("statements are missing in the audit"), 1)


@pooler_only
def test_a_priority_changes_the_order_in_which_clients_wait(env):
    """The first comes last, and the last first; BEGIN has its rule's priority, too."""
    with env.pooler_with(pool_size=1, idle_transaction_reserve=0) as target:
        admin, holder = console(env, target), env.connect(target)
        admin.execute("RULE ADD batch APPLICATION_NAME batch PRIORITY low")
        admin.execute("RULE ADD urgent TEXT urgent PRIORITY high")
        holder.execute("begin; select 1")

        def waiting():
            return sum(int(row["cl_waiting"]) for row in target.pooler.show("POOLS") if row["user"] == "app")

        now = "extract(epoch from clock_timestamp())"
        asked = (("batch", f"begin; select {now}; commit"), ("others", f"select {now}"), ("others", f"select {now} as urgent"))
        answers = []
        for number, (name, sql) in enumerate(asked):
            client = env.connect(target, application_name=name)
            answers.append(Background(client.execute, sql))
            until(lambda wanted=number + 1: waiting() == wanted, "it waits")
        holder.execute("commit")
        batch, other, urgent = (float(answer.join().rows[0][0]) for answer in answers)
        assert urgent < other < batch, (urgent, other, batch)
