"""Prepared statements in transaction mode: the client's own names, texts and settings, whichever backend it gets."""

import time

from harness import messages as m
from harness.suite import crowd, equal

SETTINGS = {"pool_size": 1}
INT4, TEXT = 23, 25


def prepare(client, name, sql, types=()):
    result = client.exchange(m.parse(sql, name, types), m.SYNC)
    equal(result.kinds, "1Z", f"Parse of {name}")


def run(client, name, values=()):
    return client.exchange(m.bind(name, values=values), m.execute(), m.SYNC)


def test_the_same_name_with_different_texts(env):
    clients = [env.connect() for _ in range(8)]
    for number, client in enumerate(clients):
        prepare(client, "s", f"select {number} + $1::int")
    for _ in range(3):
        for number, client in enumerate(clients):
            equal(run(client, "s", [100]).value, str(number + 100))


def test_the_same_text_under_different_names(env):
    clients = [env.connect() for _ in range(8)]
    for number, client in enumerate(clients):
        prepare(client, f"name {number}", "select $1::int + 1")
    for number, client in enumerate(clients):
        equal(run(client, f"name {number}", [number]).value, str(number + 1))
        other = f"name {(number + 1) % 8}"
        equal(run(client, other, [1]).sqlstate, "26000", "another client's name")


def test_the_same_text_with_different_parameter_types(env):
    first, second = env.connect(), env.connect()
    prepare(first, "s", "select pg_typeof($1)::text", [INT4])
    prepare(second, "s", "select pg_typeof($1)::text", [TEXT])
    for _ in range(2):
        equal(run(first, "s", ["1"]).value, "integer")
        equal(run(second, "s", ["1"]).value, "text")


def test_trap_06_constants_are_folded_under_the_settings_of_the_parse(env):
    """trap 6: text alone gives wrong answers. '2024-01-01'::timestamptz keeps the TimeZone of its Parse."""
    sql = "select extract(epoch from '2024-01-01'::timestamptz)::bigint"
    first, second = env.connect(timezone="UTC"), env.connect(timezone="Asia/Tokyo")
    prepare(first, "s", sql)
    prepare(second, "s", sql)
    for _ in range(2):
        equal(run(first, "s").value, "1704067200")
        equal(run(second, "s").value, "1704034800")


def test_trap_06_dates_are_read_under_the_datestyle_of_the_parse(env):
    sql = "select to_char('01/02/2024'::date, 'YYYY-MM-DD')"
    first, second = env.connect(datestyle="ISO, MDY"), env.connect(datestyle="ISO, DMY")
    prepare(first, "s", sql)
    prepare(second, "s", sql)
    for _ in range(2):
        equal(run(first, "s").value, "2024-01-02")
        equal(run(second, "s").value, "2024-02-01")


def test_trap_06_the_parses_settings_hold_even_after_the_client_has_changed_them(env):
    """As on a direct connection: a constant was folded at Parse, a later SET does not move it."""
    client, other = env.connect(timezone="UTC"), env.connect()
    prepare(client, "s", "select extract(epoch from '2024-01-01'::timestamptz)::bigint")
    client.execute("set timezone to 'Asia/Tokyo'")
    other.execute("deallocate all")
    other.value("select 1")
    equal(run(client, "s").value, "1704067200")


def test_trap_06_what_the_server_analyses_again_is_no_other_clients(env):
    """A schema that is made or dropped has the server analyse all statements again, each under the settings of whichever
    client runs it next: another one had that client's constants."""
    sql = "select date '01/02/2020' - date '2020-01-01'"
    first, second, server = env.connect(), env.connect(), env.server()

    def analyse_again():
        server.execute("create schema analysed_again; drop schema analysed_again")
    for client in (first, second):
        prepare(client, "s", sql)
        equal(run(client, "s").value, "1")
    second.execute("set datestyle = 'ISO, DMY'")
    equal(run(second, "s").value, "1", "as parsed")
    for _ in range(2):
        analyse_again()
        # As a server of its own says; or as it was parsed, where it is prepared anew: after the DISCARD PLANS that goes
        # between the two where the database has functions of PL/pgSQL, as other tests may have left them.
        assert run(second, "s").value in ("31", "1")
        equal(run(first, "s").value, "1", "of one that has set nothing")
        analyse_again()
        equal(run(first, "s").value, "1")
        assert run(second, "s").value in ("31", "1")
    result = first.exchange(m.describe_statement("s"), m.SYNC)
    equal(result.kinds, "tTZ")


