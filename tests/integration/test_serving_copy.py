"""COPY in every direction and with every way to fail."""

import time

from harness import messages as m
from harness.suite import equal


def table(env, client, name):
    client.execute(f"drop table if exists {name}; create table {name} (i int, t text)")
    return client


def count(client, name):
    return int(client.value(f"select count(*) from {name}"))


def test_copy_in_by_simple_query(env):
    client = table(env, env.connect(), "copy_in")
    client.send(m.query("copy copy_in from stdin"))
    equal(client.collect(until="GE").kinds, "G")
    client.send(*[m.copy_data(f"{n}\tx\n".encode()) for n in range(1000)], m.COPY_DONE)
    result = client.collect()
    equal((result.tags, result.status), (["COPY 1000"], "I"))
    equal(count(client, "copy_in"), 1000)


def test_copy_in_with_data_in_the_same_write_as_the_query(env):
    client = table(env, env.connect(), "copy_eager")
    client.send(m.query("copy copy_eager from stdin"), m.copy_data(b"1\ta\n"), m.COPY_DONE, m.query("select 7"))
    equal(client.collect().tags, ["COPY 1"])
    equal(client.collect().value, "7")


def test_copy_in_rows_split_over_messages(env):
    client = table(env, env.connect(), "copy_split")
    data = b"".join(f"{n}\trow {n}\n".encode() for n in range(200))
    client.send(m.query("copy copy_split from stdin"))
    client.collect(until="G")
    client.send(*[m.copy_data(data[at : at + 7]) for at in range(0, len(data), 7)], m.copy_data(b""), m.FLUSH, m.COPY_DONE)
    equal(client.collect().tags, ["COPY 200"])


def test_copy_in_by_extended_protocol(env):
    client = table(env, env.connect(), "copy_ext")
    client.send(m.parse("copy copy_ext from stdin"), m.bind(), m.execute(), m.FLUSH)
    equal(client.collect(until="GE").kinds, "12G")
    client.send(m.copy_data(b"1\ta\n"), m.COPY_DONE, m.SYNC)
    equal(client.collect().kinds, "CZ")
    equal(count(client, "copy_ext"), 1)


def test_copy_in_fails_by_the_client(env):
    client = table(env, env.connect(), "copy_fail")
    client.send(m.query("copy copy_fail from stdin"), m.copy_data(b"1\ta\n"), m.copy_fail("changed my mind"))
    result = client.collect()
    equal((result.sqlstate, result.status), ("57014", "I"))
    assert "changed my mind" in result.errors[0]["M"]
    equal(count(client, "copy_fail"), 0)


def test_copy_in_fails_by_the_data_and_the_rest_is_swallowed(env):
    client = table(env, env.connect(), "copy_bad")
    client.send(m.query("copy copy_bad from stdin"), m.copy_data(b"not a number\ta\n"))
    client.send(*[m.copy_data(b"2\tb\n" * 100) for _ in range(200)], m.COPY_DONE, m.query("select 5"))
    result = client.collect()
    equal((result.kinds, result.sqlstate, result.status), ("GEZ", "22P02", "I"))
    equal(client.collect().value, "5")
    equal(count(client, "copy_bad"), 0)


def test_copy_in_fails_by_the_data_and_a_pipeline_follows_at_once(env):
    """Without CopyDone or CopyFail: a server that has refused the data reads on, and so must whatever stands before it."""
    client = table(env, env.connect(), "copy_pipe")
    for late in (b"", b"2\tb\n" * 20000):
        client.send(m.query("copy copy_pipe from stdin"))
        client.receive()
        client.send(m.copy_data(b"not a number\ta\n" * 3), m.copy_data(b"3\tc\n" * 100000))
        time.sleep(0.2)  # the server has seen it; nobody has read its answer
        client.send(m.copy_data(late), m.run("select 5"), m.SYNC, m.run("select 6"), m.SYNC, m.query("select 7"))
        equal(client.collect().sqlstate, "22P02")
        equal([client.collect().value for _ in range(3)], ["5", "6", "7"])
    equal(count(client, "copy_pipe"), 0)


def test_copy_in_by_the_extended_protocol_refused_with_syncs_and_a_pipeline_behind_it(env):
    """A Sync behind the refused data was not read by the copy: it is answered, and so is what follows."""
    client = table(env, env.connect(), "copy_syncs")
    for bad in (b"not a number\ta\n", b"".join(b"%d\tx\n" % n for n in range(20000)) + b"not a number\ta\n"):
        for syncs in (1, 2):
            for pause in (0, 0.2):
                client.send(m.parse("copy copy_syncs from stdin"), m.bind(), m.execute(), m.SYNC)
                client.collect(until="G")
                client.send(m.copy_data(bad), m.SYNC * syncs)
                time.sleep(pause)
                client.send(m.run("select 5"), m.SYNC, m.query("select 6"))
                equal(client.collect().sqlstate, "22P02")
                for _ in range(syncs - 1):
                    equal(client.collect().kinds, "Z")
                equal([client.collect().value for _ in range(2)], ["5", "6"])
    equal(count(client, "copy_syncs"), 0)


