"""Names and settings of each client's own that go to the one server connection within its pipelines, whatever becomes of these."""

import time

from harness import messages as m
from harness.suite import equal

SETTINGS = {"pool_size": 1}

# Functions are read anew by then.
CENSUS_SECONDS = 2.5

OWN = "select current_setting('application_name'), current_setting('my.tenant', true)"


def clients_of(env, count=2):
    """Each has prepared `own`, which shows its settings."""
    clients = [env.connect(application_name=f"of {n}", options=f"-c my.tenant=t{n}") for n in range(count)]
    for client in clients:
        equal(client.exchange(m.parse(OWN, "own"), m.SYNC).kinds, "1Z")
    return clients


def run(name, *values):
    return m.bind(name, values=values) + m.execute()


def told(result):
    """The names of the settings that were reported."""
    return [message.body.split(b"\0")[0].decode() for message in result.messages if message.kind == "S"]


def each_has_its_own(clients):
    for _ in range(2):
        for n, client in enumerate(clients):
            result = client.exchange(run("own"), m.SYNC)
            equal((result.kinds, told(result), result.rows), ("2DCZ", [], [(f"of {n}", f"t{n}")]))


def test_each_has_its_own_and_hears_nothing_of_it(env):
    clients = clients_of(env, 5)
    each_has_its_own(clients)
    for n, client in enumerate(clients):
        result = client.exchange(
            m.parse("select application_name from pg_stat_activity where pid = pg_backend_pid()"), run(""), m.SYNC
        )
        equal((result.kinds, told(result), result.rows), ("12DCZ", [], [(f"of {n}",)]))


def test_an_error_leaves_each_its_own(env):
    clients = clients_of(env)
    one, two = clients
    one.execute("drop table if exists once; create table once (a int unique deferrable initially deferred)")
    for failing in (
        m.parse("select 1/0") + run(""),
        m.parse("select no_such_column") + run(""),
        run("own") + m.parse("select $1::int") + run("", "x"),
        m.parse("insert into once values (1), (1)") + run(""),  # fails as it commits
        run("own") + m.bind("nothing of this name"),
    ):
        two.exchange(run("own"), m.SYNC)
        result = one.exchange(failing, m.SYNC)
        equal(len(result.errors), 1)
        equal(told(result), [])
        each_has_its_own(clients)
        two.exchange(run("own"), m.SYNC)
        result = one.exchange(failing, m.SYNC, run("own"), m.SYNC)
        equal((len(result.errors), result.rows[-1]), (1, ("of 0", "t0")))
        each_has_its_own(clients)


def test_blocks_that_a_pipeline_opens_and_rolls_back(env):
    clients = clients_of(env)
    one, two = clients
    for end in ("rollback", "commit"):
        for wait in (b"", m.SYNC):
            two.exchange(run("own"), m.SYNC)
            block = m.parse("begin") + run("") + wait + run("own") + wait + m.parse(end) + run("")
            result = one.exchange(block, m.SYNC)
            equal((result.errors, result.rows), ([], [("of 0", "t0")]))
            each_has_its_own(clients)


def test_what_a_function_sets_in_the_same_pipeline(env):
    clients = clients_of(env)
    one, two = clients
    one.execute(
        "create or replace function renames(text) returns text language plpgsql as"
        " $$ begin return set_config('application_name', $1, false); end $$"
    )
    two.exchange(run("own"), m.SYNC)
    result = one.exchange(m.parse("select renames('by a function')"), run(""), m.SYNC)
    equal((result.kinds, told(result)), ("12DCZ", ["application_name"]))
    equal(two.exchange(run("own"), m.SYNC).rows, [("of 1", "t1")])
    equal(one.exchange(run("own"), m.SYNC).rows, [("by a function", "t0")])
    # Taken back with the pipeline in which it was set.
    two.exchange(run("own"), m.SYNC)
    one.exchange(m.parse("select renames('in vain')"), run(""), m.parse("select 1/0"), run(""), m.SYNC)
    equal(two.exchange(run("own"), m.SYNC).rows, [("of 1", "t1")])
    equal(one.exchange(run("own"), m.SYNC).rows, [("by a function", "t0")])


