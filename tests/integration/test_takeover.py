"""An upgrade without a dropped connection: a new process takes the place of the running one."""

import contextlib
import json
import os
import pathlib
import re
import signal
import socket
import struct
import subprocess
import threading
import time

from harness import messages as m
from harness.pooler import binary
from harness.suite import Background, Skip, equal, has_ktls, limit, pooler_only, until
from harness.wire import Disconnected, ServerError

SAME_FOR_ALL_SERVERS = True
TAKES_SECONDS = 80


def status(pooler):
    """What the process that serves says, or None."""
    socket_path = pooler.directory / "hawser.sock"
    ran = subprocess.run([binary(), "status", "--json", "--socket", socket_path], capture_output=True, text=True, timeout=10)
    return json.loads(ran.stdout) if ran.returncode == 0 else None


def spawn(pooler, command="takeover", config=None):
    with open(pooler.log, "ab") as log:
        return subprocess.Popen([binary(), command, "-c", str(config or pooler.config)], cwd=pooler.directory,
                                stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT)


def serves(pooler, pid):
    said = status(pooler)
    return said and said["pid"] == pid and said["state"] == "ready"


def take_over(pooler):
    """A new process serves. Returns the old one, which may still have clients."""
    old, new = pooler.process, spawn(pooler)
    until(lambda: serves(pooler, new.pid) or new.poll() is not None, "that the new process serves", 30)
    assert new.poll() is None, f"the new process ended with {new.returncode}:\n{pooler.tail()}"
    pooler.process = new
    return old


def ended(pooler, old, seconds=20):
    try:
        code = old.wait(seconds)
    except subprocess.TimeoutExpired:
        raise AssertionError(f"the old process still runs:\n{pooler.tail()}") from None
    equal(code, 0, "exit code of the old process")


@contextlib.contextmanager
def reaped(*processes):
    """Whatever a test found, no process stays."""
    try:
        yield
    finally:
        for process in processes:
            if process.poll() is None:
                process.kill()
            process.wait()


def stayer(env, target):
    """A client that the new process does not take, as long as it listens."""
    client = env.connect(target)
    client.execute("listen to_stay")
    return client


def without_ktls():
    if has_ktls():
        raise Skip("this kernel has kTLS, by which clients in TLS go over: test_tls_kernel")


def serving_pid(target):
    """Of the process that a new client comes to."""
    return status(target.pooler)["pid"]


@pooler_only
@limit(60)
def test_clients_go_on_with_all_that_their_sessions_are(env):
    with env.pooler_with(pool_size=3) as target:
        client = env.connect(target, application_name="kept", options="-c work_mem=5MB")
        client.execute("set timezone to 'Asia/Tokyo'; set my.own to 'x''y'; set search_path to pg_catalog, public")
        client.extended("select $1::int + 1 as more, current_setting('my.own')", ["41"], name="named")
        client.exchange(m.parse("select 'unnamed' where $1 > 0", types=(23,)), m.SYNC)
        before = client.exchange(m.describe_statement("named"), m.SYNC)
        by_socket = env.connect(target, host=target.socket_dir, application_name="by socket")
        by_socket.execute("set work_mem to '7MB'")
        old = take_over(target.pooler)
        with reaped(old):
            ended(target.pooler, old)
            equal([message.body for message in client.exchange(m.describe_statement("named"), m.SYNC).messages],
                  [message.body for message in before.messages])
            ran = client.exchange(m.bind("named", values=["1"]), m.execute(), m.SYNC)
            equal(ran.rows, [("2", "x'y")])
            equal(client.exchange(m.bind("", values=["1"]), m.execute(), m.SYNC).rows, [("unnamed",)])
            for name, value in {"application_name": "kept", "timezone": "Asia/Tokyo", "work_mem": "5MB", "my.own": "x'y",
                                "search_path": "pg_catalog, public"}.items():
                equal(client.value(f"show {name}"), value, name)
            client.execute("reset all")
            equal((client.value("show application_name"), client.value("show work_mem")), ("kept", "5MB"))
            equal(client.attempt("prepare named as select 1").sqlstate, "42P05")
            equal((by_socket.value("show work_mem"), by_socket.value("show application_name")), ("7MB", "by socket"))
            equal(env.connect(target, host=target.socket_dir).value("select 'new by socket'"), "new by socket")
            equal(env.connect(target).value("select 'new'"), "new")
            equal(target.pooler.http("/readyz")[0], 200)


