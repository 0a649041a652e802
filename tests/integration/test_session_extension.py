"""The extension's reports: what functions do to a session moves and pins like what a statement's text shows.

The library is built from extension/ and loaded by its path, for sessions of the role `app` that begin while a test runs:
nothing is installed into the server.
"""

import contextlib
import pathlib
import re
import struct
import threading

from harness import extension
from harness import messages as m
from harness.suite import Skip, equal, limit, pooler_only, until
from harness.wire import ServerError

ROOT = pathlib.Path(__file__).resolve().parents[2]
SETTINGS = {"pool_size": 2}

SETUP = """
create schema if not exists exact;
grant all on schema exact to app;
create or replace function exact.sets(name text, value text) returns void language plpgsql
  as $$ begin perform set_config(name, value, false); end $$;
create or replace function exact.resets(name text) returns void language plpgsql as $$ begin execute 'reset ' || name; end $$;
create or replace function exact.sets_what_it_may_not() returns void language plpgsql security definer
  as $$ begin perform set_config('log_min_duration_statement', '1h', false); end $$;
create or replace function exact.makes(statement text) returns void language plpgsql as $$ begin execute statement; end $$;
create or replace view exact.locks as select pg_advisory_lock(42)::text as taken;
create table if not exists exact.numbered (id serial, t text);
grant all on all tables in schema exact to app;
grant all on all sequences in schema exact to app;
"""


def library(env, version="1"):
    """The extension's library, whose reports bear this version."""
    def change(sources):
        header = sources / "hawser.h"
        text = header.read_text()
        assert '#define STATE_VERSION "1"' in text
        header.write_text(text.replace('#define STATE_VERSION "1"', f'#define STATE_VERSION "{version}"'))

    try:
        return extension.build(env.cluster, env.directory, f"extension{'' if version == '1' else version}", change)
    except extension.CannotBuild as error:
        raise Skip(f"the extension cannot be built: {error}") from error


@contextlib.contextmanager
def reporting(env, version="1", **settings):
    """A pooler whose server connections have the extension. With --direct: the server, without it."""
    path = library(env, version)
    with env.cluster.superuser() as server:
        server.execute(SETUP)
    try:
        with extension.loaded(env.cluster, path, ["app"]), env.pooler_with(**settings) as target:
            yield target
    finally:
        with env.cluster.superuser() as server:
            server.execute("drop schema exact cascade")


def pins(target):
    return sorted(row["pins"] for row in target.pooler.show("CLIENTS") if row["pins"])


def test_a_function_made_through_the_pool_counts_for_plans_at_once(env):
    """With the extension it counted after the next look at the functions: until then a plan gave one client's value to others."""
    with reporting(env, pool_size=1) as target, target.connect() as one, target.connect() as other:
        for client, value in ((one, "one"), (other, "other")):
            client.execute(f"set my.own = '{value}'")
        for attempt in range(5):
            one.execute(f"create function exact.constant{attempt}() returns text immutable language sql as $$ select "
                        f"current_setting('my.own', true) $$; "
                        f"create function exact.outer{attempt}() returns text language plpgsql as $$ begin return "
                        f"exact.constant{attempt}(); end $$")
            equal([client.value(f"select exact.outer{attempt}()") for client in (one, other)], ["one", "other"], attempt)


def exact(target):
    """How many server connections of the pool tell what their sessions hold."""
    return [row["sv_exact"] for row in target.pooler.show("POOLS") if row["database"] == "app"]


def questions(env):
    """How often a session has been asked what is left of it, as the last query of idle backends shows it."""
    return len(env.cluster.backends("query like '/* hawser: what is left%'"))


def elsewhere(env, target, client):
    """Another client keeps the backend that `client` has had last, in a transaction. It must be closed for others to have it."""
    before = client.value("select pg_backend_pid()")
    other = env.connect(target)
    other.execute("begin")
    equal(other.value("select pg_backend_pid()"), before, "the backend that was used last is lent first")
    return other, before


