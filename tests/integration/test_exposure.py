"""What a stranger, or a user of one database, could learn, hold up or have run."""

import contextlib
import json
import pathlib
import re
import socket
import statistics
import subprocess
import time

from harness import messages as m
from harness.pooler import binary
from harness.suite import Skip, equal, limit, pooler_only, until
from harness.wire import ServerError

SAME_FOR_ALL_SERVERS = True


def refused(env, target, user, database, secret="wrong"):
    """The error of a login."""
    connection = env.raw(target)
    try:
        connection.send(m.startup({"user": user, "database": database}))
        connection.login(secret, user)
    except ServerError as error:
        return error.fields
    raise AssertionError(f"{user} has logged in to {database}")


def told(env, target, user, database, secret="wrong"):
    fields = refused(env, target, user, database, secret)
    return fields["C"], fields["M"].replace(user, "USER").replace(database, "DATABASE")


def open_slow(address, count, head=b""):
    slow = []
    for _ in range(count):
        one = socket.create_connection(address, timeout=5)
        if head:
            one.sendall(head)
        slow.append(one)
    return slow


@pooler_only
def test_health_is_answered_beside_300_slow_connections(env):
    address = ("127.0.0.1", env.pooler.http_port)
    for head in (b"", b"GET /metrics HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Slow: "):
        slow = open_slow(address, 300, head)
        try:
            for _ in range(5):
                began = time.monotonic()
                equal(env.pooler.http("/healthz"), (200, "ok\n"))
                took = time.monotonic() - began
                assert took < 1.0, f"{took:.2f} s"
                slow += open_slow(address, 10, head)
        finally:
            for one in slow:
                one.close()


