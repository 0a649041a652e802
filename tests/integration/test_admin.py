"""The admin console: PgBouncer 1.26's commands and columns, so that its tools work."""

import os
import re
import signal
import subprocess
import time

from harness import messages as m
from harness.suite import Background, equal, pooler_only, until
from harness.wire import ServerError

SAME_FOR_ALL_SERVERS = True
TAKES_SECONDS = 30

SETTINGS = {"pool_size": 3, "stats_users": ["stats"], "query_wait_timeout": "10s"}

SOCKET = ("type user database replication state addr port local_addr local_port connect_time request_time wait wait_us close_needed "
          "ptr link remote_pid tls application_name prepared_statements id").split()
STATS = ["server_assignment_count", "xact_count", "query_count", "received", "sent", "xact_time", "query_time", "wait_time",
         "client_parse_count", "server_parse_count", "bind_count", "client_login_count"]

# PgBouncer 1.26: the columns of each SHOW, in order. On database `hawser` ours may come after them.
COLUMNS = {
    "ACTIVE_SOCKETS": SOCKET + "recv_pos pkt_pos pkt_remain send_pos send_remain pkt_avail send_avail".split(),
    "CLIENTS": SOCKET,
    "CONFIG": ["key", "value", "default", "changeable"],
    "DATABASES": "name host port database force_user pool_size min_pool_size reserve_pool_size server_lifetime pool_mode "
                 "load_balance_hosts "
                 "max_connections current_connections max_client_connections current_client_connections paused disabled".split(),
    "DNS_HOSTS": ["hostname", "ttl", "addrs"],
    "DNS_ZONES": ["zonename", "serial", "count"],
    "FDS": "fd task user database addr port cancel link client_encoding std_strings datestyle timezone password scram_client_key "
           "scram_server_key".split(),
    "LISTS": ["list", "items"],
    "MEM": ["name", "size", "used", "free", "memtotal"],
    "PEERS": ["peer_id", "host", "port", "pool_size"],
    "PEER_POOLS": ["peer_id", "cl_active_cancel_req", "cl_waiting_cancel_req", "sv_active_cancel", "sv_login"],
    "POOLS": "database user cl_active cl_waiting cl_active_cancel_req cl_waiting_cancel_req sv_active sv_active_cancel sv_being_canceled "
             "sv_idle sv_used sv_tested sv_login maxwait maxwait_us pool_mode load_balance_hosts".split(),
    "SERVERS": SOCKET,
    "SOCKETS": SOCKET + "recv_pos pkt_pos pkt_remain send_pos send_remain pkt_avail send_avail".split(),
    "STATE": ["key", "value"],
    "STATS": ["database", *("total_" + name for name in STATS),
              *("avg_" + {"received": "recv"}.get(name, name) for name in STATS)],
    "STATS_AVERAGES": "database server_assignment_count xact_count query_count bytes_received bytes_sent xact_time query_time wait_time "
                      "avg_client_parse_count avg_server_parse_count avg_bind_count avg_client_login_count".split(),
    "STATS_TOTALS": "database server_assignment_count xact_count query_count bytes_received bytes_sent xact_time query_time wait_time "
                    "client_parse_count server_parse_count bind_count client_login_count".split(),
    "TOTALS": ["name", "value"],
    "USERS": "name pool_size reserve_pool_size pool_mode max_user_connections current_connections max_user_client_connections "
             "current_client_connections".split(),
    "VERSION": ["version"],
}

LISTS = ["databases", "users", "peers", "pools", "peer_pools", "free_clients", "used_clients", "login_clients", "free_servers",
         "used_servers",
         "dns_names", "dns_zones", "dns_queries", "dns_pending"]


def console(env, target=None, **how):
    return env.connect(target, **{"user": "admin", "database": "hawser", **how})


@pooler_only
def test_every_show_has_pgbouncers_columns_in_order(env):
    env.connect().value("select 1")
    admin, wrong = console(env), []
    for what, columns in COLUMNS.items():
        result = admin.attempt(f"SHOW {what}")
        if result.errors or result.columns[: len(columns)] != columns:
            wrong.append((what, result.errors or result.columns))
        elif result.tags != ["SHOW"] or result.status != "I":
            wrong.append((what, result.tags, result.status))
    equal(wrong, [], "SHOW with other columns")


