"""State that is neither a setting nor a prepared statement of the protocol: kept for its owner, hidden from all others.

Two backends and several clients: a client that holds such state keeps its backend; the others must still be served.
"""

import contextlib
import threading
import time

from harness import messages as m
from harness.suite import crowd, equal, limit, not_inside, on_every_backend, pooler_only, until

TAKES_SECONDS = 40

SETTINGS = {"pool_size": 2}


def neighbours(env):
    """A function that lets two other clients use every backend that they can get, and gives what they saw."""
    others = [env.connect() for _ in range(2)]
    return lambda sql="select 1": on_every_backend(others, sql)


def test_temporary_tables(env):
    owner = env.connect()
    stir = neighbours(env)
    owner.execute("create temp table mine (i int); insert into mine values (1), (2)")
    equal([result.sqlstate for result in stir("select * from mine")], ["42P01"] * 2, "leaked")
    equal(owner.value("select count(*) from mine"), "2", "lost")
    owner.execute("drop table mine")
def test_temporary_objects_of_every_kind(env):
    for make, use in (("create temp table tt as select 1 as x", "select x from tt"),
                      ("create temp view tv as select 1 as x", "select x from tv"),
                      ("create temp sequence ts", "select nextval('ts')"),
                      ("select 1 as x into temp ti", "select x from ti"),
                      ("create function pg_temp.tf() returns int language sql as 'select 1'", "select pg_temp.tf()"),
                      ("create domain pg_temp.td as int", "select 1::pg_temp.td"),
                      ("create table pg_temp.tp (x int); insert into pg_temp.tp values (1)", "select x from pg_temp.tp"),
                      ("set search_path to pg_temp, public; create table hidden as select 1 as x; reset search_path",
                       "select x from pg_temp.hidden")):
        with env.target.connect() as owner:
            stir = neighbours(env)
            owner.execute(make)
            assert all(result.errors for result in stir(use)), f"leaked: {make}"
            equal(owner.value(use), "1", make)
def test_temporary_tables_made_by_functions(env):
    owner = env.connect()
    stir = neighbours(env)
    owner.execute("create or replace function make_temp() returns void language plpgsql as "
                  "$$ begin execute 'create ' || 'temp table from_function as select 1 as x'; end $$")
    owner.execute("select make_temp()")
    equal([result.sqlstate for result in stir("select x from from_function")], ["42P01"] * 2, "leaked")
    equal(owner.value("select x from from_function"), "1")


def test_a_dropped_temporary_table_comes_back_after_rollback(env):
    owner = env.connect()
    stir = neighbours(env)
    owner.execute("create temp table coming (i int); insert into coming values (7)")
    owner.execute("begin; drop table coming; rollback")
    stir()
    equal(owner.value("select i from coming"), "7")


def test_on_commit_drop_leaves_nothing(env):
    owner = env.connect()
    stir = neighbours(env)
    owner.execute("begin; create temp table short (i int) on commit drop; commit")
    stir()
    equal(owner.attempt("select * from short").sqlstate, "42P01")


def test_temporary_tables_die_with_their_client(env):
    with env.target.connect() as owner:
        owner.execute("create temp table left_behind (i int)")
    for _ in range(6):
        with env.target.connect() as other:
            equal(other.value("select to_regclass('pg_temp.left_behind')"), None)
            other.execute("create temp table left_behind (t text)")


def test_advisory_locks(env):
    owner, other = env.connect(), env.connect()
    stir = neighbours(env)
    owner.execute("select pg_advisory_lock(42)")
    stir()
    equal(other.value("select pg_try_advisory_lock(42)"), "f", "not held by its owner alone")
    equal(owner.value("select pg_advisory_unlock(42)"), "t", "lost by its owner")
    stir()
    equal(other.value("select pg_try_advisory_lock(42)"), "t")
    equal(other.value("select pg_advisory_unlock(42)"), "t")


def test_advisory_locks_die_with_their_client(env):
    with env.target.connect() as owner:
        owner.execute("select pg_advisory_lock(43)")
    other = env.connect()
    other.execute("set statement_timeout to 5000; select pg_advisory_lock(43)")
    other.execute("select pg_advisory_unlock_all()")


