#!/usr/bin/env python3
"""What hawser.state says, message by message: with a server of its own, over the wire.

    extension/report_test.py [--pg-config PG_CONFIG]      (the extension is installed there: make install)

pg_regress sees only what SHOW gives; this sees which ReadyForQuery a report precedes, and that none is sent when
nothing changed. The last line is "N passed, N failed, N skipped".
"""

import argparse
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "tests"))

from harness.postgres import SERVER_USER, free_port
from harness.wire import Target

NOTHING = object()
SKIP = object()

# Run by a session of its own, before all cases.
SETUP = "create function sets_a_name() returns int language plpgsql set my.setup = 1 as 'begin return 1; end'"

# Each case is a session of its own: (statement, what is reported ahead of its ReadyForQuery).
CASES = {
    "a_setting_of_the_session": [
        ("select 1", NOTHING),
        ("set work_mem = '5MB'", "1 set=work_mem:5MB"),
        ("select 1", NOTHING),
        ("set work_mem = '5MB'", NOTHING),
        ("set work_mem = '6MB'", "1 set=work_mem:6MB"),
        ("reset work_mem", "1"),
    ],
    "a_rollback_takes_a_setting_back": [
        ("begin; set work_mem = '6MB'; rollback", NOTHING),
        ("begin; set local work_mem = '7MB'; commit", NOTHING),
        ("begin; savepoint a; set work_mem = '8MB'; rollback to a; commit", NOTHING),
        ("begin; set work_mem = '5MB'; savepoint a; set work_mem = '8MB'; rollback to a; commit", "1 set=work_mem:5MB"),
        ("begin; set work_mem = '9MB'; select 1/0", NOTHING),
        ("rollback", NOTHING),
        ("begin; set work_mem = '9MB'; set local work_mem = '5MB'; commit", "1 set=work_mem:9MB"),
    ],
    "a_reset_before_set_local_leaves_nothing": [
        ("set work_mem = '5MB'; set my.x = 1", "1 set=my.x:1,work_mem:5MB names=my.x"),
        ("begin; reset work_mem; set local work_mem = '7MB'; commit", "1 set=my.x:1 names=my.x"),
        ("begin; reset my.x; savepoint a; set local my.x = 7; commit", "1 names=my.x"),
    ],
    "numbers_have_all_digits": [
        ("set seq_page_cost = 1.23456789", "1 set=seq_page_cost:1.23456789"),
        ("set seq_page_cost = 0.1", "1 set=seq_page_cost:0.1"),
        ("set vacuum_cost_delay = '1.23456789ms'", "1 set=seq_page_cost:0.1,vacuum_cost_delay:1235us"),
        ("set vacuum_cost_delay = '0.5ms'", "1 set=seq_page_cost:0.1,vacuum_cost_delay:500us"),
    ],
    "nothing_is_said_within_a_transaction": [
        ("begin", NOTHING),
        ("set work_mem = '5MB'", NOTHING),
        ("commit", "1 set=work_mem:5MB"),
    ],
    "a_savepoint_that_failed_ends_no_transaction": [
        ("select set_config('my.x', '1', false); commit; begin; set local my.tenant = '7'; savepoint s; select 1/0", NOTHING),
        ("rollback to s", NOTHING),
        ("commit", "1 set=my.x:1 names=my.tenant,my.x"),
        ("set my.x = '2'; commit; begin; listen foo; set local role pg_monitor; savepoint s; select 1/0", NOTHING),
        ("rollback to s; commit", "1 listen=foo set=my.x:2 names=my.tenant,my.x"),
        ("set my.x = '3'; commit; begin; savepoint s; select pg_advisory_lock(1); select 1/0", NOTHING),
        ("rollback", "1 locks=1 listen=foo set=my.x:3 names=my.tenant,my.x"),
    ],
    "values_are_escaped": [
        ("set search_path = \"$user\", 'a b'", "1 set=search_path:%22%24user%22%2C%20%22a%20b%22"),
        ("set application_name = ''", "1 set=application_name:,search_path:%22%24user%22%2C%20%22a%20b%22"),
    ],
    "settings_of_functions_without_a_word_in_the_text": [
        ("create function pg_temp.f() returns void language plpgsql as $$ begin "
         "perform set_config('my.y', '1', false); set application_name = 'z'; end $$", "1 temp"),
        ("select pg_temp.f()", "1 temp set=application_name:z,my.y:1 names=my.y"),
    ],
    "a_custom_name_stays": [
        ("begin; set my.x = 1; rollback", "1 names=my.x"),
        ("begin; set local my.zz = 1; commit", "1 names=my.x,my.zz"),
        ("discard all", NOTHING),
    ],
    "a_custom_name_of_a_functions_set_clause": [
        ("create function pg_temp.f() returns int language sql set my.clause = 1 as 'select 1'", "1 temp names=my.clause"),
        ("select pg_temp.f()", NOTHING),
    ],
    "a_custom_name_of_another_sessions_function": [
        ("select sets_a_name()", "1 names=my.setup"),
        ("select sets_a_name()", NOTHING),
    ],
    "a_custom_name_that_the_session_began_with_is_no_state": [
        ("set mine.start = 2", "1 set=mine.start:2"),
        ("reset mine.start", "1"),
    ],
    "a_value_too_long_is_named_without_it": [
        ("select set_config('my.long', repeat('x', 2000), false)", "1 set=my.long names=my.long"),
    ],
    "a_name_too_long_is_left_out_and_said_to_be": [
        ("select set_config('my.' || repeat('x', 1021), '1', false)", f"1 set=my.{'x' * 1021}:1 names=my.{'x' * 1021}"),
        ("discard all", f"1 names=my.{'x' * 1021}"),
        ("select set_config('my.' || repeat('x', 1022), '1', false)", f"1 names=my.{'x' * 1021} more"),
        ("set work_mem = '5MB'", f"1 set=work_mem:5MB names=my.{'x' * 1021} more"),
    ],
    "role": [
        ("set role pg_monitor", "1 set=role:pg_monitor"),
        ("reset role", "1"),
        ("set session authorization pg_monitor", "1 set=role:none,session_authorization:pg_monitor"),
        ("reset session authorization", "1"),
    ],
    "temporary_objects_of_every_kind": [
        ("create temp table t (i int)", "1 temp"),
        ("insert into t values (1)", NOTHING),
        ("drop table t", "1"),
        ("create temp view v as select 1", "1 temp"),
        ("drop view v", "1"),
        ("create temp sequence s", "1 temp"),
        ("drop sequence s", "1"),
        ("create function pg_temp.f() returns int language sql as 'select 1'", "1 temp"),
        ("drop function pg_temp.f()", "1"),
        ("create type pg_temp.t as (i int)", "1 temp"),
        ("drop type pg_temp.t", "1"),
        ("select 1 as i into temp t", "1 temp"),
        ("discard temp", "1"),
    ],
    "temporary_objects_in_transactions": [
        ("begin; create temp table t (i int) on commit drop; commit", NOTHING),
        ("begin; create temp table t (i serial) on commit drop; create temp view v as select * from t; commit", NOTHING),
        ("begin; create temp table t (i int); rollback", NOTHING),
        ("create temp table t (i int)", "1 temp"),
        ("begin; drop table t; rollback", NOTHING),
        ("begin; create temp table u (i int) on commit drop; commit", NOTHING),
        ("begin; drop table t; create temp table u (i int) on commit drop; commit", "1"),
    ],
    "advisory_locks": [
        ("select pg_advisory_lock(1)", "1 locks=1"),
        ("select pg_advisory_lock(1)", NOTHING),
        ("select pg_advisory_lock(2)", "1 locks=2"),
        ("begin; select pg_advisory_unlock(2), pg_advisory_xact_lock(9); commit", "1 locks=1"),
        ("begin; select pg_advisory_lock(7); select 1/0", "1 locks=2"),
        ("rollback", NOTHING),
        ("select pg_advisory_unlock_all()", "1"),
        ("begin; select pg_advisory_xact_lock(3); commit", NOTHING),
        ("commit; begin; select pg_advisory_xact_lock(3)", NOTHING),
        ("commit", NOTHING),
    ],
    "held_cursors": [
        ("declare c cursor with hold for select 1", "1 cursors=c"),
        ("select 1", NOTHING),
        ("close c", "1"),
        ("begin; declare c cursor with hold for select 1; rollback", NOTHING),
        ("begin; declare c cursor for select 1; commit", NOTHING),
        ('declare "C x" cursor with hold for select 1', "1 cursors=C%20x"),
        ("close all", "1"),
    ],
    "statements_of_sql": [
        ("prepare p as select 1", "1 statements=p"),
        ("execute p", NOTHING),
        ("begin; prepare q as select 1; rollback", "1 statements=p,q"),
        ("deallocate p", "1 statements=q"),
        ("deallocate all", "1"),
    ],
    "channels": [
        ("listen foo", "1 listen=foo"),
        ("begin; listen bar; rollback", NOTHING),
        ("begin; listen bar; commit", "1 listen=foo,bar"),
        ("unlisten foo", "1 listen=bar"),
        ("unlisten *", "1"),
    ],
    "sequences": [
        ("create temp sequence s", "1 temp"),
        ("select nextval('s')", "1 temp sequences"),
        ("select nextval('s')", NOTHING),
        ("discard sequences", "1 temp"),
        ("create temp table i (a int generated always as identity, b int)", NOTHING),
        ("insert into i (b) values (1)", "1 temp sequences"),
        ("discard sequences", "1 temp"),
        ("update i set b = 2", NOTHING),
        ("update i set a = default", "1 temp sequences"),
        ("discard sequences", "1 temp"),
        ("delete from i", NOTHING),
        ("with w as (insert into i (b) values (3) returning a) select * from w", "1 temp sequences"),
        ("discard sequences", "1 temp"),
        ("create temp table n (a serial, b int); insert into n (b) values (1)", "1 temp sequences"),
        ("discard sequences", "1 temp"),
        (r"""copy i (b) from program 'printf "1\n2\n"'""", "1 temp sequences"),
        ("discard sequences", "1 temp"),
        (r"""copy i (b) from program 'printf "1\nnot a number\n"'""", "1 temp sequences"),
        ("discard all", "1"),
    ],
    "a_sequence_drawn_on_both_sides_of_a_discard": [
        ("create temp sequence s; create temp table i (a int generated always as identity, b int); create function pg_temp.draws() "
         "returns bigint language plpgsql as $$ declare v bigint; begin v := nextval('s'); return v; end $$", "1 temp"),
        ("begin; select pg_temp.draws(); discard sequences; select pg_temp.draws(); commit", "1 temp sequences"),
        ("discard sequences", "1 temp"),
        ("do $$ begin for i in 1..2 loop perform pg_temp.draws(); if i = 1 then discard sequences; end if; end loop; end $$",
         "1 temp sequences"),
        ("begin; discard sequences; commit", "1 temp"),
        ("begin; insert into i (b) values (1); discard sequences; commit", NOTHING),
    ],
    "what_cannot_be_undone": [
        ("select setseed(0.5)", "1 seed"),
        ("load 'plpgsql'", "1 seed library"),
        ("discard all", NOTHING),
    ],
    "a_text_too_long_is_cut_at_an_item": [
        ("do $$ begin for i in 1..30 loop perform set_config('long.v' || i, repeat('x', 1000), false); end loop; end $$",
         lambda text: len(text) < 17000 and text.startswith("1 set=long.v1:x") and text.endswith("x more")),
    ],
    "nobody_can_set_it": [
        ("set hawser.state = 'x'", NOTHING),
        ("set hawser.report = off", NOTHING),
    ],
}


