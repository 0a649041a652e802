"""`hawser mptcp cgroup`: MPTCP for the programs of a control group, by BPF, between network namespaces.

Cgroups, a BPF file system and namespaces are of this test; nothing of the machine's own is listed. Where the kernel
(before 6.6) or the machine does not let BPF stand in a function's place, what needs that is skipped, with the reason.
"""

import contextlib
import itertools
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys

from harness.pooler import binary
from harness.suite import Skip, equal, limit, until
from integration.test_mptcp import needs_mptcp, two_machines
from integration.test_preload import found_server

SAME_FOR_ALL_SERVERS = True
ALONE = "networks"

NUMBERS = itertools.count(1)
ASK = (
    "import json, socket\nprotocol = lambda s: s.getsockopt(socket.SOL_SOCKET, 38)\n"
    "print(json.dumps([protocol(socket.socket(family, kind)) for family in (socket.AF_INET, socket.AF_INET6)"
    " for kind in (socket.SOCK_STREAM, socket.SOCK_STREAM | socket.SOCK_NONBLOCK, socket.SOCK_DGRAM)]"
    " + [protocol(socket.socket(socket.AF_UNIX)), protocol(socket.socket(socket.AF_INET, socket.SOCK_STREAM, 6))]))")
TCP = [6, 6, 17] * 2 + [0, 6]
MPTCP = [262, 262, 17] * 2 + [0, 262]


def hierarchy():
    for line in pathlib.Path("/proc/self/mountinfo").read_text().splitlines():
        mount, what = line.split(" - ")
        if what.split()[0] == "cgroup2":
            return pathlib.Path(mount.split()[4])
    raise Skip("no cgroup v2 is mounted")


