"""Runs hawser-load and reads what it says."""

import json
import os
import select
import subprocess
import time

from cluster import DATABASE, USER, Unavailable


class Generator:
    """One run of hawser-load; use it as a context manager.

    cores   to which it is held, if it is
    """

    def __init__(self, program, mode, port, options, cores=None):
        held = ["taskset", "-c", ",".join(map(str, cores))] if cores else []
        command = [
            *held, program, mode, "--target", f"127.0.0.1:{port}", "--user", USER, "--database", DATABASE,
        ]  # fmt: skip
        for name, value in options.items():
            if value is True:
                command.append(f"--{name}")
            elif value is not None and value is not False:
                command += [f"--{name}", str(value)]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        self.pending = b""

    def __enter__(self):
        return self

    def __exit__(self, *_):
        # The end of its input is the end of a generator that waits; one at work is killed.
        self.process.stdin.close()
        try:
            self.process.wait(3)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.process.stdout.close()
        self.process.stderr.close()

    def expect(self, event, limit_s):
        """The next line, which has to be `event`."""
        deadline = time.monotonic() + limit_s
        fd = self.process.stdout.fileno()
        while b"\n" not in self.pending:
            rest = deadline - time.monotonic()
            if rest <= 0 or not select.select([fd], [], [], rest)[0]:
                raise Unavailable(f"the load generator did not say `{event}` in {limit_s:.0f} s")
            chunk = os.read(fd, 65536)
            if not chunk:
                text = self.process.stderr.read().decode(errors="replace").strip()
                raise Unavailable(text or "the load generator has ended")
            self.pending += chunk
        line, _, self.pending = self.pending.partition(b"\n")
        said = json.loads(line)
        if said.pop("event") != event:
            raise Unavailable(f"the load generator said {line!r}, not `{event}`")
        return said

    def tell(self):
        """Lets it begin."""
        self.process.stdin.write(b"go\n")
        self.process.stdin.flush()
