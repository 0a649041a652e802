"""Several servers to a database: a primary and a standby that follows it, and which of them will do."""

import itertools

from harness import messages as m
from harness.postgres import Standby
from harness.suite import equal, limit, pooler_only, until
from harness.wire import ServerError

NUMBERS = itertools.count(1)
SETTINGS = {"query_wait_timeout": "10s", "server_login_retry": "100ms", "server_connect_timeout": "2s"}


def standby(env):
    return Standby(env.cluster, f"{env.directory}/standby{next(NUMBERS)}")


def role(client):
    return "standby" if client.value("select pg_is_in_recovery()") == "t" else "primary"


def role_now(env, target):
    """Of the server that a new client gets; None while there is none."""
    try:
        with target.connect() as client:
            return role(client)
    except ServerError:
        return None


@pooler_only
@limit(60)
def test_target_session_attrs_choose_the_server(env):
    with standby(env) as second:
        order = {"primary first": [env.cluster.address, second.address], "standby first": [second.address, env.cluster.address]}
        for attrs, expected in (("primary", ("primary", "primary")), ("read-write", ("primary", "primary")),
                                ("standby", ("standby", "standby")), ("read-only", ("standby", "standby")),
                                ("prefer-standby", ("standby", "standby")), ("any", ("primary", "standby"))):
            for (name, servers), wanted in zip(order.items(), expected):
                with env.pooler_with(servers=servers, target_session_attrs=attrs, pool_size=2) as target:
                    equal(role(env.connect(target)), wanted, f"{attrs}, {name}")


@pooler_only
@limit(60)
def test_a_primary_that_is_made_read_only_is_no_read_write_server(env):
    with standby(env) as second:
        admin = env.server("postgres")
        admin.execute("alter system set default_transaction_read_only = on")
        admin.execute("select pg_reload_conf()")
        try:
            until(lambda: env.cluster.target.connect("postgres", "app", host=str(env.cluster.socket_dir)).value("show default_transaction_read_only") == "on", "reloaded")
            servers = [second.address, env.cluster.address]
            with env.pooler_with(servers=servers, target_session_attrs="read-only") as target:
                equal(role(env.connect(target)), "standby")
            with env.pooler_with(servers=servers, target_session_attrs="read-write", query_wait_timeout="1s") as target:
                try:
                    raise AssertionError(f"served by a {role(env.connect(target))}")
                except ServerError as error:
                    equal(error.sqlstate, "08006")
                    assert "read-write" in str(error), error
        finally:
            admin.execute("set default_transaction_read_only = off")
            admin.execute("alter system reset default_transaction_read_only")
            admin.execute("select pg_reload_conf()")


@pooler_only
@limit(90)
def test_clients_follow_the_primary_to_a_promoted_standby(env):
    with standby(env) as second:
        servers = [env.cluster.address, second.address]
        with env.pooler_with(servers=servers, target_session_attrs="primary") as target:
            idle = env.connect(target, application_name="stays")
            idle.execute("select 1")
            equal(role(idle), "primary")
            env.cluster.stop("immediate")
            second.promote()
            # The client is the same: only its server is another.
            equal((role(idle), idle.value("show application_name")), ("primary", "stays"))
            equal(idle.value("show port"), str(second.port))
            equal(env.connect(target).value("show port"), str(second.port))


@pooler_only
@limit(90)
def test_clients_wait_for_a_standby_to_be_promoted(env):
    with standby(env) as second:
        with env.pooler_with(servers=[env.cluster.address, second.address], target_session_attrs="primary") as target:
            client = env.connect(target)
            client.execute("select 1")
            env.cluster.stop("immediate")
            client.send(m.query("show port"))
            assert not client.pending(1), "answered although there is no primary"
            second.promote()
            equal(client.collect().value, str(second.port))


@pooler_only
@limit(90)
def test_readers_prefer_the_standby_and_go_on_without_it(env):
    with standby(env) as second:
        with env.pooler_with(servers=[env.cluster.address, second.address], target_session_attrs="prefer-standby") as target:
            client = env.connect(target)
            equal(role(client), "standby")
            second.stop("immediate")
            until(lambda: role_now(env, target) == "primary", "the primary serves")
            equal(role(client), "primary")


@pooler_only
@limit(90)
def test_a_standby_that_is_promoted_is_left(env):
    """Whoever asked for a standby is not served by a primary for the rest of server_lifetime."""
    with standby(env) as second, standby(env) as third:
        with env.pooler_with(servers=[second.address, third.address], target_session_attrs="standby") as target:
            client = env.connect(target)
            equal(client.value("show port"), str(second.port))
            second.promote()
            until(lambda: client.value("show port") == str(third.port), "the other standby serves", seconds=10)
            equal(role(client), "standby")
