"""Prepared statements and changes of the schema: a client that parses gets what a Parse at that moment gives, and one
that has been told a description never gets rows of another.

Each test runs on a pool of one connection, on one of four, and with the extension.
"""

import contextlib
import functools
import struct
import time

from harness import messages as m
from harness.suite import Skip, equal, limit, pooler_only
from harness.wire import ServerError
from integration.test_session_extension import library, reporting

SAME_FOR_ALL_SERVERS = True
TAKES_SECONDS = 70

SETTINGS = {"pool_size": 1}
INT4, INT8, TEXT, FLOAT8, NUMERIC = 23, 20, 25, 701, 1700
TOKYO = {"timezone": "Asia/Tokyo"}
CHANGED = "0A000"


def ways(env):
    """The poolers that a test runs on. Without pg_config there is none with the extension: test_session_extension says so."""
    yield env.pooler_with(pool_size=1)
    if env.pooler:
        yield env.pooler_with(pool_size=4)
        with contextlib.suppress(Skip):
            library(env)
            yield reporting(env, pool_size=4)


def pools(test):
    """The test takes `target`, and runs on a pool of one connection, on one of four, and with the extension."""
    @functools.wraps(test)
    def run(env):
        for way in ways(env):
            with way as target:
                try:
                    test(env, target)
                finally:
                    with contextlib.suppress(ServerError):
                        env.server().execute("drop schema if exists changing cascade")
    return limit(240)(run)


def prepare(client, sql, name="s"):
    """As drivers do. Gives the types of the parameters and of the columns."""
    result = client.exchange(m.parse(sql, name), m.describe_statement(name), m.SYNC)
    assert not result.errors, result.errors
    (told,) = (one for one in result.messages if one.kind == "t")
    count, *types = struct.unpack(f"!h{(len(told.body) - 2) // 4}I", told.body)
    assert count == len(types)
    columns = [oid for one in result.messages if one.kind == "T" for _, oid, _ in one.columns()]
    return types, columns


def run(client, values=(), name="s", results=()):
    return client.exchange(m.bind(name, values=values, results=results), m.execute(), m.SYNC)


def setup(env, target, *statements):
    """A client that makes and changes things. They lie in a schema of their own."""
    owner = env.connect(target)
    owner.execute("create schema changing")
    for statement in statements:
        owner.execute(statement)
    return owner


def warm(env, target, sql, *values, **how):
    """A client that prepares the text, runs it, and leaves; on a connection that the next client gets."""
    client = env.connect(target, **how)
    prepare(client, sql)
    result = run(client, values)
    assert not result.errors, result.errors
    client.close()


def has_more_than_one(target):
    return target.pooler is not None and target.pooler.settings.get("pool_size") != 1


def has_the_only_connection(target):
    """Whether a client that keeps its connection keeps all others waiting."""
    return target.pooler is not None and target.pooler.settings.get("pool_size") == 1


def occupy(env, target):
    """Another client takes the connection that was used last, where there is another one."""
    if not has_more_than_one(target):
        return None
    other = env.connect(target)
    other.execute("begin")
    return other


# A new client gets what a Parse at that moment gives


@pools
def test_a_timestamp_that_has_become_one_with_a_time_zone(env, target):
    owner = setup(env, target, "create table changing.m (x timestamp)")
    sql = "insert into changing.m values ($1)"
    warm(env, target, sql, "2020-01-01 00:00:00", **TOKYO)
    owner.execute("truncate changing.m; alter table changing.m alter x type timestamptz")
    client = env.connect(target, **TOKYO)
    client.exchange(m.parse(sql, "s"), m.SYNC)
    result = run(client, ["2020-01-01 00:00:00+00"])
    assert not result.errors, result.errors
    equal(owner.value("select x at time zone 'UTC' from changing.m"), "2020-01-01 00:00:00")


