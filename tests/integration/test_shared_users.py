"""Users that share server connections: each has its own rights and settings on them, and nobody another's.

The extension is built from extension/ and preloaded by its path, and its functions are made by its own script: nothing is
installed into the server.
"""

import contextlib
import subprocess
import threading
import time

from harness import extension
from harness import messages as m
from harness import pooler as poolers
from harness.extension import secret_file
from harness.suite import equal, limit, pooler_only, until
from harness.wire import ServerError
from integration.test_session_extension import library

SAME_FOR_ALL_SERVERS = True
TAKES_SECONDS = 55

SETTINGS = {}
SECRET = "what the server and the pooler know, and nobody else"
HBA = "local all all trust\nhost all all all trust\nlocal replication all trust\nhost replication all all trust\n"
LOGIN_REFUSED = "28000"
NO_RIGHT = "42501"
TOO_MANY = "53300"
USERS = ["ann", "bob", "carol", "dan", "outsider", *(f"u{number}" for number in range(20))]

SETUP = """
create role pooler login;
create role sub nologin;
grant sub to ann;
alter role carol connection limit 1;
revoke connect on database shared from public;
grant connect on database shared to pooler, ann, bob, carol, dan, {many};
alter role ann set work_mem = '7MB';
alter role ann set datestyle = 'German, DMY';
alter role bob in database shared set statement_timeout = '91s';
"""

OBJECTS = """
create table anns (t text);
insert into anns values ('of ann');
grant select on anns to ann;
create schema hidden;
grant usage on schema hidden to ann;
create table hidden.t (t text);
insert into hidden.t values ('hidden');
grant select on hidden.t to public;
create table ledger (owner name, amount int);
insert into ledger values ('ann', 1), ('bob', 2), ('bob', 3);
alter table ledger enable row level security;
create policy own on ledger using (owner = current_user);
grant select on ledger to public;
"""

WHO = "select session_user, current_user, usename from pg_stat_activity where pid = pg_backend_pid()"


@contextlib.contextmanager
def server(env, role="pooler", with_functions=True):
    """The cluster with the library, the users, and the database `shared`."""
    path = library(env)
    secret = secret_file(env.directory, "server.secret", SECRET, "postgres")
    with contextlib.ExitStack() as stack:
        stack.enter_context(extension.preloaded(env.cluster, path, secret, role, "log_line_prefix = '<%h %u> '\n"))
        stack.callback(drop_all, env.cluster)
        with env.cluster.superuser("postgres") as owner:
            owner.execute("create database shared")
            for user in USERS:
                owner.execute(f"create role {user} login")
            for statement in SETUP.format(many=", ".join(USERS[5:])).split(";"):
                owner.execute(statement)
        with env.cluster.superuser("shared") as owner:
            owner.execute(OBJECTS)
            if with_functions:
                owner.execute(extension.functions(path))
        yield env.cluster


def drop_all(cluster):
    with cluster.superuser("postgres") as owner:
        owner.execute("drop database shared with (force)")
        for user in (*USERS, "pooler", "sub"):
            owner.execute(f"drop role if exists {user}")


@contextlib.contextmanager
def sharing(env, secret=SECRET, **settings):
    """A pooler whose clients share server connections."""
    with server(env):
        with shared_pooler(env, secret, **settings) as target:
            yield target


@contextlib.contextmanager
def shared_pooler(env, secret=SECRET, **settings):
    file = secret_file(env.directory, "pooler.secret", secret)
    with env.pooler_with(hba=HBA, user="pooler", hand_over_secret_file=str(file), **settings) as target:
        yield target


def connect(env, target, user, **how):
    return env.connect(target, user=user, database="shared", **how)


def refused(env, target, user, sqlstate, **how):
    try:
        connect(env, target, user, **how)
    except ServerError as error:
        equal(error.sqlstate, sqlstate, f"login of {user}: {error}")
        equal(error.fields["S"], "FATAL")
        return error
    raise AssertionError(f"{user} is logged in")


def is_ended(result, sqlstate):
    equal((result.sqlstate, result.errors[0]["S"] if result.errors else None, result.closed), (sqlstate, "FATAL", True))


def server_connections(env, condition="true"):
    with env.cluster.superuser("postgres") as owner:
        return int(owner.value(f"select count(*) from pg_stat_activity where datname = 'shared' and backend_type = 'client backend' and "
                               f"({condition})"))


