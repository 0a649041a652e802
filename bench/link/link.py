#!/usr/bin/env python3
"""The link beside what a user would take instead: the table, in the laboratory, at the receiver, in real time.

    bench/link/link.py [--runs 5] [--only per-flow,two-isps,outage,long-fat,cubic,gigabit,query,query-long-fat,idle,lan,neighbours-lan,neighbours,both-lan,both,both-per-flow,connect,pgbench,copy,basebackup,rsync,mariadb]
                  [--ways plain,manage,link,pool,ssh,stunnel]
                  [--seconds 60] [--page docs/benchmarks/link.md] [--json FILE]
    bench/link/link.py --from-json FILE... [--page docs/benchmarks/link.md]     one page of runs that were made apart

Each run has a network of its own, with a seed of its own; the ways take turns. A way is what stands between a program on the
near host and one on the far host:

    plain     TCP
    manage    kernel MPTCP, both ends under `hawser mptcp manage`
    link      `hawser link dial --paths auto` and `hawser link accept`
    pool      `hawser serve` on the near host, with a link of its own, for PostgreSQL
    ssh       `ssh -L`, where there is an sshd
    stunnel   TLS by stunnel at both ends, where it is installed

A row needs the programs that it names (rsync, MariaDB) and a way what it is called by; PostgreSQL's are bench/common/cluster.py's.
The far program sends without end; what the near one has received is noted each tenth of a second, and by each path of a link
twice a second, which is plotted beside the page. It needs root. What cannot run is said, with the reason.
"""

import argparse
import contextlib
import functools
import json
import os
import pathlib
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "common"))
import cpu
import link_programs as programs
import plot
from far_server import HAWSER, ended, rate, run
from link_programs import Database, Files, MariaDb, NotHere

WAYS = ("plain", "manage", "link", "pool", "ssh", "stunnel")
STREAMS = ("plain", "manage", "link", "ssh", "stunnel")
GIGABIT_S = 20
STEADY_S = 15.0  # so long a search for paths may take
SAMPLE_EACH_S = 0.5
LINK, FAR = 7001, 7000

# Sends without end, or so many bytes; or answers each byte by one, for small queries; or takes all and says ten times a
# second how much that is.
SERVER = """
import contextlib, resource, socket, sys, threading, time
resource.setrlimit(resource.RLIMIT_NOFILE, [resource.getrlimit(resource.RLIMIT_NOFILE)[1]] * 2)
limit = int(sys.argv[2])
def serve(connection):
    buffer = bytearray(1 << 18)
    with contextlib.suppress(OSError):
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        kind, left = connection.recv(1), limit or 1 << 62
        while kind == b"q":
            connection.sendall(bytes(64))
            kind = connection.recv(1)
        piece = bytes(1 << 18)
        while kind == b"b" and left > 0:
            connection.sendall(piece[:left])
            left -= len(piece)
    took, told = 0, 0.0
    while kind == b"u" and (count := connection.recv_into(buffer)):
        took += count
        if time.monotonic() > told + 0.1:
            told = time.monotonic()
            connection.sendall(took.to_bytes(8, "big"))
    connection.close()
listener = socket.create_server(("0.0.0.0", int(sys.argv[1])), backlog=1024)
if sys.argv[3]:
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, sys.argv[3].encode())
print("listens", flush=True)
while True:
    threading.Thread(target=serve, args=(listener.accept()[0],), daemon=True).start()
"""

# What has come, each tenth of a second; the longest time without a byte, and when that began.
RECEIVER = """
import json, resource, socket, sys, time
connection = socket.create_connection((sys.argv[1], int(sys.argv[2])))
connection.sendall(b"b")
began = last = time.monotonic()
total, points, gap = 0, [], (0, 0)
while last - began < float(sys.argv[3]) and (piece := connection.recv(1 << 18)):
    total += len(piece)
    now = time.monotonic()
    gap, last = max(gap, (now - last, last - began)), now
    if not points or now - points[-1][0] - began >= 0.1:
        points.append((now - began, total))
points.append((last - began, total))
print(json.dumps({"points": points, "gap": gap}))
"""

