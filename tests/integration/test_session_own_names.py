"""Statements of the protocol and of SQL's PREPARE by each other's names, as on a direct connection."""

from harness import messages as m
from harness.suite import crowd, equal, limit, on_every_backend, pooler_only, until

SAME_FOR_ALL_SERVERS = True

SETTINGS = {"pool_size": 1}
LIST = "select name, statement, parameter_types::text, from_sql from pg_prepared_statements order by name"


def pinned(pooler, expected):
    """The reasons of all pins, once the server has been asked: the client's answer does not wait for that."""
    found = lambda: [row["pins"] for row in pooler.show("CLIENTS") if row["pins"]]
    until(lambda: found() == expected, f"pins {expected}")


def prepare(client, name, text, types=()):
    result = client.exchange(m.parse(text, name, types), m.SYNC)
    equal(result.sqlstate, None, text)


def bound(client, name, *values):
    return client.exchange(m.bind(name, values=list(values)), m.execute(), m.SYNC)


def test_execute_of_what_the_protocol_has_prepared(env):
    clients = [env.connect() for _ in range(3)]
    for n, client in enumerate(clients):
        prepare(client, "p", f"select $1::int * 10 + {n}")
    stranger = env.connect()
    for turn in range(3):
        for n, client in enumerate(clients):
            equal(client.value(f"execute p({turn})"), str(turn * 10 + n))
            equal(bound(client, "p", turn).value, str(turn * 10 + n), "and by the protocol still")
            equal(client.exchange(m.describe_statement("p"), m.SYNC).kinds, "tTZ")
        equal(stranger.attempt("execute p(1)").sqlstate, "26000", "another client's")


def test_within_blocks_and_texts_of_several(env):
    client, other = env.connect(), env.connect()
    prepare(client, "p", "select $1::int + 1")
    client.execute("begin")
    equal(client.value("execute p(1)"), "2")
    other_names = client.attempt("execute q(1)")
    equal(other_names.sqlstate, "26000")
    client.execute("rollback")
    prepare(client, "q", "select $1::int + 2")
    results = client.send(m.query("begin; execute p(5); execute q(5); commit")) or client.collect()
    equal(results.rows, [("6",), ("7",)])
    other.value("select 1")
    client.execute("begin; deallocate p; commit")
    equal(client.attempt("execute p(1)").sqlstate, "26000")
    equal(bound(client, "p", 1).sqlstate, "26000", "for the protocol, too")
    equal(bound(client, "q", 1).value, "3")
    prepare(client, "p", "select 'again'")
    equal(client.value("execute p"), "again")
    other.value("select 1")
    equal(client.value("execute p"), "again")


def test_explain_and_create_table_as_execute(env):
    client = env.connect()
    prepare(client, "p", "select 41 + 1 as answer")
    assert "Result" in client.value("explain (costs off) execute p")
    prepare(client, "q", "select 42 as answer")
    client.execute("begin; create temp table made on commit drop as execute q")
    equal(client.value("select answer from made"), "42")
    client.execute("commit; deallocate p")
    equal(client.attempt("execute p").sqlstate, "26000")


def test_each_finds_the_names_of_the_other_taken(env):
    client, other = env.connect(), env.connect()
    prepare(client, "p", "select 'by the protocol'")
    result = client.attempt("prepare p as select 'by sql'")
    equal((result.sqlstate, result.errors[0]["M"]), ("42P05", 'prepared statement "p" already exists'))
    other.value("select 1")
    equal(client.value("execute p"), "by the protocol")
    client.execute("prepare q as select 'by sql'")
    other.value("select 1")
    result = client.exchange(m.parse("select 'by the protocol'", "q"), m.SYNC)
    equal((result.sqlstate, result.errors[0]["M"]), ("42P05", 'prepared statement "q" already exists'))
    equal(bound(client, "q").value, "by sql")
    client.exchange(m.close_statement("q"), m.SYNC)
    prepare(client, "q", "select 'by the protocol'")
    other.value("select 1")
    equal((client.value("execute q"), bound(client, "q").value), ("by the protocol",) * 2)
    # Within one transaction, and one pipeline.
    client.execute("begin; prepare r as select 1")
    equal(client.exchange(m.parse("select 2", "r"), m.SYNC).sqlstate, "42P05")
    client.execute("rollback")
    equal(client.value("execute r"), "1")
    result = client.exchange(m.parse("select 2", "s"), m.run("prepare s as select 1"), m.SYNC)
    equal(result.sqlstate, "42P05")
    equal(client.value("execute s"), "2")
    result = client.exchange(m.run("prepare t as select 1"), m.parse("select 2", "t"), m.SYNC)
    equal(result.sqlstate, "42P05")
    equal(client.value("execute t"), "1")