@pooler_only
@limit(120)
def test_many_users_share_few_server_connections_and_each_is_itself(env):
    with sharing(env, pool_size=3) as target:
        clients = {user: connect(env, target, user) for user in USERS[5:]}
        wrong = []

        def work(user, client):
            for turn in range(40):
                if turn % 2:
                    got = tuple(client.extended(WHO, name="" if turn % 4 == 1 else f"who{turn}").rows[0])
                else:
                    got = tuple(client.rows(WHO)[0])
                if got != (user, user, user):
                    wrong.append((user, got))

        threads = [threading.Thread(target=work, args=pair) for pair in clients.items()]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        equal(wrong, [])
        count = server_connections(env, "application_name <> 'hawser'")
        assert 1 <= count <= 3, f"{count} server connections for {len(clients)} users"
        for user, client in clients.items():
            equal(client.parameters["session_authorization"], user)
            assert "hawser.challenge" not in client.parameters, "the challenge is not for clients"
        equal([row["user"] for row in target.pooler.show("POOLS") if row["database"] == "shared"], ["pooler"])


@pooler_only
@limit(120)
def test_rights_are_each_users_own_also_with_the_same_prepared_statement(env):
    with sharing(env, pool_size=1) as target:
        ann, bob = connect(env, target, "ann"), connect(env, target, "bob")
        for _ in range(3):
            for name in ("", "s"):
                if name:
                    ann.exchange(m.close_statement(name), m.SYNC)
                    bob.exchange(m.close_statement(name), m.SYNC)
                equal(ann.extended("select t from anns", name=name).rows, [("of ann",)])
                equal(bob.exchange(m.run("select t from anns", (), name), m.SYNC).sqlstate, NO_RIGHT)
        # To look a name up takes a right on its schema, which is asked for at Parse alone.
        equal(ann.extended("select t from hidden.t", name="h").rows, [("hidden",)])
        equal(bob.exchange(m.run("select t from hidden.t", (), "h"), m.SYNC).sqlstate, NO_RIGHT)
        equal(ann.exchange(m.bind("h"), m.execute(), m.SYNC).rows, [("hidden",)])
        # Policies
        for client, own in ((ann, "1"), (bob, "5")) * 3:
            equal(client.value("select sum(amount) from ledger"), own)
        for client in (ann, bob):
            client.exchange(m.parse("select sum(amount) from ledger", "l"), m.SYNC)
        for client, own in ((ann, "1"), (bob, "5")) * 8:  # also when the plan is the generic one
            equal(client.exchange(m.bind("l"), m.execute(), m.SYNC).rows, [(own,)])


@pooler_only
@limit(120)
def test_no_statement_leads_to_another_user_or_to_the_poolers(env):
    with sharing(env, pool_size=1) as target:
        ann, bob = connect(env, target, "ann"), connect(env, target, "bob")
        for sql in ("reset session authorization", "set session authorization default", "reset role", "set role none", "reset all",
                    "discard all", "begin; set local role none; commit", "select set_config('session_authorization', null, false)",
                    "select set_config('role', null, false)"):
            bob.attempt(sql)
            equal(bob.rows(WHO), [("bob", "bob", "bob")], sql)
            equal(ann.rows(WHO), [("ann", "ann", "ann")], sql)
        for sql in ("set session authorization pooler", "set role pooler", "set role ann", "set session authorization ann",
                    "select set_config('session_authorization', 'pooler', false)", "select set_config('role', 'ann', false)"):
            assert bob.attempt(sql).errors, sql
            equal(bob.rows(WHO), [("bob", "bob", "bob")], sql)
        # A role of one's own moves, and stays with its client.
        ann.execute("set role sub")
        for _ in range(2):
            equal(bob.rows(WHO), [("bob", "bob", "bob")])
            equal(ann.rows(WHO), [("ann", "sub", "ann")])
        ann.execute("reset role")
        equal(bob.rows(WHO), [("bob", "bob", "bob")])
        equal(ann.rows(WHO), [("ann", "ann", "ann")])


