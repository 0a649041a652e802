"""What sessions of the isolation test do: the valid and the hostile, each with what must come back.

An operation is a function of a Session with a weight. Those that need a session outside of a transaction block say so.
"""

import datetime
import os
import time
import zoneinfo

from session import ROLES, UMLAUT, VALUES, Wrong, header_of
from harness import messages as m

OPERATIONS = {}
WITHIN_BLOCKS = []
STATEMENTS = ("s0", "s1", "s2")
BY_SQL = ("p0", "p1")
COPIED_ROWS = 20_000


def operation(weight, within_block=False):
    def mark(work):
        OPERATIONS[work] = weight
        if within_block:
            WITHIN_BLOCKS.append(work)
        return work
    return mark


def chance(session, percent):
    return session.rng.random() * 100 < percent


# Settings

LOOK = ("select coalesce(current_setting('app.who', true), ''), coalesce(current_setting('app.x', true), ''), "
        "current_setting('application_name'), current_setting('search_path'), current_setting('work_mem'), "
        "current_setting('TimeZone'), current_setting('DateStyle'), current_setting('client_encoding'), current_user::text, chr(228)")


@operation(14, within_block=True)
def look(session):
    state = session.state
    wanted = [state[name] for name in ("app.who", "app.x", "application_name", "search_path", "work_mem", "TimeZone", "DateStyle",
                                       "client_encoding")]
    wanted += [state["role"] or session.user, UMLAUT[state["client_encoding"]]]
    result = session.query(LOOK) if chance(session, 50) else session.extended(LOOK)
    session.rows(result, [wanted], "the session's settings")
    session.check_reported()


def own_value(session, name):
    if name == "role":
        return session.rng.choice(ROLES[session.user])
    if name == "TimeZone" and chance(session, 60):
        return zone_of(session)
    return session.rng.choice(VALUES[name]) if name in VALUES else session.secret("v")


def literal(name, value):
    return value if name in ("search_path", "role") else f"'{value}'"


@operation(14, within_block=True)
def change_setting(session):
    name = session.rng.choice(["app.who", "app.who", "app.x", "application_name", "search_path", "work_mem", "TimeZone", "DateStyle",
                               "client_encoding", "role"])
    value, kind = own_value(session, name), session.rng.randrange(12)
    local = session.in_block and chance(session, 25)
    if kind == 0:
        session.query(f"reset {name}")
        return session.state.reset(name)
    if kind == 1:
        session.rows(session.query(f"select set_config('{name}', '{value}', {local})"), [[value]], "set_config")
    elif kind == 2:
        session.rows(session.extended("select set_config($1, $2, $3::bool)", name, value, str(local)), [[value]],
                     "set_config of parameters")
    elif kind == 3:
        session.rows(session.extended(f"select set_config('{name}', $1, {local})", value), [[value]], "set_config of a value")
    elif kind == 4 and name == "app.who" and not local:
        session.rows(session.query(f"select isolated.sets_who('{value}')"), [[value]], "set_config in a function")
    elif kind == 5 and not session.in_block:
        return set_in_vain(session, name, value)
    elif kind == 6:
        session.extended(f"set {'local' if local else 'session'} {name} = {literal(name, value)}")
    else:
        session.query(f"set {'local' if local else 'session'} {name} = {literal(name, value)}")
    session.state.set(name, value, local)


def set_in_vain(session, name, value):
    """What is taken back with the transaction that it is part of."""
    sets = f"set {name} = {literal(name, value)}"
    kind = session.rng.randrange(4)
    if kind == 0:
        session.fails_with(session.query(f"{sets}; select 1/0", fails=True), "a text that fails", "22012")
    elif kind == 1:
        session.query(f"begin; {sets}; select 1; rollback")
    elif kind == 2:
        session.note(f"pipeline: {sets}, 1/0")
        result = session.exchange(m.run(sets), m.run("select 1/0"), m.SYNC, fails=True)
        session.fails_with(result, "a pipeline that fails", "22012")
    else:
        session.fails_with(session.query(f"select isolated.fails_after('{value}')", fails=True), "a function that fails", "22012")
    look(session)