def http_status(port, host, path="/metrics"):
    with socket.create_connection(("127.0.0.1", port), timeout=5) as one:
        one.sendall(f"GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode())
        got = b""
        while chunk := one.recv(65536):
            got += chunk
    return int(got.split(b" ")[1])


@pooler_only
def test_pages_are_not_shown_under_a_strangers_name(env):
    port = env.pooler.http_port
    for host in (f"127.0.0.1:{port}", "[::1]", "localhost", f"hawser:{port}", "10.1.2.3"):
        equal(http_status(port, host), 200, host)
    for host in ("evil.example", f"evil.example:{port}", "127.0.0.1.evil.example"):
        for path in ("/metrics", "/", "/readyz"):
            equal(http_status(port, host, path), 421, f"{host}{path}")
        equal(http_status(port, host, "/healthz"), 200, host)
    with env.pooler_with() as target:
        pooler = target.pooler
        config = pooler.config.read_text()
        pooler.stop()
        pooler.config.write_text(config.replace("[admin]\n", '[admin]\nhttp_hosts = ["metrics.example", ".svc.cluster.local"]\n'))
        pooler.start()
        equal(http_status(pooler.http_port, "metrics.example"), 200)
        equal(http_status(pooler.http_port, "hawser.app.svc.cluster.local:9632"), 200)
        equal(http_status(pooler.http_port, "evil.example"), 421)


HOSTILE = "x\n2026-01-01T00:00:00Z ERROR hawser: forged\r\x1b[2J\x1b]0;title\x07\u009b\u2028y"


@pooler_only
def test_names_and_errors_put_no_control_characters_into_the_log(env):
    with env.pooler_with(hba="host all all all trust\n", level="debug") as target:
        pooler = target.pooler
        for user, database in (("app", HOSTILE), (HOSTILE, "app"), ("app\n\x1b[1m", "\n\x1b[2m")):
            connection = env.raw(target)
            connection.send(m.startup({"user": user, "database": database, "application_name": HOSTILE}))
            connection.collect(until="EZ")
        until(lambda: "forged" in pooler.text(), "the names are in the log")
        raw = pathlib.Path(pooler.log).read_bytes()
        text = raw.decode()
        bad = [character for character in text if (ord(character) < 32 and character != "\n") or 127 <= ord(character) < 160
               or character in "\u2028\u2029"]
        equal(bad, [])
        for line in text.splitlines():
            assert re.match(r"\d{4}-\d\d-\d\dT[\d:.]+Z +[A-Z]+ hawser", line), f"not the start of an event: {line!r}"


@pooler_only
def test_json_has_no_control_characters_either(env):
    hostile = "forged\n\x1b\u009b2Jx\u2028\x7f\u202e"  # within what is kept of a name
    with env.pooler_with(hba="host all all all trust\n", format="json") as target:
        pooler = target.pooler
        connection = env.raw(target)
        connection.send(m.startup({"user": hostile, "database": "app"}))
        connection.collect(until="EZ")
        until(lambda: "forged" in pooler.text(), "the name is in the log")
        text = pathlib.Path(pooler.log).read_bytes().decode()
        bad = [character for character in text if (ord(character) < 32 and character != "\n") or 127 <= ord(character) < 160
               or character in "\u2028\u202e"]
        equal(bad, [])
        errors = [json.loads(line)["error"] for line in text.splitlines() if "forged" in line]
        equal(errors, [f'role "{hostile}" does not exist'])


def private_kib(process):
    status = pathlib.Path(f"/proc/{process.pid}/status").read_text()
    return int(status.split("RssAnon:")[1].split()[0])


def unsent_kib(port):
    """What the kernel keeps for connections from this port."""
    rows = [line.split() for line in pathlib.Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return sum(int(row[4].split(":")[0], 16) for row in rows if int(row[1].split(":")[1], 16) == port) // 1024


@pooler_only
@limit(120)
def test_readers_of_pages_that_do_not_read_hold_one_copy(env):
    """120 held 132 MiB where there were 400 pools: a copy each, in Hawser or, as far as it took them, in the kernel."""
    users = [f"pages_{number}" for number in range(150)]
    server = env.server()
    server.execute("".join(f"create role {user} login;" for user in users))
    try:
        with env.pooler_with(start=False, hba_file=None, auth_type="trust", max_server_connections=20) as target:
            pooler = target.pooler
            with open(pooler.directory / "userlist.txt", "a") as file:
                file.writelines(f'"{user}" ""\n' for user in users)
            pooler.start()
            for user in users:
                with target.connect(user=user):
                    pass
            size = len(pooler.http("/metrics")[1])
            before = private_kib(pooler.process)
            slow = []
            for _ in range(120):
                one = socket.socket()
                one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
                one.connect(("127.0.0.1", pooler.http_port))
                one.sendall(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n")
                slow.append(one)
            time.sleep(3)  # their pages are made, and read by none
            grown = private_kib(pooler.process) - before + unsent_kib(pooler.http_port)
            assert grown < 30 * size // 1024, f"{grown} KiB for pages of {size} bytes"
            equal(pooler.http("/metrics")[0], 200)
            for one in slow:
                one.close()
    finally:
        server.execute("".join(f"drop role {user};" for user in users))


@pooler_only
@limit(120)
def test_answers_do_not_tell_which_databases_and_users_there_are(env):
    """Wrong passwords: users of users_file and others, databases that exist and others."""
    with env.pooler_with(auth_user="postgres",
                         auth_query="select rolname, rolpassword from pg_catalog.pg_authid where rolname = $1") as target:
        pooler = target.pooler
        users = pooler.directory / "userlist.txt"
        users.write_text("".join(line for line in users.read_text().splitlines(True) if line.startswith(('"app"', '"app_md5"', '"admin"'))))
        pooler.reload()
        said = {(user, database): told(env, target, user, database)
                for user in ("app", "app3", "nobody_at_all") for database in ("app", "no_such_database")}
        equal(set(said.values()), {("28P01", 'password authentication failed for user "USER"')}, str(said))
        # With the right password the truth is told, as PostgreSQL does.
        equal(told(env, target, "app", "no_such_database", target.secrets["app"])[0], "3D000")
        equal(env.connect(target, user="app3").value("select session_user"), "app3")


@pooler_only
@limit(120)
def test_names_of_no_database_cost_few_server_connections(env):
    server = env.server("postgres")
    with env.pooler_with(auth_user="postgres",
                         auth_query="select rolname, rolpassword from pg_catalog.pg_authid where rolname = $1") as target:
        mark = env.cluster.log.stat().st_size
        clients = []
        started = time.monotonic()
        for number in range(100):
            client = env.raw(target)
            client.send(m.startup({"user": "nobody_at_all", "database": f"guess_{number}"}))
            clients.append(client)
        time.sleep(1.5)  # a second of guesses
        # Meanwhile one that exists is not held up.
        began = time.monotonic()
        equal(env.connect(target, user="app3").value("select session_user"), "app3")
        assert time.monotonic() - began < 15
        with open(env.cluster.log, "rb") as log:
            log.seek(mark)
            tried = log.read().count(b'database "guess_')
        # Two at a time, each place free again 0.1 s after the answer.
        elapsed = time.monotonic() - started
        assert 1 <= tried <= 2 + 20 * elapsed, f"{tried} connections for 100 names within {elapsed:.1f} s"
        for client in clients:
            client.sock.close()
        server.execute("select 1")


@pooler_only
@limit(120)
def test_time_does_not_tell_a_user_of_the_file_from_one_who_is_looked_up(env):
    with env.pooler_with(auth_user="postgres",
                         auth_query="select rolname, rolpassword from pg_catalog.pg_authid where rolname = $1") as target:
        users = target.pooler.directory / "userlist.txt"
        users.write_text("".join(line for line in users.read_text().splitlines(True) if line.startswith(('"app"', '"app2"', '"admin"'))))
        target.pooler.reload()

        def seconds(user):
            connection = target.open()
            began = time.perf_counter()
            connection.send(m.startup({"user": user, "database": "app"}))
            with contextlib.suppress(ServerError):
                connection.login("wrong", user)
            took = time.perf_counter() - began
            connection.sock.close()
            return took
        names = ("app", "app3", "nobody_at_all")
        rounds = [[seconds(user) for user in names] for _ in range(300)]
        quartiles = {user: statistics.quantiles(times)[0] for user, times in zip(names, zip(*rounds))}
        assert max(quartiles.values()) < 1.3 * min(quartiles.values()), quartiles


@pooler_only
def test_check_warns_of_secrets_that_all_may_read(env):
    with env.pooler_with() as target:
        pooler = target.pooler
        key = pooler.directory / "own.key"
        key.write_bytes(pathlib.Path(env.certificates.path("server.key")).read_bytes())
        pooler.write(client_tls_key_file=str(key))
        users = pooler.directory / "userlist.txt"

        def warnings():
            done = subprocess.run([binary(), "check", "-c", str(pooler.config)], cwd=pooler.directory, capture_output=True, text=True)
            equal(done.returncode, 0, done.stdout + done.stderr)
            return [line for line in done.stdout.splitlines() if "has mode" in line]
        users.chmod(0o644)
        key.chmod(0o604)
        said = warnings()
        equal(len(said), 2, str(said))
        assert all(line.startswith("warn") for line in said), said
        users.chmod(0o640)
        key.chmod(0o600)
        equal(warnings(), [])


@pooler_only
def test_the_process_keeps_its_memory_to_itself(env):
    """A process that is not dumpable shows /proc/PID as root's, whoever it runs as."""
    if pathlib.Path("/proc/self/status").read_text().split("Uid:")[1].split()[0] != "0":
        raise Skip("only root can start it as another user")
    launcher = ["setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups"]
    for core_dumps, expected in ((None, True), ("true", False)):
        with env.pooler_with(start=False) as target:
            pooler = target.pooler
            config = pooler.config.read_text()
            pooler.config.write_text(config.replace("[process]\n", f"[process]\ncore_dumps = {core_dumps}\n") if core_dumps else config)
            subprocess.run(["chown", "-R", "postgres:postgres", str(pooler.directory)], check=True)
            pooler.launcher = launcher
            key = pooler.directory / "own.key"
            key.write_bytes(pathlib.Path(env.certificates.path("server.key")).read_bytes())
            pooler.config.write_text(pooler.config.read_text().replace(str(env.certificates.path("server.key")), str(key)))
            subprocess.run(["chown", "postgres", str(key)], check=True)
            key.chmod(0o600)
            pooler.start()
            owned_by_root = pathlib.Path(f"/proc/{pooler.process.pid}/mem").stat().st_uid == 0
            equal(owned_by_root, expected, f"core_dumps = {core_dumps}")
            # What it reads of itself it still reads.
            values = dict(line.rsplit(" ", 1) for line in pooler.http("/metrics")[1].splitlines() if not line.startswith("#")
                          and " " in line)
            assert float(values["hawser_process_open_fds"]) > 5 and float(values["hawser_process_resident_memory_bytes"]) > 0


HOSTILE_SCHEMA = """
    create schema hostile;
    grant usage on schema hostile to public;
    create table hostile.calls (who name, what text);
    grant insert, select on hostile.calls to public;
    create function hostile.note(what text) returns boolean language plpgsql volatile as
    $$ begin insert into hostile.calls values (current_user, what); return true; end $$;
"""
OPERATORS = (("=", "name"), ("=", "oid"), ("=", "text"), ('"char"', None), ("<", "timestamptz"), ("=", "int4"), ("~", "text"),
             ("~*", "text"), ("<>", '"char"'), ("=", '"char"'), (">", "int8"), (">=", "oid"))


def make_hostile(server):
    server.execute("drop schema if exists hostile cascade")
    server.execute(HOSTILE_SCHEMA)
    number = 0
    for operator, kind in OPERATORS:
        if kind is None:
            continue
        # The server's own, of the same types: an exact match that comes first.
        for right in {kind, "text" if kind == "name" else kind}:
            number += 1
            server.execute(f"""
                create function hostile.f{number}(a {kind}, b {right}) returns boolean language plpgsql as
                $$ begin insert into hostile.calls values (current_user, '{operator} {kind}');
                return a operator(pg_catalog.{operator}) b; end $$;
                create operator hostile.{operator} (function = hostile.f{number}, leftarg = {kind}, rightarg = {right})""")
    for function in ("current_setting(text)", "set_config(text, text, boolean)", "concat(variadic text[])", "md5(text)", "now()",
                     "count(text)", "pg_backend_pid()", "current_database()", "length(text)"):
        name = function.split("(")[0]
        if name == "count":
            continue
        arguments = function[len(name):]
        kind = {"now": "timestamptz", "pg_backend_pid": "int4", "current_database": "name", "length": "int4"}.get(name, "text")
        server.execute(f"create function hostile.{name}{arguments} returns {kind} language plpgsql as "
                       f"$$ begin insert into hostile.calls values (session_user, '{name}'); return null; end $$")
    server.execute("create domain hostile.text as pg_catalog.text; create domain hostile.regclass as pg_catalog.text; create domain "
                   "hostile.oid as pg_catalog.oid")


@pooler_only
@limit(120)
def test_no_question_of_hawsers_own_runs_what_a_search_path_leads_to(env):
    """A database's owner has functions, operators and types of their own come before the server's."""
    boss = env.server("postgres")
    boss.execute("drop database if exists hostile_db")
    boss.execute("create database hostile_db")
    server = env.server("hostile_db")
    make_hostile(server)
    server.execute("grant all on schema public to public")
    boss.execute("alter database hostile_db set search_path to hostile, pg_catalog, public")
    boss.execute("alter role app in database hostile_db set search_path to hostile, pg_catalog, public")
    try:
        # The default auth_query, as a superuser.
        with env.pooler_with(users_file=None, auth_user="postgres", function_census=True, pool_size=2) as target:
            for _ in range(3):
                with target.connect(user="app", database="hostile_db") as client:
                    # Temporary tables, locks, cursors, prepared statements: what is left is asked for.
                    client.execute("create temp table t (a int); drop table t")
                    client.execute("prepare p as select 1; deallocate p")
                    client.execute("select pg_catalog.pg_advisory_lock(1); select pg_catalog.pg_advisory_unlock(1)")
                    client.execute("do $do$ begin perform pg_catalog.set_config('work_mem', '8MB', false); end $do$")
                    client.execute("listen c; unlisten c")
                    client.execute("select 1")
            time.sleep(1.5)  # census and idle work of the pooler come by
            # The same as another path gives: names are still found, the right user logs in.
            equal(target.connect(user="app3", database="hostile_db").value("select session_user"), "app3")
        # A query that qualifies nothing finds what is in public, and not what comes first in the database's path.
        server.execute("create function public.who(n text) returns table (rolname name, rolpassword text) security definer language sql "
                       "set search_path to pg_catalog as "
                       "$$ select a.rolname, a.rolpassword from pg_catalog.pg_authid a where a.rolname = n $$")
        with env.pooler_with(users_file=None, auth_user="postgres", auth_query="select * from who($1) where rolname = $1",
                             pool_size=2) as target:
            equal(target.connect(user="app", database="hostile_db").value("select session_user"), "app")
        equal(server.rows("select distinct who, what from hostile.calls"), [])
    finally:
        server.sock.close()
        boss.execute("select pg_catalog.pg_terminate_backend(pid) from pg_stat_activity where datname = 'hostile_db'")
        time.sleep(0.3)  # the sessions have ended
        boss.execute("drop database hostile_db with (force)")
