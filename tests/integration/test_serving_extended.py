"""The extended protocol: pipelines, portals, Flush, errors in mid-pipeline."""

from harness import messages as m
from harness.suite import crowd, equal

INT4, TEXT = 23, 25


def test_each_message_has_its_answer(env):
    client = env.connect()
    result = client.exchange(m.parse("select $1::int + 1 as next", "s"), m.describe_statement("s"),
                             m.bind("s", values=["41"]), m.describe_portal(), m.execute(), m.close_statement("s"), m.SYNC)
    equal(result.kinds, "1tT2TDC3Z")
    equal(result.value, "42")


def test_binary_parameters_and_results(env):
    client = env.connect()
    result = client.exchange(m.parse("select $1 + 1", types=[INT4]), m.bind(values=[b"\0\0\0\x29"], formats=[1], results=[1]),
                             m.execute(), m.SYNC)
    equal(result.messages[-3].body[6:], b"\0\0\0\x2a")


def test_nulls_and_many_parameters(env):
    client = env.connect()
    count = 1000
    sql = "select " + ", ".join(f"${n}::text" for n in range(1, count + 1))
    values = [None if n % 7 == 0 else f"v{n}" for n in range(count)]
    equal(client.extended(sql, values).rows, [tuple(values)])


def test_65535_parameters(env):
    client = env.connect()
    count = 65535
    sql = "select array_length(array[" + ",".join(f"${n}" for n in range(1, count + 1)) + "]::int[], 1)"
    body = m.text("") + m.text("") + b"\0\0" + b"\xff\xff" + b"\0\0\0\x011" * count + b"\0\0"
    result = client.exchange(m.parse(sql), m.message("B", body), m.execute(), m.SYNC)
    equal(result.sqlstate, None)
    equal(result.value, str(count))


def test_a_pipeline_of_many_syncs_in_one_write(env):
    """Every Sync ends a transaction of its own and has a ReadyForQuery of its own."""
    client = env.connect()
    result = client.exchange(*[m.run("select $1::int", [n]) + m.SYNC for n in range(500)])
    equal(result.kinds, "12TDCZ" * 500)
    equal([int(row[0]) for row in result.rows], list(range(500)))


def test_simple_queries_may_be_pipelined_too(env):
    client = env.connect()
    result = client.exchange(*[m.query(f"select {n}") for n in range(100)])
    equal([row[0] for row in result.rows], [str(n) for n in range(100)])


def test_an_error_skips_to_the_next_sync_only(env):
    client = env.connect()
    result = client.exchange(m.run("select 1"), m.SYNC, m.run("select 1/0"), m.run("select 2"), m.SYNC, m.run("select 3"), m.SYNC)
    equal(result.kinds, "12TDCZ" + "1EZ" + "12TDCZ")
    equal([row[0] for row in result.rows], ["1", "3"])


def test_an_error_in_a_transaction_lasts_until_rollback(env):
    client = env.connect()
    result = client.exchange(m.run("begin"), m.SYNC, m.run("select 1/0"), m.SYNC, m.run("select 2"), m.SYNC, m.run("rollback"), m.SYNC,
                             m.run("select 3"), m.SYNC)
    equal([e["C"] for e in result.errors], ["22012", "25P02"])
    equal([message.body for message in result.messages if message.kind == "Z"], [b"T", b"E", b"E", b"I", b"I"])
    equal(result.rows, [("3",)])


def test_messages_after_an_error_are_skipped_whatever_they_are(env):
    """A Parse, a Describe, a Close after the error are not done: the statement does not exist afterwards."""
    client = env.connect()
    result = client.exchange(m.parse("select wrong from", "bad"), m.parse("select 1", "good"), m.describe_statement("good"),
                             m.close_statement("other"), m.SYNC)
    equal(result.kinds, "EZ")
    equal(client.exchange(m.bind("good"), m.SYNC).sqlstate, "26000")


def test_a_pipeline_without_sync_is_one_transaction(env):
    client = env.connect()
    client.execute("create table if not exists implicit (i int); truncate implicit")
    result = client.exchange(m.run("insert into implicit values (1)"), m.run("insert into implicit values (2)"), m.run("select 1/0"),
                             m.SYNC)
    equal(result.sqlstate, "22012")
    equal(client.value("select count(*) from implicit"), "0")
    client.execute("drop table implicit")


