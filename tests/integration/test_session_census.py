"""What functions do to sessions without a word of it in the statement: known by their sources, without the extension."""

import contextlib
import time
from concurrent import futures

from harness import messages as m
from harness.suite import Skip, create_perl, equal, limit, on_every_backend, pooler_only, until

TAKES_SECONDS = 90

SETTINGS = {"pool_size": 2}

FUNCTIONS = """
create or replace function enter(who text) returns text language plpgsql as $$
begin return set_config('app.who', who, false); end $$;
create or replace function slow_down() returns void language plpgsql as $$ begin set work_mem = '77kB'; end $$;
create or replace function speed_up() returns void language plpgsql as $$ begin reset work_mem; end $$;
create or replace function hold_lock(a int) returns void language sql as 'select pg_advisory_lock(a)';
create or replace function let_go(a int) returns bool language sql as 'select pg_advisory_unlock(a)';
create or replace function scratch() returns void language plpgsql as $$ begin execute 'create temp table scratch (a int)'; end $$;
create or replace function anything(q text) returns void language plpgsql as $$ begin execute q; end $$;
create or replace function on_audited() returns trigger language plpgsql as $$
begin perform enter('trigger of ' || new.a); return new; end $$;
drop table if exists audited cascade;
create table audited (a int);
create trigger t before insert on audited for each row execute function on_audited();
create or replace view entering as select enter('view');
create or replace function plain(a int) returns int language sql as 'select a';
drop function if exists me();
"""

WHO = "select current_setting('app.who', true)"

# A census is taken once a second at most, and of what was changed through the pooler.
CENSUS_SECONDS = 2.5


@contextlib.contextmanager
def pooler_of(env, **settings):
    """A pooler that has not seen how the functions were made."""
    with env.connect() as maker:
        maker.execute(FUNCTIONS)
    with env.pooler_with(**settings) as target:
        yield target


def others(target, show):
    """What other clients see, on each server connection that is free."""
    clients = [target.connect() for _ in range(2)]
    for client in clients:
        client.send(m.query("begin"), m.query(show), m.query("commit"))
    shown = []
    for client in clients:
        client.collect()
        shown += client.collect().rows[0]
        client.collect()
        client.close()
    return shown


def always(target, client, show):
    """What a client sees, whatever others do in between."""
    values = set()
    for _ in range(3):
        values |= {client.value(show)}
        others(target, "select 1")
    assert len(values) == 1, values
    return values.pop()


def pins(target):
    with target.pooler.admin() as console:
        return console.rows("show pins")


def test_settings_that_functions_set_move_and_are_nobody_elses(env):
    with pooler_of(env) as target, target.connect() as client:
        for text, expected in (
            ("select enter('ann')", "ann"),
            ("insert into audited values (5)", "trigger of 5"),
            ("select * from entering", "view"),
            ("begin; select enter('bob'); commit", "bob"),
            ("begin; select enter('eve'); rollback", "bob"),
            ("begin; savepoint a; select enter('eve'); rollback to a; commit", "bob"),
        ):
            client.execute(text)
            equal(always(target, client, WHO), expected, text)
            assert expected not in others(target, WHO), text
        equal(client.extended("select enter($1)", ("bound",)).errors, [])
        equal(always(target, client, WHO), "bound")
        client.execute("select slow_down()")
        equal(always(target, client, "show work_mem"), "77kB")
        equal(others(target, "show work_mem"), ["4MB"] * 2)
        client.execute("select speed_up()")
        equal(always(target, client, "show work_mem"), "4MB")
        until(lambda: pins(target) == [], "only the INSERT keeps a server connection, for a second")
        with target.connect(options="-c work_mem=123kB") as own:
            own.execute("select slow_down()")
            equal(always(target, own, "show work_mem"), "77kB")
            own.execute("select speed_up()")
            equal(always(target, own, "show work_mem"), "123kB", "its own start value")


def test_what_functions_and_blocks_reset_goes_back_to_the_clients_start_values(env):
    """Reported by the server, custom and neither: a driver gives each at its start, and a function may reset it."""
    with env.server() as server:
        server.execute("create or replace procedure resets() language plpgsql as "
                       "$$ begin set timezone to 'Asia/Tokyo'; reset timezone; reset work_mem; reset app.tenant; end $$")
    show = "select current_setting('timezone'), current_setting('work_mem'), current_setting('app.tenant', true)"
    block = "do $$ begin set timezone to 'Asia/Tokyo'; reset timezone; reset work_mem; reset app.tenant; end $$"
    start = [("Europe/Berlin", "9MB", "seven")]
    try:
        with pooler_of(env, pool_size=2) as target:
            for reset in ("call resets()", block):
                client = target.connect(timezone="Europe/Berlin", options="-c work_mem=9MB -c app.tenant=seven")
                for before in ("select 1", "set timezone to 'UTC'; set work_mem to '5MB'; set app.tenant to 'eight'"):
                    client.execute(before)
                    client.execute(reset)
                    for _ in range(3):
                        equal(client.rows(show), start, (reset, before))
                        equal(client.parameters["TimeZone"], "Europe/Berlin", (reset, before))
                equal(pins(target), [], reset)
                with target.connect() as other:
                    assert not {"seven", "9MB"} & set(others(target, show)), reset
                    equal(other.value("select current_setting('work_mem')"), "4MB", reset)
                client.close()
    finally:
        with env.server() as server:
            server.execute("drop procedure resets()")


def test_blocks_whose_source_shows_all_keep_no_server_connection(env):
    with pooler_of(env, pool_size=1, idle_transaction_reserve=0) as target, target.connect() as client, target.connect() as other:
        client.execute("drop table if exists changed; create table changed (a int)")
        blocks = (
            "do $$ begin update changed set a = 1; end $$",
            "do $$ begin if not exists (select from pg_type where typname = 'mood') then "
            "execute 'create type mood as enum (''glad'')'; end if; end $$ language plpgsql",
            "do $$ begin execute format('alter table %I add column if not exists b int', 'changed'); end $$;",
            "do language plpgsql $x$ begin set work_mem = '77kB'; perform set_config('app.who', 'block', false); end $x$",
        )
        for block in blocks:
            client.execute(block)
            equal(other.rows("select current_setting('work_mem'), coalesce(current_setting('app.who', true), '')"), [("4MB", "")], block)
        equal(client.rows("select current_setting('work_mem'), current_setting('app.who')"), [("77kB", "block")])
        client.execute("drop table changed; drop type mood")


def test_what_functions_make_and_lock_pins_as_long_as_it_is_there(env):
    with pooler_of(env) as target, target.connect() as client:
        client.execute("select hold_lock(4711)")
        held = "select count(*) from pg_locks where locktype = 'advisory' and pid = pg_backend_pid()"
        equal(always(target, client, held), "1")
        equal(len(pins(target)), 1)
        client.execute("select let_go(4711)")
        client.execute("select 1")
        equal(pins(target), [])
        client.execute("select scratch()")
        equal(always(target, client, "select count(*) from scratch"), "0")
        client.execute("drop table scratch")
        client.execute("select 1")
        equal(pins(target), [])
        client.execute("select anything('create temp table made (a int)')")
        equal(always(target, client, "select count(*) from made"), "0")
        client.execute("select anything('drop table made')")
        client.execute("select 1")
        equal(pins(target), [])