@pooler_only
@limit(180)
def test_a_setting_of_a_function_moves_with_the_client(env):
    with reporting(env) as target:
        client = env.connect(target)
        client.execute("select exact.sets('work_mem', '5MB')")
        client.execute("select exact.sets('search_path', 'exact, \"$user\", public')")
        equal(pins(target), [])
        equal(exact(target), ["1"])
        other, before = elsewhere(env, target, client)
        equal(other.value("show work_mem"), "4MB", "leaked")
        assert client.value("select pg_backend_pid()") != before
        equal(client.rows("select current_setting('work_mem'), current_setting('search_path')"), [("5MB", 'exact, "$user", public')])
        client.execute("select exact.resets('work_mem')")
        equal(client.value("show work_mem"), "4MB")
        equal(questions(env), 0, "questions to the server")


@pooler_only
@limit(180)
def test_a_custom_name_of_a_function_moves_and_stays_unheard_of_elsewhere(env):
    with reporting(env, pool_size=1) as target:
        client, other = env.connect(target), env.connect(target)
        client.execute("select exact.sets('my.tenant', 'd''\u00e9j\u00e0')")
        equal(pins(target), [])
        equal(other.value("select current_setting('my.tenant', true) is null"), "t", "another client has heard of it")
        equal(client.value("select current_setting('my.tenant', true)"), "d'\u00e9j\u00e0")
        # A value that is too long to be reported is asked for.
        client.execute("select exact.sets('my.tenant', repeat('x', 3000))")
        equal(other.value("select current_setting('my.tenant', true) is null"), "t")
        equal(client.value("select length(current_setting('my.tenant', true))"), "3000")


@pooler_only
@limit(180)
def test_set_config_of_names_that_are_not_in_the_text_moves(env):
    with reporting(env, pool_size=1) as target:
        client, other = env.connect(target), env.connect(target)
        client.extended("select set_config($1, $2, false)", ["work_mem", "7MB"])
        equal(pins(target), [])
        equal(other.value("show work_mem"), "4MB")
        equal(client.value("show work_mem"), "7MB")
        client.execute("do $$ begin execute 'set work_mem to ''8MB'''; end $$")
        equal(other.value("show work_mem"), "4MB")
        equal(client.value("show work_mem"), "8MB")


@pooler_only
@limit(180)
def test_a_rollback_takes_back_what_a_function_has_set(env):
    with reporting(env, pool_size=1) as target:
        client, other = env.connect(target), env.connect(target)
        client.execute("begin; select exact.sets('work_mem', '5MB'); savepoint a; select exact.sets('work_mem', '6MB'); rollback "
                       "to a; commit")
        other.execute("select 1")
        equal(client.value("show work_mem"), "5MB")
        client.execute("begin; select exact.sets('work_mem', '9MB'); rollback")
        other.execute("select 1")
        equal(client.value("show work_mem"), "5MB")


@pooler_only
@limit(180)
def test_a_function_that_resets_gives_back_the_clients_own_start_value(env):
    with reporting(env, pool_size=1) as target:
        client = env.connect(target, options="-c work_mem=11MB")
        client.execute("select exact.sets('work_mem', '5MB')")
        equal(client.value("show work_mem"), "5MB")
        client.execute("select exact.resets('work_mem')")
        equal(client.value("show work_mem"), "11MB")


@pooler_only
@limit(180)
def test_so_does_what_the_server_reports_and_the_client_is_told(env):
    with reporting(env, pool_size=1) as target:
        client, other = env.connect(target, datestyle="German, DMY", timezone="Asia/Tokyo"), env.connect(target)
        for name, shown in (("datestyle", ("German, DMY", "Asia/Tokyo")), ("all", ("German, DMY", "Asia/Tokyo"))):
            client.execute("set timezone to 'America/New_York'")
            client.execute("set timezone to 'Asia/Tokyo'")
            client.execute(f"select exact.resets('{name}')")
            equal((client.parameters["DateStyle"], client.parameters["TimeZone"]), shown, f"told behind RESET {name}")
            equal((client.value("show datestyle"), client.value("show timezone")), shown, f"in force behind RESET {name}")
            other.execute("set datestyle to 'SQL, MDY'")
            equal((client.value("show datestyle"), client.value("show timezone")), shown)


