"""Large and finely split messages; every kind of address."""

import hashlib
import threading
import time

from harness import messages as m
from harness.suite import equal, limit

SAME_FOR_ALL_SERVERS = True

MIB = 1 << 20


def test_a_result_of_100_mb_in_small_rows(env):
    client = env.connect()
    client.send(m.query("select repeat('x', 91) from generate_series(1, 1000000)"))
    rows = total = 0
    while (message := client.receive()).kind != "Z":
        if message.kind == "D":
            rows += 1
            total += len(message.body)
    equal((rows, total), (1000000, 1000000 * 97))


def test_a_result_of_one_100_mb_value(env):
    client = env.connect()
    value = client.value(f"select repeat('0123456789abcdef', {100 * MIB // 16})")
    equal(len(value), 100 * MIB)
    equal(hashlib.md5(value.encode()).hexdigest(), hashlib.md5(b"0123456789abcdef" * (100 * MIB // 16)).hexdigest())


def test_a_parameter_of_16_mib(env):
    client = env.connect()
    value = "parameter " * (16 * MIB // 10)
    equal(client.extended("select md5($1), length($1)", [value], types=[25]).rows,
          [(hashlib.md5(value.encode()).hexdigest(), str(len(value)))])


def test_a_statement_text_of_8_mib(env):
    client = env.connect()
    text = "y" * (8 * MIB)
    equal(client.value(f"select length('{text}')"), str(8 * MIB))
    result = client.exchange(m.run(f"select length('{text}')", name="long"), m.SYNC)
    equal(result.value, str(8 * MIB))
    equal(client.exchange(m.bind("long"), m.execute(), m.SYNC).value, str(8 * MIB))


def test_an_error_while_megabytes_of_a_pipeline_are_on_their_way(env):
    """A Sync of Hawser's own, which ends the failed pipeline, once went into the middle of a Bind."""
    watcher = env.connect()
    for number, (size, cancelled) in enumerate([(40_000, False), (200_000, False), (200_000, True)]):
        watcher.execute("drop table if exists big_binds; create table big_binds (t text, i int primary key)")
        with env.connect() as client:
            client.send(m.parse("insert into big_binds values (pg_sleep(0.1) || $1, $2)", "", [25, 23]))
            # The third row violates the primary key.
            rows = [1, 2, 3, *range(4, 130)] if cancelled else [1, 2, 2, *range(4, 130)]
            pipeline = b"".join(m.bind(values=["x" * size, str(row)]) + m.execute() for row in rows) + m.SYNC
            sender = threading.Thread(target=client.send, args=[pipeline], daemon=True)
            sender.start()
            if cancelled:
                time.sleep(0.15)  # the server is at work
                client.cancel(env.target)
            result = client.collect()
            equal((result.sqlstate, result.status, result.closed), ("57014" if cancelled else "23505", "I", False), (number, size))
            sender.join()
            equal(client.value("select count(*) from big_binds"), "0")
    watcher.execute("drop table big_binds")


def test_copy_in_of_64_mib(env):
    client = env.connect()
    client.execute("drop table if exists copy_big; create unlogged table copy_big (t text)")
    line = b"z" * 1023 + b"\n"
    client.send(m.query("copy copy_big from stdin"))
    client.collect(until="G")
    for _ in range(64):
        client.send(m.copy_data(line * 1024))
    client.send(m.COPY_DONE)
    equal(client.collect().tags, ["COPY 65536"])
    equal(sum(map(len, client.execute("copy copy_big to stdout").copied)), 64 * MIB)
    client.execute("drop table copy_big")


CONVERSATION = (m.parse("select $1::text", "s", [25]) + m.bind("s", values=["split"]) + m.describe_portal() + m.execute() + m.SYNC
                + m.query("select 1; select 'two'") + m.run("select 3") + m.FLUSH + m.run("select 1/0") + m.SYNC
                + m.close_statement("s") + m.SYNC)
ANSWER = "12TDCZTDCTDCZ12TDC1EZ3Z"  # the division fails when Bind plans it


@limit(60)
def test_messages_split_at_every_byte(env):
    """One cut, at each place of the conversation."""
    client = env.connect()
    for cut in range(1, len(CONVERSATION)):
        client.send_split(CONVERSATION[:cut], cut)
        client.send(CONVERSATION[cut:])
        equal(client.collect(4).kinds, ANSWER, f"cut at {cut}")


def test_messages_sent_byte_by_byte(env):
    client = env.connect()
    for size in (1, 2, 3, 5):
        client.send_split(CONVERSATION, size)
        equal(client.collect(4).kinds, ANSWER, f"packets of {size} bytes")


def test_login_byte_by_byte(env):
    client = env.raw()
    client.send_split(m.startup({"user": "app_md5", "database": "app"}))
    client.login(env.target.secrets["app_md5"], "app_md5")
    equal(client.value("select 1"), "1")


def test_unix_socket(env):
    client = env.connect(host=env.target.socket_dir)
    equal(client.value("select 'over the socket'"), "over the socket")


def test_ipv6(env):
    client = env.connect(host="::1")
    equal(client.value("select 6"), "6")


def test_several_databases(env):
    equal(env.connect(database="app").value("select current_database()"), "app")
    equal(env.connect(database="other").value("select current_database()"), "other")


def test_database_defaults_to_the_users_name(env):
    client = env.raw()
    client.send(m.startup({"user": "app"}))
    client.login(env.target.secrets["app"], "app")
    equal(client.value("select current_database()"), "app")


def test_several_users_are_who_they_are(env):
    for user in ("app", "app2", "app3"):
        equal(env.connect(user=user).rows("select current_user, session_user"), [(user, user)])


def test_wide_rows(env):
    client = env.connect()
    columns = ", ".join(f"{n} as c{n}" for n in range(1600))
    result = client.execute(f"select {columns}")
    equal(result.rows[0], tuple(str(n) for n in range(1600)))