def test_trap_06_what_was_parsed_in_a_pipeline_that_fails_is_no_other_clients(env):
    """The error takes the SET before it back, and leaves the statement: who had the same text had the other constants."""
    first, second = env.connect(), env.connect()
    for number, ends in enumerate((m.run("select 1/0") + m.SYNC, m.FLUSH)):
        sql = f"select {number}, (date '01/02/2020' - date '2020-01-01')::text"
        first.send(m.run("set datestyle = 'ISO, DMY'"), m.parse(sql, f"s{number}"), ends)
        if ends == m.FLUSH:
            first.collect(until="1")
            first.sock.close()
        else:
            equal(first.collect().sqlstate, "22012")
        prepare(second, f"s{number}", sql)
        equal(run(second, f"s{number}").rows, [(str(number), "1")], ends)


def test_trap_06_a_parse_in_the_pipeline_of_a_set_is_under_what_that_sets(env):
    """A statement that the server had from before was taken for it, and gave the constants of before the SET."""
    sql = "select date '01/02/2020' - date '2020-01-01'"
    first, second = env.connect(), env.connect()
    prepare(first, "s", sql)
    result = second.exchange(m.run("set datestyle = 'ISO, DMY'"), m.parse(sql, "s"), m.bind("s"), m.execute(), m.SYNC)
    equal(result.value, "31")
    for _ in range(2):
        equal(run(first, "s").value, "1")
        equal(run(second, "s").value, "31")


def test_trap_06_strings_are_read_under_the_parses_rules(env):
    sql = r"select length('a\\b')"
    first, second = env.connect(), env.connect(standard_conforming_strings="off")
    prepare(first, "s", sql)
    prepare(second, "s", sql)
    for _ in range(2):
        equal(run(first, "s").value, "4")
        equal(run(second, "s").value, "3")


def test_trap_06_names_are_resolved_under_the_search_path_of_the_parse(env):
    with env.pooler_with(pool_size=3) as target:  # such state may pin
        setup = env.connect(target)
        for schema in ("path_a", "path_b"):
            setup.execute(f"create schema if not exists {schema}; drop table if exists {schema}.t; create table {schema}.t as select "
                          f"'{schema}'::text as v")
        first, second = env.connect(target, search_path="path_a"), env.connect(target, search_path="path_b")
        prepare(first, "s", "select v from t")
        prepare(second, "s", "select v from t")
        for _ in range(2):
            equal(run(first, "s").value, "path_a")
            equal(run(second, "s").value, "path_b")
        setup.execute("drop schema path_a cascade; drop schema path_b cascade")


def test_trap_06_words_for_now_have_the_moment_of_the_clients_own_parse(env):
    clients = [env.connect() for _ in range(2)]
    sql = "select extract(epoch from 'now'::timestamptz)::text"
    moments = []
    for client in clients * 2:
        time.sleep(0.02)  # another moment
        client.exchange(m.close_statement("s"), m.SYNC)
        prepare(client, "s", sql)
        moments.append(run(client, "s").value)
    equal(len(set(moments)), 4)
    equal([run(client, "s").value for client in clients], moments[2:], "each keeps its own")


def test_a_notice_of_a_parse_reaches_all_that_ask_for_it(env):
    quiet, client = env.connect(), env.connect()
    sql = f"select 1 as {'n' * 70}"
    quiet.execute("set client_min_messages = error")
    equal(quiet.exchange(m.parse(sql, "s"), m.SYNC).notices, [])
    for name in ("s", "t"):
        equal([notice["C"] for notice in client.exchange(m.parse(sql, name), m.SYNC).notices], ["42622"])
    equal(quiet.exchange(m.parse(sql, "t"), m.SYNC).notices, [])


def test_trap_06_the_role_is_part_of_the_statement(env):
    """A statement planned for one role must not answer for another: row-level security differs."""
    with env.pooler_with(pool_size=3) as target:  # such state may pin
        owner = env.connect(target)
        owner.execute("drop table if exists rls; create table rls (who text); insert into rls values ('app'), ('helper_role'); "
                      "alter table rls enable row level security; alter table rls force row level security; "
                      "create policy p on rls using (who = current_user); grant select on rls to helper_role")
        first, second = env.connect(target), env.connect(target)
        second.execute("set role helper_role")
        prepare(first, "s", "select who from rls")
        prepare(second, "s", "select who from rls")
        for _ in range(2):
            equal(run(first, "s").rows, [("app",)])
            equal(run(second, "s").rows, [("helper_role",)])
        owner.execute("drop table rls")


