"""Running it: reload, shutdown, health, metrics, check."""

import contextlib
import fcntl
import http.server
import json
import os
import pathlib
import pty
import re
import signal
import socket
import statistics
import struct
import subprocess
import tempfile
import termios
import threading
import time

from harness import messages as m
from harness.pooler import Pooler, binary
from harness.postgres import free_port
from harness.suite import Background, Skip, equal, limit, pooler_only, until
from harness.wire import ServerError

SAME_FOR_ALL_SERVERS = True
TAKES_SECONDS = 40


@pooler_only
def test_sighup_takes_a_good_file_and_drops_nobody(env):
    with env.pooler_with(pool_size=1, idle_transaction_reserve=0) as target:
        busy, idle = env.connect(target), env.connect(target, application_name="kept")
        busy.execute("begin; select 1")
        target.pooler.write(pool_size=3)
        target.pooler.reload()
        equal(idle.value("show application_name"), "kept")
        equal(busy.execute("select 2; commit").status, "I")


@pooler_only
def test_sighup_refuses_a_bad_file_and_keeps_the_old_one(env):
    with env.pooler_with() as target:
        client = env.connect(target)
        good = target.pooler.config.read_text()
        for bad in ("nonsense =", good.replace("pool_size", "pool_sise"), good.replace('"transaction"', '"sometimes"'), ""):
            target.pooler.config.write_text(bad)
            target.pooler.reload()
            equal(client.value("select 'old'"), "old")
            equal(env.connect(target).value("select 'new clients too'"), "new clients too")
        target.pooler.config.write_text(good)


@pooler_only
def test_sighup_takes_users_and_hba_rules(env):
    with env.pooler_with() as target:
        hba, users = target.pooler.directory / "pg_hba.conf", target.pooler.directory / "userlist.txt"
        users.write_text(users.read_text().replace('"app3" "third secret"', '"app3" "changed"'))
        hba.write_text("host all app2 all reject\n" + hba.read_text())
        target.pooler.reload()
        equal(env.connect(target, user="app3", secret="changed").value("select 1"), "1")
        for how in ({"user": "app3"}, {"user": "app2"}):
            try:
                env.connect(target, **how)
                raise AssertionError(f"logged in: {how}")
            except ServerError as error:
                assert error.sqlstate in ("28P01", "28000")


@pooler_only
def test_files_that_change_are_read_again_without_a_signal(env):
    """As Kubernetes changes a volume: `hawser.toml` and the users file are links into a directory, and a link to that is replaced."""
    with env.pooler_with(start=False, watch_files=True) as target:
        pooler = target.pooler
        for number in (1, 2):
            (pooler.directory / f"data{number}").mkdir()
        pooler.write()
        config, users = pooler.config, pooler.directory / "userlist.txt"
        first, second = ((pooler.directory / f"data{number}" / config.name, pooler.directory / f"data{number}" / users.name)
                         for number in (1, 2))
        for path, one, other, old, new in ((config, first[0], second[0], "pool_size = 5", "pool_size = 7"),
                                           (users, first[1], second[1], '"third secret"', '"changed"')):
            text = path.read_text()
            assert old in text, text
            one.write_text(text)
            other.write_text(text.replace(old, new))
            path.unlink()
            path.symlink_to(f"..data/{path.name}")
        current = pooler.directory / "..data"
        current.symlink_to("data1")
        pooler.start()
        kept = env.connect(target, application_name="kept")
        mark = pooler.log.stat().st_size
        time.sleep(2.5)  # two looks at the files
        assert "reload" not in pooler.text(mark), "nothing has changed"
        (pooler.directory / "..new").symlink_to("data2")
        os.rename(pooler.directory / "..new", current)
        until(lambda: "configuration reloaded" in pooler.text(mark), "it is read again", seconds=8)
        lines = pooler.text(mark)
        assert "files have changed" in lines and str(users) in lines and "pool_size: 5 -> 7" in lines, lines
        equal(env.connect(target, user="app3", secret="changed").value("select 1"), "1")
        equal(kept.value("show application_name"), "kept")
        # What is refused is said once, and the next change is taken.
        mark = pooler.log.stat().st_size
        good = second[0].read_text()
        second[0].write_text("nonsense =")
        until(lambda: "reload refused" in pooler.text(mark), "it is refused", seconds=8)
        time.sleep(2.5)  # two looks at the files
        equal(pooler.text(mark).count("reload refused"), 1)
        page = lambda: pooler.http("/metrics")[1]
        assert "hawser_last_reload_success 0" in page() and "hawser_fallbacks 1" in page(), "a refused reload is seen"
        refused = subprocess.run([binary(), "status", "--socket", pooler.directory / "hawser.sock"], capture_output=True, text=True,
                                 timeout=10)
        assert "the last reload was refused" in refused.stdout, refused.stdout
        second[0].write_text(good.replace("pool_size = 7", "pool_size = 8"))
        until(lambda: "pool_size: 7 -> 8" in pooler.text(mark), "the next change is taken", seconds=8)
        assert "hawser_last_reload_success 1" in page() and "hawser_fallbacks 0" in page()


@pooler_only
def test_a_file_that_the_rules_include_is_read_again_without_a_signal(env):
    with env.pooler_with(start=False, watch_files=True) as target:
        pooler = target.pooler
        hba, more, users = (pooler.directory / name for name in ("pg_hba.conf", "more.conf", "some.users"))
        hba.write_text("include more.conf\nhost all @some.users all reject\n" + hba.read_text())
        more.write_text("local all app2 reject\n")
        users.write_text("app3\n")
        pooler.start()
        env.connect(target, user="app2").close()
        mark = pooler.log.stat().st_size
        time.sleep(2.5)  # two looks at the files
        assert "reload" not in pooler.text(mark), "nothing has changed"
        for path, text, user in ((more, "host all app2 all reject\n", "app2"), (users, "app\n", "app")):
            mark = pooler.log.stat().st_size
            path.write_text(text)
            until(lambda: "configuration reloaded" in pooler.text(mark), f"{path.name} is read again", seconds=8)
            try:
                env.connect(target, user=user)
                raise AssertionError(f"{user} is let in")
            except ServerError as error:
                equal(error.sqlstate, "28000", user)


