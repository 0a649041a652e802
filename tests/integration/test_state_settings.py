"""Settings that servers report: each client sees its own, whichever backend it gets, and nobody sees another's.

One backend and many clients make every leak certain, and show that these settings move: a pin would block the others.
Direct, each client has its own backend and nothing can leak.
"""

from harness import messages as m
from harness.suite import crowd, equal
from harness.wire import ServerError

SETTINGS = {"pool_size": 1}

# Client by client: settings, and what shows that they are in force.
PROFILES = [
    {"application_name": "first", "TimeZone": "Europe/Berlin", "DateStyle": "German, DMY", "IntervalStyle": "iso_8601"},
    {"application_name": "second", "TimeZone": "Asia/Tokyo", "DateStyle": "SQL, MDY", "IntervalStyle": "sql_standard"},
    {"application_name": "third", "TimeZone": "America/New_York", "DateStyle": "ISO, YMD", "IntervalStyle": "postgres_verbose"},
    {"application_name": "fourth", "TimeZone": "UTC", "DateStyle": "Postgres, DMY", "IntervalStyle": "postgres"},
]
# timestamptz and interval as formatted by PostgreSQL 15 under each profile.
FORMATTED = [
    ("01.06.2024 14:00:00 CEST", "P1Y2DT3H"),
    ("06/01/2024 21:00:00 JST", "+1-0 +2 +3:00:00"),
    ("2024-06-01 08:00:00-04", "@ 1 year 2 days 3 hours"),
    ("Sat 01 Jun 12:00:00 2024 UTC", "1 year 2 days 03:00:00"),
]
FORMAT_QUERY = "select timestamptz 'epoch' + interval '1717243200 seconds', make_interval(years => 1, days => 2, hours => 3)"


def check(client, number):
    profile = PROFILES[number]
    for name, value in profile.items():
        equal(client.value(f"show {name}"), value, f"client {number}: {name}")
    equal(client.rows(FORMAT_QUERY), [FORMATTED[number]], f"client {number}: format")


def test_startup_parameters_belong_to_the_client(env):
    """trap 8: compare canonical values; DateStyle is composite."""
    clients = [env.connect(**profile) for profile in PROFILES]
    for _ in range(3):
        for number, client in enumerate(clients):
            check(client, number)
    for number, client in enumerate(clients):
        for name, value in PROFILES[number].items():
            if name in client.parameters:
                equal(client.parameters[name], value, f"reported {name}")


def test_set_belongs_to_the_client(env):
    clients = [env.connect() for _ in PROFILES]
    for client, profile in zip(clients, PROFILES):
        for name, value in profile.items():
            client.execute(f"set {name} to {value}" if name == "DateStyle" else f"set {name} to '{value}'")
    for _ in range(3):
        for number, client in enumerate(clients):
            check(client, number)


def test_the_settings_that_go_before_a_statement_do_not_show_in_its_text(env):
    clients = [env.connect(**profile) for profile in PROFILES]
    for number, client in enumerate(clients):
        client.execute(f"set work_mem = '{number + 5}MB'; set my.client = '{number}'")
    sql = "select current_query(), query, current_setting('my.client') from pg_stat_activity where pid = pg_backend_pid()"
    for _ in range(2):
        for number, client in enumerate(clients):
            equal(client.rows(sql), [(sql, sql, str(number))])
        for number, client in enumerate(clients):
            equal(client.exchange(m.run(sql), m.SYNC).rows, [(sql, sql, str(number))])


def test_set_is_reported_to_the_client_that_set_and_to_no_other(env):
    first, second = env.connect(), env.connect()
    before = dict(second.parameters)
    result = first.execute("set application_name to 'reported'; set timezone to 'Asia/Tokyo'")
    reported = [message.strings() for message in result.messages if message.kind == "S"]
    equal(sorted(reported), [["TimeZone", "Asia/Tokyo"], ["application_name", "reported"]])
    for _ in range(3):
        second.value("select 1")
        first.value("select 1")
    equal(second.parameters, before)


def test_nothing_is_reported_when_nothing_changed(env):
    """Moving between clients must not show: the ParameterStatus of applying a client's own values stays in the pooler."""
    clients = [env.connect(**profile) for profile in PROFILES]
    for _ in range(3):
        for client in clients:
            equal([message for message in client.execute("select 1").messages if message.kind == "S"], [])


