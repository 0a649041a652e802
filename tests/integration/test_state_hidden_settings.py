"""Settings that servers do not report, custom names and roles: moved or pinned, but never leaked and never lost.

Few backends, so that a backend is used by several clients; enough of them that a pooler may pin.
"""

import time

from harness.suite import equal, on_every_backend, pooler_only

SETTINGS = {"pool_size": 4}


def test_options_of_the_startup_packet(env):
    first = env.connect(options="-c timezone=Asia/Tokyo -c statement_timeout=54321 -cmy.custom=from\\ startup")
    second = env.connect(options="--work_mem=7MB --search-path=pg_catalog")
    for _ in range(3):
        equal(first.rows("select current_setting('timezone'), current_setting('statement_timeout'), current_setting('my.custom')"),
              [("Asia/Tokyo", "54321ms", "from startup")])
        equal(second.rows("select current_setting('work_mem'), current_setting('search_path'), current_setting('statement_timeout')"),
              [("7MB", "pg_catalog", "0")])


def test_reset_all_and_discard_all_affect_one_client(env):
    for reset in ("reset all", "discard all"):
        first = env.connect(timezone="Europe/Berlin", options="-c work_mem=9MB")
        second = env.connect()
        second.execute("set timezone to 'Asia/Tokyo'; set statement_timeout to 70000")
        first.execute("set timezone to 'UTC'")
        first.execute(reset)
        equal(first.rows("select current_setting('timezone'), current_setting('work_mem')"), [("Europe/Berlin", "9MB")], reset)
        equal(second.rows("select current_setting('timezone'), current_setting('statement_timeout')"), [("Asia/Tokyo", "70s")], reset)


def test_trap_08_values_that_the_server_does_not_report_do_not_leak(env):
    """trap 8: statement_timeout, work_mem, search_path, row_security, default_transaction_* are not reported by PostgreSQL 15."""
    first, others = env.connect(), [env.connect() for _ in range(3)]
    settings = {"statement_timeout": "12345ms", "lock_timeout": "23456ms", "work_mem": "5MB", "search_path": "pg_catalog",
                "default_transaction_read_only": "on", "default_transaction_isolation": "serializable", "row_security": "off",
                "enable_seqscan": "off", "bytea_output": "escape", "extra_float_digits": "0"}
    names = ", ".join(f"current_setting('{name}')" for name in settings)
    neutral = others[0].rows(f"select {names}")
    for name, value in settings.items():
        first.execute(f"set {name} to '{value}'")
    for _ in range(2):
        for result in on_every_backend(others, f"select {names}"):
            equal(result.rows, neutral, "leaked")
        equal(first.rows(f"select {names}"), [tuple(settings.values())], "lost")


def test_trap_10_search_path_is_quoted_exactly(env):
    """trap 10: names with quotes, commas, capitals, spaces, percent signs and semicolons; an empty path; "$user"."""
    client, other = env.connect(), env.connect()
    names = ['Mixed Case', 'with"quote', "with'apostrophe", 'a,b', 'semi;colon', 'back\\slash', '$user', 'per%cent', 'öäü']
    for name in names:
        quoted = '"' + name.replace('"', '""') + '"'
        client.execute(f"create schema if not exists {quoted}; drop table if exists {quoted}.here; create table {quoted}.here as select "
                       f"$tag${name}$tag$::text as t")
    for name in names:
        quoted = '"' + name.replace('"', '""') + '"'
        # What the server itself makes of it, before the client has a chance to move.
        client.execute(f"begin; set search_path to {quoted}, pg_catalog")
        shown = client.value("show search_path")
        client.execute("commit")
        equal(other.rows("select to_regclass('here'), current_setting('search_path')"), [(None, '"$user", public')])
        equal(client.value("show search_path"), shown)
        if name != "$user":  # which stands for the user's name even where it is quoted
            equal(client.value("select t from here"), name)
    client.execute("set search_path to ''")
    other.value("select 1")
    equal(client.value("show search_path"), '""')
    client.execute("select set_config('search_path', '', false)")
    other.value("select 1")
    equal(client.value("select current_schemas(false)"), "{}")
    for name in names:
        quoted = '"' + name.replace('"', '""') + '"'
        client.execute(f"drop schema {quoted} cascade")


def test_trap_10_search_path_of_the_startup_packet_cannot_inject(env):
    """CVE-2025-12819 made search_path from the startup packet run before login; here it is a value and nothing else."""
    evil = "public; create table injected (i int); --"
    client = env.connect(search_path='"' + evil + '"')
    other = env.connect()
    for _ in range(2):
        equal(client.value("show search_path"), '"' + evil + '"')
        equal(other.value("select to_regclass('public.injected')"), None)
    nasty = "it''s \\ $$ \"x\""
    client = env.connect(application_name=nasty)
    other.value("select 1")
    equal(client.value("show application_name"), nasty)


