"""Malformed, oversized and out-of-order messages at each stage: PostgreSQL's own SQLSTATE, and nobody else is touched."""

import base64
import contextlib
import random
import struct
import time

from harness import messages as m
from harness import scram
from harness.suite import Background, crowd, equal, limit, pooler_only

SAME_FOR_ALL_SERVERS = True

PROTOCOL_VIOLATION = "08P01"


def bystander(env):
    """Another client at work, whose transaction must survive."""
    client = env.connect()
    client.execute("begin; create temp table if not exists b (i int) on commit drop; insert into b values (1)")

    def untouched():
        equal(client.value("select count(*) from b"), "1", "the bystander's transaction")
        equal(client.execute("rollback").status, "I")
    return untouched


def ends(client, *allowed):
    """The connection ends with an error among the allowed SQLSTATEs (None: may close without a word)."""
    seen = None
    while client.pending(5):
        message = client.receive()
        if message is None:
            assert seen in allowed, f"closed after {seen}"
            return seen
        if message.kind == "E":
            seen = message.sqlstate()
            assert seen in allowed, message.fields()
    raise AssertionError(f"still open after 5 s, having said {seen}")


# Before login

def test_garbage_instead_of_a_startup_packet(env):
    untouched = bystander(env)
    for data in (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", b"\x00\x00\x00\x00", b"\x00\x00\x00\x04", b"\x00\x00\x00\x07abc",
                 b"\xff\xff\xff\xff",
                 b"\x7f\xff\xff\xff" + b"x" * 100, b"\x00\x00\x00\x08\x00\x03\x00", b"\x80\x00\x00\x00", b"Q\x00\x00\x00\x05\x00"):
        client = env.raw()
        client.send(data)
        client.sock.shutdown(1)
        assert_ends_unframed(client)
    untouched()


def assert_ends_unframed(client):
    """Errors before the version is known may have any framing: only the end is asked for."""
    end = time.monotonic() + 5
    while client.receive_raw(1) is not None:
        assert time.monotonic() < end


def test_startup_packets_with_wrong_contents(env):
    header = struct.pack("!i", m.PROTOCOL_3_0)
    for body in (header, header + b"user", header + b"user\0", header + b"user\0app", header + b"user\0app\0",
                 header + b"user\0app\0\0trailing",
                 header + b"\0", header + b"database\0app\0\0"):
        client = env.raw()
        client.send(m.packet(body))
        ends(client, PROTOCOL_VIOLATION, "28000")


def test_trap_17_long_startup_packets(env):
    """trap 17: up to PostgreSQL's limit of 10,000 bytes they are taken, split or not; above it they are refused."""
    client = env.raw()
    client.send_split(m.startup({"user": "app_trust", "database": "app", "application_name": "x" * 60,
                                 "options": " " * 8000 + "-c work_mem=5MB"}), 1000)
    client.login()
    equal(client.value("show work_mem"), "5MB")
    for size in (10001, 100000):
        client = env.raw()
        try:
            client.send(m.startup({"user": "app_trust", "database": "app", "application_name": "x" * size}))
        except OSError:
            continue
        ends(client, PROTOCOL_VIOLATION, None)


def test_trap_17_very_long_user_and_database_names(env):
    client = env.raw()
    client.send(m.startup({"user": "u" * 5000, "database": "app"}))
    message = client.receive()
    if message.kind == "R":
        client.send(m.sasl_initial("SCRAM-SHA-256", scram.Exchange("x").first()))
    else:
        assert message.sqlstate() in ("28P01", "28000"), message.fields()


@pooler_only
def test_trap_17_long_passwords(env):
    """trap 17: a cleartext password or token of 4 kB, split."""
    secret = "t" * 4000
    with env.pooler_with(start=False, servers=[env.cluster.address]) as target:
        (target.pooler.directory / "userlist.txt").write_text(f'"app_plain" "{secret}"\n')
        target.pooler.start()
        client = env.raw(target)
        client.send(m.startup({"user": "app_plain", "database": "app"}))
        client.receive()
        client.send_split(m.password(secret), 7)
        client.login()
        equal(client.value("select 1"), "1")


def test_an_oversized_password_message_is_refused(env):
    client = env.raw()
    client.send(m.startup({"user": "app_plain", "database": "app"}))
    client.receive()
    client.send(b"p" + struct.pack("!i", 1 << 30) + b"x" * 1000)
    ends(client, PROTOCOL_VIOLATION, "28P01", None)


