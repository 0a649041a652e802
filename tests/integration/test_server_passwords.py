"""Passwords to servers from files and commands, which are read again: tokens of clouds."""

import os
import time

from harness.suite import equal, pooler_only, until
from harness.wire import ServerError

SAME_FOR_ALL_SERVERS = True

SECRET = 'second "secret"'


def settings(env, **more):
    return dict(servers=[f"127.0.0.1:{env.cluster.port}"], user="app2", server_login_retry="1s", **more)


def reopen(target):
    """Has the pooler open new server connections."""
    with target.pooler.admin() as console:
        console.execute("RECONNECT")


def command(directory, script):
    path = directory / "token"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o700)
    return str(path)


@pooler_only
def test_a_password_file_is_read_for_each_server_connection(env):
    with env.pooler_with(start=False, **settings(env, password_file="token.txt")) as target:
        file = target.pooler.directory / "token.txt"
        file.write_text(SECRET + "\n")
        file.chmod(0o600)
        target.pooler.start()
        equal(env.connect(target).value("select session_user"), "app2")
        server = env.server()
        server.execute("alter role app2 password 'the next one'")
        try:
            file.write_text("the next one\n")
            reopen(target)
            equal(env.connect(target).value("select session_user"), "app2", "a server connection with the new password")
        finally:
            server.execute("alter role app2 password 'second \"secret\"'")


@pooler_only
def test_a_password_that_a_reload_brings_is_used_by_the_pools_that_there_are(env):
    with env.pooler_with(**settings(env, password=SECRET)) as target:
        client = env.connect(target)
        equal(client.value("select session_user"), "app2")
        server = env.server()
        server.execute("alter role app2 password 'the next one'")
        try:
            target.pooler.write(password="the next one")
            target.pooler.reload()
            reopen(target)
            equal(client.value("select session_user"), "app2", "without a new login")
        finally:
            server.execute("alter role app2 password 'second \"secret\"'")


@pooler_only
def test_a_command_runs_again_when_its_password_is_old_or_refused(env):
    with env.pooler_with(start=False, **settings(env)) as target:
        directory = target.pooler.directory
        runs, token = directory / "runs", directory / "current"
        token.write_text(SECRET)
        program = command(directory, f'echo "$PGUSER $1" >> {runs}; cat {token}')
        target.pooler.write(password_command=[program, "an argument"], password_max_age="1h")
        target.pooler.start()
        equal(env.connect(target).value("select session_user"), "app2")
        reopen(target)
        equal(env.connect(target).value("select session_user"), "app2")
        equal(runs.read_text(), "app2 an argument\n", "runs within password_max_age")
        server = env.server()
        server.execute("alter role app2 password 'rotated'")
        try:
            token.write_text("rotated")
            reopen(target)
            equal(env.connect(target).value("select session_user"), "app2", "after a refusal it is asked again at once")
            equal(len(runs.read_text().splitlines()), 2)
        finally:
            server.execute("alter role app2 password 'second \"secret\"'")
        assert "rotated" not in target.pooler.text() and SECRET not in target.pooler.text(), "a password in the log"


@pooler_only
def test_a_command_that_fails_or_hangs_is_told_and_tried_again(env):
    with env.pooler_with(start=False, **settings(env, server_connect_timeout="1s", query_wait_timeout="3s")) as target:
        directory = target.pooler.directory
        token = directory / "current"
        program = command(directory, f"test -e {token} || {{ echo not today >&2; exit 7; }}; exec cat {token}")
        target.pooler.write(password_command=[program], password_max_age="0")
        target.pooler.start()
        try:
            result = env.connect(target).attempt("select 1")
            fields = result.errors[0]
        except ServerError as error:
            fields = error.fields
        equal(fields["C"], "08006")
        words = fields["M"] + fields.get("D", "")
        assert "the pooler has no password" in words and not ("exit status" in words or program in words or "app2" in words), fields
        shown = [row["last_error"] for row in target.pooler.show("pools") if row["user"] == "app2"]
        assert "exit status: 7" in shown[0], f"the reason is the operator's: {shown}"
        until(lambda: 'stderr="not today"' in target.pooler.text(), "the command's complaint in the log")
        equal(target.pooler.text().count("not today"), 1, "it is logged once, not at each attempt")
        token.write_text(SECRET)
        until(lambda: works(env, target), "that it works")
        os.unlink(token)
        os.mkfifo(token)  # cat waits for a writer
        reopen(target)
        began = time.monotonic()
        assert not works(env, target)
        assert time.monotonic() - began < 8
        until(lambda: "gave no password within 1 s" in target.pooler.text(), "the reason in the log")
        until(lambda: not waits_for(token), "the end of each command")


def works(env, target):
    try:
        return env.connect(target).attempt("select session_user").errors == []
    except ServerError:
        return False


def waits_for(path):
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/cmdline", "rb") as file:
                if str(path).encode() in file.read().split(b"\0"):
                    found.append(pid)
        except OSError:
            pass
    return found