@pooler_only
@limit(60)
def test_the_first_question_for_a_sequences_value_is_answered_as_before(env):
    """That clients of the database ask is known to the new process: else the first one after each upgrade gets an error (55000)."""
    with env.pooler_with(pool_size=1) as target, target.connect() as owner:
        owner.execute("drop sequence if exists asked_for; create sequence asked_for")

        def draws_and_asks():
            with target.connect() as client, target.connect() as other:
                client.execute("select nextval('asked_for')")
                other.send(m.query("select nextval('asked_for')"))
                result = client.attempt("select lastval()")
                other.collect()
                return result

        draws_and_asks()
        equal(getattr(draws_and_asks(), "sqlstate", None), None, "once one has asked")
        old = take_over(target.pooler)
        with reaped(old):
            ended(target.pooler, old)
            equal(getattr(draws_and_asks(), "sqlstate", None), None, "the first question after the upgrade")


@pooler_only
@limit(60)
def test_addresses_become_what_the_new_configuration_says(env):
    """One that it does not have is closed, and nobody waits there; the file of one that stays has the new permissions."""
    with env.pooler_with(unix_socket_mode="0777") as target:
        pooler = target.pooler
        file = pathlib.Path(target.socket_dir) / f".s.PGSQL.{target.port}"
        equal(oct(file.stat().st_mode & 0o777), "0o777")
        env.connect(target, host="::1").close()
        pooler.write(address=[f"127.0.0.1:{target.port}", str(pooler.directory)], unix_socket_mode="0700")
        old = take_over(pooler)
        with reaped(old):
            ended(pooler, old)
        equal(oct(file.stat().st_mode & 0o777), "0o700")
        with socket.socket(socket.AF_INET6) as other:
            other.settimeout(3)
            equal(other.connect_ex(("::1", target.port)) != 0, True, "nobody listens there any more")
        equal(env.connect(target, host=target.socket_dir).value("select 'by socket'"), "by socket")
        equal(env.connect(target).value("select 'by address'"), "by address")


@pooler_only
@limit(60)
def test_a_cancel_request_finds_a_client_that_went_over(env):
    with env.pooler_with() as target:
        client = env.connect(target)
        client.value("select 1")
        old = take_over(target.pooler)
        with reaped(old):
            ended(target.pooler, old)
            client.send(m.query("select pg_sleep(20) /* after the move */"))
            env.cluster.wait_for_backends("query like '%after the move%' and state = 'active' and pid <> pg_backend_pid()", 1)
            client.cancel(target)
            equal(client.collect().sqlstate, "57014")
            equal(client.value("select 1"), "1")


def pgbench(env, target, clients, seconds, *arguments, **variables):
    return env.program("pgbench", "-n", "-c", clients, "-j", 2, "-T", seconds, *arguments, user="app_trust", database="app",
                       target=target, timeout=seconds + 150, **variables)


def tables(env, target):
    """For pgbench by a user that logs in fast."""
    server = env.server()
    if server.value("select to_regclass('pgbench_accounts')") is None:
        env.program("pgbench", "-i", "-s", "1", "-q", database="app", target=target)
    server.execute("grant select on pgbench_accounts, pgbench_branches to app_trust")


def without_errors(done):
    assert "aborted" not in done.stderr and "error" not in done.stderr.lower(), done.stderr
    failed = re.search(r"number of failed transactions: (\d+)", done.stdout)
    assert not failed or failed.group(1) == "0", done.stdout


