"""The PROXY protocol: from load balancers, whose clients then count by their own addresses, and to servers."""

import contextlib
import socket
import struct
import threading
import time

from harness import messages as m
from harness.postgres import own_name
from harness.suite import equal, pooler_only, until
from harness.wire import ServerError

SAME_FOR_ALL_SERVERS = True

SIGNATURE = b"\r\n\r\n\0\r\nQUIT\n"
HBA = """\
local all all       trust
host  all admin 127.0.0.1/32 trust
host  all app_trust 192.0.2.0/24 trust
host  all app_trust 2001:db8::/32 trust
hostssl all app_trust 198.51.100.7/32 trust
"""


def v1(address, port=4711):
    family = "TCP6" if ":" in address else "TCP4"
    return f"PROXY {family} {address} {'::1' if ':' in address else '127.0.0.1'} {port} 6432\r\n".encode()


def v2(address, port=4711, command=1, extra=b""):
    family, size = (socket.AF_INET6, 0x21) if ":" in address else (socket.AF_INET, 0x11)
    packed = socket.inet_pton(family, address)
    rest = packed + packed + struct.pack("!HH", port, 6432) + extra
    return SIGNATURE + struct.pack("!BBH", 0x20 | command, size, len(rest)) + rest


def enter(env, target, header, user="app_trust", tls=None, host=None):
    client = env.raw(target, host=host)
    client.send(header)
    if tls:
        client.start_tls(tls, "localhost")
    client.send(m.startup({"user": user, "database": "app"}))
    return client.login()


def refusal(env, target, header, **how):
    try:
        enter(env, target, header, **how)
    except ServerError as error:
        return error.fields
    raise AssertionError("it is in")


def clients(target):
    with target.connect(user="admin", database="hawser", host=target.socket_dir) as console:
        result = console.execute("SHOW CLIENTS")
        rows = [dict(zip(result.columns, row)) for row in result.rows]
    return {(row["addr"], row["port"]) for row in rows if row["user"] == "app_trust"}


def behind_balancer(env, **settings):
    return env.pooler_with(hba=HBA, proxy_protocol_from=["127.0.0.1"], **settings)


@pooler_only
def test_the_clients_address_counts_in_rules_console_and_log(env):
    with behind_balancer(env) as target:
        for number, header in enumerate([v1("192.0.2.9", 1001), v2("192.0.2.10", 1002), v1("2001:db8::9", 1003), v2("2001:db8::a", 1004),
                                         v2("192.0.2.11", 1005, extra=b"\x04\0\x03abc")]):
            client = enter(env, target, header)
            equal(client.value(f"select {number}"), str(number))
        equal(clients(target), {("192.0.2.9", "1001"), ("192.0.2.10", "1002"), ("2001:db8::9", "1003"), ("2001:db8::a", "1004"),
                                ("192.0.2.11", "1005")})
        until(lambda: 'address="192.0.2.10"' in target.pooler.text(), "the client's address in the log")
        fields = refusal(env, target, v2("203.0.113.5"))
        equal(fields["C"], "28000")
        assert "203.0.113.5" in fields["M"], fields
        fields = refusal(env, target, SIGNATURE + b"\x20\0\0\0")  # LOCAL: the balancer's own address, for which there is no rule
        assert "127.0.0.1" in fields["M"], fields


@pooler_only
def test_the_header_comes_before_tls_and_in_pieces(env):
    with behind_balancer(env) as target:
        client = enter(env, target, v2("198.51.100.7", 9), tls=env.tls())
        equal(client.value("select 1"), "1")
        equal(clients(target), {("198.51.100.7", "9")})
        direct = env.raw(target)
        direct.send(v1("198.51.100.7", 10))
        direct.wrap(env.tls(direct=True), "localhost")
        direct.send(m.startup({"user": "app_trust", "database": "app"}))
        equal(direct.login().value("select 2"), "2")
        slow = env.raw(target)
        slow.send_split(v2("192.0.2.1") + m.startup({"user": "app_trust", "database": "app"}))
        equal(slow.login().value("select 3"), "3")


@pooler_only
def test_a_cancel_request_comes_with_a_header_too(env):
    with behind_balancer(env) as target:
        client = enter(env, target, v2("192.0.2.1"))
        client.send(m.query("select pg_sleep(20) /* cancelled through a balancer */"))
        env.cluster.wait_for_backends("state = 'active' and query like '%cancelled through a balancer%' and query not like "
                                      "'%pg_stat_activity%'", 1)
        with target.open() as other:
            other.send(v2("192.0.2.1"), m.cancel_request(client.pid, client.key))
            other.is_closed()
        equal(client.collect().sqlstate, "57014")


@pooler_only
def test_who_is_not_listed_may_send_none_and_who_is_must(env):
    with env.pooler_with(hba=HBA, proxy_protocol_from=["127.0.0.1@1", "unix"]) as target:
        for header in (v1("192.0.2.9"), v2("192.0.2.9")):
            fields = refusal(env, target, header)
            equal((fields["C"], fields["M"]), ("08P01", "unexpected header of the PROXY protocol"))
        fields = refusal(env, target, v1("192.0.2.9") * 2, host=target.socket_dir)
        equal(fields["M"], "unexpected header of the PROXY protocol")
        client = enter(env, target, v2("192.0.2.9", 77), host=target.socket_dir)
        equal(client.value("select 1"), "1")
    with env.pooler_with(hba=HBA, proxy_protocol_from=["::1"]) as target:
        # A startup packet, a request for TLS, TLS itself, noise: at once, not when the rest of a header does not come.
        for begin in (m.startup({"user": "app_trust", "database": "app"}), m.SSL_REQUEST, b"\x16\x03\x01\0", b"PROXY TCP5 x\r\n",
                      b"PROXY TCP4 192.0.2.1 192.0.2.2 99999 1\r\n", b"PROXY " + b"x" * 200, SIGNATURE + b"\x31\x11\0\0",
                      SIGNATURE + b"\x21\x11\0\x01x", SIGNATURE + b"\x21\x11\xff\xff"):
            client = env.raw(target, host="::1")
            began = time.monotonic()
            client.send(begin)
            message = client.receive()
            assert message and message.kind == "E", (begin, message)
            equal((message.fields()["C"], message.fields()["M"]), ("08P01", "invalid header of the PROXY protocol"))
            assert time.monotonic() - began < 2, begin
        until(lambda: "invalid header of the PROXY protocol" in target.pooler.text(), "the reason in the log")