@pooler_only
@limit(120)
def test_the_function_is_not_for_clients(env):
    with sharing(env, pool_size=1) as target:
        ann, bob = connect(env, target, "ann"), connect(env, target, "bob")
        oid = int(ann.value("select 'hawser.hand_over(bytea)'::regprocedure::oid"))
        is_ended(bob.exchange(m.function_call(oid, [b"\1" * 40])), NO_RIGHT)
        equal(ann.rows(WHO), [("ann", "ann", "ann")])
        # As a statement it is the server's to refuse, and ends with its session.
        bob = connect(env, target, "bob")
        assert bob.attempt("select hawser.hand_over('\\x01')").closed
        equal(ann.rows(WHO), [("ann", "ann", "ann")])


@pooler_only
@limit(120)
def test_settings_of_roles_are_start_values_and_go_with_their_user(env):
    with sharing(env, pool_size=1) as target:
        ann, bob = connect(env, target, "ann"), connect(env, target, "bob", application_name="bobs", options="-c statement_timeout=92s")
        show = ("select current_setting('work_mem'), current_setting('datestyle'), current_setting('statement_timeout'), "
                "current_setting('application_name')")
        anns, bobs = ("7MB", "German, DMY", "0", ""), ("4MB", "ISO, MDY", "92s", "bobs")
        equal((ann.parameters["DateStyle"], bob.parameters["DateStyle"], bob.parameters["application_name"]),
              ("German, DMY", "ISO, MDY", "bobs"))
        for _ in range(2):
            equal(ann.rows(show), [anns])
            equal(bob.rows(show), [bobs])
        # What is SET moves, and RESET restores one's own.
        ann.execute("set work_mem = '8MB'")
        bob.execute("set statement_timeout = '1h'")
        ann.execute("set datestyle = 'SQL, DMY'")
        equal(bob.rows(show), [("4MB", "ISO, MDY", "1h", "bobs")])
        equal(ann.rows(show), [("8MB", "SQL, DMY", "0", "")])
        for reset in ("reset all", "discard all"):
            bob.execute(reset)
            ann.execute(reset)
            equal(bob.rows(show), [bobs], reset)
            equal(ann.rows(show), [anns], reset)
        # A SET that changes nothing leaves nothing to the next.
        bob.execute("set datestyle = 'ISO, MDY'")
        bob.execute("set work_mem = '4MB'")
        equal(ann.rows(show), [anns])
        equal(bob.rows(show), [bobs])
        # What a client asks for goes before its role's, also where it is the server's own.
        iso = connect(env, target, "ann", datestyle="ISO, MDY")
        equal(iso.parameters["DateStyle"], "ISO, MDY")
        equal(bob.rows(show), [bobs])
        equal(iso.rows(show), [("7MB", "ISO, MDY", "0", "")])


@pooler_only
@limit(60)
def test_what_alter_role_sets_past_the_pooler_new_sessions_of_its_user_have(env):
    """While no other user came, a server connection kept what it had read of the role's settings: no new session saw it."""
    with sharing(env, pool_size=2) as target, env.cluster.superuser("shared") as owner:
        try:
            with connect(env, target, "carol") as before:
                equal(before.value("show work_mem"), "4MB")
            for change, value in (("role carol", "33MB"), ("role carol in database shared", "34MB"), ("database shared", "35MB")):
                if change != "database shared":
                    owner.execute(f"alter {change} set work_mem = '{value}'")
                else:
                    owner.execute(f"alter role carol reset work_mem; alter role carol in database shared reset work_mem; alter {change} "
                                  f"set work_mem = '{value}'")
                time.sleep(0.1)  # it looks for such changes every 50 ms
                with connect(env, target, "carol") as after:
                    equal(after.value("show work_mem"), value, change)
        finally:
            owner.execute("alter role carol reset work_mem; alter role carol in database shared reset work_mem; alter database shared "
                          "reset work_mem")


@pooler_only
@limit(60)
def test_a_roles_setting_that_came_and_went_between_two_logins_no_new_session_has(env):
    """The server connection that was its user's meanwhile kept it for all later sessions of that user."""
    with sharing(env, pool_size=2, idle_transaction_reserve=0) as target, env.cluster.superuser("shared") as owner:
        bob, before, second = (connect(env, target, user) for user in ("bob", "dan", "dan"))
        before.execute("begin")
        bob.execute("select 1")
        owner.execute("alter role dan set work_mem = '33MB'")
        try:
            equal(second.value("show work_mem"), "33MB")
        finally:
            owner.execute("alter role dan reset work_mem")
        before.execute("commit")
        with connect(env, target, "dan") as after, connect(env, target, "dan") as another:
            after.execute("begin")
            equal([client.value("show work_mem") for client in (after, another)], ["4MB", "4MB"])


