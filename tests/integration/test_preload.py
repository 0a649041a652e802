"""packaging/preload: the library that turns the sockets of a long-lived server into MPTCP ones."""

import json
import os
import pathlib
import shutil
import subprocess
import sys

from harness.suite import Skip, equal, limit, until
from integration.test_mptcp import needs_mptcp, two_machines

SAME_FOR_ALL_SERVERS = True

SOURCE = pathlib.Path(__file__).resolve().parents[2] / "packaging/preload/hawser-mptcp.c"


def library(env):
    compiler = shutil.which("cc") or shutil.which("gcc")
    if not compiler:
        raise Skip("there is no C compiler")
    path = pathlib.Path(env.directory) / "libhawser-mptcp.so"
    subprocess.run([compiler, "-shared", "-fPIC", "-O2", "-Wall", "-Wextra", "-Werror", "-o", path, SOURCE], check=True)
    path.chmod(0o755)
    return path


@needs_mptcp
def test_tcp_sockets_are_mptcp_and_all_others_are_left(env):
    path = library(env)
    with two_machines() as (server, _):
        preload = ["env", f"LD_PRELOAD={path}", "PGMPTCP=1"]
        ask = (
            "import json, socket\nprotocol = lambda s: s.getsockopt(socket.SOL_SOCKET, 38)\n"
            "print(json.dumps([protocol(socket.socket()), protocol(socket.socket(socket.AF_INET6)),"
            " protocol(socket.socket(socket.AF_INET, socket.SOCK_DGRAM)), protocol(socket.socket(socket.AF_UNIX))]))")
        equal(json.loads(server.run(*preload, sys.executable, "-c", ask)), [262, 262, 17, 0])
        equal(json.loads(server.run(*preload[:2], "PGMPTCP=0", sys.executable, "-c", ask)), [6, 6, 17, 0])
        server.run("sh", "-c", "echo 0 > /proc/sys/net/mptcp/enabled")
        equal(json.loads(server.run(*preload, sys.executable, "-c", ask)), [6, 6, 17, 0], "where MPTCP is off")


@needs_mptcp
@limit(90)
def test_a_real_postgresql_server_accepts_and_pg_basebackup_comes_over_mptcp(env):
    path = library(env)
    server_programs = found_server()
    if not (server_programs / "pg_basebackup").exists():
        raise Skip("pg_basebackup is not installed")
    data = pathlib.Path(env.directory) / "preloaded"
    data.mkdir()
    shutil.chown(data, "postgres", "postgres")
    user = ["setpriv", "--reuid=postgres", "--regid=postgres", "--init-groups"]
    subprocess.run([*user, server_programs / "initdb", "-D", data, "-A", "trust", "-U", "postgres", "--no-sync"], check=True,
                   capture_output=True, cwd="/")
    with open(data / "pg_hba.conf", "a") as rules:
        rules.write("host all all 10.77.0.0/16 trust\nhost replication all 10.77.0.0/16 trust\n")
    with two_machines() as (server, client):
        server.start("env", f"LD_PRELOAD={path}", "PGMPTCP=1", *user, server_programs / "postgres", "-D", data, "-p", "7432",
                     "-c", "listen_addresses=*", "-c", f"unix_socket_directories={data}", "-c", "fsync=off",
                     stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd="/")
        conninfo = "host=10.77.0.1 port=7432 user=postgres"
        until(lambda: subprocess.run([server_programs / "pg_isready", "-h", data, "-p", "7432"], capture_output=True).returncode == 0,
              "ready", 30)
        client.start(os.environ["HAWSER"], "mptcp", "run", "--", "psql", f"{conninfo} dbname=postgres", "-c", "select pg_sleep(5)",
                     stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        found = until(client.connections, "a connection", 10)[0]
        equal((found["fallback"], found["program"]["name"]), (False, "psql"))
        backup = client.run(os.environ["HAWSER"], "mptcp", "run", "--verbose", "--", server_programs / "pg_basebackup", "-d", conninfo,
                            "-D", str(pathlib.Path(env.directory) / "preload-backup"), "-X", "stream", "-c", "fast")
        equal(backup, "")
        assert (pathlib.Path(env.directory) / "preload-backup/PG_VERSION").exists()


def found_server():
    places = sorted(pathlib.Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    if not places:
        raise Skip("PostgreSQL's server programs are not installed")
    return places[-1].parent
