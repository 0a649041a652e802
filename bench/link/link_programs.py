"""What link.py has real programs do: psql, pgbench, pg_basebackup, rsync, MariaDB's dump, each over a way to the far host.

PostgreSQL runs there with TLS and a password by SCRAM. The way `pool` is `hawser serve` on the near host, whose server
connections go over a link and stay open; programs connect to it on loopback.
"""

import base64
import os
import pathlib
import shutil
import statistics
import subprocess
import time

from far_server import HAWSER, Cluster, as_server, rate, run

RSYNC = 8730
RSYNC_BYTES = 160 << 20
MARIADB, MARIADB_BYTES = 7306, 96 << 20
CONNECTS = 5
TRANSACTIONS = 20
PASSWORD = "a long password"


class NotHere(Exception):
    """A way, or a network, that this machine cannot do."""


class Database:
    """A cluster of pgbench's tables and 200 MB more, which a user `app` reaches by TLS and SCRAM."""

    def __init__(self, directory):
        os.chmod(directory, 0o755)
        self.cluster = Cluster(directory, "pgbench")
        data = self.cluster.data
        run(*as_server(), "openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-subj", "/CN=far",
            "-days", "9",
            "-keyout", data / "server.key", "-out", data / "server.crt", cwd="/")
        with open(data / "postgresql.conf", "a") as settings:
            settings.write("ssl=on\nmax_connections=50\n")
        rules = data / "pg_hba.conf"
        rules.write_text("hostssl all,replication app 0.0.0.0/0 scram-sha-256\n" + rules.read_text())
        self.port = self.cluster.port
        control = [*as_server(), f"{self.cluster.bin}/pg_ctl", "-D", data, "-w", "-l", data / "log"]
        run(*control, "start", cwd="/")
        self.cluster.sql(f"create role app login superuser password '{PASSWORD}'")
        self.cluster.sql("create table more as select g, md5(g::text) || md5((-g)::text) as text from generate_series(1, 1900000) "
                         "g; checkpoint")
        run(*control, "-m", "fast", "stop", cwd="/")
        self.bytes = int(run("du", "-sb", data).stdout.split()[0])

    def begin(self, network):
        network.start("far", *self.cluster.command())
        ready = network.inside("far", f"{self.cluster.bin}/pg_isready", "-q", "-h", "127.0.0.1", "-p", self.port)
        end = time.monotonic() + 30
        while subprocess.run(ready).returncode:
            assert time.monotonic() < end, "PostgreSQL does not start"
            time.sleep(0.2)


class Files:
    """A file for rsync, of bytes that do not shrink, and the daemon that gives it."""

    port = RSYNC

    def __init__(self, directory):
        if not shutil.which("rsync"):
            raise NotHere("rsync is not installed")
        os.chmod(directory, 0o755)
        self.directory = pathlib.Path(directory)
        with open(self.directory / "file", "wb") as file:
            for _ in range(RSYNC_BYTES >> 20):
                file.write(os.urandom(1 << 20))
        (self.directory / "rsyncd.conf").write_text(f"port = {RSYNC}\nuse chroot = no\n[files]\npath = {self.directory}\nread only = yes\n")

    def begin(self, network):
        network.start("far", "rsync", "--daemon", "--no-detach", f"--config={self.directory}/rsyncd.conf")
        time.sleep(1)


class MariaDb:
    """A data directory of MariaDB with a table of random text, which a user `app` reads without a password."""

    port = MARIADB

    def __init__(self, directory):
        # Debian keeps the server where only root's PATH leads.
        self.server = shutil.which("mariadbd") or "/usr/sbin/mariadbd"
        if not (os.path.exists(self.server) and shutil.which("mariadb-install-db") and shutil.which("mariadb-dump")):
            raise NotHere("MariaDB is not installed")
        os.chmod(directory, 0o755)
        self.data = pathlib.Path(directory) / "mariadb"
        self.data.mkdir()
        shutil.chown(self.data, "mysql", "mysql")
        run("mariadb-install-db", "--no-defaults", f"--datadir={self.data}", "--user=mysql", "--auth-root-authentication-method=normal",
            "--skip-test-db", cwd="/")
        rows, row = MARIADB_BYTES // 1024, 768  # 1024 characters of base64
        with (pathlib.Path(directory) / "rows").open("w") as file:
            file.writelines(base64.b64encode(os.urandom(row)).decode() + "\n" for _ in range(rows))
        os.chmod(file.name, 0o644)
        process = subprocess.Popen(list(map(str, [self.server, *self.options(), "--skip-networking", *self.own_files()])),
                                   stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd="/")
        ask = ["mariadb", "--no-defaults", "-u", "root", "-S", str(self.data / "sock"), "-e"]
        end = time.monotonic() + 30
        while subprocess.run([*ask, "select 1"], capture_output=True).returncode:
            assert time.monotonic() < end and process.poll() is None, "MariaDB does not start"
            time.sleep(0.2)
        run(*ask, "create user app@'%'; grant all on *.* to app@'%'; create database app; create table app.t (id int auto_increment "
                  "primary key, x text) engine=innodb; "
            f"load data infile '{file.name}' into table app.t (x)", cwd="/")
        process.terminate()
        process.wait(60)

    def options(self):
        return ["--no-defaults", f"--datadir={self.data}", "--user=mysql", "--skip-log-bin", "--innodb-flush-log-at-trx-commit=0",
                "--secure-file-priv="]

    def own_files(self):
        return [f"--socket={self.data}/sock", f"--pid-file={self.data}/pid"]

    def begin(self, network):
        network.start("far", self.server, *self.options(), *self.own_files(), "--port", MARIADB, "--bind-address=0.0.0.0")
        ask = network.inside("far", "mariadb", "--no-defaults", "--protocol=TCP", "-h", "127.0.0.1", "-P", MARIADB, "-u", "app",
                             "--skip-ssl", "-e", "select 1")
        end = time.monotonic() + 30
        while subprocess.run(ask, capture_output=True).returncode:
            assert time.monotonic() < end, "MariaDB does not start"
            time.sleep(0.2)