# Sends for so many seconds: what the far program has taken, each tenth of a second.
SENDER = """
import json, socket, sys, threading, time
connection = socket.create_connection((sys.argv[1], int(sys.argv[2])))
connection.sendall(b"u")
began, points = time.monotonic(), []
def takes():
    while told := connection.recv(8, socket.MSG_WAITALL):
        points.append((time.monotonic() - began, int.from_bytes(told, "big")))
threading.Thread(target=takes, daemon=True).start()
piece = bytes(1 << 18)
while time.monotonic() - began < float(sys.argv[3]):
    connection.sendall(piece)
print(json.dumps({"points": points}))
"""

# Seconds of small queries, one after the other.
QUERIES = """
import json, socket, sys, time
connection = socket.create_connection((sys.argv[1], int(sys.argv[2])))
connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
end, times = time.monotonic() + float(sys.argv[3]), []
while (began := time.monotonic()) < end:
    connection.sendall(b"q")
    left = 64
    while left:
        left -= len(connection.recv(left))
    times.append(time.monotonic() - began)
    time.sleep(0.01)
print(json.dumps(times))
"""


# Connections that send nothing, until it is ended.
IDLE = """
import resource, socket, sys, time
resource.setrlimit(resource.RLIMIT_NOFILE, [resource.getrlimit(resource.RLIMIT_NOFILE)[1]] * 2)
held = [socket.create_connection((sys.argv[1], int(sys.argv[2]))) for _ in range(int(sys.argv[3]))]
print("open", flush=True)
time.sleep(600)
"""
IDLE_COUNT = 1000


def is_python(pid):
    """Whether it is one of the programs at the ends."""
    with contextlib.suppress(OSError):
        return b"python" in pathlib.Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[0]
    return False


