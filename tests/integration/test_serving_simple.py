"""The simple protocol: what PostgreSQL answers is what comes back, message for message."""

import struct

from harness import messages as m
from harness.suite import equal

LO_OPEN, LO_CREATE, LO_CLOSE, LOREAD, LOWRITE = 952, 957, 953, 954, 955
INV_READ_WRITE = 0x20000 | 0x40000


def test_a_query_gives_rows_tag_and_status(env):
    client = env.connect()
    result = client.execute("select 1 as one, null as nothing, 'x' as letter")
    equal(result.kinds, "TDCZ")
    equal(result.columns, ["one", "nothing", "letter"])
    equal(result.rows, [("1", None, "x")])
    equal(result.tags, ["SELECT 1"])
    equal(result.status, "I")


def test_an_empty_query_has_its_own_answer(env):
    client = env.connect()
    for sql in ("", ";", "  -- nothing\n", ";;;"):
        equal(client.execute(sql).kinds, "IZ", repr(sql))


def test_several_statements_in_one_query(env):
    client = env.connect()
    equal(client.execute("select 1; select 2 where false; select 3").kinds, "TDCTCTDCZ")
    result = client.attempt("create table s1 (i int); insert into s1 values (1); select 1/0; insert into s1 values (2)")
    equal(result.sqlstate, "22012")
    equal(result.kinds, "CCEZ")
    equal(client.value("select to_regclass('s1')"), None, "the implicit transaction was rolled back")


def test_transaction_status_follows_begin_error_and_rollback(env):
    client = env.connect()
    equal(client.execute("begin").status, "T")
    equal(client.attempt("select no_such_column").status, "E")
    result = client.attempt("select 1")
    equal((result.sqlstate, result.status), ("25P02", "E"))
    equal(client.execute("rollback").status, "I")
    equal(client.value("select 1"), "1")


def test_commit_of_a_failed_transaction_says_rollback(env):
    client = env.connect()
    client.execute("begin")
    client.attempt("select no_such_column")
    result = client.execute("commit")
    equal((result.tags, result.status), (["ROLLBACK"], "I"))


def test_transactions_chain_and_nest_by_savepoints(env):
    client = env.connect()
    client.execute("create table if not exists chain_test (i int); truncate chain_test")
    client.execute("begin; insert into chain_test values (1); savepoint a; insert into chain_test values (2); rollback to a")
    result = client.execute("commit and chain")
    equal(result.status, "T")
    client.execute("insert into chain_test values (3)")
    equal(client.execute("rollback and chain").status, "T")
    client.execute("insert into chain_test values (4); commit")
    equal(client.rows("select i from chain_test order by i"), [("1",), ("4",)])
    client.execute("drop table chain_test")


def test_an_error_carries_every_field(env):
    client = env.connect()
    client.execute("create table if not exists field_test (i int constraint positive check (i > 0))")
    result = client.attempt("insert into field_test values (-1)")
    error = result.errors[0]
    equal((error["C"], error["S"], error["V"], error["t"], error["n"], error["s"]),
          ("23514", "ERROR", "ERROR", "field_test", "positive", "public"))
    equal(client.attempt("select 1 +").errors[0]["P"], "11", "the position")
    client.execute("drop table field_test")


def test_notices_arrive_before_the_tag(env):
    client = env.connect()
    result = client.execute("do $$ begin raise notice 'look'; raise warning 'out'; end $$")
    equal(m.kinds(result.messages, keep="N"), "NNCZ")
    equal([notice["M"] for notice in result.notices], ["look", "out"])


def test_every_message_of_login_is_there(env):
    client = env.connect()
    for name in ("server_version", "server_encoding", "client_encoding", "application_name", "DateStyle", "IntervalStyle",
                 "TimeZone", "integer_datetimes", "standard_conforming_strings", "is_superuser", "session_authorization"):
        assert name in client.parameters, f"{name} was not reported at login"
    equal(client.parameters["session_authorization"], "app")
    equal(client.parameters["is_superuser"], "off")
    assert client.pid > 0 and len(client.key) == 4, "no BackendKeyData"