@pooler_only
def test_database_pgbouncer_has_exactly_pgbouncers_columns_and_rows(env):
    """Tools scan a fixed number of columns; they look for the console's own pool, and read the version from the start."""
    env.connect().value("select 1")
    admin, wrong = console(env, database="pgbouncer", application_name="exporter"), []
    for what, columns in COLUMNS.items():
        result = admin.attempt(f"SHOW {what}")
        if result.columns != columns:
            wrong.append((what, result.errors or result.columns))
    equal(wrong, [], "SHOW with other columns")
    assert re.match(r"PgBouncer 1\.26\.\d+\b", admin.value("SHOW VERSION")), admin.value("SHOW VERSION")

    def rows(what):
        result = admin.attempt(f"SHOW {what}")
        return [dict(zip(result.columns, row)) for row in result.rows]
    pool = next(row for row in rows("POOLS") if row["database"] == "pgbouncer")
    equal((pool["user"], pool["pool_mode"], int(pool["cl_active"]) >= 1), ("pgbouncer", "statement", True))
    equal([row["force_user"] for row in rows("DATABASES") if row["name"] == "pgbouncer"], ["pgbouncer"])
    own = [row for row in rows("CLIENTS") if row["application_name"] == "exporter"]
    equal([(row["user"], row["database"]) for row in own], [("admin", "pgbouncer")])
    assert int(next(row for row in rows("STATS") if row["database"] == "app")["total_client_login_count"]) >= 1
    equal(admin.attempt("SHOW POOLS EXTENDED").columns, console(env).attempt("SHOW POOLS").columns)


@pooler_only
def test_exporters_that_count_columns_can_read(env):
    """CloudNativePG's exporter takes 16 columns of SHOW POOLS or 17, and integers up to maxwait_us; pgbouncer_fdw declares 17."""
    env.connect().value("select 1")
    for version, pools, stats in (("1.23", 16, 17), ("1.24", 17, 23), ("1.25", 17, 23), ("1.26", 17, 25)):
        with env.pooler_with(console_version=version) as target:
            env.connect(target).value("select 1")
            admin = console(env, target, database="pgbouncer")
            result = admin.attempt("SHOW POOLS;")
            equal((len(result.columns), len(admin.attempt("SHOW STATS;").columns)), (pools, stats), version)
            assert {row[0] for row in result.rows} == {"app", "pgbouncer"}, result.rows
            for row in result.rows:
                assert all(value.isdigit() for value in row[2:15]), row
                assert row[15] in ("session", "transaction", "statement"), row
            assert admin.value("SHOW VERSION").startswith(f"PgBouncer {version}."), version
            for name, items in admin.rows("SHOW LISTS;"):
                assert name and items.isdigit(), (name, items)


@pooler_only
def test_the_owner_of_the_process_is_pgbouncers_administrator_without_a_password(env):
    """As in PgBouncer: user pgbouncer over the unix socket, with the same uid, whatever the rules say."""
    with env.pooler_with(hba="local all all scram-sha-256\nhost all all all scram-sha-256\n") as target:
        ran = subprocess.run([env.program_path("psql"), "-XAtc", "SHOW VERSION", "-h", target.pooler.directory,
                              "-p", str(target.pooler.port),
                              "-U", "pgbouncer", "-w", "pgbouncer"], capture_output=True, text=True, timeout=20)
        assert ran.stdout.startswith("PgBouncer "), ran.stderr
        for how in ({"user": "pgbouncer", "database": "app"}, {"user": "pgbouncer", "database": "pgbouncer"}):
            try:
                env.connect(target, secret="wrong", **how)  # over TCP, or elsewhere than the console: as everybody
            except ServerError as error:
                equal(error.fields["C"], "28P01")
                continue
            raise AssertionError(f"no password was asked for: {how}")


@pooler_only
def test_both_admin_databases_and_any_case_and_ending(env):
    for database in ("hawser", "pgbouncer"):
        admin = console(env, database=database)
        for sql in ("SHOW VERSION", "show version;", "  Show Version ; ", "SHOW\tVERSION"):
            assert "hawser" in admin.value(sql).lower(), sql


