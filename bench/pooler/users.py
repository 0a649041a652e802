"""1,000 users with a client each: one pool that they share, against a pool for each user.

The server of this case has the extension, and a role for each user. Both ways the same clients do
the same: all of them as fast as they can, and then with rests, as clients of many users do.
"""

import cpu
from cluster import USER

USERS = 1000
# The server connections of the pool that all users share.
SHARED_POOL_SIZE = 50
# Mean rest between a client's transactions in the second part: 2,000 transactions a second in all.
REST_MS = 500


def name_of(number):
    """As the load generator names them."""
    return f"{USER}_{number}"


def create(cluster):
    """The users, with the rights that the workload takes."""
    cluster.psql("CREATE ROLE bench_users")
    cluster.psql("GRANT SELECT ON ALL TABLES IN SCHEMA public TO bench_users")
    cluster.psql(
        f"DO $$ BEGIN FOR n IN 0..{USERS - 1} LOOP "
        f"EXECUTE format('CREATE ROLE %I LOGIN IN ROLE bench_users', '{USER}_' || n); END LOOP; END $$"
    )


def users_file():
    return "".join(f'"{name_of(number)}" ""\n' for number in range(USERS))


def run(load):
    """The case, with the function that runs the generator once."""

    def case(setting, running):
        server = [setting.cluster.process.pid]
        clients = {"clients": USERS, "users": USERS}
        busy = load(setting, running, server=server, **clients)
        rests = load(setting, running, think_ms=REST_MS, **clients)
        connections = setting.cluster.psql(
            "SELECT count(*) FROM pg_stat_activity "
            "WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()"
        )
        return busy | {
            "server_connections": int(connections),
            "server_mib": cpu.own_memory_kib(server) / 1024,
            "rests_tps": rests["tps"],
            "rests_p50_us": rests["p50_us"],
            "rests_p99_us": rests["p99_us"],
        }

    return case
