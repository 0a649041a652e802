"""LISTEN, UNLISTEN and NOTIFY of clients that share backends: as on a connection of one's own.

One connection listens for all clients of a pool. Two backends and more clients than that: who listens keeps none.
"""

import contextlib
import os
import signal
import threading
import time

from harness import messages as m
from harness.postgres import Standby
from harness.suite import PATIENCE_SECONDS, Background, crowd, equal, not_inside, on_every_backend, pooler_only, until

SAME_FOR_ALL_SERVERS = True

SETTINGS = {"pool_size": 2}


def heard(connection, count=1, seconds=PATIENCE_SECONDS):
    """The next notifications, without a query: (process id, channel, payload) of each."""
    end = time.monotonic() + seconds
    while len(connection.notifications) < count and connection.pending(max(0.0, end - time.monotonic())):
        if connection.receive() is None:
            break
    got, connection.notifications[:] = list(connection.notifications), []
    return got


def told(connection, count=1):
    """The same without the process ids."""
    return [(channel, payload) for _, channel, payload in heard(connection, count)]


def order(result):
    """The types of all messages, notifications among them; text of rows and settings aside."""
    return m.kinds(result.messages, keep="A")


def silent(connection, seconds=0.3):
    """Nothing comes within this time."""
    equal(connection.pending(seconds), False, f"heard {connection.notifications}, or something else")


def test_more_listeners_than_backends(env):
    clients = [env.connect() for _ in range(8)]
    for number, client in enumerate(clients):
        client.execute(f"listen own_{number}")
        client.execute("listen everybody")
    sender = env.connect()
    sender.execute("notify everybody, 'hello'")
    for number in range(8):
        sender.execute(f"notify own_{number}, 'only {number}'")
    for number, client in enumerate(clients):
        equal(told(client, 2), [("everybody", "hello"), (f"own_{number}", f"only {number}")])
    for client in clients:
        silent(client, 0.05)


@pooler_only
def test_a_listener_keeps_no_backend(env):
    listeners = [env.connect() for _ in range(6)]
    for client in listeners:
        client.execute("listen kept")
    clients = [row for row in env.pooler.show("CLIENTS") if row["database"] == "app"]
    equal({(row["state"], row["pins"], row["channels"]) for row in clients}, {("idle", "", "1")})
    states = [row["state"] for row in env.pooler.show("SERVERS")]
    equal(states.count("listen"), 1, f"states {states}")
    (pool,) = [row for row in env.pooler.show("POOLS") if row["database"] == "app"]
    equal((pool["sv_listen"], pool["channels"]), ("1", "1"))


def listening(pooler):
    """Rows of SHOW SERVERS."""
    return [row for row in pooler.show("SERVERS") if row["state"] == "listen"]


def test_nothing_is_missed_between_listen_and_select(env):
    """Who listens, then looks, hears of all that it has not seen."""
    writer, reader = env.connect(), env.connect()
    writer.execute("create table if not exists seen (i int); truncate seen")
    for number in range(60):
        reader.execute(f"listen gap_{number}")
        write = Background(lambda: writer.execute(f"begin; insert into seen values ({number}); notify gap_{number}; commit"))
        seen = reader.value(f"select count(*) from seen where i = {number}")
        write.join()
        if seen == "0":
            equal(told(reader), [(f"gap_{number}", "")], f"round {number}")
        reader.execute("unlisten *")
        reader.notifications.clear()


def test_an_answer_to_what_the_listening_transaction_itself_has_written(env):
    """Another sees the row as soon as it is committed, before the client's COMMIT is answered."""
    asker, worker = env.connect(), env.connect()
    worker.execute("create table if not exists requests (i int); truncate requests")
    for number in range(40):
        def answer():
            until(lambda: worker.value(f"select count(*) from requests where i = {number}") == "1", "request", 5)
            worker.execute(f"notify reply_{number}, 'done'")
        work = Background(answer)
        asker.execute(f"begin; listen reply_{number}; insert into requests values ({number}); commit")
        equal(told(asker), [(f"reply_{number}", "done")])
        work.join()
        asker.execute(f"unlisten reply_{number}")


def test_ones_own_come_ahead_of_ready_for_query_and_bear_ones_own_process_id(env):
    client, other = env.connect(), env.connect()
    client.execute("listen mine")
    result = client.execute("notify mine, 'one'")
    equal(order(result), "CAZ")
    equal(heard(client), [(client.pid, "mine", "one")])
    result = client.extended("notify mine, 'two'")
    equal(order(result)[-2:], "AZ")
    equal(heard(client), [(client.pid, "mine", "two")])
    # In the transaction that listens, too.
    result = client.execute("begin; listen fresh; notify fresh, 'three'; notify mine, 'four'; commit")
    equal(sorted(client.notifications), [(client.pid, "fresh", "three"), (client.pid, "mine", "four")])
    equal(order(result), "CCCCCAAZ")
    client.notifications.clear()
    other.execute("notify mine, 'five'")
    ((process, _, payload),) = heard(client)
    assert payload == "five" and process != client.pid, "another's are another's"


