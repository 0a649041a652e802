"""A role that a client has set, and that the server does not give any more: it was dropped, or its membership revoked.

A direct session goes on with it. On another server connection it cannot be set: the client gets the server's error for
each statement, which never runs as another role, keeps its session, and can end the role.
"""

import contextlib

from harness import messages as m
from harness.suite import equal, limit, pooler_only
from integration.test_session_extension import reporting

SETTINGS = {"pool_size": 1}
WHO = "select current_user"
ENDS = ["reset role", "set role none", "set session role to default", "set role kept_role", "reset session authorization", "discard all"]


@contextlib.contextmanager
def roles(env):
    with env.cluster.superuser() as owner:
        owner.execute("create role lost_role; create role kept_role; grant lost_role, kept_role to app")
        try:
            yield owner
        finally:
            owner.execute("drop role if exists lost_role; drop role kept_role")


LOSSES = {
    "dropped": ("drop role lost_role", "create role lost_role; grant lost_role to app", "22023"),
    "revoked": ("revoke lost_role from app", "grant lost_role to app", "42501"),
}


def begins_lost(env, target, owner, how):
    """A client whose role is lost, and one that has had the server connection since."""
    client, other = env.connect(target), env.connect(target)
    equal(client.exchange(m.parse(WHO, "who"), m.SYNC).sqlstate, None)
    client.execute("set role lost_role")
    equal(client.value(WHO), "lost_role")
    equal(other.value(WHO), "app")
    owner.execute(LOSSES[how][0])
    return client, other


def fails(client, other, result, code, what):
    equal((result.sqlstate, result.rows, result.closed), (code, [], False), what)
    assert "lost_role" in result.errors[0]["M"], (what, result.errors)
    equal(result.status, "I", what)
    equal(other.value(WHO), "app", what)


@pooler_only
@limit(120)
def test_each_statement_gets_the_servers_error_and_the_session_goes_on(env):
    for with_extension in (False, True):
        for how, (_, again, code) in LOSSES.items():
            with reporting(env, pool_size=1) if with_extension else contextlib.nullcontext(env.target) as target, roles(env) as owner:
                client, other = begins_lost(env, target, owner, how)
                one = lambda *messages: (client.exchange(*messages),)
                for what, send in {
                    "a query": lambda: one(m.query(WHO)),
                    "in a comment": lambda: one(m.query("/* no word */ " + WHO)),
                    "a transaction": lambda: one(m.query("begin")),
                    "one that ends it": lambda: one(m.query(f"commit; {WHO}")),
                    "several": lambda: one(m.query(f"reset role; {WHO}")),
                    "what sets": lambda: one(m.query("set work_mem = '7MB'")),
                    "a pipeline": lambda: one(m.run(WHO), m.run(WHO), m.SYNC),
                    "one that would end it": lambda: one(m.run("reset role"), m.run(WHO), m.SYNC),
                    "a named one": lambda: one(m.bind("who"), m.execute(), m.SYNC),
                    "one that is parsed": lambda: one(m.parse("reset role", "ends"), m.bind("who"), m.execute(), m.SYNC),
                    "a copy": lambda: one(m.query("copy (select current_user) to stdout")),
                    "two at once": lambda: (client.send(m.query(WHO), m.query(WHO)), client.collect(), client.collect())[1:],
                    "a long one": lambda: one(m.query(f"select '{'x' * 300_000}'")),
                }.items():
                    for result in send():
                        fails(client, other, result, code, f"{what}, {how}")
                # In parts.
                client.send(m.parse(WHO), m.FLUSH)
                equal(client.receive().kind, "E")
                client.send(m.bind(), m.execute(), m.SYNC)
                equal(client.collect().kinds, "Z")
                equal(client.attempt("rollback").sqlstate, None)
                fails(client, other, client.attempt(WHO), code, "after a ROLLBACK")
                equal(client.attempt("set role nonesuch").sqlstate, "22023")
                fails(client, other, client.attempt(WHO), code, "after another that is not there")
                owner.execute(again)
                equal(client.value(WHO), "lost_role", "it is there again")
                equal(client.value("show work_mem"), "4MB")
                equal(client.exchange(m.bind("who"), m.execute(), m.SYNC).value, "lost_role")


@pooler_only
@limit(120)
def test_it_can_be_ended(env):
    for with_extension in (False, True):
        with reporting(env, pool_size=1) if with_extension else contextlib.nullcontext(env.target) as target:
            for how in LOSSES:
                for end in ENDS:
                    for extended in (False, True):
                        with roles(env) as owner:
                            client, other = begins_lost(env, target, owner, how)
                            result = client.exchange(m.run(end), m.SYNC) if extended else client.attempt(end)
                            equal((result.sqlstate, result.closed), (None, False), end)
                            for _ in range(2):
                                equal(client.value(WHO), "kept_role" if "kept" in end else "app", end)
                                equal(other.value(WHO), "app")
                            client.close()
                            other.close()


@pooler_only
@limit(180)
def test_what_only_another_role_may_set_leaves_no_other_client_without_its_connection(env):
    """The next client of the pool was disconnected: its login role may neither set it nor reset it."""
    show = "show session_replication_role"
    with env.cluster.superuser() as owner:
        owner.execute("create role may_all superuser; grant may_all to app")
    try:
        for with_extension in (False, True):
            with reporting(env, pool_size=1) if with_extension else env.pooler_with() as target:
                for back in ("reset role", "select 1"):
                    client, other = env.connect(target), env.connect(target)
                    for text in ("set role may_all", "set session_replication_role = replica", back):
                        client.execute(text)
                    equal(other.value(show), "origin", back)
                    equal(client.value(show), "replica", back)
                    equal(other.value(show), "origin", back)
                    client.execute("set role may_all; reset session_replication_role; reset role")
                    equal(client.value(show), "origin", back)
                    client.execute("set role may_all; set session_replication_role = replica; reset role")
                    client.close()
                    equal(other.value(show), "origin", back)
    finally:
        with env.cluster.superuser() as owner:
            owner.execute("drop role may_all")