def test_a_changed_function_counts_for_statements_that_were_there_before(env):
    with pooler_of(env) as target, target.connect() as client, target.connect() as maker:
        call = m.bind("c", values=["1"]) + m.execute()
        equal(client.exchange(m.parse("select plain($1)", "c"), call, m.SYNC).errors, [])
        maker.execute("create or replace function plain(a int) returns int language plpgsql as "
                      "$$ begin perform enter('changed'); return a; end $$")
        time.sleep(CENSUS_SECONDS)
        equal(client.exchange(call, m.SYNC).errors, [])
        equal(always(target, client, WHO), "changed")
        assert "changed" not in others(target, WHO)


def test_long_texts_are_read_for_what_they_call(env):
    with pooler_of(env) as target, target.connect() as client:
        client.execute(f"select /* {'x' * 100_000} */ enter('long')")
        equal(always(target, client, WHO), "long")
        assert "long" not in others(target, WHO)


def parses(target):
    return sum(int(row["total_server_parse_count"]) for row in target.pooler.show("stats") if row["database"] == "app")


def test_statements_are_shared_where_no_plan_depends_on_a_custom_setting(env):
    for settings, count in (({}, 1), ({"function_census": False}, 4), ({"custom_settings_in_plans": True}, 4)):
        with pooler_of(env, pool_size=1, **settings) as target:
            clients = [target.connect(options=f"-c app.who=w{n}") for n in range(4)]
            before = parses(target)
            for client in clients:
                result = client.exchange(m.parse("select 41 + $1::int", "s"), m.bind("s", values=["1"]), m.execute(), m.SYNC)
                equal((result.errors, result.rows), ([], [("42",)]))
            for client in clients:
                equal(client.exchange(m.bind("s", values=["1"]) + m.execute(), m.SYNC).rows, [("42",)])
            equal(parses(target) - before, count, settings)


def test_they_are_not_where_one_does_nor_once_one_does(env):
    """A function that is declared IMMUTABLE and reads a setting is called by the planner, for whoever comes first."""
    with pooler_of(env, pool_size=1) as target, target.connect() as maker:
        clients = [target.connect(options=f"-c app.who=w{n}") for n in range(4)]
        maker.execute("create function me() returns text stable language sql as $$ select current_setting('app.who') $$")

        def each_sees_its_own(calls):
            for _ in range(7):  # beyond the custom plans
                for n, client in enumerate(clients):
                    result = client.exchange(m.bind("me", values=["1"]) + m.execute(), m.SYNC)
                    equal((result.errors, result.rows), ([], [(f"w{n}", "1")]), calls)

        for client in clients:
            equal(client.exchange(m.parse("select me(), $1::int", "me"), m.SYNC).errors, [])
        each_sees_its_own("stable")
        shared = parses(target)
        maker.execute("alter function me() immutable")
        time.sleep(CENSUS_SECONDS)
        each_sees_its_own("immutable")
        assert parses(target) - shared >= 4
        maker.execute("drop function me()")


def moves(target, client, call, expected):
    """What a call has set is its client's, and nobody else's."""
    equal(client.exchange(m.message("Q", call + b"\0")).errors, [], call)
    equal(always(target, client, WHO), expected, call)
    assert expected not in others(target, WHO), call


LONG = "f" * 61 + "é"

NAMED = f"""
create or replace function {LONG}() returns text language sql as $$ select enter('cut') $$;
create or replace function "+"() returns text language sql as $$ select enter('no letter') $$;
create or replace function größe() returns int language sql as $$ select length(enter('latin')) $$;
"""


def test_functions_are_found_by_names_of_any_kind(env):
    with env.connect() as maker:
        maker.execute(FUNCTIONS + NAMED)
    with env.pooler_with(pool_size=2) as target:
        with target.connect() as client:
            moves(target, client, f"select {LONG}éé()".encode(), "cut")
            moves(target, client, b'select "+"()', "no letter")
        with target.connect(client_encoding="LATIN1") as client:
            moves(target, client, "select größe() as x".encode("latin1"), "latin")


SERVERS_OWN = """
create or replace view showing as select set_config('app.who', 'view', false);
drop table if exists ruled, child;
create table ruled (a int);
create rule says as on insert to ruled do also select set_config('app.who', 'rule', false);
drop domain if exists checked;
create domain checked as text check (enter(value) is not null);
drop sequence if exists drawn;
create sequence drawn;
create table child (a int default currval('drawn'));
"""

BY_SUPERUSER = """
create or replace function renamed(text, text, bool) returns text language internal as 'set_config_by_name';
create or replace function with_set() returns int language sql set app.hidden = 'x' as 'select 1';
grant execute on function renamed, with_set to public;
"""


def test_what_is_called_without_a_function_of_ones_own_is_known(env):
    with env.server() as superuser, env.connect() as maker:
        superuser.execute(BY_SUPERUSER)
        maker.execute(FUNCTIONS + SERVERS_OWN)
    with env.pooler_with(pool_size=2) as target, target.connect() as client:
        moves(target, client, b"select * from showing", "view")
        moves(target, client, b"insert into ruled values (1)", "rule")
        moves(target, client, b"select 'domain'::checked", "domain")
        moves(target, client, b"select renamed('app.who', 'internal', false)", "internal")
        client.execute("select with_set()")
        equal(others(target, "select current_setting('app.hidden', true)"), [None, None])
    with env.pooler_with(pool_size=1) as target, target.connect() as client, target.connect() as other:
        client.execute("select nextval('drawn')")
        equal([error["C"] for error in other.attempt("insert into child default values").errors], ["55000"])


ON_SETTINGS = """
drop view if exists of_settings, of_rules cascade;
create view of_settings as select name as n, setting as s from pg_settings;
create view above_it as select * from of_settings;
create view of_rules as select 1 as a;
create rule r as on insert to of_rules do instead update pg_settings set setting = '77' where name = 'work_' || 'mem';
create or replace function by_a_view() returns void language sql as $$ update of_settings set s = '77' where n = 'work_' || 'mem' $$;
"""


def test_an_update_of_a_view_on_pg_settings_sets_them_for_its_client_alone(env):
    """The next client had them."""
    with env.connect() as maker:
        maker.execute(ON_SETTINGS)
    try:
        for sets in ("update of_settings set s = '77' where n = 'work_' || 'mem'", "insert into of_rules values (1)", "select by_a_view()",
                     "update above_it set s = '77' where n = 'work_' || 'mem'"):
            with env.pooler_with(pool_size=2) as target, target.connect() as client:
                client.execute("select n from of_settings limit 1")
                if target.pooler:  # the server may be asked first, for what other tests have left
                    until(lambda target=target: not pins(target), "who only reads keeps nothing")
                client.execute(sets)
                equal((always(target, client, "show work_mem"), others(target, "show work_mem")), ("77kB", ["4MB", "4MB"]), sets)
    finally:
        with env.connect() as maker:
            maker.execute("drop view of_settings, of_rules cascade; drop function by_a_view()")


