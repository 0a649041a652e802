"""Clients that wait for a lock hold the pool: what has the lock may need another server connection."""

import contextlib

from harness import messages as m
from harness.suite import equal, limit, pooler_only, until
from integration.test_shared_users import connect, server_connections, sharing

SAME_FOR_ALL_SERVERS = True
TAKES_SECONDS = 25

SIZE = 4
LOCK = "select pg_advisory_lock(1)"
WAITING = "select count(*) from pg_stat_activity where wait_event_type = 'Lock' and datname = current_database()"


@contextlib.contextmanager
def migrations(env, waiting, **settings):
    """One client has a session's lock, and others wait for it; gives the pooler's target, the holder, and a function
    that ends all of it in order."""
    with env.pooler_with(pool_size=SIZE, **settings) as target, env.cluster.target.connect() as server:
        with contextlib.ExitStack() as clients:
            holder, *others = [clients.enter_context(target.connect()) for _ in range(waiting + 1)]
            holder.execute(LOCK)
            for other in others:
                other.send(m.query(LOCK))

            def release():
                """Each gets the lock in its turn, leaves it, and is answered."""
                holder.execute("select pg_advisory_unlock(1)")
                left = list(others)
                while left:
                    [had] = [client for client in left if client.pending(0.05)][:1]
                    assert not had.collect().errors
                    had.execute("select pg_advisory_unlock(1)")
                    left.remove(had)

            yield target, server, release


@pooler_only
def test_the_error_says_how_many_server_connections_wait_for_locks(env):
    with migrations(env, SIZE, query_wait_timeout="6s") as (target, server, release):
        until(lambda: server.value(WAITING) == str(SIZE), "all of the pool wait")
        with target.connect() as second:
            refused = second.attempt("select 1")
            equal(refused.sqlstate, "53300")
            hint = refused.errors[0]["H"]
            assert hint.startswith(f"{SIZE} of the pool's {SIZE + 1} server connections wait for locks."), hint
            assert "lock_wait_reserve" in hint, hint
        release()


@pooler_only
def test_lock_wait_reserve_lets_the_holder_of_a_lock_have_its_second_connection(env):
    with migrations(env, SIZE, query_wait_timeout="60s", lock_wait_reserve=1) as (target, server, release):
        until(lambda: server.value(WAITING) == str(SIZE), "all of the pool wait")
        with target.connect() as second:
            equal(second.value("select 'migrated'"), "migrated")
            # It stays while they wait: another transaction waits for no look at the locks.
            equal([second.value("select 'again'") for _ in range(20)], ["again"] * 20)
            # The reserve is bounded.
            second.execute("begin")
            equal(server.value("select count(*) from pg_stat_activity where backend_type = 'client backend' "
                               "and application_name <> 'hawser' and pid <> pg_backend_pid()"), str(SIZE + 2))
            second.execute("commit")
        release()


@pooler_only
def test_the_reserve_is_for_none_while_one_server_connection_works(env):
    with env.pooler_with(pool_size=2, query_wait_timeout="4s", lock_wait_reserve=5) as target, \
            env.cluster.target.connect() as server, target.connect() as works, target.connect() as waits, target.connect() as late:
        server.execute(LOCK)
        works.send(m.query("select pg_sleep(20)"))
        waits.send(m.query("select pg_advisory_xact_lock(1)"))
        until(lambda: server.value(WAITING) == "1", "one waits")
        refused = late.attempt("select 1")
        equal(refused.sqlstate, "53300")
        assert refused.errors[0]["H"].startswith("1 of the pool's 2 server connections wait"), refused.errors
        server.execute("select pg_advisory_unlock(1)")
        assert not waits.collect().errors


@pooler_only
@limit(120)
def test_they_are_counted_where_the_extension_shows_clients_by_their_own_ids(env):
    with sharing(env, pool_size=2, query_wait_timeout="6s") as target, connect(env, target, "u1") as holder:
        holder.execute(LOCK)
        with contextlib.ExitStack() as clients:
            for user in ("u2", "u3"):
                clients.enter_context(connect(env, target, user)).send(m.query(LOCK))
            until(lambda: server_connections(env, "wait_event_type = 'Lock'") == 2, "both wait")
            refused = clients.enter_context(connect(env, target, "u4")).attempt("select 1")
            equal(refused.sqlstate, "53300")
            assert refused.errors[0]["H"].startswith("2 of the pool's 3 server connections wait"), refused.errors