@pooler_only
def test_the_console_answers_extended_queries_and_pipelines(env):
    admin = console(env)
    result = admin.exchange(m.run("SHOW VERSION"), m.SYNC)
    equal((result.kinds, result.tags), ("12TDCZ", ["SHOW"]))
    result = admin.exchange(m.query("SHOW VERSION"), m.query(""), m.query("SHOW STATE"))
    equal(result.kinds[:5], "TDCZI")


@pooler_only
def test_what_drivers_ask_at_connect_is_answered(env):
    """libpq, JDBC, lib/pq and psycopg send these before a tool's first SHOW."""
    admin = console(env, application_name="exporter", client_encoding="UTF8", extra_float_digits="2", datestyle="ISO, MDY")
    for name in ("server_version", "client_encoding", "standard_conforming_strings", "DateStyle", "TimeZone"):
        assert name in admin.parameters, name
    for sql in ("SET extra_float_digits = 3", "SET application_name = 'PostgreSQL JDBC Driver'", "SET client_encoding TO 'UTF8'", ";"):
        result = admin.attempt(sql)
        equal((result.sqlstate, result.closed), (None, False), sql)


@pooler_only
def test_unknown_commands_are_errors_and_the_console_goes_on(env):
    admin = console(env)
    for sql in ("SHOW NOTHING", "DROP TABLE x", "PAUSE no_such_database_but_star_takes_any extra", "SET", "KILL_CLIENT x", "nonsense"):
        result = admin.attempt(sql)
        assert result.errors and result.status == "I", (sql, result)
    assert admin.value("SHOW VERSION")


@pooler_only
def test_probes_of_monitors_are_told_what_pgbouncer_tells_them(env):
    """SELECT is another word for SHOW there; what it does not show is answered with the command. An empty query, which
    PgBouncer calls invalid, is answered as by PostgreSQL, and so is the extended protocol, which it refuses."""
    admin = console(env)
    for sql in ("select 1", "SELECT version()", "select pg_is_in_recovery()", "VACUUM"):
        for result in (admin.attempt(sql + ";"), admin.exchange(m.run(sql), m.SYNC)):
            equal((result.errors[0]["M"], result.status), (f"invalid command '{sql}', use SHOW HELP;", "I"), sql)
    equal(admin.rows("select version"), admin.rows("SHOW VERSION"))
    for sql in ("", ";"):
        equal(admin.attempt(sql).kinds, "IZ", sql)


@pooler_only
def test_who_may_use_the_console(env):
    try:
        client = console(env, user="app")
        result = client.attempt("SHOW VERSION")
        assert result.errors, "an ordinary user may use the console"
    except ServerError as error:
        assert error.sqlstate in ("42501", "28000", "08P01"), error
    stats = console(env, user="stats")
    assert stats.rows("SHOW STATS") is not None
    assert stats.rows("SHOW POOLS") is not None
    for sql in ("PAUSE", "RELOAD", "SHUTDOWN", "KILL", "SET pool_mode = 'session'"):
        assert stats.attempt(sql).errors, f"a stats user may {sql}"


@pooler_only
def test_show_pools_counts_clients_and_servers(env):
    with env.pooler_with(pool_size=2, idle_transaction_reserve=0) as target:
        busy = [env.connect(target) for _ in range(2)]
        for client in busy:
            client.execute("begin; select 1")
        idle = env.connect(target)
        waiting = env.connect(target)
        waiting.send(m.query("select 1"))
        time.sleep(1.2)  # maxwait counts whole seconds
        (pool,) = [row for row in target.pooler.show("POOLS") if row["database"] == "app"]
        equal([pool[name] for name in ("user", "cl_waiting", "sv_active", "sv_idle", "pool_mode")], ["app", "1", "2", "0", "transaction"])
        equal(int(pool["cl_active"]) in (2, 3), True, "cl_active: those at work, or (as PgBouncer) idle ones too")
        equal(pool["maxwait"], "1")
        for client in busy:
            client.execute("commit")
        waiting.collect()
        idle.value("select 1")
        (pool,) = [row for row in target.pooler.show("POOLS") if row["database"] == "app"]
        equal([pool[name] for name in ("cl_waiting", "sv_active", "sv_idle", "maxwait")], ["0", "0", "2", "0"])


