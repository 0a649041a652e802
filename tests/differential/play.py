"""Plays a case on two connections a session, one direct and one through Hawser, in lockstep, and compares each message.

# Model       a case: the sessions' start parameters, and steps [session, kind, payload]. A step is sent direct and through
#             Hawser, one after the other; the next one waits for both answers
# Invariants  no step waits for a server connection: where all are held by other sessions, one of these is first made to
#             give its up, by steps of their own that go both ways (and into the record)
# Limits      what cannot be equal is put aside by name: oids of relations and types of users, numbers of temporary schemas, process ids
#             (a session's own and the other sessions' are told apart), the order of parameters reported together, the
#             server's source file, line and routine in errors;
#             notifications of others, which come when they come, are compared as a list of each session's own
"""

import contextlib
import pathlib
import re
import struct
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

from harness import messages as m
from harness.wire import Disconnected, ServerError

FIRST_USER_OID = 16384
# Steps that end a session and begin it anew: Terminate, a connection that is reset, and one that is reset within a step.
ENDS = ("leave", "vanish", "cut")
ANSWER_SECONDS = 10.0
# How long Hawser may take to bring a notification that the server has brought already.
NOTIFICATION_SECONDS = 3.0
# A notification bears the server's process id where two sessions have notified by one server connection within a second
# (pool/notifiers.rs). Which sessions share one depends on the moment, so it is allowed, and for longer than that second.
NOTIFIERS_SECONDS = 5.0
# File, line and routine of the server that an error comes from: Hawser's own answers have none.
SERVERS_SOURCE = "FLR"
# A server connection that once had a temporary schema keeps it, empty: names are looked up in it rather than it itself.
NO_TEMPORARY = re.compile(r'schema "pg_temp" does not exist|\w+ "?pg_temp\..* does not exist')
TEMPORARY_SCHEMA = re.compile(rb"pg_(toast_)?temp_\d+")


class Different(Exception):
    """The two answers differ; the message says at which step, and how."""

    def __init__(self, at, step, direct, through):
        self.at, self.step, self.direct, self.through = at, step, direct, through
        super().__init__(f"step {at}: {step}")


def build(kind, payload):
    """The bytes of a step, and the number of ReadyForQuery that it brings."""
    if kind == "query":
        return m.query(payload), 1
    data, ready = b"", 0
    for word, *rest in payload:
        match word:
            case "run":
                data += m.run(*rest)
            case "parse":
                data += m.parse(rest[1], rest[0])
            case "bind":
                data += m.bind(rest[1], rest[0], *rest[2:])
            case "describe":
                data += (m.describe_statement if rest[0] == "S" else m.describe_portal)(rest[1])
            case "execute":
                data += m.execute(rest[0], rest[1])
            case "flush":
                data += m.FLUSH
            case "data":
                data += m.copy_data(rest[0].encode()) + (m.COPY_DONE if rest[1] else m.copy_fail("stopped"))
            case "close":
                data += (m.close_statement if rest[0] == "S" else m.close_portal)(rest[1])
            case "sync":
                data += m.SYNC
                ready += 1
    return data, ready


def plain(message):
    """A message as text that can be compared."""
    body = TEMPORARY_SCHEMA.sub(rb"pg_\1temp_N", message.body)
    if message.kind == "T":
        return "T " + ", ".join(described(body))
    if message.kind == "t":
        count = struct.unpack_from("!h", body)[0]
        return f"t {[oid if oid < FIRST_USER_OID else 'user' for oid in struct.unpack_from(f'!{count}I', body, 2)]}"
    if message.kind == "D":
        if body == message.body:
            return f"D {m.Message('D', message.body).values()}".replace("\\\\", "\\")
        return f"D {TEMPORARY_SCHEMA.sub(b'pg_temp_N', message.body)}"
    if message.kind in "EN":
        fields = m.Message(message.kind, body).fields()
        if NO_TEMPORARY.match(fields["M"]):
            return "E nothing of this name in pg_temp"
        return f"{message.kind} " + " | ".join(f"{name}:{value}" for name, value in fields.items() if name not in SERVERS_SOURCE)
    return f"{message.kind} {body.rstrip(bytes(1)).decode('utf-8', 'replace')}".rstrip()


