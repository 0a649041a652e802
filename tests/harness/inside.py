"""A run in which the server has the extension: `tests/run.py --extension`; and `--inside`, where it also serves the clients of every
pooler itself.

The extension is preloaded, and part of each database that is made; a pooler that starts is added to those that the server allows.
"""

import os
import shutil

from . import extension

SIZE = 2
POOLERS_MAX = 8  # the newest; a test has fewer at once
wanted = None  # or whether the server serves clients


def begin(cluster):
    """All that follows in this new cluster is served so."""
    if wanted is not None:
        cluster.inside = Inside(cluster)
        cluster.make_databases()


class Inside:
    """What a cluster has for that."""

    def __init__(self, cluster):
        self.cluster = cluster
        self.sockets = []
        self.serves = wanted
        library = extension.build(cluster, cluster.directory)
        with open(cluster.data / "postgresql.conf", "a") as conf:
            serves = "on" if self.serves else "off"
            conf.write(f"shared_preload_libraries = '{library}'\nhawser.inside = {serves}\ninclude_if_exists 'poolers.conf'\n")
        cluster.restart()
        with cluster.superuser("template1") as owner:
            owner.execute(extension.functions(library))

    def settings(self):
        return {"inside_size": SIZE if self.serves else 0}

    def append(self):
        """Of [process], with which a pooler's file ends: the server's own user."""
        return 'user = "postgres"\n' if os.geteuid() == 0 else ""

    def give(self, *directories):
        """The pooler reads there, and writes, as the server's own user."""
        for directory in directories if os.geteuid() == 0 else ():
            for path in (directory, *directory.rglob("*")):
                shutil.chown(path, "postgres")

    def starts(self, pooler):
        """Before the pooler does."""
        self.sockets = [*self.sockets, pooler.directory / pooler.settings["control_socket"]][-POOLERS_MAX:]
        (self.cluster.data / "poolers.conf").write_text(f"hawser.control_sockets = '{','.join(map(str, self.sockets))}'\n")
        self.cluster.reload()
