"""PostgreSQL's own programs: pgbench in all modes and scripts, psql, pg_dump and pg_restore."""

import re
import signal
import subprocess
import time

from harness.suite import equal, limit, until

TAKES_SECONDS = 35
SETTINGS = {"pool_size": 5, "query_wait_timeout": "20s"}

SCRIPTS = {
    "one statement": "select abalance from pgbench_accounts where aid = 1;\n",
    "a transaction": "\\set aid random(1, 100000)\nbegin;\nupdate pgbench_accounts set abalance = abalance + 1 where aid = :aid;\n"
                     "select abalance from pgbench_accounts where aid = :aid;\ninsert into pgbench_history (tid, bid, aid, delta, mtime) "
                     "values (1, 1, :aid, 1, current_timestamp);\nend;\n",
    "a savepoint": "begin;\nsavepoint a;\nselect 1;\nrollback to a;\ncommit;\n",
    "several statements in one query": "select 1\\; select 2\\; select 3;\n",
    "settings": "select set_config('application_name', 'bench ' || :client_id, false);\n"
                "select 1 / (current_setting('application_name') = 'bench ' || :client_id)::int;\n",
    "a rollback": "begin;\nselect 1;\nrollback;\n",
}
# \startpipeline works in the extended modes only.
PIPELINE = "\\startpipeline\nselect 1;\nselect abalance from pgbench_accounts where aid = 2;\nbegin;\nselect 2;\ncommit;\n\\endpipeline\n"


def initialise(env):
    client = env.connect()
    if client.value("select to_regclass('pgbench_accounts')") is None:
        env.program("pgbench", "-i", "-s", "1", "-q", database="app")
    client.close()


def bench(env, *arguments, transactions=40, clients=20, **how):
    initialise(env)
    done = env.program("pgbench", "-n", "-c", clients, "-j", "1", "-t", transactions, *arguments, database="app", **how)
    equal(re.search(r"actually processed: (\d+/\d+)", done.stdout).group(1), f"{clients * transactions}/{clients * transactions}")
    assert "aborted" not in done.stderr and "error" not in done.stderr.lower(), done.stderr
    return done


def test_pgbench_initialises(env):
    initialise(env)
    equal(env.connect().value("select count(*) from pgbench_accounts"), "100000")


@limit(90)
def test_pgbench_tpcb_in_all_modes(env):
    initialise(env)
    for mode in ("simple", "extended", "prepared"):
        env.connect().execute("truncate pgbench_history")
        bench(env, "-M", mode, clients=20)
        equal(env.connect().value("select count(*) from pgbench_history"), "800")


@limit(90)
def test_pgbench_select_only_in_all_modes(env):
    for mode in ("simple", "extended", "prepared"):
        bench(env, "-M", mode, "-S", transactions=100)


@limit(90)
def test_pgbench_simple_update_in_all_modes(env):
    for mode in ("simple", "extended", "prepared"):
        bench(env, "-M", mode, "-N")


@limit(90)
def test_pgbench_scripts_in_all_modes(env):
    for name, script in SCRIPTS.items():
        for mode in ("simple", "extended", "prepared"):
            if mode != "simple" and "several" in name:
                continue
            path = f"{env.directory}/script.sql"
            with open(path, "w") as file:
                file.write(script)
            bench(env, "-M", mode, "-f", path, transactions=10, clients=20 if name == "a transaction" else 8)


def test_pgbench_pipelines(env):
    path = f"{env.directory}/pipeline.sql"
    with open(path, "w") as file:
        file.write(PIPELINE)
    for mode in ("extended", "prepared"):
        bench(env, "-M", mode, "-f", path, transactions=20)


def test_pgbench_with_several_threads_and_more_clients(env):
    bench(env, "-M", "prepared", "-S", "-j", "2", clients=100, transactions=20)


def test_pgbench_that_reconnects_for_each_transaction(env):
    bench(env, "-S", "-C", clients=5, transactions=20)


def test_pgbench_over_tls_and_unix_socket(env):
    bench(env, "-S", clients=5, PGSSLMODE="verify-full", PGSSLROOTCERT=env.certificates.path("ca.crt"), PGHOST="localhost",
          PGHOSTADDR="127.0.0.1")
    bench(env, "-S", clients=5, PGHOST=env.target.socket_dir)


