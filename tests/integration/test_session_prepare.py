"""Statements of SQL's PREPARE: each client's own go with it, whichever server connection it gets."""

from harness import messages as m
from harness.suite import crowd, equal, limit, on_every_backend, pooler_only, until
from integration.test_session_extension import reporting

SETTINGS = {"pool_size": 1}
PREPARED = "select name, statement, parameter_types::text from pg_prepared_statements where from_sql order by name"


def pinned(pooler, expected):
    """The reasons of all pins, once the server has been asked: the client's answer does not wait for that."""
    found = lambda: [row["pins"] for row in pooler.show("CLIENTS") if row["pins"]]
    until(lambda: found() == expected, f"pins {expected}")


def test_each_client_has_its_own_of_the_same_name(env):
    clients = [env.connect() for _ in range(4)]
    for n, client in enumerate(clients):
        client.execute(f"prepare p(int) as select $1 * 10 + {n}")
    stranger = env.connect()
    for turn in range(3):
        for n, client in enumerate(clients):
            equal(client.value(f"execute p({turn})"), str(turn * 10 + n))
        equal(stranger.attempt("execute p(1)").sqlstate, "26000", "another client's")
    equal(stranger.rows(PREPARED), [])


def test_the_list_shows_the_clients_own(env):
    with env.pooler_with(pool_size=4) as target:  # who has some, and looks, keeps its server connection
        clients = [env.connect(target) for _ in range(3)]
        for n, client in enumerate(clients):
            client.execute(f"prepare p(int) as select $1 * 10 + {n}")
        for n, client in enumerate(clients):
            equal(client.rows(PREPARED), [("p", f"prepare p(int) as select $1 * 10 + {n}", "{integer}")])
        equal(env.connect(target).rows(PREPARED), [])


def test_the_list_shows_the_text_as_it_was_sent_after_a_move(env):
    texts = ["prepare p as select 1;", "  prepare p as select 1 -- one", "/* p */ prepare p as select 1 ; "]
    for text in texts:
        client = env.connect()
        client.execute(text)
        for _ in range(2):  # both make the server connection another's, which is the only one
            env.connect().execute("begin; select 1; commit")
        equal(client.rows(PREPARED), [("p", text, "{}")])
        client.close()


def test_one_whose_table_is_there_again_works_again(env):
    client = env.connect()
    client.execute("create temp table t as select 1 as x")
    client.execute("prepare p as select x from t")
    client.execute("drop table t")
    for _ in range(2):  # the server connection, which is the only one, becomes another's
        env.connect().execute("begin; select 1; commit")
    equal(client.attempt("execute p").sqlstate, "42P01")
    client.execute("create temp table t as select 2 as x")
    equal(client.value("execute p"), "2")
    client.close()


@pooler_only
def test_they_keep_no_server_connection(env):
    client, other = env.connect(), env.connect()
    client.execute("prepare p as select 1")
    other.execute("begin")
    other.execute("commit")
    equal(client.value("execute p"), "1")
    pinned(env.pooler, [])


@limit(90)
def test_more_clients_than_backends_at_once(env):
    with env.pooler_with(pool_size=3) as target:
        def work(number):
            with target.connect() as client:
                for n in range(5):
                    client.execute(f"prepare s{n}(int) as select {number} * 1000 + {n} * 100 + $1")
                for turn in range(12):
                    for n in range(5):
                        equal(client.value(f"execute s{n}({turn})"), str(number * 1000 + n * 100 + turn))
                    if turn % 4 == number % 4:
                        client.execute(f"deallocate s{turn % 5}")
                        equal(client.attempt(f"execute s{turn % 5}(0)").sqlstate, "26000")
                        client.execute(f"prepare s{turn % 5}(int) as select {number} * 1000 + {turn % 5} * 100 + $1")
                    client.execute("begin")
                    equal(client.value("execute s0(7)"), str(number * 1000 + 7))
                    client.execute("commit")
        crowd(9, work)


def test_rollback_takes_back_neither_prepare_nor_deallocate(env):
    client, other = env.connect(), env.connect()
    client.execute("begin; prepare kept as select 'kept'; rollback")
    other.value("select 1")
    equal(client.value("execute kept"), "kept")
    client.execute("begin")
    client.execute("deallocate kept")
    client.execute("rollback")
    other.value("select 1")
    equal(client.attempt("execute kept").sqlstate, "26000")
    client.execute("begin")
    equal(client.attempt("select 1/0").sqlstate, "22012")
    equal(client.attempt("prepare never as select 1").sqlstate, "25P02")
    client.execute("rollback")
    other.value("select 1")
    equal(client.attempt("execute never").sqlstate, "26000")
    equal(client.attempt("prepare p as select 1; select 1/0; prepare q as select 2").sqlstate, "22012")
    other.value("select 1")
    equal(client.value("execute p"), "1", "it is there, whatever fails behind it")
    equal(client.attempt("execute q").sqlstate, "26000")


