"""A client is one thing everywhere: its process id in the protocol, and with the extension in SQL, too."""

import contextlib
import os
import time

from harness import messages as m
from harness.extension import secret_file
from harness.suite import Skip, equal, limit, pooler_only, until
from integration.test_server_death import is_told_in_its_copy
from integration.test_shared_users import HBA, SECRET, USERS, connect, server

SAME_FOR_ALL_SERVERS = True
TAKES_SECONDS = 40

SETTINGS = {}
WAITS = "select count(*) from pg_stat_activity where pid = {} and wait_event_type = 'Lock'"


# Before login

def greeted_with(env, data):
    """What comes for these bytes on a new connection, up to its end."""
    client = env.raw()
    client.send(data)
    client.sock.settimeout(5)
    return b"".join(iter(lambda: client.receive_raw(1) or b"", b""))


def test_what_is_no_startup_packet_is_closed_without_a_word(env):
    short_cancel = b"\0\0\0\x08" + (80877102).to_bytes(4, "big")
    for data in (m.TERMINATE, b"GET / HTTP/1.1\r\n\r\n", b"\0\0\0\0", b"\0\0\0\x07", b"\xff\xff\xff\xff", m.SYNC, short_cancel):
        equal((data, greeted_with(env, data)), (data, b""))


def test_what_is_one_of_another_kind_is_told_why(env):
    # The framing of the first differs: PostgreSQL answers in that of the version that was asked for.
    for data, text in ((b"\0\0\0\x08\0\x02\0\0", b"unsupported frontend protocol 2.0: "),
                       (b"\0\0\0\x0a\0\x03\0\0xy", b"invalid startup packet layout")):
        assert text in greeted_with(env, data), data


def startup_answers(env, **parameters):
    """The messages from the end of the authentication to the first ParameterStatus."""
    client = env.raw()
    user = "app"
    client.send(m.startup({"user": user, "database": "app", **parameters}))
    exchange, seen = None, []
    while True:
        message = client.receive()
        if message.kind == "R":
            exchange = client._authenticate(message.body, exchange, env.target.secrets[user], user, False)
        elif message.kind == "S":
            return seen
        else:
            seen.append((message.kind, {key: value for key, value in message.fields().items() if key in "SVCM"}))


def test_a_long_application_name_is_cut_with_the_servers_notice(env):
    long, kept = "a" * 70, "a" * 63
    notice = {"S": "NOTICE", "V": "NOTICE", "C": "42622", "M": f'identifier "{long}" will be truncated to "{kept}"'}
    equal(startup_answers(env, application_name=long), [("N", notice)])
    equal(startup_answers(env, application_name=kept), [])
    equal(startup_answers(env, client_min_messages="warning", application_name=long), [])
    equal(env.connect(application_name=long).value("show application_name"), kept)


# Process ids

@pooler_only
def test_an_id_is_not_given_out_again_at_once(env):
    seen = []
    for _ in range(200):
        with env.connect() as client:
            seen.append(client.pid)
    equal(len(set(seen)), 200, "an id came again")
    assert all(4194304 < pid < 1 << 31 for pid in seen), seen


@pooler_only
def test_ids_begin_elsewhere_in_each_process(env):
    first = env.connect().pid
    with env.pooler_with() as target:
        assert abs(env.connect(target).pid - first) > 1000, "by chance: one in a million"


@pooler_only
def test_a_cancel_of_one_that_has_left_hits_nobody(env):
    with env.connect() as gone:
        pid, key = gone.pid, gone.key
    client = env.connect()  # in its place
    client.send(m.query("select pg_sleep(1), 'identity'"))
    env.cluster.wait_for_backends("query like '%identity%' and state = 'active' and pid <> pg_backend_pid()", 1, 5)
    with env.target.open() as other:
        other.send(m.cancel_request(pid, key))
        other.is_closed()
    equal(client.collect().sqlstate, None)


# With the extension

