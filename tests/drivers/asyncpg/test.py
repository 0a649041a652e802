"""asyncpg, which prepares every statement and asks for types by itself. Prints `ok NAME` or `FAIL NAME why`."""

import asyncio
import os
import pathlib
import ssl
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parent / ".packages"))

import asyncpg


async def connect(**how):
    return await asyncpg.connect(**{"ssl": False, **how})


async def prepared():
    connections = [await connect() for _ in range(4)]
    statements = [await connection.prepare(f"select {n} + $1::int") for n, connection in enumerate(connections)]
    for turn in range(10):
        assert [await statement.fetchval(turn) for statement in statements] == [n + turn for n in range(4)]
    for connection in connections:
        await connection.close()


async def batch():
    connection = await connect()
    await connection.execute("create temp table batch (i int, t text)")
    await connection.executemany("insert into batch values ($1, $2)", [(n, str(n)) for n in range(1000)])
    assert await connection.fetchval("select count(*) from batch") == 1000
    await connection.close()


async def pool():
    async with asyncpg.create_pool(ssl=False, min_size=4, max_size=20) as workers:
        async def work(n):
            async with workers.acquire() as connection:
                return await connection.fetchval("select $1::int", n)
        assert await asyncio.gather(*[work(n) for n in range(200)]) == list(range(200))


async def types():
    connection = await connect()
    assert await connection.fetchval("select $1::int[]", [1, 2, 3]) == [1, 2, 3]
    assert (await connection.fetchrow("select row(1, 'x')::record as r"))["r"] == (1, "x")
    await connection.execute("create type mood as enum ('sad', 'ok')")
    try:
        assert await connection.fetchval("select $1::mood", "ok") == "ok"
    finally:
        await connection.execute("drop type mood")
    await connection.close()


async def copy():
    connection = await connect()
    await connection.execute("create temp table copied (i int, t text)")
    assert await connection.copy_records_to_table("copied", records=[(n, f"row {n}") for n in range(5000)]) == "COPY 5000"
    chunks = []

    async def sink(data):
        chunks.append(data)
    assert await connection.copy_from_query("select * from copied", output=sink) == "COPY 5000"
    assert b"".join(chunks).count(b"\n") == 5000
    await connection.close()


async def cancel():
    connection = await connect()
    try:
        await connection.execute("select pg_sleep(20)", timeout=0.5)
        raise AssertionError("not cancelled")
    except TimeoutError:
        pass
    assert await connection.fetchval("select 1") == 1
    await connection.close()


async def tls_require():
    connection = await connect(ssl="require")
    assert await connection.fetchval("select 1") == 1
    await connection.close()


async def tls_verify_full():
    context = ssl.create_default_context(cafile=os.environ["TEST_CA"])
    connection = await connect(ssl=context, host="localhost")
    assert await connection.fetchval("select 1") == 1
    await connection.close()
    try:
        await connect(ssl=ssl.create_default_context(cafile=os.environ["TEST_OTHER_CA"]), host="localhost")
        raise AssertionError("a certificate of another authority was taken")
    except ssl.SSLError:
        pass


async def transactions():
    connection = await connect()
    await connection.execute("create temp table tx (i int)")
    async with connection.transaction(isolation="serializable"):
        await connection.execute("insert into tx values (1)")
        try:
            async with connection.transaction():
                await connection.execute("insert into tx values (2)")
                raise ZeroDivisionError
        except ZeroDivisionError:
            pass
    assert await connection.fetchval("select array_agg(i) from tx") == [1]
    async with connection.transaction():
        assert len([row async for row in connection.cursor("select generate_series(1, 500)", prefetch=50)]) == 500
    await connection.close()


async def error():
    connection = await connect()
    for _ in range(3):
        try:
            await connection.fetch("select 1 / $1::int", 0)
            raise AssertionError("no error")
        except asyncpg.DivisionByZeroError:
            pass
        assert await connection.fetchval("select 1") == 1
    await connection.close()


async def notifications():
    listener, sender, heard = await connect(), await connect(), asyncio.Queue()
    await listener.add_listener("asyncpg_test", lambda *what: heard.put_nowait(what[3]))
    await sender.execute("notify asyncpg_test, 'hello'")
    assert await asyncio.wait_for(heard.get(), 20) == "hello"
    await listener.close()
    await sender.close()


async def main():
    failed = 0
    for test in (prepared, batch, pool, types, copy, cancel, tls_require, tls_verify_full, transactions, error, notifications):
        try:
            await asyncio.wait_for(test(), 60)
            print(f"ok {test.__name__}", flush=True)
        except Exception as problem:  # each test's failure is a line, and the next one runs
            failed += 1
            print(f"FAIL {test.__name__} {type(problem).__name__}: {problem}".replace("\n", " "), flush=True)
    return failed


if __name__ == "__main__":
    sys.exit(min(asyncio.run(main()), 1))