@pooler_only
@limit(180)
def test_a_start_value_is_back_after_a_reset_in_a_function_and_set_local(env):
    with reporting(env, pool_size=1) as target:
        start = {"timezone": "Asia/Tokyo", "options": "-c work_mem=11MB -c my.tenant=own"}
        client, other, wrong = env.connect(target, **start), env.connect(target), []
        show = "select current_setting('timezone'), current_setting('work_mem'), current_setting('my.tenant')"
        own = ("Asia/Tokyo", "11MB", "own")
        for name, values in (("timezone", ("Asia/Tokyo", "Europe/Berlin")), ("work_mem", ("11MB", "5MB")), ("my.tenant", ("own", "y"))):
            for value in values:
                for sets in (f"set local {name} = '{value}'", f"select set_config('{name}', '{value}', true)"):
                    for savepoint in ("", "savepoint a; "):
                        sql = f"begin; select exact.resets('{name}'); {savepoint}{sets}; commit"
                        for texts in ([sql], sql.split("; ")):
                            for text in texts:
                                client.execute(text)
                            one = client.rows(show)[0]
                            other.execute("select 1")
                            if (one, client.rows(show)[0]) != (own, own) or client.parameters["TimeZone"] != own[0]:
                                wrong.append((texts, one))
        equal(wrong, [])
        # What the client has SET before and within is its own.
        client.execute("begin; set work_mem = '6MB'; set local work_mem = '5MB'; commit")
        other.execute("select 1")
        equal(client.value("show work_mem"), "6MB")


@pooler_only
@limit(180)
def test_state_of_functions_pins_while_it_is_there(env):
    with reporting(env) as target:
        for make, part, use, end in (
                ("create temp table made as select 1 as x", "temporary_object", "select x from made", "drop table made"),
                ("select pg_advisory_lock(7)", "advisory_lock", "select count(*) from pg_locks where locktype = 'advisory' and pid = "
                                                                "pg_backend_pid()", "select pg_advisory_unlock(7)"),
                ("listen made", "listen", "select count(*) from pg_listening_channels()", "unlisten made")):
            client = env.connect(target)
            client.execute(f"select exact.makes('{make}')")
            equal(pins(target), [part], make)
            other = env.connect(target)
            other.execute("begin")
            equal(client.value(use), "1", make)
            other.execute("commit")
            client.execute(f"select exact.makes('{end}')")
            equal(pins(target), [], end)
            client.close()
        equal(questions(env), 0, "questions to the server")


@pooler_only
@limit(180)
def test_a_lock_of_a_view_pins_and_its_release_in_a_function_unpins(env):
    with reporting(env) as target:
        client = env.connect(target)
        client.execute("select taken from exact.locks")
        equal(pins(target), ["advisory_lock"])
        equal(env.connect(target).value("select pg_try_advisory_lock(42)"), "f", "it is not released")
        client.execute("select exact.makes('select pg_advisory_unlock(42)')")
        equal(pins(target), [])
        client.execute("select taken from exact.locks")
        client.close()
        until(lambda: env.connect(target).value("select pg_try_advisory_xact_lock(42)") == "t", "the lock's end")


@pooler_only
@limit(180)
def test_what_only_seems_to_make_state_pins_nobody_and_asks_nothing(env):
    with reporting(env) as target:
        client = env.connect(target)
        for sql in ("select 'set_config(a)'", "select set_config('a.b', 'c', false) where false",
                    "create temp table t (i int) on commit drop",
                    "begin; create temp table t (i int); rollback", "do $$ begin execute 'select 1'; end $$",
                    "select pg_advisory_xact_lock(1)"):
            client.execute(sql)
            equal(pins(target), [], sql)
        equal(questions(env), 0, "questions to the server")


@pooler_only
@limit(180)
def test_what_a_client_may_not_set_itself_stays_with_its_backend(env):
    with reporting(env) as target:
        client = env.connect(target)
        client.execute("select exact.sets_what_it_may_not()")
        equal(pins(target), ["setting"])
        other = env.connect(target)
        other.execute("begin")
        equal(client.value("show log_min_duration_statement"), "1h")
        equal(other.value("show log_min_duration_statement"), "-1", "leaked")
        other.execute("commit")
        client.close()
        until(lambda: pins(target) == [], "its end")
        for _ in range(3):
            equal(env.connect(target).value("show log_min_duration_statement"), "-1", "left behind")


