"""`hawser mptcp manage`: the path manager, in the laboratory. Skipped without root, MPTCP or its userspace path manager."""

import contextlib
import functools
import json
import os
import pathlib
import signal
import subprocess
import sys

from harness.suite import Skip, equal, limit, until
from integration.test_lab import lab, network
from integration.test_mptcp import needs_mptcp, two_machines

SETTING = pathlib.Path("/proc/sys/net/mptcp/path_manager")

SOURCE = """
import hashlib, socket, sys
family, port, count = int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
listener = socket.socket(family, socket.SOCK_STREAM, 262)
listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
listener.bind(("::" if family == socket.AF_INET6 else "0.0.0.0", port))
listener.listen()
print("listens", flush=True)
connection = listener.accept()[0]
digest = hashlib.sha256()
for number in range(count):
    piece = number.to_bytes(4, "big") * 16384
    digest.update(piece)
    connection.sendall(piece)
connection.shutdown(socket.SHUT_WR)
connection.recv(1)
print(digest.hexdigest(), flush=True)
"""

SINK = """
import hashlib, socket, sys, time
connection = socket.socket(int(sys.argv[1]), socket.SOCK_STREAM, 262)
connection.connect((sys.argv[2], int(sys.argv[3])))
digest, began = hashlib.sha256(), time.monotonic()
while piece := connection.recv(1 << 18):
    digest.update(piece)
print(digest.hexdigest(), time.monotonic() - began, flush=True)
"""


def needs_manager(test):
    @needs_mptcp
    @functools.wraps(test)
    def run(env):
        if not SETTING.exists():
            raise Skip("this kernel has no net.mptcp.path_manager")
        test(env)
    return run


def setting(machine):
    return machine.run("cat", SETTING).strip()