@contextlib.contextmanager
def known(env, hands_over=False, **settings):
    """A pooler on the server's host, whose clients the server knows: by asking it, or by hand-overs."""
    append, more = "", {}
    if os.geteuid() == 0:
        append = 'user = "postgres"\n'  # of [process]: the server's own
    if hands_over:
        more = {"hand_over_secret_file": str(secret_file(env.directory, "pooler.secret", SECRET)), "hand_over": "addresses"}
    append += "".join(f'[[user]]\nname = "{user}"\n' for user in (*USERS, "postgres"))  # trust lets in known users alone
    with server(env), env.pooler_with(hba=HBA, append=append, **more, **settings) as target:
        with env.cluster.superuser("postgres") as owner:
            socket = target.pooler.directory / "hawser.sock"
            owner.execute(f"alter system set hawser.control_sockets = '{socket}'")
            owner.execute("select pg_reload_conf()")
            until(lambda: owner.value("show hawser.control_sockets") == str(socket), "the server knows the socket")
        try:
            yield target
        finally:
            with env.cluster.superuser("postgres") as owner:
                owner.execute("alter system reset hawser.control_sockets")


def own_ids(client):
    return client.rows("select pg_backend_pid(), a.pid, s.pid, l.pid from pg_stat_activity a join pg_stat_ssl s using (pid) "
                       "join pg_locks l using (pid) where a.pid = pg_backend_pid() and l.locktype = 'virtualxid'")


def both_ways(test):
    @pooler_only
    @limit(180)
    def run(env):
        for hands_over in (False, True):
            with known(env, hands_over) as target:
                test(env, target)
    run.__name__, run.__module__ = test.__name__, test.__module__
    return run


@both_ways
def test_a_client_has_its_own_id_in_sql_whichever_backend_serves_it(env, target):
    clients = [connect(env, target, user) for user in ("ann", "bob", "ann", "bob")]
    for client in (*clients, *reversed(clients)):
        own = (str(client.pid),) * 4
        equal(own_ids(client), [own])
        client.execute("begin")
        equal(own_ids(client), [own])
    with env.cluster.superuser("shared") as owner:
        equal(owner.value("select pg_backend_pid()"), str(owner.pid))
        ids = sorted(client.pid for client in clients)
        equal(owner.rows("select pid from pg_stat_activity where state = 'idle in transaction' order by 1"), [(str(pid),) for pid in ids])
        equal(owner.rows("select pid, state from pg_stat_activity where pid = (select min(pid) from hawser.hawser_sessions)"),
              [(str(ids[0]), "idle in transaction")])
        equal(owner.value(f"select pid from pg_stat_get_activity({ids[0]})"), str(ids[0]))
        owner.execute("set hawser.client_pids = off")
        shown = owner.rows("select pid from pg_stat_activity where state = 'idle in transaction'")
        equal({pid for (pid,) in shown}, {row[0] for row in owner.rows("select backend from hawser.hawser_sessions")})
    for client in clients:
        client.execute("commit")
    # A transaction that has nothing of the extension's functions in it costs nothing: no session keeps the backend.
    equal(clients[0].extended("select pg_backend_pid()", name="p").rows, [(str(clients[0].pid),)])
    equal(clients[1].extended("select pg_backend_pid()", name="p").rows, [(str(clients[1].pid),)])


@both_ways
def test_who_blocks_whom_is_said_by_the_ids_of_clients(env, target):
    holder, waiter = connect(env, target, "ann"), connect(env, target, "ann")
    holder.execute("begin; select pg_advisory_xact_lock(1)")
    waiter.send(m.query("select pg_advisory_xact_lock(1)"))
    with env.cluster.superuser("shared") as owner:
        until(lambda: owner.value(WAITS.format(waiter.pid)) == "1", "it waits")
        equal(owner.value(f"select pg_blocking_pids({waiter.pid})"), "{%d}" % holder.pid)
        equal(owner.rows("select pid, pg_blocking_pids(pid) from pg_stat_activity where wait_event_type = 'Lock'"),
              [(str(waiter.pid), "{%d}" % holder.pid)])
        blocked = "select pg_isolation_test_session_is_blocked({}, array[{}])"
        equal(owner.value(blocked.format(waiter.pid, holder.pid)), "t")
        equal(owner.value(blocked.format(waiter.pid, owner.pid)), "f")
        equal(owner.value(blocked.format(holder.pid, waiter.pid)), "f")
        equal(owner.rows("select pid, granted from pg_locks where locktype = 'advisory' order by granted"),
              [(str(waiter.pid), "f"), (str(holder.pid), "t")])
    holder.execute("commit")
    equal(waiter.collect().sqlstate, None)