@pooler_only
def test_sighup_takes_a_new_certificate(env):
    with env.pooler_with(start=False) as target:
        copies = {}
        for kind in ("crt", "key"):
            copies[kind] = target.pooler.directory / f"own.{kind}"
            copies[kind].write_bytes(pathlib.Path(env.certificates.path(f"server.{kind}")).read_bytes())
        target.pooler.write(client_tls_cert_file="own.crt", client_tls_key_file="own.key")
        target.pooler.start()
        old = env.connect(target, tls=env.tls(), hostname="localhost")
        env.certificates.issue("server2", "localhost", "subjectAltName=DNS:localhost")
        for kind, copy in copies.items():
            copy.write_bytes(pathlib.Path(env.certificates.path(f"server2.{kind}")).read_bytes())
        target.pooler.reload()
        new = env.connect(target, tls=env.tls(), hostname="localhost")
        assert old.certificate != new.certificate, "the old certificate is still shown"
        equal((old.value("select 1"), new.value("select 1")), ("1", "1"))


@pooler_only
@limit(60)
def test_trap_26_reloads_under_load_cost_no_hiccup(env):
    """trap 26: 50 reloads under load cost a p99 of 160 to 200 ms."""
    with env.pooler_with() as target:
        def p99(reloads):
            stop, times = [], []

            def work():
                with target.connect() as client:
                    while not stop:
                        started = time.perf_counter()
                        client.value("select 1")
                        times.append(time.perf_counter() - started)
            clients = [Background(work) for _ in range(3)]
            steps = 0
            while steps < 25 or (len(times) < 200 and steps < 200):
                if reloads:
                    target.pooler.signal(signal.SIGHUP)
                time.sleep(0.03)
                steps += 1
            stop.append(True)
            for client in clients:
                client.join()
            return statistics.quantiles(times, n=100)[-1] * 1000
        # In turns, for whatever else the machine does: a reload that costs something costs it in each round.
        rounds = []
        for _ in range(4):
            rounds.append((p99(False), p99(True)))
            if rounds[-1][1] < 3 * rounds[-1][0] + 2:
                return
        raise AssertionError(f"p99 in ms, quiet and with reloads: {rounds}")


@pooler_only
def test_trap_26_sigterm_lets_open_transactions_finish(env):
    """trap 26: SIGTERM cut 8 of 8 open transactions."""
    with env.pooler_with(shutdown_timeout="10s", start=False, pool_size=8) as target:
        target.pooler.start()
        busy = [env.connect(target) for _ in range(8)]
        idle = env.connect(target)
        for client in busy:
            client.execute("begin; select 1")
        target.pooler.signal(signal.SIGTERM)
        until(lambda: "shutting down" in target.pooler.text(), "it is about to end")
        for number, client in enumerate(busy):
            equal(client.value(f"select {number}"), str(number))
            equal(client.execute("commit").tags, ["COMMIT"])
        for client in busy + [idle]:
            message = client.receive()
            assert message is None or message.sqlstate() == "57P01", message
        try:
            target.open(timeout=1).sock.close()
            listening = True
        except OSError:
            listening = False
        assert not listening or target.pooler.wait(2) == 0
        equal(target.pooler.wait(), 0)
        target.pooler.process = None


@pooler_only
def test_sigterm_ends_within_shutdown_timeout(env):
    with env.pooler_with(shutdown_timeout="1s", start=False) as target:
        target.pooler.start()
        client = env.connect(target)
        client.execute("begin; select 1")
        started = time.monotonic()
        target.pooler.signal(signal.SIGTERM)
        message = client.receive()
        assert message is None or message.sqlstate() == "57P01", message
        equal(target.pooler.wait(), 0)
        assert 0.8 < time.monotonic() - started < 5
        target.pooler.process = None
        env.cluster.wait_for_backends("state = 'idle in transaction'")


@pooler_only
def test_unix_socket_mode_and_removal(env):
    with env.pooler_with(start=False, unix_socket_mode="0700") as target:
        target.pooler.start()
        path = pathlib.Path(target.socket_dir) / f".s.PGSQL.{target.port}"
        equal(oct(path.stat().st_mode & 0o777), "0o700")
        target.pooler.signal(signal.SIGTERM)
        equal(target.pooler.wait(), 0)
        target.pooler.process = None
        assert not path.exists(), "the socket's file was left behind"


@pooler_only
def test_a_stale_socket_file_is_replaced_and_a_live_one_is_not(env):
    with env.pooler_with(start=False) as target:
        target.pooler.start()
        target.pooler.kill()
        target.pooler.process = None
        target.pooler.start()

        def served():
            try:
                return env.connect(target, host=target.socket_dir).value("select 1")
            except OSError:
                return None  # what was there is replaced behind the first address
        equal(until(served, "the unix socket"), "1")
        done = subprocess.run([binary(), "serve", "-c", str(target.pooler.config)], capture_output=True, text=True, timeout=10,
                              cwd=target.pooler.directory)
        equal(done.returncode, 1, "a second one on the same addresses")
        equal(env.connect(target, host=target.socket_dir).value("select 1"), "1")


@pooler_only
def test_healthz_and_readyz(env):
    equal(env.pooler.http("/healthz")[0], 200)
    env.connect().value("select 1")
    until(lambda: env.pooler.http("/readyz")[0] == 200, "ready")
    equal(env.pooler.http("/no-such-page")[0], 404)


@pooler_only
@limit(60)
def test_readyz_says_when_no_server_answers(env):
    with env.pooler_with(query_wait_timeout="1s") as target:
        env.connect(target).value("select 1")
        env.cluster.stop()
        try:
            client = env.connect(target, user="app_trust")
            client.attempt("select 1")
        except ServerError:
            pass
        finally:
            status = target.pooler.http("/readyz")[0]
            alive = target.pooler.http("/healthz")[0]
            env.cluster.start()
        equal((status, alive), (503, 200))
        equal(env.connect(target).value("select 1"), "1")
        until(lambda: target.pooler.http("/readyz")[0] == 200, "ready again", 10)