@pooler_only
def test_show_clients_and_servers_name_each_other(env):
    client = env.connect(application_name="linked")
    pid = client.execute("begin; select pg_backend_pid()").value
    (row,) = [row for row in env.pooler.show("CLIENTS") if row["application_name"] == "linked"]
    equal([row[name] for name in ("type", "user", "database", "state", "addr", "port")],
          ["C", "app", "app", "active", "127.0.0.1", str(client.sock.getsockname()[1])])
    (server,) = [server for server in env.pooler.show("SERVERS") if server["remote_pid"] == pid]
    equal([server[name] for name in ("type", "user", "database", "state")], ["S", "app", "app", "active"])
    equal((row["link"], server["link"]), (server["ptr"], row["ptr"]))
    client.execute("commit")


@pooler_only
def test_show_stats_counts(env):
    with env.pooler_with() as target:
        client = env.connect(target)
        for _ in range(10):
            client.value("select 1")
        client.execute("begin")
        client.execute("select 2")
        client.execute("commit")
        client.exchange(m.parse("select 3", "s"), m.SYNC)
        for _ in range(5):
            client.exchange(m.bind("s"), m.execute(), m.SYNC)

        def totals():
            rows = [row for row in target.pooler.show("STATS_TOTALS") if row["database"] == "app"]
            return rows[0] if rows and int(rows[0]["query_count"]) >= 18 else None
        row = until(totals, "18 queries counted", 4)
        assert 16 <= int(row["xact_count"]) <= 17, row
        assert 18 <= int(row["query_count"]) <= 19, row
        equal((row["client_parse_count"], row["server_parse_count"], row["bind_count"]), ("1", "1", "5"))
        assert int(row["bytes_received"]) > 200 and int(row["bytes_sent"]) > 500, row
        (stats,) = [row for row in target.pooler.show("STATS") if row["database"] == "app"]
        equal(stats["total_query_count"], row["query_count"])


@pooler_only
def test_show_lists_config_databases_users_and_state(env):
    env.connect().value("select 1")
    equal([row["list"] for row in env.pooler.show("LISTS")][: len(LISTS)], LISTS)
    config = {row["key"]: row for row in env.pooler.show("CONFIG")}
    for name in ("pool_mode", "max_client_conn", "query_wait_timeout", "server_idle_timeout", "admin_users", "default_pool_size"):
        assert name in config, f"SHOW CONFIG lacks {name}"
    equal((config["pool_mode"]["value"], config["query_wait_timeout"]["value"]), ("transaction", "10"), "in PgBouncer's units")
    databases = {row["name"]: row for row in env.pooler.show("DATABASES")}
    assert "app" in databases, "the database that * stands for, once used"
    equal((databases["app"]["pool_size"], databases["app"]["paused"], databases["app"]["disabled"]), ("3", "0", "0"))
    assert "app" in {row["name"] for row in env.pooler.show("USERS")}
    equal([(row["key"], row["value"]) for row in env.pooler.show("STATE")][:3], [("active", "yes"), ("paused", "no"), ("suspended", "no")])


@pooler_only
def test_the_queries_of_the_prometheus_exporter(env):
    """As its collector sends and reads them: SHOW LISTS by name, all others by column, numbers as numbers."""
    env.connect().value("select 1")
    admin = console(env, database="pgbouncer", user="stats")
    for what, labels in (("STATS", {"database"}), ("POOLS", {"database", "user", "pool_mode", "load_balance_hosts"}),
                         ("DATABASES", {"name", "host", "port", "database", "force_user", "pool_mode", "load_balance_hosts"})):
        result = admin.execute(f"SHOW {what};")
        assert result.rows, what
        for row in result.rows:
            for name, value in zip(result.columns, row):
                if name in COLUMNS[what] and name not in labels and value is not None:
                    assert value.lstrip("-").isdigit(), f"{what}.{name} = {value!r}"
    for row in admin.rows("SHOW LISTS;"):
        assert row[1].isdigit(), row
    config = dict(row[:2] for row in admin.rows("SHOW CONFIG;"))
    assert config["max_client_conn"].isdigit() and config["max_user_connections"].isdigit()
    assert admin.value("SHOW VERSION;")


