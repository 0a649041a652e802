#!/usr/bin/env python3
"""hawser.state against the server's own views, after each of many random statements.

    extension/exact_test.py [--pg-config PG_CONFIG] [--steps N] [--seed N]

What was reported last must be what pg_settings, pg_locks, pg_cursors, pg_prepared_statements, pg_depend and the rest
say now. A difference ends the run with the seed and the statements that led to it. The last line is
"N passed, N failed, N skipped", a session being one test.
"""

import argparse
import os
import random
import sys
import urllib.parse

from report_test import Server

STEPS_A_SESSION = 60
SETTINGS = {"work_mem": ("5MB", "6MB"), "search_path": ("public", '"$user", public'), "DateStyle": ("German", "ISO"),
            "application_name": ("a b", ""), "statement_timeout": ("0", "1h"), "enable_seqscan": ("on", "off")}
NAMES = ("my.a", "my.b", "your.c")
LOCKS = (1, 2, 3)
CHANNELS = ("one", "two")

SETUP = """
create table numbered (id int generated always as identity, n serial, t text);
create table identified (id int generated always as identity, i int);
create sequence counter;
create function sets_work_mem(v text) returns void language plpgsql set search_path = pg_catalog
  as $$ begin perform set_config('work_mem', v, false); end $$;
create function fails_after(statement text) returns void language plpgsql
  as $$ begin begin execute statement; perform 1/0; exception when division_by_zero then null; end; end $$;
create function keeps(statement text) returns void language plpgsql as $$ begin execute statement; end $$;
create function named_by_clause() returns int language sql set your.c = 'x' as 'select 1';
create procedure commits(statement text) language plpgsql as $$ begin execute statement; commit; perform 1; end $$;
"""


def quoted(text):
    return "'" + text.replace("'", "''") + "'"


def statement(rng):
    """One statement about session state."""
    name = rng.choice(list(SETTINGS))
    value = rng.choice(SETTINGS[name])
    custom, lock, number = rng.choice(NAMES), rng.choice(LOCKS), rng.randrange(3)
    return rng.choice([
        f"set {name} = {quoted(value)}", f"set {name} = {quoted(value)}", f"set local {name} = {quoted(value)}",
        f"reset {name}", "reset all", f"set {custom} = 'v{number}'", f"set local {custom} = 'v{number}'",
        f"select set_config('{custom}', 'w{number}', {rng.choice(['true', 'false'])})", f"reset {custom}",
        "select sets_work_mem('7MB')", "select named_by_clause()", "set role pg_monitor", "reset role",
        f"create temp table t{number} (i int)", f"create temp table d{number} (i serial) on commit drop",
        f"drop table if exists t{number}", f"create temp view v{number} as select 1", f"drop view if exists v{number}",
        f"select pg_advisory_lock({lock})", f"select pg_advisory_lock_shared({lock})",
        f"select pg_advisory_unlock({lock})", f"select pg_advisory_xact_lock({lock})", "select pg_advisory_unlock_all()",
        f"declare c{number} cursor with hold for select generate_series(1, 9)", f"declare n{number} cursor for select 1",
        f"close c{number}", f"prepare p{number} as select 1", f"execute p{number}", f"deallocate p{number}",
        "deallocate all", f"listen {rng.choice(CHANNELS)}", f"unlisten {rng.choice(CHANNELS)}", "unlisten *",
        "select nextval('counter')", r"""copy identified (i) from program 'printf "1\nnot a number\n"'""",
        "insert into numbered (t) values ('x')", "discard sequences", "discard temp",
        "discard plans", "select 1/0", "select 1",
    ])


def step(rng):
    """A statement, alone or within something."""
    inner = statement(rng)
    return rng.choice([
        inner, inner, inner, inner, inner, "begin", "commit", "rollback", "savepoint s", "rollback to s", "release s",
        f"{inner}; {statement(rng)}", f"{inner}; commit; begin; {statement(rng)}; savepoint s; select 1/0",
        f"select keeps({quoted(inner)})", f"select fails_after({quoted(inner)})",
        f"do $do$ begin execute {quoted(inner)}; end $do$", f"call commits({quoted(inner)})", "discard all",
        "prepare transaction 'none'",
    ])