class Network:
    """A network of the laboratory with a way over it, and the far program."""

    def __init__(self, description, seed, way, directory, limit_bytes=0, lines=1, services=(), congestion=""):
        self.name, self.description, self.seed, self.way = f"link-{os.getpid()}-{time.monotonic_ns() % 10**9}", description, seed, way
        self.directory, self.limit_bytes, self.lines, self.started = pathlib.Path(directory), limit_bytes, lines, []
        self.services, self.congestion = services, congestion
        self.database = next((service for service in services if isinstance(service, Database)), None)
        # Ports of the far host, and where the way has them on the near one.
        self.forwards = {FAR: LINK} | {service.port: LINK + number for number, service in enumerate(services, 1)}

    def host(self, _):
        return "10.77.0.2" if self.way in ("plain", "manage") else "127.0.0.1"

    def at(self, port):
        return port if self.way in ("plain", "manage") else self.forwards[port]

    def beside(self, *command):
        """A command on the near host, whose connections go the way."""
        under = [HAWSER, "mptcp", "run", "--"] if self.way == "manage" else []
        return self.inside("near", *under, *command)

    def inside(self, host, *command):
        return [HAWSER, "lab", "run", self.name, "--on", host, "--accept-unfaithful", "--", *map(str, command)]

    def start(self, host, *command, wait_for=None):
        log = open(self.directory / f"log{len(self.started)}", "w+b")
        out = subprocess.PIPE if wait_for else log
        process = subprocess.Popen(self.inside(host, *command), stdout=out, stderr=log, cwd="/", text=bool(wait_for))
        self.started.append(process)
        if wait_for:
            line = process.stdout.readline()
            assert wait_for in line, f"{line}{pathlib.Path(log.name).read_text()}"
        return process

    def __enter__(self):
        up = run(HAWSER, "lab", "up", self.description, "--name", self.name, "--seed", self.seed, check=False)
        if up.returncode:
            raise NotHere(up.stderr.strip())
        self.up = time.monotonic()
        try:
            self.begin()
        except BaseException:
            self.__exit__()
            raise
        return self

    def begin(self):
        under = [HAWSER, "mptcp", "run", "--"] if self.way == "manage" else []
        if self.way == "manage":
            for host in ("far", "near"):
                self.start(host, HAWSER, "mptcp", "manage")
            time.sleep(1)
        self.start("far", *under, sys.executable, "-c", SERVER, FAR, self.limit_bytes, self.congestion, wait_for="listens")
        for service in self.services:
            service.begin(self)
        if self.way in ("link", "pool", "ssh", "stunnel"):
            getattr(self, self.way)()

    def accept(self):
        """The far end of a link; the public keys of both."""
        keys = {}
        for end in ("near", "far"):
            keys[end] = run(HAWSER, "link", "keygen", self.directory / end).stdout.strip()
        allowed = [word for port in self.forwards for word in ("--allow", f"127.0.0.1:{port}")]
        congestion = ["--congestion", self.congestion] if self.congestion else []
        self.start("far", HAWSER, "link", "accept", *congestion, "--key", self.directory / "far", "--peer", keys["near"], *allowed, "--grace", "60s", wait_for="listens")
        return keys

    def link(self):
        keys = self.accept()
        far = [word for line in range(self.lines) for word in ("--far", f"10.77.{line}.2")]
        forwards = [word for port, at in self.forwards.items() for word in ("--listen", f"127.0.0.1:{at}", "--to", f"127.0.0.1:{port}")]
        self.start("near", HAWSER, "link", "dial", *far, "--key", self.directory / "near", "--peer", keys["far"], "--grace", "60s",
                   "--socket", self.directory / "socket", *forwards, wait_for="listens")
        time.sleep(2)

    def pool(self):
        keys = self.accept()
        table = f'[link.main]\nfar = ["10.77.0.2"]\nkey = "{self.directory}/near"\npeers = ["{keys["far"]}"]\n'
        programs.pooled(self, table, self.forwards[self.database.port], self.database)

    def ssh(self):
        sshd = shutil.which("sshd") or "/usr/sbin/sshd"
        if not (shutil.which("ssh") and os.path.exists(sshd)):
            raise NotHere("there is no sshd")
        for key in ("host", "user"):
            run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", self.directory / key)
        settings = self.directory / "sshd"
        settings.write_text(f"Port 2222\nHostKey {self.directory}/host\nAuthorizedKeysFile {self.directory}/user.pub\nStrictModes no\nUsePAM no\nPidFile none\nPermitRootLogin yes\n")
        pathlib.Path("/run/sshd").mkdir(exist_ok=True)
        self.start("far", sshd, "-D", "-e", "-f", settings)
        time.sleep(0.5)
        self.start("near", "ssh", "-F", "none", "-N", "-p", 2222, "-i", self.directory / "user", "-o", "StrictHostKeyChecking=no", "-o", "UserKnownHostsFile=/dev/null",
                   *(word for port, at in self.forwards.items() for word in ("-L", f"127.0.0.1:{at}:127.0.0.1:{port}")), "root@10.77.0.2")
        time.sleep(3)

    def stunnel(self):
        program = shutil.which("stunnel4") or shutil.which("stunnel")
        if not program:
            raise NotHere("stunnel is not installed")
        pem = self.directory / "pem"
        run("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-subj", "/CN=far", "-days", "2", "-keyout", pem, "-out", f"{pem}.crt")
        far, near = ["foreground = yes\npid ="], ["foreground = yes\npid ="]
        for number, (port, at) in enumerate(self.forwards.items()):
            far.append(f"[s{number}]\naccept = {6433 + number}\nconnect = 127.0.0.1:{port}\ncert = {pem}.crt\nkey = {pem}")
            near.append(f"[s{number}]\nclient = yes\naccept = 127.0.0.1:{at}\nconnect = 10.77.0.2:{6433 + number}\nverifyChain = yes\nCAfile = {pem}.crt")
        (self.directory / "far.conf").write_text("\n".join(far) + "\n")
        (self.directory / "near.conf").write_text("\n".join(near) + "\n")
        self.start("far", program, self.directory / "far.conf")
        self.start("near", program, self.directory / "near.conf")
        time.sleep(1)

    def near(self, script, *arguments, seconds):
        """A script on the near host, over the way: what it prints."""
        command = self.beside(sys.executable, "-c", script, self.host(FAR), self.at(FAR), *arguments)
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd="/")
        return process, seconds

    def outcome(self, begun):
        process, seconds = begun
        try:
            out, errors = process.communicate(timeout=seconds + 90)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
            return None
        return json.loads(out) if process.returncode == 0 and out else None

    def receive(self, seconds):
        """What has come, and, over a link, by which paths: a list of (seconds, {path: bytes})."""
        begun, over, paths = self.near(RECEIVER, seconds, seconds=seconds), threading.Event(), []
        sampler = threading.Thread(target=self.sample, args=(over, paths))
        if self.way == "link":
            sampler.start()
        got = self.outcome(begun)
        over.set()
        if self.way == "link":
            sampler.join()
        return got and got | {"paths": paths}

    def sample(self, over, paths):
        """Asks the near end what its paths have received, as `hawser link status --json` does."""
        began = time.monotonic()
        while not over.wait(SAMPLE_EACH_S):
            with contextlib.suppress(OSError, ValueError, LookupError), socket.socket(socket.AF_UNIX) as asked:
                asked.connect(str(self.directory / "socket"))
                session = json.loads(b"".join(iter(lambda: asked.recv(1 << 16), b"")))["sessions"][0]
                paths.append((time.monotonic() - began, {path["path"]: path["received_bytes"] for path in session["paths"]}))

    def processor_seconds(self):
        """What the way itself has used: not the programs at its ends."""
        ours = cpu.tree(process.pid for process in self.started)
        return sum(cpu.process_cpu_s(pid) for pid in ours if not is_python(pid))

    def private_bytes(self):
        """Memory of each process of the way itself that is no other one's."""
        def of(pid):
            with contextlib.suppress(OSError):
                lines = pathlib.Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
                return sum(int(line.split()[1]) << 10 for line in lines if line.startswith(("Private_Clean:", "Private_Dirty:")))
            return 0
        return {pid: of(pid) for pid in cpu.tree(process.pid for process in self.started) if not is_python(pid)}

    def __exit__(self, *_):
        for process in reversed(self.started):
            process.terminate()
        run(HAWSER, "lab", "down", self.name, check=False)
        ended(self.started)