def test_flush_brings_answers_without_ending_the_transaction(env):
    client = env.connect()
    client.execute("create table if not exists flushed (i int); truncate flushed")
    client.send(m.run("insert into flushed values (1) returning i"), m.FLUSH)
    equal(client.collect(until="C").kinds, "12TDC")
    other = env.connect()
    equal(other.value("select count(*) from flushed"), "0", "committed by a Flush")
    equal(client.exchange(m.run("select count(*) from flushed"), m.SYNC).value, "1")
    equal(other.value("select count(*) from flushed"), "1")
    client.execute("drop table flushed")


def test_flush_alone_is_answered_by_nothing(env):
    client = env.connect()
    client.send(m.FLUSH, m.FLUSH)
    assert not client.pending(0.2), "an answer to a Flush"
    equal(client.value("select 1"), "1")


def test_sync_alone_is_answered_by_ready(env):
    client = env.connect()
    equal(client.exchange(m.SYNC, m.SYNC, m.SYNC).kinds, "ZZZ")


def test_a_portal_with_a_row_limit_is_suspended_and_resumed(env):
    client = env.connect()
    client.execute("begin")
    result = client.exchange(m.parse("select generate_series(1, 10)"), m.bind(portal="p"), m.execute("p", 3), m.SYNC)
    equal(result.kinds, "12DDDsZ")
    equal(client.exchange(m.execute("p", 3), m.execute("p", 3), m.SYNC).kinds, "DDDsDDDsZ")
    result = client.exchange(m.execute("p", 3), m.close_portal("p"), m.SYNC)
    equal((result.kinds, result.tags), ("DC3Z", ["SELECT 1"]))
    client.execute("commit")


def test_a_suspended_portal_ends_with_sync_outside_a_transaction(env):
    client = env.connect()
    result = client.exchange(m.parse("select generate_series(1, 10)"), m.bind(), m.execute("", 3), m.SYNC)
    equal(result.kinds, "12DDDsZ")
    equal(client.exchange(m.execute("", 3), m.SYNC).sqlstate, "34000")


def test_named_statements_survive_transactions(env):
    client = env.connect()
    client.exchange(m.parse("select $1::int * 2", "double"), m.SYNC)
    for n in range(20):
        equal(client.exchange(m.bind("double", values=[n]), m.execute(), m.SYNC).value, str(n * 2))


def test_the_unnamed_statement_survives_until_the_next_parse_or_query(env):
    client = env.connect()
    client.exchange(m.parse("select $1::int * 3"), m.SYNC)
    equal(client.exchange(m.bind(values=[5]), m.execute(), m.SYNC).value, "15")
    equal(client.exchange(m.bind(values=[6]), m.execute(), m.SYNC).value, "18")
    client.execute("select 1")
    equal(client.exchange(m.bind(values=[7]), m.execute(), m.SYNC).sqlstate, "26000")


def test_parse_of_a_name_in_use_fails(env):
    client = env.connect()
    equal(client.exchange(m.parse("select 1", "twice"), m.SYNC).kinds, "1Z")
    equal(client.exchange(m.parse("select 2", "twice"), m.SYNC).sqlstate, "42P05")
    equal(client.exchange(m.bind("twice"), m.execute(), m.SYNC).value, "1")


def test_trap_07_begin_in_the_extended_protocol_is_sent_at_once(env):
    """trap 7: a BEGIN that is delayed or made up breaks drivers in the extended protocol."""
    client = env.connect()
    equal(client.exchange(m.run("begin"), m.SYNC).status, "T")
    first = client.value("select now()")
    equal(client.exchange(m.parse("select now()"), m.bind(), m.execute(), m.SYNC).value, first)
    equal(client.exchange(m.run("commit"), m.SYNC).status, "I")


def test_execute_of_an_empty_statement(env):
    client = env.connect()
    equal(client.exchange(m.parse(""), m.bind(), m.describe_portal(), m.execute(), m.SYNC).kinds, "12nIZ")


def test_simple_query_between_extended_messages(env):
    """A Query in an unfinished pipeline: PostgreSQL answers it in its place, and it ends the transaction."""
    client = env.connect()
    result = client.exchange(m.parse("select 1", "before"), m.bind("before"), m.execute(), m.query("select 2"), m.SYNC)
    equal(result.kinds, "12DCTDCZZ")
    if env.direct and env.cluster.version >= 18:
        # Its next statement fails: "StartTransactionCommand: unexpected state STARTED". The pooler closes such a connection.
        equal(client.attempt("select 3").sqlstate, "XX000")
    equal((client.value("select 4"), env.connect().value("select 5")), ("4", "5"))


def test_many_clients_with_pipelines(env):
    def work(number):
        with env.target.connect() as client:
            for _ in range(10):
                chunks = [m.run("select $1::int, $2::int", [number, step]) + (m.SYNC if step % 3 == 2 else b"") for step in range(30)]
                result = client.exchange(*chunks)
                equal(result.rows, [(str(number), str(step)) for step in range(30)])
    crowd(16, work)