@pools
def test_an_integer_that_has_become_wider(env, target):
    owner = setup(env, target, "create table changing.m (x int)")
    sql = "insert into changing.m values ($1)"
    for kind, oid, value in [("bigint", INT8, "3000000000"), ("numeric", NUMERIC, "1.5")]:
        warm(env, target, sql, "1")
        owner.execute(f"alter table changing.m alter x type {kind}")
        client = env.connect(target)
        equal(prepare(client, sql), ([oid], []))
        result = run(client, [value])
        assert not result.errors, result.errors
        equal(owner.value(f"select count(*) from changing.m where x = {value}"), "1")


@pools
def test_a_uuid_that_has_become_json(env, target):
    owner = setup(env, target, "create table changing.m (x uuid)")
    sql = "insert into changing.m values ($1)"
    warm(env, target, sql, "00000000-0000-0000-0000-000000000000")
    owner.execute("alter table changing.m alter x type jsonb using to_jsonb(x::text)")
    client = env.connect(target)
    client.exchange(m.parse(sql, "s"), m.SYNC)
    assert not run(client, ['{"a": 1}']).errors


@pools
def test_an_enum_that_was_made_anew(env, target):
    owner = setup(env, target, "create type changing.e as enum ('a')", "create table changing.m (x changing.e)")
    sql = "insert into changing.m values ($1)"
    warm(env, target, sql, "a")
    for change in ["alter type changing.e rename to old", "create type changing.e as enum ('a', 'b')",
                   "alter table changing.m alter x type changing.e using x::text::changing.e", "drop type changing.old"]:
        owner.execute(change)
    for _ in range(2):
        client = env.connect(target)
        prepare(client, sql)
        result = run(client, ["b"])
        assert not result.errors, result.errors
        client.close()


@pools
def test_a_function_that_was_made_anew_with_another_argument(env, target):
    owner = setup(env, target, "create function changing.f(int) returns int language sql as 'select $1'")
    sql = "select changing.f($1)::text"
    warm(env, target, sql, "1")
    owner.execute("drop function changing.f(int)")
    owner.execute("create function changing.f(text) returns text language sql as 'select $1'")
    client = env.connect(target)
    client.exchange(m.parse(sql, "s"), m.SYNC)
    equal(run(client, ["one"]).value, "one")


@pools
def test_a_table_that_is_gone(env, target):
    owner = setup(env, target, "create table changing.m (x int)")
    warm(env, target, "select x from changing.m")
    owner.execute("drop table changing.m")
    client = env.connect(target)
    equal(client.exchange(m.parse("select x from changing.m", "s"), m.SYNC).sqlstate, "42P01")


@pools
def test_a_table_that_hides_another(env, target):
    path = {"search_path": "changing, public"}
    owner = setup(env, target, "drop table if exists hidden", "create table public.hidden (x int)", "insert into public.hidden values (1)")
    try:
        sql = "select count(*) from hidden"
        warm(env, target, sql, **path)
        owner.execute("select 1 as x into changing.hidden from generate_series(1, 3)")
        client = env.connect(target, **path)
        client.exchange(m.parse(sql, "s"), m.SYNC)
        equal(run(client).value, "3")
    finally:
        owner.execute("drop table public.hidden")


@pools
def test_all_columns_of_a_table_that_has_one_more(env, target):
    owner = setup(env, target, "create table changing.m (x int)", "insert into changing.m values (1)")
    sql = "select * from changing.m"
    warm(env, target, sql)
    owner.execute("alter table changing.m add y int default 2")
    client = env.connect(target)
    client.execute("begin")
    equal(prepare(client, sql), ([], [INT4, INT4]), "in a block: somebody else's description is not theirs")
    equal(run(client).rows, [("1", "2")])
    client.execute("commit")


@pools
def test_a_change_by_a_block_of_code_or_a_function(env, target):
    owner = setup(
        env, target, "create table changing.m (x int)",
        "create function changing.alters(kind text) returns void language plpgsql as $$ begin "
        "execute 'alter table changing.m alter x type ' || kind; end $$",
        "create procedure changing.calls() language plpgsql as $$ begin alter table changing.m alter x type text; end $$")
    time.sleep(1.5 if target.pooler else 0)  # the census is taken again
    sql = "insert into changing.m values ($1)"
    for change, value in [("do $$ begin alter table changing.m alter x type bigint; end $$", "3000000000"),
                          ("select changing.alters('numeric')", "1.5"), ("call changing.calls()", "one")]:
        warm(env, target, sql, "1")
        owner.execute(change)
        client = env.connect(target)
        client.exchange(m.parse(sql, "s"), m.SYNC)
        result = run(client, [value])
        assert not result.errors, (change, result.errors)


