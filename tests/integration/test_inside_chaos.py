"""Whatever dies or stalls while the server serves clients itself, the server lives, and no client gets another's answer.

HAWSER_CHAOS_SECONDS makes it last longer; HAWSER_CHAOS_SEED plays the same events again, not the same order among the clients.
"""

import contextlib
import os
import pathlib
import random
import re
import signal
import socket
import threading
import time

from harness import extension
from harness import messages as m
from harness.suite import THOROUGH, equal, limit, pooler_only, until
from harness.wire import Disconnected, ServerError
from integration.test_inside import connect, goes_in, inside, is_up
from integration.test_session_extension import library

TAKES_SECONDS = 60

SETTINGS = {}
SECONDS = float(os.environ.get("HAWSER_CHAOS_SECONDS", 30 if THOROUGH else 15))
SEED = int(os.environ.get("HAWSER_CHAOS_SEED", time.time()))
CLIENTS = 12
PAUSE_SECONDS = 0.3
# What a client may be told meanwhile: its query or process was ended, the server is away, a statement has grown old.
TOLD = ("57014", "57P01", "57P02", "57P03", "08006", "08003", "08001", "0A000", "53300", "58000")


class Client(threading.Thread):
    """Connects, asks and leaves in many ways. `wrong` is what no server of its own would have answered."""

    def __init__(self, env, target, number, end):
        super().__init__(daemon=True)
        self.env, self.target, self.number, self.end = env, target, number, end
        self.rng = random.Random(SEED * 1000 + number)
        self.wrong, self.answers, self.added, self.tried = [], 0, 0, 0

    def run(self):
        while time.monotonic() < self.end:
            try:
                self.live()
            except (Disconnected, OSError):
                continue
            except ServerError as error:
                if error.sqlstate not in TOLD:
                    self.wrong.append(f"client {self.number} was told {error}")
            except AssertionError as error:
                self.wrong.append(f"client {self.number}: {error}")

    def live(self):
        client = self.target.connect("app", "room")
        try:
            client.exchange(m.parse(f"select {self.number}, $1::text", "mine"), m.SYNC)
            for _ in range(self.rng.randrange(5, 60)):
                usual = [self.simple, self.simple, self.simple, self.named, self.named]
                self.rng.choice([*usual, self.adds, self.block, self.sets, self.keeps])(client)
                self.answers += 1
            self.rng.choice([self.closes, self.resets, self.half_closes, self.drips, self.reads_nothing])(client)
        finally:
            client.sock.close()

    def secret(self):
        return f"{self.number}-{self.rng.random()}"

    def rows(self, result, *expected):
        if result.errors and result.sqlstate not in TOLD:
            raise AssertionError(f"{result.errors}")
        if result.closed:
            raise Disconnected
        if not result.errors:
            equal(result.rows, list(expected))

    # What it asks

    def simple(self, client):
        text = self.secret() * self.rng.choice([1, 1, 1, 3000])
        self.rows(client.attempt(f"select '{text}'"), (text,))

    def named(self, client):
        text = self.secret()
        result = client.exchange(m.bind("mine", values=[text]), m.describe_portal(), m.execute(), m.SYNC)
        self.rows(result, (str(self.number), text))

    def adds(self, client):
        self.tried += 1
        result = client.attempt(f"update counts set n = n + 1 where id = {self.number + 1}")
        if result.closed:
            raise Disconnected
        self.added += not result.errors

    def block(self, client):
        text = self.secret()
        if client.attempt("begin").sqlstate is None:
            self.rows(client.attempt(f"select '{text}'"), (text,))
            client.attempt("commit")

    def sets(self, client):
        value = f"{self.rng.randrange(1, 9)}MB"
        if client.attempt(f"set work_mem = '{value}'").sqlstate is None:
            self.rows(client.attempt("select current_setting('work_mem')"), (value,))

    def keeps(self, client):
        if self.rng.random() < 0.1 and client.attempt("select sets('9MB')").sqlstate is None:
            self.rows(client.attempt("select current_setting('work_mem')"), ("9MB",))

    # How it leaves

    def closes(self, client):
        client.close()

    def resets(self, client):
        client.send(m.query("select pg_sleep(0.05), 'reset'"))
        client.vanish()

    def half_closes(self, client):
        client.send(m.query("select 1"))
        client.sock.shutdown(socket.SHUT_WR)
        client.collect()

    def drips(self, client):
        for byte in m.query("select 7"):
            client.send(bytes([byte]))
            time.sleep(0.05)
        self.rows(client.collect(), ("7",))

    def reads_nothing(self, client):
        client.send(m.query("select repeat('x', 1000) from generate_series(1, 20000)"))
        time.sleep(PAUSE_SECONDS)
        client.vanish()


