"""Custom settings (my.x): a server that has known one gives '' for it ever after, where a session that has not gets NULL."""

from harness import messages as m
from harness.suite import equal, pooler_only

SETTINGS = {"pool_size": 1}

KNOWN = "select current_setting('my.tenant', true)"


def test_each_client_has_its_own_and_a_stranger_has_none(env):
    one, two, stranger = env.connect(), env.connect(options="-c my.tenant=two"), env.connect()
    one.execute("set my.tenant to 'one'")
    for _ in range(2):
        equal(one.value(KNOWN), "one")
        equal(two.value(KNOWN), "two")
        equal(stranger.value(KNOWN), None)
    one.execute("reset my.tenant")
    two.execute("begin; set my.tenant to 'three'; rollback")
    for _ in range(2):
        equal(one.value(KNOWN), "")
        equal(stranger.value(KNOWN), None)
        equal(two.value(KNOWN), "two")


def test_names_outlast_rollbacks_and_local_settings_of_them(env):
    one, two, stranger = env.connect(), env.connect(), env.connect()
    one.execute("begin; set my.tenant to 'one'; rollback")
    two.execute("begin; select set_config('my.tenant', 'two', true); commit")
    for _ in range(2):
        equal(one.value(KNOWN), "")
        equal(stranger.value(KNOWN), None)
        equal(two.value(KNOWN), "")
    one.execute("begin; set local my.tenant to 'again'")
    equal(one.value(KNOWN), "again")
    one.execute("commit")
    equal(one.value(KNOWN), "")


def test_discard_all_leaves_the_name(env):
    one, stranger = env.connect(), env.connect()
    one.execute("set my.tenant to 'one'")
    one.execute("discard all")
    equal(stranger.value(KNOWN), None)
    equal(one.value(KNOWN), "")


def test_discard_all_gives_back_a_start_value_that_is_being_asked_for(env):
    """Under LATIN1 a value is asked for after its SET; a client that listens is asked at its own next query."""
    client, stranger = env.connect(options="-c my.tenant=mine"), env.connect(options="-c my.tenant=theirs")
    for way in (m.query("discard all"), m.run("discard all") + m.SYNC):
        client.execute("set client_encoding to 'LATIN1'")
        client.execute("listen a_channel")
        client.execute("set my.tenant to 'x'")
        client.exchange(way)
        for _ in range(2):
            equal(client.value(KNOWN), "mine")
            equal(stranger.value(KNOWN), "theirs")


def test_row_policies_by_a_custom_setting(env):
    owner = env.server()
    owner.execute("create table tenants (tenant int, t text); alter table tenants enable row level security; grant select, insert on "
                  "tenants to app; "
                  "create policy own on tenants using (tenant = current_setting('my.tenant', true)::int); "
                  "insert into tenants select n, 'of ' || n from generate_series(1, 3) n")
    try:
        clients = [env.connect() for _ in range(3)]
        stranger = env.connect()
        for n, client in enumerate(clients):
            client.execute(f"set my.tenant to {n + 1}")
        for _ in range(3):
            for n, client in enumerate(clients):
                equal(client.rows("select t from tenants"), [(f"of {n + 1}",)])
            equal(stranger.rows("select t from tenants"), [])
    finally:
        owner.execute("drop table tenants")


def test_custom_settings_pin_nobody(env):
    """More clients than server connections, in turns, each in its own transaction."""
    clients = [env.connect() for _ in range(5)]
    for turn in range(3):
        for n, client in enumerate(clients):
            client.execute(f"set my.tenant to '{n}-{turn}'")
        for n, client in enumerate(clients):
            equal(client.value(KNOWN), f"{n}-{turn}")


@pooler_only
def test_a_statement_brings_no_custom_setting_of_who_parsed_it_first(env):
    """Clients whose custom settings differ share statements: what prepares one anew, under other settings that count, has none of them."""
    ways = {"EXECUTE": m.query("execute own"), "a list": m.query("select count(*) from pg_prepared_statements"),
            "DEALLOCATE": m.query("select 7; deallocate own"), "Bind": m.bind("own") + m.execute() + m.SYNC}
    with env.pooler_with(pool_size=1, idle_transaction_reserve=0) as target, target.pooler.admin() as console:
        for number, (way, uses) in enumerate(ways.items()):
            text = f"select {number} + 0"
            with target.connect() as first:
                first.execute(f"set my.tenant{number} to 'secret'")
                first.exchange(m.run(text, name="own"), m.SYNC)
            console.execute("reconnect app")
            with target.connect() as client, env.server() as server:
                client.exchange(m.run(text, name="own"), m.SYNC)
                client.execute("set extra_float_digits = 0")
                with target.connect() as other:
                    other.value("select 1")
                client.exchange(uses)
                equal(client.value(f"select current_setting('my.tenant{number}', true)"), None, way)
                # (The process of the connection that asked before may take a moment to end.)
                shown = server.execute("select query from pg_stat_activity where query like '%secret%' and query not like "
                                       "'%pg_stat_activity%'").rows
                equal(shown, [], way)