UNSHOWN = """
drop table if exists texts;
create table texts (t text);
insert into texts values ('set app.unshown = ''of another''');
create or replace function of_texts() returns void language plpgsql as $$
declare r record; begin for r in select t from texts loop execute r.t; end loop; end $$;
"""


def test_what_is_executed_without_being_shown_is_nobody_elses(env):
    """A text of several strings, or from a table: its setting stayed for the next client."""
    with env.connect() as maker:
        maker.execute(UNSHOWN)
    show = "select current_setting('app.unshown', true)"
    with pooler_of(env) as target:
        for text, values in (
            ("select anything(reverse($$'rehtona fo' = nwohsnu.ppa tes$$))", ()),
            ("select anything('se' || 't app.unshown = ''of another''')", ()),
            ("select anything(t) from texts", ()),
            ("select of_texts()", ()),
            ("select anything(reverse($1))", ("'rehtona fo' = nwohsnu.ppa tes",)),
            ("select anything(x) from unnest($1::text[]) x", ("{set app.unshown = of}",)),
            ("prepare p as select anything(reverse($1)); execute p($$'rehtona fo' = nwohsnu.ppa tes$$); deallocate p", ()),
        ):
            with target.connect() as client:
                if values:
                    client.extended(text, values)
                else:
                    client.execute(text)
                time.sleep(1.1)  # it may have drawn from a sequence, and is kept for that
                equal(others(target, show), [None, None], text)
    # What the call shows costs no server connection, and moves.
    with pooler_of(env, pool_size=1) as target, target.connect() as client:
        def stays():
            pid = client.value("select pg_backend_pid()")
            client.execute("select anything('update texts set t = t')")
            client.extended("select anything($1)", ("update texts set t = t",))
            return client.value("select pg_backend_pid()") == pid

        until(stays, "it stays, once the functions are known")
    with pooler_of(env) as target, target.connect() as client:
        client.execute("select anything('set app.who = ''ann''')")
        equal(always(target, client, WHO), "ann")


IN_PERL = """
create or replace function in_perl(text) returns void language plperl as $$ spi_exec_query($_[0]); return; $$;
create or replace function backwards(text) returns void language plperl as $$ my $q = reverse $_[0]; spi_exec_query($q); return; $$;
"""


def test_what_perl_executes_is_its_clients_own(env):
    """`spi_exec_query()` did not count as what executes a text."""
    with env.server() as superuser:
        create_perl(superuser)
        superuser.execute(IN_PERL)
    try:
        with pooler_of(env) as target:
            with target.connect() as client:
                client.execute("select in_perl('set app.who = ''ann''')")
                time.sleep(1.1)  # it may have drawn from a sequence, and was kept for that
                equal(always(target, client, WHO), "ann")
            with target.connect() as client:
                client.execute("select backwards($$'nna' = ohw.ppa tes$$)")
                time.sleep(1.1)
                equal(others(target, WHO), [None, None])
    finally:
        with env.server() as superuser:
            superuser.execute("drop extension plperl cascade")


def test_what_is_created_is_known_where_all_places_are_taken(env):
    with env.connect() as maker:
        maker.execute("drop function if exists later(text)")
    with pooler_of(env, max_server_connections=2) as target, target.connect() as client:
        with target.connect() as one, target.connect() as other:
            one.execute("begin")
            other.execute("begin")  # on the place that the first census was taken on
        client.execute("create function later(who text) returns text language plpgsql as $$ "
                       "begin return set_config('app.who', who, false); end $$")
        time.sleep(CENSUS_SECONDS)
        moves(target, client, b"select later('made through the pooler')", "made through the pooler")
        client.execute("drop function later(text)")


def test_a_renamed_table_has_its_triggers(env):
    with pooler_of(env) as target, target.connect() as client, target.connect() as maker:
        client.execute("insert into audited values (1)")
        maker.execute("drop table if exists audited_before; alter table audited rename to audited_before")
        time.sleep(CENSUS_SECONDS)
        moves(target, client, b"insert into audited_before values (2)", "trigger of 2")
        maker.execute("drop table audited_before")


def test_one_large_function_hides_nothing(env):
    with env.connect() as maker:
        maker.execute(FUNCTIONS + """
        do $$ begin execute format('create or replace function large() returns int language sql as %L',
        '/*' || repeat('x', 400000) || '*/ select 1'); end $$""")
        with env.pooler_with(pool_size=2) as target, target.connect() as client:
            moves(target, client, b"select enter('ann')", "ann")
        maker.execute("drop function large()")


def test_a_look_that_another_session_cancels_is_repeated(env):
    """pg_cancel_backend() for every process hit it as well, and the first client's functions were unknown."""
    with pooler_of(env) as target, env.cluster.superuser() as keeper, env.cluster.superuser() as other, \
            futures.ThreadPoolExecutor() as pool:
        keeper.execute("begin; lock pg_catalog.pg_policy in access exclusive mode")

        def looking():
            return other.rows("select pid, query_start from pg_stat_activity where application_name = 'hawser' and "
                              "wait_event_type = 'Lock'")
        login = pool.submit(target.connect)
        until(looking, "the first client's login waits for the look", 4)
        first = looking()
        equal(other.value(f"select pg_cancel_backend({first[0][0]})"), "t")
        until(lambda: looking() not in ([], first), "the look is repeated", 4)
        assert not login.done()
        keeper.execute("commit")
        with login.result() as client:
            moves(target, client, b"select enter('ann')", "ann")


def test_it_gets_the_only_place_ahead_of_the_pool(env):
    with pooler_of(env, pool_size=1, max_server_connections=1) as target, target.connect() as client, target.connect() as other:
        client.execute("select enter('ann')")
        assert other.value(WHO) != "ann"
        equal(client.value(WHO), "ann")


def test_other_pools_of_the_database_have_it_too(env):
    with pooler_of(env, pool_size=1) as target, target.connect() as first:
        first.execute("select 1")
        with target.connect("app_md5") as client, target.connect("app_md5") as other:
            client.execute("select enter('ann')")
            assert other.value(WHO) != "ann"
            equal(client.value(WHO), "ann")


def test_what_is_notified_while_the_server_is_asked_is_heard(env):
    """A name in quotes may call "+"(): behind a LISTEN with one the server is asked about the session."""
    with env.connect() as maker:
        maker.execute(FUNCTIONS + NAMED)
    with env.pooler_with(pool_size=2) as target:
        client, sender = env.connect(target), env.connect(target)
        for number in range(300):
            client.execute(f'listen "channel {number}"')
            sender.execute(f"select pg_notify('channel {number}', '')")
            assert client.pending(20), f"nothing heard on channel {number}"
            equal(client.receive().kind, "A")
            client.notifications.clear()
            client.execute("unlisten *")


