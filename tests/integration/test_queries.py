"""Statistics of queries: what is counted is what has run, for whom and how long."""

import time

from harness import messages as m
from harness.suite import crowd, equal, pooler_only, until

SAME_FOR_ALL_SERVERS = True
TAKES_SECONDS = 60

# As in pooler::queries::table.
QUERIES_MAX = 1024


def counts(target, *texts):
    """Calls, errors and rows of statements that are counted, by their normalised text."""
    rows = target.pooler.show("QUERIES")
    found = {row["query"]: tuple(int(row[name]) for name in ("calls", "errors", "rows")) for row in rows}
    return [found.get(text) for text in texts]


@pooler_only
def test_calls_errors_and_rows_are_those_that_ran(env):
    with env.pooler_with() as target:
        client = env.connect(target)
        client.execute("create table if not exists queries_counted (a int primary key, b text)")
        client.execute("truncate queries_counted")
        for number in range(5):
            client.execute(f"INSERT INTO queries_counted VALUES ({number}, 'x'), ({number + 100}, 'y')")
        client.attempt("insert into queries_counted values (1, 'again')")
        for low in (0, 3):
            client.extended("select a from queries_counted where a >= $1", [str(low)])
            client.rows(f"SELECT a FROM queries_counted /* why */ WHERE a >= {low} AND b IN ('x', 'y', '{low}')")
        for _ in range(3):
            client.exchange(m.parse("select b from queries_counted limit $1", "named"), m.SYNC)
            client.exchange(m.bind("named", values=["2"]), m.execute(), m.bind("named", values=["1"]), m.execute(), m.SYNC)
            client.exchange(m.close_statement("named"), m.SYNC)
        client.attempt("selekt 1")
        client.exchange(m.run("select 1/$1::int", ["0"]), m.run("select 'ignored'"), m.SYNC)
        client.execute("begin; select 7; commit")
        equal(counts(target,
                     "insert into queries_counted values (?, ?)", "select a from queries_counted where a >= ?",
                     "select a from queries_counted where a >= ? and b in (?)", "select b from queries_counted limit ?",
                     "selekt ?", "select ? / ?::int", "select ?", "begin; select ?; commit"),
              [(6, 1, 10), (2, 0, 17), (2, 0, 17), (6, 0, 9), (1, 1, 0), (1, 1, 0), None, (1, 0, 1)])


@pooler_only
def test_times_waits_users_and_addresses_are_told(env):
    with env.pooler_with(pool_size=1, idle_transaction_reserve=0) as target:
        first, second, other = env.connect(target), env.connect(target), env.connect(target, user="app2")
        for _ in range(3):
            first.value("select pg_sleep(0.2)")
        other.value("select pg_sleep(0.01)")
        first.execute("begin")
        second.send(m.query("select 'waits'"))
        time.sleep(0.4)
        first.execute("commit")
        equal(second.collect().value, "waits")
        rows = target.pooler.show("QUERIES ORDER BY time")
        slow = [row for row in rows if row["query"] == "select pg_sleep(?)"]
        equal([(row["user"], row["database"], row["calls"]) for row in slow], [("app", "app", "3"), ("app2", "app", "1")])
        equal(rows[0], slow[0], "it has taken the most time")
        assert 600_000 <= int(slow[0]["time"]) < 3_000_000, slow
        for name in ("mean", "p50", "p95", "p99"):
            assert 170_000 <= int(slow[0][name]) < 1_000_000, (name, slow[0])
        equal((slow[0]["addr"], slow[0]["example"]), ("127.0.0.1", "select pg_sleep(0.2)"))
        assert slow[0]["digest"] == slow[1]["digest"] and len(slow[0]["digest"]) == 16, slow
        (waited,) = (row for row in target.pooler.show("QUERIES order by wait")[:1])
        equal(waited["query"], "select ?")
        assert 300_000 <= int(waited["wait"]) < 3_000_000 and int(waited["time"]) < 300_000, waited


