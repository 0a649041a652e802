"""A throw-away PostgreSQL cluster: initdb, users of every login method, TLS, logical WAL; gone at the end.

# Invariants  nothing listens on anything but loopback and a private directory; ports are below those of outgoing connections
# Limits      PostgreSQL refuses to be root: as root, everything of the cluster belongs to and runs as `postgres`
"""

import contextlib
import itertools
import os
import pathlib
import pwd
import shutil
import socket
import subprocess
import time

from .certificates import Certificates
from .wire import PATIENCE_SECONDS, Target

SERVER_USER = "postgres"
SUPERUSER = "postgres"

# User name -> password. The passwords hold what breaks naive quoting; app_unicode needs SASLprep: U+00A0 becomes a
# space, U+FB01 becomes "fi".
SECRETS = {
    "app": "app's secret",
    "app2": 'second "secret"',
    "app3": "third secret",
    "app_md5": "md5 secret",
    "app_plain": "plain secret",
    "app_scram": "kept as a verifier only",
    "app_unicode": "sp\u00a0\ufb01n",
    "app_trust": "",
    "app_cert": "",
    "app_peer": "",
    "app_peer_other": "",
    "app_rejected": "never asked",
    "app_expired": "expired",
    "replicator": "replication secret",
    "admin": "admin secret",
    "stats": "stats secret",
}
SASLPREPPED = {"app_unicode": "sp fin"}

# The pooler and the server get the same rules, so that a test can compare their answers.
HBA = """\
# type  database     user            address  method
local   all          app_peer                 peer map=suite
local   all          app_peer_other           peer map=suite
local   all          app_rejected             reject
local   replication  all                      trust
local   all          all                      trust
hostssl all          app_cert        all      cert
host    all          app_cert        all      reject
host    all          app_trust       all      trust
host    all          app_md5         all      md5
host    all          app_plain       all      password
host    all          app_rejected    all      reject
host    replication  replicator      all      scram-sha-256
host    all          all             all      scram-sha-256
"""

SETTINGS = """\
listen_addresses = '127.0.0.1,::1'
max_connections = 200
max_prepared_transactions = 10
wal_level = logical
fsync = off
full_page_writes = off
synchronous_commit = off
autovacuum = off
shared_buffers = 64MB
ssl = on
log_line_prefix = '%m [%p] %q%u@%d '
"""

ROLES = """\
create role app2 login password 'second "secret"';
create role app3 login password 'third secret';
create role app login password 'app''s secret';
create role app_scram login password 'kept as a verifier only';
create role app_unicode login password 'sp fin';
create role app_trust login;
create role app_cert login;
create role app_peer login;
create role app_peer_other login;
create role app_rejected login password 'never asked';
create role app_expired login password 'expired' valid until '2001-01-01';
create role replicator login replication password 'replication secret';
create role helper_role;
grant helper_role to app;
set password_encryption = 'md5';
create role app_md5 login password 'md5 secret';
reset password_encryption;
create role app_plain login password 'plain secret';
"""


def bin_directories():
    """Where PostgreSQL programs may be, best first: $PG_BIN, PATH, then the distribution's directories, newest first."""
    found = [os.environ["PG_BIN"]] if "PG_BIN" in os.environ else []
    if initdb := shutil.which("initdb"):
        found.append(str(pathlib.Path(initdb).resolve().parent))
    versions = pathlib.Path("/usr/lib/postgresql").glob("*/bin")
    found += [str(path) for path in sorted(versions, key=lambda path: -float(path.parent.name))]
    return [path for path in found if os.access(f"{path}/initdb", os.X_OK)]


def own_name():
    """The name that peer authentication sees: that of the effective user, whatever $USER and $LOGNAME say."""
    return pwd.getpwuid(os.geteuid()).pw_name


PORTS = itertools.count()
# Below those that outgoing connections have (net.ipv4.ip_local_port_range).
PORT_FIRST, PORTS_OF_A_PROCESS, PROCESSES = 10_000, 200, 100


