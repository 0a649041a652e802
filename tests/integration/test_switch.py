"""What somebody meets who comes from PgBouncer: what is seen of those who wait, what the log says, formats, and the names that tools rely
on."""

import contextlib
import json
import os
import pathlib
import pwd
import re
import shutil
import signal
import socket
import ssl
import subprocess
import time
import urllib.request

from harness import messages as m
from harness.pooler import Serving, binary
from harness.postgres import free_port
from harness.suite import Skip, equal, pooler_only, until
from harness.wire import Connection, ServerError, Target

SAME_FOR_ALL_SERVERS = True
TAKES_SECONDS = 30


def admin(env, target, database="hawser"):
    return env.connect(target, user="admin", database=database)


def status(target, **environment):
    ran = subprocess.run([binary(), "status", "--json", *(() if environment else ("--socket", target.pooler.directory / "hawser.sock"))],
                         capture_output=True, text=True, timeout=10, env={**os.environ, **environment})
    assert ran.returncode == 0, ran.stderr
    return json.loads(ran.stdout)


@pooler_only
def test_clients_that_wait_at_their_login_for_a_server_are_seen_everywhere(env):
    """The server takes connections and says nothing: no client gets as far as the pool's queue."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        server = f"127.0.0.1:{silent.getsockname()[1]}"
        with env.pooler_with(servers=[server], server_tls_sslmode="disable", server_connect_timeout="4s",
                             query_wait_timeout="4s") as target:
            clients = []
            for _ in range(3):
                client = env.raw(target)
                client.send(m.startup({"user": "app_trust", "database": "app"}))
                clients.append(client)
            console = admin(env, target)

            def pool():
                result = console.attempt("SHOW POOLS")
                rows = [dict(zip(result.columns, row)) for row in result.rows]
                return next((row for row in rows if row["database"] == "app"), {})
            until(lambda: pool().get("cl_waiting") == "3", "three clients that wait")
            until(lambda: int(pool()["maxwait"]) >= 1, "that they have waited for a second")
            equal(pool()["cl_active"], "0", "clients that are served")
            text = target.pooler.http("/metrics")[1]
            assert re.search(r'hawser_clients\{database="app",user="app_trust",state="waiting"\} 3\n', text), text
            waited = re.search(r'hawser_oldest_wait_seconds\{database="app",user="app_trust"\} (\S+)', text)
            assert float(waited[1]) >= 1, waited[0]
            assert '<td data-of="waiting">3, up to ' in target.pooler.http("/")[1]
            equal(status(target)["pools"][0]["waiting"], 3)
            for client in clients:
                client.close()
            until(lambda: pool().get("cl_waiting") == "0", "that nobody waits any more")


@pooler_only
def test_the_log_says_why_a_login_failed_and_the_client_is_told_the_same_as_ever(env):
    secret = "md5" + "0" * 32
    hba = "host all all all scram-sha-256\n"
    with env.pooler_with(hba=hba, append=f'\n[[user]]\nname = "with_md5"\npassword = "{secret}"\n[[user]]\nname = "bare"\n') as target:
        for user, reason in (("app", "wrong password"), ("nobody_at_all", "no such user"), ("with_md5", "stored secret is of md5"),
                             ("bare", "no password is known")):
            try:
                env.connect(target, user=user, secret="not this one")
            except ServerError as error:
                equal((error.fields["C"], error.fields["M"]), ("28P01", f'password authentication failed for user "{user}"'))
                assert set(error.fields) <= set("SVCMFLR"), error.fields
            else:
                raise AssertionError(f"{user} is in")
            until(lambda: any(f'"{user}"' in line.replace("\\", "") and reason in line for line in target.pooler.text().splitlines()),
                  f"a line for {user} with {reason}")


@pooler_only
def test_a_reload_says_what_has_changed_and_no_secret(env):
    with env.pooler_with(append='\n[[user]]\nname = "late"\npassword = "geheim-1"\n') as target:
        pooler = target.pooler
        pooler.append = '\n[[user]]\nname = "late"\npassword = "geheim-2"\n'
        pooler.write(pool_size=7, query_wait_timeout="6s")
        with open(pooler.directory / "userlist.txt", "a") as userlist:
            userlist.write('"newcomer" "geheim-3"\n')
        pooler.reload()
        line = next(line for line in pooler.text().splitlines() if "configuration reloaded" in line)
        for part in ("pool_size: 5 -> 7", "query_wait_timeout: 5 -> 6", "[[user]] late: password changed", "users_file: 1 users added"):
            assert part in line, (part, line)
        assert "geheim" not in pooler.text()
        mark = pooler.log.stat().st_size
        pooler.reload()
        assert "nothing changed" in pooler.text(mark), pooler.text(mark)


@pooler_only
def test_metrics_come_in_the_format_that_is_accepted(env):
    with env.pooler_with() as target:
        env.connect(target).value("select 1")

        def get(accept):
            request = urllib.request.Request(f"http://127.0.0.1:{target.pooler.http_port}/metrics",
                                             headers={"Accept": accept} if accept else {})
            with urllib.request.urlopen(request, timeout=5) as answer:
                return answer.headers["Content-Type"], answer.read().decode()
        kind, text = get("application/openmetrics-text;version=1.0.0;q=0.6,text/plain;version=0.0.4;q=0.3,*/*;q=0.2")
        assert kind.startswith("application/openmetrics-text; version=1.0.0") and text.endswith("# EOF\n"), kind
        kind, text = get("text/plain")
        assert kind.startswith("text/plain; version=0.0.4") and "# EOF" not in text, kind
        helped = set(re.findall(r"^# HELP (\S+) .", text, re.M))
        for sample in re.findall(r"^([a-z_]+)[{ ]", text, re.M):
            family = re.sub(r"_(bucket|count|sum)$", "", sample)
            assert sample in helped or family in helped, f"no help for {sample}"
        promtool = shutil.which("promtool")
        if promtool:
            ran = subprocess.run([promtool, "check", "metrics"], input=text, capture_output=True, text=True, timeout=20)
            equal((ran.returncode, ran.stderr), (0, ""), "promtool check metrics")


def connects(path):
    with socket.socket(socket.AF_UNIX) as client, contextlib.suppress(OSError):
        client.connect(path)
        return True
    return False


@pooler_only
def test_status_finds_a_process_that_nobody_gave_a_directory(env):
    place = f"/tmp/hawser-{os.geteuid()}" if os.geteuid() else "/run/hawser"
    taken = "a process of this user has the default control socket"
    if os.path.exists(f"{place}/hawser.sock") or os.path.exists(f"/run/user/{os.geteuid()}/hawser.sock"):
        raise Skip(taken)
    bare = {"RUNTIME_DIRECTORY": "", "XDG_RUNTIME_DIR": ""}
    with env.pooler_with(start=False, control_socket=None) as target:
        target.pooler.environment = bare
        target.pooler.start()
        # start() waits for clients' ports, which listen before the control socket does.
        until(lambda: connects(f"{place}/hawser.sock") or "no control socket" in target.pooler.text(), "the control socket", 10)
        if "no control socket" in target.pooler.text():
            raise Skip(taken)
        equal(status(target, **bare)["pid"], target.pooler.process.pid)
    if os.geteuid():
        with contextlib.suppress(OSError):  # others may use it still
            os.rmdir(place)


class Ini(Serving):
    """A pgbouncer.ini in a directory of its own, and a process that runs it."""

    def __init__(self, env, name):
        self.directory = pathlib.Path(env.directory) / f"ini-{name}"
        self.directory.mkdir(exist_ok=True)
        self.path, self.log = self.directory / "pgbouncer.ini", self.directory / "log"
        self.port = free_port()
        host, port = env.cluster.address.rsplit(":", 1)
        self.databases = f"[databases]\n* = host={host} port={port}\n"
        (self.directory / "userlist.txt").write_text('"app_trust" ""\n"admin" "x"\n')
        self.write()
        self.target = Target(self.port, str(self.directory), {})

    def write(self, **settings):
        own = {"listen_addr": "127.0.0.1", "listen_port": self.port, "unix_socket_dir": self.directory, "auth_type": "trust",
               "auth_file": "userlist.txt", "admin_users": "admin", "pool_mode": "transaction", "default_pool_size": 3,
               "pidfile": self.directory / "pid", "logfile": self.log, **settings}
        self.path.write_text(self.databases + "[pgbouncer]\n" + "".join(f"{name} = {value}\n" for name, value in own.items()))

    def run(self, *command):
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen(command, cwd=self.directory, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=log,
                                            env={**os.environ, "XDG_RUNTIME_DIR": str(self.directory)})
        until(self.listens, f"that it listens:\n{self.log.read_text()}", 10)

    def show(self, what):
        with self.target.connect(user="admin", database="pgbouncer") as console:
            return console.rows(f"SHOW {what}")



@pooler_only
def test_serve_runs_a_pgbouncer_ini_as_it_is_and_again_at_each_reload(env):
    with Ini(env, "serve") as ini:
        ini.write(max_client_con=7)
        ini.run(binary(), "serve", "--pgbouncer", ini.path.name)
        with ini.target.connect(user="app_trust", database="app") as client:
            equal(client.value("select 1"), "1")
            assert "did you mean `max_client_conn`?" in ini.log.read_text(), ini.log.read_text()
            equal(dict(row[:2] for row in ini.show("CONFIG"))["default_pool_size"], "3")
            ini.write(default_pool_size=4)
            ini.process.send_signal(signal.SIGHUP)
            until(lambda: ini.has_logged("pool_size: 3 -> 4"), "the reload")
            ini.write(default_pool_size=4, foo=1)
            ini.process.send_signal(signal.SIGHUP)
            until(lambda: ini.has_logged("PgBouncer has no setting `foo`"), "the warning of a reload")
            ini.write(default_pool_size=4, pool_mode="foo")
            with ini.target.connect(user="admin", database="pgbouncer") as console:
                (error,) = console.attempt("RELOAD").errors
            assert "`foo` is not known" in error["D"] and f"hawser check --pgbouncer {ini.path.name} " in error["H"], error
            ran = subprocess.run([binary(), "check", "--pgbouncer", ini.path.name], capture_output=True, text=True, timeout=20,
                                 cwd=ini.directory)
            assert ran.returncode == 1 and "`foo` is not known" in ran.stdout, ran
            equal(dict(row[:2] for row in ini.show("CONFIG"))["default_pool_size"], "4")
            equal(client.value("select 2"), "2")
        ini.process.terminate()
        equal(ini.process.wait(15), 0)


@pooler_only
def test_by_the_name_pgbouncer_it_takes_pgbouncers_arguments_and_signals(env):
    with Ini(env, "name") as ini:
        program = ini.directory / "pgbouncer"
        program.symlink_to(os.path.abspath(binary()))
        ran = subprocess.run([program, "-V"], capture_output=True, text=True, timeout=10)
        assert re.match(r"PgBouncer 1\.\d+\.\d+\n", ran.stdout) and ran.returncode == 0, ran
        ini.run(program, "-R", ini.path)
        with ini.target.connect(user="app_trust", database="app") as client:
            client.value("select 1")
        for line in ini.log.read_text().splitlines():
            assert re.match(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3} UTC \[\d+\] (LOG|WARNING|ERROR|DEBUG) ", line), line

        def paused():
            return dict(ini.show("STATE"))["paused"]
        ini.process.send_signal(signal.SIGUSR1)
        until(lambda: paused() == "yes", "that SIGUSR1 pauses")
        ini.process.send_signal(signal.SIGUSR2)
        until(lambda: paused() == "no", "that SIGUSR2 resumes")
        client = ini.target.connect(user="app_trust", database="app")
        equal(client.value("select 1"), "1")
        ini.process.send_signal(signal.SIGTERM)  # waits for clients
        time.sleep(0.5)  # it does not end
        equal(client.value("select 2"), "2")
        client.close()
        equal(ini.process.wait(10), 0)


@pooler_only
def test_pgbouncer_r_takes_the_place_of_the_running_process(env):
    with Ini(env, "reboot") as ini:
        program = ini.directory / "pgbouncer"
        program.symlink_to(os.path.abspath(binary()))
        ini.run(program, ini.path)
        client = ini.target.connect(user="app_trust", database="app")
        client.execute("set work_mem to '3MB'")
        old = ini.process
        try:
            ini.run(program, "-R", ini.path)
            equal(old.wait(20), 0)
        finally:
            old.kill()
            old.wait()
        equal(client.value("show work_mem"), "3MB")
        equal((ini.directory / "pid").read_text().strip(), str(ini.process.pid))
        client.close()


@pooler_only
def test_pgbouncer_d_goes_to_the_background_when_it_serves(env):
    with Ini(env, "daemon") as ini:
        program = ini.directory / "pgbouncer"
        program.symlink_to(os.path.abspath(binary()))
        run = [program, "-d", "-q", ini.path]
        ran = subprocess.run(run, capture_output=True, text=True, timeout=20, cwd=ini.directory)
        equal((ran.returncode, ran.stderr), (0, ""))
        process = int((ini.directory / "pid").read_text())
        try:
            with ini.target.connect(user="app_trust", database="app") as client:
                equal(client.value("select 1"), "1")
            again = subprocess.run(run, capture_output=True, text=True, timeout=20, cwd=ini.directory)
            assert again.returncode == 1 and "did not start: could not listen on 127.0.0.1" in again.stderr, again
        finally:
            os.kill(process, signal.SIGQUIT)
            until(lambda: not os.path.exists(f"/proc/{process}")
                  or "Z" in pathlib.Path(f"/proc/{process}/stat").read_text().split(")")[1][:3],
                  "that it has ended", 10)


@pooler_only
def test_the_console_counts_as_pgbouncers_does(env):
    with Ini(env, "console") as ini:
        ini.databases += "named = host=/tmp pool_mode=statement\n"
        ini.write()
        ini.run(binary(), "serve", "--pgbouncer", ini.path.name)
        with ini.target.connect(user="app_trust",
                                database="app") as client, ini.target.connect(user="admin", database="pgbouncer") as console:
            client.value("select 1")
            databases = {row[0]: row[9] for row in console.rows("SHOW DATABASES")}
            equal(databases, {"app": None, "named": "statement", "pgbouncer": "statement"}, "databases and their own modes")
            equal({row[0] for row in console.rows("SHOW USERS")}, {"admin", "app_trust", "pgbouncer"})
            lists = dict(console.rows("SHOW LISTS"))
            for name, topic in (("databases", "DATABASES"), ("users", "USERS"), ("pools", "POOLS"), ("used_clients", "CLIENTS")):
                equal(int(lists[name]), len(console.rows(f"SHOW {topic}")), name)


@pooler_only
def test_what_is_counted_outlives_its_pool(env):
    with env.pooler_with(append=database(env, "named"), server_idle_timeout="1s", pool_idle_timeout="1s") as target:
        client = env.connect(target, database="named")
        for _ in range(3):
            client.execute("select 1")
        client.close()

        def counted():
            stats = {row["database"]: row["total_xact_count"] for row in target.pooler.show("STATS")}
            return stats.get("named"), {row["name"]: row["value"] for row in target.pooler.show("TOTALS")}["total_xact_count"]
        before = counted()
        equal(before[0], "3")
        until(lambda: not {row["database"] for row in target.pooler.show("POOLS")} & {"named"}, "that the pool is forgotten", 15)
        equal(counted(), before)


@pooler_only
def test_a_users_log_and_pid_files_are_its_own(env):
    if os.geteuid():
        raise Skip("only root becomes another user")
    with Ini(env, "user") as ini:
        os.chown(ini.directory, pwd.getpwnam("postgres").pw_uid, -1)
        own = ini.directory / "own.log"
        ini.write(user="postgres", logfile=own)
        ini.run(binary(), "serve", "--pgbouncer", ini.path.name)
        # It listens before it has the file, so that what finds the port in use leaves the file alone.
        until((ini.directory / "pid").exists, "that the pid file is there")
        for file in (own, ini.directory / "pid"):
            equal(file.owner(), "postgres", file.name)
        own.rename(ini.directory / "own.log.1")
        ini.process.send_signal(signal.SIGHUP)
        until(own.exists, "that the log goes on in a new file")


@pooler_only
def test_import_leaves_unknown_keys_out_with_a_comment_and_fails(env):
    with Ini(env, "import") as ini:
        ini.write(pool_mod="session")
        ran = subprocess.run([binary(), "import", ini.path], capture_output=True, text=True, timeout=10)
        equal(ran.returncode, 1)
        assert "# PgBouncer has no setting `pool_mod`: left out, did you mean `pool_mode`?" in ran.stdout, ran.stdout
        assert "`pool_mod`" in ran.stderr and "; 1 comment says what was left out or differs\n" in ran.stderr, ran.stderr
        ini.write(pool_mode="frob", default_pool_size="many")
        ran = subprocess.run([binary(), "import", ini.path], capture_output=True, text=True, timeout=10)
        equal((ran.returncode, ran.stdout), (1, ""))
        for key in ("pool_mode", "default_pool_size"):
            assert re.search(rf"{re.escape(str(ini.path))}:\d+: {key}: ", ran.stderr), ran.stderr
        ini.write()
        ran = subprocess.run([binary(), "import", ini.path], capture_output=True, text=True, timeout=10)
        equal(ran.returncode, 0)
        assert re.fullmatch(rf"hawser: {re.escape(str(ini.path))} became \d+ settings; nothing was left out\n", ran.stderr), ran.stderr


@pooler_only
def test_a_logfile_is_opened_again_by_a_reload(env):
    with env.pooler_with(logfile="own.log") as target:
        log, old = target.pooler.directory / "own.log", target.pooler.directory / "own.log.1"
        env.connect(target).value("select 1")
        until(lambda: "client logged in" in log.read_text(), "that the login is in the file")
        assert "client logged in" in target.pooler.text(), "standard error has the log as well"
        log.rename(old)
        target.pooler.reload()
        until(lambda: log.exists() and "configuration reloaded" in log.read_text(), "that the log goes on in the new file")
        assert "configuration reloaded" not in old.read_text()


@pooler_only
def test_application_name_add_host_has_the_clients_address_follow_its_name(env):
    with env.pooler_with(application_name_add_host=True) as target:
        client = env.connect(target, application_name="web")
        name = "select current_setting('application_name')"
        address, port = client.sock.getsockname()[:2]
        equal(client.value(name), f"web - {address}:{port}")
        equal(env.server().value("select count(*) from pg_stat_activity where application_name like 'web - %'"), "1")
        client.execute("set application_name to 'mine'")
        equal(client.value(name), "mine")


def database(env, name, **settings):
    """A [[database]] of its own, for env.pooler_with(append=...)."""
    lines = [f'name = "{name}"', f'servers = ["{env.cluster.address}"]', 'dbname = "app"',
             *(f'{key} = "{value}"' for key, value in settings.items())]
    return "\n[[database]]\n" + "\n".join(lines) + "\n"


@pooler_only
def test_a_databases_start_values_are_its_clients_unless_they_ask_for_others(env):
    start = {"client_encoding": "LATIN1", "datestyle": "German", "timezone": "Asia/Tokyo", "application_name": "pooled"}
    with env.pooler_with(append=database(env, "values", **start)) as target:
        shown = {"client_encoding": "LATIN1", "DateStyle": "German, DMY", "TimeZone": "Asia/Tokyo", "application_name": "pooled"}
        client = env.connect(target, database="values")
        for name, value in shown.items():
            equal((client.parameters[name], client.value(f"show {name}")), (value, value), name)
        own = env.connect(target, database="values", client_encoding="UTF8", timezone="UTC")
        equal((own.parameters["client_encoding"], own.value("show client_encoding"), own.value("show timezone")), ("UTF8", "UTF8", "UTC"))
        own.execute("reset timezone")
        equal(own.value("show timezone"), "UTC")
        equal(client.value("show timezone"), "Asia/Tokyo")
        equal(env.connect(target).value("show client_encoding"), "UTF8", "of another database")
        target.pooler.append = database(env, "values", timezone="Europe/Rome")
        target.pooler.write()
        target.pooler.reload()
        until(lambda: env.connect(target, database="values").value("show timezone") == "Europe/Rome", "the new value after a reload")


@pooler_only
def test_query_wait_timeout_of_a_database_and_of_a_user(env):
    append = database(env, "short", query_wait_timeout="4s", pool_size="1").replace('"1"', "1") + (
        '\n[[user]]\nname = "app_trust"\nquery_wait_timeout = "7s"\n')
    with env.pooler_with(append=append, idle_transaction_reserve=0, query_wait_timeout="30s") as target:
        for user, seconds in (("app", 4), ("app_trust", 7)):
            holder = env.connect(target, user=user, database="short")
            holder.execute("begin")
            waiter, started = env.connect(target, user=user, database="short"), time.monotonic()
            (error,) = waiter.attempt("select 1").errors
            waited = time.monotonic() - started
            assert seconds <= waited < seconds + 3 and "query_wait_timeout" in error["D"], (user, waited, error)
            holder.execute("commit")


@pooler_only
def test_query_timeout_of_a_pgbouncer_ini_bounds_the_wait_for_a_server_connection(env):
    """In PgBouncer it does; here the waiter waited for query_wait_timeout, two minutes."""
    with Ini(env, "wait") as ini:
        ini.write(default_pool_size=1, query_timeout=3)
        ini.run(binary(), "serve", "--pgbouncer", ini.path.name)
        with ini.target.connect(user="app_trust", database="app") as holder, ini.target.connect(user="app_trust", database="app") as waiter:
            holder.execute("begin")
            started = time.monotonic()
            (error,) = waiter.attempt("select 1").errors
            waited = time.monotonic() - started
            assert 3 <= waited < 15 and "query_wait_timeout" in error["D"], (waited, error)
            equal(holder.value("select 1"), "1", "a transaction that sits idle is not cut off")


@pooler_only
def test_login_notify_message_is_a_notice_at_each_login(env):
    with env.pooler_with(login_notify_message="This is a pooler.") as target:
        client = env.raw(target)
        client.send(m.startup({"user": "app_trust", "database": "app"}))
        notices = client.collect().notices
        equal([(notice["S"], notice["C"], notice["M"]) for notice in notices], [("NOTICE", "00000", "This is a pooler.")])
        equal(client.value("select 1"), "1")


@pooler_only
def test_an_empty_pool_is_forgotten_after_pool_idle_timeout_or_autodb_idle_timeout(env):
    append = database(env, "named")
    with env.pooler_with(append=append, server_idle_timeout="1s", pool_idle_timeout=0, autodb_idle_timeout="2s") as target:
        for name in ("named", "app"):
            env.connect(target, database=name).close()

        def pools():
            return {row["database"] for row in target.pooler.show("POOLS")} & {"named", "app"}
        equal(pools(), {"named", "app"})
        until(lambda: pools() == {"named"}, "that the one of `*` is forgotten, and no other", 15)
        target.pooler.write(pool_idle_timeout="1s")
        target.pooler.reload()
        until(lambda: pools() == set(), "that the other is, too", 15)


@pooler_only
def test_ciphers_and_curves_of_tls_are_those_that_are_allowed(env):
    def agreed(target, **limits):
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        context.maximum_version = limits.get("maximum", ssl.TLSVersion.TLSv1_3)
        if "ciphers" in limits:
            context.set_ciphers(limits["ciphers"])
        with socket.create_connection(("127.0.0.1", target.port), timeout=5) as sock:
            sock.sendall(b"\0\0\0\x08\x04\xd2\x16\x2f")
            equal(sock.recv(1), b"S")
            try:
                with context.wrap_socket(sock) as encrypted:
                    return encrypted.cipher()[0]
            except (ssl.SSLError, ConnectionError):
                return None
    with env.pooler_with(client_tls_ciphers="ECDHE+AES256", client_tls13_ciphers="TLS_CHACHA20_POLY1305_SHA256") as target:
        equal(agreed(target), "TLS_CHACHA20_POLY1305_SHA256")
        name = agreed(target, maximum=ssl.TLSVersion.TLSv1_2)
        assert name and name.endswith("AES256-GCM-SHA384"), name
        equal(agreed(target, maximum=ssl.TLSVersion.TLSv1_2, ciphers="ECDHE+CHACHA20:ECDHE+AES128"), None)
    with env.pooler_with(start=False, client_tls_ciphers="RC4-SHA") as target:
        ran = subprocess.run([binary(), "check", "-c", target.pooler.config], capture_output=True, text=True, timeout=20)
        assert ran.returncode and "`RC4-SHA` is not offered" in ran.stdout + ran.stderr, ran


@pooler_only
def test_an_imported_configuration_opens_no_more_server_connections_than_pgbouncer_would(env):
    """It once opened 30 for a pool_size of 15: idle_transaction_reserve came on top."""
    with Ini(env, "bounds") as ini:
        ini.write(default_pool_size=15, reserve_pool_size=3, reserve_pool_timeout=1, max_client_conn=100)
        ini.run(binary(), "serve", "--pgbouncer", ini.path.name)
        clients = [ini.target.connect(user="app_trust", database="app") for _ in range(30)]
        for client in clients:
            client.send(m.query("begin"))
        until(lambda: sum(client.pending() for client in clients) >= 18, "18 transactions", 20)
        time.sleep(2)  # the reserve has been open for longer than it takes to open another
        counted = env.server().value("select count(*) from pg_stat_activity where usename = 'app_trust' and state = 'idle in transaction'")
        equal((counted, sum(client.pending() for client in clients)), ("18", 18))
        for client in clients:
            client.close()


@pooler_only
def test_a_second_instance_goes_without_the_default_http_port_and_says_so(env):
    """It was refused: by a first instance, or by a process that was still ending."""
    with contextlib.ExitStack() as stack:
        taken = stack.enter_context(socket.socket())
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        with contextlib.suppress(OSError):  # or another process has it: as good
            taken.bind(("127.0.0.1", 9632))
            taken.listen()
        target = stack.enter_context(env.pooler_with(http_address=None))
        equal(env.connect(target).value("select 1"), "1")
        until(lambda: re.search(r"WARN.*9632", target.pooler.text()), "a warning that names the port")
        pooler = target.pooler
        ran = subprocess.run([binary(), "check", "-c", pooler.config], capture_output=True, text=True, timeout=30)
        assert re.search(r"cannot listen on 127\.0\.0\.1:9632 \(http_address\)", ran.stdout + ran.stderr), ran
        second = stack.enter_context(env.pooler_with(start=False, http_address="127.0.0.1:9632"))
        ran = subprocess.run([binary(), "serve", "-c", second.pooler.config], capture_output=True, text=True, timeout=30)
        assert ran.returncode == 1 and "http_address 127.0.0.1:9632" in ran.stderr, "one that asks for the port by itself"


@pooler_only
def test_abstract_unix_sockets_of_a_pgbouncer_ini_serve_clients_and_reach_servers(env):
    """`@name` was left out with a note, and a server by it was an error. The server is another Hawser."""
    name = f"@hawser-test-{os.getpid()}"

    def connect(port, **how):
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        sock.settimeout(10)
        sock.connect(f"\0{name[1:]}/.s.PGSQL.{port}")
        connection = Connection(sock)
        connection.send(m.startup({"user": "app_trust", "database": "app", **how}))
        return connection.login("", "app_trust")
    with Ini(env, "abstract") as near, Ini(env, "abstract-far") as far:
        near.write(unix_socket_dir=name)
        near.run(binary(), "serve", "--pgbouncer", near.path.name)
        far.databases = f"[databases]\n* = host={name} port={near.port}\n"
        far.write()
        far.run(binary(), "serve", "--pgbouncer", far.path.name)
        with connect(near.port) as client:
            equal(client.value("select 1"), "1")
            # The console knows its own uid by the socket, as of a file's.
            with connect(near.port, user="pgbouncer", database="pgbouncer") as console:
                clients = [dict(zip(["type", "user"], row)) for row in console.rows("SHOW CLIENTS")]
            assert {"type": "C", "user": "app_trust"} in clients, clients
        with far.target.connect(user="app_trust", database="app") as client:
            equal(client.value("select 2"), "2")
            (row,) = [row for row in far.show("DATABASES") if row[0] == "app"]
            equal(row[1:3], (name, str(near.port)), "host and port")
        ran = subprocess.run([binary(), "check", "--pgbouncer", near.path.name], capture_output=True, text=True, timeout=20,
                             cwd=near.directory)
        assert "no directory" not in ran.stdout + ran.stderr, ran