def test_what_a_function_does_is_known_from_the_text_that_makes_it(env):
    """By its maker and by others, at once: the next census comes a second later."""
    body = "begin return set_config('app.who', who, false); end"
    try:
        with env.pooler_with(**SETTINGS) as target:
            client, other = target.connect(), target.connect()
            for number, make in enumerate((client.execute, client.extended)):
                make(f"create or replace function become_{number}(who text) returns text language plpgsql as $${body}$$")
                for who, one in (("maker", client), ("other", other)):
                    equal(one.value(f"select become_{number}('{who} {number}')"), f"{who} {number}")
                equal((always(target, client, WHO), always(target, other, WHO)), (f"maker {number}", f"other {number}"))
    finally:
        with env.server() as server:
            server.execute("drop function if exists become_0, become_1")


LISTS = """
create or replace view my_statements as select * from pg_prepared_statements;
create or replace view over_it as select * from my_statements;
create or replace view my_own as select * from pg_prepared_statement();
drop schema if exists shown cascade;
create schema shown;
create view shown.setting as select set_config('app.who', 'by xml', false);
create or replace view xml_of as select schema_to_xml('shown', true, true, '');
"""


def test_no_view_and_no_xml_shows_the_statements_of_others(env):
    with env.connect() as maker:
        maker.execute(LISTS)
    look = "select count(*) from {} where statement like '%4711%'"
    for text in (*(look.format(view) for view in ("my_statements", "over_it", "my_own")),
                 "select (table_to_xml('pg_prepared_statements', true, true, '')::text like '%4711%')::int",
                 "select (query_to_xml('table my_statements', true, true, '')::text like '%4711%')::int"):
        with env.pooler_with(pool_size=1) as target, target.connect() as client, target.connect() as other:
            equal(client.extended("select 'card 4711'::text").errors, [])
            equal(other.value(text), "0", text)


def test_what_xml_functions_run_is_nobody_elses(env):
    with env.connect() as maker:
        maker.execute(LISTS)
    for text in ("select schema_to_xml('shown', true, true, '')", "select * from xml_of"):
        with env.pooler_with(pool_size=2) as target:
            with target.connect() as client:
                client.execute(text)
                assert "by xml" not in others(target, WHO), text
            assert "by xml" not in others(target, WHO), text


EXPRESSIONS = """
drop table if exists conditional, "Checked", guarded, emptied, referring, referring_on cascade;
create or replace function is_entered(who text) returns bool language sql as 'select enter(who) is not null';
create or replace function passes() returns trigger language plpgsql as 'begin return new; end';
create or replace function empties() returns trigger language plpgsql as $$
begin perform enter('truncated'); return null; end $$;
create table conditional (a text);
create trigger t before insert on conditional for each row when (is_entered(new.a)) execute function passes();
create trigger u before update on conditional for each row
    when (set_config('app.who', old.a || new.a, false) is not null) execute function passes();
create table "Checked" (a text check (set_config('app.who', a, false) is not null));
create table guarded (a text);
alter table guarded enable row level security;
alter table guarded force row level security;
create policy p on guarded using (true) with check (set_config('app.who', a, false) is not null);
drop aggregate if exists set_all(text, bool);
create aggregate set_all(text, bool) (sfunc = set_config, stype = text, initcond = 'app.who');
create table emptied (a int primary key);
create table referring (a int primary key references emptied);
create table referring_on (a int references referring);
create trigger t after truncate on referring_on for each statement execute function empties();
"""

BY_EVENT = """
create or replace function app_on_ddl() returns event_trigger language plpgsql as $$
begin perform set_config('app.who', tg_tag, false); end $$;
create event trigger app_on_ddl on ddl_command_end execute function app_on_ddl();
"""


def test_what_expressions_and_truncate_call_is_known(env):
    with env.connect() as maker:
        maker.execute(FUNCTIONS + EXPRESSIONS)
    with env.pooler_with(pool_size=2) as target, target.connect() as client:
        moves(target, client, b"insert into conditional values ('when')", "when")
        moves(target, client, b"update conditional set a = 's'", "whens")
        moves(target, client, b"insert into \"Checked\" values ('check')", "check")
        moves(target, client, b"insert into guarded values ('policy')", "policy")
        moves(target, client, b"select set_all('aggregate', false)", "aggregate")
        moves(target, client, b"truncate emptied cascade", "truncated")


def test_event_triggers_are_called_by_select_into(env):
    with env.connect() as maker, env.server() as superuser:
        maker.execute(FUNCTIONS + "drop table if exists made_by_into")
        superuser.execute(BY_EVENT)
        try:
            with env.pooler_with(pool_size=2) as target, target.connect() as client:
                moves(target, client, b"select 1 as a into made_by_into", "SELECT INTO")
        finally:
            superuser.execute("drop event trigger app_on_ddl; drop table if exists made_by_into")


def test_what_is_made_is_known_at_once_however_it_is_made(env):
    """In a long text, by another name, or as a partition of what has a trigger."""
    source = "begin return set_config('app.who', who, false); end"
    with env.connect() as maker:
        maker.execute(FUNCTIONS + "drop function if exists made_long(text), named_before(text), renamed_to(text);"
                      "drop table if exists whole, kept; create function named_before(who text) returns text language sql as"
                      " 'select enter(who)';"
                      "drop table if exists upper_one, lower_one; create table upper_one (a int); create table lower_one (a int); insert "
                      "into lower_one values (1);"
                      "create trigger t before update on lower_one for each row execute function on_audited();"
                      "create table whole (a int) partition by list (a);"
                      "create trigger t before insert on whole for each row execute function on_audited()")
    for make, call, who in (
        (f"create function made_long(who text) returns text language plpgsql as $$ /* {'x' * 300000} */ {source} $$",
         "select made_long('long')", "long"),
        ("alter function named_before(text) rename to renamed_to", "select renamed_to('renamed')", "renamed"),
        ("alter table audited rename to kept", "insert into kept values (7)", "trigger of 7"),
        ("alter table lower_one inherit upper_one", "update upper_one set a = 9", "trigger of 9"),
        ("do $do$ begin execute 'create or replace function made_in_block() returns text language plpgsql as $$ begin return "
         "set_config(''app.who'', ''block'', false); end $$'; "
         "end $do$", "select made_in_block()", "block"),
        ("create table whole_8 partition of whole for values in (8)", "insert into whole_8 values (8)", "trigger of 8"),
    ):
        with env.connect() as maker:
            maker.execute("drop table if exists kept;" + FUNCTIONS)
        with env.pooler_with(pool_size=2) as target, target.connect() as client:
            time.sleep(1)  # the first client waits half a second for the first census, which a busy machine may take longer for
            client.execute(make)
            client.execute(call)
            equal(always(target, client, WHO), who, call)
            assert who not in others(target, WHO), call
    with env.connect() as maker:
        maker.execute("drop function made_long(text), renamed_to(text), made_in_block(); drop table if exists kept, whole, "
                      "lower_one, upper_one")