def test_trap_06_a_reset_server_has_its_statements_again(env):
    """trap 6: the server may have been reset while it is thought to be prepared."""
    first, second = env.connect(), env.connect()
    prepare(first, "s", "select $1::int * 10")
    for reset in ("deallocate all", "discard all", "select 1; deallocate all"):
        second.execute(reset)
        equal(run(first, "s", [4]).value, "40", reset)


def test_trap_06_a_lost_backend_has_its_statements_again(env):
    client = env.connect()
    prepare(client, "s", "select $1::int * 10")
    if env.pooler:
        env.server().execute("select pg_terminate_backend(pid) from pg_stat_activity where usename = 'app'")
        env.cluster.wait_for_backends("usename = 'app'")
    equal(run(client, "s", [4]).value, "40")


def test_trap_06_a_changed_result_type_after_ddl(env):
    """PostgreSQL itself fails a statement whose result type has changed. A pooler that prepares afresh for a client that
    has not seen the old description may answer right instead; nobody may answer wrongly."""
    client, other = env.connect(), env.connect()
    client.execute("drop table if exists ddl_test; create table ddl_test (i int); insert into ddl_test values (1)")
    prepare(client, "s", "select * from ddl_test")
    equal(run(client, "s").rows, [("1",)])
    other.execute("alter table ddl_test add column t text default 'new'")
    result = run(client, "s")
    if result.errors:
        equal((result.sqlstate, result.errors[0]["M"]), ("0A000", "cached plan must not change result type"))
    else:
        equal(result.rows, [("1", "new")])
    # A client that comes afterwards never sees the old plan.
    late = env.connect()
    prepare(late, "s", "select * from ddl_test")
    equal(run(late, "s").rows, [("1", "new")])
    client.execute("drop table ddl_test")


def test_trap_04_a_failed_parse_leaves_no_name(env):
    """trap 4: a failed Parse must unregister the name."""
    client, other = env.connect(), env.connect()
    equal(client.exchange(m.parse("select wrong from nowhere", "s"), m.SYNC).sqlstate, "42P01")
    other.value("select 1")
    equal(run(client, "s").sqlstate, "26000")
    prepare(client, "s", "select 5")
    equal(run(client, "s").value, "5")


def test_trap_04_a_parse_skipped_by_an_earlier_error_leaves_no_name(env):
    client, other = env.connect(), env.connect()
    client.exchange(m.run("select 1/0"), m.parse("select 6", "skipped"), m.SYNC)
    other.value("select 1")
    equal(run(client, "skipped").sqlstate, "26000")


def test_trap_04_a_failed_parse_in_a_transaction_can_be_repeated(env):
    client, other = env.connect(), env.connect()
    client.execute("begin")
    equal(client.exchange(m.parse("select * from not_yet", "s"), m.SYNC).sqlstate, "42P01")
    client.execute("rollback; create table not_yet (i int)")
    other.value("select 1")
    prepare(client, "s", "select * from not_yet")
    equal(run(client, "s").rows, [])
    client.execute("drop table not_yet")


def test_trap_04_close_of_an_unknown_name_succeeds(env):
    client = env.connect()
    equal(client.exchange(m.close_statement("never"), m.close_portal("never"), m.close_statement(), m.SYNC).kinds, "333Z")


def test_trap_05_parse_complete_keeps_its_place(env):
    """trap 5: ParseComplete and CloseComplete that the pooler makes up must come where the server's would."""
    first, second = env.connect(), env.connect()
    prepare(first, "known", "select 'shared text'")
    second.value("select 1")
    result = second.exchange(m.run("select 1"), m.parse("select 'shared text'", "a"), m.run("select 2"), m.close_statement("a"),
                             m.parse("select 'shared text'", "b"), m.describe_statement("b"), m.bind("b"), m.execute(),
                             m.close_statement("b"), m.SYNC)
    equal(result.kinds, "12TDC" + "1" + "12TDC" + "3" + "1" + "tT" + "2DC" + "3" + "Z")
    # The same when the very first message is one that needs no server.
    result = second.exchange(m.close_statement("none"), m.parse("select 'shared text'", "c"), m.run("select 3"), m.close_statement("c"),
                             m.SYNC)
    equal(result.kinds, "3" + "1" + "12TDC" + "3" + "Z")