def test_anothers_bear_the_process_id_by_which_that_knows_itself(env):
    listener, senders = env.connect(), [env.connect() for _ in range(3)]
    kept = env.connect(client_encoding="LATIN1")  # this one keeps its backend to listen
    for client in (listener, kept):
        client.execute("listen known")
    ways = (
        lambda sender: sender.execute("notify known, 'a'"),
        lambda sender: sender.execute("begin; notify known, 'a'; select 1; commit"),
        lambda sender: sender.execute("select pg_notify('known', 'a')"),
        lambda sender: sender.execute("do $$ begin perform pg_notify('known', 'a'); end $$"),
        lambda sender: sender.extended("notify known, 'a'"),
        lambda sender: sender.extended("select pg_notify('known', 'a')"),
    )
    for sender in senders:
        time.sleep(2)  # of two that notify within a second by one server connection it is not known whose it is
        for number, way in enumerate(ways):
            way(sender)
            for client in (listener, kept):
                equal(heard(client), [(sender.pid, "known", "a")], f"way {number}")


NOTIFIERS = """
create table {0} (i int);
create table {0}_by_rule (i int);
create function {0}_trigger() returns trigger language plpgsql as
    $$ begin perform pg_notify('{0}', new.i::text); return new; end $$;
create trigger tells after insert on {0} for each row execute function {0}_trigger();
create rule tells as on insert to {0}_by_rule do also notify {0}, '0';
create view {0}_view as select pg_notify('{0}', '0')::text;
create function {0}_function(i int) returns void language sql as $$ select pg_notify('{0}', i::text) $$;
create function {0}_within(i int) returns void language plpgsql as $$ begin perform {0}_function(i); end $$;
create function {0}_executes(i int) returns void language plpgsql as
    $$ begin execute format('notify {0}, %L', i); end $$;
create function {0}_runs(what text) returns void language plpgsql as $$ begin execute what; end $$;
create procedure {0}_procedure(i int) language plpgsql as $$ begin notify {0}, '0'; commit; end $$;
"""
SERVERS_ID = "what functions notify there bears the server process's id (docs/inside.md)"
# What a client may send, with the channel and the payload.
WAYS = (
    "notify {0}, '{1}'", "select pg_notify('{0}', '{1}')", "insert into {0} values ({1})",
    "with a as (insert into {0} values ({1}) returning i) select * from a",
    "select {0}_function({1})", "select {0}_within({1})", "select {0}_executes({1})",
    "select {0}_runs('notify {0}, ''{1}''')", "do $$ begin perform {0}_within({1}); end $$",
    "do $$ begin notify {0}, '{1}'; end $$",
)
# The same, which say 0.
WAYS_OF_ZERO = ("insert into {0}_by_rule values (1)", "select * from {0}_view", "call {0}_procedure(1)")


def makes_notifiers(connection, channel):
    connection.execute("drop schema if exists tells cascade; create schema tells; set search_path to tells")
    connection.execute(NOTIFIERS.format(channel))


@not_inside(SERVERS_ID)
def test_what_functions_and_triggers_notify_bears_the_senders_process_id(env):
    listener, made = env.connect(options="-c search_path=tells"), env.connect()
    makes_notifiers(made, "tells_one")
    listener.execute("listen tells_one")
    for number, way in enumerate((*WAYS, *WAYS_OF_ZERO)):
        sender, said = env.connect(options="-c search_path=tells"), str(number) if way in WAYS else "0"
        for run in (sender.execute, sender.extended):
            if "call" in way and run == sender.extended:
                continue  # its COMMIT is for a text by itself
            run(way.format("tells_one", number))
            equal(heard(listener), [(sender.pid, "tells_one", said)], f"{way}, {run.__name__}")
        sender.close()
    made.execute("drop schema tells cascade")


@pooler_only
@not_inside(SERVERS_ID)
def test_notifications_bear_the_senders_process_id_though_others_get_its_server_connection_at_once(env):
    """Until they had been heard, they bore the server's own if another client got the connection before."""
    with env.pooler_with(pool_size=1) as target:
        listener, *clients = (env.connect(target) for _ in range(4))
        makes_notifiers(clients[0], "tells_two")
        for client in (listener, *clients):
            client.execute("set search_path to tells")
        listener.execute("listen tells_two")
        for number, way in enumerate(WAYS):
            with held_up(target, 0.03):
                for at, client in enumerate(clients):
                    client.send(m.query("select 1" if at == 2 else way.format("tells_two", number * 10 + at)))
                for client in clients:
                    client.collect()
            told_by = {payload: process for process, _, payload in heard(listener, 2)}
            expected = {str(number * 10 + at): clients[at].pid for at in range(2)}
            equal(told_by, expected, way)
        clients[0].execute("drop schema tells cascade")