@pooler_only
def test_pause_and_resume(env):
    with env.pooler_with() as target:
        client, busy = env.connect(target), env.connect(target)
        busy.execute("begin; select 1")
        admin = console(env, target)
        pausing = Background(admin.attempt, "PAUSE app")
        time.sleep(0.3)  # PAUSE waits
        assert pausing.is_running(), "PAUSE did not wait for the open transaction"
        equal(busy.execute("select 2; commit").status, "I")
        equal(pausing.join().tags, ["PAUSE"])
        client.send(m.query("select 'resumed'"))
        assert not client.pending(0.3), "served while paused"
        equal([row["paused"] for row in target.pooler.show("DATABASES") if row["name"] == "app"], ["1"])
        equal([row for row in target.pooler.show("SERVERS") if row["database"] == "app"], [])
        equal(env.connect(target, database="other").value("select 'another database'"), "another database")
        equal(admin.execute("RESUME app").tags, ["RESUME"])
        equal(client.collect().value, "resumed")
        equal(admin.execute("PAUSE").tags, ["PAUSE"])
        equal([row["value"] for row in target.pooler.show("STATE") if row["key"] == "paused"], ["yes"])
        equal(admin.execute("RESUME").tags, ["RESUME"])
        equal(client.value("select 1"), "1")


@pooler_only
def test_a_resume_while_a_pause_waits_leaves_nothing_paused(env):
    with env.pooler_with() as target:
        client, busy = env.connect(target), env.connect(target)
        client.value("select 1")
        busy.execute("begin")
        for name in (" app", ""):
            one, two = console(env, target), console(env, target)
            pausing = Background(one.attempt, f"PAUSE{name}")
            time.sleep(0.3)  # PAUSE waits
            equal(two.execute(f"RESUME{name}").tags, ["RESUME"])
            equal(pausing.join().errors[0]["C"], "57014")
            time.sleep(0.2)  # nothing pauses any more, however late
            equal(env.connect(target).value("select 'served'"), "served")
            equal(client.value("select 1"), "1")
        busy.execute("commit")


@pooler_only
def test_disable_and_enable(env):
    with env.pooler_with() as target:
        client = env.connect(target)
        client.value("select 1")
        admin = console(env, target)
        equal(admin.execute("DISABLE app").tags, ["DISABLE"])
        try:
            env.connect(target)
            raise AssertionError("logged in to a disabled database")
        except ServerError as error:
            assert error.sqlstate in ("3D000", "57P03", "08P01"), error
        equal(client.value("select 'still here'"), "still here")
        equal(admin.execute("ENABLE app").tags, ["ENABLE"])
        equal(env.connect(target).value("select 1"), "1")


@pooler_only
def test_reconnect_replaces_backends_when_they_are_free(env):
    with env.pooler_with(pool_size=2) as target:
        busy, client = env.connect(target), env.connect(target)
        held = busy.execute("begin; select pg_backend_pid()").value
        old = client.value("select pg_backend_pid()")
        equal(console(env, target).execute("RECONNECT app").tags, ["RECONNECT"])
        assert client.value("select pg_backend_pid()") not in (old, held)
        equal(busy.value("select pg_backend_pid()"), held)
        busy.execute("commit")
        pids = {env.connect(target).value("select pg_backend_pid()") for _ in range(4)}
        assert held not in pids and old not in pids


@pooler_only
def test_server_fast_close_ends_who_keeps_a_server_connection_from_before(env):
    for fast in (False, True):
        with env.pooler_with(pool_size=3, server_fast_close=fast) as target:
            keeps, busy, other = env.connect(target), env.connect(target), env.connect(target)
            keeps.execute("create temp table kept (v int)")
            busy.execute("begin; create temp table kept (v int)")
            other.value("select 1")
            console(env, target).execute("RECONNECT app")
            if not fast:
                time.sleep(1.5)  # it would have been disconnected by then
                equal(keeps.value("select count(*) from kept"), "0")
                continue
            until(keeps.is_closed, "the client that keeps a server connection is disconnected")
            equal(busy.value("select count(*) from kept"), "0")
            busy.execute("commit")
            until(busy.is_closed, "the other one, when its transaction has ended")
            equal(other.value("select 1"), "1")