def test_messages_other_than_a_password_during_login(env):
    for user in ("app", "app_md5", "app_plain"):
        for data in (m.query("select 1"), m.SYNC, m.parse("select 1"), b"\0\0\0\0\0", m.message("z", b"x")):
            client = env.raw()
            client.send(m.startup({"user": user, "database": "app"}))
            client.receive()
            client.send(data)
            ends(client, PROTOCOL_VIOLATION, "28P01", None)


def test_terminate_during_login_closes_quietly(env):
    client = env.raw()
    client.send(m.startup({"user": "app", "database": "app"}))
    client.receive()
    client.send(m.TERMINATE)
    ends(client, None, PROTOCOL_VIOLATION)


def test_a_query_sent_before_the_password_is_answered_is_not_run_before_login(env):
    """Pipelined behind a wrong password."""
    client = env.raw()
    client.send(m.startup({"user": "app_plain", "database": "app"}), m.password("wrong"), m.query("create table before_login (i int)"))
    ends(client, "28P01")
    equal(env.connect().value("select to_regclass('before_login')"), None)


def sasl_start(env):
    client = env.raw()
    client.send(m.startup({"user": "app", "database": "app"}))
    equal(client.receive().body[:4], b"\0\0\0\x0a")
    return client


def test_trap_22_sasl_initial_messages_with_wrong_lengths(env):
    """trap 22: one SASL message with an empty or negative length killed the process before login."""
    mechanism, first = m.text("SCRAM-SHA-256"), b"n,,n=,r=abcdefghijklmnop"
    bodies = [b"", b"\0", mechanism, mechanism + b"\0\0\0", mechanism + struct.pack("!i", -2), mechanism + struct.pack("!i", 0),
              mechanism + struct.pack("!i", -2147483648), mechanism + struct.pack("!i", 2147483647),
              mechanism + struct.pack("!i", len(first) + 1) + first,
              mechanism + struct.pack("!i", len(first) - 1) + first, b"SCRAM-SHA-256" + struct.pack("!i", 0),
              m.text("SCRAM-MD5") + struct.pack("!i", 0),
              m.text("SCRAM-SHA-256-PLUS") + struct.pack("!i", len(first)) + first, m.text("X" * 5000) + struct.pack("!i", 0)]
    for body in bodies:
        client = sasl_start(env)
        client.send(m.message("p", body))
        ends(client, PROTOCOL_VIOLATION, "28P01", "28000")
    equal(env.connect().value("select 1"), "1")


def test_trap_22_a_sasl_message_without_initial_response(env):
    """Length -1 means none; the server then sends an empty challenge. PostgreSQL goes on, or refuses; it does not die."""
    client = sasl_start(env)
    client.send(m.message("p", m.text("SCRAM-SHA-256") + struct.pack("!i", -1)))
    message = client.receive()
    assert message is None or message.kind in "RE", message


def test_trap_22_malformed_scram_first_messages(env):
    for first in (b"", b"x", b"n", b"n,", b"n,,", b"n,,n=", b"n,,n=,", b"n,,n=,r=", b"n,,r=abc", b"y,,n=,r=" + b"\x01" * 10,
                  b"p=tls-unique,,n=,r=abc",
                  b"n,a=other,n=,r=abcdefgh", b"n,,m=ext,n=,r=abcdefgh", b"n,,n=,r=" + b"a" * 60000, b"n,,n=,r=a,b=c,d=e,\xff\xfe",
                  b"z,,n=,r=abcdefgh", b"n,,n=\0,r=abc"):
        client = sasl_start(env)
        client.send(m.sasl_initial("SCRAM-SHA-256", first))
        message = client.receive()
        if message is not None and message.kind == "R":
            continue  # taken: a nonce of any printable length is right
        if message is not None:
            assert message.sqlstate() in (PROTOCOL_VIOLATION, "0A000", "28P01", "28000"), (first, message.fields())
        assert client.is_closed(), first
    equal(env.connect().value("select 1"), "1")


def test_trap_18_malformed_scram_final_messages(env):
    """trap 18: CVE-2026-6664 and its kin."""
    def finals(nonce):
        good = b"c=biws,r=" + nonce
        proof = base64.b64encode(b"p" * 32)
        return [b"", b"c", b"c=biws", good, good + b",p=", good + b",p=" + b"!" * 44, good + b",p=" + base64.b64encode(b"p" * 31),
                good + b",p=" + base64.b64encode(b"p" * 64),
                b"c=biws,r=" + nonce[:-1] + b",p=" + proof, b"c=biws,r=,p=" + proof, b"c=eSws,r=" + nonce + b",p=" + proof,
                b"c=,r=" + nonce + b",p=" + proof,
                good + b",x=" + b"y" * 30000 + b",p=" + proof, good + b",p=" + proof + b",q=1", b"r=" + nonce + b",c=biws,p=" + proof,
                b"\xff" * 100, b"c=biws\0,r=" + nonce]
    for number in range(len(finals(b""))):
        client = sasl_start(env)
        exchange = scram.Exchange("x")
        client.send(m.sasl_initial("SCRAM-SHA-256", exchange.first()))
        nonce = scram.attributes(client.receive().body[4:])["r"].encode()
        client.send(m.sasl_response(finals(nonce)[number]))
        ends(client, PROTOCOL_VIOLATION, "28P01", "28000", None)
    equal(env.connect().value("select 1"), "1")


