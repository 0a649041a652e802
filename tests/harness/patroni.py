"""A cluster of Patroni: its nodes, each with its server."""

import datetime
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request

from .postgres import SERVER_USER, bin_directories, free_port

PACKAGES = ("patroni[etcd3]==4.1.5", "psycopg[binary]==3.3.9")
FETCHED = pathlib.Path(__file__).resolve().parents[2] / ".run/patroni"
TRUST = "local all all trust\nhost all all 127.0.0.0/8 trust\n"
PATIENCE = 90


def program():
    """Patroni's path, if it is installed."""
    return os.environ.get("PATRONI") or shutil.which("patroni")


def interpreter():
    """A Python that Patroni, which is not root, can start again: it does so for its server."""
    again = "import os, sys; os.execv(sys.executable, [sys.executable, '-c', ''])"
    found = (path for path in (sys.executable, "/usr/bin/python3") if not run([path, "-c", again]).returncode)
    return next(found, sys.executable)


def run(command):
    return subprocess.run(as_server(command), capture_output=True, text=True, cwd="/")


def fetch():
    """Fetches Patroni from PyPI where neither PATH nor PATRONI has it. Raises RuntimeError if it cannot be had."""
    if program() or (FETCHED / "patroni").is_dir():
        return
    command = [sys.executable, "-m", "pip", "--python", interpreter(), "install", "-q", "--root-user-action=ignore",
               "--disable-pip-version-check", "--target", str(FETCHED), *PACKAGES]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"Patroni cannot be had: {done.stderr.strip()[-300:]}")


def as_server(command):
    """PostgreSQL and Patroni do not run as root."""
    if os.getuid():
        return command
    return ["setpriv", f"--reuid={SERVER_USER}", f"--regid={SERVER_USER}", "--init-groups", *command]


def wait_for(what, condition):
    end = time.monotonic() + PATIENCE
    while not (found := condition()):
        if time.monotonic() > end:
            raise AssertionError(f"{what}: not within {PATIENCE} s")
        time.sleep(0.1)
    return found


class Node:
    """One Patroni with its server."""

    def __init__(self, directory, name, etcd_port, command="true"):
        """`command`: what the shell runs before the primary stops."""
        self.name, self.rest, self.port = name, free_port(), free_port()
        self.directory = directory / name
        self.directory.mkdir()
        before_stop = self.directory / "before_stop"
        primary = f"psql -h {self.directory} -p {self.port} -U postgres -Atc 'SELECT pg_is_in_recovery()'"
        before_stop.write_text(f'#!/bin/sh\n[ "$({primary})" = t ] || {command}\n')
        before_stop.chmod(0o755)
        trust = (TRUST + "host replication all 127.0.0.0/8 trust\n").splitlines()
        postgresql = {
            "listen": f"127.0.0.1:{self.port}", "connect_address": f"127.0.0.1:{self.port}", "data_dir": f"{self.directory}/data",
            "bin_dir": bin_directories()[0], "pgpass": f"{self.directory}/pgpass", "pg_hba": trust, "before_stop": str(before_stop),
            "use_pg_rewind": True, "remove_data_directory_on_rewind_failure": True, "remove_data_directory_on_diverged_timelines": True,
            "authentication": {"superuser": {"username": "postgres"}, "replication": {"username": "postgres"}},
            "parameters": {"unix_socket_directories": str(self.directory), "fsync": "off", "max_connections": 150},
        }  # fmt: skip
        dcs = {"ttl": 20, "loop_wait": 2, "retry_timeout": 5, "postgresql": {"use_pg_rewind": True,
               "parameters": {"wal_log_hints": "on", "fsync": "off"}}}  # fmt: skip
        settings = {"scope": "bench", "name": name, "restapi": {"listen": f"127.0.0.1:{self.rest}",
                    "connect_address": f"127.0.0.1:{self.rest}"}, "etcd3": {"host": f"127.0.0.1:{etcd_port}"},
                    "bootstrap": {"dcs": dcs, "initdb": [{"auth": "trust"}, {"encoding": "UTF8"}]}, "postgresql": postgresql}  # fmt: skip
        self.config = self.directory / "patroni.yml"
        self.config.write_text(json.dumps(settings))  # JSON is YAML
        if os.getuid() == 0:
            for path in (self.directory, self.config):
                shutil.chown(path, SERVER_USER, SERVER_USER)
        self.process = None

    def start(self):
        command = [own] if (own := program()) else [interpreter(), "-m", "patroni"]
        environment = {**os.environ, "LC_ALL": "C.UTF-8", **({} if own else {"PYTHONPATH": str(FETCHED)})}
        with open(self.directory / "log", "ab") as log:
            self.process = subprocess.Popen(as_server([*command, str(self.config)]), stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                                            cwd="/", env=environment)  # fmt: skip

    def ask(self, path, **body):
        request = urllib.request.Request(f"http://127.0.0.1:{self.rest}{path}", json.dumps(body).encode() if body else None,
                                         {"Content-Type": "application/json"})  # fmt: skip
        try:
            with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
                return answer.read().decode()
        except (OSError, urllib.error.URLError):
            return None

    def state(self):
        """{name: (role, state)} of the cluster."""
        answer = self.ask("/cluster")
        return {one["name"]: (one["role"], one["state"]) for one in json.loads(answer)["members"]} if answer else {}

    def switch_over(self, candidate, after=None):
        """Has another node take this one's place; `after`: so many seconds after it is announced. What Patroni answers."""
        when = {}
        if after:
            at = datetime.datetime.now(datetime.UTC) + datetime.timedelta(seconds=after)
            when["scheduled_at"] = at.isoformat()
        return self.ask("/switchover", leader=self.name, candidate=candidate.name, **when)

    def kill(self):
        """Patroni and its server, as by a power cut of the machine."""
        postmaster = int((self.directory / "data/postmaster.pid").read_text().split()[0])
        self.process.kill()
        self.process.wait()
        os.kill(postmaster, signal.SIGKILL)

    def stop(self):
        if self.process and self.process.poll() is None:
            self.process.terminate()
            self.process.wait()


def whole(nodes):
    """The leader, if one leads and the other follows it."""
    states = next((state for node in nodes if (state := node.state())), {})
    leaders = [node for node in nodes if states.get(node.name) == ("leader", "running")]
    followers = [name for name, state in states.items() if state == ("replica", "streaming")]
    return leaders[0] if len(leaders) == 1 and len(followers) == 1 else None