@pooler_only
def test_two_that_notify_by_one_server_connection_in_turn_are_both_known(env):
    with env.pooler_with(pool_size=1) as target:
        listener, *senders = (env.connect(target) for _ in range(3))
        listener.execute("listen turns")
        for number in range(40):
            sender = senders[number % 2]
            sender.execute("notify turns")
            equal(heard(listener), [(sender.pid, "turns", "")], f"{number}")


@contextlib.contextmanager
def held_up(target, seconds=0.1):
    """The server's process that listens does nothing for a moment, as on a busy machine."""
    (listens,) = [row for row in target.pooler.show("SERVERS") if row["state"] == "listen"]
    process = int(listens["remote_pid"])
    os.kill(process, signal.SIGSTOP)
    ends = threading.Timer(seconds, lambda: os.kill(process, signal.SIGCONT))
    ends.start()
    try:
        yield
    finally:
        ends.join()


@pooler_only
def test_what_is_committed_before_an_unlisten_is_sent_is_heard(env):
    ways = ("unlisten c", "unlisten *", "discard all", "begin; unlisten c; commit", ("begin", "unlisten c", "commit"))
    with env.pooler_with(pool_size=3) as target:
        sender = env.connect(target)
        sender.execute("create temp table keeps_a_server_connection_of_its_own ()")
        for way in ways:
            for keeps in (False, True):
                client = env.connect(target)
                client.execute("listen c")
                if keeps:
                    client.execute("listen other")
                with held_up(target):
                    sender.execute("notify c, 'before'")
                    for text in [way] if isinstance(way, str) else way:
                        client.execute(text)
                    sender.execute("notify c, 'after'")
                equal(told(client), [("c", "before")], f"{way}, with another channel: {keeps}")
                silent(client, 0.1)
                client.close()


@pooler_only
def test_what_is_committed_before_a_block_comes_before_it(env):
    with env.pooler_with(pool_size=3) as target:
        sender, client = env.connect(target), env.connect(target)
        sender.execute("create temp table keeps_a_server_connection_of_its_own ()")
        client.execute("listen c")
        for _ in range(20):
            with held_up(target, 0.01):
                sender.execute("notify c")
                equal(order(client.execute("begin")), "ACZ")
            client.execute("commit")
            equal(told(client), [("c", "")])


def test_a_function_and_a_trigger_that_notify(env):
    client = env.connect()
    client.execute("create or replace function tell() returns trigger language plpgsql as "
                   "$$ begin perform pg_notify('told', new.i::text); return new; end $$; "
                   "drop table if exists telling; create table telling (i int); "
                   "create trigger tells after insert on telling for each row execute function tell()")
    client.execute("listen told")
    result = client.execute("insert into telling values (1), (2)")
    equal(order(result), "CAAZ")
    equal(heard(client, 2), [(client.pid, "told", "1"), (client.pid, "told", "2")])


def test_what_a_backend_sent_for_another_is_not_taken_for_ones_own(env):
    listener, others = env.connect(), [env.connect() for _ in range(3)]
    listener.execute("listen shared")
    for number in range(80):
        others[number % 3].execute(f"notify shared, 'theirs {number}'")
        listener.execute(f"notify shared, 'mine {number}'")
        got = heard(listener, 2)
        equal([(process == listener.pid, payload) for process, _, payload in got],
              [(False, f"theirs {number}"), (True, f"mine {number}")])


def test_commit_order_is_kept(env):
    listeners = [env.connect() for _ in range(3)]
    for client in listeners:
        client.execute("listen a; listen b")
    senders = [env.connect() for _ in range(3)]
    for number in range(100):
        channel = "ab"[number % 2]
        senders[number % 3].execute(f"notify {channel}, '{number}'")
    expected = [("ab"[number % 2], str(number)) for number in range(100)]
    for client in listeners:
        equal(told(client, 100), expected)


