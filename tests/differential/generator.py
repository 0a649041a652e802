"""Makes the next step of a session: a statement or a pipeline about what a session is made of.

# Model       next_step(status) -> (kind, payload); the parts of docs/sessions/README.md, each with what makes, shows and ends it
# Invariants  the same seed and the same answers give the same steps; nothing waits for another session (locks are tried,
#             shared tables only read and inserted into), so that a step's answer depends on nothing that runs beside it
#             The schema is changed by one session at a time, while no session is in a transaction: see Changing
# Limits      what functions hide (`hidden`) is made only where the server reports it: see docs/sessions/functions.md
"""

SETUP = """
create table if not exists numbered (id int generated always as identity, n serial, t text);
create sequence if not exists counter;
create schema if not exists shelf;
create table if not exists shelf.things as select 'of the shelf' as place;
create table if not exists public.things as select 'of public' as place;
create schema if not exists changing authorization differ;
grant all on schema changing to public;
alter default privileges for role differ, differ_super in schema changing grant all on tables to public;
create or replace function sets(name text, v text) returns text language sql as $$ select set_config(name, v, false) $$;
create or replace function sets_work_mem(v text) returns void language plpgsql set search_path = pg_catalog
  as $$ begin perform set_config('work_mem', v, false); end $$;
create or replace function keeps(statement text) returns void language plpgsql as $$ begin execute statement; end $$;
create or replace function fails_after(statement text) returns void language plpgsql
  as $$ begin begin execute statement; perform 1/0; exception when division_by_zero then null; end; end $$;
create or replace procedure commits_between() language plpgsql
  as $$ begin set work_mem to '5MB'; perform set_config('my.a', 'of a procedure', false); commit;
    set work_mem to '6MB'; perform set_config('my.a', 'taken back', false); rollback; set intervalstyle to iso_8601; end $$;
create or replace procedure fails_behind_a_commit() language plpgsql
  as $$ begin set work_mem to '5MB'; perform set_config('my.b', 'of a procedure', false); commit;
    set work_mem to '6MB'; perform set_config('my.b', 'taken back', false); perform 1/0; end $$;
create or replace function in_its_own_zone() returns text language plpgsql set timezone = 'Asia/Tokyo'
  as $$ begin return '2024-06-01 12:00+00'::timestamptz::text; end $$;
grant select, insert on all tables in schema public, shelf to public;
grant usage on schema shelf to public;
grant all on all sequences in schema public to public;
"""
# Between two cases: what they count on is the same again.
RESET = """
drop table if exists changing.t; create table changing.t (v int, w text); alter table changing.t owner to differ;
grant all on changing.t to public; insert into changing.t values (1, 'one');
drop function if exists changing.f(int); drop function if exists changing.f(text);
create function changing.f(int) returns int language sql as 'select $1'; alter function changing.f(int) owner to differ;
truncate numbered; alter sequence counter restart; alter sequence numbered_n_seq restart; alter sequence numbered_id_seq restart
"""

REPORTED = {
    "application_name": ("one", "it''s two", ""),
    "TimeZone": ("Europe/Berlin", "Asia/Tokyo", "UTC", "nowhere/land"),
    "DateStyle": ("German", "ISO, DMY", "dmy", "SQL", "mdy"),
    "IntervalStyle": ("postgres_verbose", "iso_8601", "none"),
    "client_encoding": ("LATIN1", "UTF8"),
    "standard_conforming_strings": ("on", "off"),
}
UNREPORTED = {
    "work_mem": ("5MB", "6144", "1"),
    "statement_timeout": ("0", "1h"),
    "enable_seqscan": ("on", "off"),
    "extra_float_digits": ("0", "3", "9"),
    "bytea_output": ("hex", "escape"),
    "default_transaction_isolation": ("serializable", "read committed"),
    "default_transaction_read_only": ("on", "off"),
    "search_path": ("shelf", "public", "shelf, public"),
    "lock_timeout": ("10s", "0"),
    "no_such_setting": ("1",),
    "max_connections": ("5",),
}
CUSTOM = ("my.a", "my.b", "your.c")
CHANNELS = ("one", "two")
ROLES = ("helper_role", "differ_other", "none", "nobody_at_all")
START = ({}, {}, {}, {"application_name": "started"}, {"TimeZone": "America/New_York"}, {"search_path": "shelf,public"},
         {"options": "-c statement_timeout=77s -c work_mem=3MB"}, {"DateStyle": "German, DMY", "IntervalStyle": "sql_standard"},
         {"options": "-c my.a=from_start"})

