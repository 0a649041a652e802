"""Startup: versions, negotiation, and requests for encryption."""

from harness import messages as m
from harness.suite import Skip, equal, pooler_only

PARAMETERS = {"user": "app_trust", "database": "app"}


def negotiate(env, protocol, **more):
    client = env.raw()
    client.send(m.startup({**PARAMETERS, **more}, protocol))
    got = []
    while (message := client.receive()) is not None:
        got.append(message)
        if message.kind in "ZE":
            break
    return client, got


def test_protocol_3_0_is_not_negotiated(env):
    _, got = negotiate(env, m.PROTOCOL_3_0)
    assert "v" not in m.kinds(got)
    equal(got[-1].kind, "Z")


def test_trap_20_a_later_minor_version_is_negotiated_once(env):
    """trap 20: accept protocol 3.9999 and _pq_.*, with one NegotiateProtocolVersion."""
    for protocol in (3 << 16 | 3, 3 << 16 | 99, 3 << 16 | 9999):
        client, got = negotiate(env, protocol)
        equal(got[0].kind, "v", f"first message for minor version {protocol & 0xffff}")
        equal(m.kinds(got).count("v"), 1)
        equal(got[-1].kind, "Z")
        equal(client.value("select 1"), "1")


def test_trap_20_unknown_protocol_options_are_named(env):
    _, got = negotiate(env, m.PROTOCOL_3_0, **{"_pq_.first": "1", "_pq_.second.third": "x"})
    equal(got[0].kind, "v")
    equal(m.kinds(got).count("v"), 1)
    assert b"_pq_.first\0_pq_.second.third\0" in got[0].body, got[0].body
    equal(got[0].body[4:8], b"\0\0\0\x02")
    equal(got[-1].kind, "Z")


@pooler_only
def test_protocol_3_2_has_long_cancel_keys(env):
    """PostgreSQL 18 and later; a pooler speaks it whatever the server behind it does."""
    client = env.connect(protocol=m.PROTOCOL_3_2)
    equal(client.negotiated, None)
    assert len(client.key) > 4, f"a cancel key of {len(client.key)} bytes"
    assert len(client.key) <= 256
    client.send(m.query("select pg_sleep(20) /* long key */"))
    env.cluster.wait_for_backends("state = 'active' and query like '%long key%' and query not like '%pg_stat_activity%'", 1)
    with env.target.open() as other:
        other.send(m.cancel_request(client.pid, client.key[:4]))
        other.is_closed()
    assert not client.pending(0.3), "cancelled by the first four bytes of the key"
    client.cancel(env.target)
    equal(client.collect().sqlstate, "57014")


def test_other_major_versions_are_refused(env):
    for major in (0, 1, 2, 4, 9):
        client = env.raw()
        client.send(m.startup(PARAMETERS, major << 16))
        if major > 3:
            equal(client.receive().sqlstate(), "0A000")
            assert client.is_closed()
            continue
        # Errors of version 2 have no length: E, text, NUL. A plain close will do for a client of 2003.
        answer = b""
        while (byte := client.receive_raw(1)) is not None:
            answer += byte
        assert answer == b"" or answer.startswith(b"E"), answer


def test_trap_20_gssencrequest_is_answered_with_n(env):
    # By socket: over TCP a PostgreSQL that was built with GSSAPI says G.
    client = env.raw(host=env.target.socket_dir)
    client.send(m.GSSENC_REQUEST)
    equal(client.receive_raw(1), b"N")
    client.send(m.startup(PARAMETERS))
    client.login()
    equal(client.value("select 1"), "1")


def test_gssencrequest_after_a_refused_sslrequest(env):
    """PostgreSQL takes each once, in either order, as long as the other has not led to encryption."""
    client = env.raw(host=env.target.socket_dir)
    for request in (m.SSL_REQUEST, m.GSSENC_REQUEST):
        client.send(request)
        equal(client.receive_raw(1), b"N")


@pooler_only
def test_gssencrequest_then_sslrequest(env):
    client = env.raw()
    client.send(m.GSSENC_REQUEST)
    equal(client.receive_raw(1), b"N")
    client.start_tls(env.tls(), "localhost")
    client.send(m.startup(PARAMETERS))
    client.login()
    equal(client.value("select 1"), "1")


def test_trap_23_requests_for_encryption_are_not_answered_for_ever(env):
    """trap 23: 2,000 GSSENCRequests in one connection were all answered. PostgreSQL takes one of each."""
    client = env.raw(host=env.target.socket_dir)
    client.send(m.GSSENC_REQUEST)
    answered = 0
    while answered < 50 and client.receive_raw(1) == b"N":
        answered += 1
        try:
            client.send(m.GSSENC_REQUEST)
        except OSError:
            break
    assert answered <= 2, f"{answered} answers"
    assert client.is_closed()


def test_direct_tls(env):
    """sslnegotiation=direct: a ClientHello at once, with ALPN "postgresql" (PostgreSQL 17 and later)."""
    if env.direct and env.cluster.version < 17:
        raise Skip(f"PostgreSQL {env.cluster.version} has no direct TLS")
    client = env.raw()
    client.wrap(env.tls(direct=True), "localhost")
    equal(client.sock.selected_alpn_protocol(), "postgresql")
    client.send(m.startup(PARAMETERS))
    client.login()
    equal(client.value("select 1"), "1")


def test_direct_tls_without_alpn_is_refused(env):
    if env.direct and env.cluster.version < 17:
        raise Skip(f"PostgreSQL {env.cluster.version} has no direct TLS")
    client = env.raw()
    try:
        client.wrap(env.tls(), "localhost")
        client.send(m.startup(PARAMETERS))
        message = client.receive()
    except OSError:
        return
    assert message is None or message.kind == "E", message


def test_startup_without_a_user_is_refused(env):
    client = env.raw()
    client.send(m.startup({"database": "app"}))
    equal(client.receive().sqlstate(), "28000")
    assert client.is_closed()


def test_an_unknown_database_is_refused(env):
    client = env.raw()
    client.send(m.startup({"user": "app_trust", "database": "no_such_database"}))
    got = []
    while (message := client.receive()) is not None and message.kind != "Z":
        got.append(message)
    if message is None:
        equal(got[-1].sqlstate(), "3D000")
    else:
        # A pooler for any database may learn of it only at the first query.
        equal(client.attempt("select 1").sqlstate, "3D000")