def test_nothing_comes_inside_of_a_transaction(env):
    client, sender = env.connect(), env.connect()
    client.execute("listen later")
    client.execute("begin")
    sender.execute("notify later, 'one'; notify later, 'two'")
    silent(client)
    equal(order(client.execute("select 1")), "TDCZ")
    sender.execute("notify later, 'three'")
    silent(client)
    equal(order(client.execute("commit")), "CAAAZ")
    equal(told(client, 3), [("later", "one"), ("later", "two"), ("later", "three")])
    client.execute("begin")
    sender.execute("notify later, 'four'")
    equal(client.attempt("select 1/0").status, "E")
    silent(client)
    equal(order(client.execute("rollback")), "CAZ")
    client.notifications.clear()
    # A pipeline is a transaction up to its Sync.
    client.send(m.run("select 1"), m.FLUSH)
    client.collect(until="C")
    sender.execute("notify later, 'five'")
    silent(client)
    client.send(m.SYNC)
    client.collect()
    equal(told(client), [("later", "five")])


def test_rolled_back_it_has_no_effect(env):
    client, sender = env.connect(), env.connect()
    client.execute("listen stays")
    client.execute("begin; listen never; unlisten stays; rollback")
    client.attempt("listen never; select 1/0")
    client.attempt("begin; unlisten *; select 1/0")
    client.execute("rollback")
    sender.execute("notify never; notify stays, 'yes'")
    equal(told(client), [("stays", "yes")])
    silent(client)


def test_savepoints(env):
    client, sender = env.connect(), env.connect()
    client.execute("listen before; listen gone")
    client.execute("begin")
    client.execute("listen one")
    client.execute("savepoint s")
    client.execute("listen two; unlisten before; unlisten one")
    client.execute("rollback to s")
    client.execute("listen three; unlisten gone; savepoint t; unlisten *; listen four; rollback to t")
    client.execute("release s")
    client.execute("commit")
    for channel in ("before", "gone", "one", "two", "three", "four"):
        sender.execute(f"notify {channel}")
    equal([channel for channel, _ in told(client, 3)], ["before", "one", "three"])
    silent(client)


def test_an_exception_block_takes_it_back(env):
    client, sender = env.connect(), env.connect()
    client.execute("listen round_it")
    client.execute("do $$ begin listen tried; raise 'no'; exception when others then null; end $$")
    sender.execute("notify tried; notify round_it")
    equal(told(client), [("round_it", "")])
    silent(client)


def test_the_order_of_listen_and_unlisten_counts(env):
    client, sender = env.connect(), env.connect()
    client.execute("listen a; listen b; unlisten a; listen c; unlisten b; listen b")
    client.execute("begin; unlisten *; listen d; listen a; unlisten d; commit")
    for channel in "abcd":
        sender.execute(f"notify {channel}")
    equal(told(client), [("a", "")])
    silent(client)


def test_unlisten_and_discard_all(env):
    client, sender = env.connect(), env.connect()
    for stop in ("unlisten stop", "unlisten *", "discard all"):
        client.execute("listen stop")
        sender.execute("notify stop, 'heard'")
        equal(told(client), [("stop", "heard")], stop)
        equal(client.execute(stop).tags[-1].upper().split()[0], stop.upper().split()[0])
        sender.execute("notify stop, 'not heard'")
        silent(client)
    client.execute("listen stop")
    client.extended("unlisten stop")
    client.extended("listen other")
    client.extended("discard all")
    sender.execute("notify stop; notify other")
    silent(client)


def test_a_discard_all_whose_sync_comes_later_ends_listening(env):
    """With start values, a Sync of the pooler's has ended its pipeline by then."""
    for parameters in ({}, {"application_name": "starts"}):
        client, sender = env.connect(**parameters), env.connect()
        client.execute("listen ends")
        client.send(m.run("discard all"), m.FLUSH)
        client.collect(until="C")
        time.sleep(0.1)  # the Sync is not of the same packet
        client.exchange(m.SYNC)
        sender.execute("notify ends, 'to nobody'")
        silent(client)
        client.execute("select 1")
        equal(client.notifications, [])


def test_what_waits_on_a_channel_that_is_left_is_not_delivered(env):
    client, sender = env.connect(), env.connect()
    client.execute("listen gone; listen here")
    client.execute("begin")
    sender.execute("notify gone; notify here")
    time.sleep(0.2)  # they have come to the pooler
    client.execute("unlisten gone")
    equal(order(client.execute("commit")), "CAZ")
    equal(told(client), [("here", "")])


def test_the_extended_protocol(env):
    """As pgjdbc, asyncpg and psycopg send it: unnamed, named and bound again, in a pipeline, in a block."""
    client, sender = env.connect(), env.connect()
    client.extended("listen unnamed")
    client.extended("listen named", name="s1")
    client.extended("unlisten named", name="s2")
    result = client.exchange(m.bind("s1"), m.execute(), m.SYNC)
    equal(result.tags, ["LISTEN"])
    result = client.exchange(m.run("begin"), m.run("listen block"), m.run("savepoint s"), m.run("unlisten unnamed"),
                             m.run("rollback to s"), m.run("commit"), m.SYNC)
    equal(result.tags, ["BEGIN", "LISTEN", "SAVEPOINT", "UNLISTEN", "ROLLBACK", "COMMIT"])
    for channel in ("unnamed", "named", "block"):
        sender.execute(f"notify {channel}")
    equal([channel for channel, _ in told(client, 3)], ["unnamed", "named", "block"])
    equal(client.exchange(m.bind("s2"), m.execute(), m.SYNC).tags, ["UNLISTEN"])
    sender.execute("notify named; notify block")
    equal(told(client), [("block", "")])
    silent(client)


