"""What a server process keeps of settings: plans of shared statements and of functions give each client its own."""

import contextlib

from harness import messages as m
from harness.suite import equal

SETTINGS = {"pool_size": 1}

DAY = "select count(*) from moments where at >= '2024-01-01 00:00' and at < '2024-01-02 00:00'"

SETUP = """
drop table if exists moments, stamped cascade;
create table moments (i int, at timestamptz);
insert into moments values (1, '2024-01-01 00:00 UTC');
create table stamped (i int, at timestamptz);
create or replace function stamp() returns trigger language plpgsql as $$
begin new.at := '2024-01-01 00:00'::timestamptz; return new; end $$;
create trigger stamp before insert on stamped for each row execute function stamp();
create or replace function midnight() returns bigint language plpgsql as $$
declare r bigint; begin select extract(epoch from '2024-01-01 00:00'::timestamptz) into r; return r; end $$;
create or replace function plans_who() returns text language sql immutable as $$ select current_setting('app.who', true) $$;
create or replace function plans_tenant() returns text language plpgsql as $$ begin return plans_who(); end $$;
create or replace function plans_name() returns text language sql immutable as $$ select current_setting('application_name') $$;
grant all on moments, stamped to public;
"""


@contextlib.contextmanager
def world(env):
    """A pooler of one server connection that has not seen how the functions were made, and two clients."""
    with env.server() as maker:
        maker.execute(SETUP)
    with env.pooler_with() as target, target.connect() as one, target.connect() as other:
        for client in (one, other):
            client.execute("set timezone = 'UTC'")
        yield one, other


def run(client, name):
    result = client.exchange(m.bind(name) + m.execute() + m.SYNC)
    assert not result.errors, result.errors
    return result.value


def test_a_plan_made_after_set_local_is_nobody_elses(env):
    with world(env) as (one, other):
        for client in (one, other):
            client.exchange(m.parse(DAY, "day") + m.SYNC)
            equal(run(client, "day"), "1")
        with env.server() as maker:
            maker.execute("insert into moments select 9, '2000-01-01' from generate_series(1, 1000); analyze moments")
        other.execute("begin; set local timezone = 'America/New_York'")
        run(other, "day")
        other.execute("commit")
        equal(run(one, "day"), "1")


def test_what_the_planner_takes_for_constant_is_its_clients_own(env):
    for text, change, own, others in (
        ("select (0.1::float8 + 0.2)::text", "set extra_float_digits = 0", "0.3", "0.30000000000000004"),
        ("select '\\x41'::bytea::text", "set bytea_output = escape", "A", "\\x41"),
        ("select plans_who()", "set app.who = 'bob'", "bob", "alice"),
        ("select plans_name()", "set application_name = 'bob'", "bob", "alice"),
    ):
        with world(env) as clients:
            for first in (0, 1):
                one, other = clients[first], clients[1 - first]
                for client in clients:
                    client.execute("reset all; set timezone = 'UTC'; set app.who = 'alice'; set application_name = 'alice'")
                    client.exchange(m.parse(text, f"p{first}") + m.SYNC)
                other.execute(change)
                order = [(other, own), (one, others)]
                for client, expected in order if first else reversed(order):
                    equal(run(client, f"p{first}"), expected, text)


def test_what_a_pipeline_sets_stays_out_of_others_plans(env):
    with world(env) as (one, other):
        for client in (one, other):
            client.exchange(m.parse("select (0.1::float8 + 0.2)::text", "f") + m.SYNC)
        other.exchange(
            m.run("begin") + m.run("set local extra_float_digits = 0") + m.bind("f") + m.execute() + m.run("commit") + m.SYNC
        )
        equal(run(one, "f"), "0.30000000000000004")


def test_functions_have_constants_of_their_own_clients(env):
    with world(env) as (one, other):
        one.execute("set timezone = 'Asia/Tokyo'; set app.who = 'alice'")
        other.execute("set app.who = 'bob'")
        stamped = "insert into stamped values (1) returning extract(epoch from at)::bigint"
        for client, moment, who in ((one, "1704034800", "alice"), (other, "1704067200", "bob")) * 2:
            equal(client.value("select midnight()"), moment)
            equal(client.value(stamped), moment)
            equal(client.value("select plans_tenant()"), who)


def test_constants_that_no_word_of_a_function_reads_are_its_own_clients(env):
    """By a row policy, a view, a STABLE function that reads a view, a cast: the first client's row went to the next."""
    ways = {
        "policy": "select v from plans_orders",
        "view": "select who from plans_me",
        "function": "select plans_whoami()",
        "cast": "select ('x'::text::plans_type).v",
        "views of the server": "select setting from pg_settings where name = 'application_name'",
    }
    for way, body in ways.items():
        with env.server() as maker:
            maker.execute("""
                drop function if exists plans_constant(), plans_outer(), plans_whoami(), plans_made(text), plans_who(),
                    plans_name() cascade;
                drop table if exists plans_orders cascade;
                drop view if exists plans_me;
                drop type if exists plans_type cascade;
                create table plans_orders (who text, v text);
                insert into plans_orders values ('alice', 'alice'), ('bob', 'bob');
                alter table plans_orders enable row level security, force row level security;
                create policy own on plans_orders using (who = current_setting('app.who', true));
                create view plans_me as select current_setting('app.who', true) as who;
                create function plans_whoami() returns text stable language sql as 'select who from plans_me';
                create type plans_type as (v text);
                grant all on plans_orders, plans_me to public""")
            if way == "cast":
                maker.execute("create function plans_made(text) returns plans_type stable language sql as $$ select "
                              "row(current_setting('app.who', true))::plans_type $$; "
                              "create cast (text as plans_type) with function plans_made(text)")
            maker.execute(f"create function plans_constant() returns text immutable language sql as $body$ {body} $body$; "
                          "create function plans_outer() returns text language plpgsql as $$ begin return plans_constant(); end $$")
        with env.pooler_with() as target, target.connect() as one, target.connect() as other:
            clients = (one, other)
            for client, who in zip(clients, ("alice", "bob")):
                client.execute(f"set app.who = '{who}'; set application_name = '{who}'")
                client.exchange(m.parse("select plans_constant()", "constant") + m.SYNC)
            for client, who in list(zip(clients, ("alice", "bob"))) * 2:
                equal((run(client, "constant"), client.value("select plans_outer()")), (who, who), way)
    with env.server() as maker:
        maker.execute("drop type plans_type cascade")  # its cast counts for all texts


def test_functions_keep_nothing_of_set_local(env):
    with world(env) as (one, other):
        one.execute("begin; set local timezone = 'Asia/Tokyo'; select midnight(); commit")
        equal(other.value("select midnight()"), "1704067200")


def test_a_prepared_fetch_gives_the_rows_of_each_cursor(env):
    """After a comment, too: its rows were taken for those of the first cursor."""
    with env.pooler_with(pool_size=2) as target, target.connect() as client, target.connect() as other:
        client.exchange(m.parse("/* app */ fetch 1 from c", "f") + m.SYNC)
        for elsewhere, query, value in (
            (False, "select 1", "1"),
            (False, "select 'a'::text", "a"),
            (True, "select 'b'::text", "b"),
            (True, "select 2", "2"),
            (False, "select 'c'::text", "c"),
        ):
            if elsewhere:
                other.execute("begin")
            client.execute(f"begin; declare c cursor for {query}")
            answer = client.exchange(m.bind("f") + m.describe_portal() + m.execute() + m.SYNC)
            equal((answer.sqlstate, answer.value), (None, value))
            client.execute("commit")
            if elsewhere:
                other.execute("rollback")
