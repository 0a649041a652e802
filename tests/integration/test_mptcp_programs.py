"""Programs as they are under `hawser mptcp run`, both ends, between network namespaces: a streaming replica, rsync, sshd;
and where it is refused.

psql, pg_basebackup and PostgreSQL itself are in test_mptcp.py and test_preload.py.
"""

import contextlib
import os
import pathlib
import platform
import shutil
import subprocess
import sys

from harness.pooler import binary
from harness.suite import Skip, equal, installed, limit, until
from integration.test_mptcp import needs_mptcp, two_machines
from integration.test_preload import found_server

SAME_FOR_ALL_SERVERS = True
ALONE = "networks"

AS_POSTGRES = ["setpriv", "--reuid=postgres", "--regid=postgres", "--init-groups"]
MEGABYTES = 8


def under_run(*command):
    return [binary(), "mptcp", "run", "--", *map(str, command)]


@contextlib.contextmanager
def five_flows():
    """Two machines, set up for four subflows beside the first."""
    with two_machines() as (server, client):
        server.hawser("setup", "server")
        client.hawser("setup", "client")
        yield server, client


def carried(machine, name):
    """The connection of this program over several subflows."""
    found = [c for c in machine.connections(fallback=False) if c["program"] and c["program"]["name"] == name and len(c["subflows"]) == 5]
    return found[0] if found else None


def ready(programs, data, port, process):
    def answers():
        assert process.poll() is None, (data.parent / "servers.log").read_text()[-2000:]
        return subprocess.run([programs / "pg_isready", "-h", data, "-p", port], capture_output=True).returncode == 0
    until(answers, "the server is ready", 40)


def ask(data, port, statement):
    done = subprocess.run(["psql", "-XqAt", "-h", data, "-p", port, "-U", "postgres", "-d", "postgres", "-c", statement],
                          capture_output=True, text=True)
    equal(done.returncode, 0, done.stderr)
    return done.stdout.strip()


@needs_mptcp
@limit(150)
def test_a_streaming_replica_follows_over_mptcp(env):
    programs = found_server()
    directory = pathlib.Path(env.directory) / "replica"
    directory.mkdir()
    directory.chmod(0o755)
    primary, standby = directory / "primary", directory / "standby"
    for data in (primary, standby):
        data.mkdir(mode=0o700)
        shutil.chown(data, "postgres", "postgres")
    subprocess.run([*AS_POSTGRES, programs / "initdb", "-D", primary, "-A", "trust", "-U", "postgres", "--no-sync"], check=True,
                   capture_output=True, cwd="/")
    with open(primary / "pg_hba.conf", "a") as rules:
        rules.write("host replication all 10.77.0.0/16 trust\n")
    with five_flows() as (server, client), open(directory / "servers.log", "ab") as log:
        def start(machine, data, port, *more):
            return machine.start(*under_run(*AS_POSTGRES, programs / "postgres", "-D", data, "-p", port, "-c", "listen_addresses=*",
                                            "-c", f"unix_socket_directories={data}", "-c", "fsync=off", *more), stdout=log, stderr=log,
                                            cwd="/")
        ready(programs, primary, "7432", start(server, primary, "7432"))
        backup = under_run(*AS_POSTGRES, programs / "pg_basebackup", "-d", "host=10.77.0.1 port=7432 user=postgres", "-D", standby,
                           "-R", "-c", "fast")
        client.run(*backup)
        ready(programs, standby, "7433", start(client, standby, "7433"))
        until(lambda: carried(client, "postgres"), "the replica's connection has five subflows", 20)
        ask(primary, "7432", f"create table t as select g, repeat('x', 1000) from generate_series(1, {MEGABYTES * 1000}) g")
        position = ask(primary, "7432", "select pg_current_wal_lsn()")
        until(lambda: ask(standby, "7433", f"select pg_last_wal_replay_lsn() >= '{position}'") == "t", "the replica has caught up", 40)
        equal(ask(standby, "7433", "select count(*) from t"), str(MEGABYTES * 1000))
        equal(carried(client, "postgres")["dialled"], True)
        equal(carried(server, "postgres")["dialled"], False)