def case_per_flow(network, seconds):
    got = network.receive(seconds)
    if not got:
        return {"steady": 0.0}
    points = got["points"]
    reached = next((t for t, _ in points if t + 3 <= points[-1][0] and rate(points, t, t + 3) >= 71), None)
    return {"steady": rate(points, STEADY_S, seconds), "reached": reached, "points": points, "paths": got["paths"]}


def case_two_isps(network, _):
    """The first line is cut from second 20 to 25 of the network."""
    offset = time.monotonic() - network.up
    got = network.receive(45 - offset)
    if not got or got["points"][-1][0] < 40 - offset:
        return {"steady": 0.0, "stall": None}
    points = got["points"]
    cut = 20 - offset
    return {"steady": rate(points, cut - 9, cut - 0.5), "after": rate(points, cut + 12, cut + 25), "stall": got["gap"][0], "points": points, "paths": got["paths"]}


def case_long_fat(network, seconds):
    got = network.receive(seconds)
    return {"steady": rate(got["points"], STEADY_S, seconds), "points": got["points"], "paths": got["paths"]} if got else {"steady": 0.0}


def case_query(network, _):
    """p99 of small queries: alone, then beside what is bulky."""
    alone = network.outcome(network.near(QUERIES, 8, seconds=8))
    bulk = network.near(RECEIVER, 25, seconds=25)
    time.sleep(10)
    beside = network.outcome(network.near(QUERIES, 12, seconds=12))
    network.outcome(bulk)
    percentile = lambda times: 1e3 * sorted(times)[int(len(times) * 0.99)] if times else None
    return {"alone": percentile(alone), "beside": percentile(beside)}


def case_lan(network, _):
    before = network.processor_seconds()
    got = network.receive(120)
    points = got["points"] if got else [(1, 0)]
    return {"steady": points[-1][1] * 8 / 1e6 / points[-1][0], "processor": (network.processor_seconds() - before) / max(points[-1][1] / 1e9, 1e-9)}


def case_idle(network, _):
    """What an idle connection costs at the end where it costs more."""
    before = network.private_bytes()
    process, _ = network.near(IDLE, IDLE_COUNT, seconds=60)
    is_open = process.stdout.readline().strip() == "open"
    time.sleep(5)
    after = network.private_bytes()
    process.terminate()
    process.communicate()
    grew = [after[pid] - before.get(pid, 0) for pid in after if pid in before]
    return {"idle": max(grew, default=0) / IDLE_COUNT / 1024 if is_open else None}


BUSY_S = 20.0  # of which the second half counts


def busy_rate(got, seconds):
    return rate(got["points"], seconds / 2, seconds) if got else 0.0


