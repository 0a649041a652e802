"""What the benchmarks over the laboratory's networks share: their server, and what their figures are made of."""

import contextlib
import os
import pathlib
import pwd
import statistics
import subprocess

from cluster import find_postgres, free_port

ROOT = pathlib.Path(__file__).resolve().parents[2]
HAWSER = os.environ.get("HAWSER", str(ROOT / "target/release/hawser"))
ROWS, ROW_BYTES = 498_000, 100
TABLE_BYTES = ROWS * ROW_BYTES


def as_server():
    return ["setpriv", "--reuid=postgres", "--regid=postgres", "--init-groups"]


def run(*command, **how):
    how.setdefault("check", True)
    return subprocess.run([str(word) for word in command], capture_output=True, text=True, **how)


def ended(processes):
    """Waits for processes whose network has gone, and ends those that have not."""
    for process in processes:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(5)
        if process.poll() is None:
            process.kill()


class Cluster:
    """A data directory with a table whose COPY has 49.8 MB, or with pgbench's of scale 5."""

    def __init__(self, directory, kind):
        self.bin = find_postgres()
        self.data = pathlib.Path(directory) / kind
        self.port = free_port()
        account = pwd.getpwnam("postgres")
        self.data.mkdir()
        os.chown(self.data, account.pw_uid, account.pw_gid)
        run(*as_server(), f"{self.bin}/initdb", "-D", self.data, "-U", "postgres", "-A", "trust", "--no-sync", "--locale=C", cwd="/")
        with open(self.data / "postgresql.conf", "a") as settings:
            settings.write(f"listen_addresses='*'\nport={self.port}\nunix_socket_directories='{self.data}'\nfsync=off\n"
                           "shared_buffers=256MB\nmax_wal_size=2GB\nmax_wal_senders=4\nwal_level=replica\nautovacuum=off\n")
        with open(self.data / "pg_hba.conf", "a") as rules:
            rules.write("host all all 0.0.0.0/0 trust\nhost replication all 0.0.0.0/0 trust\n")
        run(*as_server(), f"{self.bin}/pg_ctl", "-D", self.data, "-w", "-l", self.data / "log", "start", cwd="/")
        if kind == "bulk":
            self.sql(f"create table bulk as select lpad(g::text, {ROW_BYTES - 1}, 'x') t from generate_series(1, {ROWS}) g")
            self.sql("create table taken (t text)")
        else:
            run(f"{self.bin}/pgbench", "-h", self.data, "-p", self.port, "-U", "postgres", "-i", "-s", "5", "-q", "postgres")
        self.sql("checkpoint")
        run(*as_server(), f"{self.bin}/pg_ctl", "-D", self.data, "-w", "-m", "fast", "stop", cwd="/")

    def sql(self, statement):
        return run("psql", "-XqAt", "-h", self.data, "-p", self.port, "-U", "postgres", "-c", statement, "postgres").stdout

    def command(self):
        return [*as_server(), f"{self.bin}/postgres", "-D", str(self.data)]


def rate(points, begin, end):
    """Mbit/s between two moments."""
    inside = [p for p in points if begin <= p[0] <= end]
    if len(inside) < 2:
        return 0.0
    (t0, b0), (t1, b1) = inside[0], inside[-1]
    return (b1 - b0) * 8 / 1e6 / max(t1 - t0, 1e-9)


def median(values):
    values = [v for v in values if v is not None]
    return statistics.median(values) if values else None


def shown(value, digits=1):
    return "-" if value is None else f"{value:.{digits}f}"


def late_share(lab):
    """Packets that left late, in %."""
    counts = ((getattr(lab, "report", {}) or {}).get("lateness") or {}).get("counts")
    # Four steps to each doubling of nanoseconds (hawser_lab::namespaces::lateness): 2^20 is 1.05 ms.
    return 100.0 * sum(counts[80:]) / sum(counts) if counts and sum(counts) else None