@pooler_only
def test_readyz_does_not_mind_a_database_that_a_server_does_not_have(env):
    append = f'[[database]]\nname = "absent"\nservers = ["127.0.0.1:{env.cluster.port}"]\n'
    with env.pooler_with(append, query_wait_timeout="1s", server_idle_timeout="1s") as target:
        until(lambda: target.pooler.http("/readyz")[0] == 200, "ready")
        with contextlib.suppress(ServerError):
            env.connect(target, database="absent", user="app_trust").attempt("select 1")
        equal(target.pooler.http("/readyz")[0], 200)


@pooler_only
def test_a_login_without_a_proof_does_not_hold_the_end_up(env):
    with env.pooler_with(shutdown_timeout="20s", start=False) as target:
        target.pooler.start()
        client = env.raw(target)
        client.send(m.startup({"user": "app", "database": "app"}))
        assert client.pending(5), "it is asked for a proof"
        target.pooler.signal(signal.SIGTERM)
        began = time.monotonic()
        equal(target.pooler.wait(), 0)
        assert time.monotonic() - began < 5
        target.pooler.process = None


@pooler_only
def test_metrics_are_in_prometheus_format_and_count(env):
    with env.pooler_with() as target:
        client = env.connect(target)
        for _ in range(5):
            client.value("select 1")

        def samples():
            status, text = target.pooler.http("/metrics")
            equal(status, 200)
            found = {}
            for line in text.splitlines():
                if line.startswith("#"):
                    assert re.match(r"# (HELP|TYPE|UNIT|EOF)", line), line
                    continue
                match = re.fullmatch(r"([a-z_][a-z0-9_]*)(\{.*\})? (\S+)( .*)?", line)
                assert match, f"not Prometheus' format: {line}"
                assert match[1].startswith(("hawser_", "process_")), line
                found.setdefault(match[1], []).append((match[2] or "", float(match[3])))
            return found
        first = samples()
        histograms = [name for name in first if name.endswith("_bucket")]
        for kind in ("wait", "transaction", "query"):
            assert any(kind in name for name in histograms), f"no histogram of {kind} times: {histograms}"
        assert any('database="app"' in labels and 'user="app"' in labels for labels, _ in first[histograms[0]]), first[histograms[0]][:3]

        def queries(found):
            return sum(value for name in found if "query" in name and name.endswith("_count") for _, value in found[name])
        before = queries(first)
        for _ in range(7):
            client.value("select 1")
        until(lambda: queries(samples()) - before >= 7, "7 more queries counted")


@pooler_only
def test_http_bears_nonsense(env):
    for data in (b"\xff" * 1000, b"GET", b"GET /metrics HTTP/9.9\r\n\r\n",
                 b"POST /metrics HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999999\r\n\r\n",
                 b"GET /" + b"x" * 100000 + b" HTTP/1.1\r\n\r\n"):
        with socket.create_connection(("127.0.0.1", env.pooler.http_port), timeout=5) as sock:
            try:
                sock.sendall(data)
                sock.shutdown(socket.SHUT_WR)
                while sock.recv(65536):
                    pass
            except OSError:
                pass
    equal(env.pooler.http("/healthz")[0], 200)
    equal(env.connect().value("select 1"), "1")


@pooler_only
def test_check_says_what_is_wrong_and_where(env):
    pooler = Pooler(f"{env.directory}/checked", env.cluster)
    good = pooler.config.read_text()

    def check():
        done = subprocess.run([binary(), "check", "-c", str(pooler.config)], capture_output=True, text=True, timeout=20,
                              cwd=pooler.directory)
        return done.returncode, done.stdout + done.stderr
    code, words = check()
    equal(code, 0, words)
    # Without -c: what stands where `serve` looks.
    done = subprocess.run([binary(), "check"], capture_output=True, text=True, timeout=20, cwd=pooler.directory)
    equal((done.returncode, done.stdout), (0, words.replace(f"{pooler.directory}/", "")), done.stderr)
    elsewhere = subprocess.run([binary(), "check"], capture_output=True, text=True, timeout=20, cwd="/")
    if "there is no configuration" in elsewhere.stderr:
        assert "hawser.toml" in elsewhere.stderr, elsewhere.stderr
        serve = subprocess.run([binary(), "serve"], capture_output=True, text=True, timeout=20, cwd="/")
        equal((serve.returncode, serve.stderr.replace(" or --server URL", "")), (1, elsewhere.stderr))
    for wrong, line_of, name in (("pool_sise = 3", "pool_sise", "pool_size"), ('pool_mode = "sometimes"', "sometimes", "session"),
                                 ('query_wait_timeout = "5 parsecs"', "parsecs", "query_wait_timeout")):
        key = wrong.split(" ")[0].replace("pool_sise", "pool_size")
        text = re.sub(rf"(?m)^{key} = .*$", wrong, good)
        pooler.config.write_text(text)
        code, words = check()
        equal(code, 1, wrong)
        line = next(number for number, content in enumerate(text.splitlines(), 1) if line_of in content)
        assert re.search(rf"hawser\.toml:{line}:\d+", words), f"no file:line:column of line {line}: {words}"
        assert name in words, f"{name} is not named: {words}"