@needs_mptcp
@limit(90)
def test_rsync_and_its_daemon_talk_mptcp(env):
    rsync = installed("rsync", "rsync")
    directory = pathlib.Path(env.directory) / "rsync"
    (directory / "source").mkdir(parents=True)
    (directory / "source/file").write_bytes(os.urandom(MEGABYTES << 20))
    conf = directory / "rsyncd.conf"
    conf.write_text(f"use chroot = no\nuid = root\ngid = root\nreverse lookup = no\n[data]\npath = {directory}/source\nread only = yes\n")
    with five_flows() as (server, client):
        server.start(*under_run(rsync, "--daemon", "--no-detach", f"--config={conf}", "--port=8730"), stdout=subprocess.DEVNULL,
                     stderr=subprocess.DEVNULL)
        until(lambda: any(listener["address"].endswith(":8730") for listener in server.status()["listeners"]), "rsync's daemon listens", 10)
        # Slowly at first, that the connection can be looked at.
        slow = client.start(*under_run(rsync, "--whole-file", "--bwlimit=1000", "rsync://10.77.0.1:8730/data/file", directory / "slow"),
                            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        equal(until(lambda: carried(client, "rsync"), "rsync's connection has five subflows", 20)["dialled"], True)
        slow.terminate()
        slow.wait(10)
        client.run(*under_run(rsync, "--whole-file", "rsync://10.77.0.1:8730/data/file", directory / "copy"))
        assert (directory / "copy").read_bytes() == (directory / "source/file").read_bytes()


@needs_mptcp
@limit(90)
def test_ssh_and_sshd_talk_mptcp(env):
    sshd, ssh, keygen = installed("sshd", "openssh-server"), installed("ssh", "openssh-client"), installed("ssh-keygen", "openssh-client")
    directory = pathlib.Path(env.directory) / "ssh"
    directory.mkdir(mode=0o700)
    for key in ("host", "client"):
        subprocess.run([keygen, "-q", "-t", "ed25519", "-N", "", "-f", directory / key], check=True)
    conf = directory / "sshd_config"
    conf.write_text(f"Port 2222\nListenAddress 10.77.0.1\nHostKey {directory}/host\nAuthorizedKeysFile "
                    f"{directory}/client.pub\nStrictModes no\n"
                    f"UsePAM no\nPermitRootLogin prohibit-password\nPidFile {directory}/pid\n")
    # Where it goes to be confined; the service makes it, and there is no service here.
    pathlib.Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)
    with five_flows() as (server, client), open(directory / "log", "ab") as log:
        server.start(*under_run(sshd, "-D", "-e", "-f", conf), stdout=log, stderr=log)
        until(lambda: any(listener["address"].endswith(":2222") for listener in server.status()["listeners"]), "sshd listens", 10)
        command = under_run(ssh, "-F", "none", "-i", directory / "client", "-o", "StrictHostKeyChecking=no",
                            "-o", f"UserKnownHostsFile={directory}/known",
                            "-o", "BatchMode=yes", "-p", "2222", "root@10.77.0.1")
        waits = client.start(*command, "echo in; sleep 30", stdout=subprocess.PIPE, stderr=log, stdin=subprocess.DEVNULL, text=True)
        equal(waits.stdout.readline(), "in\n", (directory / "log").read_text()[-2000:])
        equal(until(lambda: carried(client, "ssh"), "ssh's connection has five subflows", 20)["dialled"], True)
        assert carried(server, "sshd"), server.connections()
        # Bytes through it, as rsync and scp send them.
        equal(len(client.run(*command, f"head -c {MEGABYTES << 20} /dev/zero | tr '\\0' x")), MEGABYTES << 20)


# Refuses seccomp(2) with EPERM, as containers do, and executes the rest of its arguments.
WITHOUT_SECCOMP = """
import ctypes, os, struct, sys
number = int(sys.argv[1])
filter = b"".join(struct.pack("HBBI", *s) for s in [(0x20, 0, 0, 0), (0x15, 0, 1, number), (6, 0, 0, 0x50001), (6, 0, 0, 0x7fff0000)])
code = ctypes.create_string_buffer(filter)
program = struct.pack("HxxxxxxQ", len(filter) // 8, ctypes.addressof(code))
libc = ctypes.CDLL(None, use_errno=True)
assert libc.prctl(38, 1, 0, 0, 0) == 0  # PR_SET_NO_NEW_PRIVS
assert libc.prctl(22, 2, ctypes.c_char_p(program)) == 0, os.strerror(ctypes.get_errno())  # PR_SET_SECCOMP
os.execvp(sys.argv[2], sys.argv[2:])
"""


@needs_mptcp
def test_run_says_where_seccomp_is_refused(env):
    number = {"x86_64": 317, "aarch64": 277}.get(platform.machine())
    if number is None:
        raise Skip(f"the number of seccomp(2) on {platform.machine()} is not known here")
    confined = [sys.executable, "-c", WITHOUT_SECCOMP, str(number)]
    done = subprocess.run([*confined, *under_run("echo", "it ran")], capture_output=True, text=True, timeout=20)
    equal((done.returncode, done.stdout), (125, ""), done.stderr)
    assert "containers may forbid it" in done.stderr, done.stderr