def test_application_name_of_the_startup_packet_is_reported_and_applied(env):
    client = env.connect(application_name="the startup's name")
    equal(client.parameters["application_name"], "the startup's name")
    equal(client.value("show application_name"), "the startup's name")


def test_trap_07_function_call_passes_in_and_out_of_transactions(env):
    """trap 7: FunctionCall must pass."""
    client = env.connect()
    oid = int(client.value("select 'int4pl(int4,int4)'::regprocedure::oid"))
    result = client.exchange(m.function_call(oid, [struct.pack("!i", 40), struct.pack("!i", 2)]))
    equal(result.kinds, "VZ")
    equal(struct.unpack("!ii", result.messages[0].body), (4, 42))
    client.execute("begin")
    equal(client.exchange(m.function_call(oid, [struct.pack("!i", 2 ** 31 - 1), struct.pack("!i", 1)])).sqlstate, "22003")
    equal(client.execute("rollback").status, "I")
    equal(client.exchange(m.function_call(0x7fffffff, [])).sqlstate, "42883")


def test_large_objects_through_the_fast_path(env):
    """As libpq's lo_* functions do it: function calls in a transaction; descriptors end with it."""
    client = env.connect()

    def call(oid, *arguments):
        result = client.exchange(m.function_call(oid, list(arguments)))
        equal(result.kinds, "VZ")
        return result.messages[0].body[4:]

    client.execute("begin")
    loid = call(LO_CREATE, struct.pack("!i", INV_READ_WRITE))
    descriptor = call(LO_OPEN, loid, struct.pack("!i", INV_READ_WRITE))
    data = bytes(range(256)) * 256
    equal(struct.unpack("!i", call(LOWRITE, descriptor, data)), (len(data),))
    call(LO_CLOSE, descriptor)
    client.execute("commit")
    client.execute("begin")
    descriptor = call(LO_OPEN, loid, struct.pack("!i", INV_READ_WRITE))
    equal(call(LOREAD, descriptor, struct.pack("!i", len(data) + 1)), data)
    client.execute("commit")
    equal(client.exchange(m.function_call(LOREAD, [descriptor, struct.pack("!i", 1)])).sqlstate, "42704",
          "descriptor outlived its transaction")
    client.execute(f"select lo_unlink({struct.unpack('!I', loid)[0]})")


def test_two_phase_commit_is_finished_by_another_client(env):
    first, second = env.connect(), env.connect()
    first.execute("create table if not exists two_phase (i int)")
    first.execute("begin; insert into two_phase values (1); prepare transaction 'half'")
    equal(first.status, "I")
    equal(second.value("select count(*) from two_phase"), "0")
    second.execute("commit prepared 'half'")
    equal(first.value("select count(*) from two_phase"), "1")
    first.execute("drop table two_phase")


def test_procedures_that_commit_keep_their_backend(env):
    client = env.connect()
    client.execute("create table if not exists proc_test (i int); truncate proc_test")
    client.execute("create or replace procedure steps() language plpgsql as "
                   "$$ begin for i in 1..5 loop insert into proc_test values (i); commit; end loop; end $$")
    equal(client.execute("call steps()").status, "I")
    equal(client.value("select count(*) from proc_test"), "5")
    client.execute("drop procedure steps; drop table proc_test")


def test_client_encoding_changes_what_bytes_mean(env):
    client = env.connect()
    equal(client.exchange(m.query("set client_encoding to latin1")).sqlstate, None)
    equal(client.parameters["client_encoding"], "LATIN1")
    equal(client.exchange(m.query("select 'é'".encode("latin1"))).messages[1].body[6:], b"\xe9")
    other = env.connect()
    equal(other.value("select 'é'"), "é")


def test_many_small_queries_on_many_clients(env):
    """40 clients, 5 backends, one thread: each gets its own answers in its own order."""
    clients = [env.connect() for _ in range(40)]
    for turn in range(25):
        for number, client in enumerate(clients):
            client.send(m.query(f"select {number}, {turn}"))
        for number, client in enumerate(clients):
            equal(client.collect().rows, [(str(number), str(turn))])