@pooler_only
@limit(300)
def test_pgbench_goes_on_across_three_takeovers(env):
    clients = int(os.environ.get("TAKEOVER_CLIENTS", 100))
    with env.pooler_with(pool_size=10, max_client_conn=clients + 50, query_wait_timeout="60s") as target:
        tables(env, target)
        for mode in ("prepared", "simple"):
            load = Background(lambda mode=mode: pgbench(env, target, clients, 15, "-M", mode, "-S"))
            # (Its time begins when all are connected.)
            until(lambda: status(target.pooler)["clients"] >= clients, "that all clients are connected", 120)
            time.sleep(1)  # under full load
            most = []
            for _ in range(3):
                old = take_over(target.pooler)
                with reaped(old), env.cluster.superuser() as server:
                    while old.poll() is None:
                        most.append(int(server.value("select count(*) from pg_stat_activity where usename = 'app_trust'")))
                        time.sleep(0.01)
                    ended(target.pooler, old)
                assert load.is_running(), "the load was over before the clients had gone over"
            without_errors(load.join(180))
            # Each process by itself would have 10. (Some server processes are about to end, one is asked about functions.)
            assert max(most, default=0) <= 15, f"{max(most)} server connections for pool_size = 10"


@pooler_only
@limit(120)
def test_clients_that_connect_all_the_time_notice_no_takeover(env):
    """Each connection is accepted by one of the two processes, and served there or given over."""
    with env.pooler_with(pool_size=10, query_wait_timeout="60s") as target:
        tables(env, target)
        load = Background(lambda: pgbench(env, target, 10, 12, "-C", "-S"))
        time.sleep(1)  # under full load
        for _ in range(3):
            old = take_over(target.pooler)
            with reaped(old):
                until(lambda old=old: old.poll() is not None, "the end of the old process", 60)
            time.sleep(0.5)  # clients come to the new process alone
        assert load.is_running(), "the load was over before the last takeover"
        without_errors(load.join(60))


@pooler_only
@limit(180)
def test_pgbench_in_tls_goes_on_in_the_old_process(env):
    without_ktls()
    with env.pooler_with(pool_size=6, query_wait_timeout="60s") as target:
        tables(env, target)
        load = Background(lambda: pgbench(env, target, 20, 15, "-M", "prepared", "-S", PGSSLMODE="require"))
        until(lambda: status(target.pooler)["clients"] >= 20, "that all clients are connected", 60)
        old = take_over(target.pooler)
        with reaped(old):
            # Beside them, and for longer than it takes to share the pool.
            without_errors(pgbench(env, target, 20, 8, "-M", "prepared", "-S"))
            assert old.poll() is None, "the old process ended with clients"
            without_errors(load.join(60))
            ended(target.pooler, old)


@pooler_only
@limit(60)
def test_a_transaction_goes_on_where_it_is_and_its_client_goes_over_after_it(env):
    with env.pooler_with() as target:
        client, other = env.connect(target), env.connect(target)
        client.execute("begin; set local work_mem to '3MB'; declare c cursor for select generate_series(1, 3)")
        old = take_over(target.pooler)
        with reaped(old):
            equal(other.value("select 1"), "1")
            equal(client.value("fetch c"), "1")
            equal(client.value("show work_mem"), "3MB")
            assert old.poll() is None, "the old process ended with a transaction open"
            client.execute("commit")
            ended(target.pooler, old)
            equal(client.value("select 'after'"), "after")


@pooler_only
@limit(60)
def test_clients_in_tls_stay_with_the_old_process_until_they_leave(env):
    without_ktls()
    with env.pooler_with() as target:
        encrypted = env.connect(target, tls=env.tls(), hostname="localhost")
        plain = env.connect(target)
        encrypted.execute("set work_mem to '3MB'")
        old = take_over(target.pooler)
        with reaped(old):
            for _ in range(3):
                equal((encrypted.value("show work_mem"), plain.value("select 1")), ("3MB", "1"))
            until(lambda: status(target.pooler)["predecessor"] == {"pid": old.pid, "version": status(target.pooler)["version"],
                                                                   "clients": 1}, "that status tells of the old process")
            encrypted.send(m.query("select pg_sleep(20) /* in the old one */"))
            env.cluster.wait_for_backends("query like '%in the old one%' and state = 'active' and pid <> pg_backend_pid()", 1)
            encrypted.cancel(target)
            equal(encrypted.collect().sqlstate, "57014", "a cancel request that comes to the new process")
            equal(env.connect(target, tls=env.tls(), hostname="localhost").value("select 'new'"), "new")
            encrypted.close()
            ended(target.pooler, old)
            equal(status(target.pooler)["predecessor"], None)