@pooler_only
def test_kill_drops_clients_and_servers_of_a_database(env):
    with env.pooler_with() as target:
        client, other = env.connect(target), env.connect(target, database="other")
        client.execute("begin; select 1")
        other.value("select 1")
        admin = console(env, target)
        equal(admin.execute("KILL app").tags, ["KILL"])
        assert client.is_closed()
        until(lambda: not [row for row in target.pooler.show("SERVERS") if row["database"] == "app"], "no servers of app")
        equal(other.value("select 'untouched'"), "untouched")
        admin.execute("RESUME app")
        equal(env.connect(target).value("select 1"), "1")


@pooler_only
def test_kill_client(env):
    victim, other = env.connect(application_name="victim"), env.connect()
    (row,) = [row for row in env.pooler.show("CLIENTS") if row["application_name"] == "victim"]
    equal(console(env).execute(f"KILL_CLIENT {row['id']}").tags, ["KILL_CLIENT"])
    assert victim.is_closed()
    equal(other.value("select 1"), "1")


@pooler_only
def test_wait_close(env):
    with env.pooler_with() as target:
        busy = env.connect(target)
        busy.execute("begin; select 1")
        admin = console(env, target)
        admin.execute("RECONNECT app")
        waiting = Background(admin.attempt, "WAIT_CLOSE app")
        time.sleep(0.3)  # WAIT_CLOSE waits
        assert waiting.is_running(), "did not wait for the old backend"
        busy.execute("commit")
        equal(waiting.join().tags, ["WAIT_CLOSE"])


@pooler_only
def test_set_changes_a_setting_at_once(env):
    with env.pooler_with(pool_size=1, idle_transaction_reserve=0) as target:
        admin = console(env, target)
        equal(admin.execute("SET query_wait_timeout = '1'").tags, ["SET query_wait_timeout=1"])
        equal({row["key"]: row["value"] for row in target.pooler.show("CONFIG")}["query_wait_timeout"], "1")
        holder, waiting = env.connect(target), env.connect(target)
        holder.execute("begin; select 1")
        equal(waiting.attempt("select 1").sqlstate, "53300")
        assert admin.attempt("SET query_wait_timeout = 'nonsense'").errors
        assert admin.attempt("SET no_such_setting = 1").errors
        holder.execute("commit")


@pooler_only
def test_reload_by_command(env):
    with env.pooler_with(pool_size=1, idle_transaction_reserve=0) as target:
        client = env.connect(target)
        target.pooler.write(pool_size=4)
        equal(console(env, target).execute("RELOAD").tags, ["RELOAD"])
        clients = [env.connect(target) for _ in range(3)]
        client.execute("begin; select 1")
        for other in clients:
            equal(other.execute("begin; select 1").value, "1")
        for other in clients + [client]:
            other.execute("commit")
        target.pooler.write(pool_mode="sometimes")
        assert console(env, target).attempt("RELOAD").errors, "a bad file was taken"
        target.pooler.write(pool_mode="transaction")


@pooler_only
def test_shutdown(env):
    with env.pooler_with(start=False) as target:
        for command in ("SHUTDOWN", "SHUTDOWN WAIT_FOR_SERVERS", "SHUTDOWN WAIT_FOR_CLIENTS"):
            target.pooler.start()
            with target.connect() as client:
                client.value("select 1")
            with target.connect(user="admin", database="hawser") as admin:
                admin.send(m.query(command))
                admin.close()
            equal(target.pooler.wait(), 0, command)
            target.pooler.check_log()
            target.pooler.process = None


@pooler_only
def test_shutdown_waits_for_clients_while_consoles_are_connected(env):
    """Each console once counted as a client that had left: a query was cut."""
    with env.pooler_with(start=False) as target:
        target.pooler.start()
        client, watcher = target.connect(), target.connect(user="admin", database="hawser")
        with target.connect(user="admin", database="hawser") as admin:
            client.send(m.query("select pg_sleep(1.5), 'answered'"))
            admin.send(m.query("SHUTDOWN WAIT_FOR_CLIENTS"))
            equal(client.collect().rows, [("", "answered")])
            equal(client.value("select 2"), "2")
            assert watcher.attempt("SHOW VERSION").rows, "the console is closed"
            client.close()
            equal(target.pooler.wait(), 0)
        target.pooler.check_log()
        target.pooler.process = None


