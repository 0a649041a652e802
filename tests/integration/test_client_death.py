"""Clients that die: their backend is free at once, clean, and with no half of a protocol exchange in it."""

import os
import pathlib
import time

from harness import messages as m
from harness.suite import crowd, equal, limit, pooler_only, until

SAME_FOR_ALL_SERVERS = True

SETTINGS = {"pool_size": 1}


def served_within(env, seconds=2.0):
    """Another client is served, and what the dead one had begun is rolled back."""
    started = time.monotonic()
    other = env.connect()
    equal(other.value("select 'next'"), "next")
    spent = time.monotonic() - started
    assert spent < seconds, f"the next client waited {spent:.1f} s"
    return other


def victim(env):
    """Not closed by the end of the test: it dies by itself."""
    return env.target.connect()


@pooler_only
def test_a_client_whose_machine_has_vanished_is_looked_for_after_a_minute(env):
    """The kernel's own keepalive waits for two hours."""
    client = env.connect()
    near, far = client.sock.getsockname()[1], client.sock.getpeername()[1]

    def timer():
        rows = (line.split() for line in pathlib.Path("/proc/net/tcp").read_text().splitlines()[1:])
        (timer,) = (row[5] for row in rows if [int(row[at].split(":")[1], 16) for at in (1, 2)] == [far, near])
        return [int(part, 16) for part in timer.split(":")]

    until(lambda: timer()[0] == 2, "nothing is unacknowledged any more: the timer is that of keepalive")
    left = timer()[1] / os.sysconf("SC_CLK_TCK")
    assert 0 < left <= 61, f"the first probe comes in {left:.0f} s"


ENDS = {"reset": lambda client: client.vanish(), "close": lambda client: client.sock.close(), "terminate": lambda client: client.close()}


def test_in_a_transaction(env):
    setup = env.connect()
    setup.execute("drop table if exists death; create table death (i int)")
    for how, end in ENDS.items():
        client = victim(env)
        client.execute("begin; insert into death values (1); lock table death in access exclusive mode")
        end(client)
        env.cluster.wait_for_backends("state = 'idle in transaction'")
        equal(served_within(env).value("select count(*) from death"), "0", how)
    setup.execute("drop table death")


def test_in_a_failed_transaction(env):
    client = victim(env)
    client.execute("begin")
    client.attempt("select 1/0")
    client.vanish()
    equal(served_within(env).status, "I")


def test_trap_25_in_a_query(env):
    """trap 25: queries of clients that had vanished ran on to their end, with the pool blocked behind them."""
    for end in ENDS.values():
        client = victim(env)
        client.send(m.query("select pg_sleep(20) /* vanishing */"))
        env.cluster.wait_for_backends("state = 'active' and query like '%vanishing%' and query not like '%pg_stat_activity%'", 1)
        time.sleep(0.05)  # a goodbye right behind the query would be no death: see below
        end(client)
        if env.pooler:
            served_within(env)
            env.cluster.wait_for_backends("state = 'active' and query like '%vanishing%' and query not like '%pg_stat_activity%'")
        else:
            env.server().execute("select pg_terminate_backend(pid) from pg_stat_activity where query like '%vanishing%' and pid <> "
                                 "pg_backend_pid()")


def test_in_copy_in(env):
    setup = env.connect()
    setup.execute("drop table if exists death_copy; create table death_copy (i int)")
    for how, end in ENDS.items():
        client = victim(env)
        client.send(m.query("copy death_copy from stdin"), m.copy_data(b"1\n2\n"))
        client.collect(until="G")
        end(client)
        equal(served_within(env).value("select count(*) from death_copy"), "0", how)
    setup.execute("drop table death_copy")


def test_in_the_middle_of_copy_data(env):
    setup = env.connect()
    setup.execute("drop table if exists death_copy; create table death_copy (i int)")
    client = victim(env)
    client.send(m.query("copy death_copy from stdin"))
    client.collect(until="G")
    client.send(m.copy_data(b"1\n2\n" * 50000)[:100001])
    client.vanish()
    equal(served_within(env).value("select count(*) from death_copy"), "0")
    setup.execute("drop table death_copy")


def test_in_copy_out(env):
    for end in ENDS.values():
        client = victim(env)
        client.send(m.query("copy (select repeat('x', 1000) from generate_series(1, 200000)) to stdout"))
        client.receive()
        end(client)
        served_within(env)


def test_in_a_large_result(env):
    client = victim(env)
    client.send(m.query("select repeat('x', 1000) from generate_series(1, 200000)"))
    client.receive()
    client.vanish()
    served_within(env)


def test_trap_21_in_the_middle_of_a_message(env):
    """trap 21: half a message forwarded and then abandoned was completed by the next client's bytes."""
    whole = m.query("select '" + "a" * 200000 + "'")
    for cut in (1, 3, 5, 6, 100, 8192, 65536, len(whole) - 1):
        client = victim(env)
        client.send(whole[:cut])
        time.sleep(0.02)  # the part has been sent on
        client.vanish()
        equal(served_within(env).value("select 'untouched'"), "untouched", f"cut at {cut}")