def test_trap_01_no_sync_is_injected_into_a_pipeline(env):
    """trap 1: a Sync injected before a pipelined Parse commits the client's implicit transaction.

    The text of the Parse is known to the backend, or new, or its statement has to be prepared again; in each case the
    error at the end takes the INSERT at the beginning with it."""
    with env.pooler_with(pool_size=1) as target:
        other, client = env.connect(target), env.connect(target)
        client.execute("drop table if exists injected; create table injected (i int)")
        other.exchange(m.parse("select 'known'", "k"), m.SYNC)
        client.exchange(m.parse("select 'mine'", "mine"), m.SYNC)
        other.execute("deallocate all")
        for name, middle in {"a known text": m.parse("select 'known'", "a"), "a new text": m.parse("select 'new'", "b"),
                             "unnamed": m.parse("select 'known'"),
                             "prepared before": m.bind("mine") + m.execute(), "a Close": m.close_statement("a"),
                             "DEALLOCATE": m.run("deallocate all")}.items():
            result = client.exchange(m.run("insert into injected values (1)"), middle, m.run("select 1/0"), m.SYNC)
            equal(result.sqlstate, "22012", name)
            equal(client.value("select count(*) from injected"), "0", name)
        client.execute("drop table injected")


def test_trap_02_the_server_is_kept_until_the_last_sync_is_answered(env):
    """trap 2: releasing the server before the last Sync is answered; errors and ReadyForQuery racing.

    Answers are read late, so that the pooler sees several ReadyForQuery at once with more Syncs on their way."""
    with env.pooler_with(pool_size=2) as target:
        def work(number):
            with target.connect() as client:
                for turn in range(25):
                    pipeline = []
                    for step in range(8):
                        pipeline += [m.run("begin"), m.SYNC, m.run("select $1::int", [number * 100 + step]), m.SYNC]
                        if step % 3 == 0:
                            pipeline += [m.run("select 1/0"), m.SYNC, m.run("select 'skipped'"), m.SYNC]
                        pipeline += [m.run("rollback"), m.SYNC]
                    data = b"".join(pipeline)
                    cut = (turn * 37) % len(data)
                    client.send(data[:cut])
                    client.send(data[cut:])
                    result = client.collect(sum(1 for part in pipeline if part == m.SYNC))
                    equal([row[0] for row in result.rows], [str(number * 100 + step) for step in range(8)])
                    equal([error["C"] for error in result.errors], ["22012", "25P02"] * 3)
                    equal(result.status, "I")
        crowd(6, work)


def test_trap_03_an_open_portal_keeps_its_server_over_flush(env):
    """trap 3: Flush is not Sync. Rows of a portal come in portions, each asked for with a Flush, while other clients want
    the backend."""
    with env.pooler_with(pool_size=2) as target:
        client, others = env.connect(target), [env.connect(target) for _ in range(3)]
        client.send(m.parse("select generate_series(1, 10)"), m.bind(portal="p"), m.execute("p", 4), m.FLUSH)
        rows = client.collect(until="sE").rows
        for _ in range(2):
            for other in others:
                other.value("select 1")
            client.send(m.execute("p", 4), m.FLUSH)
            rows += client.collect(until="sCE").rows
        equal([int(row[0]) for row in rows], list(range(1, 11)))
        equal(client.exchange(m.SYNC).kinds, "Z")


def test_trap_14_a_long_parse_that_is_ignored_leaves_no_other_clients_statement(env):
    with env.pooler_with(pool_size=1) as target:
        for length in (20_000, 70_000, 200_000):
            for own in (False, True):
                stranger, client = env.connect(target), env.connect(target)
                if own:
                    client.extended("select 'own'")
                stranger.extended("select 'another''s'")
                client.send(m.bind("none"), m.parse(f"select '{'x' * length}'"), m.SYNC)
                equal(client.collect().sqlstate, "26000")
                result = client.exchange(m.bind(), m.execute(), m.SYNC)
                equal((result.sqlstate, result.rows), (None, [("own",)]) if own else ("26000", []), f"{length}, {own}")


def test_a_pipeline_of_twelve_thousand_statements_with_one_sync_is_answered(env):
    """From 8,192 on it waited for ever: for answers that the server keeps back until a Sync."""
    client = env.connect()
    client.send(*(m.parse("select 1", f"of_many_{number}") for number in range(12_000)), m.SYNC)
    result = client.collect()
    equal((result.kinds, result.errors), ("1" * 12_000 + "Z", []))
