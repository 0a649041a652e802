"""Timeouts below a second move as any other setting, and hit no statement of the pooler's own: neither its client's nor another's."""

import time

from harness.suite import crowd, equal, limit, pooler_only

SETTINGS = {"pool_size": 1}


def test_a_short_statement_timeout_moves(env):
    clients = [env.connect() for _ in range(4)]
    for number, client in enumerate(clients):
        client.execute(f"set statement_timeout = '{500 + number}ms'")
        client.execute(f"set my.number to '{number}'")
    plain = env.connect()
    for _ in range(3):
        for number, client in enumerate(clients):
            equal(client.rows("select current_setting('statement_timeout'), current_setting('my.number')"),
                  [(f"{500 + number}ms", str(number))])
            equal(plain.value("show statement_timeout"), "0")
    equal(clients[0].attempt("select pg_sleep(5)").sqlstate, "57014")
    plain.value("select pg_sleep(0.7)")
    clients[0].execute("reset statement_timeout")
    plain.value("select 1")
    equal(clients[0].value("show statement_timeout"), "0")


def test_as_a_start_parameter(env):
    clients = [env.connect(options=f"-c statement_timeout={500 + number} -c work_mem={5 + number}MB") for number in range(4)]
    plain = env.connect()
    for _ in range(3):
        for number, client in enumerate(clients):
            equal(client.rows("select current_setting('statement_timeout'), current_setting('work_mem')"),
                  [(f"{500 + number}ms", f"{5 + number}MB")])
            plain.value("select pg_sleep(0.01)")
    equal(clients[1].attempt("select pg_sleep(5)").sqlstate, "57014")


def test_others_that_are_short(env):
    client, other = env.connect(), env.connect()
    names = {"lock_timeout": "1ms", "idle_in_transaction_session_timeout": "900ms"}
    if env.cluster.version >= 17:
        names["transaction_timeout"] = "1500ms"  # below a second it could end the connection: it pins
    for name, value in names.items():
        client.execute(f"set {name} = '{value}'")
    client.execute("set role to app; set my.x to 'y'")
    for _ in range(3):
        for name, value in names.items():
            equal(client.value(f"show {name}"), value)
            equal(other.value(f"show {name}"), "0")


def by_many(env, target, timeout, how):
    """60 clients at once, on 20 server connections; each statement of theirs may be cut off, as direct, and nothing else."""
    def work(number):
        start = {"options": f"-c statement_timeout={timeout} -c my.number={number}"} if how == "start" else {}
        with target.connect(**start) as client:
            if how == "set":
                # SET itself may be cut off, by the one before it.
                client.execute(f"set my.number to '{number}'")
                client.execute(f"set statement_timeout = '{timeout}'")
            right = 0
            for _ in range(20):
                result = client.attempt("select current_setting('my.number'), current_setting('statement_timeout')")
                assert result.sqlstate in (None, "57014"), result.errors
                if not result.errors:
                    equal(result.rows, [(str(number), timeout)])
                    right += 1
            return right
    return crowd(60, work)


@limit(120)
def test_sixty_clients_on_a_pool_of_twenty(env):
    with env.pooler_with(pool_size=20) as target:
        for how in ("set", "start"):
            for timeout in ("500ms", "1ms"):
                right = by_many(env, target, timeout, how)
                assert sum(right) > 60 * (19 if timeout == "500ms" else 5), f"{timeout} {how}: {sorted(right)}"
        for client in [env.connect(target) for _ in range(20)]:
            equal(client.value("show statement_timeout"), "0")


@limit(120)
def test_no_plans_are_discarded_under_a_short_timeout(env):
    """Where functions keep plans, a DISCARD PLANS goes before a client's settings: its timer cut these off (08006)."""
    env.connect().execute("create or replace function plans_a_number() returns text language plpgsql as "
                          "$$ begin return current_setting('my.number', true); end $$")
    with env.pooler_with(pool_size=20) as target:
        for how in ("set", "start"):
            by_many(env, target, "1ms", how)


@pooler_only
def test_a_client_behind_one_of_a_millisecond_waits_for_nothing(env):
    short, plain = env.connect(), env.connect(options="-c my.own=1")
    short.execute("set statement_timeout = '1ms'")
    start = time.monotonic()
    for _ in range(50):
        short.attempt("select 1")
        equal(plain.rows("select current_setting('my.own'), current_setting('statement_timeout')"), [("1", "0")])
    assert time.monotonic() - start < 10
    equal([row["pins"] for row in env.pooler.show("CLIENTS") if row["pins"]], [])