class Kernel:
    """Cgroups, and a BPF file system that only what is started from here sees."""

    def __init__(self, stack, mount_bpf=True):
        prepare = "mountpoint -q /sys/fs/bpf && umount /sys/fs/bpf; " + ("mount -t bpf bpf /sys/fs/bpf && " if mount_bpf else "")
        self.holder = subprocess.Popen(["unshare", "--mount", "--propagation", "private", "sh",
                                        "-c", f"{prepare} echo ready && exec sleep 600"],
                                       stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        stack.callback(self.end)
        if self.holder.stdout.readline() != "ready\n":
            raise Skip(f"no BPF file system can be mounted here: {self.holder.stderr.read().strip()}")
        self.stack = stack

    def end(self):
        self.holder.kill()
        self.holder.wait()

    def cgroup(self, below=None):
        path = (below or hierarchy()) / f"hawser-test-{os.getpid()}-{next(NUMBERS)}"
        try:
            path.mkdir()
        except OSError as error:
            raise Skip(f"no cgroup can be made here: {error}") from None
        self.stack.callback(lambda: path.exists() and until(lambda: removed(path), f"{path} is empty"))
        return path

    def inside(self, machine, *command, cgroup=None):
        """The command, in this mount namespace, the machine's network and a cgroup."""
        enter = ["nsenter", f"--mount=/proc/{self.holder.pid}/ns/mnt", f"--net=/run/netns/{machine.name}", "--"]
        if cgroup:
            enter += ["sh", "-c", f'echo $$ > {cgroup}/cgroup.procs && exec "$@"', "sh"]
        return [*enter, *map(str, command)]

    def run(self, machine, *command, cgroup=None, code=0):
        done = subprocess.run(self.inside(machine, *command, cgroup=cgroup), capture_output=True, text=True, timeout=60)
        equal(done.returncode, code, f"exit code of {command} ({done.stdout}{done.stderr})")
        return done.stdout if code == 0 else done.stderr

    def hawser(self, machine, *words, **how):
        return self.run(machine, binary(), "mptcp", *words, **how)

    def sockets(self, machine, cgroup=None, environment=()):
        return json.loads(self.run(machine, "env", *environment, sys.executable, "-c", ASK, cgroup=cgroup))

    def add(self, machine, cgroup):
        """Adds it; skips where nobody may."""
        done = subprocess.run(self.inside(machine, binary(), "mptcp", "cgroup", "add", cgroup), capture_output=True, text=True, timeout=60)
        release = tuple(int(word) for word in os.uname().release.split("-")[0].split(".")[:2])
        if release < (6, 6):
            equal(done.returncode, 1)
            assert "Linux 6.6" in done.stderr, done.stderr
            raise Skip(done.stderr.strip())
        if "Operation not permitted" in done.stderr:
            raise Skip(f"this machine forbids it: {done.stderr.strip()}")
        equal(done.returncode, 0, done.stderr)
        return done.stdout


def removed(path):
    with contextlib.suppress(OSError):
        path.rmdir()
    return not path.exists()


@needs_mptcp
@limit(120)
def test_sockets_of_a_cgroup_and_of_those_below_it_are_mptcp_and_all_others_are_left(env):
    with contextlib.ExitStack() as stack:
        here, elsewhere = stack.enter_context(two_machines())
        kernel = Kernel(stack)
        cgroup, other = kernel.cgroup(), kernel.cgroup()
        below = kernel.cgroup(cgroup)
        assert "MPTCP ones" in kernel.add(here, cgroup)
        assert "nothing to do" in kernel.add(here, cgroup)
        equal(kernel.sockets(here, cgroup), MPTCP)
        equal(kernel.sockets(here, below), MPTCP, "below it")
        equal(kernel.sockets(here, other), TCP, "in another cgroup")
        equal(kernel.sockets(here), TCP, "in the test's own")
        equal(kernel.sockets(elsewhere, cgroup), TCP, "in another network namespace")
        equal(kernel.hawser(here, "cgroup", "list"), f"/{cgroup.name} 10 socket(s) made MPTCP ones\n")
        said = json.loads(kernel.hawser(here, "status", "--json"))["cgroups"]
        equal([(one["path"], one["here"], one["sockets"]) for one in said], [(f"/{cgroup.name}", True, 10)])
        # By its own word, as a unit does; a second cgroup keeps the program there.
        assert f"cgroup /{other.name}: TCP sockets" in kernel.hawser(here, "cgroup", "add", cgroup=other)
        assert "TCP ones" in kernel.hawser(here, "cgroup", "remove", cgroup)
        equal(kernel.sockets(here, below), TCP, "after it was removed")
        equal(kernel.sockets(here, other), MPTCP)
        assert "the BPF program is gone" in kernel.hawser(here, "cgroup", "remove", cgroup=other)
        equal(kernel.sockets(here, other), TCP)
        equal(kernel.run(here, "ls", "/sys/fs/bpf").replace("maps.debug\n", "").replace("progs.debug\n", ""), "")
        assert "nothing to do" in kernel.hawser(here, "cgroup", "remove", cgroup)


@needs_mptcp
@limit(120)
def test_pgmptcp_0_in_the_environment_of_a_program_turns_it_off(env):
    with contextlib.ExitStack() as stack:
        here, _ = stack.enter_context(two_machines())
        kernel = Kernel(stack)
        cgroup = kernel.cgroup()
        kernel.add(here, cgroup)
        # Pieces of 64 bytes are read: what is in a longer text, wherever, is none.
        for environment, expected in ((["PGMPTCP=0"], TCP), (["PGMPTCP=1"], MPTCP), (["PGMPTCP="], MPTCP), (["PGMPTCP=00"], MPTCP),
                                      (["XPGMPTCP=0"], MPTCP),
                                      (["-i", *(f"V{n}={'x' * n}" for n in range(130)), "PGMPTCP=0"], TCP),
                                      (["-i", *(f"LONG{n}={'x' * n}PGMPTCP=0" for n in range(130))], MPTCP),
                                      (["-i", f"A={'x' * 15000}", "PGMPTCP=0"], TCP)):
            equal(kernel.sockets(here, cgroup, environment), expected, str(environment)[:80])
        kernel.hawser(here, "cgroup", "remove", cgroup)


@needs_mptcp
@limit(90)
def test_a_cgroup_that_has_gone_is_dropped_and_all_are_removed_at_once(env):
    with contextlib.ExitStack() as stack:
        here, elsewhere = stack.enter_context(two_machines())
        kernel = Kernel(stack)
        gone, stays, last = kernel.cgroup(), kernel.cgroup(), kernel.cgroup()
        kernel.add(here, gone)
        gone.rmdir()
        assert "not to be seen" in kernel.hawser(here, "cgroup", "list")
        assert "has gone and is dropped" in kernel.add(here, stays)
        kernel.add(elsewhere, last)
        listed = kernel.hawser(here, "cgroup", "list").splitlines()
        equal(sorted(listed), sorted([f"/{stays.name} 0 socket(s) made MPTCP ones",
                                      f"/{last.name} 0 socket(s) made MPTCP ones, in another network namespace"]))
        here.run("sh", "-c", "echo 0 > /proc/sys/net/mptcp/enabled")
        assert "get no TCP socket at all" in kernel.hawser(here, "status"), "what went wrong is said"
        equal(kernel.hawser(here, "cgroup", "remove", "--all"), "2 cgroup(s) removed; the BPF program is gone\n")
        equal(kernel.hawser(here, "cgroup", "list"), "")
        equal(kernel.sockets(here, stays), TCP)


@needs_mptcp
@limit(150)
def test_a_long_lived_postgresql_and_psql_talk_mptcp(env):
    programs = found_server()
    data = pathlib.Path(env.directory) / f"by-cgroup-{next(NUMBERS)}"
    data.mkdir()
    shutil.chown(data, "postgres", "postgres")
    user = ["setpriv", "--reuid=postgres", "--regid=postgres", "--init-groups"]
    with contextlib.ExitStack() as stack:
        server, client = stack.enter_context(two_machines())
        kernel = Kernel(stack)
        served, dialling = kernel.cgroup(), kernel.cgroup()
        kernel.add(server, served)
        kernel.add(client, dialling)
        subprocess.run([*user, programs / "initdb", "-D", data, "-A", "trust", "-U", "postgres", "--no-sync"], check=True,
                       capture_output=True, cwd="/")
        with open(data / "pg_hba.conf", "a") as rules:
            rules.write("host all all 10.77.0.0/16 trust\n")
        postgres = subprocess.Popen(
            kernel.inside(server, *user, programs / "postgres", "-D", data, "-p", "7433", "-c", "listen_addresses=*",
                          "-c", f"unix_socket_directories={data}", "-c", "fsync=off", cgroup=served),
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd="/")
        # At once: its backend is in pg_sleep(), and does not see that the client has gone.
        stack.callback(lambda: (postgres.send_signal(signal.SIGQUIT), postgres.wait(30)))
        ready = [programs / "pg_isready", "-h", data, "-p", "7433"]
        until(lambda: subprocess.run(ready, capture_output=True).returncode == 0, "ready", 60)
        psql = ["psql", "-Xq", "host=10.77.0.1 port=7433 user=postgres dbname=postgres", "-c", "select pg_sleep(60)"]
        by_mptcp = subprocess.Popen(kernel.inside(client, *psql, cgroup=dialling), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        stack.callback(lambda: (by_mptcp.kill(), by_mptcp.wait()))
        far = until(lambda: server.connections(fallback=False), "a connection over MPTCP", 20)[0]
        equal((far["program"]["name"], far["dialled"]), ("postgres", False))
        # A program outside is a TCP client of the same server.
        assert "1" in kernel.run(client, *psql[:3], "-c", "select 1"), "a plain client"


@needs_mptcp
def test_what_is_missing_is_said_and_nothing_is_left(env):
    with contextlib.ExitStack() as stack:
        here, _ = stack.enter_context(two_machines())
        kernel = Kernel(stack, mount_bpf=False)
        cgroup = kernel.cgroup()
        release = tuple(int(word) for word in os.uname().release.split("-")[0].split(".")[:2])
        said = kernel.hawser(here, "cgroup", "add", cgroup, code=1)
        assert ("mount -t bpf bpf /sys/fs/bpf" if release >= (6, 6) else "Linux 6.6") in said, said
        said = kernel.hawser(here, "cgroup", "add", cgroup / "none", code=1)
        assert "none: No such file or directory" in said, said
        said = kernel.run(here, "setpriv", "--reuid=65534", "--clear-groups", binary(), "mptcp", "cgroup", "add", cgroup, code=1)
        assert "CAP_BPF" in said, said
        here.run("sh", "-c", "echo 0 > /proc/sys/net/mptcp/enabled")
        said = kernel.hawser(here, "cgroup", "add", cgroup, code=1)
        assert "net.mptcp.enabled" in said, said
        assert "nothing to do" in kernel.hawser(here, "cgroup", "remove", cgroup)
        equal(kernel.hawser(here, "cgroup", "list"), "")