def test_a_wrong_startup_setting_is_refused_at_login(env):
    for parameters, sqlstate in (({"timezone": "Nowhere/Land"}, "22023"), ({"options": "-c no_such_setting=1"}, "42704"),
                                 ({"no_such_setting": "1"}, "42704"), ({"options": "-c max_connections=5"}, "55P02")):
        try:
            client = env.connect(**parameters)
            result = client.attempt("select 1")
            raise AssertionError(f"{parameters} was accepted, and a query gave {result.sqlstate}")
        except ServerError as error:
            equal(error.sqlstate, sqlstate, str(parameters))


def test_reset_restores_this_clients_start_value(env):
    first = env.connect(timezone="Europe/Berlin", application_name="start")
    second = env.connect(timezone="Asia/Tokyo")
    first.execute("set timezone to 'UTC'; set application_name to 'changed'")
    equal(second.value("show timezone"), "Asia/Tokyo")
    first.execute("reset timezone")
    first.execute("set application_name to default")
    equal(second.value("show timezone"), "Asia/Tokyo")
    equal(first.rows("select current_setting('timezone'), current_setting('application_name')"), [("Europe/Berlin", "start")])
    equal((first.parameters["TimeZone"], first.parameters["application_name"]), ("Europe/Berlin", "start"))


MODES = ("transaction", "session")
START = {"timezone": "Europe/Berlin", "application_name": "start", "search_path": "helper,public", "statement_timeout": "77s"}
SHOW_START = ("select current_setting('timezone'), current_setting('application_name'), current_setting('search_path'), "
              "current_setting('statement_timeout')")
SHOWN = ("Europe/Berlin", "start", "helper,public", "77s")


def test_what_follows_a_reset_in_its_text_sees_this_clients_start_values(env):
    for mode in MODES:
        with env.pooler_with(pool_mode=mode, pool_size=1) as target:
            client = env.connect(target, **START)
            client.execute("set timezone to 'UTC'; set application_name to 'changed'")
            result = client.execute(f"reset all; {SHOW_START}; reset search_path; {SHOW_START}; set timezone to default")
            equal(m.kinds(result.messages), "CTDCCTDCCZ", mode)
            equal(result.rows, [SHOWN, SHOWN], mode)
            equal(client.parameters["TimeZone"], "Europe/Berlin", mode)
            # Error positions are those of the client's own text.
            error = client.attempt("reset timezone; select nonsense").errors[0]
            equal(error["P"], "24", mode)
            # A rollback undoes the one with the other.
            client.execute("set timezone to 'UTC'")
            client.execute("begin; reset timezone; rollback")
            equal(client.value("show timezone"), "UTC", mode)
            client.execute("begin; set local timezone to default")
            equal(client.value("show timezone"), "Europe/Berlin", mode)
            client.execute("commit")
            equal(client.value("show timezone"), "UTC", mode)


def test_what_follows_a_reset_in_a_long_text_sees_this_clients_start_values(env):
    for mode in MODES:
        with env.pooler_with(pool_mode=mode, pool_size=1) as target:
            client = env.connect(target, **START)
            other = env.connect(target, timezone="Asia/Tokyo") if mode == "transaction" else None
            for ahead, pad in (("select 1;" * 500, ""), ("", "x" * 30_000), ("select 1;" * 3000, "y" * 30_000)):
                client.execute("set timezone to 'UTC'; set application_name to 'changed'")
                result = client.execute(f"{ahead}reset all; {SHOW_START} /*{pad}*/")
                equal(result.rows[-1], SHOWN, mode)
                equal(len(result.tags), ahead.count(";") + 2, mode)
                if other:
                    equal(other.value("show timezone"), "Asia/Tokyo")
                equal(client.rows(SHOW_START), [SHOWN], mode)


