"""Clients that do not read: bounded memory, and a pool that goes on without them."""

import time

from harness import messages as m
from harness.suite import equal, limit, pooler_only

SAME_FOR_ALL_SERVERS = True

ALONE = "processes"

BIG = "select repeat('x', 8000) from generate_series(1, 20000)"  # 160 MB
MIB = 1 << 20


def read_to_the_end(client, pause=0.0):
    rows = 0
    while (message := client.receive()) is not None and message.kind != "Z":
        rows += message.kind == "D"
        if pause and rows % 500 == 0:
            time.sleep(pause)
    return rows, message


@pooler_only
@limit(60)
def test_a_client_that_reads_nothing_costs_bounded_memory(env):
    with env.pooler_with(pool_size=8) as target:
        env.connect(target).value("select 1")
        before = target.pooler.rss_bytes()
        slow = [env.connect(target) for _ in range(8)]
        for client in slow:
            client.send(m.query(BIG))
        time.sleep(2)  # what fits is taken from the server
        grown = (target.pooler.rss_bytes() - before) / MIB
        assert grown < 16, f"8 clients that read nothing of 160 MB each cost {grown:.1f} MiB"
        equal(read_to_the_end(slow[0])[0], 20000)


@pooler_only
@limit(60)
def test_a_client_that_sends_and_never_reads_costs_bounded_memory(env):
    """A pipeline without end: back-pressure has to reach the client's writes."""
    with env.pooler_with(pool_size=2) as target:
        env.connect(target).value("select 1")
        before = target.pooler.rss_bytes()
        client = env.connect(target, timeout=2)
        burst = (m.run("select repeat('x', 2000)") + m.SYNC) * 200
        sent = 0
        try:
            while sent < 256 * MIB:
                client.send(burst)
                sent += len(burst)
        except OSError:
            pass
        grown = (target.pooler.rss_bytes() - before) / MIB
        assert sent < 256 * MIB, "nothing held the client back"
        assert grown < 16, f"{grown:.1f} MiB"
        equal(env.connect(target).value("select 1"), "1")


@pooler_only
@limit(60)
def test_trap_24_clients_that_read_nothing_do_not_starve_the_others(env):
    """trap 24: ten clients that read nothing starved all others of the pool in every pooler tried."""
    with env.pooler_with(pool_size=3, client_write_timeout="1s", query_wait_timeout="10s") as target:
        slow = [env.connect(target) for _ in range(10)]
        for client in slow:
            client.send(m.query(BIG))
        time.sleep(0.3)  # the server connections are theirs
        started = time.monotonic()
        equal(env.connect(target).value("select 'served'"), "served")
        assert time.monotonic() - started < 8
        # Who was cut off finds the connection closed; who was not gets all of it.
        cut = sum(1 for client in slow if read_to_the_end(client)[1] is None)
        assert cut >= 1


@pooler_only
@limit(60)
def test_a_client_that_reads_nothing_is_left_alone_while_nobody_waits(env):
    with env.pooler_with(pool_size=2, client_write_timeout="1s") as target:
        slow = env.connect(target)
        slow.send(m.query(BIG))
        time.sleep(3)  # longer than client_write_timeout
        equal(env.connect(target).value("select 'not waiting'"), "not waiting")
        rows, end = read_to_the_end(slow)
        equal((rows, end and end.kind), (20000, "Z"))


@pooler_only
@limit(60)
def test_a_client_that_reads_slowly_is_never_cut_off(env):
    with env.pooler_with(pool_size=1, client_write_timeout="1s", query_wait_timeout="30s") as target:
        slow, waiting = env.connect(target), env.connect(target)
        slow.send(m.query(BIG))
        waiting.send(m.query("select 'in the end'"))
        rows, end = read_to_the_end(slow, pause=0.1)
        equal((rows, end and end.kind), (20000, "Z"))
        equal(waiting.collect().value, "in the end")


@pooler_only
@limit(60)
def test_session_mode_never_cuts_off(env):
    with env.pooler_with(pool_mode="session", pool_size=1, client_write_timeout="1s", query_wait_timeout="30s") as target:
        slow = env.connect(target)
        slow.send(m.query(BIG))
        waiting = target.open()
        env.open.append(waiting)
        waiting.send(m.startup({"user": "app_trust", "database": "app"}))
        time.sleep(3)  # longer than client_write_timeout
        rows, end = read_to_the_end(slow)
        equal((rows, end and end.kind), (20000, "Z"))


def test_a_slow_reader_gets_every_byte_in_order(env):
    client = env.connect()
    client.send(m.query("select n || repeat('x', 1000) from generate_series(1, 30000) n"))
    time.sleep(0.5)  # the answer waits in buffers
    for expected in range(-1, 30000):
        message = client.receive()
        if expected >= 0:
            value = message.values()[0]
            assert value == f"{expected + 1}" + "x" * 1000, f"row {expected + 1}: {value[:20]}"


@pooler_only
@limit(60)
def test_a_large_upload_against_a_slow_server_costs_bounded_memory(env):
    """COPY into a table that somebody has locked: nothing is read by the server, and the client is held back."""
    server = env.server()
    server.execute("drop table if exists held; create table held (t text); grant all on held to app")
    server.execute("create or replace function slow() returns trigger language plpgsql as $$ begin perform pg_sleep(0.5); return "
                   "null; end $$")
    server.execute("create trigger slow before insert on held for each row execute function slow()")
    with env.pooler_with(pool_size=2) as target:
        env.connect(target).value("select 1")
        before = target.pooler.rss_bytes()
        client = env.connect(target, timeout=2)
        client.send(m.query("copy held from stdin"))
        client.collect(until="G")
        sent, chunk = 0, m.copy_data((b"y" * 1023 + b"\n") * 1024)
        try:
            while sent < 256 * MIB:
                client.send(chunk)
                sent += len(chunk)
        except OSError:
            pass
        grown = (target.pooler.rss_bytes() - before) / MIB
        assert sent < 256 * MIB, "nothing held the client back"
        assert grown < 16, f"{grown:.1f} MiB"
        client.vanish()
        env.cluster.wait_for_backends("state = 'active' and query like 'copy held%'")
    server.execute("drop table held; drop function slow")