@both_ways
def test_all_but_oneself_are_ended_by_the_usual_statement(env, target):
    """What drivers' tests and scripts do; before, the ids of one function were not those of the other."""
    clients = {user: connect(env, target, user) for user in ("ann", "bob")}
    busy = connect(env, target, "ann")
    busy.send(m.query("select pg_sleep(20)"))
    clients["bob"].execute("begin")
    with env.cluster.superuser("shared") as owner:
        until(lambda: owner.value(f"select count(*) from pg_stat_activity where pid = {busy.pid} and wait_event = 'PgSleep'") == "1",
              "it sleeps")
    me = clients["ann"]
    equal(me.rows(f"select pg_cancel_backend({busy.pid})"), [("t",)])
    equal(busy.collect().sqlstate, "57014")
    busy.send(m.query("select pg_sleep(20)"))
    with env.cluster.superuser("shared") as owner:
        until(lambda: owner.value(f"select count(*) from pg_stat_activity where pid = {busy.pid} and wait_event = 'PgSleep'") == "1",
              "it sleeps again")
        equal(owner.rows("select usename, pg_terminate_backend(pid, 5000) from pg_stat_activity where datname = 'shared' and pid > "
                         "4194304 order by 1"),
              [("ann", "t"), ("bob", "t")])
    for client in (busy, clients["bob"]):
        result = client.collect()
        equal((result.sqlstate, result.closed), ("57P01", True))
        equal(result.errors[0]["M"], "terminating connection due to administrator command")
    # one that is idle, by the id that its driver knows
    equal(me.value("select 1"), "1")
    with env.cluster.superuser("shared") as owner:
        equal(owner.value(f"select pg_terminate_backend({me.pid}, 5000)"), "t")
    equal(me.collect().sqlstate, "57P01")


@both_ways
def test_a_client_in_a_copy_from_stdin_is_ended_by_its_own_id(env, target):
    with env.cluster.superuser("shared") as owner:
        for goes_on in (False, True):
            client = connect(env, target, "ann")
            client.execute("create temp table copied (i int)")
            client.send(m.query("copy copied from stdin"))
            assert client.collect(until="G").kinds.endswith("G")
            equal(owner.value(f"select pg_terminate_backend({client.pid})"), "t")
            is_told_in_its_copy(client, goes_on)


# A session that means itself. Each is what the client sends, as one write.
CANCEL, END = "select pg_cancel_backend({})", "select pg_terminate_backend({})"
ITSELF = {
    "cancel": [m.query(CANCEL.format("pg_backend_pid()"))],
    "cancel among others": [m.query(f"select 1; {CANCEL.format('pg_backend_pid()')}; select 3")],
    "cancel in a transaction": [m.query("begin"), m.query(CANCEL.format("pg_backend_pid()")), m.query("rollback")],
    "cancel by a view": [m.query("select pg_cancel_backend(pid) from pg_stat_activity where pid = pg_backend_pid()")],
    "cancel in a block": [m.query("do $$ begin perform pg_cancel_backend(pg_backend_pid()); perform 1; end $$")],
    "cancel, extended": [m.run(CANCEL.format("pg_backend_pid()")), m.run("select 3"), m.SYNC],
    "cancel, a pipeline": [m.run("select 1"), m.SYNC, m.run(CANCEL.format("$1"), ["{pid}"]), m.SYNC, m.run("select 3"), m.SYNC],
    "end": [m.query(END.format("pg_backend_pid()"))],
    "end among others": [m.query(f"select 1; {END.format('pg_backend_pid()')}; select 3")],
    "end in a transaction": [m.query("begin"), m.query(END.format("pg_backend_pid()")), m.query("rollback")],
    "end with a time": [m.query("select pg_terminate_backend(pg_backend_pid(), 5000)")],
    "end with a time below zero": [m.query("select pg_terminate_backend(pg_backend_pid(), -1)")],
    "end, extended": [m.run(END.format("pg_backend_pid()")), m.run("select 3"), m.SYNC],
    "end, a pipeline": [m.run("select 1"), m.SYNC, m.run(END.format("$1"), ["{pid}"]), m.SYNC, m.run("select 3"), m.SYNC],
}