def test_an_error_of_a_second_prepare_leaves_the_first(env):
    client, other = env.connect(), env.connect()
    client.execute("prepare p as select 'first'")
    other.value("select 1")
    equal(client.attempt("prepare p as select 'second'").sqlstate, "42P05")
    other.value("select 1")
    equal(client.value("execute p"), "first")
    client.execute("deallocate p; prepare p as select 'second'")
    other.value("select 1")
    equal(client.value("execute p"), "second")


def test_deallocate_and_discard_all_affect_one_client(env):
    first, second = env.connect(), env.connect()
    for end in ("deallocate all", "discard all", "begin; deallocate all; commit", "do $$ begin execute 'deallocate all'; end $$"):
        for client in (first, second):
            client.execute("prepare p as select 1; prepare q as select 2")
        first.execute(end)
        equal(first.attempt("execute p").sqlstate, "26000", end)
        equal(second.value("execute q"), "2", end)
        equal(first.rows(PREPARED), [], end)
        second.execute("deallocate p")
        equal(second.attempt("execute p").sqlstate, "26000", end)
        equal(second.value("execute q"), "2", end)
        second.execute("deallocate q")
    first.execute("prepare p as select 1")
    second.value("select 1")
    equal(first.attempt("begin; discard all").sqlstate, "25001")
    first.execute("rollback")
    second.value("select 1")
    equal(first.value("execute p"), "1", "a DISCARD ALL that failed")


def test_pipelines_keep_their_order(env):
    client, other = env.connect(), env.connect()
    client.send(m.query("prepare p as select 1"), m.query("execute p"), m.query("deallocate p"), m.query("execute p"),
                m.query("prepare p as select 2"), m.query("execute p"))
    results = [client.collect() for _ in range(6)]
    equal([result.sqlstate for result in results], [None, None, None, "26000", None, None])
    equal([results[1].value, results[5].value], ["1", "2"])
    other.value("select 1")
    # A plain statement first, which does not need it.
    client.send(m.query("select 7"), m.query("execute p"), m.query("deallocate all"), m.query("execute p"))
    results = [client.collect() for _ in range(4)]
    equal([result.sqlstate for result in results], [None, None, None, "26000"])
    equal([results[0].value, results[1].value], ["7", "2"])
    client.execute("prepare p as select 3")
    other.value("select 1")
    result = client.exchange(m.run("execute p"), m.SYNC, m.run("discard all"), m.SYNC)
    equal((result.sqlstate, result.rows), (None, [("3",)]))
    equal(client.attempt("execute p").sqlstate, "26000")


def test_by_the_extended_protocol(env):
    client, other = env.connect(), env.connect()
    equal(client.exchange(m.run("prepare p(int) as select $1 + 1"), m.SYNC).sqlstate, None)
    other.value("select 1")
    equal(client.exchange(m.run("execute p(1)"), m.SYNC).value, "2")
    other.value("select 1")
    result = client.exchange(m.bind("p", values=[41]), m.execute(), m.SYNC)
    equal(result.value, "42", "a Bind of its name")
    other.value("select 1")
    equal(client.exchange(m.describe_statement("p"), m.SYNC).kinds, "tTZ")
    other.value("select 1")
    client.exchange(m.close_statement("p"), m.SYNC)
    other.value("select 1")
    equal(client.attempt("execute p(1)").sqlstate, "26000", "closed")


def test_constants_keep_the_settings_of_the_prepare(env):
    """As statements of the protocol do: '2024-01-01'::timestamptz keeps the TimeZone of its PREPARE."""
    epoch = "select extract(epoch from '2024-01-01'::timestamptz)::bigint"
    client, other = env.connect(timezone="UTC"), env.connect(timezone="Asia/Tokyo")
    client.execute(f"prepare p as {epoch}")
    client.execute("set timezone to 'Asia/Tokyo'")
    other.execute(f"prepare p as {epoch}")
    for _ in range(2):
        equal(client.value("execute p"), "1704067200")
        equal(other.value("execute p"), "1704034800")
        equal(client.value("show timezone"), "Asia/Tokyo", "its own again")
    for texts in (["set datestyle to 'ISO, DMY'; prepare d as select to_char('01/02/2024'::date, 'MM-DD'); set datestyle to 'ISO, MDY'"],
                  ["begin", "set local datestyle to 'ISO, DMY'", "prepare d as select to_char('01/02/2024'::date, 'MM-DD')", "commit"]):
        with env.pooler_with(pool_size=2) as target:  # it may pin
            with target.connect(datestyle="ISO, MDY") as client:
                for text in texts:
                    client.execute(text)
                others = [env.connect(target)]
                on_every_backend(others, "select 1")
                equal(client.value("execute d"), "02-01", texts)