@pooler_only
def test_check_logs_in_and_tells_peer_from_a_wrong_password(env):
    def entry(name, user, password, server=env.cluster.address):
        return f'\n[[database]]\nname = "{name}"\ndbname = "app"\nservers = ["{server}"]\nuser = "{user}"\npassword = "{password}"\n'
    entries = entry("right", "app", env.target.secrets["app"]) + entry("wrong", "app2", "mistyped",
                                                                       f"127.0.0.1:{env.cluster.port}") + entry("system", "app_peer_other",
                                                                           "asked by none")
    entries += entry("unverified", "app3", env.target.secrets["app3"], f"127.0.0.1:{env.cluster.port}")
    entries += f'server_tls_sslmode = "verify-full"\nserver_tls_ca_file = "{env.cluster.certificates.path("other-ca.crt")}"\n'
    pooler = Pooler(tempfile.mkdtemp(dir=env.directory) + "/logs-in", env.cluster, append=entries)

    def check(*options):
        done = subprocess.run([binary(), "check", "-c", str(pooler.config), *options], capture_output=True, text=True, timeout=60)
        return done.returncode, done.stdout

    def line_with(words):
        code, said = check()
        (line,) = [line for line in said.splitlines() if words in line]
        equal(code, 0, said)
        return line
    assert line_with('user "app" can log in to').startswith("ok"), check()
    unverified = line_with('"unverified"')
    assert unverified.startswith("warn") and "TLS with server" in unverified and "see docs/security.md" in unverified, unverified
    wrong, system = line_with('"wrong"'), line_with('"system"')
    assert wrong.startswith("warn") and "the password is wrong, or there is no such role" in wrong, wrong
    assert system.startswith("warn") and "`peer` or `ident`" in system and "127.0.0.1:5432" in system, system
    # What the pools may open, and what the server has: 200, of which 3 are reserved.
    assert line_with("max_connections = 200").startswith("ok"), check()
    pooler.write(pool_size=150)
    assert line_with("max_connections = 200").startswith("warn"), check()
    pooler.write(max_server_connections_per_server=190)
    assert line_with("max_connections = 200").startswith("ok"), check()
    (pooler.directory / "userlist.txt").write_text("")
    assert line_with("has no user").startswith("warn"), check()
    # Of two servers, the one that has let the user in is named.
    pooler.append = entry("second", "app", env.target.secrets["app"], f'127.0.0.1:{free_port()}", "{env.cluster.address}')
    pooler.write()
    socket = f"{env.cluster.socket_dir}/.s.PGSQL.{env.cluster.port}"
    equal(line_with('user "app" can log in to'), f'ok     user "app" can log in to {socket}')


@pooler_only
def test_check_knows_the_running_hawser_and_who_else_has_an_address(env):
    def check(pooler, *options):
        done = subprocess.run([binary(), "check", "-c", str(pooler.config), *options], capture_output=True, text=True, timeout=60,
                              cwd=pooler.directory)
        return done.returncode, done.stdout
    with env.pooler_with() as target:
        pooler = target.pooler
        code, said = check(pooler)
        for address in (f"127.0.0.1:{pooler.port}", f"[::1]:{pooler.port}", f"http_address 127.0.0.1:{pooler.http_port}"):
            assert f"ok     {address} is the running Hawser's (process {pooler.process.pid})" in said, said
        assert " is in use" not in said and "runs as root" not in said, said
        if os.geteuid() == 0:
            done = subprocess.run([binary(), "status", "--socket", str(pooler.directory / "hawser.sock")], capture_output=True, text=True,
                                  preexec_fn=lambda: os.setuid(65534), timeout=60)
            equal(done.returncode, 1)
            assert "may not open the socket" in done.stderr and "use sudo" in done.stderr, done.stderr
        # The same file by its name in the environment: `reload` and `stop` find the process by it.
        named = {**os.environ, "HAWSER_CONFIG": str(pooler.config)}
        in_order = pooler.config.read_text()
        pooler.config.write_text(f"{in_order}\n[nonsense]\n")
        done = subprocess.run([binary(), "reload", "--socket", str(pooler.directory / "hawser.sock")], capture_output=True, text=True,
                              timeout=60)
        equal(done.returncode, 1)
        assert "reload refused" in done.stderr and "nonsense" in done.stderr, done.stderr
        pooler.config.write_text(in_order)
        pooler.write(pool_size=3, loops=1)
        done = subprocess.run([binary(), "reload"], env=named, capture_output=True, text=True, timeout=60)
        equal((done.returncode, done.stderr), (0, "hawser: reloaded, except for what needs a restart: loops\n"))
        assert "pool_size" in pooler.text(), "reload has not waited for the outcome"
        subprocess.run([binary(), "stop"], env=named, check=True, timeout=60)
        equal(pooler.wait(), 0)
        pooler.process = None
        with socket.socket() as other:
            other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            other.bind(("127.0.0.1", pooler.port))
            other.listen()
            code, said = check(pooler)
            assert f"warn   127.0.0.1:{pooler.port} is in use by " in said and f"(process {os.getpid()})" in said, said
            equal(code, 0, said)
            assert re.search(r"^0 errors, [1-9]\d* warnings?$", said.splitlines()[-1]), said
            equal(check(pooler, "--strict")[0], 1)


@pooler_only
def test_check_as_another_user_sees_what_that_user_may(env):
    if os.geteuid() != 0:
        raise Skip("only root can become another user")
    pooler = Pooler(tempfile.mkdtemp(dir=env.directory) + "/as-other", env.cluster)
    place = pooler.directory
    pooler.write(logfile=str(place / "hawser.log"), pidfile=str(place / "hawser.pid"))
    for path in (place, *place.parents):
        if path.stat().st_uid == 0 and path != pathlib.Path("/") and env.directory in str(path):
            path.chmod(0o755)
    pooler.config.chmod(0o644)
    (place / "userlist.txt").chmod(0o600)

    def check(*options):
        done = subprocess.run([binary(), "check", "-c", str(pooler.config), *options], capture_output=True, text=True, timeout=60, cwd="/")
        return done.returncode, done.stdout + done.stderr
    equal(check()[0], 0, check()[1])
    code, said = check("--as", "nobody")
    equal(code, 1, said)
    assert "userlist.txt" in said and "Permission denied" in said, said
    for name in ("logfile", "pidfile", "control_socket"):
        assert re.search(rf"^error  {name}: .*Permission denied", said, re.MULTILINE), f"{name}: {said}"
    # Root sees whose socket it is, and the user does not.
    with socket.create_server(("127.0.0.1", pooler.port)):
        assert f"127.0.0.1:{pooler.port} is in use by " in (said := check("--as", "nobody")[1]) and f"(process {os.getpid()})" in said, said
    code, said = check("--as", "no_such_user")
    equal(code, 1, said)
    assert 'there is no user "no_such_user"' in said, said