@pooler_only
@limit(90)
def test_commands_at_the_new_process_hold_for_clients_that_stay_with_the_old_one(env):
    with env.pooler_with() as target:
        stays, other = (stayer(env, target) for _ in range(2))
        stays.execute("begin")
        old = take_over(target.pooler)
        with reaped(old):
            equal(status(target.pooler)["predecessor"]["clients"], 2, "known from the start")
            assert "hawser_predecessor_clients 2" in target.pooler.http("/metrics")[1]
            first, second = (env.connect(target, database="hawser", user="admin") for _ in range(2))
            paused = []
            pausing = threading.Thread(target=lambda: paused.append(first.attempt("PAUSE app")))
            pausing.start()
            time.sleep(0.5)  # it does not end before the transaction
            equal(paused, [], "a transaction is open in the old process")
            stays.execute("commit")
            pausing.join(10)
            equal([(done.sqlstate, done.tags) for done in paused], [(None, ["PAUSE"])])
            stays.send(m.query("select 'after'"))
            time.sleep(0.5)  # it is not sent on
            equal(env.cluster.backends("query like '%after%' and pid <> pg_backend_pid()"), [], "while it is paused")
            equal(second.attempt("RESUME app").sqlstate, None)
            equal(stays.collect().sqlstate, None)
            target.pooler.write(query_timeout="300ms")
            equal(second.attempt("RELOAD").sqlstate, None)
            until(lambda: other.attempt("select pg_sleep(1)").sqlstate == "57014", "a new setting")  # loops take it over
            target.pooler.write(query_timeout="0")
            target.pooler.reload()
            until(lambda: stays.attempt("select pg_sleep(0.5)").sqlstate is None, "the same by SIGHUP")
            old.send_signal(signal.SIGSTOP)
            until(lambda: pathlib.Path(f"/proc/{old.pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "T", "that it stands still")
            refused = second.attempt("DISABLE app")
            old.send_signal(signal.SIGCONT)
            equal(refused.sqlstate, "57P03")
            assert f"not in process {old.pid}" in refused.errors[0]["M"], refused.errors
            equal(second.attempt("KILL app").sqlstate, None)
            equal(stays.attempt("select 1").sqlstate, "57P01")
            ended(target.pooler, old)


@pooler_only
@limit(60)
def test_what_pins_and_what_listens_stays_and_nothing_is_lost(env):
    with env.pooler_with() as target:
        listener, pinned, other = env.connect(target), env.connect(target), env.connect(target)
        listener.execute("listen there")
        pinned.execute("create temp table mine as select 5 as five")
        old = take_over(target.pooler)
        with reaped(old):
            for n in range(3):
                other.execute(f"notify there, '{n}'")
            until(lambda: listener.value("select 1") and len(listener.notifications) == 3, "the notifications")
            equal([payload for _, _, payload in listener.notifications], ["0", "1", "2"])
            equal(pinned.value("select five from mine"), "5")
            assert old.poll() is None
            pinned.execute("drop table mine")
            listener.execute("unlisten *")
            ended(target.pooler, old)
            equal((pinned.value("select 1"), listener.value("select 2")), ("1", "2"))


@pooler_only
@limit(60)
def test_one_that_fails_its_start_leaves_all_as_it_was(env):
    with env.pooler_with() as target:
        client = env.connect(target)
        bad = target.pooler.directory / "bad.toml"
        good = target.pooler.config.read_text()
        elsewhere = target.pooler.directory / "elsewhere"
        elsewhere.mkdir()
        other_port = good.replace(f"127.0.0.1:{target.port}", "127.0.0.1:1").replace(f"[::1]:{target.port}", "[::1]:1")
        for text, why in ((good + "\nnonsense = 1\n", "nonsense"),
                          (good.replace("userlist.txt", "nowhere.txt"), "nowhere.txt"),
                          (re.sub(r'(?m)^(address = )\[', r'\1["192.0.2.1:9", ', good, count=1), "192.0.2.1:9"),
                          (other_port.replace(f'{target.pooler.directory}"]', f'{elsewhere}"]'), "another service")):
            bad.write_text(text)
            mark = target.pooler.log.stat().st_size
            new = spawn(target.pooler, config=bad)
            with reaped(new):
                equal(new.wait(20), 1, why)
            assert why in target.pooler.text(mark), target.pooler.text(mark)
            equal((client.value("select 1"), env.connect(target).value("select 2")), ("1", "2"))
            equal(serving_pid(target), target.pooler.process.pid)
        equal(env.connect(target, host=target.socket_dir).value("select 'by socket'"), "by socket")
        equal(target.pooler.http("/readyz")[0], 200)
        # And it can be replaced after that.
        old = take_over(target.pooler)
        with reaped(old):
            ended(target.pooler, old)
            equal(client.value("select 3"), "3")


@pooler_only
@limit(60)
def test_without_a_running_process_there_is_nothing_to_take_over(env):
    with env.pooler_with(start=False) as target:
        ran = subprocess.run([binary(), "takeover", "-c", target.pooler.config], cwd=target.pooler.directory,
                             capture_output=True, text=True, timeout=20)
        equal(ran.returncode, 1)
        assert "no running Hawser answers at" in ran.stderr and "hawser.sock.takeover" in ran.stderr, ran.stderr


@pooler_only
@limit(60)
def test_where_the_new_process_dies_the_old_one_serves_again(env):
    with env.pooler_with() as target:
        stays = stayer(env, target)
        gone = env.connect(target)
        old = take_over(target.pooler)
        new = target.pooler.process
        with reaped(new):
            equal(gone.value("select 1"), "1")
            until(lambda: status(target.pooler)["predecessor"]["clients"] == 1, "that the other client has gone over")
            new.kill()
            new.wait()
            target.pooler.process = old
            until(lambda: serves(target.pooler, old.pid), "that the old process serves again")
            equal(stays.value("select 2"), "2")
            equal(env.connect(target).value("select 3"), "3")
            equal(env.connect(target, host=target.socket_dir).value("select 4"), "4")
            equal(target.pooler.http("/readyz")[0], 200)
        stays.close()
        old = take_over(target.pooler)
        with reaped(old):
            ended(target.pooler, old)


class Asking:
    """One who wants to be the successor, and goes no further."""

    def __init__(self, pooler, version=1):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(10)
        self.sock.connect(str(pooler.directory / "hawser.sock.takeover"))
        self.say(type="Hello", format=version, version="0", pid=4711)
        self.answer = self.hear()

    def say(self, **message):
        text = json.dumps(message).encode()
        self.sock.sendall(struct.pack(">I", len(text)) + text)

    def hear(self, kind=None):
        """The next message, of this kind."""
        while True:
            (length,) = struct.unpack(">I", self._receive(4))
            message = json.loads(self._receive(length))
            if kind in (None, message["type"]):
                return message

    def _receive(self, length):
        data = b""
        while len(data) < length:
            part, fds, *_ = socket.recv_fds(self.sock, length - len(data), 64)
            assert part, "the connection ended"
            for fd in fds:
                os.close(fd)
            data += part
        return data


@pooler_only
@limit(60)
def test_of_two_at_once_the_second_is_refused(env):
    with env.pooler_with() as target:
        client = env.connect(target)
        first = Asking(target.pooler)
        equal(first.answer["type"], "Welcome")
        mark = target.pooler.log.stat().st_size
        second = spawn(target.pooler)
        with reaped(second):
            equal(second.wait(20), 1)
        said = "the running Hawser is not replaced: process 4711 is about to take its place already"
        assert said in target.pooler.text(mark), target.pooler.text(mark)
        other = Asking(target.pooler, version=99)
        equal(other.answer["type"], "Refused")
        assert "version 1 of the takeover's protocol, not 99" in other.answer["reason"], other.answer
        first.sock.close()
        until(lambda: "has not started to serve" in target.pooler.text(mark), "that the first has gone")
        equal((client.value("select 1"), env.connect(target).value("select 2")), ("1", "2"))
        old = take_over(target.pooler)
        with reaped(old):
            ended(target.pooler, old)


@pooler_only
@limit(60)
def test_clients_that_were_on_their_way_when_the_new_process_died_go_on(env):
    with env.pooler_with() as target:
        clients = [env.connect(target, application_name=f"client {n}") for n in range(5)]
        for client in clients:
            client.extended("select $1::int", ["1"], name="mine")
        successor = os.fork()
        if successor == 0:
            with contextlib.suppress(BaseException):
                asking = Asking(target.pooler)
                asking.say(type="Ready")
                for _ in clients:  # it answers for none of them
                    asking.hear("Client")
            os._exit(0)
        os.waitpid(successor, 0)
        until(lambda: serves(target.pooler, target.pooler.process.pid), "that the process serves again")
        for n, client in enumerate(clients):
            equal(client.value("show application_name"), f"client {n}")
            equal(client.exchange(m.bind("mine", values=["7"]), m.execute(), m.SYNC).rows, [("7",)])
        equal(env.connect(target).value("select 'new'"), "new")


@pooler_only
@limit(60)
def test_clients_that_the_new_process_does_not_take_stay_until_they_leave(env):
    """As a version does that does not know what a client's session needs."""
    with env.pooler_with() as target:
        client = env.connect(target, application_name="kept")
        successor = Asking(target.pooler)
        successor.say(type="Ready", later="what this version does not know")
        successor.hear("Given")
        successor.say(type="Dream")
        number = successor.hear("Client")["number"]
        successor.say(type="Kept", number=number, reason="its session needs \"dreams\", which is not known here")
        equal(successor.hear("Rest")["clients"], 1)
        for _ in range(3):
            equal(client.value("show application_name"), "kept")
        assert "does not take a client" in target.pooler.text() and "dreams" in target.pooler.text()
        client.close()
        successor.hear("Done")
        equal(target.pooler.wait(10), 0)
        target.pooler.process = None


@pooler_only
@limit(60)
def test_sigusr2_starts_the_program_on_disk_as_the_successor(env):
    with env.pooler_with(pidfile="own.pid") as target:
        client = env.connect(target)
        client.execute("set work_mem to '3MB'")
        old, pidfile = target.pooler.process, target.pooler.directory / "own.pid"
        old.send_signal(signal.SIGUSR2)
        until(lambda: (status(target.pooler) or {"pid": old.pid})["pid"] != old.pid, "that another process serves", 30)
        with reaped(old):
            ended(target.pooler, old)
        new = serving_pid(target)
        try:
            equal(client.value("show work_mem"), "3MB")
            equal(pidfile.read_text().strip(), str(new))
        finally:
            os.kill(new, signal.SIGTERM)
            until(lambda: not pathlib.Path(f"/proc/{new}/cmdline").exists()
                  or not pathlib.Path(f"/proc/{new}/cmdline").read_bytes(), "that it ends")
        assert not pidfile.exists() and not (target.pooler.directory / "hawser.sock").exists()
        target.pooler.process = None


@pooler_only
@limit(60)
def test_when_the_new_process_is_told_to_end_so_does_the_old_one(env):
    with env.pooler_with() as target:
        stays = stayer(env, target)
        old = take_over(target.pooler)
        with reaped(old):
            equal(stays.value("select 1"), "1")
            target.pooler.signal(signal.SIGTERM)
            equal(target.pooler.wait(), 0)
            ended(target.pooler, old)
            try:
                result = stays.collect()
                equal(result.sqlstate, "57P01")
            except ServerError as error:
                equal(error.sqlstate, "57P01")
            target.pooler.process = None


@pooler_only
@limit(60)
def test_a_third_process_is_refused_while_the_first_still_has_clients(env):
    """Were the second one to die beside a third, the first one would accept as well."""
    with env.pooler_with() as target:
        stays, plain = stayer(env, target), env.connect(target)
        first = take_over(target.pooler)
        with reaped(first):
            mark = target.pooler.log.stat().st_size
            third = spawn(target.pooler)
            with reaped(third):
                equal(third.wait(20), 1)
            said = f"process {first.pid}, whose place it has taken, still has clients: wait until they have left"
            assert said in target.pooler.text(mark), target.pooler.text(mark)
            equal((stays.value("select 1"), plain.value("select 2")), ("1", "2"))
            stays.close()
            ended(target.pooler, first)
            second = take_over(target.pooler)
            with reaped(second):
                ended(target.pooler, second)
                equal(plain.value("select 3"), "3")



class Relay:
    """Between Hawser and the server, by TCP; when `silent`, it takes connections and says nothing."""

    def __init__(self, server_path):
        self.server_path, self.silent, self.kept = server_path, False, []
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self):
        while True:
            near, _ = self.listener.accept()
            self.kept.append(near)
            if self.silent:
                continue
            far = socket.socket(socket.AF_UNIX)
            far.connect(self.server_path)
            for one, other in ((near, far), (far, near)):
                threading.Thread(target=self._copy, args=(one, other), daemon=True).start()

    def _copy(self, one, other):
        with contextlib.suppress(OSError):
            while data := one.recv(65536):
                other.sendall(data)
        for end in (one, other):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)


