"""A throw-away etcd of one member."""

import base64
import json
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request

from .postgres import free_port

START_SECONDS = 30.0


def program():
    """etcd's path, or None. scripts/setup.sh installs it with ALL=1."""
    return os.environ.get("ETCD") or shutil.which("etcd") or next((path for path in ("/usr/sbin/etcd",) if os.access(path, os.X_OK)), None)


class Etcd:
    """Runs from `with` to its end; `options` are of the command line."""

    def __init__(self, directory, scheme="http", options=()):
        self.directory = pathlib.Path(directory)
        self.directory.mkdir()
        self.port, self.scheme = free_port(), scheme
        own = f"{scheme}://127.0.0.1:{self.port}"
        peer = f"http://127.0.0.1:{free_port()}"
        self.command = [program(), "--name", "one", "--data-dir", str(self.directory / "data"), "--listen-client-urls", own,
                        "--advertise-client-urls", own, "--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer,
                        "--initial-cluster", f"one={peer}", *options]
        self.process = None

    @property
    def endpoint(self):
        return f"{self.scheme}://127.0.0.1:{self.port}"

    def start(self, answers=True):
        """`answers`: requests without a login are answered."""
        with open(self.directory / "log", "ab") as log:
            self.process = subprocess.Popen(self.command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT)
        end = time.monotonic() + START_SECONDS
        while True:
            try:
                socket.create_connection(("127.0.0.1", self.port), 1).close()
                if self.scheme == "https" or not answers or self.ask("/v3/kv/range", key="x") is not None:
                    return self
            except (OSError, urllib.error.URLError):
                pass
            if self.process.poll() is not None or time.monotonic() > end:
                raise AssertionError("etcd does not start:\n" + (self.directory / "log").read_text()[-2000:])
            time.sleep(0.05)

    def ask(self, path, **fields):
        """The answer to a request; keys and values are plain text here."""
        for name in ("key", "range_end", "value"):
            if name in fields:
                fields[name] = base64.b64encode(fields[name].encode()).decode()
        request = urllib.request.Request(self.endpoint + path, json.dumps(fields).encode(), {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=5) as answer:
            return json.load(answer)

    def keys(self, prefix="/hawser/"):
        """All keys under `prefix`, with their values."""
        end = prefix[:-1] + chr(ord(prefix[-1]) + 1)
        found = self.ask("/v3/kv/range", key=prefix, range_end=end).get("kvs", [])
        plain = lambda text: base64.b64decode(text).decode()
        return {plain(one["key"]): plain(one.get("value", "")) for one in found}

    def freeze(self):
        self.process.send_signal(signal.SIGSTOP)

    def thaw(self):
        self.process.send_signal(signal.SIGCONT)

    def kill(self):
        self.process.kill()
        self.process.wait()

    def __enter__(self):
        return self.start()

    def __exit__(self, *_):
        if self.process and self.process.poll() is None:
            self.thaw()
            self.kill()