def test_trap_05_made_up_answers_respect_an_earlier_error(env):
    first = env.connect()
    prepare(first, "known", "select 'shared text'")
    client = env.connect()
    result = client.exchange(m.run("select 1/0"), m.parse("select 'shared text'", "a"), m.close_statement("a"), m.SYNC,
                             m.parse("select 'shared text'", "a"), m.SYNC)
    equal(result.kinds, "1EZ1Z")


def test_trap_05_a_made_up_answer_waits_for_flush_or_sync(env):
    client = env.connect()
    prepare(client, "s", "select 'shared text'")
    client.send(m.parse("select 'shared text'", "t"), m.FLUSH)
    equal(client.receive().kind, "1")
    client.send(m.close_statement("t"), m.FLUSH)
    equal(client.receive().kind, "3")
    equal(client.exchange(m.SYNC).kinds, "Z")


def test_trap_05_pipelined_deallocate_all_before_a_later_parse(env):
    """trap 5: DEALLOCATE ALL and DISCARD ALL in a pipeline take effect in their place."""
    client, other = env.connect(), env.connect()
    prepare(client, "s", "select 'old'")
    result = client.exchange(m.run("deallocate all"), m.parse("select 'new'", "s"), m.bind("s"), m.execute(), m.SYNC)
    equal((result.sqlstate, result.rows), (None, [("new",)]))
    other.value("select 1")
    equal(run(client, "s").value, "new")
    result = client.exchange(m.run("discard all"), m.SYNC, m.parse("select 'newer'", "s"), m.bind("s"), m.execute(), m.SYNC)
    equal(result.rows, [("newer",)])
    other.value("select 1")
    equal(run(client, "s").value, "newer")


def test_deallocate_affects_one_client_and_its_protocol_statements(env):
    first, second = env.connect(), env.connect()
    for client in (first, second):
        prepare(client, "s", "select 'kept'")
        prepare(client, "t", "select 'kept too'")
    first.execute("deallocate s")
    equal(run(first, "s").sqlstate, "26000")
    equal(run(first, "t").value, "kept too")
    equal(run(second, "s").value, "kept")
    first.execute("deallocate all")
    equal(run(first, "t").sqlstate, "26000")
    equal(run(second, "t").value, "kept too")
    equal(first.attempt("deallocate s").sqlstate, "26000")
def test_sql_prepare_and_protocol_statements_share_names(env):
    with env.pooler_with(pool_size=3) as target:  # such state may pin
        client, other = env.connect(target), env.connect(target)
        client.execute("prepare by_sql(int) as select $1 + 1")
        other.value("select 1")
        equal(run(client, "by_sql", [1]).value, "2")
        equal(client.value("execute by_sql(2)"), "3")
        prepare(client, "by_protocol", "select 7")
        equal(client.value("execute by_protocol"), "7")
        equal(client.attempt("prepare by_protocol as select 8").sqlstate, "42P05")
        equal(other.attempt("execute by_sql(1)").sqlstate, "26000")
        equal(client.rows("select name from pg_prepared_statements order by name"), [("by_protocol",), ("by_sql",)])
def test_statements_are_not_undone_by_rollback(env):
    client, other = env.connect(), env.connect()
    client.execute("begin")
    prepare(client, "in_tx", "select 9")
    client.execute("rollback")
    other.value("select 1")
    equal(run(client, "in_tx").value, "9")
    client.execute("begin; deallocate in_tx; rollback")
    equal(run(client, "in_tx").sqlstate, "26000")


def test_more_statements_than_the_backend_keeps(env):
    """LRU beyond max_prepared_statements: every one of 60 still answers, on any backend, in any order."""
    with env.pooler_with(pool_size=2, max_prepared_statements=10) as target:
        clients = [env.connect(target) for _ in range(4)]
        for client in clients:
            for n in range(60):
                prepare(client, f"s{n}", f"select {n} * 1000 + $1::int")
        for step in (1, 7, 13):
            for number, client in enumerate(clients):
                for n in range(0, 60, step):
                    equal(run(client, f"s{n}", [number]).value, str(n * 1000 + number))
        if target.pooler:
            with env.cluster.superuser() as server:
                server.execute("select 1")


def test_a_pipeline_that_uses_more_statements_than_the_backend_keeps(env):
    with env.pooler_with(pool_size=1, max_prepared_statements=5) as target:
        client = env.connect(target)
        result = client.exchange(*[m.parse(f"select {n}", f"s{n}") for n in range(20)],
                                 *[m.bind(f"s{n}") + m.execute() for n in range(20)], m.SYNC)
        equal(result.sqlstate, None)
        equal([row[0] for row in result.rows], [str(n) for n in range(20)])