@pools
def test_a_change_that_another_user_makes(env, target):
    owner = setup(env, target, "create table changing.m (x int)")
    owner.execute("grant all on schema changing to app2; grant all on changing.m to app2")
    sql = "insert into changing.m values ($1)"
    other = env.connect(target, user="app2")
    prepare(other, sql)
    assert not run(other, ["1"]).errors
    other.close()
    owner.execute("alter table changing.m alter x type bigint")
    client = env.connect(target, user="app2")
    equal(prepare(client, sql), ([INT8], []), "of another pool of the database")


# The session that makes the change


@pools
def test_the_session_that_makes_the_change_and_prepares_again(env, target):
    owner = setup(env, target, "create table changing.m (x int)")
    sql = "insert into changing.m values ($1)"
    prepare(owner, sql)
    assert not run(owner, ["1"]).errors
    owner.execute("alter table changing.m alter x type bigint")
    equal(run(owner, ["3000000000"]).sqlstate, "22003", "the types of its Parse stay")
    owner.exchange(m.close_statement("s"), m.SYNC)
    equal(prepare(owner, sql), ([INT8], []))
    assert not run(owner, ["3000000000"]).errors
    owner.execute("alter table changing.m alter x type numeric")
    owner.execute("deallocate all")
    equal(prepare(owner, sql), ([NUMERIC], []))
    assert not run(owner, ["1.5"]).errors


@pools
def test_the_session_that_makes_the_change_before_it_commits(env, target):
    owner = setup(env, target, "create table changing.m (x int)")
    sql = "insert into changing.m values ($1)"
    warm(env, target, sql, "1")
    owner.execute("begin")
    owner.execute("alter table changing.m alter x type bigint")
    equal(prepare(owner, sql, "a"), ([INT8], []))
    owner.execute("rollback")
    equal(prepare(owner, sql, "b"), ([INT4], []), "it was taken back")
    owner.exchange(m.parse("alter table changing.m alter x type numeric"), m.bind(), m.execute(), m.SYNC)
    equal(prepare(owner, sql, "c"), ([NUMERIC], []), "by the extended protocol")


# What only the session that makes it sees


@pools
def test_a_function_that_is_not_committed(env, target):
    make = "create function changing.f({0}) returns text language sql as $$ select '{0}'::text $$"
    owner = setup(env, target, make.format("int"))
    owner.execute("begin")
    owner.execute(make.format("text"))
    equal(prepare(owner, "select changing.f($1)", "a"), ([TEXT], [TEXT]))
    other = env.connect(target)
    if has_the_only_connection(target):
        owner.execute("rollback")
    equal(other.exchange(m.parse("select changing.f($1)", "s"), m.SYNC).sqlstate, None)
    if not has_the_only_connection(target):
        owner.execute("rollback")
    equal(run(other, ["1"]).rows, [("int",)])
    occupy(env, target)
    equal(run(other, ["1"]).rows, [("int",)])


@pools
def test_a_table_or_type_that_is_taken_back(env, target):
    owner = setup(env, target)
    for make, sql, refusal in (("create table changing.t (x int)", "select * from changing.t", "42P01"),
                               ("create type changing.e as enum ('a')", "select 'a'::changing.e", "42704")):
        owner.execute(f"begin; {make}")
        equal(owner.exchange(m.parse(sql, "a"), m.SYNC).sqlstate, None)
        other = env.connect(target)
        parses = lambda: other.exchange(m.parse(sql, "s"), m.SYNC).sqlstate
        before = refusal if has_the_only_connection(target) else parses()
        owner.execute("rollback")
        equal(before, refusal, "not committed")
        equal(parses(), refusal, "taken back")
        equal(other.exchange(m.parse("select 5", "s"), m.SYNC).sqlstate, None, "its name is free")
        equal(run(other).rows, [("5",)])
        owner.exchange(m.close_statement("a"), m.SYNC)