@pooler_only
@limit(120)
def test_a_custom_name_of_a_roles_settings_has_its_value_again_after_a_reset(env):
    with sharing(env, pool_size=1) as target:
        with env.cluster.superuser("shared") as owner:
            owner.execute("alter role bob set my.tenant = 'bobs'")
            owner.execute("create function public.resets() returns void language plpgsql as 'begin reset my.tenant; end'")
        show, sets, wrong = "select current_setting('my.tenant', true)", "set my.tenant = 'x'", []
        ann, bob = connect(env, target, "ann"), connect(env, target, "bob")
        own = connect(env, target, "bob", options="-c my.tenant=own")
        for reset in ("reset my.tenant", "set my.tenant to default", "reset all", "discard all", "select public.resets()",
                      "begin; reset my.tenant; commit", "begin; reset my.tenant; set local my.tenant = 'y'; commit"):
            for client, value in ((bob, "bobs"), (own, "own")):
                client.execute(sets)
                for other in (ann, bob if client is own else own):
                    for sql in reset.split("; "):
                        client.execute(sql)
                    other.execute("select 1")
                    if (got := client.value(show)) != value:
                        wrong.append((reset, value, got))
        equal(wrong, [])
        equal(ann.value(f"{show} = 'bobs'") == "t", False, "ann has bob's")


@pooler_only
@limit(120)
def test_what_only_another_role_may_set_leaves_no_other_client_without_its_connection(env):
    with sharing(env, pool_size=1) as target:
        with env.cluster.superuser("shared") as owner:
            owner.execute("create role may_all superuser; grant may_all to ann")
        show = "show session_replication_role"
        client, same, other = connect(env, target, "ann"), connect(env, target, "ann"), connect(env, target, "bob")
        for text in ("set role may_all", "set session_replication_role = replica", "select 1"):
            client.execute(text)
        for _ in range(2):
            equal([one.value(show) for one in (same, other, client)], ["origin", "origin", "replica"])
        client.close()
        equal([one.value(show) for one in (same, other)], ["origin", "origin"])
        for one in (same, other):
            one.close()
        with env.cluster.superuser("shared") as owner:
            owner.execute("drop role may_all")


@pooler_only
@limit(120)
def test_what_the_server_refuses_at_a_login_the_client_is_told(env):
    with sharing(env, pool_size=4) as target:
        assert "nobody" in refused(env, target, "nobody", LOGIN_REFUSED).message
        refused(env, target, "sub", LOGIN_REFUSED)
        refused(env, target, "outsider", NO_RIGHT)
        refused(env, target, "postgres", NO_RIGHT)  # a superuser
        assert "pooler" in refused(env, target, "pooler", LOGIN_REFUSED).message
        refused(env, target, "ann", "0A000", replication="database")
        refused(env, target, "ann", "0A000", options="-c session_preload_libraries=nothing")
        carol = connect(env, target, "carol")
        carol.execute("begin")
        refused(env, target, "carol", TOO_MANY)
        carol.execute("commit")
        ann = connect(env, target, "ann")
        equal(ann.rows(WHO), [("ann", "ann", "ann")])
        equal(carol.rows(WHO), [("carol", "carol", "carol")])
        # None of it costs a server connection.
        closed = server_connections(env)
        for _ in range(5):
            refused(env, target, "outsider", NO_RIGHT)
        equal(server_connections(env), closed)


@pooler_only
@limit(120)
def test_a_user_that_is_dropped_in_the_middle_is_told_and_others_go_on(env):
    with sharing(env, pool_size=1) as target:
        ann, dan = connect(env, target, "ann"), connect(env, target, "dan")
        equal(dan.rows(WHO), [("dan", "dan", "dan")])
        equal(ann.rows(WHO), [("ann", "ann", "ann")])
        with env.cluster.superuser("shared") as owner:
            owner.execute("drop owned by dan")
            owner.execute("drop role dan")
        is_ended(dan.attempt(WHO), LOGIN_REFUSED)
        equal(ann.rows(WHO), [("ann", "ann", "ann")])