@pooler_only
def test_a_url_that_cannot_be_used_is_said_at_once(env):
    secret = env.target.secrets["app2"].replace(" ", "%20").replace('"', "%22")
    for url, words in ((f"postgres://app2:mistyped@127.0.0.1:{env.cluster.port}", "the password is wrong, or there is no such role"),
                       (f"postgres://app2:{secret}@no-such-host.invalid:5432", "no-such-host.invalid")):
        done = subprocess.run([binary(), "check", "--server", url], capture_output=True, text=True, timeout=60)
        assert words in done.stdout and "warn" in done.stdout, done.stdout
        with tempfile.TemporaryFile("w+") as log:
            served = subprocess.Popen([binary(), "serve", "--listen", f"127.0.0.1:{free_port()}", "--server", url], stderr=log, stdout=log)
            try:
                def said():
                    log.seek(0)
                    return log.read()
                until(lambda: "the server cannot be used" in said(), "the warning")
                assert words in said(), said()
            finally:
                served.terminate()
                served.wait()


@pooler_only
def test_check_names_authorities_whose_keys_are_too_short(env):
    """OpenSSL may take them; ring verifies nothing that they have signed."""
    with env.pooler_with(start=False) as target:
        directory = target.pooler.directory
        subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:1024", "-nodes", "-days", "2", "-subj", "/CN=short",
                        "-keyout", directory / "short.key", "-out", directory / "short.crt"], check=True, capture_output=True)
        target.pooler.write(server_tls_sslmode="verify-ca", server_tls_ca_file="short.crt")
        done = subprocess.run([binary(), "check", "-c", str(target.pooler.config)], capture_output=True, text=True, timeout=60,
                              cwd=directory)
        lines = [line for line in done.stdout.splitlines() if "1024 bits" in line]
        assert len(lines) == 1 and lines[0].startswith("warn") and "short.crt" in lines[0], done.stdout
        target.pooler.start()


@pooler_only
def test_check_names_what_cannot_be_known_of_a_database(env):
    """Of sessions whose server has not the extension: functions that change them, which no statement's text shows."""
    env.server().execute("drop database if exists looked_at")
    env.server().execute("create database looked_at")  # other tests leave functions in theirs
    entry = (f'\n[[database]]\nname = "looked"\ndbname = "looked_at"\nservers = ["{env.cluster.address}"]\nuser = "app"\n'
             f'password = "{env.target.secrets["app"]}"\n')
    pooler = Pooler(tempfile.mkdtemp(dir=env.directory) + "/looked", env.cluster, append=entry)

    def check():
        done = subprocess.run([binary(), "check", "-c", str(pooler.config)], capture_output=True, text=True, timeout=20)
        equal(done.returncode, 0, done.stdout)
        return [line for line in done.stdout.splitlines() if '"looked"' in line]
    (line,) = check()
    assert line.startswith("ok") and "no function changes session state" in line, line
    owner = env.server("looked_at")
    owner.execute("""
        create schema census;
        create function census.sets() returns text language sql as $$ select set_config('my.user', 'x', false) $$;
        create function census.makes() returns void language plpgsql as $$ begin create temp table t (a int); end $$;
        create function census.updates() returns void language plpgsql as
        $$ begin update pg_class set relname = ''; set local work_mem = '1MB'; end $$;
        create function census."Puts" (w text) returns void language plpgsql as $$ begin execute w; end $$""")
    try:
        lines = check()
        equal(len(lines), 2, lines)
        assert all("the extension `hawser` is not loaded" in line for line in lines), lines
        assert lines[0].startswith("ok") and lines[1].startswith("warn"), lines
        assert "Hawser reads in the source what 2 functions do to the session: census.makes, census.sets" in lines[0], lines
        assert "1 function builds statements (EXECUTE), of which Hawser sees only string constants" in lines[1], lines
        with_plans = pooler.config.read_text()
        pooler.config.write_text(with_plans.replace("[pool]\n", "[pool]\nfunction_census = false\n"))
        lines = check()
        assert all(line.startswith("warn") for line in lines), lines
        said = "what 2 functions do to the session is lost, unless the statement's text shows it: census.makes, census.sets"
        assert said in lines[0], lines
        assert "of which Hawser sees nothing" in lines[1], lines
        pooler.config.write_text(with_plans.replace("[pool]\n", "[pool]\ncustom_settings_in_plans = false\n"))
        assert "no IMMUTABLE function has a source that reads a setting" in check()[-1], check()
        owner.execute("create function census.who() returns text immutable language sql as $$ select current_setting('my.user') $$")
        assert "and 1 function may: census.who. Declare them STABLE" in check()[-1], check()
        pooler.config.write_text(with_plans)
        pooler.config.write_text(pooler.config.read_text().replace('user = "app"', 'user = "nobody"'))
        lines = check()
        equal(len(lines), 1, lines)
        line = lines[0]
        assert line.startswith("warn") and 'user "nobody" cannot log in' in line, line
    finally:
        owner.execute("drop schema census cascade")


@pooler_only
def test_logs_as_json_are_one_object_a_line(env):
    with env.pooler_with(start=False, format="json") as target:
        target.pooler.start()
        env.connect(target).value("select 1")
        lines = [line for line in target.pooler.text().splitlines() if line.strip()]
        assert lines
        for line in lines:
            assert isinstance(json.loads(line), dict), line


@pooler_only
def test_secrets_and_statements_are_never_logged(env):
    with env.pooler_with() as target:
        client = env.connect(target)
        client.attempt("select 'a very secret literal', 1/0")
        client.exchange(m.run("select $1::text", ["a very secret parameter"]), m.SYNC)
        client.attempt("alter role nobody_has_this_name password 'a very secret password'")
        client.vanish()
        time.sleep(0.2)  # its end has been logged
        text = target.pooler.text()
        for secret in ("a very secret", *filter(None, target.secrets.values())):
            assert secret not in text, f"{secret!r} is in the log"


@pooler_only
def test_status_prints_what_runs(env):
    client = env.connect()
    client.execute("begin; select 1")
    done = subprocess.run([binary(), "status", "-c", str(env.pooler.config)], capture_output=True, text=True, timeout=10,
                          cwd=env.pooler.directory)
    equal(done.returncode, 0, done.stderr)
    for what in (rf"^hawser \S+, process {env.pooler.process.pid}: ready$", r"^  clients +[1-9]\d* of \d+$", r"^ *app +app +"):
        assert re.search(f"(?m){what}", done.stdout), f"no {what}: {done.stdout}"