def test_queries_sent_at_once(env):
    client, sender = env.connect(), env.connect()
    result = client.exchange(m.query("listen x"), m.query("notify x, '1'"), m.query("select 1"), m.query("unlisten x"),
                             m.query("notify x, '2'"))
    equal(order(result), "CZCAZTDCZCZCZ")
    equal(heard(client), [(client.pid, "x", "1")])
    sender.execute("notify x")
    silent(client)


def test_names_of_channels(env):
    client, sender = env.connect(), env.connect()
    long = "l" * 63
    for written, sent in (("Folded", "folded"), ('"Quoted"', "Quoted"), ('"with ""quotes"" and; semicolon"',
                                                                         'with "quotes" and; semicolon'),
                          (long, long), (long + "cut", long), ('"größe ☃"', "größe ☃"), ('"' + "x" * 62 + 'é"', "x" * 62)):
        client.execute(f"listen {written}")
        sender.execute("select pg_notify('%s', 'a ''payload''')" % sent.replace("'", "''"))
        equal(told(client), [(sent, "a 'payload'")])
        client.execute(f"unlisten {written}")
        sender.execute("select pg_notify('%s', '')" % sent.replace("'", "''"))
    silent(client)


def test_errors_are_the_servers_own(env):
    client = env.connect()
    equal(client.attempt('listen ""').sqlstate, "42601")
    equal(client.attempt("listen a b").sqlstate, "42601")
    client.execute("begin")
    client.attempt("select 1/0")
    equal(client.attempt("listen a").sqlstate, "25P02")
    client.execute("rollback")
    client.execute("begin; listen a")
    equal(client.attempt("prepare transaction 'x'").sqlstate, "0A000")
    assert client.status in "IE"
    client.execute("rollback")
    equal(client.attempt("select 1").value, "1")


def test_large_payloads_in_number(env):
    client, sender = env.connect(), env.connect()
    client.execute("listen big")
    sender.execute("do $$ begin for i in 1..200 loop perform pg_notify('big', i || ' ' || repeat('x', 7000)); end loop; end $$")
    got = told(client, 200)
    equal([payload.split()[0] for _, payload in got], [str(i) for i in range(1, 201)])


def test_a_block_of_code_that_listens(env):
    client, sender = env.connect(), env.connect()
    client.execute("do $$ begin execute 'listen ' || 'dynamic'; end $$")
    client.execute("do $$ begin listen plain; end $$")
    client.execute("listen moved")
    for channel in ("dynamic", "plain", "moved"):
        sender.execute(f"notify {channel}")
    equal([channel for channel, _ in told(client, 3)], ["dynamic", "plain", "moved"])
    equal(order(client.execute("notify plain, 'own'")), "CAZ")
    equal(heard(client), [(client.pid, "plain", "own")])


def test_commit_order_where_a_backend_takes_over(env):
    """What had been listened on before by the connection that listens for all, and what keeps the backend now."""
    ways = ["do $$ begin execute 'listen ' || 'b'; end $$", "set client_encoding to latin1; listen b"]
    with env.pooler_with(pool_size=4) as target:
        clients, senders = [env.connect(target) for _ in ways], [env.connect(target) for _ in range(2)]
        for client, way in zip(clients, ways):
            client.execute("listen a; listen c")
            client.execute(way)
        for number in range(60):
            channel = "abc"[number % 3]
            senders[number % 2].execute(f"notify {channel}, '{number}'")
        expected = [("abc"[number % 3], str(number)) for number in range(60)]
        for client in clients:
            equal(told(client, 60), expected)
        own = [(channel, "own") for channel in "cba"]
        for client in clients:
            equal(order(client.execute("notify c, 'own'; notify b, 'own'; notify a, 'own'")), "CCCAAAZ")
            equal(heard(client, 3), [(client.pid, *one) for one in own])
            for other in clients:
                if other is not client:
                    equal(told(other, 3), own)
        for client in clients:
            client.execute("unlisten a")
        senders[0].execute("notify a, 'unheard'; notify c, 'heard'")
        for client in clients:
            equal(told(client), [("c", "heard")])
            client.execute("unlisten *")
        senders[0].execute("notify a; notify b; notify c")
        for client in clients:
            silent(client)


