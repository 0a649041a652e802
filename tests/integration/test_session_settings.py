"""Settings that no server reports, and roles, on one server connection for all: each client has its own, whatever others do between."""

import collections
import contextlib
import threading
import time

from harness import messages as m
from harness.suite import Skip, equal, pooler_only
from harness.wire import Disconnected, ServerError

SETTINGS = {"pool_size": 1}

NAMES = ("statement_timeout", "work_mem", "search_path", "role", "default_transaction_isolation")
SHOWN = "select " + ", ".join(f"current_setting('{name}')" for name in NAMES)


def plain(env):
    """What a session has that has set nothing."""
    with env.target.connect() as client:
        return client.rows(SHOWN)[0]


def test_each_client_has_its_own(env):
    default = plain(env)
    clients = [env.connect() for _ in range(4)]
    for n, client in enumerate(clients[:3]):
        client.execute(f"set statement_timeout to {n + 1}0000")
        client.execute(f"set work_mem to '{n + 5}MB'; set search_path to s{n}, public")
    for _ in range(2):
        for n, client in enumerate(clients[:3]):
            equal(client.rows(SHOWN), [(f"{n + 1}0s", f"{n + 5}MB", f"s{n}, public", *default[3:])])
        equal(clients[3].rows(SHOWN), [default])


def test_a_rollback_undoes_them_and_a_savepoint_too(env):
    default = plain(env)
    client, other = env.connect(), env.connect()
    client.execute("set work_mem to '5MB'")
    client.execute("begin; set work_mem to '6MB'; set statement_timeout to 77000; rollback")
    equal(other.rows(SHOWN), [default])
    equal(client.rows(SHOWN), [(default[0], "5MB", *default[2:])])
    client.execute("begin")
    client.execute("set work_mem to '6MB'; savepoint s; set work_mem to '7MB'; set statement_timeout to 66000")
    client.execute("rollback to s")
    client.execute("commit")
    equal(other.rows(SHOWN), [default])
    equal(client.rows(SHOWN), [(default[0], "6MB", *default[2:])])
    equal(client.attempt("set work_mem to '8MB'; select 1/0").sqlstate, "22012")
    equal(other.rows(SHOWN), [default])
    equal(client.rows(SHOWN), [(default[0], "6MB", *default[2:])])


def test_reset_goes_back_to_the_clients_own_start(env):
    default = plain(env)
    client, other = env.connect(options="-c work_mem=9MB"), env.connect()
    client.execute("set work_mem to '5MB'; set statement_timeout to 5000")
    equal(other.rows(SHOWN), [default])
    client.execute("reset statement_timeout")
    equal(client.rows(SHOWN), [(default[0], "5MB", *default[2:])])
    client.execute("begin; reset all; rollback")
    equal(other.rows(SHOWN), [default])
    equal(client.rows(SHOWN), [(default[0], "5MB", *default[2:])])
    client.execute("reset all")
    equal(other.rows(SHOWN), [default])
    equal(client.rows(SHOWN), [(default[0], "9MB", *default[2:])])


def test_a_null_that_comes_as_a_parameter_resets_to_ones_own_start_value(env):
    """In the statement itself, and in the same transaction: not first behind it."""
    own = {"options": "-c work_mem=9MB -c my.x=mine", "timezone": "Asia/Tokyo"}
    shown = "select concat_ws(' ', current_setting('work_mem'), current_setting('my.x'), current_setting('timezone'))"
    client, other = env.connect(**own), env.connect()
    for name in ("", "named"):
        for sql, settings in (("select set_config('{}', $1, false)", None), ("select pg_catalog.set_config($1::text, $2, false)",
                                                                             "by parameter")):
            for setting, value in (("work_mem", "9MB"), ("my.x", "mine"), ("TimeZone", "Asia/Tokyo")):
                client.execute("set work_mem = '5MB'; set my.x = 'set'; set timezone = 'Europe/Paris'")
                other.execute("select 1")
                values = (None,) if settings is None else (setting, None)
                prepared = m.parse(sql.format(setting), name)
                if name:
                    client.exchange(prepared, m.SYNC)
                    prepared = b""
                client.execute("begin")
                result = client.exchange(prepared, m.bind(name, values=values), m.execute(), m.SYNC)
                equal(result.value, value, f"{sql} of {setting}")
                inside = client.value(shown)
                client.execute("commit")
                expected = {"work_mem": "5MB", "my.x": "set", "TimeZone": "Europe/Paris", setting: value}
                equal((inside, client.value(shown)), (" ".join(expected.values()),) * 2, f"{sql} of {setting}")
                if name:
                    client.exchange(m.close_statement(name), m.SYNC)
    # What is not NULL is what it is.
    equal(client.extended("select set_config('work_mem', $1, false)", ["6MB"]).value, "6MB")
    equal(client.value("show work_mem"), "6MB")
    # A parameter that stands elsewhere, too, is NULL there.
    equal(client.extended("select set_config('my.x', $1, true), $1 is null", [None]).rows[0][1], "t")