@pooler_only
def test_top_shows_pools_in_a_terminal_and_leaves_it_as_it_was(env):
    with env.pooler_with(pool_size=1, idle_transaction_reserve=0) as target:
        busy, waits = env.connect(target), env.connect(target)
        busy.execute("begin; select 1")
        waits.send(m.query("select 2"))
        command = [binary(), "top", "--socket", str(target.pooler.directory / "hawser.sock")]
        piped = subprocess.run(command, capture_output=True, text=True, timeout=10)
        equal((piped.returncode, piped.stdout), (1, ""))
        assert "hawser status" in piped.stderr, piped.stderr
        near, far = pty.openpty()
        fcntl.ioctl(far, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
        before = termios.tcgetattr(far)
        top = subprocess.Popen(command, stdin=far, stdout=far, stderr=far)
        seen = b""
        end = time.monotonic() + 15
        try:
            # Of a screen's lines only what is no space is written, each piece with its place.
            space = r"(?: +|\x1b\[8;\d+H)"
            wanted = space.join([r"waiting\x1b\[5;\d+H1\x1b.*app/app", "2", "1", r"\d.*q quit"]).encode()
            while not re.search(wanted, seen, re.DOTALL):
                assert time.monotonic() < end, seen
                seen += os.read(near, 65536)
            os.write(near, b"q")
            equal(top.wait(10), 0)
        finally:
            top.kill()
        equal(termios.tcgetattr(far), before)
        os.close(far)
        os.close(near)
        busy.execute("commit")
        equal(waits.collect().value, "2")


@pooler_only
def test_the_dashboard_shows_pools_rates_and_errors_in_words(env):
    with env.pooler_with(pool_size=1) as target:
        holds, pins = env.connect(target), env.connect(target)
        holds.execute("begin")
        pins.execute("create temporary table dashboard_t (i int)")
        stranger = env.raw(target)
        with contextlib.suppress(ServerError):
            stranger.send(m.startup({"user": "app", "database": "app"}))
            stranger.login("wrong", "app")
        page = ""

        def cells():
            nonlocal page
            pins.value("select 1")
            page = target.pooler.http("/")[1]
            return dict(re.findall(r'<td data-of="([^"]+)">([^<]*)', page))
        until(lambda: cells().get("queries/s", "0") != "0" and "<b>0</b>" in page, "a rate is there")
        shown = cells()
        equal({name: shown[name] for name in ("database", "user", "clients", "waiting", "server connections", "pinned")},
              {"database": "app", "user": "app", "clients": "2", "waiting": "0", "server connections": "1 + 1", "pinned": "1"})
        equal(len(re.findall("<svg ", page)), 6)
        assert "<dt>login refused (class 28)</dt><dd>1</dd>" in page, page
        assert "<script" not in page and not re.search(r'(?:src|url)\s*[=(]', page), "assets of elsewhere"
        holds.execute("commit")


@pooler_only
@limit(60)
def test_demo_stays_on_one_screen_with_the_dashboards_address_at_its_foot(env):
    near, far = pty.openpty()
    fcntl.ioctl(far, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    demo = subprocess.Popen([binary(), "demo", "--clients", "4", "--seconds", "2"], stdin=far, stdout=far, stderr=far,
                            env={**os.environ, "PG_BIN": str(env.cluster.bin)})
    os.close(far)
    seen = b""
    try:
        with contextlib.suppress(OSError):  # EIO: the other end is closed
            while chunk := os.read(near, 65536):
                seen += chunk
        equal(demo.wait(10), 0, seen.decode())
    finally:
        demo.kill()
        demo.wait()
        os.close(near)
    screens = re.split(r"\x1b\[10A", seen.decode())
    assert len(screens) > 1, f"nothing was drawn twice: {seen}"
    for screen in screens[1:]:
        lines = screen.replace("\x1b[K", "").splitlines()
        assert lines[1].startswith("transactions/s") and len(lines[9]) <= 80, screen
        assert re.fullmatch(r"the dashboard +http://127[.]0[.]0[.]1:\d+/", lines[9]), screen


@pooler_only
@limit(120)
def test_demo_shows_a_bad_query_its_limit_and_a_failover_without_an_error(env):
    said = subprocess.run([binary(), "demo", "--trouble", "--clients", "10", "--pool-size", "4", "--seconds", "12"],
                          capture_output=True, text=True, env={**os.environ, "PG_BIN": str(env.cluster.bin)})
    equal(said.returncode, 0, said.stdout + said.stderr)
    told = [line for line in said.stdout.splitlines() if line.startswith("---")]
    steps = [r"watch it: hawser top --socket \S+", r"8 clients begin to run: SELECT sum", r"hawser top: load [\d.]+ .*select sum",
             r"hawser doctor: .*select sum", r"hawser=# RULE ADD trouble DIGEST [0-9a-f]{16} MAX_RUNNING 1", r"hawser=# RULE DROP",
             r"hawser=# SWITCHOVER demo", r"\$ pg_ctl stop -m fast", r"\$ pg_ctl promote", r"another server is the primary"]
    for step, line in zip(steps, told, strict=True):
        assert re.match(f"--- {step}", line), (step, line)
    rates = re.search(r"transactions/s: ([\d,]+) before, ([\d,]+) with the bad query, ([\d,]+) once it is limited; "
                      r"failover: 0 errors, the longest transaction \S+ m?s", said.stdout)
    before, troubled, limited = (int(rate.replace(",", "")) for rate in rates.groups())
    assert before > 2 * troubled < limited, rates[0]


@pooler_only
def test_idle_it_uses_no_cpu(env):
    for _ in range(20):
        env.connect().value("select 1")
    time.sleep(0.3)  # what logins leave to do is done
    before = env.pooler.cpu_seconds()
    time.sleep(2)  # idle
    used = env.pooler.cpu_seconds() - before
    assert used <= 0.05, f"{used:.2f} s of CPU in 2 s of idleness"


@pooler_only
def test_connections_leave_nothing_behind(env):
    """Files and memory after 500 connections, in every way to end."""
    def visit(number):
        client = env.target.connect(user="app_trust")
        client.value("select 1")
        (client.close if number % 2 else client.vanish)()
    for number in range(100):
        visit(number)
    time.sleep(0.3)  # what ended is closed
    files, memory = env.pooler.open_files(), env.pooler.rss_bytes()
    for number in range(500):
        visit(number)
    until(lambda: env.pooler.open_files() <= files, "descriptors closed")
    grown = env.pooler.rss_bytes() - memory
    assert grown < 4 << 20, f"{grown >> 10} KiB more"


@pooler_only
@limit(60)
def test_serve_without_a_file(env):
    """`serve --server URL`: clients log in as the URL's user with its password."""
    port = free_port()
    secret = "third%20secret"
    with open(f"{env.directory}/no-file.log", "wb") as log:
        process = subprocess.Popen([binary(), "serve", "--listen", f"127.0.0.1:{port}",
                                    "--server", f"postgres://app3:{secret}@127.0.0.1:{env.cluster.port}/app"],
                                   stdout=log, stderr=log, cwd=env.directory, env={**os.environ, "HOME": str(env.directory)})
    try:
        target = type(env.target)(port, "", env.target.secrets)

        def served():
            try:
                with target.connect(user="app3") as client:
                    return client.value("select session_user")
            except OSError:
                assert process.poll() is None, pathlib.Path(f"{env.directory}/no-file.log").read_text()
                return None
        equal(until(served, "serving"), "app3")
    finally:
        process.terminate()
        process.wait(10)


@pooler_only
def test_options_go_before_the_file_and_stay_after_a_reload(env):
    with env.pooler_with(start=False, servers=["127.0.0.1:1"], pool_size=5) as target:
        pooler = target.pooler
        wanted = free_port()
        pooler.options = ["--listen", f"127.0.0.1:{wanted}", "--pool-size", "2",
                          "--server", f"postgres://app:app%27s%20secret@127.0.0.1:{env.cluster.port}?sslmode=disable"]
        target.port = wanted
        pooler.start()

        def sizes():
            clients = [env.connect(target) for _ in range(4)]
            for client in clients:
                client.send(m.query("select pg_sleep(0.3)"))
            time.sleep(0.15)  # all that may are at work
            most = len(env.cluster.backends("usename = 'app' and query like '%pg_sleep%' and state = 'active'"))
            for client in clients:
                client.collect()
            return most
        equal(sizes(), 2, "backends at work")
        pooler.write(servers=["127.0.0.1:2"], pool_size=4, query_wait_timeout="3s")
        pooler.reload()
        equal(sizes(), 2, "backends at work after a reload")
        console = env.connect(target, user="admin", database="hawser")
        shown = {row[0]: row[1] for row in console.rows("show config")}
        equal((shown["listen_addr"], shown["default_pool_size"], shown["query_wait_timeout"]), (f"127.0.0.1:{wanted}", "2", "3"))


@pooler_only
def test_the_control_socket_goes_with_its_process_alone(env):
    with env.pooler_with() as target:
        socket_file = target.pooler.directory / "hawser.sock"
        until(socket_file.exists, "the control socket")
        target.pooler.stop()
        assert not socket_file.exists(), "left behind"
        target.pooler.start()
        until(socket_file.exists, "the control socket")
        socket_file.unlink()
        socket_file.write_text("another's")
        listening = target.pooler.directory / f".s.PGSQL.{target.port}"
        listening.unlink()
        listening.write_text("another's")
        target.pooler.stop()
        equal([socket_file.read_text(), listening.read_text()], ["another's"] * 2)
        socket_file.unlink()
        listening.unlink()
        # What a killed process leaves is no obstacle.
        target.pooler.start()
        until(lambda: socket_file.exists() and listening.exists(), "both sockets")
        target.pooler.kill()
        assert socket_file.exists() and listening.exists()
        target.pooler.start()

        def served():
            try:
                return env.connect(target, host=target.socket_dir).value("select 1")
            except OSError:
                return None  # what was there is replaced behind the first address
        equal(until(served, "the unix socket"), "1")
        equal(subprocess.run([binary(), "status", "--socket", str(socket_file)], capture_output=True).returncode, 0)


@pooler_only
def test_errors_are_counted_by_class_and_servers_are_not(env):
    with env.pooler_with(pool_size=1, query_wait_timeout="1s", idle_transaction_timeout="1s", idle_transaction_reserve=0,
                         max_packet_size=10_000) as target:
        def counted():
            _, body = target.pooler.http("/metrics")
            return {name: int(count) for name, count in re.findall(r'hawser_errors_total\{class="(..)"\} (\d+)', body)}
        equal(counted(), {})
        client = env.connect(target)
        for wrong in ("select 1 / 0", "selec", "select no_such_column"):
            client.attempt(wrong)
        equal(counted(), {}, "the server's errors")
        equal(client.attempt("x" * 20_000).sqlstate, "54000")
        try:
            env.connect(target, secret="wrong")
        except ServerError as error:
            equal(error.sqlstate, "28P01")
        holder, waiting = env.connect(target), env.connect(target)
        holder.send(m.query("begin; select pg_sleep(2.5)"))
        env.cluster.wait_for_backends("query like '%pg_sleep(2.5)' and state = 'active'", 1)
        equal(waiting.attempt("select 1").sqlstate, "53300")
        holder.collect()
        equal(holder.receive().sqlstate(), "25P03")
        try:
            env.connect(target, database="no_such_database")
        except ServerError as error:
            equal(error.sqlstate, "3D000")
        equal(counted(), {"25": 1, "28": 1, "53": 1, "54": 1})


def thread_times(pid):
    """{name: (nice values, nanoseconds on a processor)} of a process's threads."""
    found = {}
    for task in pathlib.Path(f"/proc/{pid}/task").iterdir():
        name = (task / "comm").read_text().strip()
        nice = int((task / "stat").read_text().rsplit(")", 1)[1].split()[16])
        spent = int((task / "schedstat").read_text().split()[0])
        values, before = found.get(name, (set(), 0))
        found[name] = (values | {nice}, before + spent)
    return found


@pooler_only
def test_control_work_stands_behind_no_login(env):
    """Server connections are opened, HTTP and the console served by a thread of the loops' priority, not among the logins."""
    with env.pooler_with(pool_size=1) as target:
        client, admin = env.connect(target), env.connect(target, user="admin", database="hawser", tls=env.tls(), hostname="localhost")
        client.value("select 1")
        time.sleep(1)  # what the start leaves to do is done
        pid = target.pooler.process.pid
        before = thread_times(pid)
        for _ in range(20):
            equal(target.pooler.http("/healthz")[0], 200)
            admin.execute("show pools")
            admin.execute("reconnect")
            client.value("select 1")
        after = thread_times(pid)
        (loops,) = after["loop-0"][0]
        equal(after["control"][0], {loops})
        assert min(after["login"][0]) > loops, after
        spent = {name: after[name][1] - before[name][1] for name in ("control", "login")}
        assert spent["login"] < 0.1 * spent["control"], spent


@pooler_only
def test_slow_transactions_are_logged_with_their_wait(env):
    with env.pooler_with(pool_size=1, idle_transaction_reserve=0, log_min_duration="300ms") as target:
        first, second = env.connect(target), env.connect(target)
        first.execute("begin; select 1")
        second.send(m.query("select 2 /* not for the log */"))
        time.sleep(0.5)  # longer than log_min_duration
        first.execute("commit")
        equal(second.collect().value, "2")
        first.value("select 3")

        def slow():
            return [line for line in target.pooler.text().splitlines() if "slow transaction" in line]
        until(lambda: len(slow()) >= 2, "two slow transactions")
        with_wait = [line for line in slow() if "wait_ms=0.0 " not in line]
        equal((len(slow()), len(with_wait)), (2, 1), "one has waited, one has kept others waiting")
        (wait,) = re.findall(r"wait_ms=([0-9.]+)", with_wait[0])
        assert float(wait) >= 400, with_wait
        for line in slow():
            assert 'database="app" user="app"' in line and 'address="127.0.0.1"' in line and "duration_ms=" in line, line
        assert "not for the log" not in target.pooler.text()
        target.pooler.write(log_min_duration="0")
        target.pooler.reload()

        def logs_none():
            before = len(slow())
            first.value("select pg_sleep(0.4)")
            return len(slow()) == before
        until(logs_none, "the reload turns it off")  # the loops take it a moment later


class Collector(http.server.BaseHTTPRequestHandler):
    """Of OpenTelemetry: keeps what is sent."""

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.requests.append((self.path, self.headers["Content-Type"], body))
        self.send_response(self.server.answers)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_):
        pass


@pooler_only
def test_slow_transactions_go_to_a_collector_that_none_waits_for(env):
    port = free_port()
    with env.pooler_with(pool_size=1, idle_transaction_reserve=0, log_min_duration="200ms",
                         otlp_endpoint=f"http://127.0.0.1:{port}/v1/traces") as target:
        first, second = env.connect(target), env.connect(target)

        def slow():
            first.execute("begin; select 1")
            second.send(m.query("select 'not for the collector'"))
            time.sleep(0.3)  # longer than log_min_duration
            first.execute("commit")
            second.collect()

        slow()  # nobody listens there yet
        until(lambda: "spans of slow transactions are lost" in target.pooler.text(), "it is said", seconds=15)
        with http.server.ThreadingHTTPServer(("127.0.0.1", port), Collector) as collector:
            collector.requests, collector.answers = [], 200
            threading.Thread(target=collector.serve_forever, daemon=True).start()
            slow()
            until(lambda: collector.requests, "the collector has it", seconds=15)
            path, kind, body = collector.requests[0]
            equal((path, kind), ("/v1/traces", "application/x-protobuf"))
            for word in (b"transaction", b"wait for a server connection", b"hawser", b"postgresql", b"app", b"127.0.0.1"):
                assert word in body, (word, body)
            assert b"not for the collector" not in body
            collector.shutdown()
        equal(target.pooler.text().count("spans of slow transactions are lost"), 1)


@pooler_only
def test_a_slow_transaction_is_within_the_span_that_its_client_names(env):
    def value(number):
        return f"00-{number:02x}" + f"{number:02x}" * 15 + "-" + f"{number:02x}" * 8 + "-01"

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Collector) as collector:
        collector.requests, collector.answers = [], 200
        threading.Thread(target=collector.serve_forever, daemon=True).start()
        with env.pooler_with(log_min_duration="1ms", otlp_endpoint=f"http://127.0.0.1:{collector.server_port}/v1/traces") as target:
            client, named = env.connect(target), env.connect(target, application_name=f"web {value(0xa4)}")
            client.execute(f"select pg_sleep(0.01) /*traceparent='{value(0xa1)}'*/")
            client.exchange(m.run(f"select pg_sleep(0.01) /*db_driver='x',traceparent='{value(0xa2)}'*/"), m.SYNC)
            client.execute("begin")
            client.execute(f"select pg_sleep(0.01) /*traceparent='{value(0xa3)}'*/")
            client.execute("commit")
            named.execute("select pg_sleep(0.01)")
            client.execute("select pg_sleep(0.01)")  # of no span: none of the earlier ones

            def sent(word):
                return sum(body.count(word) for _, _, body in collector.requests)
            until(lambda: sent(b"wait for a server connection") == 5, "all five are sent", seconds=15)
            for number in (0xa1, 0xa2, 0xa3, 0xa4):
                equal(sent(bytes([number]) * 16), 2, f"spans of trace {number:x}")
            collector.shutdown()


@pooler_only
def test_server_connections_lost_in_a_crash_are_warnings(env):
    with env.pooler_with(log_disconnections=False) as target:
        idle, within, asks = env.connect(target), env.connect(target), env.connect(target)
        idle.execute("select 1")
        within.execute("begin; select 1")
        asks.send(m.query("select pg_sleep(20) /* lost */"))
        env.cluster.wait_for_backends("state = 'active' and query like '%/* lost */%' and query not like '%pg_stat_activity%'", 1)
        idle.execute("select 1")  # a third server connection, which is idle
        env.cluster.restart("immediate")

        def lost():
            return [line for line in target.pooler.text().splitlines() if "server connection lost" in line]
        until(lambda: len(lost()) >= 3, "three warnings")
        for line in lost():
            assert " WARN " in line and 'database="app" user="app"' in line, line
