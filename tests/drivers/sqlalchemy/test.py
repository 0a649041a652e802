"""SQLAlchemy on psycopg 3, in the ways that applications and other frameworks use a session. Prints `ok NAME` or `FAIL NAME why`.

Each engine keeps four connections (there are five server connections), with settings made at connect, as Rails does, or
at check-out, as row-level security by a setting does.
"""

import pathlib
import sys
import threading

sys.path.insert(0, str(pathlib.Path(__file__).parent / ".packages"))

import sqlalchemy as sa
from sqlalchemy import event, exc, orm

CONNECTIONS = 4
URL = sa.URL.create("postgresql+psycopg")  # libpq's variables say where


def equal(got, expected):
    assert got == expected, f"got {got!r}, expected {expected!r}"


def engine(**how):
    return sa.create_engine(URL, **{"pool_size": CONNECTIONS, "max_overflow": 0, **how})


def in_threads(count, work):
    problems = []

    def guarded(number):
        try:
            work(number)
        except Exception as problem:  # told by the main thread
            problems.append(problem)

    threads = [threading.Thread(target=guarded, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if problems:
        raise problems[0]


class Base(orm.DeclarativeBase):
    pass


class Item(Base):
    __tablename__ = "alchemy_item"
    id = orm.mapped_column(sa.Integer, sa.Sequence("alchemy_ids"), primary_key=True)
    name = orm.mapped_column(sa.String(40), unique=True)
    owner = orm.mapped_column(sa.String(20))


def schema():
    with engine().begin() as connection:
        Base.metadata.drop_all(connection)
        Base.metadata.create_all(connection)
        equal(sa.inspect(connection).has_table("alchemy_item"), True)


def sequences_of_their_own():
    """The mapper asks for nextval() ahead of each INSERT: it must not pin, or twelve sessions would not fit."""
    wide = engine(pool_size=12)

    def add(number):
        for n in range(10):
            with orm.Session(wide) as session:
                item = Item(name=f"{number} {n}", owner=f"owner {number % 3}")
                session.add(item)
                session.commit()
                assert item.id

    in_threads(12, add)
    with orm.Session(wide) as session:
        equal(session.scalar(sa.select(sa.func.count()).select_from(Item)), 120)
    wide.dispose()


def set_at_connect():
    """As Rails: several SETs by simple queries on each new connection, and never again."""
    rails = engine()

    @event.listens_for(rails, "connect")
    def settings(connection, _record):
        connection.autocommit = True
        for sql in ("SET client_min_messages TO 'warning'", "SET standard_conforming_strings = on", "SET SESSION timezone TO 'Asia/Tokyo'",
                    "SET intervalstyle = iso_8601", "SET statement_timeout TO '55s'", "SET search_path TO public, pg_catalog"):
            connection.execute(sql)
        connection.autocommit = False

    def look(_number):
        for _ in range(10):
            with rails.connect() as connection:
                shown = connection.execute(sa.text(
                    "select current_setting('timezone'), current_setting('statement_timeout'), current_setting('client_min_messages'), "
                    "(interval '1 day')::text, current_setting('search_path')")).one()
                equal(shown, ("Asia/Tokyo", "55s", "warning", "P1D", "public, pg_catalog"))

    in_threads(CONNECTIONS, look)
    plain = engine(pool_size=1)
    with plain.connect() as connection:
        equal(connection.execute(sa.text("select current_setting('statement_timeout'), current_setting('search_path')")).one(),
              ("0", '"$user", public'))
    plain.dispose()
    rails.dispose()


def row_level_security():
    """`SET app.user` at check-out, and policies that read it: each sees its own rows, and who has set nothing sees none."""
    setup = engine(pool_size=1)
    with setup.begin() as connection:
        connection.execute(sa.text("alter table alchemy_item enable row level security"))
        connection.execute(sa.text("alter table alchemy_item force row level security"))
        connection.execute(sa.text("create policy own on alchemy_item using (owner = current_setting('app.user', true))"))
    secured = engine()

    def request(number):
        for turn in range(10):
            mine = f"owner {(number + turn) % 3}"
            with secured.connect() as connection:
                connection.execute(sa.text("select set_config('app.user', :name, false)"), {"name": mine})
                connection.commit()
                equal(connection.execute(sa.text("select distinct owner from alchemy_item")).scalars().all(), [mine])
                connection.commit()
                equal(connection.execute(sa.text("select count(*) from alchemy_item")).scalar(), 40)

    def anonymous(_number):
        other = engine(pool_size=1)
        for _ in range(10):
            with other.connect() as connection:
                equal(connection.execute(sa.text("select count(*), current_setting('app.user', true) from alchemy_item")).one(), (0, None))
        other.dispose()

    in_threads(CONNECTIONS + 1, lambda number: anonymous(number) if number == CONNECTIONS else request(number))
    secured.dispose()
    with setup.begin() as connection:
        connection.execute(sa.text("drop policy own on alchemy_item; alter table alchemy_item disable row level security"))
    setup.dispose()


def tenants_by_schema():
    """search_path at check-out, for the transaction: the same statements, prepared on the server, find other tables."""
    tenants = engine(connect_args={"prepare_threshold": 0})
    with tenants.begin() as connection:
        for n in range(3):
            connection.execute(sa.text(f"create schema if not exists tenant{n}"))
            connection.execute(sa.text(f"create table if not exists tenant{n}.note as select {n} as n"))

    def request(number):
        for turn in range(10):
            n = (number + turn) % 3
            with tenants.begin() as connection:
                connection.execute(sa.text(f"set local search_path to tenant{n}"))
                equal(connection.execute(sa.text("select n from note")).scalar(), n)

    in_threads(CONNECTIONS, request)
    with tenants.begin() as connection:
        for n in range(3):
            connection.execute(sa.text(f"drop schema tenant{n} cascade"))
    tenants.dispose()


def isolation_levels():
    pool = engine()
    for level in ("SERIALIZABLE", "REPEATABLE READ", "READ COMMITTED"):
        with pool.connect().execution_options(isolation_level=level) as connection:
            equal(connection.execute(sa.text("show transaction isolation level")).scalar(), level.lower())
    with pool.connect().execution_options(postgresql_readonly=True, postgresql_deferrable=True) as connection:
        equal(connection.execute(sa.text("show transaction_read_only")).scalar(), "on")
    with pool.connect() as connection:
        equal(connection.execute(sa.text("show transaction_read_only")).scalar(), "off")
    with pool.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        equal(connection.execute(sa.text("select 1")).scalar(), 1)
    pool.dispose()


def savepoints_and_errors():
    pool = engine()
    with orm.Session(pool) as session, session.begin():
        session.add(Item(name="kept", owner="x"))
        session.flush()
        try:
            with session.begin_nested():
                session.add(Item(name="kept", owner="y"))
                session.flush()
            raise AssertionError("a duplicate was taken")
        except exc.IntegrityError:
            pass
        with session.begin_nested():
            session.add(Item(name="kept too", owner="x"))
    with orm.Session(pool) as session:
        equal(session.scalar(sa.select(sa.func.count()).where(Item.owner == "x")), 2)
    pool.dispose()


def streams():
    pool = engine()
    with pool.connect() as connection:
        result = connection.execution_options(stream_results=True, max_row_buffer=10).execute(sa.text("select generate_series(1, 1000)"))
        equal(sum(result.scalars()), 500_500)
    pool.dispose()


def pre_ping():
    pool = engine(pool_size=2, pool_pre_ping=True)
    for _ in range(20):
        with pool.connect() as connection:
            equal(connection.execute(sa.text("select 1")).scalar(), 1)
    pool.dispose()


def schema_away():
    with engine().begin() as connection:
        Base.metadata.drop_all(connection)


def main():
    failed = 0
    for test in (schema, sequences_of_their_own, set_at_connect, row_level_security, tenants_by_schema, isolation_levels,
                 savepoints_and_errors, streams, pre_ping, schema_away):
        try:
            test()
            print(f"ok {test.__name__}", flush=True)
        except Exception as problem:  # each test's failure is a line, and the next one runs
            failed += 1
            print(f"FAIL {test.__name__} {type(problem).__name__}: {problem}".replace("\n", " "), flush=True)
    return failed


if __name__ == "__main__":
    sys.exit(min(main(), 1))
