"""psycopg 3: what an application does through the pooler. Prints `ok NAME` or `FAIL NAME why`; libpq's variables say where."""

import os
import pathlib
import sys
import threading
import time

sys.path.insert(0, str(pathlib.Path(__file__).parent / ".packages"))

import psycopg
from psycopg import errors


def connect(**how):
    return psycopg.connect(**how)


def prepared():
    with connect(autocommit=True, prepare_threshold=0) as connection, connect(autocommit=True, prepare_threshold=0) as other:
        for n in range(20):
            assert connection.execute("select %s::int + 1", (n,)).fetchone() == (n + 1,)
            assert other.execute("select %s::int * 2", (n,)).fetchone() == (n * 2,)


def pipeline():
    with connect() as connection:
        with connection.pipeline():
            cursors = [connection.execute("select %s::int", (n,)) for n in range(100)]
        assert [cursor.fetchone()[0] for cursor in cursors] == list(range(100))
        with connection.pipeline() as pipe:
            connection.execute("select 1")
            pipe.sync()
            try:
                connection.execute("select 1/0")
                pipe.sync()
                raise AssertionError("no error")
            except errors.DivisionByZero:
                pass
        connection.rollback()
        with connection.cursor() as cursor:
            cursor.executemany("select %s::int", [(n,) for n in range(50)], returning=True)


def copy():
    with connect() as connection, connection.cursor() as cursor:
        cursor.execute("create temp table copied (i int, t text) on commit drop")
        with cursor.copy("copy copied from stdin") as stream:
            for n in range(5000):
                stream.write_row((n, f"row {n}"))
        with cursor.copy("copy copied to stdout") as stream:
            assert sum(1 for _ in stream.rows()) == 5000
        try:
            with cursor.copy("copy copied from stdin") as stream:
                stream.write("not a number\tx\n")
            raise AssertionError("no error")
        except errors.InvalidTextRepresentation:
            connection.rollback()
        assert cursor.execute("select 1").fetchone() == (1,)


def cancel():
    with connect(autocommit=True) as connection:
        timer = threading.Timer(0.5, connection.cancel_safe)
        timer.start()
        started = time.monotonic()
        try:
            connection.execute("select pg_sleep(20)")
            raise AssertionError("not cancelled")
        except errors.QueryCanceled:
            assert time.monotonic() - started < 10
        timer.join()
        assert connection.execute("select 1").fetchone() == (1,)


def tls_require():
    with connect(sslmode="require") as connection:
        assert connection.execute("select 1").fetchone() == (1,)
        assert connection.pgconn.ssl_in_use


def tls_verify_full():
    with connect(sslmode="verify-full", sslrootcert=os.environ["TEST_CA"], host="localhost") as connection:
        assert connection.execute("select 1").fetchone() == (1,)
    try:
        connect(sslmode="verify-full", sslrootcert=os.environ["TEST_OTHER_CA"], host="localhost").close()
        raise AssertionError("a certificate of another authority was taken")
    except psycopg.OperationalError:
        pass


def transactions():
    with connect() as connection:
        connection.execute("create temp table tx (i int)")
        connection.commit()
        with connection.transaction():
            connection.execute("insert into tx values (1)")
            try:
                with connection.transaction():
                    connection.execute("insert into tx values (2)")
                    raise psycopg.Rollback
            except psycopg.Rollback:
                pass
        assert connection.execute("select array_agg(i) from tx").fetchone() == ([1],)


def error():
    with connect(autocommit=True) as connection:
        for _ in range(3):
            try:
                connection.execute("select * from no_such_table")
                raise AssertionError("no error")
            except errors.UndefinedTable as problem:
                assert problem.sqlstate == "42P01"
            assert connection.execute("select 1").fetchone() == (1,)


def server_side_cursor():
    with connect() as connection, connection.cursor(name="far") as cursor:
        cursor.itersize = 100
        cursor.execute("select generate_series(1, 1000)")
        assert sum(row[0] for row in cursor) == 500500


def notifications():
    with connect(autocommit=True) as listener, connect(autocommit=True) as sender:
        listener.execute("listen psycopg_test")
        sender.execute("notify psycopg_test, 'hello'")
        assert [n.payload for n in listener.notifies(timeout=20, stop_after=1)] == ["hello"]


def main():
    failed = 0
    for test in (prepared, pipeline, copy, cancel, tls_require, tls_verify_full, transactions, error, server_side_cursor, notifications):
        try:
            test()
            print(f"ok {test.__name__}", flush=True)
        except Exception as problem:  # each test's failure is a line, and the next one runs
            failed += 1
            print(f"FAIL {test.__name__} {type(problem).__name__}: {problem}".replace("\n", " "), flush=True)
    return failed


if __name__ == "__main__":
    sys.exit(min(main(), 1))