class Server:
    """A cluster in a directory that is removed at the end."""

    def __init__(self, pg_config, preload=True, settings=""):
        self.settings = ("shared_preload_libraries = 'hawser'\n" if preload else "") + settings
        def asked(what):
            return subprocess.run([pg_config, what], check=True, capture_output=True, text=True).stdout.strip()
        self.bin = pathlib.Path(asked("--bindir"))
        self.version = asked("--version")
        self.directory = pathlib.Path(tempfile.mkdtemp(prefix="hawser-extension-"))
        self.port = free_port()
        self.data = self.directory / "data"
        self.log = self.directory / "log"
        self.target = Target(self.port, str(self.directory), {})

    def program(self, name, *arguments):
        command = [str(self.bin / name), *arguments]
        if os.geteuid() == 0:
            command = ["runuser", "-u", SERVER_USER, "--", *command]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, cwd=self.directory)

    def __enter__(self):
        if os.geteuid() == 0:
            shutil.chown(self.directory, SERVER_USER)
        data = str(self.data)
        self.program("initdb", "-D", data, "-U", "postgres", "-A", "trust", "-N")
        with open(f"{data}/postgresql.conf", "a", encoding="utf-8") as settings:
            settings.write(f"port = {self.port}\nlisten_addresses = '127.0.0.1'\nfsync = off\n"
                           f"unix_socket_directories = '{self.directory}'\n{self.settings}")
        self.start()
        return self

    def start(self, options=""):
        self.program("pg_ctl", "-D", str(self.data), "-l", str(self.log), "-o", options, "-w", "start")

    def stop(self, mode="immediate"):
        self.program("pg_ctl", "-D", str(self.data), "-m", mode, "-w", "stop")

    def __exit__(self, *_):
        try:
            if (self.data / "postmaster.pid").exists():
                self.stop()
        except subprocess.CalledProcessError as error:
            print(f"the server did not stop: {error}", file=sys.stderr)
        shutil.rmtree(self.directory)


