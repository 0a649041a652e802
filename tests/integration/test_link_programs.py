"""Programs over `hawser link` while its paths are cut: pg_basebackup, a streaming replica, rsync, ssh, MariaDB's replication.

psql and COPY are in test_link.py. A program that is not installed skips its test.
"""

import contextlib
import dataclasses
import getpass
import hashlib
import os
import pathlib
import shutil
import socket
import subprocess
import tempfile
import threading

from harness.suite import Background, equal, installed, limit, until
from integration.test_lab import here
from integration.test_link import free_port, linked

SAME_FOR_ALL_SERVERS = True
TAKES_SECONDS = 60

ROW = "repeat(md5(g::text), 16)"
PATHS = 3


@contextlib.contextmanager
def over_cut_paths(port):
    """A link to a local port; gives the port for programs. While something is carried, one path of three is cut again and again."""
    with linked(port, paths=PATHS) as (near, _, relay, at):
        relay.pause, relay.keeps = 0.002, False  # that it takes a while, by this and not by what is kept
        over = threading.Event()

        def cutting():
            while not over.wait(0.2):
                if near.session()["streams_open"]:
                    relay.cut_one()
        cutter = Background(cutting)
        try:
            yield at
        finally:
            over.set()
            cutter.join()
        until(lambda: near.session()["paths_lost"] > 0, "that a path which was cut is lost")


@contextlib.contextmanager
def directory_for(user):
    """A directory that a server's user may have its own in."""
    with tempfile.TemporaryDirectory() as name:
        os.chmod(name, 0o755)
        path = pathlib.Path(name, "own")
        path.mkdir(mode=0o700)
        if os.geteuid() == 0:
            shutil.chown(path, user, user)
        yield path


@contextlib.contextmanager
def running(*command, **how):
    """A server for as long as this lasts; gives its process."""
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(list(map(str, command)), stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd="/", **how)
        try:
            yield process
        except BaseException:
            log.seek(0)
            print(log.read()[-2000:].decode(errors="replace"))
            raise
        finally:
            process.terminate()
            try:
                process.wait(15)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def listens(port):
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def through(env, port):
    return dataclasses.replace(env.cluster.target, port=port)


@here
@limit(120)
def test_a_base_backup_is_whole_whatever_paths_are_cut(env):
    with tempfile.TemporaryDirectory() as directory, over_cut_paths(env.cluster.target.port) as port:
        env.program("pg_basebackup", "-D", f"{directory}/backup", "-X", "stream", "-c", "fast", user="replicator",
                    target=through(env, port))
        env.program("pg_verifybackup", f"{directory}/backup")


@here
@limit(150)
def test_a_streaming_replica_follows_whatever_paths_are_cut(env):
    server = env.server()
    with directory_for("postgres") as place, over_cut_paths(env.cluster.target.port) as port:
        standby = place / "standby"
        env.program("pg_basebackup", "-D", standby, "-X", "stream", "-c", "fast", "-R", user="replicator", target=through(env, port))
        as_postgres = []
        if os.geteuid() == 0:
            subprocess.run(["chown", "-R", "postgres:", place], check=True)
            as_postgres = ["setpriv", "--reuid=postgres", "--regid=postgres", "--init-groups"]
        own = free_port()
        command = [*as_postgres, env.program_path("postgres"), "-D", standby, "-p", own, "-c", f"unix_socket_directories={standby}",
                   "-c", "hot_standby=on"]
        with running(*command):
            def ask(statement):
                done = subprocess.run([env.program_path("psql"), "-XqAt", "-h", standby, "-p", str(own), "-U", "postgres", "-d", "app",
                                       "-c", statement], capture_output=True, text=True)
                return done.stdout.strip() if done.returncode == 0 else None
            until(lambda: ask("select pg_is_in_recovery()") == "t", "the replica answers", 40)
            until(lambda: ask("select status from pg_stat_wal_receiver") == "streaming", "it streams", 20)
            name = f"followed_{os.getpid()}"
            server.execute(f"create table {name} as select g, {ROW} as text from generate_series(1, 30000) g")
            position = server.value("select pg_current_wal_lsn()")
            digest = f"select count(*), md5(string_agg(text, '' order by g)) from {name}"
            until(lambda: ask(f"select pg_last_wal_replay_lsn() >= '{position}'") == "t", "the replica has caught up", 60)
            rows = "|".join(server.execute(digest).rows[0])
            # (A question of a replica may be cancelled for what it has to replay.)
            until(lambda: ask(digest) == rows, "the replica has the same rows", 20)
            equal(ask("select status from pg_stat_wal_receiver"), "streaming")
            server.execute(f"drop table {name}")


@here
@limit(90)
def test_rsync_copies_whatever_paths_are_cut(env):
    rsync = installed("rsync", "rsync")
    body = os.urandom(12 << 20)
    with tempfile.TemporaryDirectory() as directory:
        place = pathlib.Path(directory)
        (place / "source").mkdir()
        (place / "source/file").write_bytes(body)
        own = f"uid = {os.geteuid()}\ngid = {os.getegid()}\n" if os.geteuid() == 0 else ""
        (place / "conf").write_text(f"address = 127.0.0.1\nuse chroot = no\n{own}[data]\npath = {place}/source\nread only = yes\n")
        daemon_port = free_port()
        with running(rsync, "--daemon", "--no-detach", f"--config={place}/conf", f"--port={daemon_port}"):
            until(lambda: listens(daemon_port), "rsync's daemon listens", 10)
            with over_cut_paths(daemon_port) as port:
                done = subprocess.run([rsync, "--whole-file", f"rsync://127.0.0.1:{port}/data/file", place / "copy"], capture_output=True,
                                      text=True, timeout=60)
                equal(done.returncode, 0, done.stderr)
        assert (place / "copy").read_bytes() == body, "another file has come"


