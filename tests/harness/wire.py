"""One connection to a PostgreSQL server or to a pooler, message by message.

# Invariants  a message is returned whole and once; EOF is None, a reset is None too
# States      open() -> startup() -> login() -> query...; connect() does all of it
# Limits      blocking, one thread a connection; every wait ends after `timeout` seconds
"""

import contextlib
import hashlib
import select
import socket
import ssl
import struct
import time
from dataclasses import dataclass, field

from . import messages as m
from . import scram

TIMEOUT_SECONDS = 20.0
# How long a test waits for what must come: a busy machine holds programs up for seconds.
PATIENCE_SECONDS = 20.0
RECEIVE_BYTES = 1 << 16


class ServerError(Exception):
    """An ErrorResponse where none was expected."""

    def __init__(self, fields):
        detail = f" ({fields['D']})" if fields.get("D") else ""
        super().__init__(f"{fields.get('C')}: {fields.get('M')}{detail}")
        self.fields = fields
        self.sqlstate = fields.get("C")
        self.message = fields.get("M")


class Disconnected(Exception):
    """The server closed the connection before the expected message."""


@dataclass
class Result:
    """What came back for one exchange, up to its last ReadyForQuery (or the end of the connection)."""

    messages: list
    closed: bool = False
    rows: list = field(default_factory=list)
    tags: list = field(default_factory=list)
    errors: list = field(default_factory=list)
    notices: list = field(default_factory=list)
    columns: list = field(default_factory=list)
    copied: list = field(default_factory=list)
    status: str = ""

    def __post_init__(self):
        for message in self.messages:
            match message.kind:
                case "D":
                    self.rows.append(message.values())
                case "C":
                    self.tags.append(message.tag())
                case "E":
                    self.errors.append(message.fields())
                case "N":
                    self.notices.append(message.fields())
                case "T":
                    self.columns = [name for name, _, _ in message.columns()]
                case "d":
                    self.copied.append(message.body)
                case "Z":
                    self.status = message.body.decode()

    @property
    def kinds(self):
        return m.kinds(self.messages)

    @property
    def sqlstate(self):
        """Of the first error, or None."""
        return self.errors[0]["C"] if self.errors else None

    @property
    def value(self):
        """The only value of the only row."""
        ((value,),) = self.rows
        return value