def test_another_encoding(env):
    client, sender = env.connect(), env.connect()
    client.execute("set client_encoding to latin1")
    client.send(m.message("Q", "listen \"é\"\0".encode("latin1")))
    client.collect()
    sender.execute("select pg_notify('é', 'ä')")
    until(lambda: client.pending(), "notification")
    message = client.buffer or client.sock.recv(100)
    assert b"\xe9\0\xe4\0" in bytes(message), bytes(message)


@pooler_only
def test_backends_listen_on_nothing_when_they_are_given_back(env):
    client, other = env.connect(), env.connect()
    client.execute("listen a; listen b")
    client.execute("begin; unlisten a; listen c; commit")
    client.execute("begin; listen d; rollback")
    vanishing = env.connect()
    vanishing.execute("begin; listen e")
    vanishing.vanish()
    time.sleep(0.2)  # the pooler has seen its end
    for result in on_every_backend([other, env.connect()], "select count(*) from pg_listening_channels()"):
        equal(result.value, "0")


SHOWN = "select string_agg(channel, ' ' order by channel) from pg_listening_channels() channel"


def test_pg_listening_channels_shows_ones_own(env):
    client, other = env.connect(), env.connect()
    client.execute('listen one; listen "Two ""quoted"""')
    other.execute("listen three")
    own = 'Two "quoted" one'
    equal(client.value(SHOWN), own)
    equal(client.extended(SHOWN).value, own)
    client.exchange(m.parse(SHOWN, "shown"), m.SYNC)
    equal(client.exchange(m.bind("shown"), m.execute(), m.SYNC).value, own)
    equal(client.value("begin; " + SHOWN), own)
    # Those in force: what this transaction does counts once it has ended.
    client.execute("unlisten one; listen four")
    equal(client.value(SHOWN), own)
    client.execute("commit")
    equal(client.value(SHOWN), 'Two "quoted" four')
    equal(client.value("begin; listen five; " + SHOWN), 'Two "quoted" four')
    client.execute("rollback")
    equal(client.value(SHOWN), 'Two "quoted" four')
    equal(other.value(SHOWN), "three")
    client.execute("unlisten *")
    equal(client.value(SHOWN), None)
    client.execute("listen six")
    equal(client.value(SHOWN), "six")
    client.execute("begin")
    equal(client.value(SHOWN), "six", "who has asked before is shown them within a transaction, too")
    client.execute("rollback")


# Forms in which one may ask, and the names of their columns.
LOOKS = (
    ("select pg_listening_channels() order by 1", "pg_listening_channels"),
    ("select pg_catalog.pg_listening_channels() as channel order by 1", "channel"),
    ("select * from pg_listening_channels() order by pg_listening_channels", "pg_listening_channels"),
    ("select c from PG_Listening_Channels ( ) c where c <> 'x' order by c", "c"),
    ("select t.x from pg_listening_channels() as t(x) join pg_listening_channels() on x = pg_listening_channels order by x", "x"),
    ("select unnest(array(select pg_listening_channels() order by 1))", "unnest"),
    ("select distinct pg_listening_channels() || '' order by 1", "?column?"),
)


def test_the_first_look_at_ones_channels_within_a_transaction(env):
    """A LISTEN within a transaction has no effect before its COMMIT, and is not shown before it either."""
    own = ["It's \\ \"quoted\"", "one"]
    for look, name in LOOKS:
        for form in ("text", "texts", "unnamed", "named", "pipeline"):
            client = env.connect()
            client.execute('listen one; listen "It\'s \\ ""quoted"""')
            if form == "named":
                client.exchange(m.parse(look, "look"), m.SYNC)
            if form != "pipeline":
                client.execute("begin")
            if form in ("text", "unnamed", "named"):
                client.execute("listen fresh")
            match form:
                case "text":
                    result = client.execute(look)
                case "texts":
                    result = client.execute("select; " + look)
                case "unnamed":
                    result = client.extended(look)
                case "named":
                    bound = m.bind("look") + m.describe_portal() + m.execute()
                    result = client.exchange(m.describe_statement("look"), bound, m.SYNC)
                case "pipeline":
                    result = client.exchange(m.run("begin"), m.run(look), m.SYNC)
            described = [message.columns() for message in result.messages if message.kind == "T" and message.columns()]
            equal({(column, oid) for columns in described for column, oid, _ in columns}, {(name, 25)}, f"{form}: {look}")
            equal([row[0] for row in result.rows if row], own, f"{form}: {look}")
            client.execute("rollback")
            equal(client.value(SHOWN), 'It\'s \\ "quoted" one')
            client.close()