@pooler_only
@limit(120)
def test_where_the_function_goes_nobody_runs_as_another(env):
    with sharing(env, pool_size=1) as target:
        ann, bob = connect(env, target, "ann"), connect(env, target, "bob")
        equal(bob.rows(WHO), [("bob", "bob", "bob")])
        with env.cluster.superuser("shared") as owner:
            owner.execute("drop schema hawser cascade")
        for client, user in ((ann, "ann"), (bob, "bob")):
            result = client.attempt(WHO)
            assert result.closed and not result.rows or result.rows == [(user, user, user)], (user, result.rows)
        refused(env, target, "ann", "08006")


@pooler_only
@limit(120)
def test_rights_on_the_function_that_are_taken_away_let_nobody_run_as_another(env):
    with sharing(env, pool_size=1) as target:
        ann, bob = connect(env, target, "ann"), connect(env, target, "bob")
        equal(bob.rows(WHO), [("bob", "bob", "bob")])
        with env.cluster.superuser("shared") as owner:
            owner.execute("revoke execute on function hawser.hand_over(bytea) from public")
        is_ended(ann.attempt(WHO), NO_RIGHT)
        equal(bob.rows(WHO), [("bob", "bob", "bob")])


@pooler_only
@limit(120)
def test_session_mode_has_the_user_from_the_start_and_leaves_nothing(env):
    with sharing(env, pool_size=1, pool_mode="session") as target:
        for user in ("ann", "bob", "ann"):
            with target.connect(user, "shared") as client:
                equal(client.rows(WHO), [(user, user, user)])
                client.execute("set work_mem = '9MB'; create temp table own (a int)")
                equal(client.value("select pg_backend_pid()"), str(client.pid))
                client.close()
        with target.connect("bob", "shared") as client:
            equal(client.rows("select current_setting('work_mem'), to_regclass('own') is null"), [("4MB", "t")])


@pooler_only
@limit(120)
def test_temporary_tables_and_transactions_of_users_stay_their_own(env):
    with sharing(env, pool_size=2) as target:
        ann, bob = connect(env, target, "ann"), connect(env, target, "bob")
        ann.execute("create temp table own (a int)")
        bob.execute("begin")
        equal(bob.value("select to_regclass('own') is null"), "t")
        equal(ann.rows("select * from own"), [])
        bob.vanish()  # in a transaction
        ann.execute("drop table own")
        for _ in range(4):
            for user in ("ann", "carol", "u1"):
                equal(connect(env, target, user).rows(WHO), [(user, user, user)])


@pooler_only
@limit(120)
def test_a_cancel_hits_its_own_client_and_the_server_knows_it_by_its_id(env):
    with sharing(env, pool_size=2) as target:
        ann, bob = connect(env, target, "ann", application_name="anns"), connect(env, target, "bob")
        ann.send(m.query("select pg_sleep(20)"))
        until(lambda: server_connections(env, "usename = 'ann' and state = 'active' and wait_event = 'PgSleep'") == 1, "ann sleeps")
        with env.cluster.superuser("shared") as owner:
            row = owner.rows("select client_addr, application_name, client_port from pg_stat_activity where usename = 'ann'")[0]
            equal(row[:2], ("127.0.0.1", "anns"))
            equal(int(row[2]), ann.sock.getsockname()[1], "the client's own port")
            equal(owner.rows(f"select usename, backend <> 0 from hawser.hawser_sessions where pid = {ann.pid}"), [("ann", "t")])
            assert bob.attempt(f"select hawser.cancel_backend({ann.pid})").errors, "bob has no right on ann's session"
            owner.execute(f"select hawser.cancel_backend({ann.pid})")
        equal(ann.collect().sqlstate, "57014")
        equal(bob.rows(WHO), [("bob", "bob", "bob")])
        equal(ann.rows(WHO), [("ann", "ann", "ann")])


@pooler_only
@limit(120)
def test_server_connections_that_end_between_clients_give_nobody_anothers_session(env):
    with sharing(env, pool_size=2) as target:
        clients = {user: connect(env, target, user) for user in ("ann", "bob", "u1", "u2")}
        stop, wrong, ended = threading.Event(), [], 0

        def terminate():
            with env.cluster.superuser("postgres") as owner:
                while not stop.is_set():
                    owner.execute("select pg_terminate_backend(pid) from pg_stat_activity where datname = 'shared' and random() < 0.2")
                    time.sleep(0.01)

        thread = threading.Thread(target=terminate)
        thread.start()
        try:
            end = time.monotonic() + 3
            while time.monotonic() < end:
                for user in list(clients):
                    try:
                        result = clients[user].attempt(WHO)
                        wrong += [(user, row) for row in result.rows if row != (user, user, user)]
                        if not result.closed:
                            continue
                    except OSError:
                        pass
                    ended += 1
                    with contextlib.suppress(ServerError, OSError):
                        clients[user] = connect(env, target, user)
        finally:
            stop.set()
            thread.join()
        equal(wrong, [])
        assert ended > 0, "nothing was ended: nothing was tried"