@limit(180)
def test_no_client_sees_the_report(env):
    with reporting(env) as target:
        for options in ({}, {"hawser.report": "on"}):
            client = env.connect(target, **options)
            for sql in ("select exact.sets('work_mem', '5MB')", "create temp table t (i int)", "discard all", "begin; select 1; commit"):
                result = client.execute(sql)
                told = [message.body for message in result.messages if message.kind == "S" and message.body.startswith(b"hawser")]
                if target.pooler or not options:
                    equal(told, [], sql)
            if target.pooler:
                assert not any(name.startswith("hawser") for name in client.parameters), client.parameters
        with env.connect(env.cluster.target, user="app", database="app") as direct:
            # The pooler asks for reports; nothing else is another than on a direct connection.
            ask = "select name, setting from pg_settings where name like 'hawser.%' and name <> 'hawser.report' order by 1"
            equal(client.rows(ask), direct.rows(ask))
            # (Those of plpgsql come with the first call of a function.)
            names = "select name from pg_settings where name not like 'plpgsql.%' order by 1"
            equal(client.rows(names), direct.rows(names))
            shown = [[row[0] for row in session.rows("show all") if not row[0].startswith("plpgsql.")] for session in (client, direct)]
            equal(shown[0], shown[1])


@pooler_only
@limit(180)
def test_slots_and_backups_pin_until_they_end(env):
    new = env.cluster.version >= 15
    start, stop = ("pg_backup_start('b', true)", "pg_backup_stop(false)") if new else ("pg_start_backup('b', true, false)",
                                                                                       "pg_stop_backup(false, false)")
    may = ("pg_backup_start(text, boolean), pg_backup_stop(boolean)" if new else
           "pg_start_backup(text, boolean, boolean), pg_stop_backup(boolean, boolean)")
    slot = "pg_create_physical_replication_slot('told', false, true)"
    with env.cluster.superuser() as server:
        server.execute(f"alter role app replication; grant execute on function {may} to app")
        try:
            with reporting(env) as target:
                client = env.connect(target)
                pid = client.value("select pg_backend_pid()")
                for make, end, part in (
                    (f"select {slot}", "select pg_drop_replication_slot('told')", "temporary_slot"),
                    (f"select exact.makes($$ select {slot} $$)", "select exact.makes($$ select pg_drop_replication_slot('told') $$)",
                     "temporary_slot"),
                    (f"select {start}", f"select {stop}", "backup_in_progress"),
                ):
                    client.execute(make)
                    equal(pins(target), [part], make)
                    client.execute("discard all")
                    equal(pins(target), [part], make)
                    client.execute(end)
                    equal(pins(target), [], end)
                    equal(client.value("select pg_backend_pid()"), pid, "the server connection lives on")
                client.execute("select pg_create_physical_replication_slot('lasting'); select pg_drop_replication_slot('lasting')")
                equal(pins(target), [])
                client.execute(f"select exact.makes($$ select {slot} $$)")
                client.close()
                until(lambda: server.value("select count(*) from pg_replication_slots") == "0", "the slot goes with its client")
        finally:
            server.execute(f"alter role app noreplication; revoke execute on function {may} from app")


@limit(180)
def test_lastval_answers_from_the_first_time_on(env):
    with reporting(env) as target:
        client, other = env.connect(target), env.connect(target)
        drawn = client.value("insert into exact.numbered (t) values ('x') returning id")
        equal(client.value("select lastval()"), drawn, "the first time")
        for _ in range(3):
            drawn = client.value("insert into exact.numbered (t) values ('x') returning id")
            equal(client.value("select lastval()"), drawn)
            equal(client.value("select lastval()"), drawn, "once more")
            equal(other.attempt("select lastval()").sqlstate, "55000", "another's value")
        # From its second time on it keeps its backend, whoever else wants one.
        drawn = client.value("insert into exact.numbered (t) values ('x') returning id")
        for _ in range(3):
            other.execute("select 1")
        equal(client.value("select currval('exact.numbered_id_seq')"), drawn)
        if target.pooler:
            until(lambda: pins(target) == [], "it asks no more")