def parse(text):
    items = text.split(" ")
    assert items[0] == "1", text
    state = {}
    for item in items[1:]:
        word, _, values = item.partition("=")
        state[word] = [urllib.parse.unquote(value) for value in values.split(",")] if values else []
    return state


def differences(client, reported):
    """What the server's views say otherwise."""
    state = parse(reported)
    facts = {
        "temp": "select 1 from pg_catalog.pg_depend where refclassid = 'pg_catalog.pg_namespace'::regclass "
                "and refobjid = pg_my_temp_schema() limit 1",
        "cursors": "select name from pg_catalog.pg_cursors where is_holdable",
        "statements": "select name from pg_catalog.pg_prepared_statements where from_sql",
        "listen": "select pg_catalog.pg_listening_channels()",
        "locks": "select distinct (classid, objid, objsubid) from pg_catalog.pg_locks "
                 "where locktype = 'advisory' and pid = pg_backend_pid()",
        "set": "select name || ':' || current_setting(name) from pg_catalog.pg_settings where source = 'session'",
    }
    at_reset = {name for (name,) in client.rows("select name from pg_catalog.pg_settings where setting = reset_val")}
    found = []
    for word, question in facts.items():
        truth = sorted(row[0] for row in client.rows(question))
        told = state.get(word)
        if word == "temp":
            told, truth = told is not None, bool(truth)
        elif word == "locks":
            told, truth = int(told[0]) if told else 0, len(truth)
        elif word == "set":
            # pg_settings has neither custom names nor roles
            told = sorted(entry for entry in told or [] if entry.partition(":")[0] not in (*NAMES, "role"))
            # RESET and then SET LOCAL leave the reset value as the session's
            truth = [entry for entry in truth if entry in told or entry.partition(":")[0] not in at_reset]
        else:
            told = sorted(told or [])
        if told != truth:
            found.append(f"{word}: told {told}, true {truth}")
    entries = dict(entry.partition(":")[::2] for entry in state.get("set", []))
    for name in NAMES:
        value = client.value(f"select pg_catalog.current_setting('{name}', true)")
        if (name in state.get("names", [])) != (value is not None):
            found.append(f"names: {name} is {value!r}, told {state.get('names')}")
        if entries.get(name, "") != (value or ""):
            found.append(f"set: {name} is {value!r}, told {entries.get(name)!r}")
    role = client.value("select pg_catalog.current_setting('role')")
    if entries.get("role", "none") != role:
        found.append(f"set: role is {role}, told {entries.get('role')}")
    if "sequences" not in state:
        lastval = client.attempt("select pg_catalog.lastval()")
        if not lastval.errors:
            found.append("sequences: not told, and lastval() is defined")
    return found


def session(target, seed):
    """The statements and the first difference, or None."""
    rng = random.Random(seed)
    done = []
    with target.connect("postgres", "postgres", **{"hawser.report": "on"}) as client:
        for _ in range(STEPS_A_SESSION):
            sql = step(rng)
            done.append(sql)
            client.attempt(sql)
            if client.status != "I":
                continue
            found = differences(client, client.parameters["hawser.state"])
            if found:
                return done, found
    return None


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pg-config", default=os.environ.get("PG_CONFIG", "pg_config"))
    parser.add_argument("--steps", type=int, default=3000)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    sessions = max(1, arguments.steps // STEPS_A_SESSION)
    with Server(arguments.pg_config) as server:
        print(server.version)
        with server.target.connect("postgres", "postgres") as owner:
            owner.execute(SETUP)
        for seed in range(arguments.seed, arguments.seed + sessions):
            difference = session(server.target, seed)
            if difference:
                done, found = difference
                print(f"FAILED  seed {seed}:\n  " + ";\n  ".join(done) + "\n" + "\n".join(found))
                print(f"{seed - arguments.seed} passed, 1 failed, 0 skipped")
                return 1
    print(f"{sessions} passed, 0 failed, 0 skipped")
    return 0


if __name__ == "__main__":
    sys.exit(main())