def test_a_lock_that_an_index_takes_when_it_is_computed_anew_is_its_clients(env):
    with env.connect() as maker:
        maker.execute("create or replace function locks_in_index(i int) returns int language plpgsql immutable as $$ begin perform "
                      "pg_advisory_lock(7701); return i; end $$; "
                      "drop table if exists computed; create table computed (i int); insert into computed values (1), (2)")
        checked = ()
        if maker.value("select count(*) from pg_available_extensions where name = 'amcheck'") == "1":
            with env.cluster.superuser() as owner:
                owner.execute("create extension if not exists amcheck; grant execute on all functions in schema public to app")
            checked = (("drop index computed_index; create index computed_index on computed (locks_in_index(i))",
                        ("select bt_index_check('computed_index', true)", "select bt_index_parent_check('computed_index', true)")),)
        for makes, commands in (
            ("create index computed_index on computed (locks_in_index(i))", ("analyze computed", "analyze", "vacuum full",
                                                                             "reindex schema public")),
            ("drop index computed_index; create index computed_index on computed using brin (locks_in_index(i))",
             ("select brin_desummarize_range('computed_index', 0), brin_summarize_new_values('computed_index')",
              "select brin_desummarize_range('computed_index', 0), brin_summarize_range('computed_index', 0)")),
            *checked,
            ("drop index computed_index; create statistics computed_statistics on (locks_in_index(i)) from computed",
             ("analyze computed", "analyze")),
            # The planner computes constants of such expressions.
            ("drop statistics computed_statistics; create statistics computed_statistics on (i + locks_in_index(1)), i from computed",
             ("select count(*) from computed",)),
            ("drop statistics computed_statistics; create statistics computed_statistics on (pg_try_advisory_lock(7701)), i "
             "from computed", ("analyze computed",)),
        ):
            maker.execute(makes)
            maker.execute("select pg_advisory_unlock_all()")
            for command in commands:
                with env.pooler_with(pool_size=2) as target, target.connect() as client:
                    client.execute(command)
                    with target.connect() as other:
                        equal(other.value("select pg_try_advisory_lock(7701)"), "f", f"{makes}: {command}")
        maker.execute("drop table computed; drop function locks_in_index(int)")


def test_what_blocks_functions_and_prepared_transactions_make_is_known_soon(env):
    make = ("create or replace function made_later(who text) returns text language sql as "
            "''select set_config(''''app.who'''', who, false)''")
    plain = make.replace("''''", "|").replace("''", "'").replace("|", "''")
    with env.connect() as maker:
        maker.execute(FUNCTIONS + f"create or replace function makes() returns void language plpgsql as $f$ begin execute "
                                  f"'{make}'; end $f$")
    for texts in ((f"do $f$ begin execute '{make}'; end $f$",), ("select makes()",),
                  (f"begin; {plain}; prepare transaction 'made'", "commit prepared 'made'")):
        with env.connect() as maker:
            maker.execute("drop function if exists made_later(text)")
        with env.pooler_with(pool_size=2) as target, target.connect() as client:
            with target.connect() as maker:
                for text in texts:
                    maker.execute(text)
            time.sleep(CENSUS_SECONDS)
            moves(target, client, b"select made_later('soon')", "soon")
    with env.connect() as maker:
        maker.execute("drop function made_later(text), makes()")


ARGUED = "create domain argued as int check (told(value) >= 0); "
# Each: a name, what makes it, and a statement that calls tell() without a word of it. `superuser`: only that may make it.
HIDDEN_CALLS = [
    ("an operator", "create operator @#@ (leftarg = int, rightarg = int, function = adds)", "select 1 @#@ 2", False),
    ("a cast", "create cast (hidden as text) with function spells(hidden)", "select row(1)::hidden::text", False),
    ("an assignment cast", "drop cast if exists (hidden as text); create cast (hidden as text) with function spells(hidden) as assignment",
     "insert into written values (row(1)::hidden)", False),
    ("the order of a type", "create operator class hidden_ops for type int using btree as operator 1 <, operator 2 <=, operator 3 =, "
                            "operator 4 >=, "
     "operator 5 >, function 1 compares(int, int); create table ordered as select 1 as a; create index on ordered (a hidden_ops)",
     "insert into ordered values (2)", True),
    ("a column of a domain", "create domain checked as text check (tell(value) is not null); create table of_domain (a checked, "
                             "b checked[])",
     "insert into of_domain (a) values ('x')", False),
    ("the default of a domain", "create domain filled as text default tell('d'); create table of_default (i int, a filled)",
     "insert into of_default (i) values (1)", False),
    ("a domain of a domain", "create domain inner_one as text check (tell(value) is not null); create domain outer_one as inner_one; "
                             "create table of_outer (a outer_one)",
     "insert into of_outer values ('x')", False),
    ("a key of partitions", "create table parted (a text) partition by list (tells(a)); create table part_one partition of parted default",
     "insert into parted values ('x')", False),
    ("an argument of a domain", ARGUED + "create function takes(x argued) returns int language plpgsql as 'begin return 1; end'",
     "select takes(5)", False),
    ("a result of a domain", ARGUED + "create function takes(x int) returns argued language plpgsql as 'begin return 1; end'",
     "select takes(5)", False),
    ("a composite in a composite", ARGUED + "create type inner_type as (x argued); create type outer_type as (y inner_type)",
     "select '(\"(5)\")'::outer_type", False),
    ("a range of a domain", ARGUED + "create type argued_range as range (subtype = argued)", "select '[5,6]'::argued_range", False),
    ("a domain of an array of a domain", ARGUED + "create domain argued_array as argued[]", "select '{5}'::argued_array", False),
    ("a domain that calls what is the server's own", "create domain argued as int check (set_config('app.who', 'hidden', false) "
                                                     "is not null); "
     "create function takes(x argued) returns int language plpgsql as 'begin return 1; end'", "select takes(5)", False),
    ("the default of an argument", "create function takes(x text default set_config('app.who', 'hidden', false)) returns int language "
                                   "plpgsql as 'begin return 1; end'",
     "select takes()", False),
    *((f"a foreign key that cascades: {what}", "drop table if exists fk_child, fk_parent cascade; drop domain if exists fk_domain; "
       "create table fk_parent (i int primary key); insert into fk_parent values (0), (5); " + child
       + "; insert into fk_child (i) values (5)", calls, False)
      for what, child, calls in (
          ("a default", "create table fk_child (i int default told(0) references fk_parent on delete set default)",
           "delete from fk_parent where i = 5"),
          ("a check", "create table fk_child (i int references fk_parent on update cascade, check (told(i) >= 0))",
           "update fk_parent set i = 6 where i = 5"),
          ("a generated column", "create table fk_child (i int references fk_parent on update cascade, k int generated always as "
                                 "(told(i)) stored)",
           "update fk_parent set i = 6 where i = 5"),
          ("an index", "create table fk_child (i int references fk_parent on update cascade); create index on fk_child (told(i))",
           "update fk_parent set i = 6 where i = 5"),
          ("a domain", "create domain fk_domain as int check (told(value) >= 0); create table fk_child (i fk_domain references fk_parent "
                       "on update cascade)",
           "update fk_parent set i = 6 where i = 5"),
          ("a rule", "create table fk_child (i int references fk_parent on delete cascade); create rule r as on delete to fk_child do also "
                     "select told(0)",
           "delete from fk_parent where i = 5"),
          ("a check of another column", "create table fk_child (k int, i int references fk_parent on delete set null, check "
                                        "(told(k) >= 0))",
           "delete from fk_parent where i = 5"),
          ("a function that writes", "create table fk_child (i int references fk_parent on update cascade, check (told(i) >= 0)); "
           "create or replace function fk_writes() returns void language sql as 'update fk_parent set i = 6 where i = 5'",
           "select fk_writes()"),
      )),
]
HIDDEN = """
create or replace function tell(a text) returns text language plpgsql as $$ begin return set_config('app.who', 'hidden', false); end $$;
create or replace function tells(a text) returns text language plpgsql immutable as $$ begin perform tell(a); return a; end $$;
create or replace function adds(a int, b int) returns int language plpgsql as $$ begin perform tell(''); return a + b; end $$;
create or replace function compares(a int, b int) returns int language plpgsql immutable as $$ begin perform tell(''); return a - b; end $$;
create or replace function told(a int) returns int language plpgsql immutable as $$ begin perform tell(''); return a; end $$;
create type hidden as (a int);
create or replace function spells(a hidden) returns text language plpgsql as $$ begin return tell(''); end $$;
create table written (a text);
"""
NO_HIDDEN = """
drop function if exists fk_writes; drop function if exists takes; drop type if exists outer_type, inner_type, argued_range cascade;
drop domain if exists argued_array, argued; drop table if exists fk_child, fk_parent cascade; drop domain if exists fk_domain;
drop table if exists written, of_domain, of_default, of_outer, parted, ordered;
drop operator family if exists hidden_ops using btree; drop operator if exists @#@ (int, int);
drop domain if exists checked, filled, outer_one, inner_one; drop type if exists hidden_range cascade; drop type if exists hidden cascade;
drop function if exists adds, compares, told, tells, tell cascade
"""