@limit(180)
def test_every_client_gets_its_own_lastval_beside_others_from_the_very_first_on(env):
    with reporting(env, pool_size=2) as target:
        over = threading.Event()

        def others():
            with target.connect() as one:
                while not over.is_set():
                    one.value("insert into exact.numbered (t) values ('y') returning id")

        crowd = [threading.Thread(target=others) for _ in range(4)]
        for one in crowd:
            one.start()
        try:
            for ask in ("select lastval()", "select currval('exact.numbered_id_seq')"):
                for n in range(8):
                    with target.connect() as client:
                        drawn = client.value("insert into exact.numbered (t) values ('x') returning id")
                        equal(client.attempt(ask).rows, [(drawn,)], f"request {n}")
        finally:
            over.set()
            for one in crowd:
                one.join()


@limit(180)
def test_who_asks_again_gets_the_same_again_beside_others(env):
    with reporting(env, pool_size=2) as target:
        over = threading.Event()

        def others():
            with target.connect() as one:
                while not over.is_set():
                    one.value("select nextval('exact.numbered_id_seq')")

        crowd = [threading.Thread(target=others) for _ in range(4)]
        for one in crowd:
            one.start()
        try:
            for n in range(6):
                with target.connect() as client:
                    drawn = client.value("insert into exact.numbered (t) values ('x') returning id")
                    told = [client.attempt(ask).rows for ask in ("select lastval()", "select 1", "select lastval()")]
                    if n > 0 or not target.pooler:  # the first one teaches the pool
                        equal(told, [[(drawn,)], [("1",)], [(drawn,)]], f"client {n}")
        finally:
            over.set()
            for one in crowd:
                one.join()


@pooler_only
@limit(180)
def test_drawing_from_a_sequence_pins_nobody_for_long(env):
    with reporting(env, pool_size=1) as target:
        clients = [env.connect(target) for _ in range(3)]
        for _ in range(3):
            for client in clients:
                client.execute("insert into exact.numbered (t) values ('x')")
        until(lambda: pins(target) == [], "none asks")
        for client in clients:
            # The last has drawn what is there, until another has the server connection.
            equal(client.attempt("begin; select 1; select lastval()").sqlstate, "55000", "another's value")
            client.execute("rollback")


@pooler_only
@limit(180)
def test_what_a_function_call_draws_is_its_clients_own(env):
    """A FunctionCall names an oid: whether it draws a value or asks for one is not in the message."""
    with reporting(env, pool_size=2) as target:
        one, two = env.connect(target), env.connect(target)
        oid = int(one.value("select 'exact.numbered_id_seq'::regclass::oid"))
        nextval = m.function_call(1574, [struct.pack("!I", oid)])
        for _ in range(3):
            equal(one.exchange(nextval).sqlstate, None)
            drawn = one.value("select last_value from exact.numbered_id_seq")
            two.exchange(nextval)
            two.execute("select 1")
            equal(one.value("select lastval()"), drawn, "the value that its FunctionCall drew")


@pooler_only
@limit(180)
def test_without_it_or_with_extension_off_all_is_as_before(env):
    for where, settings in (("off", {"extension": "off"}), ("no extension", {})):
        with contextlib.ExitStack() as stack:
            target = stack.enter_context(reporting(env, **settings))
            if where == "no extension":
                with env.cluster.superuser() as server:
                    server.execute("alter role app reset session_preload_libraries")
            client = env.connect(target)
            client.execute("select pg_advisory_lock(1)")
            equal(pins(target), ["advisory_lock"], where)
            client.execute("select pg_advisory_unlock(1)")
            until(lambda: pins(target) == [], "the answer to the question")
            assert questions(env) > 0, where
            client.execute("set work_mem = '5MB'")
            equal(client.value("show work_mem"), "5MB", where)
            client.extended("select set_config($1, $2, false)", ["work_mem", "7MB"])
            assert pins(target), f"{where}: the text does not show the name"
            equal(exact(target), ["0"], where)
            assert "hawser.report" not in target.pooler.text() and "are not used" not in target.pooler.text()