@operation(2)
def change_all(session):
    if chance(session, 50):
        session.query("reset all")
        return session.state.reset_all(role_too=False)
    for key in session.held:
        session.locks.pop(key, None)
    how = session.rng.choice(["query", "pipeline", "Sync after the answer"])
    session.note(f"discard all: {how}")
    if how == "query":
        session.exchange(m.query("discard all"))
    elif how == "pipeline":
        session.exchange(m.run("discard all"), m.SYNC)
    else:
        session.send(m.run("discard all"), m.FLUSH)
        session.collect(until="CE")
        session.exchange(m.SYNC)
    session.state.reset_all(role_too=True)
    session.statements, session.by_sql, session.shared = {}, {}, {}
    session.temporary = session.cursor = session.drawn = None
    session.channels, session.held, session.due = set(), set(), []


@operation(3)
def own_rows(session):
    """Row-level security by a setting."""
    if session.state["role"]:
        return
    own = session.secret("row")
    session.query(f"set app.who = '{own}'")
    session.state.set("app.who", own)
    session.query(f"insert into isolated.owned values ('{own}', '{own}')")
    sql = "select v from isolated.owned"
    session.rows(session.query(sql) if chance(session, 50) else session.extended(sql), [[own]], "row-level security")
    session.query("delete from isolated.owned")


# Answers

@operation(10, within_block=True)
def tags(session):
    """Answers in their order, of one query or many."""
    several = [session.secret("tag") for _ in range(session.rng.randrange(2, 8))]
    kind = session.rng.randrange(4)
    if kind == 0:
        session.rows(session.query(f"select '{several[0]}'"), [several[:1]], "one query")
    elif kind == 1:
        session.rows(session.extended("select $1::text", several[0]), [several[:1]], "one query of parameters")
    elif kind == 2:
        session.send(*(m.run("select $1::text", (one,)) + m.SYNC for one in several))
        for one in several:
            session.rows(session.collect(), [[one]], "a pipeline with a Sync each")
    else:
        result = session.exchange(*(m.run("select $1::text", (one,)) for one in several), m.SYNC)
        session.rows(result, [[one] for one in several], "a pipeline with one Sync")


@operation(1)
def much(session):
    """A parameter that is longer than any buffer."""
    long = (session.secret("long") + "-") * session.rng.randrange(1000, 30_000)
    session.rows(session.extended("select length($1::text)::text, right($1::text, 30)", long), [[str(len(long)), long[-30:]]],
                 "a long parameter")


# Prepared statements

def text_of(session, secret):
    if chance(session, 60):
        return f"select '{secret}' || $1::text", False
    return f"select coalesce(current_setting('app.who', true), '') || '/{secret}/' || $1::text", True


def expected_of(session, statement, argument):
    secret, with_setting = statement
    return f"{session.state['app.who']}/{secret}/{argument}" if with_setting else secret + argument


def run_prepared(session, name, statement):
    argument = session.secret("a")
    session.note(f"run {name!r}")
    described = m.describe_portal() if chance(session, 50) else b""
    result = session.exchange(m.bind(name, values=(argument,)), described, m.execute(), m.SYNC)
    session.rows(result, [[expected_of(session, statement, argument)]], f"statement {name!r}")


@operation(16, within_block=True)
def prepared(session):
    name = session.rng.choice(STATEMENTS)
    known = session.statements.get(name)
    if known is None or chance(session, 35):
        secret = session.secret("s")
        sql, with_setting = text_of(session, secret)
        closes = m.close_statement(name) if known else b""
        session.note(f"Parse {name} {sql}")
        session.exchange(closes, m.parse(sql, name), m.SYNC)
        session.statements[name] = (secret, with_setting)
    elif chance(session, 90):
        run_prepared(session, name, known)
    else:
        session.note(f"Close {name}")
        session.exchange(m.close_statement(name), m.SYNC)
        del session.statements[name]


