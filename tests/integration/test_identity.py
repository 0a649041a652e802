"""What a client is known by: its process id."""

from harness import messages as m
from harness.suite import equal, pooler_only

SETTINGS = {}


# Process ids

@pooler_only
def test_an_id_is_not_given_out_again_at_once(env):
    seen = []
    for _ in range(200):
        with env.connect() as client:
            seen.append(client.pid)
    equal(len(set(seen)), 200, "an id came again")
    assert all(4194304 < pid < 1 << 31 for pid in seen), seen


@pooler_only
def test_ids_begin_elsewhere_in_each_process(env):
    first = env.connect().pid
    with env.pooler_with() as target:
        assert abs(env.connect(target).pid - first) > 1000, "by chance: one in a million"


@pooler_only
def test_a_cancel_of_one_that_has_left_hits_nobody(env):
    with env.connect() as gone:
        pid, key = gone.pid, gone.key
    client = env.connect()  # in its place
    client.send(m.query("select pg_sleep(1), 'identity'"))
    env.cluster.wait_for_backends("query like '%identity%' and state = 'active' and pid <> pg_backend_pid()", 1, 5)
    with env.target.open() as other:
        other.send(m.cancel_request(pid, key))
        other.is_closed()
    equal(client.collect().sqlstate, None)