@here
@limit(90)
def test_ssh_carries_a_file_whatever_paths_are_cut(env):
    sshd, ssh, keygen = installed("sshd", "openssh-server"), installed("ssh", "openssh-client"), installed("ssh-keygen", "openssh-client")
    body = os.urandom(12 << 20)
    with tempfile.TemporaryDirectory() as directory:
        place = pathlib.Path(directory)
        for key in ("host", "client"):
            subprocess.run([keygen, "-q", "-t", "ed25519", "-N", "", "-f", place / key], check=True)
        (place / "file").write_bytes(body)
        daemon_port = free_port()
        (place / "conf").write_text(f"Port {daemon_port}\nListenAddress 127.0.0.1\nHostKey {place}/host\nAuthorizedKeysFile "
                                    f"{place}/client.pub\nStrictModes no\n"
                                    "UsePAM no\nPermitRootLogin prohibit-password\nPidFile none\n")
        if os.geteuid() == 0:
            # Where it goes to be confined; the service makes it, and there is no service here.
            pathlib.Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)
        with running(sshd, "-D", "-e", "-f", place / "conf"):
            until(lambda: listens(daemon_port), "sshd listens", 10)
            with over_cut_paths(daemon_port) as port:
                command = [ssh, "-F", "none", "-i", place / "client", "-o", "StrictHostKeyChecking=no",
                           "-o", f"UserKnownHostsFile={place}/known", "-o", "BatchMode=yes",
                           "-p", str(port), f"{getpass.getuser()}@127.0.0.1"]
                done = subprocess.run([*command, f"cat {place}/file"], capture_output=True, timeout=60)
                equal(done.returncode, 0, done.stderr.decode())
    equal(hashlib.sha256(done.stdout).hexdigest(), hashlib.sha256(body).hexdigest(), "what came by ssh")


class MariaDb:
    """A server of MariaDB in a directory of its own; `ask` is its superuser, on its socket."""

    def __init__(self, place, number):
        self.data, self.number, self.port, self.socket = place / f"data{number}", number, free_port(), place / f"{number}.sock"
        self.user = f"--user={'mysql' if os.geteuid() == 0 else getpass.getuser()}"
        install = [installed("mariadb-install-db", "mariadb-server"), "--no-defaults", f"--datadir={self.data}", self.user,
                   "--skip-test-db", "--auth-root-authentication-method=normal"]
        subprocess.run(install, check=True, capture_output=True, cwd="/")

    def running(self):
        return running(installed("mariadbd", "mariadb-server"), "--no-defaults", f"--datadir={self.data}", self.user, f"--port={self.port}",
                       "--bind-address=127.0.0.1",
                       f"--socket={self.socket}", f"--pid-file={self.data}/pid", f"--server-id={self.number}",
                       "--log-bin=bin", "--innodb-flush-log-at-trx-commit=0",
                       "--innodb-buffer-pool-size=32M")

    def ask(self, statement, check=True, format="-NB"):
        done = subprocess.run([installed("mariadb", "mariadb-client"), "--no-defaults", "-u", "root", "-S", str(self.socket), format,
                               "-e", statement], capture_output=True, text=True)
        assert not check or done.returncode == 0, done.stderr
        return done.stdout.strip() if done.returncode == 0 else None


@here
@limit(180)
def test_mariadb_replicates_whatever_paths_are_cut(env):
    for name in ("mariadbd", "mariadb-install-db", "mariadb"):
        installed(name, "mariadb-server")
    with directory_for("mysql") as place:
        primary, replica = MariaDb(place, 1), MariaDb(place, 2)
        with primary.running(), replica.running():
            for server in (primary, replica):
                until(lambda server=server: server.ask("select 1", check=False) == "1", "MariaDB answers", 40)
            primary.ask("create user follows@'127.0.0.1' identified by 'a password'; grant replication slave on *.* to follows@'127.0.0.1'")
            primary.ask("reset master; create database d; create table d.t (n int primary key, x text)")
            with over_cut_paths(primary.port) as port:
                replica.ask(f"change master to master_host='127.0.0.1', master_port={port}, master_user='follows', master_password='a "
                            f"password', master_use_gtid=no, master_connect_retry=1; start slave")
                until(lambda: replica.ask("show tables from d", check=False) == "t", "the replica follows", 30)
                for first in range(0, 10_000, 1000):
                    primary.ask(f"use d; insert into d.t select seq, repeat(md5(seq), 16) from seq_{first}_to_{first + 999}")
                until(lambda: replica.ask("select count(*) from d.t") == "10000", "the replica has caught up", 60)
                equal(replica.ask("checksum table d.t extended"), primary.ask("checksum table d.t extended"))
                names, values = (line.split("\t") for line in replica.ask("show slave status", format="-B").split("\n", 1))
                status = dict(zip(names, values))
                equal((status["Slave_IO_Running"], status["Slave_SQL_Running"]), ("Yes", "Yes"), status)
                replica.ask("stop slave")