def described(body):
    (count,), at = struct.unpack_from("!h", body), 2
    for _ in range(count):
        end = body.index(0, at)
        table, number, kind, size, modifier, form = struct.unpack_from("!IhIhih", body, end + 1)
        table, kind = (oid if oid < FIRST_USER_OID else "user" for oid in (table, kind))
        yield f"{body[at:end].decode('utf-8', 'replace')}({table} {number} {kind} {size} {modifier} {form})"
        at = end + 19


class Side:
    """All sessions of a case on one target."""

    def __init__(self, target, user, database):
        self.target, self.user, self.database = target, user, database
        self.sessions = []
        self.heard = []  # for each session, notifications of others
        self.pids = {}

    def connect(self, number, parameters):
        """What the login answers, as text that can be compared."""
        while len(self.sessions) <= number:
            self.sessions.append(None)
            self.heard.append([])
        try:
            session = self.target.connect(self.user, self.database, timeout=ANSWER_SECONDS, **parameters)
        except ServerError as error:
            return [f"E {error.sqlstate} {error.message}"]
        except (Disconnected, OSError) as error:
            return [f"no login: {error}"]
        self.sessions[number] = session
        self.pids[session.pid] = number
        return sorted(f"S {name} {value}" for name, value in session.parameters.items())

    def leave(self, number, politely=True):
        """The process id that it had, or None."""
        session = self.sessions[number]
        if session is None:
            return None
        session.close() if politely else session.vanish()
        self.sessions[number] = None
        return session.pid

    def cut(self, number, step, part):
        """Sends a part of a step, and goes. The process id that it had, or None."""
        if self.sessions[number] is not None:
            data, _ = build(*step)
            with contextlib.suppress(OSError):
                self.sessions[number].send(data[: int(len(data) * part)])
        return self.leave(number, politely=False)

    def status(self, number):
        return self.sessions[number].status if self.sessions[number] else ""

    def sender(self, number, pid):
        sender = self.pids.get(pid)
        return "itself" if sender == number else "no session" if sender is None else f"session {sender}"

    def _sort(self, number, message, answer, reported):
        if message.kind == "S":
            name, value = message.strings()[:2] if len(message.strings()) > 1 else (message.strings()[0], "")
            reported.append(f"S {name} {value}")
            return
        # Reported together: in any order, ahead of what follows.
        answer += sorted(reported)
        reported.clear()
        if message.kind == "A":
            pid, channel, payload = message.notification()
            sender = self.sender(number, pid)
            text = f"A {channel} {payload!r} from {sender}"
            answer.append(text) if sender == "itself" else self.heard[number].append(text)
        else:
            answer.append(plain(message))

    def play(self, number, kind, payload):
        """The answer to a step, as texts; `closed` and `nothing for N s` are such texts."""
        session = self.sessions[number]
        if session is None:
            return ["not connected"]
        data, ready = build(kind, payload)
        answer, reported = [], []
        try:
            session.send(data)
            while ready:
                message = session.receive()
                if message is None:
                    self.sessions[number] = None
                    return answer + reported + ["closed"]
                self._sort(number, message, answer, reported)
                ready -= message.kind == "Z"
        except TimeoutError:
            self.drop(number)
            return answer + reported + [f"nothing for {ANSWER_SECONDS:.0f} s"]
        except OSError as error:
            self.drop(number)
            return answer + reported + [f"closed ({error})"]
        return answer

    def drop(self, number):
        self.sessions[number].sock.close()
        self.sessions[number] = None

    def listen(self, number, seconds=0.0):
        """Takes what has come without being asked for; what is no notification stands in `heard` as well."""
        session = self.sessions[number]
        while session and session.pending(seconds):
            message = session.receive()
            if message is None:
                self.heard[number].append("closed")
                self.sessions[number] = None
                return
            answer, reported = [], []
            self._sort(number, message, answer, reported)
            self.heard[number] += answer + reported

    def end(self):
        for number, _session in enumerate(self.sessions):
            with contextlib.suppress(OSError):
                self.leave(number)