def test_a_function_that_sets_what_went_within_leaves_no_others_value(env):
    """A custom setting, which no server reports: after an error it is the one that was there before, of the other client."""
    clients = one, two = env.connect(), env.connect()
    for n, client in enumerate(clients):
        client.execute(f"set my.tenant = 't{n}'")
        client.exchange(m.parse("select current_setting('my.tenant', true)", "own"), m.SYNC)
    one.execute(
        "create or replace function moves(text, boolean) returns text language plpgsql as"
        " $$ begin perform set_config('my.tenant', $1, false); if $2 then raise 'no'; end if; return 'moved'; end $$;"
        " create or replace function moves_row() returns trigger language plpgsql as"
        " $$ begin perform set_config('my.tenant', 'of a row', false); return new; end $$;"
        " drop table if exists moved; create table moved (a int check (a > 0));"
        " create trigger moves before insert on moved for each row execute function moves_row()"
    )
    time.sleep(CENSUS_SECONDS)  # then it is known what they do
    for failing in (
        m.parse("select moves('in vain', true)") + run(""),
        m.parse("select moves('in vain', false)") + run("") + m.parse("select 1/0") + run(""),
        m.parse("insert into moved values (0)") + run(""),
    ):
        for prepared in (False, True):
            two.exchange(run("own"), m.SYNC)
            if prepared:
                equal(one.exchange(m.parse("select moves($1, true)", "moves"), m.SYNC).kinds, "1Z")
                two.exchange(run("own"), m.SYNC)
                failing = run("moves", "in vain")
            equal(len(one.exchange(failing, m.SYNC).errors), 1)
            for n, client in enumerate(clients):
                equal(client.exchange(run("own"), m.SYNC).rows, [(f"t{n}",)])
            if prepared:
                one.exchange(m.close_statement("moves"), m.SYNC)


def test_commands_that_need_a_transaction_of_their_own_have_one(env):
    clients = clients_of(env)
    one, two = clients
    one.execute("drop table if exists swept; create table swept (a int)")
    for command in ("vacuum swept", "reindex table concurrently swept"):
        two.exchange(run("own"), m.SYNC)
        equal(one.exchange(m.parse(command), run(""), m.SYNC).errors, [])
        each_has_its_own(clients)


def test_row_policies_show_each_tenant_its_rows(env):
    clients = clients_of(env)
    one = clients[0]
    one.execute(
        "drop table if exists owned; create table owned (tenant text, a int);"
        " insert into owned select 't' || n % 2, n from generate_series(1, 10) n;"
        " create policy own on owned using (tenant = current_setting('my.tenant', true));"
        " alter table owned enable row level security; alter table owned force row level security"
    )
    for client in clients:
        client.exchange(m.parse("select distinct tenant from owned where a > $1", "tenants"), m.SYNC)
    for _ in range(8):  # beyond the plans that are made for one execution
        for n, client in enumerate(clients):
            equal(client.exchange(run("tenants", "0"), m.SYNC).rows, [(f"t{n}",)])
        one.exchange(run("tenants", "no number"), m.SYNC)


def test_deallocate_all_takes_nothing_that_is_needed(env):
    clients = clients_of(env)
    one, two = clients
    each_has_its_own(clients)
    two.execute("deallocate all")
    two.exchange(m.parse(OWN, "own"), m.SYNC)
    each_has_its_own(clients)
    one.execute("create or replace function forgets() returns void language plpgsql as $$ begin execute 'deallocate all'; end $$")
    two.execute("select forgets()")
    equal(one.exchange(run("own"), m.SYNC).rows, [("of 0", "t0")])


def test_each_has_its_own_search_path(env):
    paths = ["s0", "s1, public", '"we""ird"', '"$user", s2', '""']
    schemas = ["s0", "s1", '"we""ird"', "s2"]
    one = env.connect()
    for n, schema in enumerate(schemas):
        one.execute(f"create schema if not exists {schema}; create table if not exists {schema}.here (a text);"
                    f" truncate {schema}.here; insert into {schema}.here values ('{n}')")  # fmt: skip
    clients = []
    for n, path in enumerate(paths):
        client = env.connect(application_name=f"of {n}")
        client.execute("set search_path to " + ("''" if path == '""' else path))
        equal(client.rows("show search_path"), [(path,)])
        clients.append(client)
    for client in clients[:-1]:
        equal(client.exchange(m.parse("select a, current_setting('search_path') from here", "q"), m.SYNC).kinds, "1Z")
    for _ in range(8):  # beyond the plans that are made for one execution
        for n, client in enumerate(clients[:-1]):
            equal(client.exchange(run("q"), m.SYNC).rows, [(str(n), paths[n])])
        result = clients[-1].exchange(m.parse("select a from here"), run(""), m.SYNC)
        equal(result.errors[0]["C"], "42P01")  # and what is set with it is taken back
    # One that a rollback takes back, and one for a transaction.
    clients[0].execute("begin; set search_path to s1; rollback")
    equal(clients[1].exchange(run("q"), m.SYNC).rows, [("1", paths[1])])
    equal(clients[0].exchange(run("q"), m.SYNC).rows, [("0", paths[0])])
    clients[0].execute("reset search_path")
    equal(clients[1].exchange(run("q"), m.SYNC).rows, [("1", paths[1])])
    equal(clients[0].rows("show search_path"), one.rows("show search_path"))


