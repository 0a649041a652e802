#!/usr/bin/env python3
"""The isolation test by hand: 40 sessions with the same names and a secret each, on four server connections.

    tests/isolation/run.py [--seed N] [--seconds N] [--seeds N] [--direct | --extension | --shared | --inside] [--pool-size N]
    [--deaths SECONDS] [--keep]

Every byte that a session receives is searched for the secrets of others, and every answer compared with the one that a
server of its own would give. --direct is the control: PostgreSQL itself, which must find nothing. --extension loads the
extension into the server, --shared lets users share its connections as well, --inside lets the server serve clients itself. The last
line is `N passed, N failed, 0 skipped`, in seeds.
"""

import argparse
import contextlib
import pathlib
import shutil
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))
sys.path.insert(0, str(HERE))
sys.dont_write_bytecode = True

import crowd
from harness import extension, postgres
from harness.pooler import Pooler


def arguments():
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--seed", type=int, default=1, help="the first (default %(default)s)")
    options.add_argument("--seeds", type=int, default=1, help="so many, one after the other (default %(default)s)")
    options.add_argument("--seconds", type=float, default=120, help="each (default %(default)s)")
    ways = options.add_mutually_exclusive_group()
    ways.add_argument("--direct", action="store_true", help="without a pooler")
    ways.add_argument("--extension", action="store_true", help="the server has the extension")
    ways.add_argument("--shared", action="store_true", help="the server has the extension, and users share its connections")
    ways.add_argument("--inside", action="store_true", help="the server has the extension, and serves clients itself")
    options.add_argument("--pool-size", type=int, default=crowd.SETTINGS["pool_size"], help="server connections (default %(default)s)")
    options.add_argument("--deaths", type=float, help="end a server process at random, about each so many seconds")
    options.add_argument("--keep", action="store_true", help="leave the directories behind, and say where")
    return options.parse_args()


def main():
    chosen = arguments()
    directory = tempfile.mkdtemp(prefix="hawser-isolation-")
    cluster = postgres.Cluster(directory, postgres.bin_directories()[0])
    pooler, failed, has, settings, append = None, 0, contextlib.ExitStack(), {}, ""
    try:
        cluster.create()
        crowd.prepare(cluster)
        if chosen.extension:
            has.enter_context(extension.loaded(cluster, extension.build(cluster, directory), crowd.USERS))
        if chosen.shared:
            settings = has.enter_context(crowd.shared(cluster, directory, extension.build(cluster, directory)))
        if chosen.inside:
            library = extension.build(cluster, directory)
            settings, append = has.enter_context(crowd.inside(cluster, directory, library, f"{directory}/pooler/hawser.sock"))
        if not chosen.direct:
            settings = {**crowd.SETTINGS, "pool_size": chosen.pool_size, **settings}
            pooler = Pooler(f"{directory}/pooler", cluster, settings, append).start()
        for seed in range(chosen.seed, chosen.seed + chosen.seeds):
            found = crowd.run((pooler or cluster).target, seed, chosen.seconds, cluster, chosen.deaths)
            failed += bool(found.failures)
            print(f"seed {seed}, {chosen.seconds:.0f} s: {found}", flush=True)
            if pooler:
                pooler.check_log()
                assert pooler.is_alive(), f"hawser died:\n{pooler.tail()}"
                mismatches, tell = crowd.mismatches(pooler)
                print(f"  {tell} server connections tell what they hold, {mismatches} have told of other settings than they were given",
                      flush=True)
                failed += bool(mismatches) and not found.failures
        if pooler:
            pooler.stop()
        has.close()
    finally:
        cluster.destroy()
        if pooler and pooler.is_alive():
            pooler.kill()
        if chosen.keep:
            print(f"kept: {directory}")
        else:
            shutil.rmtree(directory, ignore_errors=True)
    print(f"{chosen.seeds - failed} passed, {failed} failed, 0 skipped")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