def test_in_pipelines(env):
    client, other = env.connect(), env.connect()
    prepare(client, "p", "select $1::int + 1")
    result = client.exchange(m.run("select 1"), m.run("execute p(5)"), m.run("select 2"), m.SYNC)
    equal((result.sqlstate, result.rows), (None, [("1",), ("6",), ("2",)]))
    other.value("select 1")
    # In the same pipeline as its own Parse.
    result = client.exchange(m.parse("select $1::int + 2", "q"), m.run("execute q(5)"), m.SYNC)
    equal((result.sqlstate, result.rows), (None, [("7",)]))
    # What fails ahead of it takes nothing away.
    prepare(client, "r", "select 'kept'")
    equal(client.exchange(m.run("select 1/0"), m.run("execute r"), m.SYNC).sqlstate, "22012")
    other.value("select 1")
    equal(bound(client, "r").value, "kept")
    equal(client.value("execute r"), "kept")
    equal(client.exchange(m.parse("select 1 from no_such_table", "s"), m.run("execute s"), m.SYNC).sqlstate, "42P01")
    equal(client.attempt("execute s").sqlstate, "26000")
    # Several queries at once.
    prepare(client, "t", "select 't'")
    client.send(m.query("select 1"), m.query("execute t"), m.query("deallocate t"), m.query("execute t"), m.query("select 2"))
    results = [client.collect() for _ in range(5)]
    equal([result.sqlstate for result in results], [None, None, None, "26000", None])
    equal(results[1].value, "t")


def test_statements_of_the_protocol_that_execute(env):
    """Each client's own, though their texts are the same: the columns are those of what is executed."""
    clients = [env.connect() for _ in range(3)]
    columns = ["1 as one", "'x'::text as two, 2 as three", "null::date as four"]
    for client, column in zip(clients, columns):
        prepare(client, "p", f"select {column}")
        prepare(client, "s", "execute p")
    for _ in range(2):
        for client, column in zip(clients, columns):
            result = client.exchange(m.describe_statement("s"), m.bind("s"), m.execute(), m.SYNC)
            equal((result.sqlstate, len(result.rows[0])), (None, column.count(" as ")), column)


def test_close_and_deallocate_take_it_from_both(env):
    client, other = env.connect(), env.connect()
    for end in (lambda: client.exchange(m.close_statement("p"), m.SYNC), lambda: client.execute("deallocate p"),
                lambda: client.exchange(m.run("deallocate p"), m.SYNC), lambda: client.execute("deallocate all"),
                lambda: client.execute("discard all"), lambda: client.execute("do $$ begin execute 'deallocate p'; end $$")):
        prepare(client, "p", "select 1")
        equal(client.value("execute p"), "1")
        other.value("select 1")
        end()
        other.value("select 1")
        equal((client.attempt("execute p").sqlstate, bound(client, "p").sqlstate), ("26000", "26000"))
        # Before SQL has named it.
        prepare(client, "p", "select 1")
        end()
        equal((client.attempt("execute p").sqlstate, bound(client, "p").sqlstate), ("26000", "26000"))


def test_in_do_blocks(env):
    client, other = env.connect(), env.connect()
    prepare(client, "Adds one", "select $1::int + 1")
    for _ in range(2):
        client.execute("""do $$ declare r int; begin execute 'execute "Adds one"(4)' into strict r;
                              if r <> 5 then raise 'it gave %', r; end if; end $$""")
        other.value("select 1")


def test_constants_keep_the_settings_of_the_parse(env):
    client, other = env.connect(timezone="UTC"), env.connect()
    for name in ("p", "q"):
        prepare(client, name, "select extract(epoch from '2024-01-01'::timestamptz)::bigint")
    client.execute("set timezone to 'Asia/Tokyo'")
    equal(client.value("execute p"), "1704067200")
    equal(client.value("show timezone"), "Asia/Tokyo")
    client.execute("begin")
    equal(client.value("execute q"), "1704067200")
    equal(client.value("show timezone"), "Asia/Tokyo")
    client.execute("set timezone to 'America/New_York'")
    client.execute("commit")
    other.value("select 1")
    equal((client.value("execute p"), client.value("execute q")), ("1704067200",) * 2)
    equal(client.value("show timezone"), "America/New_York")