def test_names_are_found_by_the_search_path(env):
    """Under names of its own: what other tests give the name of a table, a trigger that pins say, counts for every table of this name."""
    with env.server() as server:
        for n in (1, 2):
            server.execute(f"create schema if not exists path{n}; create table if not exists path{n}.on_path (number int); "
                           f"truncate path{n}.on_path; insert into path{n}.on_path values ({n}); grant all on schema path{n} to app; "
                           f"grant all on path{n}.on_path to app")
    try:
        first, second = env.connect(), env.connect()
        for n, client in ((1, first), (2, second)):
            client.execute(f"set search_path to path{n}")
            client.execute("prepare p as select number from on_path")
        for _ in range(2):
            equal(first.value("execute p"), "1")
            equal(second.value("execute p"), "2")
        # Under another path the server looks for the names anew.
        first.execute("set search_path to path2")
        second.value("select 1")
        equal(first.value("execute p"), "2")
    finally:
        with env.server() as server:
            server.execute("drop schema path1, path2 cascade")


def test_what_can_no_longer_be_prepared_fails_where_it_is_executed(env):
    client, other = env.connect(), env.connect()
    client.execute("create table gone (v int)")
    client.execute("insert into gone values (1)")
    client.execute("prepare p(int) as select v + $1 from gone")
    client.execute("prepare q as select 'kept'")
    other.execute("drop table gone")
    equal(client.value("select 5"), "5")
    result = client.attempt("execute p(1)")
    equal((result.sqlstate, result.errors[0]["M"]), ("42P01", 'relation "gone" does not exist'))
    equal(client.value("execute q"), "kept")
    client.execute("begin")
    equal(client.attempt("execute p(1)").sqlstate, "42P01")
    equal(client.attempt("select 1").sqlstate, "25P02", "as any error")
    client.execute("rollback")
    other.value("select 1")
    equal(client.exchange(m.bind("p", values=[1]), m.execute(), m.SYNC).sqlstate, "42P01", "by a Bind")
    equal(client.attempt("prepare p as select 1").sqlstate, "42P05", "its name is taken")
    other.value("select 1")
    client.execute("create table gone (v int)")
    other.value("select 1")
    equal(client.rows("execute p(1)"), [], "it is there again")
    client.execute("drop table gone")
    other.value("select 1")
    client.execute("deallocate p")
    equal(client.attempt("execute p(1)").sqlstate, "26000")
    equal(client.value("execute q"), "kept")


def test_what_takes_state_of_the_session_when_it_is_executed_pins(env):
    with env.pooler_with(pool_size=2) as target:
        client, others = env.connect(target), [env.connect(target)]
        client.execute("prepare lock(int) as select pg_advisory_lock($1)")
        client.execute("execute lock(77)")
        on_every_backend(others, "select 1")
        equal(client.value("select count(*) from pg_locks where locktype = 'advisory' and pid = pg_backend_pid()"), "1")
        equal(others[0].value("select pg_try_advisory_lock(77)"), "f")
        client.execute("select pg_advisory_unlock_all()")
        client.execute("prepare sets as select set_config('my.value', 'mine', false)")
        client.execute("execute sets")
        on_every_backend(others, "select 1")
        equal(client.value("select current_setting('my.value', true)"), "mine")


@pooler_only
def test_plans_stay_where_they_are_looked_at(env):
    with env.pooler_with(pool_size=2) as target:
        client, others = env.connect(target), [env.connect(target)]
        client.execute("prepare p(int) as select $1")
        pinned(target.pooler, [])
        for n in range(7):
            client.execute(f"execute p({n})")
        client.rows("select generic_plans + custom_plans from pg_prepared_statements")
        pinned(target.pooler, ["sql_statement"])
        before = int(client.value("select generic_plans + custom_plans from pg_prepared_statements"))
        client.execute("execute p(1)")
        on_every_backend(others, "select 1")
        equal(client.value("select generic_plans + custom_plans from pg_prepared_statements"), str(before + 1))
        client.execute("deallocate p")
        pinned(target.pooler, [])