def test_what_is_committed_behind_a_look_is_shown(env):
    """What stands in for a prepared statement is not kept."""
    client = env.connect()
    client.execute("listen one")
    client.exchange(m.parse(SHOWN, "look"), m.SYNC)
    for listens, shown in (("listen two", "one"), ("unlisten one", "one two"), ("listen three", "two")):
        client.execute("begin")
        client.execute(listens)
        equal(client.exchange(m.bind("look"), m.execute(), m.SYNC).value, shown)
        client.execute("commit")
    client.execute("begin")
    equal(client.exchange(m.bind("look"), m.execute(), m.SYNC).value, "three two")
    client.execute("commit")


def test_nothing_comes_twice_while_channels_are_shown(env):
    client, sender = env.connect(), env.connect()
    client.execute("listen shown")
    for number in range(20):
        result = client.execute(f"notify shown, 'own {number}'; {SHOWN}")
        equal((order(result), result.value), ("CTDCAZ", "shown"))
        equal(heard(client), [(client.pid, "shown", f"own {number}")])
        client.execute("begin; " + SHOWN)
        sender.execute(f"notify shown, 'theirs {number}'")
        client.execute(f"listen more_{number}; notify more_{number}")
        client.execute("commit")
        equal(told(client, 2), [("shown", f"theirs {number}"), (f"more_{number}", "")])
        client.execute(f"unlisten more_{number}")
    silent(client)


@pooler_only
def test_a_client_that_has_looked_at_its_channels_leaves_none_of_them(env):
    client, other = env.connect(), env.connect()
    client.execute("listen kept")
    client.value(SHOWN)
    client.close()
    vanishing = env.connect()
    vanishing.execute("listen gone")
    vanishing.value("begin; " + SHOWN)
    vanishing.vanish()
    time.sleep(0.2)  # the pooler has seen its end
    for result in on_every_backend([other, env.connect()], "select count(*) from pg_listening_channels()"):
        equal(result.value, "0")


@pooler_only
def test_a_channel_ends_with_its_last_client(env):
    one, two = env.connect(), env.connect()
    one.execute("listen ending")
    two.execute("listen ending; listen ending_too")

    def channels():
        return [row["channels"] for row in listening(env.pooler)]
    equal(channels(), ["2"])
    two.vanish()
    until(lambda: channels() == ["1"], "end of a channel")
    one.close()
    until(lambda: channels() == ["0"], "end of both")


@pooler_only
def test_the_listening_connection_lost(env):
    listeners, bystander = [env.connect() for _ in range(3)], env.connect()
    for client in listeners:
        client.execute("listen precious")
    bystander.execute("begin")
    with env.server() as other:
        other.execute(f"select pg_terminate_backend({listening(env.pooler)[0]['remote_pid']})")
    for client in listeners:
        message = client.receive()
        equal((message.kind, message.fields()["S"], message.sqlstate()), ("E", "FATAL", "57P01"))
        assert client.is_closed(), "it must not stay without its notifications"
    equal(bystander.value("select 1"), "1", "who does not listen is not concerned")
    bystander.execute("commit")
    again = env.connect()
    again.execute("listen precious")
    bystander.execute("notify precious, 'again'")
    equal(told(again), [("precious", "again")])


@pooler_only
def test_the_listening_connection_lost_with_a_notice(env):
    with env.pooler_with(listen_lost="notice") as target, target.connect() as client, target.connect() as sender:
        client.execute("listen precious")
        with env.server() as other:
            other.execute(f"select pg_terminate_backend({listening(target.pooler)[0]['remote_pid']})")
        message = client.receive()
        equal((message.kind, message.fields()["S"]), ("N", "WARNING"))

        def is_heard():
            sender.execute("notify precious, 'again'")
            return bool(heard(client, seconds=0.2))
        until(is_heard, "listening again")
        equal(client.value("select 1"), "1")


@pooler_only
def test_a_client_that_reads_nothing_is_cut_off_and_costs_no_other(env):
    slow, fine, sender = env.connect(), env.connect(), env.connect()
    slow.execute("listen flood")
    fine.execute("listen flood")
    text = "do $$ begin for i in 1..100 loop perform pg_notify('flood', %d || ' ' || i || ' ' || repeat('x', 7900)); end loop; end $$"
    rounds = 30
    for number in range(rounds):
        sender.execute(text % number)
        equal(len(told(fine, 100)), 100)
    assert slow.is_closed(10), "it is cut off"
    equal(fine.value("select 1"), "1")


@pooler_only
def test_a_transaction_that_holds_too_much_back_is_cut_off_with_a_reason(env):
    client, sender = env.connect(), env.connect()
    client.execute("listen flood")
    client.execute("begin")
    text = "do $$ begin for i in 1..100 loop perform pg_notify('flood', i || repeat('x', 7900)); end loop; end $$"
    for _ in range(7):
        sender.execute(text)
    message = client.receive()
    equal((message.kind, message.sqlstate()), ("E", "53400"))
    assert "notifications" in message.fields()["M"]