@pools
def test_a_temporary_table_that_goes_with_its_transaction(env, target):
    path = {"search_path": "changing"}
    owner = setup(env, target, "create table changing.t (x int)", "insert into changing.t values (1)")
    owner = env.connect(target, **path)
    for end in ("commit", "rollback"):
        for sql, rows in (("select * from t", [("1",)]), ("select *, 1 from t", [("1", "1")])):
            owner.execute("begin; create temp table t (x text, y int) on commit drop")
            equal(owner.exchange(m.parse(sql, end), m.SYNC).sqlstate, None)
            other = env.connect(target, **path)
            owner.execute(end)
            result = other.exchange(m.parse(sql, "s"), m.bind("s"), m.execute(), m.SYNC)
            equal((result.sqlstate, result.rows), (None, rows), end)
            owner.exchange(m.close_statement(end), m.SYNC)


@pools
def test_a_temporary_table_that_its_client_discards(env, target):
    path = {"search_path": "changing"}
    setup(env, target, "create table changing.t (x int)", "insert into changing.t values (1)")
    owner = env.connect(target, **path)
    owner.execute("create temp table t (x text, y int)")
    equal(owner.exchange(m.parse("table t", "s"), m.SYNC).sqlstate, None)
    owner.execute("begin; discard temp; commit")
    owner.exchange(m.close_statement("s"), m.SYNC)
    equal(prepare(owner, "table t"), ([], [INT4]))
    equal(run(owner).rows, [("1",)])


@pools
def test_a_temporary_table_that_is_its_clients_alone(env, target):
    if has_the_only_connection(target):
        return  # its client has the only server connection
    setup(env, target)
    owner, other = env.connect(target), env.connect(target)
    owner.execute("create temp table only_mine (x text)")
    equal(owner.exchange(m.parse("select * from only_mine", "s"), m.SYNC).sqlstate, None)
    equal(other.exchange(m.parse("select * from only_mine", "s"), m.SYNC).sqlstate, "42P01")
    equal(other.exchange(m.parse("select 5", "s"), m.SYNC).sqlstate, None, "its name is free")
    equal(run(other).rows, [("5",)])


# A client that has been told a description


@pools
def test_rows_of_another_shape_than_the_client_was_told(env, target):
    """The silent one: float8 is described, an int8 sent."""
    owner = setup(env, target, "create table changing.m (v float8)", "insert into changing.m values (1.5)")
    client = env.connect(target)
    equal(prepare(client, "select v from changing.m"), ([], [FLOAT8]))
    equal(len(run(client, results=[1]).rows), 1)
    occupy(env, target)
    owner.execute("alter table changing.m alter v type int8")
    for _ in range(2):
        result = run(client, results=[1])
        equal((result.sqlstate, result.rows), (CHANGED, []))
    client.execute("begin")
    result = run(client, results=[1])
    equal((result.sqlstate, result.rows, result.status), (CHANGED, [], "E"))
    client.execute("rollback")
    client.exchange(m.close_statement("s"), m.SYNC)
    equal(prepare(client, "select v from changing.m"), ([], [INT8]))
    assert not run(client, results=[1]).errors


@pools
def test_an_unnamed_statement_whose_rows_are_others(env, target):
    owner = setup(env, target, "create table changing.m (v float8)", "insert into changing.m values (1.5)")
    client = env.connect(target)
    equal(prepare(client, "select v from changing.m", ""), ([], [FLOAT8]))
    occupy(env, target)
    owner.execute("alter table changing.m alter v type int8")
    result = run(client, name="", results=[1])
    equal((result.sqlstate, result.rows), (CHANGED, []))
    equal(prepare(client, "select v from changing.m", ""), ([], [INT8]))
    assert not run(client, name="", results=[1]).errors


@pools
def test_a_description_that_is_asked_for_again(env, target):
    owner = setup(env, target, "create table changing.m (v float8)")
    client = env.connect(target)
    prepare(client, "select v from changing.m")
    occupy(env, target)
    owner.execute("alter table changing.m alter v type int8")
    equal(client.exchange(m.describe_statement("s"), m.SYNC).sqlstate, CHANGED)


