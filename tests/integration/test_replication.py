"""`replication=database|true`: a session of its own, in every pool mode."""

import os
import signal
import struct
import subprocess
import time

from harness import messages as m
from harness.suite import equal, limit, pooler_only, until
from harness.wire import ServerError

SETTINGS = {"pool_size": 1}


def replication(env, mode="true", **how):
    return env.connect(user="replicator", replication=mode, **how)


def start(env, name, *arguments):
    """A replication program in the background."""
    target = env.target
    return subprocess.Popen([env.program_path(name), *map(str, arguments)], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                            env={"PATH": "/usr/bin:/bin", "PGHOST": target.host, "PGPORT": str(target.port), "PGUSER": "replicator",
                                 "PGPASSWORD": target.secrets["replicator"], "PGSSLMODE": "disable"})


def finish(process, seconds=10):
    if process.poll() is None:
        process.send_signal(signal.SIGINT)
    try:
        out, errors = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        raise AssertionError(f"{process.args[0]} does not end on SIGINT") from None
    return out, errors.decode()


def test_commands_of_the_replication_protocol(env):
    client = replication(env)
    result = client.execute("IDENTIFY_SYSTEM")
    equal(result.columns, ["systemid", "timeline", "xlogpos", "dbname"])
    equal(result.rows[0][3], None)
    equal(client.value("SHOW wal_level"), "logical")
    equal(replication(env, "database", database="app").execute("IDENTIFY_SYSTEM").rows[0][3], "app")


@pooler_only
def test_physical_replication_goes_to_the_database_that_it_names(env):
    """As in PgBouncer: what the client names, or its user's name, finds the servers. Hawser looked for the user's alone."""
    def physical(target, **database):
        with env.connect(target, user="replicator", replication="true", **database) as client:
            return len(client.execute("IDENTIFY_SYSTEM").rows)

    def refused(target, **database):
        try:
            physical(target, **database)
        except ServerError as error:
            return error.sqlstate, error.fields["M"]
        raise AssertionError("it is in")
    with env.pooler_with(start=False) as target:
        config = target.pooler.config
        only = config.read_text().replace('name = "*"', 'name = "app"')
        other = '\n[[database]]\nname = "{}"\nservers = ["' + env.cluster.address + '"]\n'
        config.write_text(only + other.format("other"))
        target.pooler.start()
        equal(physical(target, database="app"), 1)
        equal(refused(target, database="nowhere"), ("3D000", 'database "nowhere" does not exist'))
        equal(refused(target, database=""), ("3D000", 'database "replicator" does not exist'))
        config.write_text(only + other.format("replicator"))
        target.pooler.reload()
        equal(physical(target, database=""), 1)
        config.write_text(only)
        target.pooler.reload()
        equal(physical(target, database="nowhere"), 1, "there are no other servers")


def test_sql_on_a_logical_replication_connection(env):
    client = replication(env, "database", database="app")
    equal(client.value("select current_user"), "replicator")
    equal(client.attempt("select 1/0").sqlstate, "22012")
    equal(client.value("select 2"), "2")


def test_replication_connections_keep_the_pool_free(env):
    """pool_size is 1: three replication sessions and a client at the same time."""
    sessions = [replication(env) for _ in range(3)]
    for session in sessions:
        session.execute("IDENTIFY_SYSTEM")
    equal(env.connect().value("select 1"), "1")
    equal(env.connect(user="replicator").value("select 1"), "1")


def test_users_without_the_right_are_refused(env):
    try:
        client = env.connect(user="app", replication="database")
        result = client.attempt("IDENTIFY_SYSTEM")
        assert result.errors, "replication without the right to it"
    except ServerError as error:
        assert error.sqlstate in ("42501", "28000"), error