def reported(result):
    """The texts of hawser.state in a result, in their order."""
    prefix = b"hawser.state\0"
    return [message.body[len(prefix):-1].decode() for message in result.messages
            if message.kind == "S" and message.body.startswith(prefix)]


def run(target, steps):
    """The first difference, or None."""
    options = {"hawser.report": "on", "mine.start": "1"}
    with target.connect("postgres", "postgres", **options) as client:
        if client.parameters.get("hawser.state") != "1":
            return f"at the start: {client.parameters.get('hawser.state')!r}"
        for statement, expected in steps:
            got = reported(client.attempt(statement))
            if expected is NOTHING:
                right = got == []
            elif callable(expected):
                right = len(got) == 1 and expected(got[0])
            else:
                right = got == [expected]
            if not right:
                return f"{statement}: reported {got}, expected {'nothing' if expected is NOTHING else expected!r}"
    return None


def changes_of_the_schema(target):
    """hawser.schema grows after a change, whoever makes it, and after nothing else."""
    prefix = b"hawser.schema\0"

    def grown(client, sql):
        return any(message.kind == "S" and message.body.startswith(prefix) for message in client.attempt(sql).messages)

    with target.connect("postgres", "postgres", **{"hawser.report": "on"}) as client, target.connect("postgres", "postgres") as other:
        if prefix[:-1].decode() not in client.parameters:
            return "not reported at the start"
        client.attempt("select 1")
        for sql, expected in [
            ("create table changing (a int, e text)", True), ("insert into changing values (1)", False), ("select * from changing", False),
            ("begin", False), ("alter table changing alter a type bigint", False), ("commit", True), ("begin; rollback", False),
            ("create function changing_f() returns int language sql as 'select 1'", True), ("set work_mem = '5MB'", False),
            ("create type changing_e as enum ('a')", True), ("create schema changing_s", True),
        ]:
            if grown(client, sql) != expected:
                return f"{sql}: {'not ' if expected else ''}reported"
            if expected:
                grown(client, "select 1")  # a session reads what its own commit has sent, too
        for sql in ["alter table changing alter a type numeric", "drop function changing_f()", "drop type changing_e",
                    "drop table changing",
                    "drop schema changing_s"]:
            other.execute(sql)
            if not grown(client, "select 1") or grown(client, "select 1"):
                return f"{sql} by another session: not reported, or twice"
    return None


