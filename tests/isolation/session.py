"""One session of the isolation test: it knows what it must be told, and no byte that it receives may be another's.

# Model       every value that a session sends holds its own secret; state() is what a server of its own would have now:
#             values of the session, values of the transaction (SET LOCAL), and a copy of both for each savepoint
# Invariants  a secret of another session, or of an earlier one under the same names, is never received;
#             each answer is the one that a server of its own gives; no connection ends that nobody has ended
# Limits      what a statement leaves is looked at by later operations, drawn at random, of the same session
"""

import re
import socket
import struct

from harness import messages as m
from harness.wire import Connection, ServerError, Target

ANSWER_SECONDS = 40.0
HISTORY = 30
SECRET = re.compile(rb"secret-(\d+)-(\d+)-")

# user, database: of ten sessions, six share everything but their secrets.
SEATS = [("app", "app")] * 6 + [("app2", "app")] * 2 + [("app", "other"), ("app3", "other")]
ROLES = {"app": ("isolated_one", "isolated_two"), "app2": ("isolated_one",), "app3": ("isolated_two",)}

# For a superuser, in each database.
SETUP = """
drop schema if exists isolated cascade;
create schema isolated;
create table isolated.plain (i int, v text);
create table isolated.numbered (n serial);
grant all on sequence isolated.numbered_n_seq to public;
create table isolated.whereabouts as select 'isolated' as w;
drop table if exists public.whereabouts;
create table public.whereabouts as select 'public' as w;
grant select on public.whereabouts to public;
create table isolated.owned (owner text, v text);
alter table isolated.owned enable row level security;
create policy own on isolated.owned using (owner = current_setting('app.who', true));
create function isolated.sets_who(v text) returns text language sql as $$ select set_config('app.who', v, false) $$;
create function isolated.fails_after(v text) returns text language plpgsql
  as $$ begin perform set_config('app.who', v, false); return 1/0; end $$;
grant all on schema isolated to public;
grant all on all tables in schema isolated to public;
"""
ROLES_SETUP = """
do $$ begin
  create role isolated_one; create role isolated_two;
exception when duplicate_object then null; end $$;
grant isolated_one to app, app2; grant isolated_two to app, app3
"""

BY_ITSELF = {"app.who": "", "app.x": "", "application_name": "", "search_path": '"$user", public', "work_mem": "4MB",
             "TimeZone": "", "DateStyle": "", "client_encoding": "", "role": None}
REPORTED = ("application_name", "TimeZone", "DateStyle", "client_encoding")
VALUES = {"search_path": ("public", "pg_catalog, public", "isolated, public"), "work_mem": ("1MB", "2MB", "3MB"),
          "TimeZone": ("Europe/Berlin", "Asia/Tokyo", "UTC"), "DateStyle": ("ISO, DMY", "ISO, MDY", "SQL, DMY"),
          "client_encoding": ("LATIN1", "UTF8", "WIN1252")}
# What a client is told whose server process has been ended: by the server, and by the pooler.
DEATH = ("57P01", "08006", "08003", "08001")
# A character that encodings spell differently.
UMLAUT = {"UTF8": "ä", "LATIN1": b"\xe4", "WIN1252": b"\xe4"}


class Wrong(Exception):
    """The session was told what no server of its own would have told it."""


class Gone(Exception):
    """The connection has ended, and the session has not ended it."""


class Lost(Exception):
    """A server connection has ended that the test has ended: see `deaths` in crowd.py."""


class Watched(Connection):
    """Every message is searched for the secrets of others."""

    owner = None

    def receive(self):
        message = super().receive()
        for found in SECRET.finditer(message.body if message else b""):
            if (int(found[1]), int(found[2])) != self.owner:
                raise Wrong(f"{found[0].decode()} in a message {message.kind} of {self.owner}: {message.body[:300]!r}")
        return message


class WatchedTarget(Target):
    def open(self, host=None, timeout=ANSWER_SECONDS):
        connection = super().open(host, timeout)
        connection.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return Watched(connection.sock, timeout)

    def of(self, owner, user, database, parameters):
        connection = self.open()
        connection.owner = owner
        connection.send(m.startup({"user": user, "database": database, **parameters}))
        return connection.login(self.secrets[user], user)


class State:
    """Settings as a server of the session's own would have them."""

    def __init__(self, start):
        self.start, self.session, self.local = dict(start), dict(start), {}
        self.frames = []

    def __getitem__(self, name):
        return self.local.get(name, self.session[name])

    def set(self, name, value, local=False):
        if local:
            self.local[name] = value
        else:
            self.session[name] = value
            self.local.pop(name, None)

    def reset(self, name):
        self.set(name, self.start[name])

    def reset_all(self, role_too):
        role = self.session["role"]
        self.session, self.local = dict(self.start), {}
        if not role_too:
            self.session["role"] = role

    def save(self):
        self.frames.append((dict(self.session), dict(self.local)))

    def back_to_last(self):
        session, local = self.frames[-1]
        self.session, self.local = dict(session), dict(local)

    def end(self, commits):
        if not commits:
            self.session = dict(self.frames[0][0])
        self.local, self.frames = {}, []


