"""State that no plain statement shows: what a client leaves by such ways is its own, and no other client finds it.

Each was once found by the next client of the one server connection.
"""

import contextlib

from harness import messages as m
from harness.suite import equal

MAKES = """
create or replace function hidden_comment() returns void language plpgsql as $f$
begin execute E'-- c\\n set search_path = evil'; end $f$;
create or replace function hidden_temporary() returns void language plpgsql as $f$
begin execute 'create /* x */ temp table unshown (a text)'; end $f$;
create or replace function hidden_block() returns void language plpgsql as $f$
begin execute $q$do $x$ begin set my.unshown = 'secret'; end $x$ $q$; end $f$;
create or replace function hidden_path(s text) returns void language plpgsql as $f$
begin perform set_config('search_path', s, true); end $f$;
create or replace function hidden_head() returns void language plpgsql set search_path = pg_temp, public as $f$
begin create table unshown (a text); end $f$;
create or replace function hidden_prepare() returns void language plpgsql as $f$
begin prepare unshown as select 'secret'; end $f$;
create or replace function hidden_deallocate() returns void language plpgsql as $f$ begin deallocate mine; end $f$;
create or replace function executes(q text) returns void language plpgsql as $f$ begin execute q; end $f$;
create or replace function gives_to_execute() returns void language plpgsql as $f$
begin perform executes('set my.unshown = ''given'''); end $f$;
create or replace function replaced() returns int language sql as 'select 1';
"""


HEAD_SETS_SEED = "create or replace function hidden_seed() returns void language plpgsql set seed = 0.25 as $f$ begin end $f$"


@contextlib.contextmanager
def one_connection(env):
    with env.connect() as maker:
        maker.execute(MAKES)
    with env.pooler_with(pool_size=1, idle_transaction_reserve=0) as target:
        yield target


def left(target, texts, show, **start):
    """What the next client of the server connection is shown after one that has run these, and gone or not. `None`: it got no answer."""
    with target.connect(**start) as client, target.connect() as other:
        other.execute("select 1")
        for text in texts:
            client.execute(text)
        client.close()
        return other.attempt(show).value


def test_what_a_function_executes_after_a_comment(env):
    with one_connection(env) as target:
        with target.connect() as client:
            path = client.value("show search_path")
        equal(left(target, ["select hidden_comment()"], "show search_path"), path)
        equal(left(target, ["select hidden_temporary()"], "select to_regclass('unshown') is null"), "t")
        equal(left(target, ["select hidden_block()"], "select coalesce(current_setting('my.unshown', true), '')"), "")


def test_temporary_tables_by_a_search_path_that_no_text_shows(env):
    makes = "create table unshown as select 'secret' a"
    with one_connection(env) as target:
        for sets in ("select set_config('search_path', 'pg_' || 'temp', true)", "select hidden_path('pg_temp')"):
            equal(left(target, ["begin", sets, makes, "commit"], "select to_regclass('unshown') is null"), "t", sets)
        sets = "select set_config('search_path', 'pg_' || 'temp', false)"
        equal(left(target, ["begin", sets, makes, "set search_path = public", "commit"], "select to_regclass('unshown') is null"), "t")
        equal(left(target, [f"{sets}; {makes}; set search_path = public"], "select to_regclass('unshown') is null"), "t")
        equal(left(target, ["select hidden_head()"], "select to_regclass('unshown') is null"), "t")


def test_an_execute_does_what_its_function_does_now(env):
    with one_connection(env) as target:
        replaces = ("create or replace function replaced() returns int language plpgsql as $f$ begin "
                    "perform set_config('my.replaced', 'secret', false); return 1; end $f$")
        texts = ["prepare p as select replaced()", "execute p", replaces, "execute p"]
        equal(left(target, texts, "select coalesce(current_setting('my.replaced', true), '')"), "")


def test_what_a_function_is_given_to_execute(env):
    show = "select current_setting('work_mem') || coalesce(current_setting('my.unshown', true), '')"
    with one_connection(env) as target:
        with target.connect() as client:
            own = client.value(show)
        for text in ("select executes('set work_mem = ''77kB''')", "select from executes($$-- c\nset my.unshown to x$$)",
                     "do $$ begin perform executes('set my.unshown = ''x'''); end $$", "select gives_to_execute()"):
            equal(left(target, [text], show), own, text)
        with target.connect() as client, target.connect() as other:
            for value in ("set work_mem = '77kB'", "select set_config('my.unshown', 'x', false)"):
                equal(client.extended("select executes($1)", (value,)).errors, [])
                equal(other.value(show), own, value)
            equal(client.value(show), "77kBx")
            refused = client.exchange(m.parse("select executes($1)"), m.bind(values=["set_config is what's meant"]), m.execute(), m.SYNC)
            equal(refused.sqlstate, "42601")
            equal(other.value(show), own)


def test_what_a_function_prepares_without_execute(env):
    with one_connection(env) as target:
        equal(left(target, ["select hidden_prepare()"], "select count(*) from pg_prepared_statements where name = 'unshown'"), "0")
        with target.connect() as client:
            client.execute("select hidden_prepare()")
            equal(client.value("execute unshown"), "secret")
        with target.connect() as client:
            equal(client.attempt("execute unshown").sqlstate, "26000", "another client's statement")
            client.execute("prepare mine as select 'mine'")
            client.execute("select hidden_deallocate()")
            equal(client.attempt("execute mine").sqlstate, "26000")


def test_begin_atomic_that_is_no_body(env):
    with one_connection(env) as target:
        with target.connect() as client:
            path = client.value("show search_path")
        text = "create or replace view unshown_view as select begin atomic from (select 1 as begin) q; set search_path = 'evil'; end"
        equal(left(target, [text], "show search_path"), path)


def test_old_names_of_settings(env):
    with one_connection(env) as target:
        with target.connect() as client:
            own = client.value("show work_mem")
        equal(left(target, ["begin", "set sort_mem = '78MB'", "commit"], "show work_mem"), own)
        with target.connect() as client, target.connect() as other:
            client.execute("set work_mem = '5MB'")
            client.execute("set Sort_Mem = '9MB'")
            other.execute("select 1")
            equal((client.value("show work_mem"), client.value("show sort_mem")), ("9MB", "9MB"))
        with target.connect(options="-c sort_mem=71MB") as client:
            client.execute("set work_mem = '5MB'")
            client.execute("reset work_mem")
            equal(client.value("show work_mem"), "71MB")


def test_a_seed_is_not_left_though_it_was_set_up_to_the_end_of_the_transaction(env):
    ways = [["begin", "set local seed to 0.5", "commit"], ["select set_config('seed', '0.5', true)"]]
    with one_connection(env) as target:
        with env.connect() as maker:
            made = maker.attempt(HEAD_SETS_SEED)
            # 0A000: not allowed since PostgreSQL 16.
            equal([error["C"] for error in made.errors], [] if env.cluster.version < 16 else ["0A000"])
            if not made.errors:
                ways.append(["select hidden_seed()"])
        with target.connect() as client:
            client.execute("select setseed(0.5)")
            after_half = client.value("select random()")
        with target.connect() as client:
            client.execute("select setseed(0.25)")
            after_quarter = client.value("select random()")
        for texts in ways:
            assert left(target, texts, "select random()") not in (after_half, after_quarter), texts