@limit(240)
def test_what_is_called_without_its_name_is_known(env):
    """Operators, casts, the order of types, domains of columns, keys of partitions: of what was there before, and from the text that makes
    it."""
    admin = env.server()
    for through in (False, True):
        for name, makes, calls, by_superuser in HIDDEN_CALLS:
            if through and by_superuser:
                continue
            admin.execute(NO_HIDDEN)  # each by itself: what one calls without its name, all texts may call
            admin.execute(HIDDEN + "; grant all on all tables in schema public to public; alter type hidden owner to app")
            if not through:
                admin.execute(makes)
                admin.execute("grant all on all tables in schema public to public")
            with env.pooler_with(pool_size=1) as target, target.connect() as client:
                if through:
                    client.execute("select 1")
                    made = client.attempt(makes)
                    equal(made.errors, [], name)
                client.execute(calls)
                equal(others_of_one(target, WHO), None, (name, "through the pooler" if through else "before"))
                equal(client.value(WHO), "hidden", name)
    admin.execute(NO_HIDDEN)


def test_the_default_of_a_domain_that_asks_for_a_sequence_gets_no_others_value(env):
    with env.connect() as maker:
        maker.execute("drop table if exists of_numbered; drop domain if exists numbered; drop sequence if exists numbers; "
                      "create sequence numbers; create domain numbered as bigint default currval('numbers'); create table of_numbered as "
                      "select 1 as i, null::numbered as n")
        with env.pooler_with(pool_size=1) as target, target.connect() as other, target.connect() as client:
            other.execute("select nextval('numbers')")
            equal(client.attempt("update of_numbered set n = default").sqlstate, "55000", "direct: it has drawn nothing")
        maker.execute("drop table of_numbered; drop domain numbered; drop sequence numbers")


def test_a_parameter_of_a_domain_whose_type_a_parse_gives_by_its_oid_leaves_nothing(env):
    admin = env.server()
    admin.execute(f"{NO_HIDDEN}; {HIDDEN} {ARGUED}")
    number = int(admin.value("select 'argued'::regtype::oid"))
    with env.pooler_with(pool_size=1) as target, target.connect() as client:
        result = client.exchange(m.parse("select $1 is null", "", (number,)), m.bind("", values=("5",)), m.execute(), m.SYNC)
        equal(result.rows, [("f",)])
        equal(others_of_one(target, WHO), None)
        equal(client.value(WHO), "hidden")
    admin.execute(NO_HIDDEN)


def others_of_one(target, show):
    with target.connect() as other:
        return other.value(show)


TENANT = "select current_setting('app.tenant', true)"
# What is made past every pool: each sets app.tenant to the number with which it is called.
MADE_PAST_POOLS = {
    "a function": ("create function past_f(t text) returns text language plpgsql as $$ begin perform set_config('app.tenant', t, false); "
                   "return t; end $$",
                   "select past_f('{}')"),
    "a trigger": ("create function past_t() returns trigger language plpgsql as $$ begin perform set_config('app.tenant', new.t, false); "
                  "return new; end $$; "
                  "create trigger past before insert on past_table for each row execute function past_t()",
                  "insert into past_table values ('{}')"),
    "a view": ("create view past_v as select set_config('app.tenant', 'in a view', false)", "select * from past_v"),
    "a default": ("alter table past_other alter d set default set_config('app.tenant', 'in a default', false)",
                  "insert into past_other (t) values ('x')"),
    "a body in place of another": ("create or replace function past_body(t text) returns text language plpgsql as "
                                   "$$ begin perform set_config('app.tenant', t, false); return t; end $$", "select past_body('{}')"),
    "an index": ("create index on past_last (past_index(t))", "update past_last set t = 'y'"),
    "a column of a domain": ("drop index past_last_past_index_idx; alter table past_last add e past_domain",
                             "update past_last set e = 'y'"),
    "a cast": ("create function past_c(a past_type) returns text language plpgsql as $$ begin return set_config('app.tenant', a.t, false); "
               "end $$; create cast (past_type as text) with function past_c(past_type)",
               "select row('{}')::past_type::text"),
    "an event trigger": ("create function past_e() returns event_trigger language plpgsql as $$ begin perform set_config('app.tenant', "
                         "'in an event trigger', false); end $$; "
                         "create event trigger past on ddl_command_end when tag in ('COMMENT') execute function past_e()",
                         "comment on table past_table is 'x'"),
    "a rule": ("create rule past as on delete to past_table do also select set_config('app.tenant', 'in a rule', false)",
               "delete from past_table"),
    "an operator": ("create function past_o(a text, b text) returns text language plpgsql as $$ begin perform set_config('app.tenant', b, "
                    "false); return b; end $$; "
                    "create operator @#@ (leftarg = text, rightarg = text, function = past_o)", "select 'a'::text @#@ '{}'::text"),
}


NO_EVENT = "drop event trigger if exists past; drop function if exists past_e()"


