"""Where a suite runs: a copy of one new cluster for each way, so that no way finds what another has left, and Hawser in front of it."""

import os
import pathlib
import pwd
import shutil
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "regress"))

from suites import Installation, Missing, give_to_server
from targets import Hawser, Server
from harness.postgres import bin_directories, free_port

ROOT = pathlib.Path(__file__).resolve().parents[2]
# Beside what the regression suites set: TLS is not tested here, and suites of drivers open many connections.
SETTINGS = """\
wal_level = logical
max_connections = 200
shared_buffers = 64MB
synchronous_commit = off
autovacuum = off
log_min_messages = error
"""


def own(path):
    """Gives a directory with all below it to the server's user."""
    if os.getuid() != 0:
        return
    owner = pwd.getpwnam("postgres")
    for each in (path, *path.rglob("*")):
        os.chown(each, owner.pw_uid, owner.pw_gid, follow_symlinks=False)


class Template:
    """What initdb makes, once."""

    def __init__(self, directory):
        places = bin_directories()
        if not places:
            raise Missing("no PostgreSQL server programs: install postgresql, or set PG_BIN")
        self.bin = places[0]
        server = Server(directory, self.bin)
        server.create()
        server.stop()
        self.data = server.data


class Place(Server):
    """A copy of the template. `preload` is the extension's library; `asks` the control socket of the pooler that it asks."""

    def __init__(self, template, directory, preload=None, asks=None, serves=False):
        super().__init__(directory, template.bin, preload, asks, serves)
        self.template = template

    def create(self):
        self.socket_dir.mkdir(parents=True)
        shutil.copytree(self.template.data, self.data, ignore=shutil.ignore_patterns("postmaster.*"))
        with open(self.data / "postgresql.conf", "a") as conf:
            conf.write(f"{SETTINGS}port = {self.port}\nunix_socket_directories = '{self.socket_dir}'\n")
            if self.preload:
                conf.write(self.preloads())
        self.data.chmod(0o700)
        own(self.directory)
        self.directory.chmod(0o755)
        self.start()
        if self.preload:
            script = (ROOT / "extension/hawser--0.1.0.sql").read_text().replace("MODULE_PATHNAME", str(self.preload))
            with self.superuser("template1") as owner:
                owner.execute("\n".join(line for line in script.splitlines() if not line.startswith("\\")))
        return self

    def prepare(self, statements):
        """[(database, SQL)]: each by itself, as CREATE DATABASE asks for."""
        for database, sql in statements:
            with self.superuser(database) as owner:
                owner.execute(sql)

    def destroy(self):
        super().destroy()
        shutil.rmtree(self.data, ignore_errors=True)


__all__ = ["Hawser", "Installation", "Missing", "Place", "Template", "free_port", "give_to_server"]