def test_many_at_once(env):
    """Clients that listen, notify and leave, all at the same time: each hears its own, in its order."""
    def work(number):
        with env.target.connect() as client:
            for turn in range(10):
                client.execute(f"listen chan_{number % 4}; listen own_{number}")
                for payload in range(3):
                    client.execute(f"notify own_{number}, '{turn} {payload}'; notify chan_{number % 4}, '{number}'")
                own = [(process, payload) for process, channel, payload in client.notifications if channel == f"own_{number}"]
                equal(own, [(client.pid, f"{turn} {payload}") for payload in range(3)])
                foreign = [channel for _, channel, _ in client.notifications if channel not in (f"own_{number}", f"chan_{number % 4}")]
                equal(foreign, [], "another's channel")
                client.execute("unlisten *")
                client.notifications.clear()
    crowd(12, work)


@pooler_only
def test_statement_mode(env):
    with env.pooler_with(pool_mode="statement") as target, target.connect() as client, target.connect() as sender:
        client.execute("listen in_statement_mode")
        sender.execute("notify in_statement_mode, 'x'")
        equal(told(client), [("in_statement_mode", "x")])


@pooler_only
@not_inside("the server's processes inside may have taken the room that there is (docs/inside.md)")
def test_no_room_for_the_listening_connection(env):
    """Who listens then keeps its backend."""
    with env.pooler_with(max_db_connections=2) as target, target.connect() as client, target.connect() as other:
        client.execute("begin")
        other.execute("begin")
        client.execute("listen kept; notify kept, 'own'")
        client.execute("commit")
        equal(heard(client), [(client.pid, "kept", "own")])
        other.execute("notify kept, 'other'; commit")
        equal(told(client), [("kept", "other")])


@pooler_only
def test_statements_that_are_not_shared(env):
    with env.pooler_with(max_prepared_statements=0) as target, target.connect() as client, target.connect() as sender:
        client.extended("listen unshared", name="s")
        client.exchange(m.bind("s"), m.execute(), m.SYNC)
        sender.execute("notify unshared, 'x'")
        equal(told(client), [("unshared", "x")])


@pooler_only
def test_who_listens_anew_is_heard_though_another_has_not_read_its_goodbye(env):
    one, two, sender = env.connect(), env.connect(), env.connect()
    one.execute("listen anew")
    with env.server() as other:
        other.execute(f"select pg_terminate_backend({listening(env.pooler)[0]['remote_pid']})")
    assert one.is_closed()
    two.execute("listen anew")
    sender.execute("notify anew, 'x'")
    equal(told(two), [("anew", "x")])


@pooler_only
def test_listeners_on_a_standby_get_the_servers_own_error(env):
    with Standby(env.cluster, f"{env.directory}/standby_listen") as standby:
        address = f"127.0.0.1:{standby.port}"
        with env.pooler_with(servers=[address]) as target, target.connect() as client:
            equal(client.attempt("listen x").sqlstate, "25006")
            equal(client.attempt("unlisten x").tags, ["UNLISTEN"])
            equal(client.value("select 1"), "1")


@pooler_only
def test_the_listening_connection_may_sit_idle(env):
    """A client that works is never idle for long; what listens for it may be."""
    with env.server() as server:
        server.execute("alter role app in database app set idle_session_timeout to '700ms'")
        try:
            with env.pooler_with() as target, target.connect() as client, target.connect() as sender:
                client.execute("listen idle")
                time.sleep(1.5)  # longer than idle_session_timeout
                sender.execute("notify idle, 'heard'")
                equal(told(client), [("idle", "heard")])
        finally:
            server.execute("alter role app in database app reset idle_session_timeout")


def test_ten_thousand_channels(env):
    client, sender = env.connect(), env.connect()
    for start in range(0, 10_000, 50):
        client.execute(";".join(f"listen many_{number}" for number in range(start, start + 50)))
    sender.execute("notify many_0, 'first'; notify many_9999, 'last'; notify many_10000")
    equal(told(client, 2), [("many_0", "first"), ("many_9999", "last")])
    equal(client.value("select count(*) from pg_listening_channels()"), "10000")
    client.execute("listen one_more")
    sender.execute("notify many_5000; notify one_more")
    # One more than the listening connection takes for a client: its own backend hears that, and there is no order between
    # the two (docs/decisions/0004, limits).
    equal(sorted(channel for channel, _ in told(client, 2)), ["many_5000", "one_more"])
    client.execute("unlisten *")
    sender.execute("notify many_0; notify one_more")
    silent(client)