def all_that_comes(client, chunks):
    """Every message of the answer, with each error as its fields, and what a query after it gives."""
    own = [m.run(CANCEL.format("$1") if b"cancel" in chunk else END.format("$1"), [str(client.pid)])
           if b"{pid}" in chunk else chunk for chunk in chunks]
    client.send(*own, m.query("select 'after'"))  # at once: the server may close the connection after the first
    seen = []
    while (message := client.receive()) is not None:
        fields = message.fields() if message.kind in "EN" else message.body
        seen.append((message.kind, fields))
        if message.kind == "D" and message.values() == ("after",):
            break
    return seen


@both_ways
def test_a_client_that_cancels_or_ends_itself_gets_what_a_direct_one_gets(env, target):
    """A cancel by way of the pooler came after the statement, and the end before its row."""
    with env.cluster.superuser("postgres") as owner:
        owner.execute("alter role ann password 'anns'")
    for name, chunks in ITSELF.items():
        with connect(env, env.cluster.target, "ann", secret="anns") as direct, connect(env, target, "ann") as through:
            expected = all_that_comes(direct, chunks)
            if "-1" not in str(chunks):
                equal([fields["C"] for kind, fields in expected if kind == "E"], ["57014" if "cancel" in name else "57P01"])
            equal((name, all_that_comes(through, chunks)), (name, expected))


@pooler_only
@limit(180)
def test_in_session_mode_the_id_is_the_servers_own_and_one_as_well(env):
    for hands_over in (False, True):
        with known(env, hands_over, pool_mode="session") as target:
            client = connect(env, target, "ann")
            equal(own_ids(client), [(str(client.pid),) * 4])
            with env.cluster.superuser("shared") as owner:
                equal(owner.rows("select pid, backend from hawser.hawser_sessions"), [(str(client.pid), str(client.pid))])


@pooler_only
@limit(120)
def test_nobody_takes_a_clients_id_by_naming_its_connection(env):
    with known(env) as target:
        client = connect(env, target, "ann")
        client.execute("begin")
        with env.cluster.superuser("shared") as owner:
            pooler = owner.value("select pooler from hawser.hawser_sessions")
            for number in range(1, 12):
                with env.cluster.superuser("shared", **{"hawser.connection": f"{pooler}/{number}"}) as liar:
                    equal(liar.value("select pg_backend_pid()"), str(liar.pid))
        with connect(env, target, "bob", **{"hawser.connection": f"{pooler}/1"}) as other:
            equal(other.value("select pg_backend_pid()"), str(other.pid))


@pooler_only
@limit(120)
def test_rights_on_the_servers_functions_count(env):
    with known(env) as target:
        with env.cluster.superuser("shared") as owner:
            owner.execute("revoke execute on function pg_backend_pid(), pg_lock_status() from public")
        try:
            client = connect(env, target, "ann")
            for statement in ("select pg_backend_pid()", "select * from pg_lock_status()", "select hawser.pg_backend_pid()",
                              "select pg_log_backend_memory_contexts(1)", "select hawser.pg_log_backend_memory_contexts(1)"):
                equal((statement, client.attempt(statement).sqlstate), (statement, "42501"))
        finally:
            with env.cluster.superuser("shared") as owner:
                owner.execute("grant execute on function pg_backend_pid(), pg_lock_status() to public")


@pooler_only
@limit(120)
def test_a_pooler_that_was_root_is_asked_as_the_user_that_it_became(env):
    if os.geteuid() != 0:
        raise Skip("only root can become another user")
    with known(env) as target:
        for name in ("hawser.sock", "hawser.sock.server"):
            equal((target.pooler.directory / name).owner(), "postgres")
        client = connect(env, target, "ann")
        with env.cluster.superuser("shared") as owner:
            result = owner.execute("select pid from hawser.hawser_sessions")
            equal((result.rows, result.notices), ([(str(client.pid),)], []))


@pooler_only
@limit(120)
def test_a_pooler_that_does_not_answer_is_waited_for_once_in_a_transaction(env):
    with known(env) as target:
        client = connect(env, target, "ann")
        client.execute("select 1")
        with env.cluster.superuser("postgres") as owner:
            owner.execute("alter system set hawser.control_sockets = '/nowhere/hawser.sock'")
            owner.execute("select pg_reload_conf()")
            until(lambda: owner.value("show hawser.control_sockets") == "/nowhere/hawser.sock", "another socket")
            time.sleep(0.2)  # the library has read it
        first = client.value("select pg_backend_pid()")
        assert int(first) <= 4194304, "the server's own, where nobody says whose it is"