SHOW = (
    "select '2024-06-01 12:00+00'::timestamptz, interval '1 day 2 hours', 1.1::float8/3, '\\x01'::bytea",
    "select place from things",
    "select current_user, session_user, current_setting('role')",
    "select name, setting from pg_settings where name in ('TimeZone', 'DateStyle', 'work_mem', 'search_path', 'application_name', "
    "'statement_timeout') order by 1",
    "select current_setting('my.a', true), current_setting('my.b', true), current_setting('your.c', true)",
)
IN_FORCE = "select " + ", ".join(f"coalesce(current_setting('{name}', true), '')" for name in (*REPORTED, *UNREPORTED, *CUSTOM, "role"))
# What is gone with its session, whoever sees how much of it the server has still carried out.
OF_THE_SESSION = ("settings", "settings_by_other_words", "custom", "role", "sql_statements", "temporary", "cursors", "locks", "failures",
                  "shows")
# Pipelines that fail, each in its own way.
FAILURES = ([["run", "select 1/0"]], [["run", "selekt 1"]], [["execute", "nowhere", 0]], [["bind", "", "nowhere"], ["execute", "", 0]],
            [["describe", "P", "nowhere"]])
# Of a PREPARE its own text alone, and of set_config() none of its value: what stands around the one, and for a NULL in the
# other, is not always shown as on a direct connection (docs/sessions/prepared-statements.md, "Statements of PREPARE").
LIST = ("select name, regexp_replace(case when from_sql then substring(statement from '(?i)prepare ' || name || '[^;]*') else "
        "statement end, "
        "'(set_config[(][^,]*), [^,]*', '\\1'), parameter_types, from_sql from pg_prepared_statements order by name")


def quoted(text):
    return "'" + text.replace("'", "''") + "'"


