"""As a service manager runs it: readiness, passed sockets, another user."""

import contextlib
import json
import os
import pathlib
import pwd
import re
import shutil
import signal
import socket
import subprocess
import sys
import time

from harness import messages as m
from harness.pooler import binary
from harness.suite import Skip, equal, pooler_only, until
from harness.wire import ServerError

# Puts the descriptors that follow the program's name from 3 on, says so in the environment, and becomes the rest.
SAME_FOR_ALL_SERVERS = True
ALONE = "clocks"
ACTIVATE = """
import fcntl, os, sys
count = int(sys.argv[1])
# Copied above all numbers in use first: a copy that lay at its place already would stay closed on exec, as dup2 then does nothing.
kept = [fcntl.fcntl(int(number), fcntl.F_DUPFD, 512) for number in sys.argv[2:2 + count]]
for place, number in enumerate(kept):
    os.dup2(number, 3 + place, inheritable=True)
os.environ.update(LISTEN_FDS=str(count), LISTEN_PID=str(os.getpid() + int(os.environ.get("SUITE_PID_OFF", 0))))
os.execv(sys.argv[2 + count], sys.argv[2 + count:])
"""


class Manager:
    """A datagram socket where a service manager would listen."""

    def __init__(self, directory):
        self.path = str(directory / "notify")
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(self.path)
        self.told = []

    def hears(self, wanted, seconds=10.0):
        """What came up to the first message with this line; None if it does not come."""
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            self.socket.settimeout(left)
            try:
                self.told.append(self.socket.recv(4096).decode())
            except TimeoutError:
                return None
            if any(wanted in line for line in self.told[-1].splitlines()):
                return self.told
        return None

    def close(self):
        self.socket.close()
        os.unlink(self.path)


@pooler_only
def test_readiness_status_and_the_end_are_told(env):
    with env.pooler_with(start=False) as target:
        manager = Manager(target.pooler.directory)
        target.pooler.environment = {"NOTIFY_SOCKET": manager.path}
        target.pooler.start()
        assert manager.hears("READY=1"), manager.told
        equal(env.connect(target).value("select 1"), "1", "served once it is said to be ready")
        assert manager.hears("STATUS=serving: 1 clients, "), manager.told
        target.pooler.write(loops=1)
        target.pooler.reload()
        assert manager.hears("server connections; changed, but only in force after a restart: loops"), manager.told
        holder = env.connect(target)
        holder.execute("begin; select 1")
        target.pooler.signal(signal.SIGTERM)
        assert manager.hears("STOPPING=1"), manager.told
        equal(target.pooler.wait(), 0)
        target.pooler.process = None
        manager.close()


@pooler_only
def test_nobody_is_told_ready_when_the_start_fails(env):
    with env.pooler_with(start=False) as target, socket.create_server(("127.0.0.1", target.port)):
        manager = Manager(target.pooler.directory)
        done = subprocess.run([binary(), "serve", "-c", str(target.pooler.config)], capture_output=True, text=True, timeout=20,
                              env={**os.environ, "NOTIFY_SOCKET": manager.path}, cwd=target.pooler.directory)
        equal(done.returncode, 1)
        assert f"could not listen on 127.0.0.1:{target.port}" in done.stderr, done.stderr
        equal(manager.hears("READY=1", 0.2), None)
        equal([path.name for path in target.pooler.directory.iterdir() if path.is_socket() and path.name != "notify"], [], "sockets left")
        manager.close()


def passed_sockets(directory):
    """A TCP and a unix socket that listen, as the service manager makes them."""
    tcp = socket.create_server(("127.0.0.1", 0))
    port = tcp.getsockname()[1]
    unix = socket.socket(socket.AF_UNIX)
    unix.bind(str(directory / f".s.PGSQL.{port}"))
    unix.listen(16)
    return tcp, unix, port


def activated(target, *sockets):
    pooler = target.pooler
    pooler.launcher = [sys.executable, "-c", ACTIVATE, str(len(sockets)), *(str(s.fileno()) for s in sockets)]
    pooler.pass_fds = tuple(s.fileno() for s in sockets)