def free_port():
    """A port that was free a moment ago, on both families: PostgreSQL and the pooler are told a number.

    Of this process's own part of the ports: another one, or an outgoing connection, could take it before it is bound.
    """
    first = PORT_FIRST + os.getpid() % PROCESSES * PORTS_OF_A_PROCESS
    for _ in range(PORTS_OF_A_PROCESS):
        port = first + next(PORTS) % PORTS_OF_A_PROCESS
        with socket.socket(socket.AF_INET6) as probe:
            probe.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
            with contextlib.suppress(OSError):
                probe.bind(("::", port))
                return port
    raise OSError(f"no port of {first} to {first + PORTS_OF_A_PROCESS - 1} is free")


class Cluster:
    def __init__(self, directory, bin_directory):
        self.directory = pathlib.Path(directory)
        self.bin = pathlib.Path(bin_directory)
        self.data = self.directory / "data"
        self.socket_dir = self.directory / "server"
        self.port = free_port()
        self.certificates = Certificates(self.directory / "tls")
        self.target = Target(self.port, str(self.socket_dir), SECRETS)
        self.version = 0
        self.inside = None  # or how its server serves clients itself, in each module

    @property
    def log(self):
        return self.directory / "postgresql.log"

    @property
    def address(self):
        """For the pooler's `servers`."""
        return f"{self.socket_dir}:{self.port}"

    def _program(self, name, *arguments):
        command = [str(self.bin / name), *map(str, arguments)]
        if os.getuid() == 0:
            command = ["setpriv", f"--reuid={SERVER_USER}", f"--regid={SERVER_USER}", "--init-groups", *command]
        # pg_ctl's child keeps the descriptors that it is given: a pipe would never end.
        done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, cwd="/",
                              stderr=subprocess.PIPE if name != "pg_ctl" else None)
        if done.returncode:
            detail = done.stderr.decode() if done.stderr else self.log.read_text()[-2000:]
            raise RuntimeError(f"{name} {arguments}: exit code {done.returncode}: {detail}")

    def create(self):
        self.socket_dir.mkdir()
        if os.getuid() == 0:
            owner = pwd.getpwnam(SERVER_USER)
            for path in (self.directory, self.socket_dir):
                os.chown(path, owner.pw_uid, owner.pw_gid)
            self.directory.chmod(0o755)
        self._program("initdb", "-D", self.data, "-U", SUPERUSER, "-A", "trust", "-N", "--locale=C.UTF-8", "-E", "UTF8")
        for name in ("server.crt", "server.key", "ca.crt"):
            shutil.copy(self.certificates.path(name), self.data / name)
        if os.getuid() == 0:
            os.chown(self.data / "server.key", owner.pw_uid, owner.pw_gid)
        with open(self.data / "postgresql.conf", "a") as conf:
            conf.write(f"{SETTINGS}ssl_ca_file = 'ca.crt'\nport = {self.port}\nunix_socket_directories = '{self.socket_dir}'\n")
        (self.data / "pg_hba.conf").write_text(HBA)
        (self.data / "pg_ident.conf").write_text(f"suite {own_name()} app_peer\n")
        self.start()
        with self.superuser("postgres") as session:
            self.version = int(session.parameters["server_version"].split(".")[0])
            session.execute(ROLES)
        self.make_databases()
        return self

    def make_databases(self):
        """Empty ones in place of those that there are: what one module has made is in no other's way. (What a default, an
        operator or an index calls, any text may call: what such an object leaves behind would count for all that follows.)"""
        with self.superuser("postgres") as session:
            for database in ("app", "other"):
                session.execute(f"drop database if exists {database} with (force)")
                session.execute(f"create database {database} owner app")
                session.execute(f"grant all on database {database} to public")
        for database in ("app", "other"):
            with self.superuser(database) as session:
                session.execute("grant all on schema public to public")

    def superuser(self, database="app", **parameters):
        """A direct connection as superuser over the unix socket."""
        return self.target.connect(SUPERUSER, database, host=str(self.socket_dir), **parameters)

    def start(self):
        self._program("pg_ctl", "-D", self.data, "-l", self.log, "-w", "-t", "30", "-s", "start")

    def stop(self, mode="fast"):
        self._program("pg_ctl", "-D", self.data, "-w", "-t", "30", "-m", mode, "-s", "stop")

    def restart(self, mode="fast"):
        self.stop(mode)
        self.start()

    def reload(self):
        if self.is_running():
            self._program("pg_ctl", "-D", self.data, "-s", "reload")

    def is_running(self):
        return (self.data / "postmaster.pid").exists()

    def verifier(self, user):
        """What pg_authid keeps: md5... or SCRAM-SHA-256$..."""
        with self.superuser() as session:
            return session.value(f"select rolpassword from pg_authid where rolname = '{user}'")

    def backends(self, condition="true"):
        """(pid, user, state, query) of client backends of the test databases that meet an SQL condition on pg_stat_activity."""
        with self.superuser("postgres") as session:
            return session.rows("select pid, usename, state, query from pg_stat_activity where datname in ('app', 'other') and "
                                "application_name <> 'hawser' "
                                f"and backend_type = 'client backend' and ({condition}) order by pid")

    def wait_for_backends(self, condition, count=0, seconds=PATIENCE_SECONDS):
        """Until exactly `count` backends meet the condition; returns them."""
        end = time.monotonic() + seconds
        while len(found := self.backends(condition)) != count:
            assert time.monotonic() < end, f"wanted {count} backends where {condition}, after {seconds} s there are {found}"
            time.sleep(0.02)
        return found

    def terminate_backends(self):
        with self.superuser("postgres") as session:
            session.execute("select pg_terminate_backend(pid) from pg_stat_activity where datname in ('app', 'other')")

    def destroy(self):
        if self.is_running():
            self.stop("immediate")


