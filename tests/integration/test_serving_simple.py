"""The simple protocol: what PostgreSQL answers is what comes back, message for message."""

from harness import messages as m
from harness.suite import equal


def test_a_query_gives_rows_tag_and_status(env):
    client = env.connect()
    result = client.execute("select 1 as one, null as nothing, 'x' as letter")
    equal(result.kinds, "TDCZ")
    equal(result.columns, ["one", "nothing", "letter"])
    equal(result.rows, [("1", None, "x")])
    equal(result.tags, ["SELECT 1"])
    equal(result.status, "I")