def test_an_unbounded_number_of_different_statements_does_not_grow_the_server(env):
    with env.pooler_with(pool_size=1, max_prepared_statements=20) as target:
        for number in range(10):
            with target.connect() as client:
                for n in range(30):
                    prepare(client, f"s{n}", f"select {number}, {n}")
        client = env.connect(target)
        # By a name that stands nowhere: before a text or a function that looks at them, Hawser takes all away.
        client.execute("create function prepared_here() returns bigint language plpgsql as $$ declare r bigint; begin "
                       "execute 'select count(*) from pg_prepared' || '_statements' into r; return r; end $$")
        count = int(client.value("select prepared_here()"))
        client.execute("drop function prepared_here")
        assert 0 < count <= 20, f"{count} statements on the server"


def test_describe_tells_the_clients_own_types(env):
    client, other = env.connect(), env.connect()
    prepare(client, "s", "select $1 as a, $2 as b", [INT4, TEXT])
    other.value("select 1")
    result = client.exchange(m.describe_statement("s"), m.SYNC)
    equal(result.kinds, "tTZ")
    equal(result.messages[0].body, b"\0\x02\0\0\0\x17\0\0\0\x19")
    equal([(name, oid) for name, oid, _ in result.messages[1].columns()], [("a", INT4), ("b", TEXT)])


def test_many_clients_with_many_statements(env):
    with env.pooler_with(pool_size=3, max_prepared_statements=15) as target:
        def work(number):
            with target.connect(timezone="Asia/Tokyo" if number % 2 else "UTC") as client:
                for n in range(10):
                    prepare(client, f"s{n}", f"select {n + number % 3}, extract(epoch from '2024-01-01'::timestamptz)::bigint, $1::int")
                for turn in range(10):
                    for n in range(10):
                        equal(run(client, f"s{n}", [turn]).rows, [(str(n + number % 3), "1704034800" if number % 2 else "1704067200",
                                                                   str(turn))])
        crowd(12, work)


def test_deallocate_by_the_extended_protocol(env):
    """What drivers with a statement cache do: DEALLOCATE of a protocol statement, itself as Parse, Bind, Execute."""
    client, other = env.connect(), env.connect()
    for statement in ("s", "T u"):
        prepare(other, statement, "select 'other'")
    for name, text in (("s", "deallocate s"), ("T u", 'deallocate prepare "T u"')):
        prepare(client, name, "select 'old'")
        result = client.exchange(m.run(text), m.SYNC)
        equal((result.kinds, result.tags), ("12nCZ", ["DEALLOCATE"]), text)
        equal(run(client, name).sqlstate, "26000", text)
        # In one pipeline with its Parse, and with another under the same name.
        result = client.exchange(m.parse("select 'a'", name), m.run(text), m.parse("select 'b'", name), m.bind(name), m.execute(), m.SYNC)
        equal((result.sqlstate, result.rows), (None, [("b",)]), text)
        equal(run(client, name).value, "b", text)
        # Prepared once, executed more than once.
        client.exchange(m.parse(text, "d"), m.SYNC)
        equal(run(client, "d").sqlstate, None, text)
        equal(run(client, "d").sqlstate, "26000", text)
        prepare(client, name, "select 'again'")
        equal(run(client, "d").sqlstate, None, text)
        client.exchange(m.close_statement("d"), m.SYNC)
        equal(run(other, name).value, "other", text)


def test_deallocate_by_the_extended_protocol_that_fails_keeps_the_name(env):
    client = env.connect()
    prepare(client, "s", "select 'kept'")
    client.execute("begin")
    equal(client.attempt("select 1/0").sqlstate, "22012")
    equal(client.exchange(m.run("deallocate s"), m.SYNC).sqlstate, "25P02")
    client.execute("rollback")
    equal(run(client, "s").value, "kept")
    equal(client.exchange(m.run("select 1/0"), m.run("deallocate s"), m.SYNC).kinds, "1EZ")
    equal(run(client, "s").value, "kept")
    # It knows of no transactions: a rollback does not bring the name back.
    client.execute("begin")
    equal(client.exchange(m.run("deallocate s"), m.SYNC).sqlstate, None)
    client.execute("rollback")
    equal(run(client, "s").sqlstate, "26000")