class Connection:
    """A client. Attributes after login: `parameters` (as reported), `pid`, `key`, `status` (I, T or E)."""

    def __init__(self, sock, timeout=TIMEOUT_SECONDS):
        sock.settimeout(timeout)
        self.sock = sock
        self.timeout = timeout
        self.buffer = bytearray()
        self.parameters = {}
        self.notifications = []
        self.negotiated = None
        self.pid = self.key = None
        self.status = ""
        self.certificate = None

    # Bytes

    def send(self, *chunks):
        """All chunks in one write."""
        self.sock.sendall(b"".join(chunks))

    def send_split(self, data, size=1):
        """Packets of `size` bytes: without Nagle's algorithm each one is a segment of its own."""
        if self.sock.family != socket.AF_UNIX:
            self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for at in range(0, len(data), size):
            self.sock.sendall(data[at : at + size])

    def _fill(self, size):
        while len(self.buffer) < size:
            try:
                data = self.sock.recv(RECEIVE_BYTES)
            except (ConnectionResetError, BrokenPipeError, ssl.SSLEOFError, ssl.SSLZeroReturnError):
                return False
            if not data:
                return False
            self.buffer += data
        return True

    def receive_raw(self, size):
        """Exactly `size` bytes, or None at the end of the connection."""
        if not self._fill(size):
            return None
        data = bytes(self.buffer[:size])
        del self.buffer[:size]
        return data

    def receive(self):
        """The next message, or None at the end of the connection."""
        if not self._fill(5):
            return None
        kind, size = chr(self.buffer[0]), struct.unpack_from("!i", self.buffer, 1)[0]
        assert 4 <= size < 1 << 30, f"server sent message {kind!r} of length {size}: framing is lost"
        if not self._fill(size + 1):
            return None
        message = m.Message(kind, bytes(self.buffer[5 : size + 1]))
        del self.buffer[: size + 1]
        self._note(message)
        return message

    def _note(self, message):
        if message.kind == "S":
            name, _, value = message.body[:-1].partition(b"\0")
            self.parameters[name.decode()] = value.decode(errors="surrogateescape")  # in the client's encoding
        elif message.kind == "A":
            self.notifications.append(message.notification())
        elif message.kind == "Z":
            self.status = message.body.decode()

    def pending(self, seconds=0.0):
        """Is there anything to read within this time?"""
        if self.buffer or (isinstance(self.sock, ssl.SSLSocket) and self.sock.pending()):
            return True
        poll = select.poll()  # select() knows 1,024 descriptors
        poll.register(self.sock, select.POLLIN)
        return bool(poll.poll(max(0.0, seconds) * 1000))

    def is_closed(self, seconds=PATIENCE_SECONDS):
        """Does the server close within this time? Messages on the way are read and kept out of the answer."""
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            if not self.pending(left):
                return False
            if self.receive() is None:
                return True
        return False

    # Exchanges

    def collect(self, ready=1, until=None):
        """Messages up to the `ready`-th ReadyForQuery, to one whose type is in `until`, or to the end of the connection."""
        got = []
        while True:
            message = self.receive()
            if message is None:
                return Result(got, closed=True)
            got.append(message)
            if until and message.kind in until:
                return Result(got)
            if message.kind == "Z":
                ready -= 1
                if ready == 0:
                    return Result(got)

    def exchange(self, *chunks):
        """Send messages in one write, and collect one ReadyForQuery for each Query, Sync and FunctionCall among them."""
        data = b"".join(chunks)
        at = ready = 0
        while at < len(data):
            ready += data[at : at + 1] in b"QSF"
            at += 1 + struct.unpack_from("!i", data, at + 1)[0]
        self.send(data)
        return self.collect(ready)

    def attempt(self, sql):
        """A simple query, errors included in the result."""
        return self.exchange(m.query(sql))

    def execute(self, sql):
        """A simple query that must succeed."""
        result = self.attempt(sql)
        if result.errors:
            raise ServerError(result.errors[0])
        if result.closed:
            raise Disconnected(sql)
        return result

    def rows(self, sql):
        return self.execute(sql).rows

    def value(self, sql):
        return self.execute(sql).value

    def extended(self, sql, values=(), name="", types=()):
        """Parse, Bind, Describe, Execute, Sync that must succeed."""
        result = self.exchange(m.run(sql, values, name, types), m.SYNC)
        if result.errors:
            raise ServerError(result.errors[0])
        return result

    def cancel(self, target):
        """Ask for a cancel of this connection's query, over a connection of its own, as drivers do."""
        with target.open() as other:
            other.send(m.cancel_request(self.pid, self.key))
            if not other.is_closed():
                raise TimeoutError("the cancel request is not answered")  # it may hit a later query

    # Login

    def start_tls(self, context, hostname=None):
        self.send(m.SSL_REQUEST)
        answer = self.receive_raw(1)
        if answer != b"S":
            raise Disconnected(f"SSLRequest answered with {answer!r}")
        self.wrap(context, hostname)

    def wrap(self, context, hostname=None):
        self.sock = context.wrap_socket(self.sock, server_hostname=hostname)
        self.certificate = self.sock.getpeercert(binary_form=True)

    def login(self, secret=None, user=None, channel_binding=False):
        """From after the startup packet to the first ReadyForQuery. Raises ServerError where the server refuses."""
        exchange = None
        while True:
            message = self.receive()
            if message is None:
                raise Disconnected("during login")
            match message.kind:
                case "R":
                    exchange = self._authenticate(message.body, exchange, secret, user, channel_binding)
                case "K":
                    self.pid, self.key = struct.unpack_from("!i", message.body)[0], message.body[4:]
                case "v":
                    self.negotiated = struct.unpack_from("!i", message.body)[0]
                case "E":
                    raise ServerError(message.fields())
                case "Z":
                    return self

    def _authenticate(self, body, exchange, secret, user, channel_binding):
        (code,) = struct.unpack_from("!i", body)
        if code == 0:
            return None
        assert secret is not None, f"server asks for a password (method {code}) and the test has none"
        if code == 3:
            self.send(m.password(secret))
        elif code == 5:
            inner = hashlib.md5((secret + user).encode()).hexdigest()
            self.send(m.password("md5" + hashlib.md5(inner.encode() + body[4:8]).hexdigest()))
        elif code == 10:
            offered = body[4:].rstrip(b"\0").decode().split("\0")
            exchange = scram.Exchange(secret, self.certificate if channel_binding else None)
            assert exchange.mechanism in offered, f"{exchange.mechanism} is not among {offered}"
            self.send(m.sasl_initial(exchange.mechanism, exchange.first()))
        elif code == 11:
            self.send(m.sasl_response(exchange.final(body[4:])))
        elif code == 12:
            exchange.verify(body[4:])
        else:
            raise AssertionError(f"unknown authentication request {code}")
        return exchange

    # End

    def close(self):
        """Terminate, as a polite client does."""
        with contextlib.suppress(OSError):
            self.send(m.TERMINATE)
        self.sock.close()

    def vanish(self):
        """Reset the connection: what a killed client's kernel, or a firewall, does."""
        if self.sock.family != socket.AF_UNIX:
            self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.sock.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.sock.close()


@dataclass
class Target:
    """Where clients connect: the pooler, or (direct) PostgreSQL itself. `host` and `socket_dir` share the port number."""

    port: int
    socket_dir: str
    secrets: dict
    host: str = "127.0.0.1"

    def open(self, host=None, timeout=TIMEOUT_SECONDS):
        """A connection on which nothing has been sent. `host` beginning with a slash is a unix socket's directory."""
        host = host or self.host
        if host.startswith("/"):
            sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            sock.settimeout(timeout)
            sock.connect(f"{host}/.s.PGSQL.{self.port}")
        else:
            sock = socket.create_connection((host, self.port), timeout=timeout)
        return Connection(sock, timeout)

    def connect(self, user="app", database="app", host=None, secret=None, timeout=TIMEOUT_SECONDS, tls=None,
                hostname=None, protocol=m.PROTOCOL_3_0, channel_binding=False, **parameters):
        """A connection that is logged in. `parameters` go into the startup packet."""
        connection = self.open(host, timeout)
        try:
            if tls:
                connection.start_tls(tls, hostname)
            connection.send(m.startup({"user": user, "database": database, **parameters}, protocol))
            return connection.login(secret or self.secrets.get(user), user, channel_binding)
        except BaseException:
            connection.sock.close()
            raise

    def conninfo(self, user="app", database="app", host=None):
        """For programs that speak libpq."""
        return f"host={host or self.host} port={self.port} user={user} password={self.secrets.get(user, '')} dbname={database}"