def test_trap_21_in_the_middle_of_a_pipeline(env):
    """Parse and Bind have gone out, the Execute is cut, no Sync."""
    setup = env.connect()
    setup.execute("drop table if exists death_pipe; create table death_pipe (i int)")
    pipeline = m.run("insert into death_pipe values (1)") + m.FLUSH + m.run("insert into death_pipe values (2)")
    for cut in (20, len(pipeline) // 2, len(pipeline) - 3, len(pipeline)):
        client = victim(env)
        client.send(pipeline[:cut])
        time.sleep(0.02)  # the part has been sent on
        client.vanish()
        equal(served_within(env).value("select count(*) from death_pipe"), "0", f"cut at {cut}")
    setup.execute("drop table death_pipe")


def test_half_a_message_holds_no_backend(env):
    """Of a client that lives on: while the rest of its message has not come, others are served."""
    slow = env.connect()
    whole = m.query("select '" + "a" * 300000 + "'")
    for cut in (3, 100, 5000):
        slow.send(whole[:cut])
        time.sleep(0.05)  # the part has come to the pooler
        served_within(env)
        slow.send(whole[cut:])
        equal(len(slow.collect().value), 300000)


@pooler_only
@limit(60)
def test_a_long_message_that_crawls_holds_no_backend_for_ever(env):
    """Of more than 16 KiB, which streams: a byte now and then is not enough to keep the backend from others."""
    with env.pooler_with(pool_size=1, client_write_timeout="1s", query_wait_timeout="20s") as target:
        slow, other = env.connect(target), env.connect(target)
        whole = m.query("select '" + "a" * 300000 + "'")
        slow.send(whole[:20000])
        time.sleep(0.1)  # the part has come to the pooler
        other.send(m.query("select 'served'"))
        started = time.monotonic()
        try:
            for at in range(20000, 20030):
                slow.send(whole[at : at + 1])
                time.sleep(0.2)  # it crawls
        except OSError:
            pass  # it has been cut off
        equal(other.collect().value, "served")
        assert time.monotonic() - started < 10


@pooler_only
@limit(60)
def test_a_query_with_a_goodbye_behind_it_is_carried_out_though_others_wait(env):
    setup = env.connect()
    setup.execute("drop table if exists last_words; create table last_words (i int)")
    with env.pooler_with(pool_size=1, query_wait_timeout="20s") as target:
        other = env.connect(target)
        leaving = target.connect()
        leaving.send(m.query("select pg_sleep(1); insert into last_words values (1)") + m.TERMINATE)
        leaving.sock.close()
        time.sleep(0.2)  # its end has been seen, its query runs
        equal(other.value("select count(*) from last_words"), "1")
    setup.execute("drop table last_words")


def test_in_a_portal(env):
    client = victim(env)
    client.execute("begin")
    client.exchange(m.parse("select generate_series(1, 1000000)"), m.bind(), m.execute("", 10), m.SYNC)
    client.vanish()
    served_within(env)


def test_while_waiting_for_a_backend(env):
    if not env.pooler:
        return
    with env.pooler_with(pool_size=1, idle_transaction_reserve=0) as target:
        holder = env.connect(target)
        holder.execute("begin; select 1")
        dying = [env.connect(target) for _ in range(10)]
        for client in dying:
            client.send(m.query("create table must_not_be (i int)"))
        time.sleep(0.1)  # they wait
        for client in dying:
            client.vanish()
        time.sleep(0.1)  # their ends have been seen
        holder.execute("commit")
        equal(holder.value("select to_regclass('must_not_be')"), None)


def test_in_login(env):
    for data in (b"", b"\0\0", m.startup({"user": "app", "database": "app"})[:20], m.startup({"user": "app", "database": "app"}),
                 m.SSL_REQUEST):
        client = env.target.open()
        client.send(data)
        time.sleep(0.01)
        client.vanish()
    served_within(env)


def test_a_client_that_only_closes_its_writing_side(env):
    """Half-closed: it has said all, and may still read the answer."""
    import socket
    client = env.connect()
    client.send(m.query("select 'last words'"), m.TERMINATE)
    client.sock.shutdown(socket.SHUT_WR)
    equal(client.collect().value, "last words")
    assert client.receive() is None
    served_within(env)


def test_many_deaths_and_no_backend_lost(env):
    with env.pooler_with(pool_size=3) as target:
        def work(number):
            for turn in range(6):
                client = target.connect()
                match (number + turn) % 6:
                    case 0:
                        client.execute("begin; select 1")
                    case 1:
                        client.send(m.query("select pg_sleep(5)"))
                    case 2:
                        client.send(m.query("copy (select repeat('x', 500) from generate_series(1, 20000)) to stdout"))
                    case 3:
                        client.send(m.parse("select 1") + m.bind())
                    case 4:
                        client.send(m.query("select 1")[:7])
                    case 5:
                        equal(client.value("select 6"), "6")
                client.vanish()
        crowd(12, work)
        clients = [env.connect(target) for _ in range(3)]
        for client in clients:
            equal(client.execute("begin; select 1").value, "1")
        for client in clients:
            client.execute("commit")
    if env.direct:
        env.server().execute("select pg_terminate_backend(pid) from pg_stat_activity where query like 'select pg_sleep(5)'")