def test_plaintext_stuffed_behind_an_sslrequest(env):
    """CVE-2021-23214: bytes that were sent before the handshake must not be read as if they had come through it."""
    client = env.raw()
    client.send(m.SSL_REQUEST, m.startup({"user": "app_trust", "database": "app"}), m.query("create table stuffed (i int)"))
    answer = client.receive_raw(1)
    if answer == b"S":
        try:
            # PostgreSQL completes the handshake and then refuses; a pooler may refuse at once.
            client.wrap(env.tls(), "localhost")
            message = client.receive()
            assert message is None or message.kind == "E", message
        except OSError:
            pass
    else:
        assert answer in (b"E", None), answer
    equal(env.connect().value("select to_regclass('stuffed')"), None)


def test_a_tls_handshake_of_garbage(env):
    untouched = bystander(env)
    for data in (b"\x16\x03\x01\xff\xff" + b"x" * 500, b"\x16\x03\x01\x00\x05hello", bytes(500), random.Random(5).randbytes(3000)):
        client = env.raw()
        client.send(m.SSL_REQUEST)
        equal(client.receive_raw(1), b"S")
        client.send(data)
        with contextlib.suppress(OSError):  # it may be over by now
            client.sock.shutdown(1)
        assert_ends_unframed(client)
    untouched()


# After login

def test_unknown_message_types_end_the_connection(env):
    untouched = bystander(env)
    for kind in "zAZ1\x00\xff~":
        client = env.connect()
        client.send(kind.encode("latin1") + struct.pack("!i", 4))
        ends(client, PROTOCOL_VIOLATION)
    untouched()


def test_lengths_that_cannot_be_end_the_connection(env):
    untouched = bystander(env)
    for kind in b"QPBEDCSHFX":
        for length in (-2147483648, -1, 0, 3, 2147483647):
            client = env.connect()
            with contextlib.suppress(OSError):
                client.send(bytes([kind]) + struct.pack("!i", length) + b"abcdefgh")
            ends(client, PROTOCOL_VIOLATION, "54000", None)
    untouched()


def spoil():
    """Messages with a right length and a wrong body."""
    return {
        "Parse without NULs": m.message("P", b"name and text"),
        "Parse without types": m.message("P", b"\0select 1\0"),
        "Parse with too many types": m.message("P", b"\0select 1\0" + b"\x00\x05\0\0\0\x17"),
        "Parse with negative types": m.message("P", b"\0select 1\0" + b"\xff\xff"),
        "Parse with rest": m.message("P", b"\0select 1\0" + b"\0\0rest"),
        "Bind empty": m.message("B"),
        "Bind without counts": m.message("B", b"\0\0"),
        "Bind with negative length": m.message("B", b"\0\0\0\0\0\x01" + struct.pack("!i", -5) + b"\0\0"),
        "Bind with length past the end": m.message("B", b"\0\0\0\0\0\x01" + struct.pack("!i", 1000) + b"x\0\0"),
        "Bind with too many formats": m.message("B", b"\0\0\0\x64\0\0\0\0"),
        "Bind with rest": m.bind()[:1] + struct.pack("!i", len(m.bind()) + 3) + m.bind()[5:] + b"rest",
        "Describe empty": m.message("D"),
        "Describe of nothing known": m.message("D", b"X\0"),
        "Describe without NUL": m.message("D", b"Sname"),
        "Close of nothing known": m.message("C", b"X\0"),
        "Close without NUL": m.message("C", b"Sname"),
        "Execute without a limit": m.message("E", b"\0"),
        "Execute without NUL": m.message("E", b"abc"),
        "Sync with a body": m.message("S", b"x"),
        "Flush with a body": m.message("H", b"x"),
        "FunctionCall empty": m.message("F"),
        "FunctionCall short": m.message("F", b"\0\0\0\x01\0"),
        "Query without NUL": m.message("Q", b"select 1"),
        "Query empty": m.message("Q"),
        "Query with rest": m.message("Q", b"select 1\0select 2\0"),
    }