@operation(4, within_block=True)
def unnamed(session):
    """The unnamed statement, over several Syncs, with others in between."""
    secret = session.secret("u")
    sql, with_setting = text_of(session, secret)
    session.note(f"Parse unnamed {sql}")
    session.exchange(m.parse(sql), m.SYNC)
    for _ in range(session.rng.randrange(1, 4)):
        if session.statements and chance(session, 40):
            run_prepared(session, *session.rng.choice(sorted(session.statements.items())))
        run_prepared(session, "", (secret, with_setting))


@operation(4)
def missing(session):
    """Statements of others' have the same names."""
    name = session.rng.choice([*STATEMENTS, "never"])
    if name not in session.statements:
        session.note(f"run {name}, which is missing")
        result = session.exchange(m.bind(name, values=("x",)), m.execute(), m.SYNC, fails=True)
        session.fails_with(result, f"statement {name}", "26000")


# Statements of which all sessions have the same text: what it gives depends on the session's own settings, those in force
# when it runs or, of the constants of times and dates, those in force when it is analysed.
SHARED = {
    "custom": "select coalesce(current_setting('app.x', true), '') || '/' || $1::text",
    "two": "select coalesce(current_setting('app.x', true), '') || '/' || current_setting('search_path') || '/' || $1::text",
    "table": "select w || '/' || $1::text from whereabouts",
    "time": "select extract(epoch from timestamptz '2020-03-04 05:06')::bigint::text || '/' || $1::text",
    "date": "select (date '01/02/2020' - date '2020-01-01')::text || '/' || $1::text",
}
SHARED_NAMES = ("same0", "same1", "same2")


def zone_of(session):
    """A time zone that no other session has: so many minutes from UTC."""
    return f"<S{session.number}>-0:{session.number + 1:02}"


def epoch_of(zone):
    if zone.startswith("<S"):
        minutes = int(zone.rpartition(":")[2])
        return int(datetime.datetime(2020, 3, 4, 5, 6, tzinfo=datetime.UTC).timestamp()) - 60 * minutes
    return int(datetime.datetime(2020, 3, 4, 5, 6, tzinfo=zoneinfo.ZoneInfo(zone)).timestamp())


def analysed_under(session):
    """What PostgreSQL reads when it analyses a text; it does so again for whatever reason of its own when it is run."""
    return session.state["TimeZone"], session.state["DateStyle"]


def check_shared(session, result, which, argument, analysed):
    """`analysed`: all settings that the statement can have been analysed under."""
    state = session.state
    if which == "custom":
        possible = {state["app.x"]}
    elif which == "two":
        possible = {f"{state['app.x']}/{state['search_path']}"}
    elif which == "table":
        possible = {"isolated" if "isolated" in state["search_path"] else "public"}
    elif which == "time":
        possible = {str(epoch_of(zone)) for zone, _ in analysed}
    else:
        possible = {"31" if "DMY" in style else "1" for _, style in analysed}
    ((got,),) = result.rows
    if got not in {f"{value}/{argument}" for value in possible}:
        raise Wrong(f"the shared text {which!r}, analysed under {sorted(analysed)}: got {got!r}, expected {sorted(possible)}")


@operation(4, within_block=True)
def set_for_shared(session):
    """What shared texts depend on."""
    name = session.rng.choice(["app.x", "app.x", "search_path", "TimeZone", "DateStyle"])
    value = own_value(session, name)
    sql = f"set {name} = {literal(name, value)}"
    session.query(sql) if chance(session, 50) else session.extended(sql)
    session.state.set(name, value)