@pools
def test_parameters_stay_what_the_client_was_told(env, target):
    owner = setup(env, target, "create table changing.m (x int)")
    client = env.connect(target)
    equal(prepare(client, "insert into changing.m values ($1)"), ([INT4], []))
    occupy(env, target)
    owner.execute("alter table changing.m alter x type bigint")
    for _ in range(2):
        assert not run(client, ["5"]).errors, "the server would go on to take integers"
        equal(run(client, ["3000000000"]).sqlstate, "22003")
    result = client.exchange(m.bind("s", values=[struct.pack("!i", 7)], formats=[1]), m.execute(), m.SYNC)
    assert not result.errors, result.errors
    equal(owner.rows("select x from changing.m order by x"), [("5",), ("5",), ("7",)])


@pools
def test_a_description_that_has_not_changed(env, target):
    owner = setup(env, target, "create table changing.m (x int)", "insert into changing.m values (1)")
    client = env.connect(target)
    prepare(client, "select x from changing.m")
    for change in ["alter table changing.m add y int", "create index on changing.m (x)", "drop index changing.m_x_idx"]:
        other = occupy(env, target)
        owner.execute(change)
        equal(run(client).rows, [("1",)])
        if other:
            other.close()


@pools
def test_rows_by_a_portal_of_a_name(env, target):
    owner = setup(env, target, "create table changing.m (v float8)", "insert into changing.m values (1)")
    client = env.connect(target)
    client.exchange(m.parse("select v from changing.m", "s"), m.SYNC)
    fetch = m.bind("s", "p", results=[1])
    first = client.exchange(fetch, m.describe_portal("p"), m.execute("p"), m.SYNC)
    equal(len(first.rows), 1)
    occupy(env, target)
    owner.execute("alter table changing.m alter v type int8")
    result = client.exchange(fetch, m.execute("p"), m.SYNC)
    equal((result.sqlstate, result.rows), (CHANGED, []))


# What does not pass through Hawser


@pools
def test_a_change_that_is_made_elsewhere(env, target):
    setup(env, target, "create table changing.m (x int)")
    sql = "insert into changing.m values ($1)"
    warm(env, target, sql, "1")
    env.server().execute("alter table changing.m alter x type bigint")
    time.sleep(1.1)  # longer than parse_max_age
    client = env.connect(target)
    equal(prepare(client, sql), ([INT8], []))
    assert not run(client, ["3000000000"]).errors


@pooler_only
@limit(120)
def test_parse_max_age_of_nothing_asks_the_server_each_time(env):
    with env.pooler_with(pool_size=1, parse_max_age="0") as target:
        setup(env, target, "create table changing.m (x int)")
        sql = "insert into changing.m values ($1)"
        try:
            warm(env, target, sql, "1")
            env.server().execute("alter table changing.m alter x type bigint")
            equal(prepare(env.connect(target), sql), ([INT8], []))
        finally:
            env.server().execute("drop schema changing cascade")


@pools
def test_rows_of_another_shape_by_a_change_that_is_made_elsewhere(env, target):
    setup(env, target, "create table changing.m (v float8)", "insert into changing.m values (1.5)")
    client = env.connect(target)
    prepare(client, "select v from changing.m")
    occupy(env, target)
    env.server().execute("alter table changing.m alter v type int8")
    result = run(client, results=[1])
    equal((result.sqlstate, result.rows), (CHANGED, []))


@pooler_only
@limit(120)
def test_the_extension_reports_a_change_that_is_made_elsewhere(env):
    with reporting(env, pool_size=2, parse_max_age="1h") as target:
        setup(env, target, "create table changing.m (x int)")
        sql = "insert into changing.m values ($1)"
        try:
            warm(env, target, sql, "1")
            env.server().execute("alter table changing.m alter x type bigint")
            client = env.connect(target)
            client.execute("select 1")
            equal(prepare(client, sql), ([INT8], []), "any transaction of the pool tells of it")
            assert "hawser.schema" not in client.parameters
        finally:
            env.server().execute("drop schema changing cascade")