def test_trap_11_a_reset_is_never_assumed(env):
    """trap 11: DISCARD ALL fails in a transaction; what it would have reset still holds, and still does not leak."""
    first, second = env.connect(), env.connect()
    first.execute("set timezone to 'Asia/Tokyo'; set statement_timeout to 40000")
    equal(first.attempt("begin; discard all").sqlstate, "25001")
    first.execute("rollback")
    equal(second.value("show statement_timeout"), "0")
    equal(first.rows("select current_setting('timezone'), current_setting('statement_timeout')"), [("Asia/Tokyo", "40s")])


def test_custom_settings_belong_to_the_client(env):
    """Row-level security leans on them: another client must see NULL, not '' and not the value."""
    first, others = env.connect(), [env.connect() for _ in range(3)]
    first.execute("set my.user_id to '42'")
    first.execute("select set_config('my.tenant', 'acme', false)")
    for result in on_every_backend(others, "select current_setting('my.user_id', true), current_setting('my.tenant', true)"):
        equal(result.rows, [(None, None)])
    equal(first.rows("select current_setting('my.user_id'), current_setting('my.tenant')"), [("42", "acme")])


def test_custom_settings_do_not_survive_their_client(env):
    with env.target.connect() as first:
        first.execute("set my.secret to 'for me only'")
        first.value("select 1")
    for _ in range(3):
        with env.target.connect() as second:
            equal(second.value("select current_setting('my.secret', true)"), None)


def test_roles_do_not_leak(env):
    first, others = env.connect(), [env.connect() for _ in range(3)]
    first.execute("set role helper_role")
    for result in on_every_backend(others, "select current_user"):
        equal(result.value, "app")
    equal(first.rows("select current_user, session_user"), [("helper_role", "app")])
    first.execute("reset role")
    equal(first.value("select current_user"), "app")
    first.execute("begin; set local role helper_role; commit")
    equal(first.value("select current_user"), "app")


def test_role_and_database_defaults_reach_new_clients(env):
    """ALTER ROLE ... SET reaches clients that connect after it, as without a pooler. (What older clients of a pooler have of
    settings that the server does not report changes with their server connection.)"""
    server = env.server()
    before = env.connect()
    equal(before.value("show work_mem"), "4MB")
    server.execute("alter role app in database app set work_mem to '13MB'")
    if env.pooler:
        time.sleep(0.1)  # it looks for such changes every 50 ms
    try:
        after = env.connect()
        equal(after.value("show work_mem"), "13MB")
        if not env.pooler:
            equal(before.value("show work_mem"), "4MB")
        after.execute("set work_mem to '1MB'; reset work_mem")
        equal(after.value("show work_mem"), "13MB")
    finally:
        server.execute("alter role app in database app reset work_mem")


@pooler_only
def test_a_default_that_came_and_went_between_two_logins_reaches_no_new_client(env):
    """A server connection that was opened meanwhile began with it, and what the pooler asked at the second login said that nothing
    had changed since the first."""
    server = env.server()
    with env.pooler_with(pool_size=2, idle_transaction_reserve=0) as target:
        busy, other = env.connect(target), env.connect(target)
        busy.execute("begin")
        server.execute("alter role app in database app set work_mem to '13MB'")
        try:
            equal(other.value("show work_mem"), "13MB")
            time.sleep(0.3)  # it asks what has been set when it has opened a server connection
        finally:
            server.execute("alter role app in database app reset work_mem")
        time.sleep(0.1)  # it looks for such changes every 50 ms
        equal(env.connect(target).value("show work_mem"), "4MB")


def test_older_clients_keep_the_reported_settings_with_which_they_began(env):
    server = env.server()
    before, asked = env.connect(), env.connect(timezone="UTC")
    zone = before.value("show timezone")
    server.execute("alter role app in database app set timezone to 'Asia/Tokyo'")
    if env.pooler:
        time.sleep(0.1)  # it looks for such changes every 50 ms
    try:
        after = env.connect()
        equal(after.value("show timezone"), "Asia/Tokyo")
        for _ in range(2):
            equal(before.value("show timezone"), zone)
            equal(asked.value("show timezone"), "UTC")
            before.execute("set timezone to 'Europe/Berlin'; reset timezone")
            asked.execute("reset all")
    finally:
        server.execute("alter role app in database app reset timezone")


def test_session_characteristics_and_names(env):
    first, second = env.connect(), env.connect()
    first.execute("set session characteristics as transaction isolation level serializable, read only")
    first.execute("set names 'latin1'")
    first.execute("set time zone interval '+02:30' hour to minute")
    equal(second.rows("select current_setting('transaction_isolation'), current_setting('client_encoding'), "
                      "current_setting('transaction_read_only')"),
          [("read committed", "UTF8", "off")])
    equal(first.rows("select current_setting('transaction_isolation'), current_setting('client_encoding'), "
                     "current_setting('transaction_read_only'), current_setting('timezone')"),
          [("serializable", "LATIN1", "on", "<+02:30>-02:30")])