def no_temporary_schema_is_left(target):
    """A process without temporary objects is as one that never had any, and finds the schema again."""
    with target.connect("postgres", "postgres", **{"hawser.report": "on"}) as client:
        for number in range(30):  # the server has 20 places for what is done at a process's end
            client.execute(f"create temp table t (i int); insert into t values ({number})")
            if client.value("select i from t") != str(number):
                return f"table {number} has something else"
            client.execute("begin; drop table t; create temp table u (i int) on commit drop; commit")
        if client.value("select pg_my_temp_schema()") != "0":
            return "there is one after the last table has been dropped"
        client.execute("begin; set local search_path = pg_temp")
        if client.value("select current_schema() ~ 'pg_temp'") != "t":
            return "current_schema() makes none"
        errors = client.attempt("prepare transaction 'p'").errors
        if [error["C"] for error in errors] != ["0A000"]:
            return f"a transaction that has made it is prepared: {errors}"
        client.execute("begin; create temp table kept (i int); rollback")
        client.execute("begin; savepoint s; create temp table kept (i int); rollback to s; commit")
        client.execute("create temp table kept (i int); create index on kept (i); create temp view v as select * from kept")
        backend, schema = client.value("select pg_backend_pid()"), client.value("select pg_my_temp_schema()::regnamespace::text")
        if not schema.startswith("pg_temp_"):
            return f"the schema is {schema}"
    with target.connect("postgres", "postgres") as other:
        other.execute("do $$ begin for i in 1..500 loop perform pg_stat_clear_snapshot(); exit when not exists (select from "
                      "pg_stat_activity "
                      f"where pid = {backend}); perform pg_sleep(0.01); end loop; end $$")
        left = other.value(f"select count(*) from pg_class where relnamespace = '{schema}'::regnamespace")
        return None if left == "0" else f"{left} relations are left at the process's end"


