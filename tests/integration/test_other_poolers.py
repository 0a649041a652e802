"""Hawser before another pooler: one in transaction mode mixes clients' session state, and must not pass as a server."""

import contextlib
import os
import pathlib
import shutil
import subprocess
import tempfile
import time

from harness.pooler import Pooler, binary
from harness.postgres import free_port
from harness.suite import Skip, equal

PGBOUNCER = shutil.which("pgbouncer", path=f"{os.environ['PATH']}:/usr/sbin")


@contextlib.contextmanager
def pgbouncer(env, mode):
    if not PGBOUNCER:
        raise Skip("there is no pgbouncer (Debian: pgbouncer)")
    directory, port = pathlib.Path(tempfile.mkdtemp(prefix="pgbouncer-", dir="/tmp")), free_port()
    (directory / "users").write_text('"app_trust" ""\n')
    (directory / "ini").write_text(
        f"[databases]\napp = host=127.0.0.1 port={env.cluster.port} user=app_trust\n[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {port}\n"
        f"auth_type = trust\nauth_file = {directory}/users\npool_mode = {mode}\nunix_socket_dir =\nuser = nobody\n")
    directory.chmod(0o755)
    with open(directory / "log", "wb") as log:
        process = subprocess.Popen([PGBOUNCER, directory / "ini"], stdout=log, stderr=log)
    try:
        deadline = time.monotonic() + 10
        while subprocess.run(["bash", "-c", f": < /dev/tcp/127.0.0.1/{port}"], capture_output=True).returncode:
            assert process.poll() is None and time.monotonic() < deadline, (directory / "log").read_text()
            time.sleep(0.05)
        yield f"127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(10)
        shutil.rmtree(directory)


def checked(env, server, more=""):
    entry = f'\n[[database]]\nname = "there"\ndbname = "app"\nservers = ["{server}"]\nuser = "app_trust"\n{more}'
    pooler = Pooler(tempfile.mkdtemp(dir=env.directory) + "/there", env.cluster, append=entry)
    done = subprocess.run([binary(), "check", "-c", str(pooler.config)], capture_output=True, text=True, timeout=60)
    equal(done.returncode, 0, done.stdout)
    return [line for line in done.stdout.splitlines() if '"there"' in line and "pooler" in line]


def test_check_finds_a_pooler_in_transaction_mode(env):
    with pgbouncer(env, "transaction") as server:
        (line,) = checked(env, server)
        assert line.startswith("warn") and "is another pooler in transaction mode" in line, line
        equal(checked(env, server, 'fidelity = "classic"\n'), [])


def test_check_asks_to_look_where_a_pooler_may_be_in_session_mode(env):
    with pgbouncer(env, "session") as server:
        (line,) = checked(env, server)
        assert line.startswith("warn") and "make sure that it is in session mode" in line, line


def test_check_says_nothing_of_a_server_itself(env):
    equal(checked(env, env.cluster.address), [])