class Standby(Cluster):
    """A hot standby that follows `primary`, made of a copy of its files (needs no program that an old or bare installation
    lacks). `with` it: gone at the end, and the primary runs."""

    def __init__(self, primary, directory):
        self.primary = primary
        self.directory = pathlib.Path(directory)
        self.bin = primary.bin
        self.data = self.directory / "data"
        self.socket_dir = self.directory / "server"
        self.port = free_port()
        self.certificates = primary.certificates
        self.inside = None
        self.target = Target(self.port, str(self.socket_dir), SECRETS)
        self.version = primary.version

    def create(self):
        self.directory.mkdir()
        self.socket_dir.mkdir()
        if self.version >= 15:
            begin, end = "select pg_backup_start('standby', true)", "select labelfile from pg_backup_stop(false)"
        else:
            begin, end = "select pg_start_backup('standby', true, false)", "select labelfile from pg_stop_backup(false, false)"
        with self.primary.superuser("postgres") as session:
            session.execute(begin)
            shutil.copytree(self.primary.data, self.data, ignore=shutil.ignore_patterns("postmaster.*", "pg_replslot", "pg_wal"))
            label = session.value(end)
            # What has been written while the files were copied is in the log; the rest is streamed.
            shutil.copytree(self.primary.data / "pg_wal", self.data / "pg_wal")
        (self.data / "pg_replslot").mkdir()
        (self.data / "backup_label").write_text(label)
        (self.data / "standby.signal").touch()
        with open(self.data / "postgresql.conf", "a") as conf:
            conf.write(f"port = {self.port}\nunix_socket_directories = '{self.socket_dir}'\n"
                       f"primary_conninfo = 'host={self.primary.socket_dir} port={self.primary.port} user={SUPERUSER}'\n")
        self.data.chmod(0o700)
        if os.getuid() == 0:
            owner = pwd.getpwnam(SERVER_USER)
            for path in (self.directory, *self.directory.rglob("*")):
                os.chown(path, owner.pw_uid, owner.pw_gid)
        self.start()
        return self

    def follow(self, primary):
        """Starts as a standby of `primary`, which has followed it up to its clean shutdown and gone on from there."""
        signal = self.data / "standby.signal"
        signal.touch()
        if os.getuid() == 0:
            owner = pwd.getpwnam(SERVER_USER)
            os.chown(signal, owner.pw_uid, owner.pw_gid)
        with open(self.data / "postgresql.conf", "a") as conf:
            conf.write(f"primary_conninfo = 'host={primary.socket_dir} port={primary.port} user={SUPERUSER}'\n")
        self.start()

    def promote(self):
        self._program("pg_ctl", "-D", self.data, "-w", "-t", "30", "-s", "promote")

    def __enter__(self):
        return self.create()

    def __exit__(self, *_):
        self.destroy()
        if not self.primary.is_running():
            self.primary.start()
        shutil.rmtree(self.directory, ignore_errors=True)


def is_ready(cluster):
    """Does the server take logins? False while it starts, stops or is gone."""
    try:
        with cluster.superuser("postgres"):
            return True
    except Exception:  # whatever the reason, it is not ready
        return False