def server_path(env):
    directory, port = env.cluster.address.rsplit(":", 1)
    return f"{directory}/.s.PGSQL.{port}"


@pooler_only
@limit(90)
def test_a_server_that_does_not_answer_keeps_no_client_of_another_waiting(env):
    relay = Relay(server_path(env))
    slow = f'''
[[database]]
name = "slow"
dbname = "app"
servers = ["127.0.0.1:{relay.port}"]
'''
    with env.pooler_with(append=slow, query_wait_timeout="30s", loops=1) as target:
        clients = [env.connect(target, database="slow")] + [env.connect(target) for _ in range(40)]  # (it goes first)
        for client in clients:
            client.value("select 1")
        relay.silent = True
        old = take_over(target.pooler)
        with reaped(old):
            begun = time.monotonic()
            for client in clients[1:]:
                client.sock.settimeout(10)
                equal(client.value("select 2"), "2")
            took = time.monotonic() - begun
            assert took < 5, f"clients of a server that answers waited for {took:.1f} s"
            relay.silent = False
            for kept in relay.kept:
                with contextlib.suppress(OSError):
                    kept.shutdown(socket.SHUT_RDWR)
            ended(target.pooler, old)


@pooler_only
@limit(60)
def test_a_conversation_that_breaks_while_the_new_process_lives_makes_no_second_one_accept(env):
    with env.pooler_with(loops=1) as target:
        clients = [env.connect(target) for _ in range(5)]
        for client in clients:
            client.value("select 1")
        successor = Asking(target.pooler)
        successor.say(type="Ready")
        numbers = [successor.hear("Client")["number"] for _ in clients]
        successor.say(type="Taken", number=numbers[0])
        successor.say(type="Taken", number="none that can be read")
        until(lambda: "broken off, and it lives" in target.pooler.text(), "that the conversation has ended")
        try:
            successor.say(type="Taken", number=numbers[1])
            raise AssertionError("a client that was given back could be taken")
        except BrokenPipeError:
            pass
        for client in clients[1:]:
            equal(client.value("select 2"), "2")
        # This test holds none of the sockets open that it has been given: nobody accepts.
        late = socket.create_connection(("127.0.0.1", target.port))
        late.settimeout(1)
        late.sendall(struct.pack(">II", 8, 80877103))
        try:
            raise AssertionError(f"the old process has accepted: {late.recv(1)!r}")
        except TimeoutError:
            late.close()
        for client in clients[1:]:
            client.close()
        equal(target.pooler.wait(10), 0)
        target.pooler.process = None