@operation(12, within_block=True)
def shared(session):
    """A text that all have, unnamed or by a name that all have, at once or again later, after one's settings have changed."""
    which, argument = session.rng.choice(list(SHARED)), session.secret("sh")
    if chance(session, 30):
        session.note(f"shared {which}, unnamed")
        result = session.exchange(m.run(SHARED[which], (argument,)), m.SYNC)
        return check_shared(session, result, which, argument, {analysed_under(session)})
    name = session.rng.choice(SHARED_NAMES)
    parses = b""
    if name not in session.shared or chance(session, 20):
        parses = (m.close_statement(name) if name in session.shared else b"") + m.parse(SHARED[which], name)
        session.shared[name] = (which, {analysed_under(session)})
        if chance(session, 50):
            session.note(f"shared {which}, Parse {name}")
            session.exchange(parses, m.SYNC)
            parses = b""
    which, analysed = session.shared[name]
    analysed.add(analysed_under(session))
    described = m.describe_portal() if chance(session, 30) else b""
    session.note(f"shared {which}, {'Parse and ' if parses else ''}run {name}")
    result = session.exchange(parses, m.bind(name, values=(argument,)), described, m.execute(), m.SYNC)
    check_shared(session, result, which, argument, analysed)


@operation(6)
def by_sql(session):
    name = session.rng.choice(BY_SQL)
    if (known := session.by_sql.get(name)) and chance(session, 70):
        sql = f"execute {name}('z')"
        session.rows(session.query(sql) if chance(session, 60) else session.extended(sql), [[known + "z"]], "EXECUTE")
    elif known:
        session.query(f"deallocate {name}")
        del session.by_sql[name]
    elif chance(session, 30):
        session.fails_with(session.query(f"execute {name}('z')", fails=True), f"EXECUTE of {name}", "26000")
    else:
        session.by_sql[name] = session.secret("q")
        session.query(f"prepare {name}(text) as select '{session.by_sql[name]}' || $1")


# What pins

@operation(1.5)
def temporary_table(session):
    if session.state["role"]:
        session.query("reset role")
        session.state.reset("role")
    if session.temporary:
        session.rows(session.query("select v from pg_temp.kept"), [[session.temporary]], "temporary table")
        if chance(session, 60):
            session.query("drop table pg_temp.kept")
            session.temporary = None
    elif chance(session, 40):
        session.fails_with(session.query("select v from pg_temp.kept", fails=True), "a temporary table of nobody's", "42P01")
    else:
        secret = session.secret("t")
        session.query(f"create temporary table kept as select '{secret}' as v")
        session.temporary = secret


@operation(1)
def cursor(session):
    if session.cursor:
        session.rows(session.query("fetch backward all from held"), [[session.cursor]], "cursor")
        session.query("close held")
        session.cursor = None
        return
    session.fails_with(session.query("fetch all from held", fails=True), "a cursor of nobody's", "34000")
    secret = session.secret("c")
    session.query(f"declare held scroll cursor with hold for select '{secret}'")
    session.cursor = secret
    session.rows(session.query("fetch all from held"), [[secret]], "cursor")


@operation(2)
def lock(session):
    """Advisory locks of which no two sessions may believe that they have one. (It is known as held after it has been taken,
    and no longer before it is given up.)"""
    key = (session.database, session.rng.randrange(4) + 1000 * os.getpid())
    if key in session.held:
        session.held.discard(key)
        session.locks.pop(key, None)
        session.rows(session.query(f"select pg_advisory_unlock({key[1]})"), [["t"]], "a lock that is held")
    elif chance(session, 50):
        session.rows(session.query(f"select pg_advisory_unlock({key[1]})"), [["f"]], "a lock that is not held")
    elif session.query(f"select pg_try_advisory_lock({key[1]})").rows == [("t",)]:
        if (other := session.locks.setdefault(key, session.number)) != session.number:
            raise Wrong(f"lock {key} is held by {other} and {session.number}")
        session.held.add(key)


@operation(4, within_block=True)
def sequence(session):
    """A value of one's own, or the error that there is none: where nobody has asked in the pool before, or too late, it is forgotten."""
    if chance(session, 60):
        sql = session.rng.choice(["insert into isolated.numbered default values returning n", "select nextval('isolated.numbered_n_seq')"])
        result = session.query(sql) if chance(session, 50) else session.extended(sql)
        ((session.drawn,),) = result.rows
    elif not session.in_block:
        sql = session.rng.choice(["select lastval()", "select currval('isolated.numbered_n_seq')"])
        result = session.query(sql, fails=True) if chance(session, 50) else session.extended(sql, fails=True)
        if session.drawn is None or result.errors:
            session.fails_with(result, "a value that was not drawn", "55000")
            session.drawn = None
        else:
            session.rows(result, [[session.drawn]], "the value drawn last")