def test_transaction_advisory_locks_end_with_the_transaction(env):
    owner, other = env.connect(), env.connect()
    owner.execute("begin; select pg_advisory_xact_lock(44)")
    equal(other.value("select pg_try_advisory_lock(44)"), "f")
    owner.execute("commit")
    equal(other.value("select pg_try_advisory_lock(44)"), "t")
    other.execute("select pg_advisory_unlock(44)")


def test_cursors_with_hold(env):
    owner = env.connect()
    stir = neighbours(env)
    owner.execute("begin; declare held cursor with hold for select generate_series(1, 100); commit")
    equal(owner.rows("fetch 2 from held"), [("1",), ("2",)])
    equal([result.sqlstate for result in stir("fetch 1 from held")], ["34000"] * 2, "leaked")
    equal(owner.rows("fetch 2 from held"), [("3",), ("4",)])
    owner.execute("close held")
    equal(owner.attempt("fetch 1 from held").sqlstate, "34000")


@pooler_only
def test_a_cursor_with_hold_that_is_closed_as_a_portal(env):
    owner = env.connect()
    owner.execute("declare held cursor with hold for select 1")
    pins = lambda: [row["pins"] for row in env.pooler.show("CLIENTS") if row["pins"]]
    until(lambda: pins() == ["held_cursor"], "the pin")
    equal(owner.exchange(m.close_portal("held"), m.SYNC).sqlstate, None)
    until(lambda: pins() == [], "the end of the pin")


def test_cursors_without_hold_end_with_the_transaction(env):
    owner, other = env.connect(), env.connect()
    owner.execute("begin; declare short cursor for select generate_series(1, 100)")
    equal(owner.rows("fetch 1 from short"), [("1",)])
    equal(other.attempt("fetch 1 from short").sqlstate, "34000")
    owner.execute("commit")
    equal(owner.attempt("fetch 1 from short").sqlstate, "34000")


def test_trap_12_notifications_reach_those_who_listen_and_nobody_else(env):
    """trap 12: NOTIFY delivered to the wrong client."""
    listener, other, sender = env.connect(), env.connect(), env.connect()
    listener.execute("listen news")
    for n in range(5):
        sender.execute(f"notify news, 'item {n}'")
        sender.execute("notify unheard, 'nobody'")
        other.value("select 1")
    listener.value("select 1")
    while listener.pending(0.3):
        listener.receive()
    equal([(channel, payload) for _, channel, payload in listener.notifications], [("news", f"item {n}") for n in range(5)])
    equal((other.notifications, sender.notifications), ([], []))
    listener.execute("unlisten *")
    sender.execute("notify news, 'too late'")
    listener.value("select 1")
    equal(len(listener.notifications), 5)


def test_trap_12_notifications_arrive_while_idle(env):
    listener, sender = env.connect(), env.connect()
    listener.execute("listen wake")
    sender.execute("notify wake, 'up'")
    assert listener.pending(5), "no notification within 5 s"
    equal(listener.receive().notification()[1:], ("wake", "up"))
    assert not sender.pending(0.1)


def test_trap_12_a_clients_own_notification_bears_its_own_pid(env):
    """trap 12: its PID is that of BackendKeyData, by which a client knows its own; and it comes before ReadyForQuery."""
    client = env.connect()
    client.execute("listen self")
    result = client.execute("notify self, 'me'")
    equal(m.kinds(result.messages, keep="A"), "CAZ")
    pid, channel, payload = client.notifications[0]
    equal((channel, payload), ("self", "me"))
    equal(pid, client.pid)


def test_trap_12_listen_ends_with_rollback_to_savepoint(env):
    """trap 12: a pin must survive, and end with, savepoint rollback."""
    listener, sender = env.connect(), env.connect()
    listener.execute("begin; listen kept; savepoint a; listen dropped; rollback to a; commit")
    sender.execute("notify kept, '1'; notify dropped, '2'")
    sender.execute("notify kept, '3'")
    listener.value("select 1")
    while listener.pending(0.3):
        listener.receive()
    equal([entry[1:] for entry in listener.notifications], [("kept", "1"), ("kept", "3")])