@pooler_only
@limit(120)
def test_where_the_new_process_has_no_descriptor_left_clients_stay_with_the_old_one(env):
    with env.pooler_with(max_client_conn=400, pool_size=2, loops=1) as target:
        clients = [env.connect(target) for _ in range(390)]
        old, small = target.pooler.process, target.pooler.directory / "small.toml"
        small.write_text(target.pooler.config.read_text().replace("max_client_conn = 400", "max_client_conn = 20"))
        with open(target.pooler.log, "ab") as log:
            new = subprocess.Popen(["sh", "-c", 'ulimit -n 300; exec "$0" takeover -c "$1"', binary(), small], stdout=log,
                                   stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, cwd=target.pooler.directory)
        with reaped(old):
            until(lambda: "without its socket" in target.pooler.text(), "that descriptors have run out", 30)
            target.pooler.process = new
            for client in clients:
                equal(client.value("select 1"), "1")
            for client in clients[:300]:
                client.close()
            until(lambda: serves(target.pooler, new.pid), "that the new process answers")
            assert old.poll() is None and "broken off" not in target.pooler.text(), target.pooler.tail()
            for client in clients[300:]:
                client.close()
            ended(target.pooler, old)


@pooler_only
@limit(60)
def test_a_pause_while_the_new_process_starts_refuses_it(env):
    with env.pooler_with() as target:
        client, console = env.connect(target), env.connect(target, database="hawser", user="admin")
        successor = Asking(target.pooler)
        console.execute("PAUSE")
        successor.say(type="Ready")
        answer = successor.hear()
        equal((answer["type"], answer.get("reason")), ("Refused", "a database is paused: RESUME first"))
        client.send(m.query("select 1"))
        console.execute("RESUME")
        equal(client.collect().rows, [("1",)])
        console.close()
        old = take_over(target.pooler)
        with reaped(old):
            ended(target.pooler, old)


