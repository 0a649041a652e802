"""The extension in a throw-away cluster: built from extension/, loaded by its path. Nothing is installed into the server."""

import contextlib
import fcntl
import os
import pathlib
import shutil
import subprocess

ROOT = pathlib.Path(__file__).resolve().parents[2]


class CannotBuild(Exception):
    """The message says why."""


# Where the tests of a run find what another module, or another process, has built; None: each builds its own.
shared_directory = None
# The library itself, that a run in the emulator is given: a compiler there takes minutes.
BUILT = "HAWSER_EXTENSION"


def build(cluster, directory, name="extension", change=lambda sources: None):
    """The library, built in a directory of its own. `change` is given the copy of the sources before; what it makes of them has a
    name of its own."""
    if built := os.environ.get(BUILT):
        return pathlib.Path(shutil.copy(built, directory))
    pg_config = cluster.bin / "pg_config"
    if not pg_config.exists():
        raise CannotBuild("there is no pg_config beside the server")
    work = pathlib.Path(shared_directory or directory) / name
    with open(f"{work}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (work / "hawser.so").exists():
            _build(work, pg_config, change)
    return work / "hawser.so"


def _build(work, pg_config, change):
    shutil.rmtree(work, ignore_errors=True)  # of a build that failed
    shutil.copytree(ROOT / "extension", work, ignore=shutil.ignore_patterns("*.o", "*.so", "*.bc", "results"))
    change(work)
    done = subprocess.run(["make", "-s", "-C", work, f"PG_CONFIG={pg_config}", "with_llvm=no"], capture_output=True, text=True)
    if done.returncode:
        raise CannotBuild(done.stderr.strip()[-300:])
    for path in (work, work / "hawser.so"):
        path.chmod(0o755)


def secret_file(directory, name, text, owner=None):
    """A file that its owner alone reads, as secrets must be."""
    path = pathlib.Path(directory) / name
    path.write_text(text + "\n")
    path.chmod(0o600)
    if owner and os.geteuid() == 0:
        shutil.chown(path, owner)
    return path


@contextlib.contextmanager
def loaded(cluster, library, users):
    """Sessions of these users that begin meanwhile have it."""
    with cluster.superuser("postgres") as session:
        for user in users:
            session.execute(f"alter role {user} set session_preload_libraries = '{library}'")
    try:
        yield
    finally:
        with cluster.superuser("postgres") as session:
            for user in users:
                session.execute(f"alter role {user} reset session_preload_libraries")


def functions(library):
    """The extension's own script, for a database."""
    script = (ROOT / "extension" / "hawser--0.1.0.sql").read_text().replace("MODULE_PATHNAME", str(library))
    return "\n".join(line for line in script.splitlines() if not line.startswith("\\"))


@contextlib.contextmanager
def preloaded(cluster, library, secret, role, settings=""):
    """The server has it from its start, and hands sessions of `role` over to senders who know what the file `secret` says."""
    conf = cluster.data / "postgresql.conf"
    before = conf.read_text()
    with open(conf, "a") as more:
        more.write(f"shared_preload_libraries = '{library}'\nhawser.secret_file = '{secret}'\nhawser.pooler_role = '{role}'\n{settings}")
    cluster.restart()
    try:
        yield
    finally:
        conf.write_text(before)
        cluster.restart()