def test_what_can_no_longer_be_prepared(env):
    client, other = env.connect(), env.connect()
    client.execute("create table gone (v int)")
    for name in ("p", "q", "r"):
        prepare(client, name, "select v from gone")
    prepare(client, "kept", "select 'kept'")
    other.execute("drop table gone")
    equal(client.attempt("execute p").sqlstate, "42P01")
    equal(client.attempt("execute p").sqlstate, "42P01", "again")
    equal(client.value("execute kept"), "kept")
    client.execute("begin")
    equal(client.attempt("execute q").sqlstate, "42P01")
    equal(client.attempt("select 1").sqlstate, "25P02", "as any error")
    client.execute("rollback")
    equal(client.exchange(m.run("execute r"), m.SYNC).sqlstate, "42P01")
    other.execute("create table gone (v int)")
    equal((client.rows("execute p"), client.rows("execute q"), client.rows("execute r")), ([], [], []))
    client.execute("drop table gone")


def test_the_list_raises_no_error_of_what_can_no_longer_be_prepared(env):
    """A direct connection lists it still; Hawser leaves it out where it has moved."""
    listing = "select name from pg_prepared_statements where name <> '' and name <> 'gone' order by name"
    client, other = env.connect(), env.connect()
    client.execute("create table left_out (v int); alter table left_out enable row level security, force row level security")

    def lists():
        for other_first in (True, False):
            if other_first:
                other.value("select 1")
            equal(client.rows(listing), [("kept",)])
            equal(client.exchange(m.run(listing), m.SYNC).rows, [("kept",)])
            equal(client.exchange(m.run("select 1"), m.run(listing), m.SYNC).rows, [("1",), ("kept",)])
            client.execute("begin; savepoint hawser; set local work_mem = '5MB'")
            equal(client.rows(listing), [("kept",)])
            equal(client.exchange(m.run(listing), m.SYNC).rows, [("kept",)])
            equal(client.value("show work_mem"), "5MB", "the block goes on")
            client.execute("rollback to savepoint hawser; set local row_security = on")
            equal(client.exchange(m.run("select 2"), m.run(listing), m.SYNC).rows, [("2",), ("kept",)])
            client.execute("commit")

    for name, text in (("gone", "select v from left_out"), ("kept", "select 1")):
        prepare(client, name, text)
    client.execute("set row_security = off")
    lists()
    equal(bound(client, "gone").sqlstate, "42501", "its own error")
    client.execute("set timezone to 'Asia/Tokyo'")  # what it was parsed under is set for it alone
    lists()
    equal(client.value("show timezone"), "Asia/Tokyo")
    client.execute("set row_security = on")
    equal(bound(client, "gone").rows, [])
    other.execute("drop table left_out")
    lists()
    equal(bound(client, "gone").sqlstate, "42P01", "its own error")
    # As a prepared statement, within its own pipeline.
    prepare(client, "list", listing)
    equal(bound(client, "list").rows, [("kept",), ("list",)])
    equal(client.exchange(m.close_statement("list"), m.SYNC).sqlstate, None)
    # Where it is named it fails as always.
    equal(client.attempt("execute gone").sqlstate, "42P01")
    equal(client.attempt(f"{listing}; execute gone").sqlstate, "42P01")
    other.execute("create table left_out (v int)")
    equal(client.rows("select name from pg_prepared_statements where name = 'gone'"), [("gone",)])
    equal(client.value("execute kept"), "1")
    equal((client.rows("execute gone"), bound(client, "gone").rows), ([], []))
    other.execute("drop table left_out")


def test_the_list_shows_them_under_their_own_names(env):
    with env.pooler_with(pool_size=4) as target:  # who has some, and looks, keeps its server connection
        clients = [env.connect(target) for _ in range(3)]
        for n, client in enumerate(clients):
            prepare(client, "a", f"select $1::int * 10 + {n}")
            client.execute(f"prepare b as select {n}")
        for n, client in enumerate(clients):
            own = [("a", f"select $1::int * 10 + {n}", "{integer}", "f"), ("b", f"prepare b as select {n}", "{}", "t")]
            equal(client.rows(LIST), own)
            prepare(client, "c", "select 3")
            equal(client.rows(LIST), own + [("c", "select 3", "{}", "f")])
            prepare(client, "list", LIST)
            equal(len(bound(client, "list").rows), 4, "itself among them")
        equal(env.connect(target).rows(LIST), [])


