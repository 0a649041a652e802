#!/usr/bin/env python3
"""The differential test by hand: sessions with random state, direct and through Hawser, message by message.

    tests/differential/run.py [--steps N] [--seed N] [--with FEATURE]... [--only FEATURE]... [--mode MODE] [--pool-size N] [--direct]
    [--extension] [--case NAME]...

Each 100 steps are a case of their own, with the next seed. A case that differs is made smaller and printed as it would be
kept in tests/differential/cases, and all go on. --direct plays both sides directly. --case plays kept ones. --extension loads
the extension into the server, whose reports Hawser then compares with its books: a mismatch counts as a case that failed.
The last line is `N passed, N failed, N skipped`, in cases.
"""

import argparse
import contextlib
import pathlib
import shutil
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))
sys.path.insert(0, str(HERE))
sys.dont_write_bytecode = True

from cases import APPEND, POOL_SIZE, POOLER, POOLER_HBA, STEPS_A_CASE, USERS, Arena, Shrink, explained, features, kept, known, written
from generator import FEATURES
from harness import extension, postgres
from harness.pooler import Pooler


def arguments():
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--steps", type=int, default=10_000)
    options.add_argument("--seed", type=int, default=1, help="of the first case (default %(default)s)")
    options.add_argument("--with", dest="extra", action="append", default=[], choices=sorted(FEATURES),
                         help="also what is left out for a reason")
    options.add_argument("--only", action="append", choices=sorted(FEATURES), help="only these")
    options.add_argument("--case", action="append", help="a kept case; `all` is each")
    options.add_argument("--direct", action="store_true", help="both sides direct: what differs then is the test's own fault")
    options.add_argument("--extension", action="store_true", help="the server has the extension; functions that hide what they do "
                                                                  "are made, too")
    options.add_argument("--mode", choices=("transaction", "session"), default="transaction", help="pool_mode (default %(default)s)")
    options.add_argument("--pool-size", type=int, default=POOL_SIZE, help="server connections (default %(default)s); sessions are three to "
                                                                          "five, and in session mode each needs one")
    options.add_argument("--no-shrink", action="store_true")
    return options.parse_args()


def play_kept(arena, names):
    passed = failed = skipped = 0
    for name, case in kept():
        if "all" not in names and name not in names:
            continue
        found = arena.play(case)
        if found is None:
            passed += 1
            print(f"{name}: the same{' NOW: take its not_yet away' if case.get('not_yet') else ''}")
        else:
            skipped += bool(case.get("not_yet"))
            failed += not case.get("not_yet")
            print(f"{name}: differs{', not yet: ' + case['not_yet'] if case.get('not_yet') else ''}\n{explained(found)}")
    return passed, failed, skipped


def play_seeds(arena, chosen):
    passed = failed = skipped = done = relieved = 0
    cases = kept()
    seed = chosen.seed
    while done < chosen.steps:
        case, found, room = arena.generate(seed, min(STEPS_A_CASE, chosen.steps - done),
                                           chosen.only or features([*chosen.extra, *chosen.extension * ["hidden"]]))
        done += max(1, len(case["steps"]))
        relieved += room
        passed += found is None
        if found and (name := known(found, cases)):
            skipped += 1
            print(f"seed {seed} differs after {len(case['steps'])} steps, as the kept case {name}", flush=True)
        elif found:
            failed += 1
            print(f"\nseed {seed} differs after {len(case['steps'])} steps\n{explained(found)}", flush=True)
            if not chosen.no_shrink:
                smaller = Shrink(arena, case, cases).run()
                again = arena.play(smaller)
                print(f"made smaller:\n{written(smaller)}{explained(again) if again else 'which does not fail each time'}", flush=True)
        seed += 1
    print(f"{done} steps, of which {relieved} made room for another session")
    return passed, failed, skipped


def main():
    chosen = arguments()
    directory = tempfile.mkdtemp(prefix="hawser-differential-")
    cluster = postgres.Cluster(directory, postgres.bin_directories()[0])
    pooler = arena = None
    started = time.monotonic()
    try:
        cluster.create()
        if not chosen.direct:
            pooler = Pooler(f"{directory}/pooler", cluster, {**POOLER, "pool_mode": chosen.mode, "pool_size": chosen.pool_size}, APPEND,
                            hba=POOLER_HBA).start()
        arena = Arena(cluster, pooler, chosen.pool_size)
        with contextlib.ExitStack() as has:
            if chosen.extension:
                has.enter_context(extension.loaded(cluster, extension.build(cluster, directory), USERS))
            passed, failed, skipped = play_kept(arena, chosen.case) if chosen.case else play_seeds(arena, chosen)
        if pooler:
            mismatches = sum(int(row["settings_mismatches"]) for row in pooler.show("POOLS"))
            failed += mismatches
            print(f"{mismatches} server connections had other settings than they were given" * bool(mismatches))
            pooler.stop()
    finally:
        cluster.destroy()
        if pooler and pooler.is_alive():
            pooler.kill()
        shutil.rmtree(directory, ignore_errors=True)
    print(f"{time.monotonic() - started:.0f} s\n{passed} passed, {failed} failed, {skipped} skipped")
    return 1 if failed or not passed + skipped else 0


if __name__ == "__main__":
    sys.exit(main())