@pooler_only
def test_passed_sockets_are_listened_on_in_place_of_the_configured(env):
    with env.pooler_with(start=False) as target:
        pooler = target.pooler
        tcp, unix, port = passed_sockets(pooler.directory)
        configured, target.port = target.port, port
        activated(target, tcp, unix)
        pooler.start()
        for host in (target.host, target.socket_dir):
            equal(env.connect(target, host=host).value("select 1"), "1", host)
        try:
            socket.create_connection(("127.0.0.1", configured), timeout=2).close()
            raise AssertionError("the configured address is listened on as well")
        except ConnectionRefusedError:
            pass
        # A restart: the sockets are the service manager's, and whoever comes meanwhile waits.
        pooler.stop()
        assert pathlib.Path(unix.getsockname()).exists(), "the service manager's file was removed"
        early = env.raw(target)
        early.send(m.startup({"user": "app_trust", "database": "app"}))
        pooler.start()  # the passed socket takes connections before there is anybody
        until(lambda: pooler.text().count("hawser::serve: ready") == 2, "it serves again", 30)
        early.login()
        equal(early.value("select 'waited'"), "waited")
        pooler.stop()
        tcp.close(), unix.close()
        pooler.launcher, pooler.pass_fds, target.port = [], (), configured
        os.unlink(pooler.directory / f".s.PGSQL.{port}")
        pooler.start()


@pooler_only
def test_a_successor_gets_the_passed_sockets_and_is_named_as_the_main_process(env):
    with env.pooler_with(start=False) as target:
        pooler = target.pooler
        tcp, unix, port = passed_sockets(pooler.directory)
        target.port = port
        manager = Manager(pooler.directory)
        pooler.environment = {"NOTIFY_SOCKET": manager.path}
        activated(target, tcp, unix)
        pooler.start()
        assert manager.hears("READY=1"), manager.told
        client = env.connect(target)
        client.execute("set work_mem to '3MB'")
        old = pooler.process
        pooler.signal(signal.SIGUSR2)
        assert manager.hears("MAINPID="), manager.told
        new = int(next(line for line in manager.told[-1].splitlines() if line.startswith("MAINPID=")).removeprefix("MAINPID="))
        try:
            assert manager.hears("READY=1"), manager.told
            equal(old.wait(20), 0)
            equal(client.value("show work_mem"), "3MB")
            for host in (target.host, target.socket_dir):
                equal(env.connect(target, host=host).value("select 1"), "1", host)
            assert manager.hears("STATUS=serving: 3 clients, "), manager.told
            assert not any("STOPPING" in told for told in manager.told), "the old process said that the unit stops"
        finally:
            os.kill(new, signal.SIGTERM)
        assert manager.hears("STOPPING=1"), manager.told
        # (It is this process's child's child: /proc says when it has gone.)
        until(lambda: not pathlib.Path(f"/proc/{new}/cmdline").exists() or not pathlib.Path(f"/proc/{new}/cmdline").read_bytes(),
              "that it ends")
        assert pathlib.Path(unix.getsockname()).exists(), "the service manager's file was removed"
        pooler.process = None
        manager.close()
        tcp.close(), unix.close()


@pooler_only
def test_children_get_no_passed_socket_and_no_word_of_the_service_manager(env):
    """A command that lived on kept the port; one could say READY=1 in Hawser's place."""
    with env.pooler_with(start=False, user="app2", password_command=["./token"], servers=[f"127.0.0.1:{env.cluster.port}"]) as target:
        pooler = target.pooler
        tcp, unix, port = passed_sockets(pooler.directory)
        configured, target.port = target.port, port
        script = pooler.directory / "token"
        script.write_text(f"""#!/bin/sh
ls -l /proc/$$/fd > seen
env >> seen
printf '%s' '{target.secrets["app2"]}'
""")
        script.chmod(0o700)
        activated(target, tcp, unix)
        manager = Manager(pooler.directory)
        pooler.environment = {"NOTIFY_SOCKET": manager.path}
        pooler.start()
        equal(env.connect(target).value("select session_user"), "app2")
        seen = (pooler.directory / "seen").read_text()
        passed = [line for line in seen.splitlines() if any(f" {number} -> socket:" in line for number in (3, 4))]
        equal(passed + [line for line in seen.splitlines() if line.startswith(("LISTEN_", "NOTIFY_"))], [])
        pooler.stop()
        manager.close()
        tcp.close(), unix.close()
        pooler.launcher, pooler.pass_fds, pooler.environment, target.port = [], (), {}, configured


@pooler_only
def test_sockets_passed_to_another_process_are_left_alone(env):
    with env.pooler_with(start=False) as target:
        tcp, unix, _ = passed_sockets(target.pooler.directory)
        activated(target, tcp, unix)
        target.pooler.environment = {"SUITE_PID_OFF": "1"}
        target.pooler.start()
        equal(env.connect(target).value("select 1"), "1", "on the configured address")
        tcp.close(), unix.close()