def test_the_extended_protocol_and_set_config(env):
    default = plain(env)
    client, other = env.connect(), env.connect()
    client.exchange(m.parse("set statement_timeout to 44000") + m.bind() + m.execute(), m.SYNC)
    client.execute("select set_config('work_mem', '7MB', false), set_config('search_path', 'x', true)")
    client.execute("set session characteristics as transaction isolation level serializable")
    for _ in range(2):
        equal(other.rows(SHOWN), [default])
        equal(client.rows(SHOWN), [("44s", "7MB", default[2], default[3], "serializable")])


def test_roles_move_and_end_with_their_client(env):
    client, other = env.connect(), env.connect()
    client.execute("set role helper_role")
    for _ in range(2):
        equal(client.rows("select current_user, session_user"), [("helper_role", "app")])
        equal(other.value("select current_user"), "app")
    client.execute("begin; reset role; rollback")
    equal(other.value("select current_user"), "app")
    equal(client.value("select current_user"), "helper_role")
    equal(client.attempt("begin; select 1/0").sqlstate, "22012")
    client.execute("rollback")
    equal(other.value("select current_user"), "app")
    client.execute("reset role")
    equal(client.value("select current_user"), "app")


def test_a_role_that_is_reset_in_one_text_with_reset_all_stays_so(env):
    for text in ("reset role; reset all", "reset all; reset role", "begin; reset role; reset all; commit",
                 "set session authorization default; reset all", "reset role; reset all; deallocate all"):  # fmt: skip
        client, other = env.connect(), env.connect()
        client.execute("set role helper_role; set work_mem = '7MB'")
        client.execute(text)
        for _ in range(2):
            equal(other.value("select current_user"), "app")
            equal(client.rows("select current_user, current_setting('role')"), [("app", "none")], text)


def test_a_start_role_is_back_where_the_sessions_user_is_reset(env):
    texts = ("reset session authorization", "set session authorization default",
             "begin; set local session authorization default; commit", "reset session authorization; reset all")  # fmt: skip
    for text in texts:
        direct = env.cluster.target.connect(options="-c role=helper_role")
        direct.execute(text)
        client, other = env.connect(options="-c role=helper_role"), env.connect()
        client.execute(text)
        for _ in range(2):
            equal(client.value("select current_user"), direct.value("select current_user"), text)
            equal(other.value("select current_user"), "app")


def test_a_question_does_not_wait_for_a_safe_snapshot(env):
    client, other = env.connect(), env.connect()
    client.execute("set default_transaction_isolation = serializable; set default_transaction_read_only = on;"
                   " set default_transaction_deferrable = on")  # fmt: skip
    equal(client.value("show work_mem"), other.value("show work_mem"))
    writer = env.server()
    writer.execute("create table w (i int)")
    writer.execute("begin isolation level serializable; insert into w values (1)")
    client.execute("set work_mem = '7MB'")
    equal(client.value("show work_mem"), "7MB")
    other.value("select 1")
    writer.execute("rollback")


def test_nothing_runs_with_more_rights_when_the_role_is_gone(env):
    server = env.server()
    server.execute("create role goer; grant goer to app")
    client, other = env.connect(), env.connect()
    client.execute("create table precious (i int); insert into precious values (1)")
    client.execute("set role goer")
    other.value("select 1")
    server.execute("drop role goer")
    assert client.attempt("delete from precious").errors
    equal(other.value("select count(*) from precious"), "1")
    other.execute("drop table precious")