def test_copy_both_by_hand(env):
    """START_REPLICATION: keepalives and WAL one way, status updates the other, CopyDone from the client ends it."""
    client = replication(env)
    position = client.execute("IDENTIFY_SYSTEM").rows[0][2]
    client.send(m.query(f"START_REPLICATION PHYSICAL {position}"))
    equal(client.collect(until="WE").kinds, "W")
    env.connect().execute("create table if not exists both_ways (i int); insert into both_ways select generate_series(1, 1000)")
    seen, end = 0, time.monotonic() + 10
    while seen < 10000 and time.monotonic() < end:
        message = client.receive()
        equal(message.kind, "d")
        if message.body[:1] == b"w":
            seen += len(message.body) - 25
            at = struct.unpack_from("!q", message.body, 1)[0] + len(message.body) - 25
            client.send(m.copy_data(b"r" + struct.pack("!qqqqb", at, at, at, 0, 0)))
    assert seen >= 10000, f"{seen} bytes of WAL"
    client.send(m.COPY_DONE)
    result = client.collect()
    assert result.kinds.endswith("cCCZ") or result.kinds.endswith("cCZ"), result.kinds
    equal(client.execute("IDENTIFY_SYSTEM").columns[0], "systemid")
    env.connect().execute("drop table both_ways")


@limit(90)
def test_pg_basebackup(env):
    path = f"{env.directory}/backup"
    env.program("pg_basebackup", "-D", path, "-X", "stream", "-c", "fast", user="replicator")
    env.program("pg_verifybackup", path)
    assert os.path.exists(f"{path}/PG_VERSION")


@limit(60)
def test_pg_basebackup_as_tar_with_fetched_wal(env):
    path = f"{env.directory}/backup-tar"
    env.program("pg_basebackup", "-D", path, "-Ft", "-X", "fetch", "-c", "fast", user="replicator")
    assert os.path.getsize(f"{path}/base.tar") > 10 << 20


@limit(60)
def test_pg_receivewal(env):
    path = f"{env.directory}/wal"
    os.mkdir(path)
    server = env.server()
    env.program("pg_receivewal", "-D", path, "--create-slot", "-S", "receive_test", user="replicator")
    process = start(env, "pg_receivewal", "-D", path, "-S", "receive_test", "--synchronous")
    try:
        until(lambda: server.value("select active from pg_replication_slots where slot_name = 'receive_test'") == "t", "streaming")
        server.execute("create table if not exists walled (t text); insert into walled select repeat('x', 1000) from "
                       "generate_series(1, 2000)")
        server.execute("select pg_switch_wal()")
        server.execute("insert into walled values ('in the next segment')")
        until(lambda: [name for name in os.listdir(path) if len(name) == 24], "a whole segment", 15)
    finally:
        _, errors = finish(process)
        until(lambda: server.value("select not active from pg_replication_slots where slot_name = 'receive_test'") == "t",
              "the slot is free")
        server.execute("select pg_drop_replication_slot('receive_test'); drop table if exists walled")
    assert "error" not in errors.lower(), errors


@limit(60)
def test_pg_recvlogical(env):
    """Logical decoding: rows of one transaction, in order."""
    server = env.server()
    server.execute("drop table if exists decoded; create table decoded (i int primary key, t text)")
    env.program("pg_recvlogical", "-d", "app", "--slot", "logical_test", "--create-slot", "-P", "test_decoding", user="replicator")
    path = f"{env.directory}/decoded.txt"
    process = start(env, "pg_recvlogical", "-d", "app", "--slot", "logical_test", "--start", "-f", path, "-F", "1", "-s", "1")
    try:
        client = env.server()
        client.execute("begin; insert into decoded values (1, 'one'), (2, 'two'); delete from decoded where i = 1; commit")

        def read():
            with open(path) as file:
                return file.read()
        until(lambda: os.path.exists(path) and "COMMIT" in read(), "a decoded transaction", 15)
        rows = [line for line in read().splitlines() if "decoded:" in line]
        equal([row.split(": ", 1)[1].split(":")[0] for row in rows], ["INSERT", "INSERT", "DELETE"])
    finally:
        finish(process)
        until(lambda: server.value("select not active from pg_replication_slots where slot_name = 'logical_test'") == "t",
              "the slot is free")
        server.execute("select pg_drop_replication_slot('logical_test'); drop table decoded")


@limit(60)
def test_a_replication_client_that_dies_frees_its_slot(env):
    server = env.server()
    client = env.target.connect(user="replicator", replication="database")
    client.execute("CREATE_REPLICATION_SLOT dying TEMPORARY LOGICAL test_decoding")
    client.send(m.query("START_REPLICATION SLOT dying LOGICAL 0/0"))
    client.collect(until="WE")
    client.vanish()
    until(lambda: server.value("select count(*) from pg_replication_slots where slot_name = 'dying'") == "0", "the temporary slot is gone",
          10)