def test_trap_12_a_pin_survives_savepoint_rollback(env):
    owner = env.connect()
    stir = neighbours(env)
    owner.execute("create temp table outer_table (i int)")
    owner.execute("begin; savepoint a; create temp table inner_table (i int); rollback to a; commit")
    stir()
    equal(owner.value("select count(*) from outer_table"), "0")
    owner.execute("drop table outer_table")
    owner.execute("begin; create temp table first (i int); savepoint a; drop table first; rollback to a; commit")
    stir()
    equal(owner.value("select count(*) from first"), "0")


def test_notifications_of_a_dead_listener_go_to_nobody(env):
    with env.target.connect() as listener:
        listener.execute("listen orphan")
    sender = env.connect()
    others = [env.connect() for _ in range(3)]
    for _ in range(3):
        sender.execute("notify orphan, 'x'")
        for other in others:
            other.value("select 1")
    equal([other.notifications for other in others + [sender]], [[]] * 4)


def test_sql_prepare(env):
    owner = env.connect()
    stir = neighbours(env)
    owner.execute("prepare mine as select 'prepared'")
    equal([result.sqlstate for result in stir("execute mine")], ["26000"] * 2, "leaked")
    equal(owner.value("execute mine"), "prepared")
    owner.execute("deallocate mine")
    equal(owner.attempt("execute mine").sqlstate, "26000")


def test_sql_prepare_dies_with_its_client(env):
    for n in range(6):
        with env.target.connect() as client:
            client.execute(f"prepare reused as select {n}")
            equal(client.value("execute reused"), str(n))


def test_currval_and_lastval_are_the_clients_own(env):
    """Right, or the server's own error; never another client's value."""
    first, second = env.connect(), env.connect()
    first.execute("drop sequence if exists own; create sequence own")
    for _ in range(3):
        given = first.value("select nextval('own')")
        second.value("select 1")
        result = first.attempt("select currval('own'), lastval()")
        assert result.sqlstate == "55000" or result.rows == [(given, given)], result
        result = second.attempt("select currval('own')")
        equal(result.sqlstate, "55000", "another client's value")
        equal(second.attempt("select lastval()").sqlstate, "55000", "another client's value")
    equal(first.rows("select nextval('own') = currval('own')"), [("t",)])
    first.execute("drop sequence own")


def test_lastval_in_the_transaction_of_its_nextval(env):
    client = env.connect()
    client.execute("drop table if exists ids; create table ids (id serial, t text)")
    for n in range(1, 4):
        client.execute("begin; insert into ids (t) values ('x')")
        equal(client.value("select lastval()"), str(n))
        client.execute("commit")
    client.execute("drop table ids")


def keeps(target, reasons):
    """Server connections come to be kept for these reasons, once what is in question is answered."""
    if target.pooler:
        until(lambda: [row["reason"] for row in target.pooler.show("pins")] == reasons, f"kept for {reasons}")


@not_inside("not yet: now and then the value is gone before the question")
def test_who_has_asked_for_lastval_once_gets_it_in_later_transactions(env):
    """From then on it keeps its server connection from an INSERT or nextval to the question, and no longer."""
    with env.pooler_with(pool_size=2) as target, target.connect() as client, target.connect() as other, target.connect() as third:
        client.execute("drop table if exists later; create table later (id serial, t text)")
        client.attempt("select lastval()")

        def others_draw():
            for one in (other, third):
                one.send(m.query("begin"), m.query("select nextval('later_id_seq')"), m.query("commit"))
            for one in (other, third):
                one.collect(3)

        ways = (
            lambda: client.extended("insert into later (t) values ($1) returning id", ("a",)).value,
            lambda: client.value("insert into later (t) values ('b') returning id"),
            lambda: client.value("select nextval('later_id_seq')"),
            lambda: client.exchange(m.parse("insert into later (t) values ('c') returning id", "i") + m.bind("i") + m.execute()
                                    + m.close_statement("i"), m.SYNC).value,
            lambda: client.exchange(m.query("begin"), m.query("select lastval()"), m.query("rollback"),
                                    m.query("insert into later (t) values ('d') returning id")).rows[-1][0],
            lambda: client.execute("begin; set work_mem = '99kB'; insert into later (t) values ('e') returning id; commit").value,
        )
        for number, draw in enumerate(ways):
            given = draw()
            keeps(target, ["sequence_value"])
            others_draw()
            client.value("select 'something else'")
            equal(client.attempt("select lastval()").rows, [(given,)], number)
            keeps(target, [])
            others_draw()
        equal(client.value("show work_mem"), "99kB")
        equal(client.attempt("insert into later (id) values (1 / (nextval('later_id_seq') - nextval('later_id_seq') + 1))").sqlstate,
              "22012")
        keeps(target, [])
        client.value("select nextval('later_id_seq')")
        client.execute("discard sequences")
        keeps(target, [])
        client.execute("drop table later")