# A server process that ends gives up what is believed to be held.
WITHOUT_DEATHS = (lock,)


def give_up_what_pins(session):
    """Others wait for the few server connections."""
    if session.temporary:
        if session.state["role"]:
            session.query("reset role")
            session.state.reset("role")
        session.rows(session.query("select v from pg_temp.kept"), [[session.temporary]], "temporary table")
        session.query("drop table pg_temp.kept")
        session.temporary = None
    if session.cursor:
        cursor(session)
    for key in list(session.held):
        session.held.discard(key)
        session.locks.pop(key, None)
        session.rows(session.query(f"select pg_advisory_unlock({key[1]})"), [["t"]], "a lock that is held")


@operation(4)
def channels(session):
    channel, kind = f"channel{session.rng.randrange(6)}", session.rng.randrange(10)
    if session.due:
        session.query("select 1")  # one's own has come by now
        session.same(session.due, [], "notifications of one's own that are missing")
    if kind < 3:
        session.channels.add(channel)
        session.query(f"listen {channel}")
    elif kind < 5:
        session.query(f"unlisten {channel}")
        session.channels.discard(channel)
    elif kind < 6:
        session.query("unlisten *")
        session.channels = set()
    else:
        payload = f"{channel}:{session.number}.{session.generation}.{session.count}"
        session.count += 1
        if channel in session.channels:
            session.due.append(payload)
        session.query(f"notify {channel}, '{payload}'")


# Transactions

@operation(8)
def block(session):
    session.in_block = True
    session.query("begin")
    session.state.save()
    for _ in range(session.rng.randrange(1, 5)):
        session.rng.choice(WITHIN_BLOCKS)(session)
        if len(session.state.frames) == 1 and chance(session, 20):
            session.query("savepoint a")
            session.state.save()
        elif len(session.state.frames) > 1 and chance(session, 40):
            session.fails_with(session.query("select 1/0", fails=True), "within a savepoint", "22012")
            session.query("rollback to a")
            session.state.back_to_last()
    end = session.rng.randrange(100)
    if end >= 90:
        return session.end()  # as it is
    if end >= 75:
        session.query("select 1/0", fails=True)
        session.fails_with(session.query("select 5", fails=True), "in a transaction that has failed", "25P02")
    session.in_block = False
    session.query("rollback" if 45 <= end < 75 else "commit")
    session.state.end(commits=end < 45)
    look(session)


FAILURES = (m.parse("select 1/0") + m.bind() + m.execute(), m.parse("selec"), m.bind("nothing"), m.execute("no_portal"),
            m.describe_portal("no_portal"),
            m.parse("select $1::int") + m.bind(values=("x",)) + m.execute())


@operation(8)
def failing_pipeline(session):
    """What stands before the error is answered, what stands after it up to the Sync is not, and what stands after the Sync is."""
    name, one, other = f"e{session.rng.randrange(3)}", session.secret("e"), session.secret("e")
    failure = session.rng.choice(FAILURES)
    session.note(f"pipeline that fails: {failure[:60]!r}")
    clean = m.close_statement(name) + m.close_statement("after")
    session.exchange(clean, m.SYNC)
    first = m.parse(f"select '{one}' || $1::text", name) + m.bind(name, values=("1",)) + m.execute()
    ignored = m.parse(f"select '{other}'", "after") + m.bind("after") + m.execute()
    session.send(first, failure, ignored, m.SYNC, m.bind(name, values=("2",)), m.execute(), m.SYNC)
    result = session.collect(fails=True)
    if [list(row) for row in result.rows] != [[one + "1"]] or not result.errors:
        raise Wrong(f"pipeline that fails: {result.rows} {result.errors}")
    session.rows(session.collect(), [[one + "2"]], "the pipeline after one that fails")
    session.exchange(clean, m.SYNC)
    look(session)


