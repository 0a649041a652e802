"""How server connections are opened: what servers say at connect."""

import re
import socket
import threading
import time

from harness import messages as m
from harness.suite import Background, equal, limit, pooler_only, until
from harness.wire import ServerError

SAME_FOR_ALL_SERVERS = True


class Gate:
    """A TCP forwarder in front of a server. `mode`: "forward", "close" what comes, or "hang"; `hold`: while it is set, the
    server's words wait."""

    def __init__(self, port):
        self.to = port
        self.listener = socket.create_server(("127.0.0.1", 0), backlog=1024)
        self.port = self.listener.getsockname()[1]
        self.mode, self.hold, self.ended = "forward", False, False
        self.accepted, self.socks = 0, []
        threading.Thread(target=self._run, daemon=True).start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.ended, self.hold = True, False
        for sock in [self.listener, *self.socks]:
            sock.close()

    def _run(self):
        while not self.ended:
            try:
                sock, _ = self.listener.accept()
            except OSError:
                return
            self.accepted += 1
            if self.mode == "close":
                sock.close()
                continue
            self.socks.append(sock)
            if self.mode == "hang":
                continue
            server = socket.create_connection(("127.0.0.1", self.to))
            self.socks.append(server)
            for source, sink, waits in ((sock, server, False), (server, sock, True)):
                threading.Thread(target=self._pump, args=(source, sink, waits), daemon=True).start()

    def _pump(self, source, sink, waits):
        try:
            while data := source.recv(65536):
                while waits and self.hold:
                    time.sleep(0.01)
                sink.sendall(data)
        except OSError:
            pass
        for sock in (source, sink):
            try:
                sock.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass


def database(env, query, **more):
    entry = {"connect_query": query, **more}
    lines = "".join(f"{name} = {value if isinstance(value, int) else chr(34) + value + chr(34)}\n" for name, value in entry.items())
    return f'\n[[database]]\nname = "q"\nservers = ["{env.cluster.address}"]\ndbname = "app"\n{lines}'


def refusal(target, **how):
    """What a login is told, and after how many seconds."""
    began = time.monotonic()
    try:
        target.connect(user="app_trust", **how).close()
    except ServerError as error:
        return error.fields, time.monotonic() - began
    raise AssertionError("it is let in")


def outcomes(target):
    """Attempts to log in to servers that were done, and that failed."""
    page = target.pooler.http("/metrics")[1]
    return [int(re.search(rf'hawser_server_logins_total\{{outcome="{outcome}"\}} (\d+)', page)[1]) for outcome in ("done", "failed")]


# What servers say at connect

@pooler_only
def test_an_opening_of_before_a_reconnect_does_not_bring_the_old_values_back(env):
    admin = env.server()
    with Gate(env.cluster.port) as gate, env.pooler_with(servers=[f"127.0.0.1:{gate.port}"], server_tls_sslmode="disable", pool_size=2) as target:
        try:
            busy = env.connect(target, user="app_trust")
            busy.execute("begin")
            waits = env.connect(target, user="app_trust")
            gate.hold = True
            waits.send(m.query("select 1"))
            time.sleep(0.5)
            admin.execute("alter system set timezone = 'Asia/Tokyo'")
            admin.execute("select pg_reload_conf()")
            until(lambda: env.server().value("show timezone") == "Asia/Tokyo", "the server has read it")
            with target.pooler.admin() as console:
                console.execute("RECONNECT")
            gate.hold = False
            waits.collect()
            time.sleep(0.3)
            late = env.connect(target, user="app_trust")
            equal((late.parameters["TimeZone"], late.value("show timezone")), ("Asia/Tokyo", "Asia/Tokyo"))
        finally:
            gate.hold = False
            admin.execute("alter system reset timezone")
            admin.execute("select pg_reload_conf()")