class Generator:
    """Steps of one session. `features` are names out of FEATURES; `rng` is shared by the sessions of a case."""

    def __init__(self, rng, features, superuser):
        self.rng = rng
        self.superuser = superuser
        self.parts = [(weight, getattr(self, name)) for name, weight in FEATURES.items() if name in features]
        self.weights = [weight for weight, _ in self.parts]

    def statement(self):
        (_, part), = self.rng.choices(self.parts, self.weights)
        return part()

    # The parts: each gives one statement that makes, uses or ends it.

    def _value(self):
        table = self.rng.choice((REPORTED, REPORTED, UNREPORTED))
        name = self.rng.choice(list(table))
        return name, self.rng.choice(table[name])

    def settings(self):
        name, value = self._value()
        literal = value if name == "search_path" else f"'{value}'"
        return self.rng.choice([
            f"set {name} to {literal}", f"set {name} to {literal}", f"set session {name} = {literal}", f"set local {name} to {literal}",
            f"reset {name}", f"set {name} to default", f"set local {name} to default", f"show {name}", f"show {name}",
            f"select set_config('{name}', '{value}', {self.rng.choice(['true', 'false'])})", f"select current_setting('{name}')",
            "reset all",
        ])

    def settings_by_other_words(self):
        return self.rng.choice([
            "set time zone 'Asia/Tokyo'", "set time zone 3", "set time zone default", "set time zone local", "set local time zone 'UTC'",
            "set names 'latin1'", "set names default", "set session characteristics as transaction read only",
            "set session characteristics as transaction isolation level serializable, read write",
            "set transaction read only", "set transaction isolation level repeatable read", "show transaction isolation level",
            "show time zone", "show session authorization", "reset time zone",
            "update pg_settings set setting = '7MB' where name = 'work_mem'",
            "do $$ begin set work_mem to '9MB'; end $$", "do $$ begin perform set_config('timezone', 'Asia/Tokyo', false); end $$",
            "select in_its_own_zone()", "select set_config('TimeZone', null, false)",
        ])

    def setting_sources(self):
        return "select name, setting from pg_settings where source = 'session' order by name"

    def custom(self):
        name, number = self.rng.choice(CUSTOM), self.rng.randrange(3)
        return self.rng.choice([
            f"set {name} = 'v{number}'", f"set {name} to v{number}", f"set local {name} = 'l{number}'", f"reset {name}",
            f"select set_config('{name}', 'w{number}', {self.rng.choice(['true', 'false'])})", f"show {name}",
            f"select current_setting('{name}', true)", f"select current_setting('{name}')",
        ])

    def procedures(self):
        """Transactions that end within a statement, and what stands on both sides of the end."""
        name, value = self._value()
        literal = value if name == "search_path" else f"'{value}'"
        one, other = (self.rng.choice([
            f"set {name} to {literal}", f"perform set_config('my.b', 'd{self.rng.randrange(9)}', false)", f"set local {name} to {literal}",
            "set role helper_role", "notify one, 'within'", f"perform pg_try_advisory_lock({self.rng.randrange(3)})",
            f"create temp table if not exists t{self.rng.randrange(3)} as select 1 as i", "perform 1/0",
        ]) for _ in range(2))
        return self.rng.choice([
            "call commits_between()", "call fails_behind_a_commit()",
            *[f"do $do$ begin {one}; {end}; {other}; end $do$" for end in ("commit", "commit", "rollback")],
            f"do $do$ begin begin {one}; perform 1/0; exception when division_by_zero then null; end; {other}; end $do$",
        ])

    def role(self):
        return self.rng.choice([
            f"set role {self.rng.choice(ROLES)}", f"set local role {self.rng.choice(ROLES)}", "reset role", "set role none",
            "select current_user, session_user", "show role",
        ])

    def authorization(self):
        return self.rng.choice([
            "set session authorization differ_other", "set local session authorization differ_other", "reset session authorization",
            "set session authorization default", "select current_user, session_user", "show session authorization", "set role differ_other",
        ])

    def _statement(self):
        """A name of a statement: of PREPARE's, of the protocol's, or of either."""
        return f"{self.rng.choice('psb')}{self.rng.randrange(2)}"

    def sql_statements(self):
        name = self._statement()
        return self.rng.choice([
            f"prepare {name} as select {self.rng.randrange(9)}", f"prepare {name}(int) as select $1 + 1",
            f"prepare {name} as select place from things",
            f"execute {name}", f"execute {name}", f"execute {name}(4)", f"deallocate {name}", "deallocate all",
            f"prepare {name} as select syntax error here", f"prepare {name} as insert into numbered (t) values ('by {name}')",
            f"explain (costs off) execute {name}", f"create temp table t{self.rng.randrange(3)} as execute {name}",
        ])

    def statement_views(self):
        return LIST

    def temporary(self):
        number = self.rng.randrange(3)
        return self.rng.choice([
            f"create temp table t{number} (i int)", f"create temp table t{number} as select {number} as i", f"drop table t{number}",
            f"drop table if exists t{number}", f"insert into t{number} values ({number})", f"select * from t{number}",
            f"create temp table d{number} (i int) on commit drop", f"create temp view v{number} as select {number} as x",
            f"select * from v{number}",
            f"drop view if exists v{number}", f"create temp sequence q{number}", f"select nextval('q{number}')",
            f"drop sequence if exists q{number}",
            f"create function pg_temp.f{number}() returns int language sql as 'select {number}'", f"select pg_temp.f{number}()",
            "discard temp", "select relname from pg_class where relnamespace = pg_my_temp_schema() order by 1",
            f"create domain pg_temp.k{number} as int", f"select {number}::pg_temp.k{number}", f"select {number} as i into temp t{number}",
        ])

    def cursors(self):
        number = self.rng.randrange(2)
        return self.rng.choice([
            f"declare h{number} cursor with hold for select generate_series(1, 9)",
            f"declare n{number} cursor for select generate_series(1, 9)",
            f"fetch 2 from h{number}", f"fetch 2 from h{number}", f"fetch 1 from n{number}", f"move 1 from h{number}", f"close h{number}",
            "close all",
            "select name, is_holdable from pg_cursors where name <> '' order by name",
        ])

    def locks(self):
        number = self.rng.randrange(3)
        return self.rng.choice([
            f"select pg_try_advisory_lock({number})", f"select pg_try_advisory_lock({number})",
            f"select pg_try_advisory_lock_shared({number})",
            f"select pg_advisory_unlock({number})", f"select pg_advisory_unlock({number})", f"select pg_advisory_unlock_shared({number})",
            f"select pg_try_advisory_xact_lock({number})", "select pg_advisory_unlock_all()",
            "select count(*) from pg_locks where locktype = 'advisory' and pid = pg_backend_pid()",
        ])

    def sequences(self):
        return self.rng.choice([
            "select nextval('counter')", "select nextval('counter')", "insert into numbered (t) values ('x')",
            "insert into numbered (t) values ('y') returning n", "select setval('counter', 50)",
        ])

    def sequence_values(self):
        return self.rng.choice(["select currval('counter')", "select lastval()", "select currval('numbered_n_seq')", "discard sequences"])

    def channels(self):
        channel = self.rng.choice(CHANNELS)
        return self.rng.choice([
            f"listen {channel}", f"listen {channel}", f"unlisten {channel}", "unlisten *", f"notify {channel}",
            f"notify {channel}, 'p{self.rng.randrange(9)}'",
            f"select pg_notify('{channel}', 'q{self.rng.randrange(9)}')",
        ])

    def channel_views(self):
        return "select pg_listening_channels() order by 1"

    def discards(self):
        return self.rng.choice(["discard all", "discard all", "discard plans", "discard temp", "reset all", "deallocate all", "close all",
                                "unlisten *"])

    def failures(self):
        return self.rng.choice(["select 1/0", "select no_such_column", "selekt 1", "select * from no_such_table", "", "select pg_sleep(0)"])

    def in_force(self):
        """All settings in use: what the pooler believes of them is what the server has."""
        return IN_FORCE

    def shows(self):
        return self.rng.choice(SHOW)

    def hidden(self):
        inner = self.rng.choice((self.settings, self.custom, self.sql_statements, self.temporary, self.locks, self.cursors, self.sequences,
                                 self.role))()
        return self.rng.choice([f"select keeps({quoted(inner)})", f"select fails_after({quoted(inner)})", "select sets_work_mem('7MB')",
                                "select sets('timezone', 'Asia/Tokyo')", f"do $do$ begin execute {quoted(inner)}; end $do$"])

    # Steps

    def control(self, status):
        """What begins, ends and nests transactions."""
        if status == "I":
            return self.rng.choice(["begin", "begin", "begin", "begin isolation level serializable", "commit", "rollback"])
        name = self.rng.choice("ab")
        if status == "E":
            return self.rng.choice(["rollback", "rollback", "commit", f"rollback to {name}", f"rollback to {name}"])
        return self.rng.choice(["commit", "commit", "rollback", f"savepoint {name}", f"savepoint {name}", f"savepoint {name}",
                                f"rollback to {name}",
                                f"rollback to {name}", f"release {name}", "commit and chain", "rollback and chain"])

    def text(self, status):
        """One statement, or several in a text, some with the begin and end of a transaction among them."""
        count = self.rng.choice((1, 1, 1, 1, 2, 2, 3, 4))
        statements = [self.statement() for _ in range(count)]
        if count > 1:
            for _ in range(self.rng.choice((0, 1, 1, 2))):
                statements.insert(self.rng.randrange(len(statements) + 1), self.control(self.rng.choice(("I", status))))
        return "; ".join(statements)

    def pipeline(self, status):
        steps = []
        for _ in range(self.rng.choice((1, 1, 2, 3, 5))):
            sql = self.control(status) if self.rng.random() < 0.15 else self.statement()
            name, portal = self._statement().replace("p", "s"), f"c{self.rng.randrange(2)}"
            steps += self.rng.choice([
                [["run", sql]], [["run", sql]], [["run", sql]],
                [["parse", name, sql], ["bind", "", name], ["execute", "", 0]],
                [["parse", name, sql]],
                [["bind", "", name], ["describe", "P", ""], ["execute", "", 0]],
                [["describe", "S", name]],
                [["close", "S", name]],
                [["close", "S", name], ["parse", name, sql]],
                [["run", sql], ["sync"]],
                [["parse", name, sql], ["bind", portal, name], ["execute", portal, 2]],
                [["bind", portal, name], ["execute", portal, 1]],
                [["execute", portal, 0]],
                [["describe", "P", portal], ["close", "P", portal]],
                [["run", sql], ["flush"]],
                [["parse", name, sql], ["flush"], ["bind", portal, name], ["flush"], ["execute", portal, 0]],
                [["run", "copy numbered (t) from stdin"], ["data", "copied\n", self.rng.random() < 0.7]],
                [["run", "copy things to stdout"]],
                [["run", "select set_config($1, $2, $3)", self._bound()]],
            ])
        if self.rng.random() < 0.2:
            at = self.rng.choice((0, 0, self.rng.randrange(len(steps) + 1)))
            steps[at:at] = self.rng.choice(FAILURES)
        if steps[-1] != ["sync"]:
            steps.append(["sync"])
        return steps

    def _bound(self):
        """A name and a value as parameters, where no text shows them."""
        name, value = self.rng.choice((self._value(), self._value(), (self.rng.choice(CUSTOM), "bound")))
        return [name, value, self.rng.choice(("t", "f"))]

    def cut(self):
        """A step of which some bytes are sent, and then nothing more."""
        texts = "; ".join(getattr(self, self.rng.choice(OF_THE_SESSION))() for _ in range(self.rng.choice((1, 2, 3))))
        step = self.rng.choice((["query", texts], ["query", "begin; " + texts],
                                ["pipeline", [["run", text] for text in texts.split("; ")] + [["sync"]]]))
        return {"step": step, "part": self.rng.random(), "start": self.start()}

    def start(self):
        return dict(self.rng.choice(START))

    def next_step(self, status):
        """`status` is what the session's last ReadyForQuery said."""
        at = self.rng.random()
        if at < 0.01:
            return "cut", self.cut()
        if at < 0.02:
            return self.rng.choice(("leave", "leave", "vanish")), self.start()
        if at < 0.03:
            sql = f"deallocate {self._statement()}"
            return self.rng.choice((("query", sql), ("pipeline", [["run", sql], ["sync"]])))
        if at < 0.20:
            return "query", self.control(status)
        if at < 0.75:
            return "query", self.text(status)
        return "pipeline", self.pipeline(status)