def told_nothing(target, message, reason):
    """Why a server connection is not handed over is the operator's to know: a client learns nothing of files and settings."""
    equal(message, "the pooler's server connections cannot be handed over to clients")
    until(lambda: reason in target.pooler.text(), "the log has the reason")
    assert any(reason in (row["last_error"] or "") for row in target.pooler.show("pools")), reason


@pooler_only
@limit(120)
def test_what_is_missing_is_said(env):
    def check(target):
        done = subprocess.run([poolers.binary(), "check", "-c", str(target.pooler.config)], capture_output=True, text=True,
                              cwd=target.pooler.directory)
        return done.stdout

    entry = '\n[[database]]\nname = "shared"\nservers = "{}"\nuser = "{}"\nhand_over_secret_file = "{}"\n'
    with server(env, with_functions=False) as cluster:
        good = secret_file(env.directory, "good.secret", SECRET)
        bad = secret_file(env.directory, "bad.secret", SECRET + "?")
        for user, file, reason in (("pooler", good, "CREATE EXTENSION hawser"), ("ann", good, "hawser.pooler_role is \"pooler\"")):
            if user == "ann":
                with cluster.superuser("shared") as owner:
                    owner.execute(extension.functions(library(env)))
            with env.pooler_with(append=entry.format(cluster.address, user, file), hba=HBA) as target:
                told_nothing(target, refused(env, target, "bob", "08006").message, reason)
                assert reason in check(target), check(target)
        with env.pooler_with(append=entry.format(cluster.address, "pooler", bad), hba=HBA) as target:
            told_nothing(target, refused(env, target, "bob", "08006").message, "hawser.secret_file")
            assert "hawser.secret_file" in check(target)
        with env.pooler_with(append=entry.format(cluster.address, "pooler", good), hba=HBA) as target:
            equal(connect(env, target, "bob").rows(WHO), [("bob", "bob", "bob")])
            assert 'database "shared": users share its server connections' in check(target), check(target)
    with env.pooler_with(append=entry.format(env.cluster.address, "app", good).replace('name = "shared"', 'name = "app"'),
                         hba=HBA) as target:
        try:
            env.connect(target, user="app2")
            raise AssertionError("logged in")
        except ServerError as error:
            told_nothing(target, error.message, "shared_preload_libraries")
        assert "shared_preload_libraries" in check(target)


@pooler_only
@limit(120)
def test_a_login_does_not_wait_for_a_pool_that_is_busy_and_its_query_does(env):
    """It waited for a server connection, past client_login_timeout."""
    with sharing(env, pool_size=2, idle_transaction_reserve=0, client_login_timeout="2s", query_wait_timeout="30s") as target:
        busy = [connect(env, target, "bob", timeout=30) for _ in range(2)]
        for client in busy:
            client.execute("begin")
            client.send(m.query("select pg_sleep(5)"))
        time.sleep(0.2)  # the server connections are theirs
        began = time.monotonic()
        comers = [connect(env, target, "ann" if number % 2 else f"u{number}", timeout=30) for number in range(10)]
        took = time.monotonic() - began
        assert took < 10 * 0.1 + 2, f"10 logins took {took:.1f} s"
        for number, client in enumerate(comers):
            equal(client.parameters["session_authorization"], "ann" if number % 2 else f"u{number}")
        for client in comers:
            client.send(m.query("select session_user, current_setting('datestyle')"))
        for client in busy:
            client.collect()
            client.execute("commit")
        for number, client in enumerate(comers):
            user, style = ("ann", "German, DMY") if number % 2 else (f"u{number}", "ISO, MDY")
            equal(client.collect().rows, [(user, style)])
            # What it was told at the login was a guess; it has been told since.
            equal(client.parameters["DateStyle"], style)
        # A user who may not log in is told at his first query.
        for client in busy:
            client.send(m.query("begin; select pg_sleep(2)"))
        time.sleep(0.2)  # the server connections are theirs
        outsider = connect(env, target, "outsider", timeout=30)
        outsider.send(m.query("select 1"))
        for client in busy:
            client.collect()
            client.execute("commit")
        is_ended(outsider.collect(), NO_RIGHT)


