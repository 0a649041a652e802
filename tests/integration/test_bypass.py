"""`hawser bypass`: local connections past TCP, by the kernel's own programs, in control groups of these tests.

A BPF file system that only what is started from here sees; nothing of the machine's own is taken in. Where the machine
refuses BPF, what needs it is skipped, with the reason.
"""

import contextlib
import fcntl
import json
import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import sys
import time

from harness.pooler import binary
from harness.suite import Skip, equal, limit, until
from integration.test_preload import found_server

SAME_FOR_ALL_SERVERS = True
ALONE = "lines"  # and the control group of all `run` is there once
TAKES_SECONDS = 80

CHAOS = pathlib.Path(__file__).resolve().parents[2] / "bench/bypass/bypass_chaos.py"
ULP, TLS = 31, b"tls"
# A pair of which neither end waits, and how many messages went past TCP meanwhile.
PAIR = f"""
import json, os, select, socket, subprocess, sys, time
def status():
    return json.loads(subprocess.run([{str(binary())!r}, "bypass", "status", "--json"], check=True, capture_output=True).stdout)
def pair(family=socket.AF_INET, host="127.0.0.1"):
    listener = socket.socket(family); listener.bind((host, 0)); listener.listen()
    near = socket.socket(family); near.setblocking(False); near.connect_ex(listener.getsockname())
    far, _ = listener.accept(); far.setblocking(False); listener.close()
    select.select([], [near], [], 5)
    # Who reads without an epoll is sent nothing past TCP before it has read by TCP.
    near.send(b"."); receive(far, 1); far.send(b"."); receive(near, 1)
    return near, far
def receive(sock, count):
    data = b""
    while len(data) < count:
        assert select.select([sock], [], [], 10)[0], f"{{len(data)}} of {{count}}"
        data += sock.recv(count - len(data))
    return data
"""


def hierarchy():
    for line in pathlib.Path("/proc/self/mountinfo").read_text().splitlines():
        mount, what = line.split(" - ")
        if what.split()[0] == "cgroup2":
            return pathlib.Path(mount.split()[4])
    raise Skip("no cgroup v2 is mounted")