@pooler_only
def test_nothing_runs_without_a_start_value_that_is_not_allowed_any_more(env):
    """A start value has been taken at a login; it may be refused by the time that it is set."""
    server = env.server()
    server.execute("drop table if exists written; create table written (by text); grant all on written to public")
    for mode in ("transaction", "session"):
        server.execute("create role lender; grant lender to app")
        with env.pooler_with(pool_size=1, pool_mode=mode) as target:
            start = {"options": "-c role=lender"}
            with target.connect(**start) as first:
                equal(first.value("select current_user"), "lender")
            server.execute("revoke lender from app")
            with target.connect() as other:
                equal(other.value("select current_user"), "app")
            with contextlib.suppress(ServerError, Disconnected, OSError), target.connect(**start) as client:
                for _ in range(2):
                    client.attempt("insert into written select current_user")
            time.sleep(0.5)  # what has been sent may still run
            equal(server.rows("select * from written"), [], mode)
            with target.connect() as other:
                equal(other.value("select current_user"), "app")
        server.execute("drop role lender")


@pooler_only
def test_what_a_client_was_told_stays_when_the_servers_own_value_changes(env):
    server = env.server()
    own = server.value("show timezone")
    one, other = env.connect(TimeZone=own), env.connect()
    try:
        equal((one.value("show timezone"), other.value("show timezone")), (own, own))
        server.execute("alter system set timezone to 'Europe/Berlin'")
        server.execute("select pg_reload_conf()")
        time.sleep(0.5)  # the server connections have reported it
        other.value("select 1")
        equal(one.value("show timezone"), own)
    finally:
        server.execute("alter system reset timezone")
        server.execute("select pg_reload_conf()")


@pooler_only
def test_custom_names_in_set_clauses_are_known_to_no_other_client(env):
    one, other, server = env.connect(), env.connect(), env.server()
    if int(server.value("show server_version_num")) < 150000:
        raise Skip("only superusers may name such settings before PostgreSQL 15")
    server.execute("grant set on parameter clause.one, clause.two to app")
    for text in (
        "create or replace function ours() returns int language sql set clause.one = '1' as 'select 1'",
        "create or replace function ours() returns int language sql as 'select 1'; alter function ours() set clause.two = '1'",
    ):
        one.execute(text)
        for name in ("clause.one", "clause.two"):
            equal(other.value(f"select current_setting('{name}', true) is null"), "t", text)
    one.execute("drop function ours()")


def test_statements_keep_the_search_path_under_which_they_were_prepared(env):
    admin = env.connect()
    for n in range(2):
        admin.execute(f"create schema if not exists path{n}; create table if not exists path{n}.which as select {n} as n")
    clients = [env.connect() for _ in range(2)]
    for n, client in enumerate(clients):
        client.execute(f"begin; set search_path to path{n}")
        client.exchange(m.parse("select n from which", "w"), m.SYNC)
        client.execute("commit")
    for _ in range(2):
        for n, client in enumerate(clients):
            equal(client.exchange(m.bind("w") + m.execute(), m.SYNC).rows, [(str(n),)])
    admin.execute("drop schema path0, path1 cascade")


def test_a_look_at_the_catalog_leaves_the_clients_own_statements_alone(env):
    other, client = env.connect(), env.connect()
    other.exchange(m.parse("select 'secret'", "theirs"), m.SYNC)
    client.execute("prepare mine as select 42")
    equal(client.rows("select name from pg_prepared_statements"), [("mine",)])
    equal(client.value("execute mine"), "42")


