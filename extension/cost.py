#!/usr/bin/env python3
"""What the report costs: CPU time of a server process for each transaction, with and without it, batch by batch in turns.

    extension/cost.py [--pg-config PG_CONFIG] [--batches N]

The transaction is pgbench -S's (one row by primary key, a prepared statement), 50 of them in a pipeline. The time is the server
process's own, in the kernel's count (/proc/PID/schedstat), so that a busy machine disturbs less than by the clock.
`without` is a server that has not loaded the library; `off` has, and did not ask; `on` asked. Then what a hand-over ahead of
each transaction costs: to another client of the same user, and to one of another user with a setting of its own.
"""

import argparse
import os
import statistics
import sys

from handover_test import FIRST_ID, Pooler, WithSecret
from report_test import Server
from harness import messages as m  # its path was set by report_test

PIPELINED = 50
WARM_UP = 20


def cpu_ns(pid):
    with open(f"/proc/{pid}/schedstat", encoding="ascii") as file:
        return int(file.read().split()[0])


SELECT = m.bind(statement="s", values=["17"]) + m.execute() + m.SYNC
# As a pooler does at hand-over: settings that differ, ahead of the first message.
SETTINGS = [m.query(f"set application_name = 'client {n}'; set work_mem = '{n + 4}MB'; set my.user = '{n}'") + SELECT
            for n in range(2)]


def batch(client, first, second):
    """Pipelined, so that less of the time is that of system calls and of switching processes. us a transaction."""
    start = cpu_ns(client.pid)
    client.send((first + second) * (PIPELINED // 2))
    client.collect(PIPELINED * (1 if first is SELECT else 2))
    return (cpu_ns(client.pid) - start) / PIPELINED / 1000


def hand_overs(pg_config, batches):
    """CPU us for a query alone, with a hand-over ahead of it, and with one that changes the user."""
    server = WithSecret(pg_config)
    server.settings += f"hawser.secret_file = '{server.directory}/secret'\nhawser.pooler_role = 'pooler'\n"
    users = {"no hand-over": None, "same user": ("alice",), "another user": ("alice", "bob")}
    with server:
        with server.target.connect("postgres", "postgres") as owner:
            owner.execute("create extension hawser; create role pooler login; create role alice login; create role bob login; "
                          "alter role alice set work_mem = '7MB'; create table rows as select g as id, 0 as balance "
                          "from generate_series(1, 100000) g; create index on rows (id); grant select on rows to public; analyze rows")
        poolers = {kind: Pooler(server) for kind in users}
        figures = {kind: [] for kind in users}
        for pooler in poolers.values():
            pooler.client.exchange(m.parse("select balance from rows where id = $1", "s"), m.SYNC)
        for turn in range(batches + WARM_UP):
            for kind, names in users.items():
                pooler = poolers[kind]
                messages = b"".join((pooler.message(user=names[n % len(names)], client=FIRST_ID + n) if names else b"") + SELECT
                                    for n in range(PIPELINED))
                start = cpu_ns(pooler.pid)
                pooler.client.send(messages)
                pooler.client.collect(PIPELINED * (2 if names else 1))
                if turn >= WARM_UP:
                    figures[kind].append((cpu_ns(pooler.pid) - start) / PIPELINED / 1000)
        print("hand-over and select: CPU us a transaction, first decile of batches (median)")
        for kind, values in figures.items():
            print(f"  {kind:12} {statistics.quantiles(values, n=10)[0]:6.2f} ({statistics.median(values):.2f})")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pg-config", default=os.environ.get("PG_CONFIG", "pg_config"))
    parser.add_argument("--batches", type=int, default=1000)
    arguments = parser.parse_args()
    loads = {"select": (SELECT, SELECT), "settings and select": SETTINGS}
    with Server(arguments.pg_config) as loaded, Server(arguments.pg_config, preload=False) as bare:
        print(loaded.version)
        clients = {}
        for kind, server, parameters in (("without", bare, {}), ("off", loaded, {}), ("on", loaded, {"hawser.report": "on"})):
            with server.target.connect("postgres", "postgres") as owner:
                owner.execute("create table if not exists rows as select g as id, 0 as balance "
                              "from generate_series(1, 100000) g; create index if not exists i on rows (id); analyze rows")
            client = clients[kind] = server.target.connect("postgres", "postgres", **parameters)
            client.exchange(m.parse("select balance from rows where id = $1", "s"), m.SYNC)
        for load, (first, second) in loads.items():
            figures = {kind: [] for kind in clients}
            for turn in range(arguments.batches + WARM_UP):
                for kind, client in clients.items():
                    figure = batch(client, first, second)
                    if turn >= WARM_UP:
                        figures[kind].append(figure)
            # what disturbs only ever adds: the quiet batches tell
            quiet = {kind: statistics.quantiles(values, n=10)[0] for kind, values in figures.items()}
            print(f"{load}: CPU us a transaction, first decile of batches (median)")
            for kind, values in figures.items():
                print(f"  {kind:8} {quiet[kind]:6.2f} ({statistics.median(values):.2f})")
            print(f"  on - off {quiet['on'] - quiet['off']:6.2f}")
        for client in clients.values():
            client.close()
    hand_overs(arguments.pg_config, arguments.batches)
    return 0


if __name__ == "__main__":
    sys.exit(main())