class Chaos:
    """What is done to server and pooler meanwhile; `killed` counts the processes of the server that the test has ended by a signal
    and the server tells of."""

    def __init__(self, env, target, rng):
        self.env, self.pooler, self.rng, self.killed = env, target.pooler, rng, 0
        self.script = extension.functions(library(env))
        often = [self.stop, self.terminate, self.cancel, self.drop, self.reload, self.switch, self.alter]
        seldom = [self.kill, self.restart, self.kill_postmaster, self.kill_pooler, self.stop_pooler, self.restart_pooler]
        self.weights = dict.fromkeys(often, 3) | dict.fromkeys(seldom, 1)
        self.done = dict.fromkeys(self.weights, 0)

    def one(self):
        event = self.rng.choices(list(self.weights), self.weights.values())[0]
        with contextlib.suppress(ServerError, Disconnected, OSError), self.env.cluster.superuser("room") as owner:
            event(owner)
            self.done[event] += 1

    def some_process(self, owner):
        rows = owner.rows("select pid from pg_stat_activity where usename = 'app' order by random() limit 1")
        return int(rows[0][0]) if rows else None

    def kill(self, owner):
        if os.geteuid() == 0 and (pid := self.some_process(owner)):
            os.kill(pid, signal.SIGKILL)
            self.killed += 1
            until(lambda: is_up(self.env), "the server is up again", 30)

    def restart(self, owner):
        if os.geteuid() == 0 and self.rng.random() < 0.3:  # a smart one first, which waits for those that are connected
            os.kill(self.postmaster(), signal.SIGTERM)
            time.sleep(PAUSE_SECONDS)
        self.env.cluster.restart(self.rng.choice(["fast", "immediate"]))

    def postmaster(self):
        return int((self.env.cluster.data / "postmaster.pid").read_text().split()[0])

    def kill_postmaster(self, owner):
        if os.geteuid():
            return
        pid = self.postmaster()
        os.kill(pid, signal.SIGSTOP)  # it starts no more
        children = pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        os.kill(pid, signal.SIGKILL)
        gone = lambda: not any(os.path.exists(f"/proc/{process}") for process in (pid, *children))
        until(gone, "the server's processes have ended by themselves", 30)
        self.env.cluster.start()

    def kill_pooler(self, owner):
        self.pooler.kill()
        time.sleep(self.rng.choice([0, PAUSE_SECONDS]))
        self.pooler.start()

    def stop_pooler(self, owner):
        self.pooler.signal(signal.SIGSTOP)
        time.sleep(self.rng.choice([PAUSE_SECONDS, 5 * PAUSE_SECONDS]))
        self.pooler.signal(signal.SIGCONT)

    def restart_pooler(self, owner):
        self.pooler.stop()
        self.pooler.start()

    def stop(self, owner):
        if os.geteuid() == 0 and (pid := self.some_process(owner)):
            os.kill(pid, signal.SIGSTOP)
            time.sleep(PAUSE_SECONDS)
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)

    def terminate(self, owner):
        owner.execute("select pg_terminate_backend(pid) from pg_stat_activity where usename = 'app' order by random() limit 1")

    def cancel(self, owner):
        owner.execute("select pg_cancel_backend(pid) from pg_stat_activity where usename = 'app' order by random() limit 2")

    def drop(self, owner):
        owner.execute("drop schema if exists hawser cascade")
        owner.execute(self.script)

    def reload(self, owner):
        owner.execute("select pg_reload_conf()")

    def switch(self, owner):
        for to in ("off", "on"):
            owner.execute(f"alter system set hawser.inside = {to}")
            owner.execute("select pg_reload_conf()")
            time.sleep(PAUSE_SECONDS)

    def alter(self, owner):
        owner.execute("alter table counts add column if not exists more int")
        owner.execute("alter table counts drop column more")


@pooler_only
@limit(int(SECONDS) + 150)
def test_the_server_lives_and_answers_are_right_in_chaos(env):
    before = env.cluster.log.stat().st_size
    with inside(env, more="synchronous_commit = on\n") as target:  # what was answered counts after a crash, too
        clients = [Client(env, target, number, time.monotonic() + SECONDS) for number in range(CLIENTS)]
        chaos = Chaos(env, target, random.Random(SEED))
        for client in clients:
            client.start()
        while time.monotonic() < clients[0].end:
            chaos.one()
            time.sleep(chaos.rng.random() * 2 * PAUSE_SECONDS)
        for client in clients:
            client.join(90)
        equal([client.number for client in clients if client.is_alive()], [], f"seed {SEED}: clients that hang")
        events = {event.__name__: count for event, count in chaos.done.items()}
        print(f"    seed {SEED}: {sum(client.answers for client in clients)} answers, {events}")
        until(lambda: is_up(env), "the server is up", 30)
        with env.cluster.superuser("room") as owner:
            owner.execute("alter system reset hawser.inside")
            owner.execute("select pg_reload_conf()")
            counts = dict(owner.rows("select id, n from counts"))
        goes_in(env, target, connect(env, target))
        wrong = [text for client in clients for text in client.wrong]
        for client in clients:
            found = int(counts[str(client.number + 1)])
            if not client.added <= found <= client.tried:
                wrong.append(f"client {client.number} has counted {client.added} of {client.tried} updates, the table has {found}")
        said = env.cluster.log.read_bytes()[before:].decode(errors="replace")
        died = re.findall(r"was terminated by signal (\d+)", said)
        equal(wrong[:5], [], f"seed {SEED}")
        assert "PANIC" not in said and "TRAP" not in said, f"seed {SEED}: the server's log has a PANIC"
        equal(died, ["9"] * chaos.killed, f"seed {SEED}: signals by which server processes have died")
