"""Statements that want a database for themselves: Hawser's own idle connections are not in their way."""

import threading
import time

from harness import messages as m
from harness.suite import THOROUGH, Background, equal, limit, pooler_only, until
from harness.wire import ServerError

SAME_FOR_ALL_SERVERS = True
TAKES_SECONDS = 35

IN_USE = "55006"


def ways(client, text):
    """A statement as a simple query, by the unnamed statement, and by a named one."""
    yield lambda: client.execute(text)
    yield lambda: client.extended(text)
    name = f"s{time.monotonic_ns()}"
    yield lambda: client.extended(text, name=name)


def admit(env):
    env.server("postgres").execute("alter role app createdb")


def use(env, target, database, **how):
    """A client comes, works and leaves."""
    client = target.connect(database=database, **how)
    client.value("select count(*) from pg_class")
    client.close()


@limit(120)
def test_a_database_is_dropped_when_its_clients_have_left_again_and_again(env):
    admit(env)
    with env.pooler_with(pool_size=5) as target:
        owner = target.connect(database="other")
        longest = 0
        for turn in range(30 if THOROUGH else 12):
            owner.execute("create database brief")
            use(env, target, "brief")
            began = time.monotonic()
            way = list(ways(owner, "drop database brief"))[turn % 3]
            way()
            longest = max(longest, time.monotonic() - began)
        # (PostgreSQL looks again every 100 ms, and gives up after 5 s.)
        assert longest < 4, f"one took {longest:.1f} s"
        owner.close()


@limit(90)
def test_a_database_is_copied_renamed_and_dropped_by_any_client_of_its_server(env):
    admit(env)
    with env.pooler_with(pool_size=5) as target:
        owner = target.connect(database="other")
        owner.execute('create database "Main db"')
        try:
            use(env, target, "Main db")
            owner.execute('create database copy template "Main db"')
            use(env, target, "copy")
            use(env, target, "Main db")
            # As Django's runner does with --parallel, and from within the database itself.
            inside = target.connect(database="Main db")
            use(env, target, "Main db")
            inside.execute('create database copy2 with owner app template = "Main db"')
            inside.close()
            use(env, target, "Main db")
            owner.execute('alter database "Main db" rename to main_again')
            use(env, target, "main_again")
            use(env, target, "copy")
            for name in ("copy", "copy2", "main_again"):
                use(env, target, name)
                owner.execute(f"drop database if exists {name}")
                try:
                    target.connect(database=name).value("select 1")
                    raise AssertionError(f"{name} is still there")
                except ServerError as error:
                    equal(error.sqlstate, "3D000")
            # The same name again is another database.
            owner.execute("create database copy")
            owner.execute("create table only_in_other (i int)")
            client = target.connect(database="copy")
            equal(client.value("select count(*) from pg_tables where tablename = 'only_in_other'"), "0")
            client.close()
            owner.execute("drop database copy")
            owner.execute("drop table only_in_other")
        finally:
            with env.cluster.superuser("postgres") as server:
                for name in ("Main db", "main_again", "copy", "copy2"):
                    server.execute(f'drop database if exists "{name}" with (force)')
        owner.close()


@limit(60)
def test_template1_has_no_idle_connections_when_it_is_copied(env):
    admit(env)
    with env.pooler_with(pool_size=3) as target:
        owner = target.connect(database="other")
        for _ in range(5):
            use(env, target, "template1")
            owner.execute("create database of_template1")
            owner.execute("drop database of_template1")
        owner.close()


@limit(60)
def test_a_database_whose_clients_are_there_is_in_use_as_without_a_pooler(env):
    admit(env)
    with env.pooler_with(pool_size=3) as target:
        owner = target.connect(database="other", timeout=20)
        owner.execute("create database in_use")
        try:
            client = target.connect(database="in_use")
            client.execute("begin; select 1")
            result = owner.attempt("drop database in_use")
            equal(result.sqlstate, IN_USE)
            equal(client.execute("commit; select 2").value, "2")
            # Idle between transactions it is there as well; it leaves while the server waits.
            dropping = Background(owner.execute, "drop database in_use")
            time.sleep(1)  # the server waits for it to leave
            equal(client.value("select 3"), "3")
            client.close()
            dropping.join()
        finally:
            with env.cluster.superuser("postgres") as server:
                server.execute("drop database if exists in_use with (force)")
        owner.close()


@pooler_only
@limit(60)
def test_nothing_is_opened_while_a_database_is_wanted_and_all_goes_on_behind_it(env):
    """Clients that come meanwhile wait for the answer, and are then served, or told that it is gone."""
    admit(env)
    server = env.server("postgres")
    with env.pooler_with(pool_size=3, min_pool_size=2, user="app", password="app's secret") as target:
        owner = target.connect(database="other")
        owner.execute("create database wanted")
        use(env, target, "wanted")
        # Something holds the statement up that no connection waits for: a lock against the copy's.
        holder = env.server("postgres")
        holder.execute("begin; comment on database wanted is 'held'")
        owner.send(m.query("create database wanted_copy template wanted"))
        time.sleep(0.5)  # the statement waits for the lock
        equal(server.value("select count(*) from pg_stat_activity where datname = 'wanted'"), "0")
        late = []

        def come():
            with target.connect(database="wanted") as client:
                late.append(client.value("select 'late'"))
        comers = [threading.Thread(target=come) for _ in range(3)]
        for thread in comers:
            thread.start()
        time.sleep(0.5)  # nothing is opened for them
        equal(server.value("select count(*) from pg_stat_activity where datname = 'wanted'"), "0")
        holder.execute("commit")
        equal(owner.collect().sqlstate, None)
        for thread in comers:
            thread.join(10)
        equal(late, ["late"] * 3)
        for name in ("wanted", "wanted_copy"):
            owner.execute(f"drop database {name}")
        owner.close()


@pooler_only
@limit(60)
def test_what_listens_and_what_asks_is_closed_as_well(env):
    admit(env)
    with env.pooler_with(pool_size=3) as target:
        owner = target.connect(database="other")
        for _ in range(3):
            owner.execute("create database heard")
            client = target.connect(database="heard")
            client.execute("listen news")
            other = target.connect(database="heard")
            other.execute("notify news, 'x'")
            until(lambda: env.server().value("select count(*) from pg_stat_activity where datname = 'heard'") >= "1", "connections")
            other.close()
            client.close()
            owner.execute("drop database heard")
        owner.close()


@pooler_only
@limit(60)
def test_close_idle_of_the_console(env):
    """For statements that do not come through Hawser."""
    server = env.server("postgres")
    with env.pooler_with(pool_size=3) as target:
        server.execute("create database beside")
        try:
            use(env, target, "beside")
            use(env, target, "app")
            count = "select count(*) from pg_stat_activity where backend_type = 'client backend' and datname = '{}'"
            assert int(server.value(count.format("beside"))) >= 1
            admin = target.pooler.admin()
            equal(admin.execute("CLOSE IDLE beside").tags, ["CLOSE IDLE"])
            until(lambda: server.value(count.format("beside")) == "0", "closed")
            assert int(server.value("select count(*) from pg_stat_activity where usename = 'app' and datname = 'app'")) >= 1, "another's"
            equal(admin.attempt("CLOSE IDLE nonsense of_words").sqlstate, "42601")
            admin.execute("CLOSE IDLE")
            until(lambda: server.value("select count(*) from pg_stat_activity where usename = 'app'") == "0", "all closed")
            server.execute("drop database beside")
        finally:
            server.execute("drop database if exists beside with (force)")
