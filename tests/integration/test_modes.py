"""Session and statement mode, and what transaction mode shares between its clients."""

from harness import messages as m
from harness.suite import equal, pooler_only


@pooler_only
def test_transaction_mode_shares_one_backend(env):
    with env.pooler_with(pool_size=1) as target:
        clients = [env.connect(target) for _ in range(5)]
        pids = {client.value("select pg_backend_pid()") for client in clients}
        equal(len(pids), 1, "backends used")


@pooler_only
def test_transaction_mode_keeps_the_backend_for_the_transaction(env):
    with env.pooler_with(pool_size=2) as target:
        holder = env.connect(target)
        pid = holder.execute("begin; select pg_backend_pid()").value
        for client in [env.connect(target) for _ in range(4)]:
            assert client.value("select pg_backend_pid()") != pid
        equal(holder.value("select pg_backend_pid()"), pid)
        holder.execute("commit")


def test_session_mode_keeps_one_backend_for_the_clients_life(env):
    with env.pooler_with(pool_mode="session", pool_size=3) as target:
        clients = [env.connect(target) for _ in range(3)]
        pids = [client.value("select pg_backend_pid()") for client in clients]
        equal(len(set(pids)), 3)
        for _ in range(3):
            equal([client.value("select pg_backend_pid()") for client in clients], pids)


def test_session_mode_keeps_every_kind_of_state(env):
    with env.pooler_with(pool_mode="session", pool_size=2) as target:
        owner, other = env.connect(target), env.connect(target)
        owner.execute("create temp table kept (i int); set my.name to 'x'; prepare p as select 5; listen ch; "
                      "select pg_advisory_lock(77); set role helper_role")
        owner.execute("begin; declare c cursor with hold for values (1), (2); commit")
        equal(other.rows("select to_regclass('pg_temp.kept'), current_setting('my.name', true), pg_try_advisory_lock(77)"),
              [(None, None, "f")])
        equal(owner.rows("select to_regclass('kept') is not null, current_setting('my.name'), current_user"), [("t", "x", "helper_role")])
        equal(owner.value("execute p"), "5")
        equal(owner.value("fetch c"), "1")
        other.execute("notify ch, 'hello'")
        owner.value("select 1")
        equal([entry[1:] for entry in owner.notifications], [("ch", "hello")])


def test_session_mode_cleans_the_backend_for_the_next_client(env):
    with env.pooler_with(pool_mode="session", pool_size=1) as target:
        with target.connect(timezone="Asia/Tokyo") as first:
            first.execute("create temp table t1 (i int); set my.secret to 'x'; prepare p as select 5; set statement_timeout to 5555; "
                          "select pg_advisory_lock(78); listen ch; create sequence if not exists sm; select nextval('sm')")
        second = env.connect(target)
        equal(second.rows("select to_regclass('pg_temp.t1'), current_setting('my.secret', true), current_setting('statement_timeout'), "
                          "(select count(*) from pg_prepared_statements), (select count(*) from pg_listening_channels()), "
                          "current_setting('timezone') = 'Asia/Tokyo'"),
              [(None, None, "0", "0", "0", "f")])
        equal(second.value("select count(*) from pg_locks where locktype = 'advisory' and pid = pg_backend_pid()"), "0")
        equal(second.attempt("select currval('sm')").sqlstate, "55000")
        second.execute("drop sequence sm")


def test_session_mode_gives_the_backends_own_process_id(env):
    with env.pooler_with(pool_mode="session") as target:
        client = env.connect(target)
        equal(int(client.value("select pg_backend_pid()")), client.pid)


@pooler_only
def test_session_mode_waits_for_a_backend(env):
    with env.pooler_with(pool_mode="session", pool_size=1, query_wait_timeout="1s") as target:
        first = env.connect(target)
        first.value("select 1")
        second = target.open()
        env.open.append(second)
        second.send(m.startup({"user": "app", "database": "app"}))
        try:
            second.login(target.secrets["app"], "app")
            result = second.attempt("select 1")
            equal(result.sqlstate, "53300")
        except Exception as error:
            equal(getattr(error, "sqlstate", error), "53300")
        first.close()
        equal(env.connect(target).value("select 2"), "2")


@pooler_only
def test_statement_mode_refuses_transactions(env):
    with env.pooler_with(pool_mode="statement", pool_size=1) as target:
        client = env.connect(target)
        equal(client.value("select 1"), "1")
        result = client.attempt("begin")
        assert result.errors, "BEGIN was accepted in statement mode"
        other = env.connect(target)
        equal(other.value("select 2"), "2")


@pooler_only
def test_statement_mode_serves_every_protocol(env):
    with env.pooler_with(pool_mode="statement", pool_size=1) as target:
        client, other = env.connect(target), env.connect(target)
        client.exchange(m.parse("select $1::int", "s"), m.SYNC)
        equal(other.value("select 1"), "1")
        equal(client.exchange(m.bind("s", values=[4]), m.execute(), m.SYNC).value, "4")
        equal(client.execute("select 1; select 2").kinds, "TDCTDCZ")
        client.send(m.query("copy (select 1) to stdout"))
        equal(client.collect().kinds, "HdcCZ")


@pooler_only
def test_modes_by_database_and_by_user(env):
    """`pool_mode` of [[database]] and [[user]] goes before that of [pool]."""
    append = f"""
[[database]]
name = "other"
servers = ["{env.cluster.address}"]
pool_mode = "session"
pool_size = 3

[[user]]
name = "app2"
pool_mode = "session"
"""
    with env.pooler_with(append=append, pool_size=3) as target:
        def pids(**how):
            clients = [env.connect(target, **how) for _ in range(2)]
            return len({client.value("select pg_backend_pid()") for client in clients})
        equal(pids(database="app"), 1, "transaction mode")
        equal(pids(database="other"), 2, "session mode by database")
        equal(pids(database="app", user="app2"), 2, "session mode by user")
