"""What a server process keeps to its end: buffers for temporary tables, libraries, its temporary schema. A client that gets the process
after another finds all as in a new session.

One server connection: each client has it after all others, if it may have it at all.
"""

import contextlib

from harness import extension
from harness.suite import equal, pooler_only
from harness.wire import ServerError
from integration.test_session_extension import library

SETTINGS = {"pool_size": 1}
USES_TEMPORARY = "create temp table used (i int); insert into used values (1); drop table used"
LOADS = "do $$ begin end $$"
WARNED = "01000"


@contextlib.contextmanager
def reporting(env):
    """A pooler whose server connections have the extension. With --direct: the server, without it."""
    with extension.loaded(env.cluster, library(env), ["app"]), env.pooler_with(**SETTINGS) as target:
        yield target


def pid(client):
    return client.value("select pg_backend_pid()")


def takes_temp_buffers(target):
    one = target.connect()
    for text in USES_TEMPORARY.split("; "):
        one.execute(text)
    two = target.connect()
    two.execute("set temp_buffers = '16MB'")
    for _ in range(2):
        equal(one.value("show temp_buffers"), "8MB")
        equal(two.value("show temp_buffers"), "16MB")
    two.execute(USES_TEMPORARY)
    three = target.connect(options="-c temp_buffers=24MB")
    four = target.connect(options="-c temp_buffers=2048")
    for _ in range(2):
        three.execute("begin; " + USES_TEMPORARY + "; commit")
        equal(three.value("show temp_buffers"), "24MB")
        four.execute(USES_TEMPORARY)
        equal(four.value("show temp_buffers"), "16MB")
        one.execute(USES_TEMPORARY)
        equal(one.value("show temp_buffers"), "8MB")
    two.execute("set temp_buffers = '16MB'")  # its own value: no error after temporary tables either
    two.close()


def test_temp_buffers_after_another_clients_temporary_tables(env):
    takes_temp_buffers(env.target)


def test_with_the_extension_too(env):
    with reporting(env) as target:
        takes_temp_buffers(target)


def test_and_after_temporary_tables_of_functions(env):
    with reporting(env) as target:
        one, two = target.connect(), target.connect()
        one.execute("do $$ begin execute 'create te' || 'mp table used (i int) on commit drop'; execute 'insert into used values "
                    "(1)'; end $$")
        two.execute("set temp_buffers = '16MB'")
        equal(two.value("show temp_buffers"), "16MB")


@pooler_only
def test_clients_with_the_same_temp_buffers_share_a_server_connection(env):
    for place in (contextlib.nullcontext(env.target), reporting(env)):
        with place as target:
            clients = [target.connect(options="-c temp_buffers=16MB") for _ in range(3)]
            pids = set()
            for client in clients + clients:
                client.execute(USES_TEMPORARY)
                pids.add(pid(client))
            equal(len(pids), 1)
            for client in clients:
                client.close()


def test_a_name_with_the_prefix_of_a_library_that_another_client_has_loaded(env):
    with reporting(env) as target:
        one, two, three = target.connect(), target.connect(), target.connect()
        one.execute(LOADS)
        two.execute("set plpgsql.extra_foo_warnings = true")
        two.execute("set plpgsql.extra_foo_errors = 'b'")
        for _ in range(2):
            one.execute(LOADS)
            equal(two.value("show plpgsql.extra_foo_warnings"), "true")
            equal(two.value("show plpgsql.extra_foo_errors"), "b")
            three.execute(LOADS)
        with raised("42602"):
            one.execute("do $$ begin set plpgsql.extra_foo_warnings = true; end $$")
        answer = two.execute(LOADS)
        equal([notice["C"] for notice in answer.notices], ["42602"] * 2)
        one.value("select 1")
        with raised("42704"):
            two.execute("show plpgsql.extra_foo_warnings")


@contextlib.contextmanager
def raised(code):
    try:
        yield
    except ServerError as error:
        equal(error.sqlstate, code)
    else:
        raise AssertionError(f"no {code}")


@pooler_only
def test_what_a_library_defines_is_set_where_it_is_loaded(env):
    with reporting(env) as target:
        one, two = target.connect(), target.connect(options="-c plpgsql.extra_errors=none")
        one.execute(LOADS)
        two.execute("set plpgsql.check_asserts = off")
        equal(pid(one), pid(two))
        equal(two.value("show plpgsql.check_asserts"), "off")


def test_a_session_without_temporary_objects_has_no_temporary_schema(env):
    with reporting(env) as target:
        one, two = target.connect(), target.connect()
        for _ in range(30):  # the server has 20 places for what is done at a process's end
            for text in USES_TEMPORARY.split("; "):
                one.execute(text)
        one.execute("create temp table kept (i int)")
        equal(one.value("select to_regclass('pg_temp.kept') is not null"), "t")
        one.execute("drop table kept")
        two.execute("set search_path = 'pg_temp'")
        equal(two.value("select pg_my_temp_schema()"), "0")
        equal(two.value("select current_schema() ~ 'pg_temp'"), "t")
        two.execute("reset search_path")
        one.execute("begin; create temp table kept (i int); rollback")
        one.execute("begin; savepoint s; create temp table kept (i int); rollback to s; commit")
        one.execute("begin; create temp table kept as select 1 as i")
        equal(one.value("select i from kept"), "1")
        one.execute("commit")
        equal(one.value("select i from kept"), "1")
        one.execute("drop table kept")


def test_a_seed_at_connect_sets_none(env):
    one, two = (env.connect(options="-c seed=0.5") for _ in range(2))
    drawn = [client.value("select random()") for client in (one, two) * 2]
    equal(len(set(drawn)), 4)
    equal(one.value("show seed"), "unavailable")
    with raised("22023"):
        env.connect(options="-c seed=2")


def total_cost(client):
    """Of a million rows."""
    return client.rows("explain select from generate_series(1, 1000000)")[0][0].split("..")[1].split()[0]


def test_numbers_keep_their_digits(env):
    with reporting(env) as target:
        one, two, three = target.connect(), target.connect(), target.connect(options="-c seq_page_cost=1.0000004")
        one.execute("set cpu_tuple_cost = 0.123456789")
        one.execute("set vacuum_cost_delay = '1.23456789ms'")
        two.execute("set cpu_tuple_cost = '1e-1'")
        for _ in range(2):
            equal([total_cost(client) for client in (one, two)], ["123456.79", "100000.00"])
            equal(one.value("show vacuum_cost_delay"), "1235us")
            equal(two.value("show cpu_tuple_cost"), "0.1")
            equal(three.value("show seq_page_cost"), "1")


def test_numbers_given_at_connect_keep_their_digits(env):
    for place in (contextlib.nullcontext(env.target), reporting(env)):
        with place as target:
            one = target.connect(options="-c cpu_tuple_cost=0.123456789")
            two = target.connect(options="-c cpu_tuple_cost=0.1 -c vacuum_cost_delay=1.23456789")
            for _ in range(2):
                equal([total_cost(client) for client in (one, two)], ["123456.79", "100000.00"])
                equal(two.value("show vacuum_cost_delay"), "1234.57us")
            one.close()
            two.close()
