"""What holds the process's memory, that it is bounded, and that it goes back to the system."""

import socket
import time

from harness import messages as m
from harness.suite import equal, limit, pooler_only, until

SAME_FOR_ALL_SERVERS = True
TAKES_SECONDS = 70

MB = 1 << 20
TEXT_BYTES = 4000


def settled(pooler):
    """What the process has, once what it does at its start is over."""
    with pooler.target.connect() as client:
        client.execute("select 1")
    return pooler.rss_bytes()


def prepare(target, first, count, each=250):
    """Different texts, each prepared under a name; the names are given up now and then."""
    with target.connect() as client:
        for number in range(first, first + count):
            text = f"select {number} /*{'x' * TEXT_BYTES}*/"
            client.send(m.parse(text, f"s{number}"), m.SYNC)
            assert client.collect().sqlstate is None
            if number % each == each - 1:
                client.execute("deallocate all")


def statements_bytes(pooler):
    line = [line for line in pooler.http("/metrics")[1].splitlines() if line.startswith("hawser_prepared_statements_memory_bytes ")]
    return float(line[0].split()[1])


@pooler_only
@limit(150)
def test_texts_that_were_sent_once_take_no_more_than_the_setting_and_go_with_time(env):
    with env.pooler_with(prepared_statements_memory="16MiB", max_prepared_statements=20, pool_size=2) as target:
        before = settled(target.pooler)
        prepare(target, 0, 10_000)
        grown = target.pooler.rss_bytes() - before
        assert grown < 24 * MB, f"{grown / MB:.0f} MB for 40 MB of texts, of which 16 MB may be kept"
        assert 8 * MB < statements_bytes(target.pooler) <= 16.1 * MB
        until(lambda: statements_bytes(target.pooler) < 1 * MB, "nobody asks for them", seconds=60)
        until(lambda: target.pooler.rss_bytes() - before < 10 * MB, "and the system has the memory", seconds=40)


@pooler_only
@limit(120)
def test_memory_of_logins_that_waited_goes_back(env):
    with env.pooler_with() as target:
        before = settled(target.pooler)
        waiting = []
        try:
            for _ in range(3000):
                one = socket.create_connection((target.host, target.port))
                one.sendall(m.startup({"user": "app", "database": "app"}))
                waiting.append(one)
            until(lambda: target.pooler.rss_bytes() - before > 10 * MB, "they all wait for a proof", seconds=10)
        finally:
            for one in waiting:
                one.close()
        until(lambda: target.pooler.rss_bytes() - before < 6 * MB, "the system has it again", seconds=60)


@pooler_only
@limit(120)
def test_memory_of_sessions_that_have_left_goes_back(env):
    """What sessions hold at one time (names, settings, statements of their own, half-sent messages)."""
    with env.pooler_with(pool_size=4) as target:
        before = settled(target.pooler)
        for round_number in range(3):
            clients = [target.connect() for _ in range(60)]
            for number, client in enumerate(clients):
                for name in range(40):
                    equal(client.exchange(m.parse(f"select {round_number}, {number}, {name}, '{'v' * 2000}'", f"n{name}"), m.SYNC).sqlstate,
                          None)
                client.execute(f"set app.s{number} to '{'s' * 3000}'")
            for client in clients:
                client.send(m.query("select '" + "y" * 30_000 + "'")[:20_000])
            for client in clients:
                client.sock.close()
        time.sleep(1)  # the closed connections are noticed
        until(lambda: target.pooler.rss_bytes() - before < 7 * MB, "the system has it again", seconds=90)
