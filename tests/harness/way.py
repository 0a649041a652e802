"""A way between two programs that a test can cut."""

import contextlib
import socket
import threading


class Way:
    """A TCP proxy to a port on this host. `cut()`: nothing passes any more, and nothing is told; `mend()`."""

    def __init__(self, port):
        self.to = port
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        self.open = threading.Event()
        self.open.set()
        self.ends = []
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self):
        with contextlib.suppress(OSError):
            while True:
                near, _ = self.listener.accept()
                try:
                    far = socket.create_connection(("127.0.0.1", self.to))
                except OSError:  # nobody is there now
                    near.close()
                    continue
                self.ends += [near, far]
                for one, other in ((near, far), (far, near)):
                    threading.Thread(target=self._copy, args=(one, other), daemon=True).start()

    def _copy(self, one, other):
        with contextlib.suppress(OSError):
            while data := one.recv(65536):
                self.open.wait()
                other.sendall(data)
        for end in (one, other):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def cut(self):
        self.open.clear()

    def mend(self):
        self.open.set()

    def drop(self):
        """Closes all connections: what has not passed is lost."""
        for end in self.ends:
            with contextlib.suppress(OSError):
                end.close()
        self.ends.clear()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.mend()
        self.listener.close()
        self.drop()
