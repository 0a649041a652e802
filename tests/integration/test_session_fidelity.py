"""`fidelity`: whether a session keeps what cannot move, or loses it with its transaction as with other poolers."""

from harness.suite import equal, pooler_only

SAME_FOR_ALL_SERVERS = True

SETTINGS = {"pool_size": 1}


@pooler_only
def test_classic_loses_state_and_leaks_none(env):
    with env.pooler_with(fidelity="classic", pool_size=1) as target:
        owner, other = target.connect(), target.connect()
        owner.execute("begin; create temp table mine as select 1 as x")
        equal(owner.value("select x from mine"), "1")
        owner.execute("commit; select pg_advisory_lock(77)")
        owner.execute("set statement_timeout to 12345")
        # Nobody keeps the only server connection.
        equal(other.value("select 1"), "1")
        equal(other.attempt("select x from mine").sqlstate, "42P01")
        equal(other.value("select pg_try_advisory_lock(77)"), "t")
        equal(other.value("show statement_timeout"), "0")
        equal(owner.attempt("select x from mine").sqlstate, "42P01")
        equal(owner.value("show statement_timeout"), "0")


@pooler_only
def test_classic_keeps_what_moves(env):
    with env.pooler_with(fidelity="classic", pool_size=1) as target:
        one, other = target.connect(timezone="Asia/Tokyo"), target.connect()
        one.execute("set application_name to 'one'; set statement_timeout to 99999")
        for client, zone, name in ((one, "Asia/Tokyo", "one"), (other, "UTC", "")) * 2:
            if client is one:
                equal(client.rows("select current_setting('timezone'), current_setting('application_name')"), [(zone, name)])
            else:
                equal(client.value("show statement_timeout"), "0")