class Changing(Generator):
    """The same, with statements about what is changed. A client that was not told what a statement is like gets rows of the new
    columns where the server gives an error (docs/sessions/prepared-statements.md, "Changes of the schema"): so each is described when it is
    prepared, and never by its portal."""

    TEXTS = (
        ("select v from changing.t", 0), ("select * from changing.t", 0), ("insert into changing.t (v) values ($1)", 1),
        ("update changing.t set v = $1 returning v", 1), ("select changing.f($1)", 1), ("select w from changing.t where v = $1", 1),
    )

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.given = {}  # how many parameters the statement of each name takes

    def change(self):
        kind = self.rng.choice(("int", "bigint", "numeric", "float8", "text"))
        return self.rng.choice([
            f"alter table changing.t alter v type {kind} using '1'", f"alter table changing.t alter v type {kind} using '1'",
            "alter table changing.t add column if not exists x int default 7", "alter table changing.t drop column if exists x",
            f"drop table changing.t; create table changing.t (v {kind}, w text); insert into changing.t values ('1', 'again')",
            "alter table changing.t rename to t2; create table changing.t as select * from changing.t2; drop table changing.t2",
            "drop function if exists changing.f(int); create or replace function changing.f(text) returns text language sql as 'select $1'",
            "drop function if exists changing.f(text); create or replace function changing.f(int) returns int language sql as 'select $1'",
            "comment on table changing.t is 'changed'", "create index on changing.t (w)", "analyze changing.t",
        ])

    def pipeline(self, status):
        if self.rng.random() < 0.5:
            return super().pipeline(status)
        name = self.rng.choice(("g0", "g1", "g2"))
        run = [["bind", "", name, ["1"] * self.given.get(name, 0)], ["execute", "", 0]]
        prepare = self.rng.random() < 0.3 or name not in self.given
        steps = []
        if prepare:
            sql, self.given[name] = self.rng.choice(self.TEXTS)
            steps = [["close", "S", name], ["parse", name, sql], ["describe", "S", name]]
        elif self.rng.random() < 0.1:
            steps = [["describe", "S", name]]
        else:
            steps = run * self.rng.choice((1, 1, 2))
        return [*steps, ["sync"]]


# What is made, and how often.
FEATURES = {
    "settings": 10, "settings_by_other_words": 3, "setting_sources": 1, "custom": 4, "procedures": 2, "role": 3, "authorization": 1,
    "sql_statements": 4, "statement_views": 1,
    "temporary": 4, "cursors": 3, "locks": 3, "sequences": 2, "sequence_values": 1, "channels": 3, "channel_views": 1, "discards": 2,
    "failures": 2, "shows": 8, "in_force": 4, "hidden": 2,
}