@pooler_only
@limit(60)
def test_a_console_of_the_old_process_names_the_new_one_instead_of_what_it_is_asked_for(env):
    with env.pooler_with() as target:
        stays = stayer(env, target)
        console = env.connect(target, database="hawser", user="admin")
        old = take_over(target.pooler)
        with reaped(old):
            for command in ("PAUSE", "PAUSE app", "DISABLE app", "KILL app", "SHUTDOWN", "SHUTDOWN WAIT_FOR_CLIENTS"):
                refused = console.attempt(command)
                equal(refused.sqlstate, "57P03", command)
                said = f"process {target.pooler.process.pid} has taken this process's place"
                assert said in refused.errors[0]["M"], refused.errors
                equal(stays.value("select 1"), "1")
            equal(env.connect(target).value("select 2"), "2")


@pooler_only
@limit(60)
def test_shutdown_wait_for_clients_waits_for_those_of_the_old_process(env):
    with env.pooler_with() as target:
        stays = stayer(env, target)
        stays.value("select 1")
        old = take_over(target.pooler)
        with reaped(old):
            console = env.connect(target, database="hawser", user="admin")
            console.execute("SHUTDOWN WAIT_FOR_CLIENTS")
            time.sleep(1)  # neither process ends
            equal(stays.value("select 2"), "2")
            stays.close()
            ended(target.pooler, old)
            equal(target.pooler.wait(10), 0)
            target.pooler.process = None