def test_a_name_that_the_server_had_from_another_is_ones_own_once_one_sets_it(env):
    """The server has nothing to report then: at the end of the transaction it has the value from before."""
    clients = [env.connect(application_name=name) for name in ("one", "two")]
    for client in clients:
        sets = m.parse("select set_config('application_name', $1, false)", "sets")
        equal(client.exchange(sets, m.parse("show application_name", "shows"), m.SYNC).kinds, "11Z")
    one, two = clients
    for name in ("x", "y"):
        for client, known in ((two, name), (one, name)):
            result = client.exchange(run("sets", name), m.SYNC)
            equal((result.errors, result.rows, told(result)), ([], [(known,)], ["application_name"]), name)
        two.exchange(run("sets", "other"), m.SYNC)
        equal(one.exchange(run("shows"), m.SYNC).rows, [(name,)])
        equal(one.parameters["application_name"], name)


def two_with_names(env):
    """Two clients, each with its `app.who`; the second has something of SQL's PREPARE besides, which is taken away ahead of
    what the first sends next."""
    one, two = env.connect(), env.connect()
    for client, who in ((one, "alice"), (two, "bob")):
        client.execute(f"set app.who = '{who}'")
        equal(client.exchange(m.parse("select current_setting('app.who')", "who"), m.SYNC).kinds, "1Z")
    two.execute("prepare p as select 1")
    return one, two


def test_what_goes_ahead_of_a_pipeline_that_fails_does_not_commit_its_settings(env):
    one, two = two_with_names(env)
    for _ in range(3):
        equal(one.exchange(m.parse("select 1/0"), run(""), m.SYNC).sqlstate, "22012")
        equal(two.rows("select current_setting('app.who')"), [("bob",)])
        equal(two.exchange(run("who"), m.SYNC).rows, [("bob",)])
        equal(two.rows("execute p"), [("1",)])
        equal(one.exchange(run("who"), m.SYNC).rows, [("alice",)])


def test_a_row_policy_shows_ones_own_rows_after_anothers_pipeline_has_failed(env):
    one, two = two_with_names(env)
    one.execute(
        "drop table if exists told; create table told (who text);"
        " create policy own on told using (who = current_setting('app.who', true)) with check (true);"
        " insert into told values ('alice'), ('bob');"
        " alter table told enable row level security; alter table told force row level security"
    )
    two.execute("execute p")
    one.exchange(m.parse("select 1/0"), run(""), m.SYNC)
    equal(two.rows("select who from told"), [("bob",)])


def test_what_discards_anothers_sequences_does_not_commit_settings(env):
    one, two = two_with_names(env)
    two.execute("deallocate p")
    one.execute("create sequence if not exists drawn_from")
    one.rows("select nextval('drawn_from')")
    one.exchange(m.query("select lastval()"))  # from now on its transactions begin with a DISCARD
    two.rows("select nextval('drawn_from')")
    equal(one.exchange(m.parse("select 1/0"), run(""), m.SYNC).sqlstate, "22012")
    equal(two.rows("select current_setting('app.who')"), [("bob",)])


def test_what_brings_missed_names_does_not_commit_settings(env):
    one, two = two_with_names(env)
    one.execute("create or replace function runs(text) returns text language plpgsql as"
                " $$ declare v text; begin execute 'execute ' || $1 into v; return v; end $$")
    one.exchange(m.parse("select 'of q'", "q"), m.SYNC)
    two.execute("execute p")
    one.exchange(m.query("select runs('q')"))  # on a direct connection it works
    two.execute("execute p")
    equal(one.exchange(m.parse("select 1/0"), run(""), m.SYNC).sqlstate, "22012")
    equal(two.rows("select current_setting('app.who')"), [("bob",)])