def pooled(network, link, port, database):
    """`hawser serve` on the near host, whose server connections go over `link` (the lines of its table)."""
    place = network.directory / "pool"
    place.mkdir()
    (place / "hawser.toml").write_text(f"""
[listen]
address = "127.0.0.1:{port}"
[[database]]
name = "postgres"
servers = ["link://main/127.0.0.1:{database.port}"]
[[user]]
name = "app"
password = "{PASSWORD}"
[tls]
server_tls_sslmode = "require"
{link}""")
    network.start("near", HAWSER, "serve", "-c", place / "hawser.toml")
    time.sleep(3)


def url(network, port, database, sslmode="require"):
    return f"host={network.host(port)} port={network.at(port)} user=app dbname={database} sslmode={sslmode}"


def timed(network, *command, seconds=180):
    """How long a command on the near host takes."""
    began = time.monotonic()
    done = subprocess.run(network.beside(*command), capture_output=True, text=True, timeout=seconds, cwd="/")
    assert done.returncode == 0, done.stderr
    return time.monotonic() - began


def case_connect(network, _):
    """A psql that runs connects anew, and has a row: from before the one to after the other."""
    sslmode = "disable" if network.way == "pool" else "require"
    again = ["-c", "\\! date +%s.%N", "-c", "\\c", "-c", "select 1", "-c", "\\! date +%s.%N"]
    psql = [f"{network.database.cluster.bin}/psql", "-XqAt", *again, url(network, network.database.port, "postgres", sslmode)]
    times = []
    for _ in range(CONNECTS):
        done = run(*network.beside("env", f"PGPASSWORD={PASSWORD}", *psql), cwd="/")
        words = done.stdout.split()
        times.append(float(words[-1]) - float(words[0]))
    return {"first_row": statistics.median(times)}


# pgbench's own `-S`, as a script: for its own ones pgbench first asks about its tables, twice.
SELECTS = "\\set aid random(1, 500000)\nselect abalance from pgbench_accounts where aid = :aid;\n"


def case_pgbench(network, _):
    port = network.database.port
    sslmode = "disable" if network.way == "pool" else "require"
    script = network.directory / "selects.sql"
    script.write_text(SELECTS)
    pgbench = ["env", f"PGPASSWORD={PASSWORD}", f"{network.database.cluster.bin}/pgbench", "-n", "-t", TRANSACTIONS]
    where = url(network, port, "postgres", sslmode)
    timed(network, *pgbench, "-S", where)
    return {"all": timed(network, *pgbench, "-S", where), "selects": timed(network, *pgbench, "-f", script, where)}


def case_copy(network, seconds):
    """A COPY out that is longer than this takes."""
    rows = "copy (select repeat('x', 999) from generate_series(1, 1000) a, generate_series(1, 100000) b) to stdout"
    psql = [f"{network.database.cluster.bin}/psql", "-Xq", "-c", rows, url(network, network.database.port, "postgres")]
    process = subprocess.Popen(network.beside("env", f"PGPASSWORD={PASSWORD}", *psql), stdout=subprocess.PIPE, cwd="/")
    began, points, total = time.monotonic(), [(0.0, 0)], 0
    while points[-1][0] < seconds and (piece := process.stdout.read1(1 << 20)):
        total += len(piece)
        points.append((time.monotonic() - began, total))
    process.kill()
    process.communicate()
    return {"steady": rate(points, 15.0, seconds)}


def case_basebackup(network, _):
    target = network.directory / "backup"
    took = timed(network, "env", f"PGPASSWORD={PASSWORD}", f"{network.database.cluster.bin}/pg_basebackup", "-D", target, "-X", "none",
                 "-c", "fast", "--no-sync", "-d",
                 url(network, network.database.port, "replication").replace(" dbname=replication", ""), seconds=600)
    got = int(run("du", "-sb", target).stdout.split()[0])
    shutil.rmtree(target)
    return {"whole": got * 8 / 1e6 / took}


def case_rsync(network, _):
    target = network.directory / "copy"
    took = timed(network, "rsync", "--inplace", f"rsync://{network.host(RSYNC)}:{network.at(RSYNC)}/files/file", target, seconds=600)
    assert target.stat().st_size == RSYNC_BYTES
    target.unlink()
    return {"whole": RSYNC_BYTES * 8 / 1e6 / took}


def case_mariadb(network, _):
    command = ["mariadb-dump", "--no-defaults", "--protocol=TCP", "-h", network.host(MARIADB), "-P", network.at(MARIADB), "-u", "app",
               "--skip-ssl", "--quick", "app"]
    process = subprocess.Popen(list(map(str, network.beside(*command))), stdout=subprocess.PIPE, cwd="/")
    began, total = time.monotonic(), 0
    while piece := process.stdout.read1(1 << 20):
        total += len(piece)
    took = time.monotonic() - began
    assert process.wait() == 0 and total > MARIADB_BYTES, f"the dump has {total} bytes"
    return {"whole": total * 8 / 1e6 / took}