@pooler_only
@limit(60)
def test_clients_that_the_old_process_had_sent_when_it_died_go_on(env):
    with env.pooler_with(loops=1, max_client_conn=400) as target:
        clients = [env.connect(target) for _ in range(300)]
        old, mark = target.pooler.process, target.pooler.log.stat().st_size
        new = spawn(target.pooler)
        with reaped(old):
            while "clients move between" not in target.pooler.text(mark):
                pass
            new.send_signal(signal.SIGSTOP)  # 32 are on their way by then, or soon
            time.sleep(0.5)
            old.kill()
            old.wait()
            new.send_signal(signal.SIGCONT)
            target.pooler.process = new
            until(lambda: serves(target.pooler, new.pid), "that the new process serves")
            until(lambda: "the predecessor has ended" in target.pooler.text(mark), "that it has seen that")
            alive = 0
            for client in clients:
                with contextlib.suppress(OSError, Disconnected):
                    alive += client.value("select 1") == "1"
            assert alive >= 32, f"{alive} clients of those that had been sent"


@pooler_only
@limit(60)
def test_the_new_process_learns_what_the_old_one_closes_of_pools_whose_clients_stay(env):
    with env.pooler_with(pool_size=6, query_wait_timeout="20s") as target:
        staying = [stayer(env, target) for _ in range(6)]
        for client in staying:
            client.send(m.query("select pg_sleep(1)"))
        for client in staying:
            client.collect()
        old = take_over(target.pooler)
        with reaped(old):
            time.sleep(2)  # (they are closed after a second, and shared after five)
            clients = [env.connect(target) for _ in range(6)]
            for client in clients:
                client.send(m.query("select pg_sleep(1.5) /* in the new one */"))
            env.cluster.wait_for_backends("query like '%in the new one%' and state = 'active' and pid <> pg_backend_pid()", 6)
            for client in clients:
                client.collect()