def test_what_parameters_have_named_stays_where_a_statement_is_prepared_anew(env):
    """The settings known from texts were put back behind the Parse, in place of those of set_config($1, $2, false)."""
    def by_bind(client):
        return client.exchange(m.bind("s"), m.execute(), m.SYNC)

    for use in (by_bind, lambda client: client.attempt("execute s")):
        with env.pooler_with(pool_size=2) as target, target.connect() as client, target.connect() as other:
            client.execute("set my.x = 'first'; set work_mem = '65kB'")
            client.exchange(m.parse("select current_setting('my.x') || now()::date::text", "s"), m.SYNC)
            client.execute("set my.x = 'second'; set work_mem = '66kB'; set search_path = nowhere")
            other.execute("begin; select 1")  # on the server connection that has the statement
            client.extended("select set_config($1, $2, false)", ("my.x", "third"))
            client.extended("select set_config($1, $2, false)", ("work_mem", "67kB"))
            assert use(client).value.startswith("third")
            equal(client.rows("select current_setting('my.x'), current_setting('work_mem')"), [("third", "67kB")])
            other.execute("commit")


def test_start_values_come_back_without_a_query(env):
    """A query would take a snapshot: behind one the isolation level can no longer be set."""
    for start in ('"$user", public', "pg_catalog", 's1, "S 2"'):
        written = start.replace("\\", "\\\\").replace(" ", "\\ ")
        client = env.connect(options=f"-c search_path={written}")
        equal(client.value("show search_path"), start)
        for reset in ("reset all", "reset search_path", "set local search_path to default"):
            client.execute("begin")
            client.execute(reset)
            client.execute("set transaction isolation level serializable")
            equal(client.value("show search_path"), start)
            client.execute("commit")
            client.execute(f"begin; {reset}; set transaction isolation level serializable; commit")


def test_lists_keep_their_spelling(env):
    lists = ["public", '"$user", public', 's1, "S 2", "it\'s", "a,b"', "a,b", "a ,  b", '"a"', "user", '"user"', "A", "", '"größe", x',
             "x" * 63,
             '"' + "ß" * 40 + '"', 'a, "quo""te"', '"back\\slash"']
    clients = [env.connect() for _ in lists]
    for client, value in zip(clients, lists):
        client.execute("select set_config('search_path', '%s', false)" % value.replace("'", "''"))
    for _ in range(2):
        for client, value in zip(clients, lists):
            equal(client.value("show search_path"), value)
            client.execute("begin; set local search_path to nowhere; savepoint a; rollback to a; commit")
            equal(client.value("show search_path"), value)


def test_a_cancelled_setting_lets_nothing_run_without_it(env):
    """Another session cancels whatever the server connection does, at any moment: also what Hawser sends for the next client."""
    with env.cluster.superuser("app") as owner:
        owner.execute("drop table if exists under; create table under (wanted text, had text); grant all on under to public")
    stop, cancelled, other = threading.Event(), collections.Counter(), []

    def cancel():
        with env.cluster.superuser("app") as session:
            while not stop.is_set():
                session.execute(
                    "do $$ declare others int[]; begin select array_agg(pid) into others from pg_stat_activity where usename = 'app' and "
                    "application_name not like 'hawser%';"
                    " for i in 1..300 loop perform pg_cancel_backend(other), pg_sleep(random() / 3000) from unnest(others) other; end "
                    "loop; end $$"
                )

    def work(n):
        client = None
        while not stop.is_set():
            try:
                if client is None:
                    client = env.connect(options=f"-c work_mem={n + 5}MB -c TimeZone=Etc/GMT+{n}")
                client.execute(f"insert into under values ('{n + 5}MB Etc/GMT+{n}', current_setting('work_mem') || ' ' || "
                               f"current_setting('TimeZone'))")
                cancelled["done"] += 1
            except ServerError as error:
                cancelled[error.sqlstate] += 1
                if error.sqlstate not in ("57014", "08006"):
                    other.append(error)
                if error.sqlstate == "08006":
                    client = None
            except Disconnected:
                client = None

    threads = [threading.Thread(target=cancel)] + [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    time.sleep(5)  # they work, and are cancelled, meanwhile
    stop.set()
    for thread in threads:
        thread.join()
    equal((other, cancelled["done"] > 0), ([], True), f"errors of others, and whether anything ran: {cancelled}")
    with env.cluster.superuser("app") as owner:
        equal(owner.rows("select wanted, had, count(*) from under where wanted <> had group by 1, 2"), [], str(cancelled))