def test_deallocate_all_by_the_extended_protocol(env):
    client, other = env.connect(), env.connect()
    for each in (client, other):
        prepare(each, "s", "select 'kept'")
        prepare(each, "t", "select 'kept too'")
    result = client.exchange(m.run("deallocate all"), m.SYNC)
    equal((result.kinds, result.tags), ("12nCZ", ["DEALLOCATE ALL"]))
    equal([run(client, name).sqlstate for name in "st"], ["26000", "26000"])
    equal([run(other, name).value for name in "st"], ["kept", "kept too"])
    prepare(client, "s", "select 'new'")
    equal(client.exchange(m.parse("deallocate all", "d"), m.bind("d"), m.execute(), m.bind("s"), m.SYNC).sqlstate, "26000")
    equal(run(other, "s").value, "kept")
    equal(run(client, "d").sqlstate, "26000")


def test_errors_name_it_as_its_client_does(env):
    clients = [env.connect() for _ in range(2)]
    for number, client in enumerate(clients):
        prepare(client, f"of {number}", "select 1")
        fails = m.bind(f"of {number}", values=["too many"])
        expected = f'bind message supplies 1 parameters, but prepared statement "of {number}" requires 0'
        for result in (client.exchange(fails, m.SYNC), client.exchange(fails, m.close_statement(f"of {number}"), m.SYNC),
                       client.exchange(m.parse("select 2", f"new of {number}"), m.bind(f"of {number}"), m.execute(), fails, m.SYNC)):
            equal([error["M"] for error in result.errors], [expected])
        client.exchange(m.parse("select 1", "again"), m.SYNC)
        equal(client.exchange(fails, m.SYNC).errors[0]["M"], expected, "with two names of one text")
        equal(client.exchange(m.bind("again", values=["too many"]), m.SYNC).errors[0]["M"],
              'bind message supplies 1 parameters, but prepared statement "again" requires 0')
        result = client.exchange(m.parse("deallocate again", "e"), m.bind("e", values=["too many"]), m.SYNC)
        equal(result.errors[0]["M"], 'bind message supplies 1 parameters, but prepared statement "e" requires 0')
        result = client.exchange(m.parse("discard all", "d"), m.bind("d", values=["too many"]), m.SYNC)
        equal(result.errors[0]["M"], 'bind message supplies 1 parameters, but prepared statement "d" requires 0')
        # A function takes it away, and the client is told of that by its own name.
        client.execute("create or replace function takes_all() returns void language plpgsql as $$ begin execute 'deallocate all'; end $$")
        client.execute("begin")
        run(client, f"of {number}")
        client.execute("select takes_all()")
        result = run(client, f"of {number}")
        equal((result.sqlstate, result.errors[0]["M"]), ("26000", f'prepared statement "of {number}" does not exist'))
        client.execute("rollback")


def test_what_the_server_alone_knows_outlasts_queries_of_hawsers(env):
    """Statements that are not shared: too long to be looked at, or sharing is off."""
    long = "/*" + "x" * 20_000 + "*/"
    for settings in ({}, {"max_prepared_statements": 0}):
        with env.pooler_with(pool_size=1 + bool(settings), idle_transaction_reserve=0, max_pinned=0, **settings) as target:
            other, client = env.connect(target), env.connect(target)
            other.execute("create sequence if not exists counted")
            prepare(other, "of another", "select 'of another'")
            other.value("select nextval('counted')")
            prepare(client, "named", f"select 'named' {long}")
            prepare(client, "", f"select 'unnamed' {long}")
            equal(client.attempt("select 1").sqlstate, None)  # it takes the unnamed one away
            prepare(client, "", f"select 'unnamed' {long}")
            call = client.exchange(m.parse("select currval('counted')", "asks"), m.bind("asks"), m.execute(), m.SYNC)
            equal((call.sqlstate, call.rows), ("55000", []))
            equal((run(client, "").value, run(client, "named").value), ("unnamed", "named"))
            listed = client.exchange(m.parse("select name from pg_prepared_statements order by name", "list"), m.bind("list"), m.execute(),
                                     m.SYNC)
            equal(listed.rows, [("asks",), ("list",), ("named",)])
            equal((run(client, "").value, run(client, "named").value), ("unnamed", "named"))
            prepare(client, "listens", "listen heard_here")
            equal(run(client, "listens").sqlstate, None)
            heard = client.exchange(m.run("select pg_notify('heard_here', 'itself')"), m.SYNC).messages
            equal([message.notification() for message in heard if message.kind == "A"], [(client.pid, "heard_here", "itself")])