DRAWS_FIRST = {
    "INSERT": lambda client: client.value("insert into early (t) values ('a') returning id"),
    "extended": lambda client: client.extended("insert into early (t) values ($1) returning id", ("a",)).value,
    "nextval": lambda client: client.value("select nextval('early_id_seq')"),
    "function": lambda client: client.value("select early_draws()"),
    "block": lambda client: client.exchange(m.query("begin"), m.query("select 1"),
                                            m.query("insert into early (t) values ('b') returning id"), m.query("commit")).rows[-1][0],
}


# Longer than a server connection is kept for a question.
KEPT_SECONDS = 1.3


@limit(120)
def test_the_very_first_question_of_an_only_client_is_answered_in_a_later_transaction(env):
    """However late, and after an INSERT that has failed."""
    with env.connect() as server:
        server.execute("drop table if exists early; create table early (id serial, t text not null); create or replace function "
                       "early_draws() returns bigint language sql as $$ select nextval('early_id_seq') $$")
    with contextlib.ExitStack() as poolers:
        clients = {name: poolers.enter_context(poolers.enter_context(env.pooler_with(pool_size=2)).connect()) for name in DRAWS_FIRST}
        drawn = {name: draw(clients[name]) for name, draw in DRAWS_FIRST.items()}
        time.sleep(KEPT_SECONDS)  # "later" is the subject
        for name, draw in DRAWS_FIRST.items():
            client, given = clients[name], drawn[name]
            equal(client.attempt("select lastval()").rows, [(given,)], name)
            equal(client.attempt("select currval('early_id_seq')").rows, [(given,)], name)
            given = draw(client)
            equal(client.attempt("insert into early (t) values (null)").sqlstate, "23502")
            equal(client.attempt("select lastval()").rows, [(str(int(given) + 1),)], f"{name}, after a failed INSERT")
    with env.connect() as server:
        server.execute("drop function early_draws(); drop table early")


def test_the_very_first_question_beside_another_client_is_answered_after_an_insert(env):
    """PHP's lastInsertId(), each morning; and no value is another client's."""
    with env.connect() as server:
        server.execute("drop table if exists early; create table early (id serial, t text not null)")
    for name in ("INSERT", "extended"):
        with env.pooler_with(pool_size=1) as target, target.connect() as client, target.connect() as other:
            DRAWS_FIRST[name](other)
            other.attempt("select 1")
            time.sleep(KEPT_SECONDS)
            given = DRAWS_FIRST[name](client)
            other.send(m.query("select nextval('early_id_seq')"))
            time.sleep(0.05)
            equal(client.attempt("select lastval()").rows, [(given,)], name)
            other.collect()
            equal(client.attempt("select lastval()").sqlstate, "55000", f"{name}: another client's value")
    with env.connect() as server:
        server.execute("drop table early")


def test_currval_tells_what_setval_has_set(env):
    with env.pooler_with(pool_size=1, idle_transaction_reserve=0) as target, target.connect() as client, target.connect() as other:
        client.execute("drop sequence if exists put; create sequence put")
        client.attempt("select currval('put')")
        for number, put in enumerate((client.execute, client.extended), 7):
            put(f"select setval('put', {number})")
            equal(client.value("select currval('put')"), str(number))
            equal(other.attempt("select currval('put')").sqlstate, "55000", "another client's value")
        client.execute("drop sequence put")


def asks_in_a_transaction_of_its_own(target, draw, ask):
    """A client that connects, draws, asks and leaves, as PHP does for each request. What the two gave."""
    with target.connect() as client:
        return draw(client), ask(client)