class Capacity:
    """Says whether a session would wait for a server connection, by the pooler's own view of who holds one."""

    def __init__(self, console, side, pool_size):
        self.console, self.side, self.pool_size = console, side, pool_size

    def holders(self):
        rows = self.console.execute("SHOW CLIENTS")
        port, link = rows.columns.index("port"), rows.columns.index("link")
        linked = {row[port] for row in rows.rows if row[link]}
        return [number for number, session in enumerate(self.side.sessions)
                if session and str(session.sock.getsockname()[1]) in linked]

    def is_free_for(self, number):
        if self.side.status(number) in ("T", "E"):
            return True
        holders = self.holders()
        return number in holders or len(holders) < self.pool_size


class Match:
    """One case, on both sides. `record` is what was played, with the steps that made room."""

    def __init__(self, direct, through, capacity=None, settle=lambda pid: None):
        self.direct, self.through, self.capacity, self.settle = direct, through, capacity, settle
        self.record, self.started = [], []
        self.notified = {}  # of each session that has notified, the time of its last step
        self.relieved = 0

    def begin(self, parameters):
        for number, start in enumerate(parameters):
            self.started.append(start)
            self._compare(-1, self.direct.connect(number, start), self.through.connect(number, start))

    def step(self, number, kind, payload):
        if kind not in ENDS and self.capacity:
            self._make_room(number)
        self._step(number, kind, payload)

    def _make_room(self, number):
        """By what a session can do: end its transaction, then DISCARD ALL, then leave."""
        for kind, payload in (("query", "rollback"), ("query", "discard all"), ("leave", None)):
            for holder in self.capacity.holders():
                if self.capacity.is_free_for(number):
                    return
                if holder == number or payload == "rollback" and self.direct.status(holder) == "I":
                    continue
                self.relieved += 1
                self._step(holder, kind, self.started[holder] if kind == "leave" else payload)

    def _step(self, number, kind, payload):
        self.record.append([number, kind, payload])
        at = len(self.record) - 1
        if number in self.notified or "notify" in str(payload):
            self.notified[number] = time.monotonic()
        if kind in ENDS:
            sides, start = (self.direct, self.through), payload
            if kind == "cut":
                start = payload["start"]
                pid, _ = (side.cut(number, payload["step"], payload["part"]) for side in sides)
            else:
                pid, _ = (side.leave(number, kind == "leave") for side in sides)
            self.started[number] = start
            # What the session held is given up when the server has seen it leave, which is a little later.
            self.settle(pid)
            answers = [side.connect(number, start) for side in sides]
        else:
            answers = [side.play(number, kind, payload) for side in (self.direct, self.through)]
        self._compare(at, *answers)
        self._notifications(at, number, payload)

    def _compare(self, at, direct, through):
        if direct != through:
            raise Different(at, self.record[at] if self.record else "login", direct, through)

    def _notifications(self, at, number, payload):
        """What the server has brought to a session that is idle, Hawser brings too, and no more."""
        if "notify" in str(payload) or "commit" in str(payload):
            for other, session in enumerate(self.direct.sessions):
                if session and session.status == "I":
                    self.direct.play(other, "query", "")
        for other in range(len(self.direct.sessions)):
            end = time.monotonic() + NOTIFICATION_SECONDS
            self.through.listen(other)
            while len(self.through.heard[other]) < len(self.direct.heard[other]) and time.monotonic() < end:
                self.through.listen(other, 0.02)
            if not self._same_heard(self.direct.heard[other], self.through.heard[other]):
                raise Different(at, self.record[at], [f"session {other} heard", *self.direct.heard[other]],
                                [f"session {other} heard", *self.through.heard[other]])

    def _same_heard(self, direct, through):
        """Whether they are the same, but for senders that Hawser cannot know. What is compared once is not compared again."""
        recent = [number for number, at in self.notified.items() if time.monotonic() - at < NOTIFIERS_SECONDS]
        same = len(direct) == len(through) and all(
            one == two or len(recent) > 1 and two == f"{one.rpartition(' from ')[0]} from no session"
            for one, two in zip(direct, through, strict=True))
        if same:
            through[:] = direct
        return same

    def end(self):
        self.direct.end()
        self.through.end()