def psql(env, *arguments, **how):
    return env.program("psql", "-X", "-A", "-t", "-q", "-v", "ON_ERROR_STOP=1", *arguments, **{"database": "app", **how})


def test_psql(env):
    equal(psql(env, "-c", "select 1", "-c", "begin; select 2; commit").stdout, "1\n2\n")
    equal(psql(env, "-c", "\\conninfo").returncode, 0)
    assert "app" in psql(env, "-c", "\\l").stdout
    assert psql(env, "-c", "\\d pg_class").stdout
    equal(psql(env, "-c", "show work_mem", PGOPTIONS="-c work_mem=6MB").stdout, "6MB\n")
    equal(psql(env, "-c", "show application_name", PGAPPNAME="named").stdout, "named\n")


def test_psql_copies_in_and_out(env):
    script = "create temp table c (i int, t text);\n\\copy c from stdin\n1\tone\n2\ttwo\n\\.\n\\copy c to stdout\nselect count(*) from c;\n"
    equal(psql(env, stdin=script).stdout, "1\tone\n2\ttwo\n2\n")


def test_psql_cursors_and_large_results(env):
    equal(len(psql(env, "-v", "FETCH_COUNT=1000", "-c", "select generate_series(1, 25000)").stdout.splitlines()), 25000)


def test_psql_reads_large_objects(env):
    path = f"{env.directory}/large-object"
    with open(path, "wb") as file:
        file.write(bytes(range(256)) * 1000)
    loid = psql(env, "-c", f"\\lo_import {path}", "-c", "\\echo :LASTOID").stdout.split()[-1]
    psql(env, "-c", f"\\lo_export {loid} {path}.out", "-c", f"\\lo_unlink {loid}")
    with open(path + ".out", "rb") as file:
        equal(file.read(), bytes(range(256)) * 1000)


def test_psql_is_cancelled_by_control_c(env):
    target = env.target
    process = subprocess.Popen([env.program_path("psql"), "-X", "-c", "select pg_sleep(30) /* control c */"], stderr=subprocess.PIPE,
                               text=True,
                               env={"PATH": "/usr/bin:/bin", "PGHOST": target.host, "PGPORT": str(target.port), "PGUSER": "app",
                                    "PGDATABASE": "app",
                                    "PGPASSWORD": target.secrets["app"], "PGSSLMODE": "prefer"})
    try:
        until(lambda: env.cluster.backends("state = 'active' and query like '%control c%' and query not like '%pg_stat_activity%'"),
              "the query runs")
        process.send_signal(signal.SIGINT)
        started = time.monotonic()
        _, errors = process.communicate(timeout=10)
        assert "canceling statement due to user request" in errors, errors
        assert time.monotonic() - started < 5
    finally:
        process.kill()


@limit(90)
def test_pg_dump_and_pg_restore(env):
    """A dump through the target is the dump by a direct connection, and it restores through the target."""
    initialise(env)
    client = env.connect()
    client.execute("create schema if not exists dumped; create table if not exists dumped.t (id serial primary key, t text, j "
                   "jsonb, b bytea); "
                   "insert into dumped.t (t, j, b) select repeat('x', n), '{\"a\": 1}', '\\x00ff' from generate_series(1, 500) n; "
                   "create or replace view dumped.v as select count(*) from dumped.t")
    client.close()
    arguments = ("-n", "dumped", "--no-comments")
    here = env.program("pg_dump", *arguments, database="app").stdout
    direct = env.program("pg_dump", *arguments, database="app", target=env.cluster.target).stdout

    def plain(dump):  # newer minor versions put a random key around the dump
        return re.sub(r"(?m)^\\(un)?restrict .*$", "", dump)
    equal(plain(here), plain(direct))
    path = f"{env.directory}/dump"
    env.program("pg_dump", "-Fd", "-j", "3", "-n", "dumped", "-f", path, database="app")
    env.connect().execute("drop schema dumped cascade")
    env.program("pg_restore", "-j", "2", "-d", "app", path)
    equal(env.connect().value("select count from dumped.v"), "500")
    env.connect().execute("drop schema dumped cascade")


def test_maintenance_programs(env):
    env.program("vacuumdb", "-j", "3", "--analyze", "-t", "pg_class", database="app", check=False)
    env.program("pg_isready")
    env.program("reindexdb", "-t", "nothing_here", database="app", check=False)
    equal(env.connect().value("select 1"), "1")