def test_a_long_reset_in_a_block_does_not_end_the_block(env):
    """The start values were SET in a block of Hawser's, whose COMMIT was that of the client's."""
    for mode in MODES:
        with env.pooler_with(pool_mode=mode, pool_size=1) as target:
            client = env.connect(target, **START)
            client.execute("drop table if exists undone; create table undone (a int)")
            for end in ("rollback", "commit"):
                client.execute("set timezone to 'UTC'; set statement_timeout to '66s'")
                own = client.rows(SHOW_START)
                client.execute("begin; insert into undone values (1)")
                client.execute(f"reset all /*{'x' * 70_000}*/")
                equal(client.rows(SHOW_START), [SHOWN], f"{mode}: {end}")
                client.execute(end)
                ended = [SHOWN] if end == "commit" else own
                equal(client.rows(SHOW_START), ended, f"{mode}: {end}")
                equal(client.value("select count(*) from undone"), str(int(end == "commit")), f"{mode}: {end}")
                if mode == "transaction":
                    with env.connect(target, timezone="Asia/Tokyo") as other:
                        equal(other.value("show statement_timeout"), "0", f"{mode}: {end}")
                equal(client.rows(SHOW_START), ended, f"{mode}: {end}, after another client")
            client.execute("drop table undone")


def test_what_follows_a_reset_in_its_pipeline_sees_this_clients_start_values(env):
    for mode in MODES:
        with env.pooler_with(pool_mode=mode, pool_size=1) as target:
            client = env.connect(target, **START)
            for reset in ("reset all", "reset timezone", "set timezone to default", "discard all"):
                client.execute("set timezone to 'UTC'")
                result = client.exchange(m.run(reset), m.run(SHOW_START), m.SYNC)
                equal(result.rows, [SHOWN], f"{mode}: {reset}")
                equal(client.parameters["TimeZone"], "Europe/Berlin", f"{mode}: {reset}")
                equal(client.rows(SHOW_START), [SHOWN], f"{mode}: {reset}")
            # What fails behind a DISCARD ALL takes nothing of it back.
            client.execute("set timezone to 'UTC'")
            equal(client.exchange(m.run("discard all"), m.run("select 1/0"), m.SYNC).sqlstate, "22012")
            equal(client.rows(SHOW_START), [SHOWN], mode)
            # A DISCARD ALL that fails ends its pipeline, and nothing behind it runs.
            result = client.exchange(m.run("set timezone to 'UTC'"), m.run("discard all"), m.run("select 1"), m.SYNC)
            equal((result.sqlstate, result.rows), ("25001", []), mode)
            equal(client.rows(SHOW_START), [SHOWN], mode)


def test_discard_all_restores_this_clients_start_values(env):
    for mode in MODES:
        with env.pooler_with(pool_mode=mode, pool_size=1) as target:
            client = env.connect(target, **START)
            client.execute("set timezone to 'UTC'; set application_name to 'changed'")
            client.execute("discard all")
            equal((client.parameters["TimeZone"], client.parameters["application_name"]), SHOWN[:2], mode)
            equal(client.rows(SHOW_START), [SHOWN], mode)
            client.close()
            neighbour = env.connect(target)
            equal(neighbour.value("show statement_timeout"), "0", mode)


def test_trap_09_set_local_ends_with_its_transaction(env):
    first, second = env.connect(timezone="UTC"), env.connect(timezone="UTC")
    first.execute("begin; set local timezone to 'Asia/Tokyo'")
    equal(first.value("show timezone"), "Asia/Tokyo")
    first.execute("commit")
    equal(second.value("show timezone"), "UTC")
    equal(first.value("show timezone"), "UTC")
    equal(first.parameters["TimeZone"], "UTC")


def test_trap_09_rollback_reverts_set(env):
    """CommandComplete says SET for SET and for SET LOCAL; only frames tell what a rollback undoes."""
    first, second = env.connect(timezone="UTC"), env.connect()
    first.execute("begin; set timezone to 'Asia/Tokyo'; set application_name to 'undone'; rollback")
    second.value("select 1")
    equal(first.rows("select current_setting('timezone'), current_setting('application_name')"), [("UTC", "")])


def test_trap_09_rollback_to_savepoint_reverts_set(env):
    first, second = env.connect(timezone="UTC"), env.connect()
    first.execute("begin; set timezone to 'Asia/Tokyo'; savepoint a; set timezone to 'Europe/Berlin'; savepoint b; "
                  "set local timezone to 'America/New_York'; release b")
    equal(first.value("show timezone"), "America/New_York")
    first.execute("rollback to a; commit")
    second.value("select 1")
    equal(first.value("show timezone"), "Asia/Tokyo")