def test_once_one_client_has_asked_for_lastval_every_later_client_gets_its_own(env):
    with env.pooler_with(pool_size=2) as target, target.connect() as server:
        server.execute("drop table if exists asked; create table asked (id serial, t text)")
        draws = (
            lambda client: client.value("insert into asked (t) values ('a') returning id"),
            lambda client: client.extended("insert into asked (t) values ($1) returning id", ("a",)).value,
        )
        asks = (
            lambda client: client.attempt("select lastval()").rows,
            lambda client: client.attempt("select currval('asked_id_seq')").rows,
            lambda client: client.extended("select currval($1)", ("asked_id_seq",)).rows,
        )
        server.attempt("select lastval()")
        over = threading.Event()

        def others():
            with target.connect() as one:
                while not over.is_set():
                    one.value("select nextval('asked_id_seq')")

        crowd = [threading.Thread(target=others) for _ in range(4)]
        for one in crowd:
            one.start()
        try:
            for draw in draws:
                for ask in asks:
                    for n in range(8):
                        given, told = asks_in_a_transaction_of_its_own(target, draw, ask)
                        equal(told, [(given,)], f"request {n}")
        finally:
            over.set()
            for one in crowd:
                one.join()
        server.execute("drop table asked")


@contextlib.contextmanager
def others_that_draw(target, text):
    """Others use the server connections of the pool all the time, and draw."""
    over = threading.Event()

    def draws():
        with target.connect() as one:
            while not over.is_set():
                one.value(text)

    crowd = [threading.Thread(target=draws) for _ in range(4)]
    for one in crowd:
        one.start()
    try:
        yield
    finally:
        over.set()
        for one in crowd:
            one.join()


DRAWING = """
drop schema if exists drawing cascade; create schema drawing; set search_path to drawing;
create table drawn (id serial, t text); create table child (id serial, t text); create table watched (t text);
insert into watched values ('a'); create table defaults (id int default nextval('drawn_id_seq')); insert into defaults values (1);
create sequence noise;
create function inserts() returns void language plpgsql as $$ begin insert into drawn (t) values ('f'); end $$;
create function draws() returns bigint language sql as $$ select nextval('drawn_id_seq') $$;
create function calls() returns bigint language plpgsql as $$ begin return draws(); end $$;
create function executes() returns void language plpgsql as $$ begin execute format('insert into %I (t) values (1)', 'drawn'); end $$;
create procedure proceeds() language plpgsql as $$ begin perform inserts(); end $$;
create function watches() returns trigger language plpgsql as $$ begin insert into drawn (t) values (new.t); return new; end $$;
create trigger watches after update on watched for each row execute function watches();
create view viewed as select nextval('drawn_id_seq');
create function asks() returns bigint language sql as $$ select lastval() $$;
"""
IN_DRAWING = "-c search_path=drawing"


def test_what_functions_and_triggers_draw_is_answered_in_a_later_transaction(env):
    ways = ("select inserts()", "select draws()", "select calls()", "select executes()", "call proceeds()",
            "update watched set t = 'b'", "select * from viewed", "do $$ begin perform inserts(); end $$",
            "update defaults set id = default")
    with env.connect() as server, env.pooler_with(pool_size=2) as target:
        server.execute(DRAWING)
        with target.connect(options=IN_DRAWING) as first:
            first.attempt("select lastval()")
        with others_that_draw(target, "select nextval('drawing.noise') + 1000000"):
            for way in ways:
                for ask in ("select lastval()", "select asks()", "select currval('drawn_id_seq')"):
                    with target.connect(options=IN_DRAWING) as client:
                        client.extended(way) if ask == "select asks()" else client.execute(way)
                        drawn = server.value("select last_value from drawn_id_seq")
                        equal(client.attempt(ask).rows, [(drawn,)], f"{way}; {ask}")
        server.execute("drop schema drawing cascade")


def test_who_asks_again_gets_the_same_again(env):
    """It got the server's error where another client had got its server connection in between. One client learns that."""
    inserts = "insert into drawn (t) values ('a') returning id"
    child = "insert into child (t) values (currval('drawn_id_seq')) returning id"
    one, two, last = "select currval('drawn_id_seq')", "select currval('child_id_seq')", "select lastval()"
    ways = ((inserts, last, last), (inserts, one, "select 1", one), (inserts, "insert into child (t) values ('b') returning id", one, two),
            (inserts, child, last, one))
    for way in ways:
        with env.connect() as server, env.pooler_with(pool_size=2) as target:
            server.execute(DRAWING)
            with others_that_draw(target, "select nextval('drawing.noise') + 1000000"):
                for number in range(6):
                    with target.connect(options=IN_DRAWING) as client:
                        told = [(text, client.attempt(text)) for text in way]
                    if number < 1 and target.pooler:
                        continue
                    for text, result in told:
                        equal(result.sqlstate, None, f"{way}: {text}")
                    given = [result.rows[0][0] for text, result in told if text.startswith("insert")]
                    equal(told[-1][1].rows, [(given[-1 if way[-1] in (two, last) else 0],)], way)
            server.execute("drop schema drawing cascade")