def test_what_is_made_past_every_pool_is_known_within_a_second(env):
    """A migration on a direct connection, while the database is in use: it took 30 s."""
    undo = ("drop table if exists past_table, past_other, past_last; drop domain if exists past_domain; drop function if exists "
            "past_index(text), past_column(text); drop view if exists past_v; drop function if exists past_f(text), past_t(), "
            "past_body(text); "
            "drop operator if exists @#@ (text, text); drop function if exists past_o(text, text); drop type if exists past_type cascade")
    with env.connect() as maker, env.server() as superuser:
        superuser.execute(NO_EVENT)
        maker.execute(undo)
        maker.execute("create type past_type as (t text); create table past_table (t text); create table past_other (t text, d text); "
                      "create function past_body(t text) "
                      "returns text language sql as 'select t'; create table past_last as select 'x' as t; "
                      "create function past_index(t text) returns text language plpgsql immutable as $$ begin perform "
                      "set_config('app.tenant', 'in an index', false); return t; end $$; "
                      "create function past_column(t text) returns text language plpgsql as $$ begin return set_config('app.tenant', 'in a "
                      "column of a domain', false); end $$; "
                      "create domain past_domain as text check (past_column(value) is not null)")
        try:
            with env.pooler_with(pool_size=2) as target, target.connect() as busy:
                end = time.monotonic() + 3
                while time.monotonic() < end:
                    busy.execute("select past_body('x')")
                for number, (what, (make, call)) in enumerate(MADE_PAST_POOLS.items()):
                    (superuser if "event trigger" in make else maker).execute(make)
                    end = time.monotonic() + CENSUS_SECONDS  # a second, and what a busy machine takes
                    while time.monotonic() < end:
                        busy.execute("select 1")
                        time.sleep(0.01)
                    with target.connect() as client:
                        client.execute(call.format(f"tenant {number}"))
                        seen = client.value(TENANT)
                        assert seen == (f"tenant {number}" if "{}" in call else "in " + what), (what, seen)
                        assert seen not in others(target, TENANT), what
        finally:
            superuser.execute(NO_EVENT)
            maker.execute(undo)


def test_what_one_pool_makes_is_known_at_once_in_all_pools_of_the_database(env):
    """Also while the server is asked all the time: an answer from before may come after."""
    with env.pooler_with(pool_size=2) as target, target.connect() as busy, target.connect() as maker, \
            target.connect(user="app2") as client, contextlib.ExitStack() as undo:
        undo.callback(maker.execute, "drop table if exists watched_by_all cascade; drop function if exists watches_all()")
        maker.execute("drop table if exists watched_by_all; create table watched_by_all as select 1 as a; grant all on "
                      "watched_by_all to public")
        for number in range(30):
            # A look is under way when the text is sent, and the transaction may end before or after it.
            busy.execute(f"create or replace function asked_for() returns int language sql as 'select {number}'")
            maker.execute(f"begin; create function watches_all() returns trigger language plpgsql as $$ begin "
                          f"perform set_config('app.who', 'one of {number}', false); return new; end $$; "
                          "create trigger watches before update on watched_by_all for each row execute function watches_all(); "
                          f"select pg_sleep({number % 5 / 100}); commit")
            client.execute("update watched_by_all set a = a + 1")
            with target.connect(user="app2") as stranger:
                equal(stranger.value(WHO) or None, None, f"round {number}")
            equal(client.value(WHO), f"one of {number}", f"round {number}")
            client.execute("discard all")
            maker.execute("drop function watches_all() cascade")


def test_what_is_replaced_while_no_client_is_connected_is_known_from_the_first_call_on(env):
    create = "create or replace function replaced(t text) returns text language plpgsql as $$ begin {} return t; end $$"
    with env.connect() as maker, env.pooler_with(pool_size=2) as target:
        try:
            for number in range(3):
                maker.execute(create.format(""))
                with target.connect() as client:
                    client.execute("select replaced('harmless')")
                time.sleep(2)  # it is idle
                maker.execute(create.format("perform set_config('app.tenant', t, false);"))
                with target.connect() as client:
                    client.execute(f"select replaced('tenant {number}')")
                    assert f"tenant {number}" not in others(target, TENANT), number
        finally:
            maker.execute("drop function if exists replaced(text)")


def test_a_function_made_past_every_pool_that_the_text_names_leaves_nothing_from_the_first_call_on(env):
    kinds = ("select {}('{}')", "select {} /* it's */ ('{}')", "select E'\\'', {}('{}')", "do 'begin perform {}(''{}''); end'")
    names = [f"brand_new_{number}" for number in range(3 * len(kinds))]
    with env.connect() as maker:
        try:
            with env.pooler_with(pool_size=2) as target, target.connect() as busy:
                for number, name in enumerate(names):
                    for _ in range(20):
                        busy.execute("select 1")
                    maker.execute(f"create function {name}(t text) returns text language plpgsql as "
                                  "$$ begin perform set_config('app.tenant', t, false); return t; end $$")
                    with target.connect() as client:
                        client.execute(kinds[number % len(kinds)].format(name, f"tenant {number}"))
                        assert f"tenant {number}" not in others(target, TENANT), kinds[number % len(kinds)]
                # A name that is no function costs connections only until the server has been asked for it.
                def is_settled():
                    return len({busy.value("select pg_backend_pid() from (select 1) an_alias(an_alias)") for _ in range(5)}) == 1

                until(is_settled, "the connection stays")
        finally:
            maker.execute("; ".join(f"drop function if exists {name}(text)" for name in names))


# As applications, object-relational mappers and sqlcommenter write them; $1 is a text.
USUAL = (
    "select 1 where '1' = $1 /* controller='users',action='show' */",
    "select a_column from (select '1' as a_column) t where $1 = a_column -- b",
    "/* trace */ select count(*), max(n), coalesce($1, 'x') from generate_series(1, 3) as g(n)",
    "with a_name as (select $1::text as v), another (v) as (values ('x')) select * from a_name join another using (v)",
    "insert into usual (id, body) values (1, $1) on conflict (id) do update set body = excluded.body returning id",
    'select "usual"."id" from "usual" where ("usual"."body" = $1) order by "usual"."id" asc limit 21',
    "select row_number() over (partition by body order by id) from usual where body like ($1 || '%')",
    "update usual set body = upper($1), at = now() where id in (select id from usual for update skip locked)",
    "delete from usual where (id, body) = (2, $1)",
    "select jsonb_build_object('a', $1::text) ->> 'a', array(select 1), exists (select 1), cast(now() as date)",
    "select case when $1 = '1' then (1) else (2) end from usual u left join lateral (select 1) l on (true)",
    "select id from usual where body = any(string_to_array($1, ',')) /*application:shop,line:(app.rb:12)*/",
)


def test_what_applications_usually_send_costs_no_server_connection(env):
    """In a database where no function does anything; words that the server does not know are looked up once."""
    ways = {
        "named": lambda client, text: client.exchange(m.bind(text[:50], values=["1"]), m.describe_portal(), m.execute(), m.SYNC),
        "unnamed": lambda client, text: client.extended(text, ["1"]),
        "simple": lambda client, text: client.exchange(m.query(text.replace("$1", "'1'"))),
    }
    with env.connect(database="other") as maker:
        maker.execute("drop table if exists usual")
        maker.execute("create table usual (id int primary key, body text, at timestamptz)")
    with env.pooler_with(pool_size=1) as target, target.connect(database="other") as client:
        for text in USUAL:
            client.exchange(m.parse(text, text[:50]), m.SYNC)

        def closing():
            found, before = [], client.value("select pg_backend_pid()")
            for text in USUAL:
                for way, run in ways.items():
                    equal(run(client, text).errors, [], text)
                    if (now := client.value("select pg_backend_pid()")) != before:
                        found.append(f"{way}: {text}")
                    before = now
            return found

        try:
            until(lambda: not closing(), "the connection stays")
        except AssertionError as error:
            raise AssertionError(f"{error}: {closing()}") from None