def case_neighbours(network, _):
    """One bulk stream alone, then beside connections over which nothing goes."""
    busy = lambda: busy_rate(network.outcome(network.near(RECEIVER, BUSY_S, seconds=BUSY_S)), BUSY_S)
    found = {"steady": busy()}
    for count in (1, IDLE_COUNT):
        process, _ = network.near(IDLE, count, seconds=60)
        assert process.stdout.readline().strip() == "open"
        found[f"idle_{count}"] = busy() / max(found["steady"], 1e-9)
        process.terminate()
        process.communicate()
    return found


def case_both(network, _):
    """Bulk in each direction alone, then in both at once."""
    down, up = ((lambda script=script: network.near(script, BUSY_S, seconds=BUSY_S)) for script in (RECEIVER, SENDER))
    alone = [busy_rate(network.outcome(begin()), BUSY_S) for begin in (down, up)]
    begun = [begin() for begin in (down, up)]
    both = [busy_rate(network.outcome(one), BUSY_S) for one in begun]
    return {"down": both[0], "up": both[1], "by_alone": min(two / max(one, 1e-9) for one, two in zip(alone, both))}


NEIGHBOURS = {"steady": ("Mbit/s alone", "-"), "idle_1": ("beside 1 silent connection, by that", "0.98"), f"idle_{IDLE_COUNT}": (f"beside {IDLE_COUNT}, by that", "0.98")}
BOTH = {"down": ("Mbit/s to the near end while as much as possible goes to the far end", "-"), "up": ("Mbit/s to the far end", "-"), "by_alone": ("the smaller of the two, by that direction alone", "0.95")}

OUTAGE = """
[[link]]
name = "one"
rate = "50Mbit/s"
rtt = "20ms"
queue = "200packets"
outages = [{ at = "15s", lasts = "20s", every = "600s" }]
[[link]]
name = "two"
rate = "10Mbit/s"
rtt = "80ms"
queue = "100packets"
outages = [{ at = "15s", lasts = "20s", every = "600s" }]
"""


# As clouds limit a flow (5 Gbit/s there), as far as two processors carry it.
GIGABIT = """
[[link]]
rtt = "2ms"
limit = { classes = 8, rate = "1Gbit/s", queue = "1000packets" }
"""
OWN = {"outage": OUTAGE, "gigabit": GIGABIT}


def case_gigabit(network, _):
    before = network.processor_seconds()
    got = network.receive(GIGABIT_S)
    points = got["points"] if got else [(1, 0)]
    used = (network.processor_seconds() - before) / max(points[-1][1] / 1e9, 1e-9)
    return {"steady": rate(points, GIGABIT_S / 2, GIGABIT_S) if got else 0.0, "processor": used}


def case_outage(network, _):
    """Both lines are out from second 15 to 35 of the network."""
    offset = time.monotonic() - network.up
    got = network.receive(60 - offset)
    if not got or got["points"][-1][0] < 50 - offset:
        return {"after": 0.0, "again": None}
    began = got["gap"][1] + got["gap"][0]
    return {"after": rate(got["points"], 48 - offset, 58 - offset), "again": began - (35 - offset), "points": got["points"], "paths": got["paths"]}


