"""The extension in a throw-away server: built in a copy, loaded by its path, nothing installed."""

import os
import pathlib
import secrets
import shutil
import subprocess

from cluster import Unavailable

SOURCE = str(pathlib.Path(__file__).resolve().parents[2] / "extension")
# What the pooler logs in as, where users share its server connections.
POOLER_ROLE = "bench_pooler"
BUILD_LIMIT_S = 300


class Extension:
    """module, and the file with the secret that the server and a pooler share."""

    def __init__(self, cluster):
        self.module = os.path.join(cluster.directory, "hawser.so")
        self.secret = os.path.join(cluster.directory, "server.secret")
        self._build(cluster)
        with open(self.secret, "w") as out:
            out.write(secrets.token_hex(32) + "\n")
        os.chmod(self.secret, 0o600)
        if cluster.identity:
            os.chown(self.secret, cluster.identity["user"], cluster.identity["group"])

    def _build(self, cluster):
        work = os.path.join(cluster.directory, "extension")
        shutil.copytree(SOURCE, work, ignore=shutil.ignore_patterns("*.o", "*.so", "*.bc", "results"))
        pg_config = cluster.program("pg_config")
        try:
            done = subprocess.run(["make", "-s", "-C", work, f"PG_CONFIG={pg_config}", "with_llvm=no"],
                                  capture_output=True, text=True, timeout=BUILD_LIMIT_S)  # fmt: skip
        except (OSError, subprocess.TimeoutExpired) as error:
            raise Unavailable(f"the extension cannot be built: {error}") from error
        if done.returncode != 0:
            raise Unavailable(f"the extension cannot be built: {done.stderr.strip()[-300:]}")
        shutil.copy(os.path.join(work, "hawser.so"), self.module)

    def settings(self):
        """For the server's configuration."""
        return {
            "shared_preload_libraries": self.module,
            "hawser.secret_file": self.secret,
            "hawser.pooler_role": POOLER_ROLE,
        }

    def create(self, cluster):
        """What CREATE EXTENSION does, and the pooler's role."""
        with open(os.path.join(SOURCE, "hawser--0.1.0.sql")) as script:
            lines = [line for line in script if not line.startswith("\\")]
        cluster.psql("".join(lines).replace("MODULE_PATHNAME", self.module))
        cluster.psql(f"CREATE ROLE {POOLER_ROLE} LOGIN")


class Inside(Extension):
    """The server lets its backends serve the clients of the Hawser whose control socket is `socket`."""

    def __init__(self, cluster):
        super().__init__(cluster)
        self.socket = os.path.join(cluster.directory, "hawser.sock")

    def settings(self):
        return super().settings() | {"hawser.inside": "on", "hawser.control_sockets": self.socket}
