"""The hawser program as the server starts it: how its tests run."""

import argparse
import os
import pathlib
import shutil
import subprocess
import time

from report_test import Server
from harness.postgres import free_port  # its path was set by report_test
from harness.wire import ServerError

WAIT_SECONDS = 20


def eventually(what, condition):
    end = time.monotonic() + WAIT_SECONDS
    while not (value := condition()):
        assert time.monotonic() < end, f"not within {WAIT_SECONDS} s: {what}"
        time.sleep(0.05)
    return value


def main(about, tests, begin, has_ended, settings="", setup=""):
    """Runs tests, {name: function}, each with what `begin(server, port)` gives, on a server that runs the program.
    `has_ended(server)` is true when nothing of the program is left behind a server that was stopped."""
    parser = argparse.ArgumentParser(description=about.splitlines()[0])
    parser.add_argument("--pg-config", default=os.environ.get("PG_CONFIG", "pg_config"))
    arguments = parser.parse_args()
    program = shutil.which(os.environ.get("HAWSER", "hawser"))
    if program is None:
        print(f"skipped: there is no hawser program; HAWSER names it\n0 passed, 0 failed, {len(tests)} skipped")
        return 0
    listen = free_port()
    failures = 0
    settings += f"hawser.listen = '127.0.0.1:{listen}'\nhawser.program = '{pathlib.Path(program).resolve()}'\n"
    with Server(arguments.pg_config, settings=settings) as server:
        print(server.version)
        if setup:
            with server.target.connect("postgres", "postgres") as owner:
                for statement in setup.split(";"):
                    owner.execute(statement)
        given = begin(server, listen)
        eventually("clients are served", given.serves)
        for name, test in tests.items():
            try:
                test(given)
                print(f"ok      {name}")
            except (AssertionError, OSError, ServerError, subprocess.CalledProcessError) as error:
                failures += 1
                print(f"FAILED  {name}: {type(error).__name__}: {error}")
        # the directory goes next, and the program removes its sockets from it
        server.stop("fast")
        eventually("the program has ended", lambda: has_ended(server))
    print(f"{len(tests) - failures} passed, {failures} failed, 0 skipped")
    return 1 if failures else 0