CASES = {
    "per-flow": ("per-flow", case_per_flow, 0, STREAMS, {"steady": ("Mbit/s from second 15 on", "71 of 75.3"), "reached": ("seconds until 71", "15")}),
    "two-isps": ("two-isps", case_two_isps, 0, ("plain", "manage", "link"), {"steady": ("Mbit/s of both lines", "95 % of 57.5: 54.6"), "stall": ("longest stall, s", "1"), "after": ("Mbit/s once the line is back", "54.6")}),
    "outage": ("outage", case_outage, 0, ("plain", "manage", "link"), {"again": ("seconds until it goes on, after both lines were out for 20 s", "-"), "after": ("Mbit/s then", "-")}),
    "long-fat": ("long-fat", case_long_fat, 0, STREAMS, {"steady": ("Mbit/s from second 15 on", "88 of 90.9")}),
    "cubic": ("long-fat", case_long_fat, 0, ("plain", "link"), {"steady": ("Mbit/s from second 15 on, over `long-fat` with cubic at the far end", "60")}),
    "gigabit": ("gigabit", case_gigabit, 0, ("plain", "link"), {"steady": (f"Mbit/s of the last {GIGABIT_S // 2} s where each flow has 1 Gbit/s at most", "-"), "processor": ("seconds of a processor for a GB, both ends", "-")}),
    "query": ("per-flow", case_query, 0, ("plain", "manage", "link"), {"alone": ("p99 of small queries alone, ms", "-"), "beside": ("p99 beside a bulk stream, ms", "alone + 10")}),
    "query-long-fat": ("long-fat", case_query, 0, ("plain", "link"), {"alone": ("p99 of small queries at 217 ms alone, ms", "-"), "beside": ("p99 beside a bulk stream, ms", "1.25 times alone")}),
    "idle": ("lan", case_idle, 0, ("link", "ssh", "stunnel"), {"idle": (f"KiB for each of {IDLE_COUNT} idle connections, at the end where it is more", "1")}),
    "lan": ("lan", case_lan, 1 << 30, ("plain", "link", "ssh", "stunnel"), {"steady": ("Mbit/s", "more than stunnel"), "processor": ("seconds of a processor for a GB, both ends", "less than stunnel")}),
    "neighbours-lan": ("lan", case_neighbours, 0, ("plain", "link", "stunnel"), NEIGHBOURS),
    "neighbours": ("long-fat", case_neighbours, 0, ("plain", "link"), NEIGHBOURS),
    "both-lan": ("lan", case_both, 0, ("plain", "link", "stunnel"), BOTH),
    "both": ("long-fat", case_both, 0, ("plain", "link"), BOTH),
    "both-per-flow": ("per-flow", case_both, 0, ("plain", "manage", "link"), BOTH),
    "connect": ("long-fat", programs.case_connect, 0, WAYS, {"first_row": ("connect and first row of psql at 217 ms, s", "0.26")}),
    "pgbench": ("long-fat", programs.case_pgbench, 0, WAYS, {"all": (f"`pgbench -S -t {programs.TRANSACTIONS}` at 217 ms, s: 22 round trips are 4.77", "-"), "selects": (f"the {programs.TRANSACTIONS} transactions of it, by `pgbench -f`, s: 20 round trips are 4.34", "4.6")}),
    "copy": ("per-flow", programs.case_copy, 0, STREAMS, {"steady": ("COPY, Mbit/s from second 15 on", "71 of 75.3")}),
    "basebackup": ("per-flow", programs.case_basebackup, 0, STREAMS, {"whole": ("pg_basebackup, Mbit/s from its start to its end", "-")}),
    "rsync": ("per-flow", programs.case_rsync, 0, STREAMS, {"whole": (f"rsync of {programs.RSYNC_BYTES >> 20} MiB, Mbit/s from its start to its end", "-")}),
    "mariadb": ("per-flow", programs.case_mariadb, 0, STREAMS, {"whole": (f"a dump of {programs.MARIADB_BYTES >> 20} MiB of MariaDB, Mbit/s from its start to its end", "-")}),
}
NEEDS = dict.fromkeys(("connect", "pgbench", "copy", "basebackup"), Database) | {"rsync": Files, "mariadb": MariaDb}
CONGESTION = {"cubic": "cubic"}  # of what the far end sends, where it is not the host's default


def shown(values):
    values = [value for value in values if value is not None]
    if not values:
        return "never"
    digits = 2 if max(values) < 10 else 1
    return f"{statistics.median(values):.{digits}f} ({', '.join(f'{value:.{digits}f}' for value in sorted(values))})"


@functools.cache
def kept(kind):
    """The database or the files, made once, and where they lie until the end."""
    directory = tempfile.TemporaryDirectory()
    return kind(directory.name), directory


def measure(case, way, runs, seconds):
    description, act, limit_bytes, _, _ = CASES[case]
    services = [kept(NEEDS[case])[0]] if case in NEEDS else []
    results = []
    for number in range(runs):
        with tempfile.TemporaryDirectory() as directory:
            os.chmod(directory, 0o700)
            own = pathlib.Path(directory, "own.toml")
            own.write_text(OWN.get(description, ""))
            lines = 2 if case in ("two-isps", "outage") else 1
            with Network(own if description in OWN else description, number + 1, way, directory, limit_bytes, lines, services, CONGESTION.get(case, "")) as network:
                results.append(act(network, seconds))
        print(f"{case}, {way}, run {number + 1}: " + ", ".join(f"{name} {value:.2f}" for name, value in results[-1].items() if isinstance(value, float)), file=sys.stderr, flush=True)
    return results