def test_bodies_that_cannot_be_give_an_error_and_the_connection_goes_on_or_ends(env):
    """As PostgreSQL: 08P01 (or 22P03, 26000 where the body is readable so far); then it waits for Sync."""
    untouched = bystander(env)
    for what, data in spoil().items():
        client = env.connect()
        client.send(data, m.SYNC, m.query("select 'after'"))
        result = client.collect(1)
        if result.closed:
            continue
        assert result.sqlstate in (PROTOCOL_VIOLATION, "22P03", "22021", "26000", "34000", "42883", None), (what, result.errors)
        # Whatever was said, the framing holds: each message has its own answer.
        while result.status and not any(row == ("after",) for row in result.rows):
            result = client.collect(1)
            if result.closed:
                break
        assert result.closed or client.value("select 'again'") == "again", what
    untouched()


@limit(60)
def test_trap_21_answers_are_not_crossed_after_malformed_pipelines(env):
    """trap 21: answers crossed between clients after malformed pipelines; one acknowledged commit lost."""
    setup = env.connect()
    setup.execute("drop table if exists ledger; create table ledger (who int, turn int)")
    stop, spoilt = [], list(spoil().values())

    def attack(number):
        chance = random.Random(number)
        while not stop:
            client = env.target.connect()
            try:
                good = [m.run("select 1"), m.SYNC, m.query("begin"), m.run("insert into ledger values (-1, 0)"), m.SYNC,
                        m.query("rollback")]
                data = b"".join(chance.choice(good + spoilt) for _ in range(chance.randrange(1, 12)))
                if chance.random() < 0.5:
                    data = data[: chance.randrange(1, len(data) + 1)]
                client.send(data)
                if chance.random() < 0.5 and client.pending(0.01):
                    client.receive()
            except (OSError, AssertionError):
                pass
            client.vanish()

    def work(number):
        with env.target.connect() as client:
            for turn in range(60):
                equal(client.execute("begin").tags, ["BEGIN"])
                equal(client.execute(f"insert into ledger values ({number}, {turn})").tags, ["INSERT 0 1"])
                equal(client.execute("commit").tags, ["COMMIT"])
                equal(client.extended("select $1::int * 1000 + $2::int", [number, turn]).value, str(number * 1000 + turn))

    attackers = [Background(attack, number) for number in range(4)]
    try:
        crowd(6, work, 40)
    finally:
        stop.append(True)
        for attacker in attackers:
            attacker.join()
    equal(setup.value("select count(distinct (who, turn)) from ledger where who >= 0"), "360", "acknowledged commits")
    setup.execute("drop table ledger")


def test_trap_15_sync_during_copy_in_is_ignored(env):
    """trap 15: in the extended protocol Sync is ignored during COPY FROM until CopyDone."""
    client, other = env.connect(), env.connect()
    client.execute("drop table if exists copy_sync; create table copy_sync (i int)")
    client.send(m.parse("copy copy_sync from stdin"), m.bind(), m.execute(), m.SYNC)
    equal(client.collect(until="GE").kinds, "12G")
    other.value("select 1")
    client.send(m.copy_data(b"1\n"), m.SYNC, m.FLUSH, m.copy_data(b"2\n"), m.COPY_DONE, m.SYNC)
    equal(client.collect().kinds, "CZ")
    equal(client.value("select count(*) from copy_sync"), "2")
    client.execute("drop table copy_sync")


def test_a_flush_with_a_body_in_a_copy_is_ignored(env):
    """A copy does not look at the body of a Flush or Sync. Hawser waited for an error, and closed the connection at what came."""
    client = env.connect()
    client.execute("drop table if exists copy_flush; create table copy_flush (i int)")
    ends = m.message("H", b"x") + m.message("S", b"x") + m.copy_data(b"1\n") + m.COPY_DONE
    for start, sync in ((m.query("copy copy_flush from stdin; select 7"), b""),
                        (m.parse("copy copy_flush from stdin") + m.bind() + m.execute() + m.FLUSH, m.SYNC)):
        for apart in (False, True):
            client.send(start)
            if apart:
                client.collect(until="GE")
            client.send(ends, sync, m.query("select 8"))
            equal(client.collect().tags[0], "COPY 1")
            equal(client.collect().value, "8")
    equal(client.value("select count(*) from copy_flush"), "4")
    client.execute("drop table copy_flush")


