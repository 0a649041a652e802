"""PostgreSQL's messages, versions 3.0 and 3.2: builders for what a client sends, readers for what it gets.

A message is one byte of type, four bytes of length (its own four included), and a body. Only the first packet of a
connection has no type. Builders return bytes and check nothing, so that a test can build what a driver never would.
https://www.postgresql.org/docs/current/protocol-message-formats.html
"""

import struct
from collections import namedtuple

PROTOCOL_3_0 = 3 << 16
PROTOCOL_3_2 = 3 << 16 | 2
CANCEL_CODE = 1234 << 16 | 5678
SSL_CODE = 1234 << 16 | 5679
GSSENC_CODE = 1234 << 16 | 5680

# Messages that a server may send at any time; the order of all others is fixed.
ASYNCHRONOUS = "SNA"


def text(value):
    """A protocol string: the bytes and a NUL."""
    return (value if isinstance(value, bytes) else value.encode()) + b"\0"


def packet(body):
    """A packet without a type: startup, cancel, SSL and GSS requests."""
    return struct.pack("!i", len(body) + 4) + body


def message(kind, body=b""):
    return kind.encode() + struct.pack("!i", len(body) + 4) + body


def startup(parameters, protocol=PROTOCOL_3_0):
    pairs = b"".join(text(name) + text(value) for name, value in parameters.items())
    return packet(struct.pack("!i", protocol) + pairs + b"\0")


def cancel_request(pid, key):
    """`key` is 4 bytes in protocol 3.0 and up to 256 in 3.2."""
    return packet(struct.pack("!ii", CANCEL_CODE, pid) + key)


SSL_REQUEST = packet(struct.pack("!i", SSL_CODE))
GSSENC_REQUEST = packet(struct.pack("!i", GSSENC_CODE))


def query(sql):
    return message("Q", text(sql))


def parse(sql, name="", types=()):
    return message("P", text(name) + text(sql) + struct.pack(f"!h{len(types)}I", len(types), *types))


def bind(statement="", portal="", values=(), formats=(), results=()):
    """`values` are text (str), binary (bytes) or NULL (None); `formats` and `results` are 0 for text, 1 for binary."""
    body = text(portal) + text(statement) + struct.pack(f"!h{len(formats)}h", len(formats), *formats)
    body += struct.pack("!h", len(values))
    for value in values:
        if value is None:
            body += struct.pack("!i", -1)
        else:
            raw = value if isinstance(value, bytes) else str(value).encode()
            body += struct.pack("!i", len(raw)) + raw
    return message("B", body + struct.pack(f"!h{len(results)}h", len(results), *results))


def describe_statement(name=""):
    return message("D", b"S" + text(name))


def describe_portal(name=""):
    return message("D", b"P" + text(name))


def execute(portal="", rows=0):
    return message("E", text(portal) + struct.pack("!i", rows))


def close_statement(name=""):
    return message("C", b"S" + text(name))


def close_portal(name=""):
    return message("C", b"P" + text(name))


SYNC = message("S")
FLUSH = message("H")
TERMINATE = message("X")
COPY_DONE = message("c")


def copy_data(data):
    return message("d", data)


def copy_fail(reason):
    return message("f", text(reason))


def function_call(oid, arguments, result_format=1):
    """The fast-path call; `arguments` are binary."""
    body = struct.pack("!Ihhh", oid, 1, 1, len(arguments))
    for argument in arguments:
        body += struct.pack("!i", len(argument)) + argument
    return message("F", body + struct.pack("!h", result_format))


def password(secret):
    return message("p", text(secret))


def sasl_initial(mechanism, data):
    return message("p", text(mechanism) + struct.pack("!i", len(data)) + data)


def sasl_response(data):
    return message("p", data)


def run(sql, values=(), name="", types=()):
    """Parse, Bind, Describe, Execute, without a Sync."""
    return parse(sql, name, types) + bind(name, values=values) + describe_portal() + execute()


class Message(namedtuple("Message", "kind body")):
    """One message from the server. `kind` is its type byte as a character."""

    def values(self):
        """DataRow: a tuple of str, or None for NULL; bytes that are not UTF-8 stay bytes."""
        count, at, out = struct.unpack_from("!h", self.body)[0], 2, []
        for _ in range(count):
            (size,) = struct.unpack_from("!i", self.body, at)
            at += 4
            if size < 0:
                out.append(None)
                continue
            raw = self.body[at : at + size]
            at += size
            try:
                out.append(raw.decode())
            except UnicodeDecodeError:
                out.append(raw)
        return tuple(out)

    def columns(self):
        """RowDescription: (name, type oid, format) of each column."""
        (count,), at, out = struct.unpack_from("!h", self.body), 2, []
        for _ in range(count):
            end = self.body.index(0, at)
            _, _, oid, _, _, form = struct.unpack_from("!IhIhih", self.body, end + 1)
            out.append((self.body[at:end].decode(), oid, form))
            at = end + 19
        return out

    def strings(self):
        """The body as NUL-ended strings: CommandComplete, ParameterStatus, channel and payload."""
        return self.body.rstrip(b"\0").decode("utf-8", "replace").split("\0")

    def tag(self):
        return self.body[:-1].decode()

    def fields(self):
        """ErrorResponse and NoticeResponse: {field letter: text}."""
        return {part[:1].decode(): part[1:].decode("utf-8", "replace") for part in self.body.split(b"\0") if part}

    def sqlstate(self):
        return self.fields()["C"]

    def notification(self):
        """NotificationResponse: (process id, channel, payload)."""
        (pid,) = struct.unpack_from("!i", self.body)
        channel, payload = self.body[4:].split(b"\0")[:2]
        return pid, channel.decode(), payload.decode()


def kinds(messages, keep=""):
    """The types in order as one string, without the asynchronous ones (unless named in `keep`): "1 2 D C Z" is "12DCZ"."""
    return "".join(m.kind for m in messages if m.kind not in ASYNCHRONOUS or m.kind in keep)