@pooler_only
def test_a_header_that_does_not_come_is_bounded_by_client_login_timeout(env):
    with behind_balancer(env, client_login_timeout="1s") as target:
        for part in (b"", b"PROXY TCP4 192.0.2.1", SIGNATURE, v2("192.0.2.1")[:-1]):
            client = env.raw(target)
            client.send(part)
            assert not client.is_closed(0.3), part
            assert client.is_closed(3), part


@pooler_only
def test_a_client_without_an_address_is_not_the_balancers_process(env):
    """Over the unix socket it had the console without a password, and what `peer` gives the balancer."""
    own = own_name()
    user = f'\n[[user]]\nname = "{own}"\n'
    unspec, unix = (SIGNATURE + struct.pack("!BBH", 0x21, kind, len(rest)) + rest for kind, rest in ((0, b""), (0x31, b"\0" * 216)))
    local = SIGNATURE + struct.pack("!BBH", 0x20, 0, 0)

    def enter_as(target, header, who, database):
        client = env.raw(target, host=target.socket_dir)
        client.send(header)
        client.send(m.startup({"user": who, "database": database}))
        return client.login("", who)
    with env.pooler_with(hba="local all all peer\n", append=user, proxy_protocol_from=["unix"], user="app2",
                         password=env.target.secrets["app2"]) as target:
        until(lambda: "hawser::serve: ready" in target.pooler.text(), "the unix socket, too")
        for who, database in (("pgbouncer", "pgbouncer"), (own, "app")):
            for header in (b"PROXY UNKNOWN\r\n", unspec, unix):
                try:
                    enter_as(target, header, who, database)
                except ServerError as error:
                    equal(error.sqlstate, "28000")
                else:
                    raise AssertionError(f"{who} is in by {header}")
            enter_as(target, local, who, database)


@pooler_only
def test_a_reload_takes_another_list(env):
    with env.pooler_with(hba=HBA) as target:
        equal(refusal(env, target, v1("192.0.2.9"))["C"], "08P01")
        target.pooler.write(proxy_protocol_from=["127.0.0.0/8"])
        target.pooler.reload()
        equal(enter(env, target, v1("192.0.2.9")).value("select 1"), "1")


class Receiver:
    """What stands before a server and takes headers: keeps them, and passes on the rest."""

    def __init__(self, to, version):
        self.to, self.version, self.headers = to, version, []
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self):
        with contextlib.suppress(OSError):
            while True:
                threading.Thread(target=self._serve, args=self.listener.accept(), daemon=True).start()

    def _serve(self, near, address):
        head = b""
        while not (head.endswith(b"\r\n") if self.version == 1 else len(head) == 28):
            byte = near.recv(1)
            if not byte:
                return
            head += byte
        self.headers.append((head, address))
        with socket.create_connection(("127.0.0.1", self.to)) as far:
            back = threading.Thread(target=self._copy, args=(far, near), daemon=True)
            back.start()
            self._copy(near, far)
            back.join()

    def _copy(self, one, other):
        with contextlib.suppress(OSError):
            while data := one.recv(65536):
                other.sendall(data)
            other.shutdown(socket.SHUT_WR)


@pooler_only
def test_servers_are_sent_a_header_where_they_ask_for_one(env):
    for version in (1, 2):
        receiver = Receiver(env.cluster.port, version)
        with env.pooler_with(servers=[f"127.0.0.1:{receiver.port}"], user="app2", password=env.target.secrets["app2"],
                             proxy_protocol=f"v{version}", server_tls_sslmode="require", pool_size=1) as target:
            client = env.connect(target)
            equal(client.value("select session_user"), "app2")
            client.send(m.query("select pg_sleep(20) /* cancelled through a receiver */"))
            env.cluster.wait_for_backends("state = 'active' and query like '%through a receiver%' and query not like '%pg_stat_activity%'",
                                          1)
            client.cancel(target)
            equal(client.collect().sqlstate, "57014")
            assert len(receiver.headers) >= 2, "the cancel request has one as well"
            for head, (host, port) in receiver.headers:
                if version == 1:
                    equal(head, f"PROXY TCP4 {host} 127.0.0.1 {port} {receiver.port}\r\n".encode())
                else:
                    equal(head, SIGNATURE + b"\x21\x11\0\x0c" + socket.inet_aton(host) * 2 + struct.pack("!HH", port, receiver.port))
        receiver.listener.close()


@pooler_only
def test_one_hawser_behind_another(env):
    with env.pooler_with(proxy_protocol_from=["127.0.0.1"]) as inner:
        with env.pooler_with(servers=[f"127.0.0.1:{inner.port}"], proxy_protocol="v2", server_tls_sslmode="disable") as outer:
            equal(env.connect(outer).value("select 1"), "1")