@operation(4)
def failing_alone(session):
    """A pipeline that is nothing but its failure, again and again: settings that go with it are taken back with it."""
    for _ in range(session.rng.randrange(1, 4)):
        session.note("pipeline that fails at once")
        session.fails_with(session.exchange(m.run("select 1/0"), m.SYNC, fails=True), "1/0", "22012")
    look(session)


@operation(0.5)
def failing_in_much(session):
    """An error while megabytes are on their way."""
    long = "x" * session.rng.randrange(30_000, 100_000)
    session.note(f"pipeline of {len(long)} bytes each that fails")
    one = m.parse("select length($1)::text", "l0") + m.parse("select 1/length($1)", "l1")
    clean = m.close_statement("l0") + m.close_statement("l1")
    runs = [m.bind("l0", values=(long,)) + m.execute() for _ in range(session.rng.randrange(5, 30))]
    runs.insert(session.rng.randrange(len(runs)), m.bind("l1", values=("",)) + m.execute())
    session.exchange(clean, m.SYNC)
    session.send(one, *runs, m.SYNC, m.query(f"select '{len(runs)}'"))
    session.fails_with(session.collect(fails=True), "an error among much", "22012")
    session.rows(session.collect(), [[str(len(runs))]], "after an error among much")
    session.exchange(clean, m.SYNC)


# COPY and cancel requests

@operation(2)
def copy(session):
    secret, kind = session.secret("copy"), session.rng.randrange(5)
    session.note(f"copy {kind}")
    if kind >= 3:
        session.send(m.query(f"copy (select '{secret}' from generate_series(1, {COPIED_ROWS})) to stdout"))
        if kind == 3:
            session.connection.receive()
            return session.end()
        result = session.collect()
        return session.same(b"".join(result.copied), f"{secret}\n".encode() * COPIED_ROWS, "COPY TO")
    session.send(m.query("copy isolated.plain from stdin"))
    if session.collect(until="GEZ").errors:
        raise Wrong("COPY FROM was refused")
    session.send(m.copy_data(f"1\t{secret}\n".encode()))
    if kind == 0:
        return session.end()
    if kind == 1:
        session.fails_with(session.exchange(m.copy_fail("enough"), fails=True), "CopyFail", "57014")
    else:
        result = session.exchange(m.copy_data(b"no number\tx\n"), m.COPY_DONE, fails=True)
        session.fails_with(result, "COPY of what is no number", "22P02")


@operation(2)
def cancel(session):
    secret = session.secret("cancel")
    session.note("cancel")
    if chance(session, 50):
        session.send(m.query(f"select '{secret}' from pg_sleep(1)"))
        time.sleep(session.rng.random() * 0.05)
        session.connection.cancel(session.target)
        result = session.collect(fails=True)
        if result.errors:
            session.fails_with(result, "a query that is cancelled", "57014")
        return
    with session.target.open() as other:  # of nobody's
        other.send(m.cancel_request(session.connection.pid + session.rng.randrange(-3, 4), os.urandom(4)))
        other.is_closed()
    session.connection.cancel(session.target)  # while it does nothing
    result = session.query(f"select '{secret}'", fails=True)
    if result.errors:
        session.fails_with(result, "the query after a cancel request", "57014")


# What ends a connection

