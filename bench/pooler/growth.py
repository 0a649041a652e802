"""What a connected client costs everybody else: nothing may grow worse than linearly.

At each number of idle clients the pooler's work for all of them is timed: the console's lists, the
metrics, a reload, and what it does when nobody does anything (timers). The figures are for one
client, so a line that rises shows what does not scale.
"""

import socket
import struct
import time
import urllib.request

import cpu
from cluster import USER, Unavailable
from generator import Generator

# Of the many clients; below this what is fixed outweighs what grows.
PARTS = (8, 4, 2, 1)
IDLE_S = 2.0
LIMIT_S = 60
READY_LIMIT_S = 300
# Of so many looks the shortest counts: what a stranger's turn on the core adds is not growth.
LOOKS = 3
COMMANDS = ("SHOW CLIENTS", "SHOW POOLS", "SHOW LISTS", "RELOAD")


class Console:
    """A connection to the admin console that reads its answers and looks at no row."""

    def __init__(self, port):
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=LIMIT_S)
        self.pending = bytearray()
        fields = f"user\0{USER}\0database\0hawser\0\0".encode()
        self.socket.sendall(struct.pack("!II", 8 + len(fields), 196608) + fields)
        self._until_ready()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.socket.close()

    def seconds(self, command):
        """How long one command takes, up to its ReadyForQuery."""
        text = command.encode() + b"\0"
        begin = time.perf_counter()
        self.socket.sendall(b"Q" + struct.pack("!I", 4 + len(text)) + text)
        self._until_ready()
        return time.perf_counter() - begin

    def _until_ready(self):
        while True:
            kind, body = self._message()
            if kind == b"E":
                raise Unavailable(f"the console says {bytes(body).decode(errors='replace')!r}")
            if kind == b"Z":
                return

    def _message(self):
        while len(self.pending) < 5 or len(self.pending) < self._whole():
            chunk = self.socket.recv(1 << 20)
            if not chunk:
                raise Unavailable("the console has closed the connection")
            self.pending += chunk
        whole = self._whole()
        kind, body = bytes(self.pending[:1]), self.pending[5:whole]
        del self.pending[:whole]
        return kind, body

    def _whole(self):
        return 1 + struct.unpack_from("!I", self.pending, 1)[0]


def scrape_seconds(address):
    begin = time.perf_counter()
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=LIMIT_S) as answer:
        answer.read()
    return time.perf_counter() - begin


def look(running):
    """Milliseconds of each kind of work, with the clients that are connected now."""
    with Console(running.port) as console:
        found = {
            command.lower().replace(" ", "_"): min(console.seconds(command) for _ in range(LOOKS))
            for command in COMMANDS
        }
    found["metrics"] = min(scrape_seconds(running.http_address) for _ in range(LOOKS))
    begin, since = cpu.tree_cpu_s(running.pids), time.monotonic()
    time.sleep(IDLE_S)
    found["idle_second"] = (cpu.tree_cpu_s(running.pids) - begin) / (time.monotonic() - since)
    return {name: value * 1000 for name, value in found.items()}


def growth(setting, running):
    """The same looks at an eighth, a quarter, half and all of the many clients."""
    figures = {"clients": setting.many_clients}
    few = None
    for part in PARTS:
        clients = setting.many_clients // part
        options = {"clients": clients, "protocol": "simple", "scale": setting.scale}
        with Generator(setting.program, "hold", running.port, options) as generator:
            ready = generator.expect("ready", READY_LIMIT_S)
            if ready["connected"] < clients:
                raise Unavailable(f"{ready['connected']} of {clients}: {ready['first_error']}")
            time.sleep(1.0)
            found = look(running)
        few = few or found
        figures |= {f"{name}_ms_{clients}": value for name, value in found.items()}
        if part == PARTS[-1]:
            times = PARTS[0] / part
            # What is below a millisecond with all of them is no growth that anybody meets.
            worst = max(
                (value / few[name] / times for name, value in found.items() if value > 1), default=0.0
            )
            figures |= {f"{name}_ms": value for name, value in found.items()}
    figures["growth"] = worst
    return figures