class Kernel:
    """A BPF file system of its own; `prepare` is done to the mounts as well."""

    def __init__(self, stack, prepare=":", mount_bpf=True):
        if os.geteuid() != 0:
            raise Skip("it needs root")
        mount = "mount -t bpf bpf /sys/fs/bpf && " if mount_bpf else ""
        script = f"while mountpoint -q /sys/fs/bpf; do umount /sys/fs/bpf; done; {mount}{prepare} && echo ready && exec sleep 600"
        self.holder = subprocess.Popen(["unshare", "--mount", "--propagation", "private", "sh", "-c", script],
                                       stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        stack.callback(self.end)
        if self.holder.stdout.readline() != "ready\n":
            raise Skip(f"the mounts cannot be prepared here: {self.holder.stderr.read().strip()}")

    def end(self):
        if self.holder.poll() is None:
            subprocess.run(self.inside(binary(), "bypass", "off"), capture_output=True)
        # What a test that failed has left running would be in the way of the next ones.
        for processes in hierarchy().glob("hawser-bypass*/run-*/cgroup.procs"):
            for process in processes.read_text().split():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(process), signal.SIGKILL)
        self.holder.kill()
        self.holder.wait()

    def inside(self, *command):
        return ["nsenter", f"--mount=/proc/{self.holder.pid}/ns/mnt", "--", *map(str, command)]

    def start(self, *command):
        return subprocess.Popen(self.inside(binary(), "bypass", "run", "--", *command), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def hawser(self, *words, code=0):
        done = subprocess.run(self.inside(binary(), "bypass", *words), capture_output=True, text=True, timeout=60)
        equal(done.returncode, code, f"exit code of bypass {words} ({done.stdout}{done.stderr})")
        return done.stdout if code == 0 else done.stdout + done.stderr

    def python(self, script, *words, code=0):
        """A script under `run`."""
        return self.hawser("run", "--", sys.executable, "-c", PAIR + script, *words, code=code)

    def status(self):
        return json.loads(self.hawser("status", "--json"))

    def left(self):
        """What of Hawser's is pinned, or a control group."""
        pins = subprocess.run(self.inside("ls", "/sys/fs/bpf"), capture_output=True, text=True).stdout.split()
        groups = [path.name for path in hierarchy().iterdir() if path.name.startswith(("hawser-bypass", "hawser-selftest"))]
        return [name for name in pins if not name.endswith(".debug")] + groups


def needs_bypass(stack):
    """A kernel that lets us; else a skip that says why."""
    hierarchy()
    kernel = Kernel(stack)
    done = subprocess.run(kernel.inside(binary(), "bypass", "selftest"), capture_output=True, text=True, timeout=60)
    if done.returncode in (3, 4):
        raise Skip(done.stderr.strip())
    wrong = [line for line in done.stdout.splitlines() if not line.startswith("ok") and "of the processor time" not in line]
    equal(wrong, [], f"the self-test ({done.stdout}{done.stderr})")
    return kernel


@limit(60)
def test_the_self_test_passes_and_leaves_nothing(env):
    with contextlib.ExitStack() as stack:
        kernel = needs_bypass(stack)
        equal(kernel.left(), [])
        equal(kernel.status()["state"], "off")
        assert "nothing to do" in kernel.hawser("off")


@limit(60)
def test_programs_of_run_talk_past_tcp_in_ipv4_ipv6_and_both(env):
    with contextlib.ExitStack() as stack:
        kernel = needs_bypass(stack)
        said = json.loads(kernel.python("""
found = []
for family, host in ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1"), (socket.AF_INET6, "::ffff:127.0.0.1")):
    before = status()
    near, far = pair(family, host)
    near.send(b"there"); assert receive(far, 5) == b"there"
    far.send(b"and back"); assert receive(near, 8) == b"and back"
    after = status()
    found.append((after["redirected"] - before["redirected"], after["redirected_bytes"] - before["redirected_bytes"], after["pairs"]))
print(json.dumps(found)); sys.stdout.flush()
near.close(); far.close()
"""))
        equal(said, [[2, 13, 1], [2, 13, 1], [2, 13, 1]])
        equal(kernel.left(), [], "after the program has ended")
        kernel.hawser("run", "--", "sh", "-c", "exit 7", code=7)
        kernel.hawser("run", "--", "sh", "-c", "kill -9 $$", code=137)
        assert "no-such-program" in kernel.hawser("run", "--", "no-such-program", code=127)
        equal(kernel.left(), [])


@limit(90)
def test_two_runs_reach_each_other_and_others_stay_with_tcp(env):
    with contextlib.ExitStack() as stack:
        kernel = needs_bypass(stack)
        serving = kernel.start(sys.executable, "-c", PAIR + """
listener = socket.socket(); listener.bind(("127.0.0.1", 0)); listener.listen()
print(listener.getsockname()[1], flush=True)
for _ in range(2):
    far, _ = listener.accept(); far.setblocking(False)
    far.send(receive(far, 5)); far.send(receive(far, 5)); receive(far, 1)
""")
        stack.callback(serving.kill)
        port = int(serving.stdout.readline())
        dial = f"""
near = socket.socket(); near.setblocking(False); near.connect_ex(("127.0.0.1", {port})); select.select([], [near], [], 5)
time.sleep(0.3)
for _ in range(2): near.send(b"hallo"); assert receive(near, 5) == b"hallo"
print(json.dumps(status())); near.send(b"."); near.close()
"""
        equal(kernel.status()["redirected"], 0)
        outside = subprocess.run(kernel.inside(sys.executable, "-c", PAIR + dial), capture_output=True, text=True, timeout=30, check=True)
        equal(json.loads(outside.stdout)["sockets"], 0, "one end alone is not taken in")
        within = json.loads(kernel.python(dial))
        equal((within["pairs"], within["redirected"]), (1, 2))
        equal(len(within["runs"]), 2)
        equal(serving.wait(20), 0)
        until(lambda: kernel.left() == [], "nothing is left")


@limit(90)
def test_a_reader_that_waits_for_edges_gets_everything(env):
    """Such a reader may take a short read for the end of what is there (epoll(7)), and messages end a read: it stays with TCP."""
    with contextlib.ExitStack() as stack:
        kernel = needs_bypass(stack)
        said = json.loads(kernel.python("""
def redirected(events):
    near, far = pair()
    waiting = select.epoll(); waiting.register(far, events)
    before, left, got = status()["redirected"], 3_000_000, 0
    while got < 3_000_000:
        while left > 0:
            try: left -= near.send(b"x" * min(8192, left))
            except BlockingIOError: break
        if not waiting.poll(5): return "nothing comes any more"
        while True:
            try: read = len(far.recv(50_000))
            except BlockingIOError: break
            got += read
            if read < 50_000: break
    return status()["redirected"] - before
print(json.dumps([redirected(select.EPOLLIN), redirected(select.EPOLLIN | select.EPOLLET)]))
"""))
        assert said[0] > 5, said
        equal(said[1], 0, "of a reader of edges")


@limit(60)
def test_one_that_gets_its_first_message_before_it_waits_for_edges_gets_everything(env):
    with contextlib.ExitStack() as stack:
        kernel = needs_bypass(stack)
        said = json.loads(kernel.python("""
listener = socket.socket(); listener.bind(("127.0.0.1", 0)); listener.listen()
near = socket.socket(); near.setblocking(False); near.connect_ex(listener.getsockname())
far, _ = listener.accept(); far.setblocking(False); select.select([], [near], [], 5)
before = status()["redirected"]
near.send(b"first")
waiting = select.epoll(); waiting.register(far, select.EPOLLIN | select.EPOLLET)
near.send(b"second"); time.sleep(0.2)
assert waiting.poll(5)
got = far.recv(1000)
if len(got) < 11 and waiting.poll(1): got += far.recv(1000)
print(json.dumps([got.decode(), status()["redirected"] - before]))
"""))
        equal(said, ["firstsecond", 0])


# A program that waits for edges, at an address given, and a client that sends it 3 MB; how many messages went past TCP.
OTHER_READER = PAIR + """
listener = socket.socket(); listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
listener.bind((sys.argv[1], int(sys.argv[2]))); listener.listen()
near = socket.socket(); near.setblocking(False); near.connect_ex(listener.getsockname())
far, _ = listener.accept(); far.setblocking(False); select.select([], [near], [], 5)
waiting = select.epoll(); waiting.register(far, select.EPOLLIN | select.EPOLLET)
before, left, got = status(), 3_000_000, 0
while got < 3_000_000:
    while left > 0:
        try: left -= near.send(b"x" * min(8192, left))
        except BlockingIOError: break
    assert waiting.poll(5), "nothing comes any more"
    while True:
        try: read = len(far.recv(50_000))
        except BlockingIOError: break
        got += read
        if read < 50_000: break
print(json.dumps([before["sockets"], status()["redirected"] - before["redirected"]]))
"""


@limit(90)
def test_another_program_at_the_pooler_s_port_is_not_taken_for_the_pooler(env):
    def other(kernel, address, port):
        done = subprocess.run(kernel.inside(sys.executable, "-c", OTHER_READER, address, str(port)), capture_output=True, text=True, timeout=60)
        equal(done.returncode, 0, done.stderr)
        sockets, redirected = json.loads(done.stdout)
        assert sockets >= 2, "it is taken in, as far as that goes"
        equal(redirected, 0, f"messages past TCP to a reader of edges at {address}")
    with contextlib.ExitStack() as stack:
        kernel = needs_bypass(stack)
        with pooler(env, kernel, "on") as (ask, path, _):
            equal(ask("select 1;\n"), ["1"])
            port = int(re.search(r'address = "127.0.0.1:(\d+)"', pathlib.Path(path).read_text()).group(1))
            other(kernel, "127.0.0.2", port)
            os.kill(shown(kernel, path)["pid"], signal.SIGKILL)
        other(kernel, "127.0.0.1", port)
        kernel.hawser("off")
        equal(kernel.left(), [])


@limit(60)
def test_a_self_test_that_is_ended_leaves_nothing_or_what_off_takes_away(env):
    with contextlib.ExitStack() as stack:
        kernel = needs_bypass(stack)
        for number, code in ((signal.SIGTERM, 5), (signal.SIGKILL, -9)):
            running = subprocess.Popen(kernel.inside(binary(), "bypass", "selftest"), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
            until(lambda: len(kernel.left()) == 2, "it has begun", 5)
            running.send_signal(number)
            equal(running.wait(20), code, running.stderr.read())
            if number == signal.SIGKILL:
                equal(len(kernel.left()), 2)
                kernel.hawser("off")
            equal(kernel.left(), [])


@limit(120)
def test_large_rows_come_whole_through_the_pooler(env):
    """A result is longer than what may wait past TCP, so that parts of it go through TCP while others wait."""
    row = __import__("hashlib").md5(b"a").hexdigest() * 20000
    with contextlib.ExitStack() as stack:
        kernel = needs_bypass(stack)
        with pooler(env, kernel, "on") as (ask, _, _):
            for _ in range(5):
                equal(ask("select repeat(md5('a'), 20000);\n", 12), [row] * 12)
            shown = kernel.status()
            assert shown["redirected"] > 0 and shown["passed_full"] > 0, shown


@limit(90)
def test_what_is_not_certain_goes_through_tcp(env):
    with contextlib.ExitStack() as stack:
        kernel = needs_bypass(stack)
        said = json.loads(kernel.python(f"""
found = {{}}
def redirected(what, near, far):
    before = status()["redirected"]
    for round in range(3):
        near.send(b"x" * 100); assert receive(far, 100) == b"x" * 100
    found[what] = status()["redirected"] - before
near, far = pair(); redirected("both do not wait", near, far)
far.setblocking(True); redirected("a reader that waits", near, far)
far.setblocking(False); redirected("and no longer", near, far)
far.shutdown(socket.SHUT_WR); redirected("half closed", near, far)
near, far = pair()
try: near.setsockopt(socket.IPPROTO_TCP, {ULP}, {TLS!r}); found["ktls"] = "taken"
except OSError as error: found["ktls"] = error.errno
other = socket.socket(); other.bind(("127.0.0.1", 0)); other.listen()
plain = socket.create_connection(other.getsockname()); other.accept()
try: plain.setsockopt(socket.IPPROTO_TCP, {ULP}, {TLS!r}); found["ktls of others"] = "taken"
except OSError as error: found["ktls of others"] = error.errno
before = status()
try:
    for _ in range(100000): near.send(b"x")
except BlockingIOError: pass
found["never read"] = status()["redirected"] - before["redirected"]
count = 0
while True:
    try: data = far.recv(1 << 16)
    except BlockingIOError: break
    assert data.strip(b"x") == b""; count += len(data)
found["read"] = count == 100000 or count
print(json.dumps(found))
"""))
        assert said.pop("ktls of others") != 1, "kTLS is refused to sockets of the map alone"
        equal(said, {"both do not wait": 3, "a reader that waits": 0, "and no longer": 3, "half closed": 0, "ktls": 1, "never read": 128, "read": True})


def chaos(kernel, seconds):
    return kernel.start(sys.executable, CHAOS, "--seconds", seconds, "--connections", 12)


def right(running, said):
    found = json.loads(said or "{}")
    equal(found.get("wrong", "it has said nothing"), None, said)
    assert found["whole"] > 5 and found["bytes"] > 1_000_000, said
    return found


@limit(120)
def test_chaos_loses_doubles_and_reorders_no_byte(env):
    with contextlib.ExitStack() as stack:
        kernel = needs_bypass(stack)
        running = chaos(kernel, 10)
        stack.callback(running.kill)
        time.sleep(9)
        counted = kernel.status()
        said, _ = running.communicate(timeout=60)
        equal(running.returncode, 0, said)
        right(running, said)
        assert counted["redirected"] > 100 and counted["passed_unread"] > 10, counted
        equal(kernel.left(), [])


@limit(120)
def test_the_death_of_the_loader_and_off_from_elsewhere_harm_no_connection(env):
    with contextlib.ExitStack() as stack:
        kernel = needs_bypass(stack)
        running = chaos(kernel, 9)
        until(lambda: kernel.status()["redirected"] > 20, "something goes past TCP", 20)
        child = subprocess.run(["pgrep", "-P", str(running.pid)], capture_output=True, text=True).stdout.split()
        running.kill()  # the loader itself: its program goes on
        running.wait()
        before = kernel.status()
        equal((before["state"], len(before["runs"])), ("on", 1))
        until(lambda: kernel.status()["redirected"] > before["redirected"] + 20, "it goes on without its loader", 20)
        assert "is off" in kernel.hawser("off")
        equal(kernel.status()["state"], "off")
        said = running.stdout.read()
        right(running, said)
        assert child, "its program was its child"
        # The control group goes with the next command, for nobody was there to see its end.
        until(lambda: kernel.hawser("off") and kernel.left() == [], "nothing is left")


# A server and a client that wait in recv(2), a message at a time, and an end of the stream.
WAITING = """
listener = socket.create_server(("127.0.0.1", 0))
if os.fork() == 0:
    served, _ = listener.accept()
    while data := served.recv(65536): served.sendall(data)
    os._exit(0)
client = socket.create_connection(listener.getsockname())
for number in range(300):
    message = b"%d" % number * 10
    client.sendall(message); assert client.recv(65536) == message, number
client.shutdown(socket.SHUT_WR)
assert client.recv(1) == b""
os.wait()
print(json.dumps(status()))
"""


@limit(90)
def test_programs_that_wait_in_recv_are_counted_and_go_past_tcp_where_asked_for(env):
    with contextlib.ExitStack() as stack:
        kernel = needs_bypass(stack)
        holder = kernel.start("sleep", "600")  # the counters live as long as anything runs
        stack.callback(lambda: (holder.terminate(), holder.wait()))
        until(lambda: kernel.status()["programs"], "it runs")
        said = json.loads(kernel.python(WAITING))
        equal((said["redirected"], said["not_taken_in"]), (0, 1))
        assert "1 connections of programs that wait" in kernel.hawser("status")
        said = json.loads(kernel.hawser("run", "--blocking", "--", sys.executable, "-c", PAIR + WAITING))
        # All but the first message and its answer.
        equal((said["redirected"], said["not_taken_in"]), (598, 1))


@limit(60)
def test_who_may_not_and_what_is_missing_is_said_and_nothing_is_left(env):
    with contextlib.ExitStack() as stack:
        needs_bypass(stack)
        kernel = Kernel(stack)
        nobody = subprocess.run(kernel.inside("setpriv", "--reuid=65534", "--clear-groups", binary(), "bypass", "selftest"), capture_output=True, text=True)
        equal(nobody.returncode, 4, nobody.stderr)
        assert "CAP_BPF" in nobody.stderr, nobody.stderr
        nobody = subprocess.run(kernel.inside("setpriv", "--reuid=65534", "--clear-groups", binary(), "bypass", "run", "--", "true"), capture_output=True, text=True)
        equal(nobody.returncode, 125, nobody.stderr)
        without_cgroups = "umount $(findmnt -n -t cgroup2 -o TARGET) 2>/dev/null || umount -l $(findmnt -n -t cgroup2 -o TARGET)"
        for prepare, mount_bpf, words in ((":", False, "mount -t bpf bpf /sys/fs/bpf"), ("mount -t tmpfs none /sys/kernel/btf", True, "CONFIG_DEBUG_INFO_BTF"),
                                          (without_cgroups, True, "no cgroup v2")):
            poor = Kernel(stack, prepare, mount_bpf)
            said = poor.hawser("selftest", code=3)
            assert words in said, said
            said = poor.hawser("run", "--", "true", code=125)
            assert words in said, said
            if mount_bpf:
                equal(poor.left(), [])


@limit(60)
def test_one_changes_it_at_a_time_and_off_waits_for_nobody_before_it_acts(env):
    with contextlib.ExitStack() as stack:
        kernel = needs_bypass(stack)
        running = kernel.start("sleep", "60")
        stack.callback(running.kill)
        until(lambda: kernel.status()["programs"], "it runs")
        with open("/run/hawser-bypass/lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            assert "another hawser" in kernel.hawser("run", "--", "true", code=125)
            assert "is off" in kernel.hawser("off")
        equal(kernel.status()["state"], "off")
        running.send_signal(signal.SIGTERM)
        equal(running.wait(20), 143, "the program's end by a signal, as a shell says it")
        until(lambda: kernel.left() == [], "nothing is left")


@limit(150)
def test_postgresql_psql_and_copy_past_tcp(env):
    programs = found_server()
    data = pathlib.Path(env.directory) / "past-tcp"
    user = ["setpriv", "--reuid=postgres", "--regid=postgres", "--init-groups"]
    with contextlib.ExitStack() as stack:
        kernel = needs_bypass(stack)
        data.mkdir()
        shutil.chown(data, "postgres", "postgres")
        subprocess.run([*user, programs / "initdb", "-D", data, "-A", "trust", "-U", "postgres", "--no-sync"], check=True, capture_output=True, cwd="/")
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        serving = kernel.start(*user, programs / "postgres", "-D", data, "-p", port, "-c", "listen_addresses=127.0.0.1",
                               "-c", "unix_socket_directories=", "-c", "fsync=off")
        stack.callback(lambda: (serving.terminate(), serving.wait(30)))
        until(lambda: subprocess.run([programs / "pg_isready", "-h", "127.0.0.1", "-p", str(port)], capture_output=True).returncode == 0, "ready", 60)

        def psql(text):
            return kernel.hawser("run", "--", "psql", "-XqAt", f"host=127.0.0.1 port={port} user=postgres dbname=postgres sslmode=disable", "-c", text).strip()

        before = kernel.status()["redirected"]
        equal(psql("select 1"), "1")
        assert kernel.status()["redirected"] > before, "queries go past TCP"
        equal(psql("select sum(length(repeat('x', 1000))) from generate_series(1, 20000)"), "20000000")
        table = "create table t as select n, md5(n::text) as text from generate_series(1, 300000) n"
        psql(table)
        whole = psql("select md5(string_agg(n || text, ',' order by n)) from t")
        out = pathlib.Path(env.directory) / "t.copy"
        out.write_text(kernel.hawser("run", "--", "psql", "-Xq", f"host=127.0.0.1 port={port} user=postgres dbname=postgres sslmode=disable",
                                     "-c", "copy t to stdout"))
        psql("create table u (n int, text text)")
        kernel.hawser("run", "--", "psql", "-Xq", f"host=127.0.0.1 port={port} user=postgres dbname=postgres sslmode=disable",
                      "-c", f"\\copy u from {out}")
        equal(psql("select md5(string_agg(n || text, ',' order by n)) from u"), whole)


@contextlib.contextmanager
def pooler(env, kernel, enable, code=None):
    """A Hawser of its own in front of the test's server, over TCP on both sides."""
    with contextlib.ExitStack() as free:
        port, http = (free.enter_context(socket.create_server(("127.0.0.1", 0))).getsockname()[1] for _ in range(2))
    path = pathlib.Path(env.directory) / f"past-{port}.toml"
    path.write_text(f"""[listen]
address = "127.0.0.1:{port}"
[bypass]
enable = "{enable}"
[admin]
control_socket = "{path}.sock"
http_address = "127.0.0.1:{http}"
[[database]]
name = "app"
servers = ["127.0.0.1:{env.cluster.port}"]
pool_size = 3
[[user]]
name = "app3"
password = "third secret"
""")
    with open(f"{path}.log", "wb") as log:
        process = subprocess.Popen(kernel.inside(binary(), "serve", "-c", path), stdout=log, stderr=log)
    try:
        if code is not None:
            equal(process.wait(20), code)
            yield pathlib.Path(f"{path}.log").read_text()
            return

        def ask(text, count=1):
            done = subprocess.run(["psql", "-XqAt", f"host=127.0.0.1 port={port} user=app3 dbname=app sslmode=disable"],
                                  input=text * count, env={**os.environ, "PGPASSWORD": "third secret"}, capture_output=True, text=True, timeout=60)
            equal(done.returncode, 0, done.stderr)
            return done.stdout.splitlines()

        until(lambda: "ready" in pathlib.Path(f"{path}.log").read_text() or process.poll() is not None, "ready", 30)
        equal(process.poll(), None, pathlib.Path(f"{path}.log").read_text())
        yield ask, path, http
    finally:
        if process.poll() is None:
            process.terminate()
            process.wait(40)


def shown(kernel, path):
    return json.loads(subprocess.run(kernel.inside(binary(), "status", "--socket", f"{path}.sock", "--json"), capture_output=True, text=True, check=True).stdout)


@limit(120)
def test_the_pooler_s_clients_and_servers_go_past_tcp_and_no_others(env):
    with contextlib.ExitStack() as stack:
        kernel = needs_bypass(stack)
        with pooler(env, kernel, "on") as (ask, path, http):
            equal(ask("select 1;\n", 300), ["1"] * 300)
            after = kernel.status()
            # A query and its answer, on both legs; the first go over TCP.
            assert 1000 < after["redirected"] <= 1300, after
            equal((after["programs"], after["poolers"]), (False, True))
            direct = ["psql", "-XqAt", f"host=127.0.0.1 port={env.cluster.port} user=app3 dbname=app sslmode=disable"]
            done = subprocess.run(direct, input="select 2;\n" * 100, env={**os.environ, "PGPASSWORD": "third secret"}, capture_output=True, text=True, timeout=60, check=True)
            equal(done.stdout, "2\n" * 100)
            equal(kernel.status()["redirected"], after["redirected"], "direct connections to the server stay with TCP")
            status = shown(kernel, path)
            assert "the self-test has passed" in status["bypass"], status["bypass"]
            with socket.create_connection(("127.0.0.1", http)) as page:
                page.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
                metrics = b"".join(iter(lambda: page.recv(65536), b"")).decode()
            assert "hawser_bypass_on 1" in metrics, metrics
            assert f'hawser_bypass_messages_total{{path="bypass",reason=""}} {after["redirected"]}' in metrics, [line for line in metrics.splitlines() if "bypass" in line]
            # Large rows, whole.
            equal(ask("select repeat(md5('a'), 20000);\n", 3), [__import__("hashlib").md5(b"a").hexdigest() * 20000] * 3)
            kernel.hawser("off")
            equal(ask("select 3;\n", 50), ["3"] * 50)
            assert any("hawser bypass off" in line for line in shown(kernel, path)["fallbacks"]), shown(kernel, path)
        equal(kernel.left(), [], "after it has ended")


@limit(120)
def test_auto_serves_over_tcp_where_it_cannot_be_and_on_does_not_start(env):
    with contextlib.ExitStack() as stack:
        needs_bypass(stack)
        kernel = Kernel(stack, mount_bpf=False)
        with pooler(env, kernel, "auto") as (ask, path, _):
            equal(ask("select 1;\n"), ["1"])
            said = shown(kernel, path)["fallbacks"]
            assert any("stay with TCP" in line and "mount -t bpf" in line for line in said), said
        with pooler(env, kernel, "on", code=1) as log:
            assert "mount -t bpf" in log, log
        checked = subprocess.run(kernel.inside(binary(), "check", "-c", path), capture_output=True, text=True)
        assert "warn   local connections stay with TCP" in checked.stdout, checked.stdout


@limit(120)
def test_a_pooler_that_is_killed_leaves_what_the_next_start_or_off_takes_away(env):
    with contextlib.ExitStack() as stack:
        kernel = needs_bypass(stack)
        with pooler(env, kernel, "on") as (ask, path, _):
            equal(ask("select 1;\n"), ["1"])
            os.kill(shown(kernel, path)["pid"], signal.SIGKILL)
        equal(kernel.status()["poolers"], True)
        with pooler(env, kernel, "on") as (ask, path, _):
            equal(ask("select 1;\n"), ["1"])
        equal(kernel.left(), [])