@pooler_only
def test_who_does_not_ask_again_keeps_no_server_connection(env):
    with env.pooler_with(pool_size=2) as target, target.connect() as client:
        client.execute("drop table if exists once; create table once (id serial)")
        for _ in range(4):
            client.execute("insert into once default values")
            client.attempt("select lastval()")
            keeps(target, [])
        client.execute("drop table once")


@limit(120)
def test_the_very_first_question_gives_no_value_of_another_client(env):
    """In a block, in a pipeline; what the transaction itself has drawn is given."""
    plain = "drop table if exists undrawn; create table undrawn (t text); "
    with env.connect() as server:
        server.execute(plain + "drop table if exists firsts; create table firsts (id serial, t text)")
    insert = "insert into firsts (t) values ('x') returning id"

    def pipeline(*texts):
        return b"".join(m.parse(text) + m.bind() + m.execute() for text in texts)

    def of_its_own(client, ask):
        client.execute("begin")
        given = client.value(insert)
        return client.attempt(ask).rows == [(given,)]

    def none_drawn(client, ask):
        client.execute("begin; insert into undrawn values ('x'); select count(*) from undrawn")
        return client.attempt(ask).sqlstate == "55000"

    def own_in_a_pipeline(client, ask):
        rows = client.exchange(pipeline(insert, ask), m.SYNC).rows
        return len(rows) == 2 and rows[0] == rows[1]

    def none_in_a_pipeline(client, ask):
        return client.exchange(pipeline("select count(*) from undrawn", ask), m.SYNC).sqlstate == "55000"

    def of_another_sequence(client, ask):
        client.execute("begin; select nextval('firsts_other')")
        return client.attempt("select currval('firsts_id_seq')").sqlstate == "55000"

    def behind_setval(client, ask):
        client.execute("begin; insert into undrawn values ('x'); select setval('firsts_other', 7)")
        return client.attempt(ask).sqlstate == "55000"

    def behind_setval_of_it(client, ask):
        client.execute("begin; insert into undrawn values ('x'); select setval('firsts_id_seq', 70, false)")
        return client.attempt(ask).sqlstate == "55000"

    with env.connect() as server:
        server.execute("drop sequence if exists firsts_other; create sequence firsts_other")
    asks = ("select lastval()", "select currval('firsts_id_seq')", "select currval(pg_get_serial_sequence('firsts', 'id'))")
    ways = (of_its_own, none_drawn, own_in_a_pipeline, none_in_a_pipeline, of_another_sequence, behind_setval, behind_setval_of_it)

    def asked(way, ask):
        with env.pooler_with(pool_size=1) as target, target.connect() as client, target.connect() as other:
            other.value(insert)
            assert way(client, ask), (way.__name__, ask)

    for ask in asks:  # together: the client waits until the server connection is not kept for the other any more
        crowd(len(ways), lambda number, ask=ask: asked(ways[number], ask))
    with env.connect() as server:
        server.execute("drop table firsts; drop table undrawn; drop sequence firsts_other")