def test_what_they_do_to_the_session_is_taken_note_of(env):
    with env.pooler_with(pool_size=2) as target:
        client, others = env.connect(target), [env.connect(target)]
        prepare(client, "sets", "select set_config('my.value', $1, false)")
        client.execute("execute sets('mine')")
        prepare(client, "locks", "select pg_advisory_lock($1)")
        client.execute("execute locks(77)")
        on_every_backend(others, "select 1")
        equal(client.value("select current_setting('my.value', true)"), "mine")
        equal(others[0].value("select pg_try_advisory_lock(77)"), "f")
        equal(others[0].value("select current_setting('my.value', true)"), None)
        client.execute("select pg_advisory_unlock_all()")
        client.execute("deallocate all")
        equal(client.value("select current_setting('my.value', true)"), "mine")
        on_every_backend(others, "select 1")
        equal(others[0].value("select current_setting('my.value', true)"), None, "another's")
        client.execute("prepare hides(int) as select pg_advisory_lock($1)")
        client.execute("execute hides(78)")
        client.execute("deallocate hides")
        equal(others[0].value("select pg_try_advisory_lock(78)"), "f", "it is held, though what took it is gone")
        client.execute("select pg_advisory_unlock_all()")
        prepare(client, "resets", "reset all")
        client.execute("set timezone to 'Asia/Tokyo'")
        client.execute("explain (costs off) select 1; deallocate resets")
        equal(client.value("show timezone"), "Asia/Tokyo")


@pooler_only
def test_they_keep_no_server_connection(env):
    client, other = env.connect(), env.connect()
    prepare(client, "p", "select 1")
    equal(client.value("execute p"), "1")
    pinned(env.pooler, [])
    other.execute("begin")
    other.execute("commit")
    equal(client.value("execute p"), "1")
    pinned(env.pooler, [])


@pooler_only
def test_a_function_that_misses_one_does_so_once(env):
    client, other = env.connect(), env.connect()
    client.execute("create or replace function executes_own() returns int language plpgsql as "
                   "$$ declare r int; begin execute 'execute p' into r; return r; end $$")
    prepare(client, "p", "select 5")
    equal(client.attempt("select executes_own()").sqlstate, "26000")
    other.value("select 1")
    equal(client.value("select executes_own()"), "5")
    other.value("select 1")
    equal((client.value("select executes_own()"), bound(client, "p").value), ("5", "5"))
    client.execute("drop function executes_own()")


@limit(90)
def test_more_clients_than_backends_at_once(env):
    with env.pooler_with(pool_size=3) as target:
        def work(number):
            with target.connect() as client:
                for n in range(5):
                    prepare(client, f"s{n}", f"select {number} * 1000 + {n} * 100 + $1::int")
                for turn in range(12):
                    for n in range(turn % 5 + 1):
                        equal(client.value(f"execute s{n}({turn})"), str(number * 1000 + n * 100 + turn))
                        equal(bound(client, f"s{n}", turn).value, str(number * 1000 + n * 100 + turn))
                    if turn % 4 == number % 4:
                        client.execute(f"deallocate s{turn % 5}")
                        equal(client.attempt(f"execute s{turn % 5}(0)").sqlstate, "26000")
                        prepare(client, f"s{turn % 5}", f"select {number} * 1000 + {turn % 5} * 100 + $1::int")
                    client.execute("begin")
                    equal(client.value("execute s0(7)"), str(number * 1000 + 7))
                    client.execute("commit")
        crowd(9, work)


def test_a_statement_that_lists_them_is_in_its_own_pipelines_list_once(env):
    client, other = env.connect(), env.connect()
    listing = "select name from pg_prepared_statements where name <> '' order by name"
    result = client.exchange(m.parse(listing, "mine"), m.bind("mine"), m.execute(), m.bind("mine"), m.execute(), m.SYNC)
    equal((result.sqlstate, result.rows), (None, [("mine",), ("mine",)]))
    # Beside one that it has prepared before, in the same pipeline and in a later one, with another client between.
    result = client.exchange(m.parse("select 1", "plain"), m.bind("plain"), m.execute(), m.bind("mine"), m.execute(), m.SYNC)
    equal((result.sqlstate, result.rows), (None, [("1",), ("mine",), ("plain",)]))
    equal(other.exchange(m.parse(listing, "theirs"), m.bind("theirs"), m.execute(), m.SYNC).rows, [("theirs",)])
    equal(client.exchange(m.bind("mine"), m.execute(), m.SYNC).rows, [("mine",), ("plain",)])
    equal(client.exchange(m.close_statement("mine"), m.SYNC).sqlstate, None)
    equal(client.rows(listing), [("plain",)])
    # In a pipeline of several, each of which counts as psycopg's tests do.
    names = [f"n{n}" for n in range(4)]
    messages = [message for name in names for message in (m.parse(listing, name), m.bind(name), m.execute())]
    rows = client.exchange(*messages, m.SYNC).rows
    equal(rows, [(name,) for n in range(4) for name in [*names[: n + 1], "plain"]])