def table(found, absent, load, note=""):
    counts = sorted({len(runs) for runs in found.values()}) or [0]
    many = f"{counts[0]} run" if counts == [1] else f"{counts[0]} runs" if len(counts) == 1 else f"{counts[0]} to {counts[-1]} runs"
    lines = ["# The link, measured", "", f"`bench/link/link.py` printed this: medians of {many}, each with a network of its own, and in brackets every run. "
             "The receiver measured; rates are of what the program gets. Both ends, the network and all programs share one machine, whose load average was "
             f"{min(load):.0f} to {max(load):.0f}. {note}".rstrip(), "", "| | way | measured | wanted of the link |", "|---|---|---|---|"]
    for case, (_, _, _, ways, figures) in CASES.items():
        measured_by = "pool" if "pool" in ways else "link"
        for figure, (words, wanted) in figures.items():
            for way in ways:
                values = [one[figure] for one in found.get((case, way), []) if figure in one]
                if values:
                    lines.append(f"| `{case}`: {words} | {way} | {shown(values)} | {wanted if way == measured_by else ''} |")
    if absent:
        lines += ["", "Not measured:", ""] + [f"* {case}, {way}: {why}" for (case, way), why in absent.items()]
    return "\n".join(lines) + "\n"


def plots(found, page):
    """A chart for each case whose paths were looked at, of its first run, beside the page; the lines that show them there."""
    lines = []
    for (case, _way), runs in found.items():
        if not runs[0].get("paths"):
            continue
        chart = page.with_name(f"link-{case}.svg")
        chart.write_text(plot.rates_chart(f"{case}: what each path of the link carries, run 1", runs[0]["paths"]))
        lines += ["", f"![What each path carries over {case}]({chart.name})"]
    return "\n".join(lines + [""]) if lines else ""


class Results:
    """Runs, and what was not measured, of this process or of files that others have written."""

    def __init__(self):
        self.found, self.absent, self.load = {}, {}, [os.getloadavg()[0]] * 2

    def read(self, files):
        loads = []
        for file in files:
            stored = json.loads(file.read_text())
            loads += stored["load"]
            for row in stored["rows"]:
                self.found.setdefault((row["case"], row["way"]), []).extend(row["runs"])
            for row in stored["absent"]:
                self.absent[row["case"], row["way"]] = row["why"]
        self.absent = {key: why for key, why in self.absent.items() if key not in self.found}
        self.load = [min(loads), max(loads)]

    def measure(self, case, way, arguments):
        try:
            self.found[case, way] = measure(case, way, arguments.runs, arguments.seconds)
        except NotHere as reason:
            self.absent[case, way] = str(reason)
            print(f"NOT MEASURED: {case}, {way}: {reason}", file=sys.stderr, flush=True)
        load = [*self.load, os.getloadavg()[0]]
        self.load = [min(load), max(load)]

    def write(self, arguments):
        """The page and the file, of what there is so far: the whole takes hours."""
        if arguments.page:
            arguments.page.write_text(table(self.found, self.absent, self.load, arguments.note) + plots(self.found, arguments.page))
        if arguments.json:
            rows = [{"case": case, "way": way, "runs": runs} for (case, way), runs in self.found.items()]
            absent = [{"case": case, "way": way, "why": why} for (case, way), why in self.absent.items()]
            arguments.json.write_text(json.dumps({"load": self.load, "rows": rows, "absent": absent}))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--only", default=",".join(CASES))
    parser.add_argument("--ways", default=",".join(WAYS))
    parser.add_argument("--note", default="", help="a sentence for the page: what is unusual about this run")
    parser.add_argument("--page", type=pathlib.Path, help="write the table there")
    parser.add_argument("--json", type=pathlib.Path, help="write every run there")
    parser.add_argument("--from-json", type=pathlib.Path, nargs="+", help="measure nothing: take what --json has written")
    arguments = parser.parse_args()
    results = Results()
    if arguments.from_json:
        results.read(arguments.from_json)
        results.write(arguments)
    else:
        for case in arguments.only.split(","):
            for way in (way for way in CASES[case][3] if way in arguments.ways.split(",")):
                results.measure(case, way, arguments)
                results.write(arguments)
    print(table(results.found, results.absent, results.load, arguments.note))


if __name__ == "__main__":
    main()