def traffic(session):
    """Some messages, whole."""
    secret, role = session.secret("cut"), ROLES[session.user][0]
    name = f"s{session.rng.randrange(3)}"
    return session.rng.choice((
        m.parse(f"select '{secret}'", name) + m.bind(name) + m.describe_portal() + m.execute() + m.SYNC,
        m.run(f"set app.who = '{secret}'") + m.SYNC + m.query(f"select '{secret}'"),
        b"".join(map(m.query, ("begin", f"set app.who = '{secret}'", f"create temporary table kept as select '{secret}' as v", "commit"))),
        m.run(f"set app.x = '{secret}'") + m.run(f"set timezone = '{zone_of(session)}'") + m.SYNC
        + b"".join(m.parse(SHARED[which], same) for which, same in zip(SHARED, SHARED_NAMES)) + m.run(SHARED["time"], (secret,)) + m.SYNC,
        m.run(SHARED["custom"], (secret,)) + m.run("set datestyle = 'ISO, DMY'") + m.parse(SHARED["date"], "same0") + m.run("select 1/0")
        + m.SYNC,
        m.query(f"set role {role}; set application_name = '{secret}'; prepare p0(text) as select '{secret}'"),
        m.query(f"listen channel1; declare held scroll cursor with hold for select '{secret}'") + m.parse(f"select '{secret}' || $1", "s1")
        + m.SYNC,
        m.query("copy isolated.plain from stdin") + m.copy_data(f"1\t{secret}\n".encode()) + m.COPY_DONE + m.query(f"select '{secret}'"),
        m.run("copy isolated.plain from stdin") + m.SYNC + m.copy_data(f"1\t{secret}\n".encode()) + m.copy_fail("no") + m.SYNC,
        m.run(f"select '{secret}' from generate_series(1, 20000)") + m.FLUSH + m.execute(rows=5) + m.SYNC,
        m.query(f"select '{secret}' from generate_series(1, 50000)"),
        m.run("select 1/0") + m.run(f"set app.who = '{secret}'") + m.SYNC,
        m.run(f"select isolated.sets_who('{secret}')") + m.run("select 1/0"),
        m.query(f"savepoint nowhere; set app.x = '{secret}'") + m.query(f"select pg_advisory_lock({1000 * os.getpid() + 999})"),
    ))


@operation(3)
def cut(session):
    """It goes at any byte of what it sends."""
    data = traffic(session) + (traffic(session) if chance(session, 50) else b"")
    session.note(f"cut {data[:80]!r}")
    session.send(data[: session.rng.randrange(len(data) + 1)])
    if chance(session, 50):
        time.sleep(session.rng.random() * 0.02)
    session.end()


@operation(1)
def goodbye(session):
    session.note("goodbye")
    session.send(traffic(session) if chance(session, 30) else b"", m.TERMINATE)
    session.end(resets=False)


def violation(session):
    """What breaks the protocol."""
    return session.rng.choice((
        header_of(b"?", 4), header_of(b"Q", 3), header_of(b"Q", 0), header_of(b"Q", -1), header_of(b"Q", 1 << 31, b"abc"),
        header_of(b"P", 5, b"a"),
        m.message("B", b"\0\0\0\1"), m.message("B", b"\0s0\0\0\0\xff\xff"), m.message("B", b"\0s0\0\0\0\1\0\0\0\1\x7f\xff\xff\xff"),
        m.message("E", b"x"),
        m.message("D", b"Zx\0"), m.message("C", b"Q\0"), m.message("F", b"\0\0\0\1"), m.message("F", session.rng.randbytes(20)),
        m.message("p", b"x\0"),
        m.copy_data(b"stray"), m.COPY_DONE, m.copy_fail("stray"), m.message("S", b"more"), m.message("H", b"more"),
        m.message("Q", b"select 1"),
        m.message("Q", b"select 1\0select 2\0"), m.message("P", b"n\0select 1\0\0\5"), m.message("R", b"\0\0\0\0"), m.message("Z", b"I"),
        m.message("D"),
        m.message("T"), session.rng.randbytes(session.rng.randrange(1, 60)),
    ))  # fmt: skip


@operation(2)
def violate(session):
    wrong = violation(session)
    session.note(f"violation {wrong[:40]!r}")
    session.send(traffic(session) if chance(session, 40) else b"", wrong, m.SYNC, m.query(f"select '{session.secret('after')}'"))
    end = time.monotonic() + 0.5
    while time.monotonic() < end and session.connection.pending(0.2):
        try:
            if session.connection.receive() is None:
                break
        except OSError:
            break  # how it is answered is not at stake, only whose bytes come
    session.end()