@contextlib.contextmanager
def managed(start):
    """`manage`, started by a function that takes its further arguments of Popen; gives the process and what it has said."""
    process = start(stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    said = [process.stdout.readline()]
    try:
        yield process, said
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
        said.extend(process.communicate(timeout=10)[0].splitlines())


def hawser():
    return os.environ["HAWSER"]


@needs_manager
def test_the_setting_is_put_back_at_the_end_and_after_a_kill(env):
    with two_machines() as (server, _):
        equal(setting(server), "kernel")
        command = [hawser(), "mptcp", "manage"]
        with managed(lambda **how: server.start(*command, **how)) as (first, said):
            assert "managing" in said[0], said
            equal(setting(server), "userspace")
            assert "another `hawser mptcp manage`" in server.run(*command, code=1)
            assert not any("no program manages" in note for note in server.status()["notes"])
        equal(first.returncode, 0)
        equal(setting(server), "kernel")
        with managed(lambda **how: server.start(*command, **how)) as (second, said):
            os.kill(second.pid, signal.SIGKILL)
            second.wait()
            until(lambda: setting(server) == "kernel", "the watchdog has put it back", 5)
        # Killed together with its watchdog: it says so, and the next one takes over.
        server.run("sh", "-c", f"echo userspace > {SETTING}")
        assert any("no program manages" in note for note in server.status()["notes"])
        with managed(lambda **how: server.start(*command, **how)) as (_, said):
            assert "managing" in said[0], said
        equal(setting(server), "kernel")


@needs_manager
def test_without_rights_nothing_is_changed(env):
    with two_machines() as (server, _):
        error = server.run("setpriv", "--bounding-set=-net_admin", "--inh-caps=-all", hawser(), "mptcp", "manage", code=1)
        assert "CAP_NET_ADMIN" in error, error
        equal(setting(server), "kernel")


def transfer(name, family, address, count, during=lambda: None):
    """Sends `count` pieces of 64 KiB from far to near; gives the seconds that it took. `during` runs meanwhile."""
    run = [hawser(), "lab", "run", name, "--accept-unfaithful"]
    port = 7000
    source = subprocess.Popen([*run, "--on", "far", "--", sys.executable, "-c", SOURCE, str(int(family)), str(port), str(count)],
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        equal(source.stdout.readline(), "listens\n")
        sink = subprocess.Popen([*run, "--", sys.executable, "-c", SINK, str(int(family)), address, str(port)],
                                stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        during()
        said, errors = sink.communicate(timeout=80)
        assert said, errors
        digest, seconds = said.split()
        equal(digest, source.stdout.readline().strip(), "what was received is what was sent")
        return float(seconds)
    finally:
        source.kill()
        source.communicate()


@contextlib.contextmanager
def both_managed(name):
    run = [hawser(), "lab", "run", name, "--accept-unfaithful"]
    command = [hawser(), "mptcp", "manage"]
    with managed(lambda **how: subprocess.Popen([*run, "--on", "far", "--", *command], **how)) as far:
        with managed(lambda **how: subprocess.Popen([*run, "--on", "near", "--", *command], **how)) as near:
            yield far, near


def established(name):
    status = json.loads(lab("run", name, "--accept-unfaithful", "--", hawser(), "mptcp", "status", "--json").stdout)
    return [s for c in status["connections"] for s in c["subflows"] if s["state"] == "established"]


@needs_manager
@limit(100)
def test_a_transfer_takes_several_limits_over_ipv4_and_ipv6(env):
    import socket
    for family, address in ((socket.AF_INET, "10.77.0.2"), (socket.AF_INET6, "fd77::2")):
        with network("per-flow", "--seed", "1") as name, both_managed(name) as (_, (_, said)):
            pieces = 400
            seconds = transfer(name, family, address, pieces)
            goodput = pieces * 65536 * 8 / 1e6 / seconds
        # One flow carries 9.4; a busy machine costs a part of what there is.
        assert goodput > 14, (goodput, said)
        assert any("watching -> dialling" in line for line in said), said
        assert any("limits found" in line for line in said), said


@needs_manager
@limit(100)
def test_a_killed_manager_and_its_successor_lose_no_byte(env):
    with network("per-flow", "--seed", "2") as name:
        run = [hawser(), "lab", "run", name, "--accept-unfaithful", "--"]
        lab("run", name, "--on", "far", "--accept-unfaithful", "--", "sh", "-c", "true")
        far = [hawser(), "lab", "run", name, "--accept-unfaithful", "--on", "far", "--", hawser(), "mptcp", "manage"]
        with managed(lambda **how: subprocess.Popen(far, **how)):
            first = subprocess.Popen([*run, hawser(), "mptcp", "manage"], stdout=subprocess.PIPE, text=True)
            first.stdout.readline()
            second = []

            def replace():
                until(lambda: len(established(name)) > 1, "further subflows", 15)
                inside = pathlib.Path(f"/proc/{first.pid}/task/{first.pid}/children").read_text().split()
                os.kill(int(inside[0]), signal.SIGKILL)
                first.communicate()
                # The connections that are there are its successor's.
                until(lambda: lab("run", name, "--accept-unfaithful", "--", "cat", str(SETTING)).stdout == "kernel\n", "put back", 5)
                second.append(subprocess.Popen([*run, hawser(), "mptcp", "manage"], stdout=subprocess.PIPE, text=True))
                second[0].stdout.readline()
            transfer(name, 2, "10.77.0.2", 500, replace)
            second[0].terminate()
            said = second[0].communicate(timeout=10)[0]
            assert "watching -> " in said and "kernel's own" not in said, said


@needs_manager
@limit(60)
def test_a_connection_of_the_kernel_s_path_manager_is_left_to_it(env):
    with network("per-flow") as name:
        run = [hawser(), "lab", "run", name, "--accept-unfaithful", "--", hawser(), "mptcp", "manage"]
        late = []

        def begin():
            until(lambda: established(name), "a connection", 10)
            late.append(subprocess.Popen(run, stdout=subprocess.PIPE, text=True))
        transfer(name, 2, "10.77.0.2", 80, begin)
        late[0].terminate()
        said = late[0].communicate(timeout=10)[0]
        assert "began under the kernel's own path manager" in said, said