@pooler_only
def test_both_ends_of_each_connection_are_shown(env):
    by_tcp, by_unix = env.connect(), env.connect(host=env.target.socket_dir)
    with env.pooler_with(servers=[f"127.0.0.1:{env.cluster.port}"], server_tls_sslmode="disable") as target:
        client = env.connect(target)
        client.execute("begin; select 1")
        seen = client.rows("select host(client_addr), client_port from pg_stat_activity where pid = pg_backend_pid()")
        for what in ("servers", "sockets"):
            (row,) = [row for row in target.pooler.show(what) if row["type"] == "S"]
            equal([(row["local_addr"], row["local_port"])], seen, f"{what}: this end of the server connection")
        client.execute("commit")
        (row,) = target.pooler.show("servers")
        equal([(row["local_addr"], row["local_port"])], seen, "of an idle one")
    by_tcp.value("select 1")
    shown = {(row["addr"], row["port"]): (row["local_addr"], row["local_port"]) for row in env.pooler.show("clients")}
    address, port = by_tcp.sock.getsockname()[:2]
    equal(shown[(address, str(port))], (env.target.host, str(env.target.port)))
    equal(shown[("unix", "0")], ("unix", str(env.target.port)))
    by_unix.value("select 1")


@pooler_only
def test_replication_is_named_by_its_kind(env):
    def kinds(what):
        return sorted(row["replication"] for row in env.pooler.show(what) if row["user"] == "replicator")
    equal(kinds("clients"), [])
    clients = [env.connect(user="replicator", replication=kind) for kind in ("true", "database")]
    for client in clients:
        client.execute("IDENTIFY_SYSTEM")
    equal((kinds("clients"), kinds("servers")), (["logical", "physical"],) * 2)


@pooler_only
def test_show_pools_counts_servers_that_are_reset(env):
    with env.pooler_with(pool_mode="session", pool_size=2, server_reset_query="select pg_sleep(1)") as target:
        with env.connect(target) as other, target.connect() as leaves:
            other.value("select 1")
            leaves.value("select 1")
            leaves.close()

            def counts():
                (pool,) = [row for row in target.pooler.show("pools") if row["user"] == "app"]
                return pool["sv_active"], pool["sv_tested"], pool["sv_idle"]
            until(lambda: counts() == ("1", "1", "0"), "one is active and one is tested")
            until(lambda: counts() == ("1", "0", "1"), "the reset has ended")


@pooler_only
def test_show_pools_counts_cancels(env):
    with env.pooler_with(pool_size=1, cancel_wait_timeout="8s") as target:
        client = env.connect(target)
        client.send(m.query("select pg_sleep(1)"))
        env.cluster.wait_for_backends("query like '%pg_sleep(1)' and state = 'active'", 1)
        postmaster = int((env.cluster.data / "postmaster.pid").read_text().split()[0])

        def counts(*names):
            (pool,) = [row for row in target.pooler.show("pools") if row["user"] == "app"]
            return tuple(int(pool[name]) for name in names)
        os.kill(postmaster, signal.SIGSTOP)  # takes cancel requests, and does nothing about them
        try:
            client.cancel(target)
            until(lambda: counts("cl_active_cancel_req", "sv_active_cancel", "sv_active", "sv_being_canceled") == (1, 1, 1, 0),
                  "on its way")
            client.collect()
            until(lambda: counts("cl_active_cancel_req", "sv_active_cancel", "sv_active", "sv_being_canceled") == (0, 1, 0, 1),
                  "the query has ended, and the cancel is still on its way")
        finally:
            os.kill(postmaster, signal.SIGCONT)
        until(lambda: counts("sv_active_cancel", "sv_being_canceled", "sv_idle") == (0, 0, 1), "all is over")
        equal(client.value("select 1"), "1")