def test_a_sync_with_a_body_after_an_error_is_an_error_and_ends_the_pipeline(env):
    client = env.connect()
    bad = m.message("S", b"x")
    for pause in (0, 0.1):
        client.send(m.run("select 1/0"))
        time.sleep(pause)
        client.send(bad, m.query("select 8"))
        result = client.collect()
        equal([error["C"] for error in result.errors], ["22012", PROTOCOL_VIOLATION])
        equal((result.kinds[-2:], result.status), ("EZ", "I"))
        equal(client.collect().value, "8")


def test_trap_15_copydata_after_an_error_does_not_exhaust_the_pool(env):
    """trap 15: CopyData that arrives after an error."""
    clients = [env.connect() for _ in range(12)]
    clients[0].execute("drop table if exists copy_err; create table copy_err (i int)")
    for client in clients:
        client.send(m.parse("copy copy_err from stdin"), m.bind(), m.execute(), m.copy_data(b"not a number\n"))
    for client in clients:
        equal(client.collect(until="E").sqlstate, "22P02")
    for client in clients:
        client.send(*[m.copy_data(b"2\n") for _ in range(100)], m.COPY_DONE)
    # In the extended protocol an error skips to Sync, whatever comes before.
    for client in clients:
        client.send(m.SYNC)
        equal(client.collect().kinds, "Z")
        equal(client.value("select 1"), "1")
    clients[0].execute("drop table copy_err")


def test_trap_15_copydata_after_an_error_in_the_simple_protocol(env):
    client, other = env.connect(), env.connect()
    client.execute("drop table if exists copy_err2; create table copy_err2 (i int)")
    client.send(m.query("copy copy_err2 from stdin"), m.copy_data(b"bad\n"))
    equal(client.collect().sqlstate, "22P02")
    client.send(m.copy_data(b"3\n"))
    other.value("select 1")
    client.send(m.copy_data(b"4\n"), m.COPY_DONE)
    equal(client.value("select count(*) from copy_err2"), "0")
    client.execute("drop table copy_err2")


def test_text_that_is_not_in_the_clients_encoding(env):
    client = env.connect()
    equal(client.exchange(m.query(b"select '\xff\xfe'")).sqlstate, "22021")
    equal(client.exchange(m.parse(b"select '\xff'"), m.SYNC).sqlstate, "22021")
    equal(client.value("select 'good'"), "good")


def test_deeply_nested_statements(env):
    """A scanner must not recurse with the text."""
    client = env.connect()
    for sql in ("select " + "(" * 50000 + "1" + ")" * 50000, "/*" * 3000, "select '" + "''" * 100000 + "'", "$a$" * 50000, '"' * 99999,
                "select 1" + ";" * 100000):
        result = client.attempt(sql)
        assert result.sqlstate in (None, "54001", "42601"), (sql[:20], result.errors)
        equal(client.value("select 1"), "1")


@limit(90)
def test_trap_21_random_mutations_of_valid_traffic(env):
    """Seeded: 300 sessions of valid traffic with bytes flipped, cut, doubled and swapped. The process lives, a bystander
    at work sees its own answers, and afterwards all is served."""
    untouched = bystander(env)
    valid = [m.query("select 1"), m.run("select $1::int", [5]), m.SYNC, m.FLUSH, m.parse("select 2", "s"), m.describe_statement("s"),
             m.bind("s"),
             m.execute(), m.close_statement("s"), m.query("begin"), m.query("rollback"), m.query("copy (select 1) to stdout"), m.SYNC,
             m.query("set application_name to 'x'"), m.run("select repeat('z', 10000)")]

    def attack(number):
        chance = random.Random(number)
        for _ in range(75):
            data = bytearray(b"".join(chance.choice(valid) for _ in range(chance.randrange(1, 15))))
            for _ in range(chance.randrange(0, 4)):
                at = chance.randrange(len(data))
                match chance.randrange(4):
                    case 0:
                        data[at] ^= 1 << chance.randrange(8)
                    case 1:
                        del data[at : at + chance.randrange(1, 9)]
                    case 2:
                        data[at:at] = data[at : at + chance.randrange(1, 30)]
                    case 3:
                        data[at] = chance.choice(b"\0\xff\x7f\x80")
                if not data:
                    data = bytearray(b"\0")
            client = env.target.connect()
            client.sock.settimeout(0.2)  # a message may stay half sent until a Sync that never comes
            try:
                client.send(bytes(data))
                while client.pending(0.005) and client.receive() is not None:
                    pass
            except (OSError, AssertionError):
                pass
            client.vanish()
    crowd(4, attack, 80)
    untouched()
    for client in [env.connect() for _ in range(6)]:
        equal(client.value("select 'served'"), "served")