@pooler_only
@limit(180)
def test_an_extension_of_another_version_is_said_once_and_not_believed(env):
    with reporting(env, version="2") as target:
        clients = [env.connect(target) for _ in range(3)]
        for client in clients:
            client.execute("select pg_advisory_lock(1)")
            client.execute("select pg_advisory_unlock(1)")
            until(lambda: pins(target) == [], "the answer to the question")
            assert "hawser.state" not in client.parameters
            told = client.execute("create temp table t (i int)").messages
            assert not any(message.kind == "S" for message in told), told
            client.execute("drop table t")
        equal(len(re.findall("are not used", target.pooler.text())), 1)
        equal(exact(target), ["0"])


@pooler_only
def test_every_setting_for_superusers_is_known_as_one(env):
    text = (ROOT / "crates/pooler/src/session/settings.rs").read_text()
    known = set(re.findall(r'b"(\w+)"', text.split("const FOR_SUPERUSERS")[1].split("\n];")[0])) | {"zero_damaged_pages"}
    with env.cluster.superuser() as server:
        theirs = {name for (name,) in server.rows("select name from pg_settings where context in ('superuser', 'superuser-backend') and "
                                                  "name not like '%.%'")}
    missing = {name for name in theirs if not name.startswith("log_")} - known
    equal(missing, set(), "not known to be for superusers")


def test_a_statement_keeps_to_the_path_in_force_after_two_others(env):
    """asyncpg's `test_copy_to_table_basics`: what was prepared before the first of two SETs."""
    with reporting(env, pool_size=2) as target, target.connect() as client:
        client.execute("create table twice_set (v int); insert into twice_set values (1)")
        try:
            client.exchange(m.parse("select v from twice_set", "s"), m.SYNC)
            client.execute("set search_path to nowhere")
            client.execute("set search_path to public")
            equal(client.exchange(m.bind("s"), m.execute(), m.SYNC).rows, [("1",)])
        finally:
            client.execute("drop table public.twice_set")


# What leaves a connection of dblink, which another client could use with its rights; and whether a server without the
# extension shows it, too.
CONNECTS = [
    ("select * from linked.connects", True),
    ("select linked.joins('c', linked.itself())", True),  # by another name than its own
    ("select linked.runs('select linked.joins(''c'', linked.itself())')", True),
    ("select linked.runs(text) from linked.texts", False),
    ("do $$ begin execute 'select linked.jo' || 'ins(''c'', linked.itself())'; end $$", False),
]


@limit(120)
def test_no_client_gets_a_connection_of_dblinks_that_another_has_made(env):
    with env.cluster.superuser() as server:
        server.execute("drop schema if exists linked cascade; create schema linked")
        try:
            server.execute("create extension dblink schema linked")
        except ServerError as error:
            raise Skip(f"the server has no dblink: {error}") from None
        server.execute(f"""
            alter function linked.dblink_connect_u(text, text) rename to joins;
            create function linked.itself() returns text language sql as
            $$ select 'host={env.cluster.socket_dir} port={env.cluster.port} user=app_trust dbname=app' $$;
            create view linked.connects as select linked.joins('c', linked.itself());
            create function linked.runs(t text) returns text language plpgsql as
            $$ declare r text; begin execute t into r; return r; end $$;
            create table linked.texts as select 'select linked.joins(''c'', linked.itself())'::text as text;
            grant usage on schema linked to app; grant all on all tables in schema linked to app;
            grant all on all functions in schema linked to app;
            """)
    try:
        for exact in (False, True):
            with (reporting(env, pool_size=1) if exact else env.pooler_with(pool_size=1)) as target:
                for text, shown in CONNECTS:
                    if not shown and not exact:
                        continue
                    with target.connect() as client:
                        equal(client.value("select linked.dblink_get_connections()"), None, f"{exact}, before {text}")
                        client.execute(text)
                        equal(client.value("select linked.dblink_get_connections()"), "{c}", f"{exact}, {text}")
                        if target.pooler:
                            equal(len(pins(target)), 1, f"{exact}, {text}")
                    with target.connect() as other:
                        equal(other.value("select linked.dblink_get_connections()"), None, f"{exact}, after {text}")
    finally:
        with env.cluster.superuser() as server:
            server.execute("drop schema linked cascade")