@pooler_only
@limit(120)
def test_a_role_that_is_set_holds_after_another_user_had_the_connection(env):
    with sharing(env, pool_size=1) as target:
        with env.cluster.superuser("shared") as owner:
            owner.execute("grant sub to dan")
        wrong = []
        for user, other in (("dan", "u1"), ("ann", "bob")):  # without settings of their own, and with
            for sql in ("set role sub", f"set session authorization {user}; set role sub", "do $$begin set role sub; end$$",
                        "select set_config('role', 'sub', false)", "begin; savepoint a; set role sub; release a; commit"):
                for turn in range(4):  # new clients find what those of the turn before have left
                    one = connect(env, target, user)
                    one.execute(sql)
                    two = connect(env, target, other)
                    for client, names in ((two, (other, other, other)), (one, (user, "sub", user))):
                        got = tuple(client.rows(WHO)[0])
                        if got != names:
                            wrong.append((sql, turn, got))
                    one.close()
                    two.close()
        equal(wrong, [])


@pooler_only
@limit(60)
def test_a_role_of_the_startup_packet_is_its_clients(env):
    with sharing(env, pool_size=1) as target:
        ways = [{"options": "-c role=sub"}, {"role": "sub"}]
        anns = [connect(env, target, "ann", **how) for how in ways]
        bobs = [connect(env, target, "bob", **how) for how in ways]
        plain = connect(env, target, "bob")
        for _ in range(2):
            for client in anns:
                equal(client.rows(WHO), [("ann", "sub", "ann")])
                equal(plain.rows(WHO), [("bob", "bob", "bob")])
            for client in bobs:
                equal((client.attempt(WHO).sqlstate, client.attempt(WHO).rows), (NO_RIGHT, []))
        for sql, role in (("reset role", "sub"), ("set role none", "ann"), ("set role to default", "sub"),
                          ("begin; set local role none; commit", "sub"),
                          ("set role ann", "ann"), ("discard all", "sub")):
            anns[0].execute(sql)
            equal(plain.rows(WHO), [("bob", "bob", "bob")])
            equal(anns[0].rows(WHO), [("ann", role, "ann")], sql)
        bobs[0].execute("set role none")
        equal(plain.rows(WHO), [("bob", "bob", "bob")])
        equal(bobs[0].rows(WHO), [("bob", "bob", "bob")])
        equal(connect(env, target, "bob", options="-c role=sub", role="none").rows(WHO), [("bob", "bob", "bob")])
        # One that is taken away.
        with env.cluster.superuser("shared") as owner:
            owner.execute("revoke sub from ann")
        equal(plain.rows(WHO), [("bob", "bob", "bob")])
        for client in anns:
            equal((client.attempt(WHO).sqlstate, client.attempt(WHO).rows), (NO_RIGHT, []))
        anns[0].execute("set role none")
        equal(plain.rows(WHO), [("bob", "bob", "bob")])
        equal(anns[0].rows(WHO), [("ann", "ann", "ann")])


@pooler_only
@limit(60)
def test_a_statement_that_a_function_has_prepared_is_its_clients_own(env):
    with sharing(env, pool_size=1) as target:
        with env.cluster.superuser("shared") as owner:
            owner.execute("create function runs(sql text) returns text language plpgsql as $$begin execute sql; return 'done'; end$$")
        for turn in range(3):  # new clients find what those of the turn before have left
            for others in (["select 1"], ["prepare a as select 6", "execute a"], ["discard all"]):
                one, two, stranger = (connect(env, target, user) for user in ("dan", "u1", "dan"))
                equal(one.value("select runs('prepare a as select 5')"), "done", f"turn {turn}")
                for sql in others:
                    equal(two.attempt(sql).sqlstate, None, f"turn {turn}, {sql}")
                equal(stranger.attempt("execute a").sqlstate, "26000", f"turn {turn}")
                equal(stranger.attempt("prepare a as select 7").sqlstate, None, f"turn {turn}")
                equal((stranger.value("execute a"), one.value("execute a")), ("7", "5"), f"turn {turn}, after {others}")
                for client in (one, two, stranger):
                    client.close()
