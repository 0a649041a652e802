"""A small LDAP server: simple binds and searches of a few entries (RFC 4511), in clear text, over TLS, or by StartTLS.

# Model       one thread a connection; `asked` is what it has been asked, in order
# Limits      filters: and, or, not, equality, presence. The scope of a search is not looked at, its base is
"""

import contextlib
import socket
import ssl
import threading

SUCCESS, NO_SUCH_OBJECT, INVALID_CREDENTIALS, INSUFFICIENT_ACCESS = 0, 32, 49, 50
START_TLS = b"1.3.6.1.4.1.1466.20037"


def encode(tag, *parts):
    body = b"".join(parts)
    length = len(body)
    if length < 0x80:
        head = bytes([length])
    else:
        digits = length.to_bytes((length.bit_length() + 7) // 8, "big")
        head = bytes([0x80 | len(digits)]) + digits
    return bytes([tag]) + head + body


def number(value, tag=2):
    return encode(tag, value.to_bytes(value.bit_length() // 8 + 1, "big"))


def text(value, tag=4):
    return encode(tag, value.encode() if isinstance(value, str) else value)


def decode(data):
    """(tag, body, rest)"""
    tag, length, at = data[0], data[1], 2
    if length & 0x80:
        at += length & 0x7F
        length = int.from_bytes(data[2:at], "big")
    if len(data) < at + length:
        raise IndexError("incomplete")
    return tag, data[at : at + length], data[at + length :]


def parts(data):
    found = []
    while data:
        tag, body, data = decode(data)
        found.append((tag, body))
    return found


class LdapServer:
    """`entries`: a distinguished name -> (password, {attribute: value}). With `only_bound`, nobody searches who is not bound.
    `silent`: it takes connections and says nothing."""

    def __init__(self, entries, certificates=None, tls=False, only_bound=False, silent=False):
        self.entries, self.tls, self.only_bound, self.silent = entries, tls, only_bound, silent
        self.asked = []
        self.context = None
        if certificates:
            self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            self.context.load_cert_chain(certificates.path("server.crt"), certificates.path("server.key"))
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        self.connections = []

    def __enter__(self):
        threading.Thread(target=self.accept, daemon=True).start()
        return self

    def __exit__(self, *_):
        self.listener.close()
        for connection in self.connections:
            with contextlib.suppress(OSError):
                connection.close()

    def accept(self):
        with contextlib.suppress(OSError):
            while True:
                connection = self.listener.accept()[0]
                self.connections.append(connection)
                threading.Thread(target=self.serve, args=(connection,), daemon=True).start()

    def serve(self, connection):
        with contextlib.suppress(OSError, IndexError):
            if self.silent:
                return
            if self.tls:
                connection = self.context.wrap_socket(connection, server_side=True)
            bound, data = "", b""
            while True:
                try:
                    _, message, data = decode(data)
                except IndexError:
                    more = connection.recv(65536)
                    if not more:
                        return
                    data += more
                    continue
                (_, identifier), (operation, body) = parts(message)[:2]

                def answer(tag, code, *more):
                    result = encode(tag, number(code, 10), text(""), text(""), *more)
                    connection.sendall(encode(0x30, encode(2, identifier), result))
                if operation == 0x60:
                    _, (_, name), (_, password) = parts(body)
                    name, password = name.decode(), password.decode()
                    self.asked.append(("bind", name, password))
                    right = (name, password) == ("", "") or (name in self.entries and password == self.entries[name][0])
                    bound = name if right else ""
                    answer(0x61, SUCCESS if right else INVALID_CREDENTIALS)
                elif operation == 0x63:
                    base, filtered = parts(body)[0][1].decode(), parts(body)[6]
                    self.asked.append(("search", base, bound))
                    if self.only_bound and not bound:
                        answer(0x65, INSUFFICIENT_ACCESS)
                        continue
                    for name, (_, attributes) in self.entries.items():
                        if name.endswith(base) and fits(filtered, attributes):
                            entry = encode(0x64, text(name), encode(0x30))
                            connection.sendall(encode(0x30, encode(2, identifier), entry))
                    answer(0x65, SUCCESS)
                elif operation == 0x77:
                    self.asked.append(("extended", parts(body)[0][1].decode(), connection.__class__.__name__))
                    answer(0x78, SUCCESS)
                    connection = self.context.wrap_socket(connection, server_side=True)
                    data = b""
                else:
                    return


def fits(element, attributes):
    tag, body = element
    if tag == 0xA0:
        return all(fits(part, attributes) for part in parts(body))
    if tag == 0xA1:
        return any(fits(part, attributes) for part in parts(body))
    if tag == 0xA2:
        return not fits(parts(body)[0], attributes)
    if tag == 0xA3:
        (_, name), (_, value) = parts(body)
        return attributes.get(name.decode()) == value.decode()
    if tag == 0x87:
        return body.decode() in attributes
    raise ValueError(f"filter {tag:#x}")