@limit(120)
def test_the_first_question_by_a_parameter_is_answered_with_the_transactions_own_value(env):
    """PHP's lastInsertId('s') in the block of its INSERT."""
    with env.connect() as server:
        server.execute("drop table if exists bound; create table bound (id serial, t text); drop sequence if exists bound_other; create "
                       "sequence bound_other")
        sequence = int(server.value("select 'bound_id_seq'::regclass::oid"))
    insert = "insert into bound (t) values ('x') returning id"

    def ask(text, *values, types=(), binary=False):
        """As PQexecParams() sends it."""
        return lambda client: client.exchange(m.parse(text, types=types), m.bind(values=values, formats=(int(binary),)),
                                              m.describe_portal(), m.execute(), m.SYNC)

    def by_name(client):
        return client.exchange(m.parse("select currval($1)", "asks"), m.bind("asks", values=("bound_id_seq",)), m.execute(),
                               m.close_statement("asks"), m.SYNC)

    def after_its_parse(client):
        client.exchange(m.parse("select currval($1)"), m.SYNC)
        return client.exchange(m.bind(values=("bound_id_seq",)), m.execute(), m.SYNC)

    asks = {
        "pdo": ask("SELECT CURRVAL($1)", "bound_id_seq"),
        "cast": ask("select currval($1::text::regclass)", "public.\"bound_id_seq\"", binary=True),
        "declared": ask("select currval($1)", "bound_id_seq", types=(25,), binary=True),
        "oid": ask("select currval($1)", sequence.to_bytes(4, "big"), binary=True),
        "column": ask("select currval(pg_get_serial_sequence($1, $2))", "bound", "id"),
        "by name": by_name,
        "after its Parse": after_its_parse,
    }
    def asked(name, way):
        with env.pooler_with(pool_size=1) as target, target.connect() as client, target.connect() as other:
            other.value(insert)
            client.execute("begin")
            given = client.value(insert)
            equal(way(client).rows, [(given,)], name)
            equal(way(client).rows, [(given,)], f"{name}, once more")
            client.execute("commit")
        with env.pooler_with(pool_size=1) as target, target.connect() as client, target.connect() as other:
            other.value(insert)
            client.execute("begin; select nextval('bound_other')")
            equal(way(client).sqlstate, "55000", f"{name}: another client's value")
            client.execute("rollback")

    crowd(len(asks), lambda number: asked(*list(asks.items())[number]))  # together: each waits twice as long as a connection is kept
    with env.connect() as server:
        server.execute("drop table bound; drop sequence bound_other")


@pooler_only
def test_a_value_to_be_asked_for_disconnects_nobody(env):
    """Where no more server connections may be kept, what is lost is the answer."""
    with env.pooler_with(pool_size=2,
                         max_pinned=1) as target, target.connect() as keeper, target.connect() as client, target.connect() as other:
        client.execute("drop sequence if exists unkept; create sequence unkept")
        keeper.execute("create temp table kept (a int)")
        client.attempt("select lastval()")
        for _ in range(3):
            own = client.execute("begin; select nextval('unkept'); set work_mem = '98kB'; commit").rows
            keeps(target, ["temporary_object"])
            others_own = other.value("select nextval('unkept')")
            # (The other keeps its connection for a moment, and the client may be back on its own.)
            answer = client.attempt("select lastval()")
            assert answer.sqlstate == "55000" or answer.rows == own, (answer.sqlstate, answer.rows, own, others_own)
            equal(client.value("show work_mem"), "98kB")
        keeper.execute("drop table kept")
        client.execute("drop sequence unkept")


SLOT = "pg_create_physical_replication_slot('kept', false, true)"
SLOTS = "select count(*) from pg_replication_slots"


@pooler_only
def test_a_temporary_slot_pins_until_it_is_dropped(env):
    with env.server() as server:
        server.execute(f"create or replace function slot() returns void language plpgsql as $$ begin perform {SLOT}; end $$")
    with env.pooler_with(pool_size=2) as target, target.connect(user="replicator") as client:
        keeps(target, [])
        for make in (f"select {SLOT}", "select slot()", f"begin; select {SLOT}; rollback"):
            pid = client.value("select pg_backend_pid()")
            client.execute(make)
            keeps(target, ["temporary_slot"])
            equal(client.value(SLOTS), "1", make)
            client.execute("discard all")
            keeps(target, ["temporary_slot"])
            client.extended("select pg_drop_replication_slot($1)", ("kept",))
            keeps(target, [])
            equal(client.value("select pg_backend_pid()"), pid, "the server connection lives on")
        client.execute("select pg_create_physical_replication_slot('lasting')")
        keeps(target, [])
        client.execute("select pg_drop_replication_slot('lasting')")
        client.execute(f"select {SLOT}")
        client.close()
        with env.server() as server:
            until(lambda: server.value(SLOTS) == "0", "the slot goes with its client")
    with env.pooler_with(pool_mode="session") as target, target.connect(user="replicator") as client:
        client.execute(f"select {SLOT}")
        client.close()
        with env.server() as server:
            until(lambda: server.value(SLOTS) == "0", "in session mode, too")
            server.execute("drop function slot()")