def test_copy_in_by_the_extended_protocol_refused_before_it_reads(env):
    """By a trigger for the statement: no Sync has been read by the copy."""
    client = table(env, env.connect(), "copy_trigger")
    client.execute("create or replace function pg_temp.no() returns trigger language plpgsql as $$ begin raise 'no copy'; end $$")
    client.execute("create trigger no before insert on copy_trigger execute function pg_temp.no()")
    copy = m.parse("copy copy_trigger from stdin") + m.bind() + m.execute() + m.SYNC
    result = client.exchange(copy)
    equal((result.kinds, result.sqlstate), ("12GEZ", "P0001"))
    result = client.exchange(copy, m.run("select 5"), m.SYNC)
    equal(result.kinds, "12GEZ12TDCZ")
    equal(client.value("select 6"), "6")


def test_copy_in_interrupted_by_another_message(env):
    """A Query inside COPY is a protocol violation of the COPY; PostgreSQL fails the COPY and reads on."""
    client = table(env, env.connect(), "copy_mixed")
    client.send(m.query("copy copy_mixed from stdin"))
    client.collect(until="G")
    client.send(m.query("select 1"))
    result = client.collect()
    assert result.sqlstate in ("08P01", "57014"), result.errors
    if not result.closed and client.status == "I":
        equal(client.value("select 2"), "2")


def test_copy_out_simple_and_extended(env):
    client = env.connect()
    result = client.execute("copy (select n, repeat('x', 100) from generate_series(1, 1000) n) to stdout")
    equal(result.kinds, "H" + "d" * 1000 + "cCZ")
    equal(result.tags, ["COPY 1000"])
    result = client.exchange(m.parse("copy (values (1), (2)) to stdout"), m.bind(), m.execute(), m.SYNC)
    equal(result.kinds, "12HddcCZ")


def test_copy_out_that_fails_half_way(env):
    client = env.connect()
    result = client.attempt("copy (select 1 / (50000 - n) from generate_series(1, 100000) n) to stdout")
    equal((result.sqlstate, result.status), ("22012", "I"))
    equal(result.kinds[-2:], "EZ")
    equal(client.value("select 1"), "1")


def test_copy_inside_a_transaction(env):
    client = table(env, env.connect(), "copy_tx")
    client.execute("begin")
    client.send(m.query("copy copy_tx from stdin"), m.copy_data(b"1\ta\n"), m.COPY_DONE)
    equal(client.collect().status, "T")
    client.execute("rollback")
    equal(count(client, "copy_tx"), 0)
    client.execute("begin")
    client.send(m.query("copy copy_tx from stdin"), m.copy_fail("no"))
    equal(client.collect().status, "E")
    client.execute("rollback")


def test_copy_between_other_statements_of_one_query(env):
    client = table(env, env.connect(), "copy_multi")
    client.send(m.query("select 1; copy copy_multi from stdin; select 2; copy copy_multi to stdout"), m.copy_data(b"1\ta\n"), m.COPY_DONE)
    equal(client.collect().kinds, "TDCGCTDCHdcCZ")


def test_copy_binary(env):
    client = table(env, env.connect(), "copy_bin")
    client.execute("insert into copy_bin values (1, 'one'), (2, null)")
    data = b"".join(client.execute("copy copy_bin to stdout (format binary)").copied)
    assert data.startswith(b"PGCOPY\n\xff\r\n\0")
    client.send(m.query("copy copy_bin from stdin (format binary)"), m.copy_data(data), m.COPY_DONE)
    equal(client.collect().tags, ["COPY 2"])
    equal(client.rows("select i, t from copy_bin order by i, t"), [("1", "one"), ("1", "one"), ("2", None), ("2", None)])


def test_stray_copy_messages_outside_copy_are_ignored(env):
    """What a client still sends of a COPY that has failed: PostgreSQL ignores it at any later time."""
    client = env.connect()
    client.send(m.copy_data(b"1\n"), m.COPY_DONE, m.copy_fail("late"))
    equal(client.value("select 1"), "1")
    client.send(m.copy_data(b"x" * 100000), m.query("select 2"))
    equal(client.collect().value, "2")
