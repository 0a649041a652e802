"""What a client is from its first byte on: its startup packet, and its process id."""

from harness import messages as m
from harness.suite import equal, pooler_only

SETTINGS = {}


# Before login

def greeted_with(env, data):
    """What comes for these bytes on a new connection, up to its end."""
    client = env.raw()
    client.send(data)
    client.sock.settimeout(5)
    return b"".join(iter(lambda: client.receive_raw(1) or b"", b""))


def test_what_is_no_startup_packet_is_closed_without_a_word(env):
    short_cancel = b"\0\0\0\x08" + (80877102).to_bytes(4, "big")
    for data in (m.TERMINATE, b"GET / HTTP/1.1\r\n\r\n", b"\0\0\0\0", b"\0\0\0\x07", b"\xff\xff\xff\xff", m.SYNC, short_cancel):
        equal((data, greeted_with(env, data)), (data, b""))


def test_what_is_one_of_another_kind_is_told_why(env):
    # The framing of the first differs: PostgreSQL answers in that of the version that was asked for.
    for data, text in ((b"\0\0\0\x08\0\x02\0\0", b"unsupported frontend protocol 2.0: "), (b"\0\0\0\x0a\0\x03\0\0xy", b"invalid startup packet layout")):
        assert text in greeted_with(env, data), data


def startup_answers(env, **parameters):
    """The messages from the end of the authentication to the first ParameterStatus."""
    client = env.raw()
    user = "app"
    client.send(m.startup({"user": user, "database": "app", **parameters}))
    exchange, seen = None, []
    while True:
        message = client.receive()
        if message.kind == "R":
            exchange = client._authenticate(message.body, exchange, env.target.secrets[user], user, False)
        elif message.kind == "S":
            return seen
        else:
            seen.append((message.kind, {key: value for key, value in message.fields().items() if key in "SVCM"}))


def test_a_long_application_name_is_cut_with_the_servers_notice(env):
    long, kept = "a" * 70, "a" * 63
    notice = {"S": "NOTICE", "V": "NOTICE", "C": "42622", "M": f'identifier "{long}" will be truncated to "{kept}"'}
    equal(startup_answers(env, application_name=long), [("N", notice)])
    equal(startup_answers(env, application_name=kept), [])
    equal(startup_answers(env, client_min_messages="warning", application_name=long), [])
    equal(env.connect(application_name=long).value("show application_name"), kept)


# Process ids

@pooler_only
def test_an_id_is_not_given_out_again_at_once(env):
    seen = []
    for _ in range(200):
        with env.connect() as client:
            seen.append(client.pid)
    equal(len(set(seen)), 200, "an id came again")
    assert all(4194304 < pid < 1 << 31 for pid in seen), seen


@pooler_only
def test_ids_begin_elsewhere_in_each_process(env):
    first = env.connect().pid
    with env.pooler_with() as target:
        assert abs(env.connect(target).pid - first) > 1000, "by chance: one in a million"


@pooler_only
def test_a_cancel_of_one_that_has_left_hits_nobody(env):
    with env.connect() as gone:
        pid, key = gone.pid, gone.key
    client = env.connect()  # in its place
    client.send(m.query("select pg_sleep(1), 'identity'"))
    env.cluster.wait_for_backends("query like '%identity%' and state = 'active' and pid <> pg_backend_pid()", 1, 5)
    with env.target.open() as other:
        other.send(m.cancel_request(pid, key))
        other.is_closed()
    equal(client.collect().sqlstate, None)