def test_trap_09_set_local_after_set_commits_the_set(env):
    first, second = env.connect(timezone="UTC"), env.connect()
    first.execute("begin; set timezone to 'Asia/Tokyo'; set local timezone to 'Europe/Berlin'; commit")
    second.value("select 1")
    equal(first.value("show timezone"), "Asia/Tokyo")


def test_trap_09_a_failed_multi_statement_query_reverts_its_set(env):
    first, second = env.connect(timezone="UTC"), env.connect()
    equal(first.attempt("set timezone to 'Asia/Tokyo'; select 1/0").sqlstate, "22012")
    second.value("select 1")
    equal(first.value("show timezone"), "UTC")
    equal(first.attempt("begin; set timezone to 'Asia/Tokyo'; commit; select 1/0").sqlstate, "22012")
    second.value("select 1")
    equal(first.value("show timezone"), "Asia/Tokyo", "committed before the error")


def test_trap_09_set_in_a_pipeline_that_fails_is_reverted(env):
    first, second = env.connect(timezone="UTC"), env.connect()
    first.exchange(m.run("set timezone to 'Asia/Tokyo'"), m.run("select 1/0"), m.SYNC)
    second.value("select 1")
    equal(first.value("show timezone"), "UTC")
    first.exchange(m.run("set timezone to 'Asia/Tokyo'"), m.SYNC, m.run("select 1/0"), m.SYNC)
    second.value("select 1")
    equal(first.value("show timezone"), "Asia/Tokyo")


def test_trap_08_set_config_and_functions_that_change_settings(env):
    first, second = env.connect(), env.connect()
    first.execute("create or replace function set_zone(z text) returns text language sql as $$ select set_config('timezone', z, false) $$")
    first.execute("select set_config('application_name', 'by function', false)")
    first.execute("select set_zone('Asia/Tokyo')")
    equal(second.rows("select current_setting('application_name'), current_setting('timezone') = 'Asia/Tokyo'"), [("", "f")])
    equal(first.rows("select current_setting('application_name'), current_setting('timezone')"), [("by function", "Asia/Tokyo")])


def test_trap_08_equal_values_written_differently(env):
    """trap 8: a GUC is reported only when its value changes; 'utc' and 'UTC' are two names of one value to no pooler."""
    first, second = env.connect(), env.connect()
    for _ in range(2):
        first.execute("set datestyle to iso")
        first.execute("set datestyle to dmy")
        second.execute("set datestyle to 'sql, mdy'")
        equal(first.value("show datestyle"), "ISO, DMY")
        equal(second.value("show datestyle"), "SQL, MDY")
        equal(first.value("select '02/01/2024'::date"), "2024-01-02")
        equal(second.value("select '02/01/2024'::date"), "02/01/2024")


def test_trap_13_server_version_is_the_servers_own(env):
    client = env.connect()
    equal(client.value("show server_version"), client.parameters["server_version"])
    equal(client.parameters["server_version"], env.server().parameters["server_version"])


def test_more_clients_than_backends_each_sees_its_own(env):
    """16 threads, 3 backends, every transaction checks; half of them SET anew all the time."""
    with env.pooler_with(pool_size=3) as target:
        def work(number):
            profile = PROFILES[number % 4]
            with target.connect(**{**profile, "application_name": f"client {number}"}) as client:
                for turn in range(40):
                    name = f"client {number} turn {turn}" if number % 2 else f"client {number}"
                    if number % 2:
                        client.execute(f"set application_name to '{name}'")
                    equal(client.rows("select current_setting('application_name'), current_setting('timezone'), "
                                      "current_setting('datestyle')"),
                          [(name, profile["TimeZone"], profile["DateStyle"])])
                    equal(client.rows(FORMAT_QUERY), [FORMATTED[number % 4]])
        crowd(16, work)


def test_application_name_is_right_in_pg_stat_activity(env):
    first, second = env.connect(application_name="one"), env.connect(application_name="two")
    for _ in range(2):
        for client, name in ((first, "one"), (second, "two")):
            equal(client.value("select application_name from pg_stat_activity where pid = pg_backend_pid()"), name)