@pooler_only
def test_more_than_are_kept_pin(env):
    with env.pooler_with(pool_size=2) as target:
        client, other = env.connect(target), env.connect(target)
        for n in range(70):
            client.execute(f"prepare p{n} as select {n}")
        pinned(target.pooler, ["sql_statement"])
        other.value("select 1")
        equal(client.value("execute p69"), "69")
        client.execute("deallocate all")
        pinned(target.pooler, [])


def test_texts_are_in_the_clients_encoding(env):
    client, other = env.connect(client_encoding="UTF8"), env.connect()
    client.execute("prepare p as select 'd\u00e9j\u00e0 vu'::text as \"\u00e9t\u00e9\", e'a\\\\b'")
    other.value("select 1")
    equal(client.rows("execute p"), [("d\u00e9j\u00e0 vu", "a\\b")])
    client.execute('prepare "A ""b" as select 1')
    other.value("select 1")
    equal(client.value('execute "A ""b"'), "1")


def test_a_session_after_the_other_finds_nothing(env):
    with env.target.connect() as client:
        client.execute("prepare p as select 1")
    other = env.connect()
    equal(other.rows(PREPARED), [])
    other.execute("prepare p as select 2")
    equal(other.value("execute p"), "2")


def test_a_client_that_dies_in_its_transaction_leaves_nothing(env):
    client = env.target.connect()
    client.execute("prepare p as select 1")
    client.execute("begin; prepare q as select 2")
    client.vanish()
    other = env.connect()
    equal(until(lambda: [other.rows(PREPARED)], "an answer"), [[]])


@pooler_only
def test_a_server_connection_that_is_lost_loses_none(env):
    client = env.connect()
    client.execute("prepare p as select 1")
    with env.server() as server:
        server.execute("select pg_terminate_backend(pid) from pg_stat_activity where usename = 'app' and backend_type = 'client backend'")
    until(lambda: env.connect().attempt("select 1").sqlstate is None, "another connection")
    equal(client.value("execute p"), "1")


@pooler_only
def test_a_function_that_misses_one_does_so_once(env):
    client, other = env.connect(), env.connect()
    client.execute("create or replace function pg_temp_free_execute() returns int language plpgsql as "
                   "$$ declare r int; begin execute 'execute p' into r; return r; end $$")
    client.execute("prepare p as select 5")
    other.value("select 1")
    client.attempt("select pg_temp_free_execute()")
    other.value("select 1")
    equal(client.value("select pg_temp_free_execute()"), "5")
    client.execute("drop function pg_temp_free_execute()")


def test_a_function_that_executes_its_name_from_the_query(env):
    client, other = env.connect(), env.connect()
    client.execute("create or replace function runs(text) returns void language plpgsql as $$ begin execute $1; end $$")
    try:
        client.execute("prepare p1 as select 7")
        other.value("select 1")
        client.execute("select runs('deallocate p1')")
        equal(client.attempt("execute p1").sqlstate, "26000")
    finally:
        client.execute("drop function runs")


@pooler_only
@limit(180)
def test_with_the_extension_those_of_functions_move_as_well(env):
    with reporting(env, pool_size=1) as target:
        client, other = env.connect(target), env.connect(target)
        client.execute("select exact.makes('prepare made as select 1')")
        pinned(target.pooler, [])
        equal(other.attempt("execute made").sqlstate, "26000", "another client's")
        equal(client.value("execute made"), "1")
        for _ in range(3):
            equal(client.value("execute made"), "1")
            other.value("select 1")
        client.execute("prepare own as select 2")
        other.execute("prepare own as select 3")
        equal((client.value("execute own"), other.value("execute own")), ("2", "3"))
        client.execute("begin")
        client.execute("select exact.makes('deallocate made')")
        client.execute("commit")
        other.value("select 1")
        equal(client.attempt("execute made").sqlstate, "26000")
        equal((client.value("execute own"), other.value("execute own")), ("2", "3"))
        client.execute("discard all")
        equal(client.attempt("execute own").sqlstate, "26000")
        equal(other.value("execute own"), "3")
        client.execute("create temp table t (i int)")
        client.execute("prepare on_temporary as select i from t")
        client.execute("drop table t")
        other.value("select 1")
        equal(client.attempt("execute on_temporary").sqlstate, "42P01")
        pinned(target.pooler, [])
