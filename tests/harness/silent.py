"""A server that lets everybody in, answers no simple query (the pooler's own questions it does, by no row), and closes the connections of
cancel requests only when it is told to.

# Invariants  one thread; `held` counts the cancel requests that are open, `most` how many have been so at a time
"""

import selectors
import socket
import struct
import threading

from . import messages as m

GREETING = b"".join((
    m.message("R", struct.pack("!i", 0)),
    *(m.message("S", m.text(name) + m.text(value)) for name, value in (
        ("server_version", "15.0"), ("server_encoding", "UTF8"), ("client_encoding", "UTF8"), ("DateStyle", "ISO, MDY"),
        ("TimeZone", "UTC"), ("standard_conforming_strings", "on"), ("integer_datetimes", "on"), ("in_hot_standby", "off"),
        ("default_transaction_read_only", "off"))),
    m.message("K", struct.pack("!ii", 4242, 1)),
    m.message("Z", b"I"),
))

NO_ROW = m.message("C", m.text("SELECT 0")) + m.message("Z", b"I")
PREPARED = m.message("1") + m.message("2") + m.message("n")


class SilentServer:
    def __init__(self):
        self.listener = socket.create_server(("127.0.0.1", 0), backlog=1024)
        self.listener.setblocking(False)
        self.port = self.listener.getsockname()[1]
        self.selector = selectors.DefaultSelector()
        self.selector.register(self.listener, selectors.EVENT_READ)
        self.state = {}
        self.held = set()
        self.most = self.cancels = self.queries = 0
        self.keeps = True
        self.ended = False
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.ended = True
        self.thread.join(5)
        for sock in [self.listener, *self.state]:
            sock.close()

    def let_go(self):
        """From now on cancel requests are closed at once, those that are open too."""
        self.keeps = False

    def _run(self):
        while not self.ended:
            for key, _ in self.selector.select(0.02):
                if key.fileobj is self.listener:
                    self._accept()
                else:
                    self._read(key.fileobj)
            if not self.keeps:
                for sock in list(self.held):
                    self._close(sock)

    def _accept(self):
        while True:
            try:
                sock, _ = self.listener.accept()
            except BlockingIOError:
                return
            sock.setblocking(False)
            self.state[sock] = "new"
            self.selector.register(sock, selectors.EVENT_READ)

    def _close(self, sock):
        self.held.discard(sock)
        self.selector.unregister(sock)
        del self.state[sock]
        sock.close()

    def _read(self, sock):
        try:
            data = sock.recv(65536)
        except OSError:
            data = b""
        if not data:
            self._close(sock)
        elif self.state[sock] == "in":
            if data[:1] == b"P":
                sock.sendall(PREPARED + NO_ROW)
            elif b"pg_catalog" in data:  # of the pooler's questions, those about catalogs come as a simple query
                sock.sendall(NO_ROW)
            else:
                self.queries += data[:1] == b"Q"
        elif struct.unpack("!i", data[4:8])[0] == m.CANCEL_CODE:
            self.cancels += 1
            self.held.add(sock)
            self.most = max(self.most, len(self.held))
        elif struct.unpack("!i", data[4:8])[0] == m.SSL_CODE:
            sock.sendall(b"N")
        else:
            self.state[sock] = "in"
            sock.sendall(GREETING)