def what_a_process_keeps(target):
    """hawser.process tells it when it has changed, in whatever way it came about."""
    prefix = b"hawser.process\0"
    of_plpgsql = ("check_asserts", "extra_errors", "extra_warnings", "print_strict_params", "variable_conflict")
    defined = " defined=" + ",".join(f"plpgsql.{name}" for name in of_plpgsql)

    def told(client, sql):
        return [message.body[len(prefix):-1].decode() for message in client.attempt(sql).messages
                if message.kind == "S" and message.body.startswith(prefix)]

    for loads in ("do $$ begin end $$", "select sets_a_name()", "load 'plpgsql'",
                  "create or replace function pg_temp.f() returns int language plpgsql as 'begin return 1; end'"):
        with target.connect("postgres", "postgres", **{"hawser.report": "on"}) as client:
            if client.parameters.get("hawser.process") != "1":
                return f"at the start: {client.parameters.get('hawser.process')!r}"
            for sql, expected in [
                ("select 1", []), ("set plpgsql.check_asserts = off", ["1"]), (loads, ["1" + defined]), (loads, []), ("set my.x = 1", []),
                ("begin; create temp table t (i int); rollback", []), ("begin; create temp table t (i int)", []),
                ("insert into t values (1)", []), ("rollback", ["1 buffers=8192" + defined]), ("set work_mem = '5MB'", []),
            ]:
                got = told(client, sql)
                if got != expected and not (expected == ["1"] and got == []):
                    return f"{sql}: {got}, expected {expected}"
    return None


def silent_without_being_asked(target):
    with target.connect("postgres", "postgres") as client:
        if "hawser.state" in client.parameters or "hawser.schema" in client.parameters:
            return "reported to a client that did not ask"
        return "reported later" if reported(client.attempt("set work_mem = '5MB'")) else None


def other_extensions_in_c(target):
    """pg_trgm's set_limit() changes a setting by itself, without any command."""
    with target.connect("postgres", "postgres") as owner:
        if owner.attempt("create extension if not exists pg_trgm").errors:
            return SKIP
    return run(target, [
        ("select 1", NOTHING),
        ("select set_limit(0.5)", "1 set=pg_trgm.similarity_threshold:0.5"),
        ("begin; select set_limit(0.6); rollback", NOTHING),
        ("select show_limit()", NOTHING),
        ("begin; select set_limit(0.7); commit", "1 set=pg_trgm.similarity_threshold:0.7"),
    ])


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pg-config", default=os.environ.get("PG_CONFIG", "pg_config"))
    arguments = parser.parse_args()
    failures = skipped = 0
    with Server(arguments.pg_config, settings="max_prepared_transactions = 1\n") as server:
        print(server.version)
        with server.target.connect("postgres", "postgres") as client:
            client.execute(SETUP)
        checks = {name: lambda steps=steps: run(server.target, steps) for name, steps in CASES.items()}
        checks["changes_of_the_schema"] = lambda: changes_of_the_schema(server.target)
        checks["no_temporary_schema_is_left"] = lambda: no_temporary_schema_is_left(server.target)
        if int(re.search(r"[0-9]+", server.version)[0]) >= 15:  # 14 takes any name
            checks["what_a_process_keeps"] = lambda: what_a_process_keeps(server.target)
        checks["silent_without_being_asked"] = lambda: silent_without_being_asked(server.target)
        checks["other_extensions_in_c"] = lambda: other_extensions_in_c(server.target)
        for name, check in checks.items():
            difference = check()
            if difference is SKIP:
                skipped += 1
                print(f"skipped {name}: pg_trgm is not installed")
                continue
            failures += difference is not None
            print(f"{'FAILED ' if difference else 'ok     '} {name}" + (f": {difference}" if difference else ""))
    print(f"{len(checks) - failures - skipped} passed, {failures} failed, {skipped} skipped")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