@pooler_only
def test_a_passed_descriptor_that_is_no_socket_is_refused(env):
    with env.pooler_with(start=False) as target, open("/dev/null") as null:
        activated(target, null)
        pooler = target.pooler
        done = subprocess.run([*pooler.launcher, binary(), "serve", "-c", str(pooler.config)], capture_output=True, text=True, timeout=20,
                              pass_fds=pooler.pass_fds, cwd=pooler.directory)
        equal(done.returncode, 1)
        assert "the passed socket" in done.stderr, done.stderr


def other_user():
    """A user who is neither root nor the server's."""
    if os.getuid() != 0:
        raise Skip("only root can become another user")
    return pwd.getpwnam("nobody")


def ids(process):
    """Real, effective, saved and file system's uid; the same of gids; other groups; capabilities in force."""
    lines = dict(line.split(":", 1) for line in pathlib.Path(f"/proc/{process.pid}/status").read_text().splitlines())
    return lines["Uid"].split(), lines["Gid"].split(), lines["Groups"].split(), lines["CapEff"].strip()


def give(directory, account):
    for path in (directory, *directory.iterdir()):
        os.chown(path, account.pw_uid, account.pw_gid)


@pooler_only
def test_as_root_it_becomes_the_configured_user_for_good(env):
    account = other_user()
    with env.pooler_with(start=False) as target:
        pooler = target.pooler
        config = pooler.config.read_text().replace("[process]", f'[process]\nuser = "{account.pw_name}"')
        pooler.config.write_text(config)
        give(pooler.directory, account)
        # What only root can read is read before: a key of a certificate.
        key = pooler.directory / "root.key"
        shutil.copy(env.certificates.path("server.key"), key)
        key.chmod(0o600)
        pooler.config.write_text(config.replace(env.certificates.path("server.key"), str(key)))
        pooler.start()
        uid, gid = str(account.pw_uid), str(account.pw_gid)
        until(lambda: ids(pooler.process)[0] == [uid] * 4, "it is the other user")
        equal(ids(pooler.process)[1:], ([gid] * 4, [gid], "0" * 16))
        equal(env.connect(target, tls=env.tls(), hostname="localhost").value("select 1"), "1")
        equal(env.connect(target, host=target.socket_dir).value("select 1"), "1")
        pooler.stop()
        equal(sorted(path.name for path in pooler.directory.iterdir() if path.is_socket()), [], "sockets left behind")


@pooler_only
def test_it_runs_without_any_privilege(env):
    account = other_user()
    with env.pooler_with(start=False) as target:
        pooler = target.pooler
        give(pooler.directory, account)
        key = pooler.directory / "server.key"
        shutil.copy(env.certificates.path("server.key"), key)
        os.chown(key, account.pw_uid, account.pw_gid)
        pooler.write(client_tls_key_file=str(key))
        unprivileged = ["setpriv", f"--reuid={account.pw_uid}", f"--regid={account.pw_gid}", "--clear-groups", "--bounding-set=-all",
                        "--no-new-privs"]
        if subprocess.run([*unprivileged, "test", "-x", binary()]).returncode:
            raise Skip(f"{account.pw_name} may not run {binary()}")
        pooler.launcher = unprivileged
        pooler.start()
        equal(ids(pooler.process)[0], [str(account.pw_uid)] * 4)
        for how in ({}, {"host": target.socket_dir}, {"tls": env.tls(), "hostname": "localhost"}):
            equal(env.connect(target, **how).value("select 1"), "1", how)
        pooler.reload()
        equal(env.connect(target).value("select 1"), "1")
        status = subprocess.run([binary(), "status", "-c", str(pooler.config)], capture_output=True, text=True)
        equal(status.returncode, 0, status.stderr)


@pooler_only
def test_lines_for_the_journal_have_their_priority(env):
    """`journalctl -p warning` showed none of the warnings, and each line had its time twice."""
    for format in ("text", "json"):
        with env.pooler_with(start=False, format=format, servers=["127.0.0.1:1"], query_wait_timeout="1s") as target:
            pooler = target.pooler
            pooler.log.touch()
            journal = pooler.log.stat()
            pooler.environment = {"JOURNAL_STREAM": f"{journal.st_dev}:{journal.st_ino}"}
            pooler.start()
            with contextlib.suppress(ServerError):
                target.connect().close()
            until(lambda: "<4>" in pooler.log.read_text(), "the server that is down is a warning")
            lines = pooler.log.read_text().splitlines()
            equal([line for line in lines if line[:3] not in ("<3>", "<4>", "<6>")], [])
            equal([line for line in lines if format == "text" and "INFO" in line and not line.startswith("<6>")], [])
            equal([line for line in lines if format == "text" and re.match(r"<\d>\s*\d{4}-", line)], [], "no time")
            equal([line for line in lines if format == "json" and "message" not in json.loads(line[3:])], [])