def test_setseed_does_not_leak(env):
    with env.target.connect() as first:
        first.execute("select setseed(0.5)")
        expected = first.value("select random()")
    seen = set()
    for _ in range(4):
        with env.target.connect() as other:
            seen.add(other.value("select random()"))
    assert expected not in seen
    assert len(seen) == 4


def test_load_does_not_leak(env):
    """A library once loaded stays in the backend: it must not serve others."""
    server = env.server()
    server.execute("create or replace function has_auto_explain() returns bool language sql as "
                   "$$ select exists (select from pg_settings where name = 'auto_explain.log_min_duration') $$")
    with env.target.connect(user="app") as first:
        result = first.attempt("load '$libdir/plugins/none'")
        assert result.errors, "a library that does not exist was loaded"
    other = env.connect()
    equal(other.value("select has_auto_explain()"), "f")


def test_session_authorization_of_ordinary_users_is_refused(env):
    client = env.connect()
    equal(client.attempt("set session authorization app2").sqlstate, "42501")
    client.execute("set session authorization app")
    client.execute("reset session authorization")
    equal(client.rows("select current_user, session_user"), [("app", "app")])


def test_discard_forms(env):
    owner = env.connect()
    stir = neighbours(env)
    owner.execute("create temp table d1 (i int)")
    owner.execute("discard temp")
    equal(owner.attempt("select * from d1").sqlstate, "42P01")
    owner.execute("create sequence if not exists dseq; select nextval('dseq')")
    owner.execute("discard sequences")
    equal(owner.attempt("select currval('dseq')").sqlstate, "55000")
    owner.execute("discard plans; drop sequence dseq; create temp table d2 (i int); prepare p as select 1")
    owner.execute("discard all")
    stir()
    equal(owner.attempt("select * from d2").sqlstate, "42P01")
    equal(owner.attempt("execute p").sqlstate, "26000")


@pooler_only
def test_a_pin_ends_with_its_state(env):
    """Twice as many clients as backends each make, use and drop such state; all of them are served."""
    clients = [env.connect() for _ in range(4)]
    for _ in range(3):
        for client in clients:
            client.execute("create temp table pinned (i int)")
            client.execute("insert into pinned values (1)")
            client.execute("drop table pinned")
        for client in clients:
            client.execute("select pg_advisory_lock(7)")
            client.execute("select pg_advisory_unlock(7)")
        for client in clients:
            client.execute("prepare ps as select 1")
            client.execute("deallocate ps")


@pooler_only
def test_nextval_alone_does_not_pin(env):
    """Object-relational mappers call it all the time."""
    env.connect().execute("create sequence if not exists plain_seq")
    clients = [env.connect() for _ in range(6)]
    for _ in range(3):
        for client in clients:
            client.value("select nextval('plain_seq')")
    clients[0].execute("drop sequence plain_seq")


@pooler_only
def test_settings_do_not_pin(env):
    """Drivers SET at every connect: six clients on two backends, all served, none waits."""
    clients = [env.connect() for _ in range(6)]
    for number, client in enumerate(clients):
        client.execute(f"set application_name to 'client {number}'; set timezone to 'UTC'; set datestyle to 'ISO'")
    for _ in range(3):
        for client in clients:
            client.value("select 1")


def test_who_gets_the_lock_of_a_client_that_has_left_finds_no_temporary_object_of_it(env):
    """DISCARD ALL releases the locks first, and drops the objects after that: as many as here take a while."""
    with env.cluster.superuser() as server, env.cluster.superuser() as watcher:
        owner = env.connect()
        owner.execute("select pg_advisory_lock(4711)")
        for first in range(0, 600, 100):
            owner.execute("begin; " + "; ".join(f"create temp table left_{n} (i int primary key, t text)"
                                                for n in range(first, first + 100)) + "; commit")
        server.send(m.query("select pg_advisory_lock(4711); select count(*) from pg_class where relname like 'left\\_%'"))
        until(lambda: watcher.rows("select 1 from pg_locks where locktype = 'advisory' and not granted") == [("1",)],
              "the lock is waited for")
        owner.close()
        equal(server.collect().rows[-1], ("0",))