class Session:
    """What any operation needs. Operations are in operations.py."""

    def __init__(self, number, rng, target, locks, deaths=False):
        self.number, self.rng, self.target, self.locks, self.deaths = number, rng, target, locks, deaths
        self.user, self.database = SEATS[number % len(SEATS)]
        self.generation = self.count = 0
        self.connection = None
        self.history = []

    # Life

    def begin(self):
        """A new connection, at once and under the names of the last one."""
        self.generation += 1
        start, asked = dict(BY_ITSELF), {}
        if self.rng.random() < 0.3:
            asked["application_name"] = start["application_name"] = self.secret("name")
        if self.rng.random() < 0.2:
            start["app.who"] = self.secret("option")
            asked["options"] = f"-c app.who={start['app.who']}"
        if self.rng.random() < 0.1:
            asked["work_mem"] = start["work_mem"] = "7MB"
        self.note(f"connect {asked}")
        self.statements, self.by_sql, self.shared = {}, {}, {}
        self.temporary = self.cursor = self.drawn = None
        self.channels, self.held, self.due = set(), set(), []
        self.in_block = False
        try:
            self.connection = self.target.of((self.number, self.generation), self.user, self.database, asked)
        except ServerError as error:
            if self.deaths and error.sqlstate in DEATH:
                raise Lost(str(error)) from None
            raise
        for name in ("TimeZone", "DateStyle", "client_encoding"):
            start[name] = self.connection.parameters[name]
        self.state = State(start)

    def end(self, resets=None):
        """Closes without a word."""
        connection, self.connection = self.connection, None
        for key in getattr(self, "held", ()):
            self.locks.pop(key, None)
        if connection is None:
            return
        if self.rng.random() < 0.5 if resets is None else resets:
            connection.vanish()
        else:
            connection.sock.close()

    def note(self, text):
        self.history = [*self.history[1 - HISTORY:], text[:240]]

    def secret(self, kind=""):
        self.count += 1
        return f"secret-{self.number}-{self.generation}-{kind}{self.count}"

    # Exchanges

    def send(self, *chunks):
        try:
            self.connection.send(*chunks)
        except OSError as error:
            raise Gone(f"while writing: {error}") from None

    def collect(self, fails=False, until=None):
        return self.judge(self.connection.collect(until=until), fails)

    def exchange(self, *chunks, fails=False):
        """Messages with one ReadyForQuery among their answers."""
        self.send(*chunks)
        return self.collect(fails)

    def query(self, sql, fails=False):
        self.note(sql)
        return self.exchange(m.query(sql), fails=fails)

    def extended(self, sql, *values, fails=False):
        self.note(f"extended: {sql} {values}"[:200])
        return self.exchange(m.run(sql, values), m.SYNC, fails=fails)

    def judge(self, result, fails):
        """What holds for every answer. `fails`: it may, the caller looks at how."""
        if self.deaths and any(error.get("C") in DEATH for error in result.errors):
            raise Lost(f"{result.errors[-1].get('C')} {result.errors[-1].get('M')}")
        if result.closed:
            why = result.errors[-1] if result.errors else {}
            raise Gone(f"{why.get('C')} {why.get('M')}")
        for _, channel, payload in self.connection.notifications:
            if channel not in self.channels or not payload.startswith(f"{channel}:"):
                raise Wrong(f"notification {channel!r} {payload!r}, listening on {sorted(self.channels)}")
            self.due = [due for due in self.due if due != payload]
        self.connection.notifications.clear()
        if result.errors and not fails:
            raise Wrong(f"unexpected error {result.errors[0]}")
        if result.status and not self.in_block and result.status != "I":
            raise Wrong(f"status {result.status} outside of a transaction block")
        return result

    def check_reported(self):
        """What the server has reported is what the session has."""
        for name in REPORTED:
            self.same(self.connection.parameters[name], self.state[name], f"{name} as reported")

    def same(self, got, expected, what):
        if got != expected:
            raise Wrong(f"{what}: got {str(got)[:300]!r}, expected {str(expected)[:300]!r}")

    def rows(self, result, expected, what):
        self.same([list(row) for row in result.rows], expected, what)

    def fails_with(self, result, what, *codes):
        if result.sqlstate not in codes:
            raise Wrong(f"{what}: {result.rows} {result.errors}, expected {codes}")


def header_of(kind, length, body=b""):
    """A message with a length of one's own."""
    return kind + struct.pack("!I", length & 0xFFFFFFFF) + body