def test_prepared_statements_with_comments_keep_their_server_connection(env):
    """Words before a comment are looked up once, not at each use of statements that were prepared before."""
    texts = ["select pg_backend_pid() where 1 = $1 /* a */", "select pg_backend_pid() from (select 1 as a) t where $1 = a -- b"]
    with env.pooler_with(pool_size=1) as target, target.connect(database="other") as client:
        for number, text in enumerate(texts):
            client.exchange(m.parse(text, f"s{number}"), m.SYNC)

        def is_settled():
            runs = [client.exchange(m.bind(f"s{n}", values=["1"]), m.execute(), m.SYNC) for n in range(len(texts)) for _ in range(3)]
            return len({run.value for run in runs}) == 1

        until(is_settled, "the connection stays")


def test_the_server_compiles_no_question_about_its_catalogs(env):
    """With some 1,500 functions their census seems expensive enough, and compiling it takes seconds."""
    settings = {"session_preload_libraries": "auto_explain", "auto_explain.log_min_duration": "0", "jit": "on", "jit_above_cost": "0"}
    with env.cluster.superuser() as owner:
        if owner.value("select pg_jit_available()") != "t":
            raise Skip("this server has no library that compiles queries (llvmjit)")
        try:
            for name, value in settings.items():
                owner.execute(f"""alter role app set {name} = '{value}'""")
            before = len(env.cluster.log.read_text())
            with env.pooler_with(**SETTINGS) as target, target.connect() as client:
                client.execute("select count(*) from pg_class")
            plans = env.cluster.log.read_text()[before:].split("duration:")
            # (What precedes a question is another statement of the same text.)
            plans = [plan for plan in plans if "pg_show_all_settings" not in plan]
            for words, compiled in (("select count(*) from pg_class", True), ("pg_get_keywords", False), ("pg_partitioned_table x", False)):
                found = [plan for plan in plans if words in plan]
                assert found, f"{words} is not in the log"
                equal(any("JIT:" in plan for plan in found), compiled, words)
        finally:
            for name in settings:
                owner.execute(f"alter role app reset {name}")


def test_until_functions_can_be_looked_into_no_client_gets_what_they_leave(env):
    with env.connect() as maker:
        maker.execute(FUNCTIONS)
    with env.cluster.superuser() as owner:
        owner.execute("revoke select on pg_proc from public")
        try:
            with env.pooler_with(**SETTINGS) as target, target.connect() as client:
                for n in range(5):
                    client.execute(f"select enter('secret {n}')")
                    client.execute("select * from entering")
                    seen = others(target, WHO)
                    assert all(value in (None, "") for value in seen), f"{seen} is another client's"
                assert "could not be read" in target.pooler.text()
                owner.execute("grant select on pg_proc to public")

                def keeps():
                    client.execute("select enter('its own')")
                    return always(target, client, WHO) == "its own"
                until(keeps, "the functions are known")
        finally:
            owner.execute("grant select on pg_proc to public")


@pooler_only
@limit(90)
def test_while_a_known_database_cannot_be_looked_into_no_client_gets_what_functions_leave(env):
    """The pool has all connections that its role may have, or the look is refused: what was known before counted for ever."""
    quiet = "create or replace function past_look() returns text language sql as $$ select 'quiet'::text $$"
    sets = ("create or replace function past_look() returns text language plpgsql as $$ begin perform "
            "set_config('app.tenant', 'another tenant', false); return 'sets'; end $$")
    limited = ("alter role app2 connection limit 2; select pg_terminate_backend(pid) from pg_stat_activity where usename = 'app2' and "
               "application_name = 'hawser'")
    with env.cluster.superuser() as owner:
        for deny, permit in ((limited, "alter role app2 connection limit -1"),
                             ("revoke select on pg_proc from public", "grant select on pg_proc to public")):
            owner.execute(quiet)
            try:
                with env.pooler_with(pool_size=2) as target:
                    clients = [env.connect(target, user="app2") for _ in range(3)]
                    for client in clients[:2]:
                        client.execute("begin; select past_look()")
                    owner.execute(deny)
                    owner.execute(sets)
                    end = time.monotonic() + CENSUS_SECONDS
                    while time.monotonic() < end:
                        clients[0].execute("select 1")
                        time.sleep(0.01)
                    for client in clients[:2]:
                        client.execute("commit")
                    for _ in range(3):
                        equal(clients[0].value("select past_look()"), "sets")
                        equal([result.value for result in on_every_backend(clients[1:], TENANT)], [None, None], deny)
                    if deny == limited:
                        look = "select count(*) from pg_stat_activity where usename = 'app2' and application_name = 'hawser'"
                        until(lambda: owner.value(look) == "1", "that a server connection gives way to the look")
            finally:
                owner.execute(permit)


@pooler_only
def test_what_is_replaced_while_the_database_is_paused_is_known_from_the_first_call_on(env):
    """A migration on a direct connection between PAUSE and RESUME: its tenant was the next client's for a second."""
    quiet = "create or replace function paused_f() returns text language sql as $$ select 'quiet'::text $$"
    sets = ("create or replace function paused_f() returns text language plpgsql as $$ begin perform "
            "set_config('app.tenant', 'another tenant', false); return 'sets'; end $$")
    owner = env.server()
    owner.execute(quiet)
    with env.pooler_with(pool_size=1) as target, target.pooler.admin() as console:
        first, second = env.connect(target), env.connect(target)
        equal(first.value("select paused_f()"), "quiet")
        console.execute("PAUSE app")
        owner.execute(sets)
        time.sleep(CENSUS_SECONDS)
        console.execute("RESUME app")
        equal(first.value("select paused_f()"), "sets")
        equal(second.value(TENANT), None)

        def is_kept():
            first.execute("select paused_f()")
            return [first.value(TENANT), second.value(TENANT)] == ["another tenant", None]
        until(is_kept, "the functions are known again")


def test_a_roles_timeout_does_not_end_the_look_at_functions(env):
    with env.connect() as maker:
        maker.execute(FUNCTIONS)
    with env.cluster.superuser() as owner:
        owner.execute("alter role app set statement_timeout = '5ms'")
        try:
            with env.pooler_with(**SETTINGS) as target, env.connect(target, options="-c statement_timeout=0") as client:
                def keeps():
                    client.execute("select enter('its own')")
                    return always(target, client, WHO) == "its own"
                until(keeps, "the functions are known")
                assert "its own" not in others(target, WHO)
        finally:
            owner.execute("alter role app reset statement_timeout")