@pooler_only
def test_what_is_cancelled_or_loses_its_server_or_client_is_an_error(env):
    with env.pooler_with() as target:
        client, killer = env.connect(target), env.connect(target)
        for _ in range(2):
            client.send(m.query("select pg_sleep(30), 'cancelled'"))
            until(lambda: int(killer.value("select count(*) from pg_stat_activity where query like '%cancelled''' and state = 'active' "
                                           "and pid <> pg_backend_pid()")) == 1, "it runs")
            client.cancel(target)
            equal(client.collect().sqlstate, "57014")
        lost, gone = env.connect(target), target.connect()  # closed by the test
        lost.send(m.query("select pg_sleep(30), 'lost', 1"))
        gone.send(m.query("select pg_sleep(30), 'gone', 1, 1"))

        def running(what):
            return killer.rows(f"select pid from pg_stat_activity where query like '%''{what}''%' and state = 'active' and pid <> "
                               "pg_backend_pid()")
        until(lambda: len(running("lost")) == 1 and len(running("gone")) == 1, "both run")
        killer.value(f"select pg_terminate_backend({running('lost')[0][0]})")
        gone.vanish()
        until(lambda: counts(target, "select pg_sleep(?), ?", "select pg_sleep(?), ?, ?", "select pg_sleep(?), ?, ?, ?")
              == [(2, 2, 0), (1, 1, 0), (1, 1, 0)], "each has ended with an error")


@pooler_only
def test_a_flood_of_texts_is_bounded_and_the_rest_is_other(env):
    with env.pooler_with(loops=2) as target:
        texts = [f"select 1 as column_{number}" for number in range(20_000)]

        def flood(number):
            with env.connect(target) as client:
                for start in range(number * 100, len(texts), 400):
                    client.exchange(*(m.query(text) for text in texts[start:start + 100]))
        crowd(4, flood)
        rows = target.pooler.show("QUERIES")
        others = [row for row in rows if row["query"] == "other"]
        equal(len(others), 1)
        assert len(rows) - 1 <= 2 * QUERIES_MAX, len(rows)
        equal(sum(int(row["calls"]) for row in rows), 20_000)
        assert int(others[0]["calls"]) > 0 and "forgotten" in others[0]["example"], others


@pooler_only
def test_it_is_turned_off_and_on_by_a_reload_and_survives_any_other(env):
    with env.pooler_with() as target:
        client = env.connect(target)
        client.value("select 'seen'")
        target.pooler.write(pool_size=7)
        target.pooler.reload()
        equal(counts(target, "select ?"), [(1, 0, 1)])
        target.pooler.write(track_queries="off")
        target.pooler.reload()

        def none():
            client.value("select 'unseen'")
            return target.pooler.show("QUERIES") == []
        until(none, "nothing is counted, and nothing kept")
        target.pooler.write(track_queries="top", query_examples=False)
        target.pooler.reload()

        def counted():
            client.value("select 'seen again'")
            return [row["example"] for row in target.pooler.show("QUERIES") if row["query"] == "select ?"] == [None]
        until(counted, "it is counted, without its values")


@pooler_only
def test_metrics_and_the_dashboard_show_statements_and_no_values(env):
    with env.pooler_with() as target:
        client = env.connect(target)
        for number in range(40):
            client.value(f"select 'a secret' as \"Column {number}\"")
        pages = [target.pooler.http(path)[1] for path in ("/metrics", "/")]
        series = [line for line in pages[0].splitlines() if line.startswith("hawser_query_calls_total{")]
        equal(len(series), 20)
        assert all("Column" in page and "secret" not in page for page in pages), pages


@pooler_only
def test_sessions_of_session_mode_and_pipelines_are_counted(env):
    with env.pooler_with(pool_mode="session") as target:
        client = env.connect(target)
        client.exchange(m.parse("select $1::int + 1", "own"), m.SYNC)
        for _ in range(3):
            client.exchange(m.bind("own", values=["1"]), m.execute(), m.SYNC)
        client.exchange(m.run("select 'unnamed', 1"), m.SYNC)
        client.exchange(m.query("select 'a', 1, 1"), m.query("select 'b', 1, 1"))
        equal(counts(target, "select ?::int + ?", "select ?, ?", "select ?, ?, ?"), [(3, 0, 3), (1, 0, 1), (2, 0, 2)])
