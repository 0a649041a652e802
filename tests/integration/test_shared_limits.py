"""Three poolers before one server, with one limit for all by etcd: under load, with deaths, and with etcd away."""

import base64
import collections
import contextlib
import itertools
import json
import subprocess
import threading
import time

from harness import etcd as e
from harness.pooler import binary
from harness.suite import Skip, equal, limit, pooler_only, until
from harness.way import Way
from harness.wire import Disconnected, ServerError

SAME_FOR_ALL_SERVERS = True
ALONE = "clocks"  # leases end by the clock
TAKES_SECONDS = 85

NUMBERS = itertools.count(1)
LIMIT = 6
LEASE = 4
# A server process ends some time after its connection; what comes in between is not too many.
STAYS_SECONDS = 0.5


def new_etcd(env, **how):
    if not e.program():
        raise Skip("there is no etcd: `scripts/setup.sh all` installs it")
    return e.Etcd(f"{env.directory}/etcd{next(NUMBERS)}", **how)


def sharing(*endpoints, **more):
    """Settings that are about etcd."""
    return {"etcd": list(endpoints), "etcd_lease": f"{LEASE}s", **{f"etcd_{name}": value for name, value in more.items()}}


class Load:
    """Clients of one pooler, that query all the time; each is a thread."""

    def __init__(self, target, clients, sql="select pg_sleep(0.02)"):
        self.target, self.sql = target, sql
        self.done, self.errors = 0, []
        self.ends = threading.Event()
        self.threads = [threading.Thread(target=self._run, daemon=True) for _ in range(clients)]
        for thread in self.threads:
            thread.start()

    def _run(self):
        try:
            with self.target.connect(timeout=60) as client:
                while not self.ends.is_set():
                    client.execute(self.sql)
                    self.done += 1
        except (ServerError, Disconnected, OSError) as error:
            if not self.ends.is_set():
                self.errors.append(f"{type(error).__name__}: {error}")

    def stop(self, wait=True):
        self.ends.set()
        for thread in self.threads if wait else ():
            thread.join(30)


class Watch:
    """Counts server connections of clients, by pooler, as PostgreSQL sees them."""

    def __init__(self, env, most):
        self.client, self.most = env.server("postgres"), most
        self.now, self.over_since, self.worst = collections.Counter(), None, 0.0
        self.ends = threading.Event()
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self):
        # Each pooler has the database under an application_name of its own.
        sql = "select application_name, count(*) from pg_stat_activity where datname = 'app' and application_name like 'node%' group by 1"
        while not self.ends.is_set():
            try:
                self.now = collections.Counter({name: int(count) for name, count in self.client.rows(sql)})
            except OSError:
                return  # the test has failed
            at = time.monotonic()
            if self.now.total() <= self.most:
                self.over_since = None
            else:
                self.over_since = self.over_since or at
                self.worst = max(self.worst, at - self.over_since)
            time.sleep(0.01)

    def shares(self):
        return sorted(self.now.values())

    def stop(self):
        self.ends.set()
        self.thread.join(10)
        return self.worst


@contextlib.contextmanager
def nodes(env, endpoints, names=("node1", "node2", "node3"), lost="keep", **settings):
    """A pooler for each name; they are told apart by the application_name of their server connections."""
    settings = {"pool_size": 10, "max_db_connections": LIMIT, "query_wait_timeout": "30s", **settings}
    with contextlib.ExitStack() as stack:
        targets = []
        for name, endpoint in zip(names, endpoints):
            pooler = env._pooler({**env.settings, **settings, **sharing(endpoint, lost=lost)})
            config = pooler.config.read_text().replace("[[database]]\n", f'[[database]]\napplication_name = "{name}"\n')
            pooler.config.write_text(config)
            stack.callback(end, pooler)
            pooler.start()
            pooler.target.pooler = pooler
            targets.append(pooler.target)
        yield targets


def end(pooler):
    if pooler.process and pooler.process.poll() is None:
        pooler.stop()


def metric(target, what, **labels):
    _, page = target.pooler.http("/metrics")
    wanted = [line for line in page.splitlines() if line.startswith("hawser_" + what)
              and all(f'{k}="{v}"' in line for k, v in labels.items())]
    return float(wanted[0].rsplit(" ", 1)[1]) if wanted else None


def without_errors(*loads):
    equal([error for load in loads for error in load.errors], [], "clients' errors")


def within_the_limit(watch):
    """No more server connections than allowed, for longer than those take that are ending."""
    worst = watch.stop()
    assert worst < STAYS_SECONDS, f"more than {LIMIT} server connections for {worst:.3f} s"


@pooler_only
@limit(180)
def test_three_poolers_have_one_limit_and_each_its_share(env):
    with new_etcd(env) as etcd, nodes(env, [etcd.endpoint] * 3) as targets:
        watch = Watch(env, LIMIT)
        first = Load(targets[0], 10)
        until(lambda: watch.shares() == [LIMIT], "one pooler alone has all", 20)
        loads = [first] + [Load(target, 10) for target in targets[1:]]
        until(lambda: watch.shares() == [2, 2, 2], "each has its share", 30)
        time.sleep(3)  # long enough for shares to be given away again
        until(lambda: watch.shares() == [2, 2, 2], "shares that stay, but for a connection that is being replaced", 5)
        rows = targets[0].pooler.show("LIMITS")
        equal([(row["setting"], row["name"], row["limit"], row["held"]) for row in rows], [("max_db_connections", "app", "6", "2")])
        equal(metric(targets[0], "shared_limit_held", limit="max_db_connections", name="app"), 2.0)
        equal(metric(targets[0], "shared_lease_sure"), 1.0)
        assert "process" in etcd.keys()["/hawser/limits/database/app/0"]
        # What two do not need any more, the third gets.
        for load in loads[1:]:
            load.stop()
        until(lambda: watch.now["node1"] == LIMIT, "all for the one that needs it", 30)
        loads[0].stop()
        without_errors(*loads)
        within_the_limit(watch)


@pooler_only
@limit(240)
def test_what_a_killed_pooler_had_the_others_get_after_its_lease(env):
    with new_etcd(env) as etcd, nodes(env, [etcd.endpoint] * 3) as targets:
        watch = Watch(env, LIMIT)
        loads = [Load(target, 10) for target in targets]
        until(lambda: watch.shares() == [2, 2, 2], "each has its share", 30)
        for number, target in enumerate(targets):
            loads[number].stop(wait=False)
            target.pooler.kill()
            until(lambda: watch.shares() == [3, 3], "the others have its places", LEASE + 20)
            target.pooler.start()
            loads[number] = Load(target, 10)
            until(lambda: watch.shares() == [2, 2, 2], "it has its share again", 30)
        for load in loads:
            load.stop()
        without_errors(*loads)
        within_the_limit(watch)


@pooler_only
@limit(240)
def test_clients_see_no_error_while_etcd_is_frozen_or_killed(env):
    with new_etcd(env) as etcd, nodes(env, [etcd.endpoint] * 3) as targets:
        watch = Watch(env, LIMIT)
        loads = [Load(target, 10) for target in targets]
        until(lambda: watch.shares() == [2, 2, 2], "each has its share", 30)
        for away, back in ((etcd.freeze, etcd.thaw), (etcd.kill, etcd.start)):
            away()
            until(lambda: metric(targets[0], "shared_lease_sure") == 0.0, "the lease may have ended", LEASE + 20)
            before = [load.done for load in loads]
            equal(metric(targets[0], "shared_limit_unsure"), 2.0)
            assert "others may take this pooler's places" in "".join(fallbacks(targets[0])), fallbacks(targets[0])
            time.sleep(2)  # clients are served meanwhile
            assert all(load.done > done for load, done in zip(loads, before)), "a pooler serves no more"
            back()
            until(lambda: metric(targets[0], "shared_lease_sure") == 1.0, "the lease is sure again", 20)
            until(lambda: watch.shares() == [2, 2, 2] and len([key for key in etcd.keys() if "/limits/" in key]) == LIMIT,
                  "all is as before", 30)
        for load in loads:
            load.stop()
        without_errors(*loads)
        within_the_limit(watch)
        assert "the lease in etcd has ended or may have" in targets[0].pooler.text()


def fallbacks(target):
    socket = target.pooler.directory / "hawser.sock"
    done = subprocess.run([binary(), "status", "--socket", str(socket), "--json"], capture_output=True, text=True, timeout=10)
    return json.loads(done.stdout)["fallbacks"]


@pooler_only
@limit(240)
def test_a_pooler_that_is_cut_off_keeps_what_it_has_or_closes_it_in_time(env):
    for lost, left in (("keep", [2, 3, 3]), ("close", [3, 3])):
        with new_etcd(env) as etcd, Way(etcd.port) as way:
            endpoints = [etcd.endpoint, etcd.endpoint, f"http://127.0.0.1:{way.port}"]
            with nodes(env, endpoints, lost=lost) as targets:
                watch = Watch(env, LIMIT)
                loads = [Load(target, 10) for target in targets]
                until(lambda: watch.shares() == [2, 2, 2], "each has its share", 30)
                way.cut()
                until(lambda: watch.shares() == left, f"{lost}: the others have its places", LEASE + 25)
                equal(watch.now["node3"], 2 if lost == "keep" else 0)
                way.mend()
                until(lambda: watch.shares() == [2, 2, 2], f"{lost}: each has its share again", 30)
                for load in loads:
                    load.stop()
                without_errors(*loads)
                worst = watch.stop()
                if lost == "close":
                    assert worst < STAYS_SECONDS, f"more than {LIMIT} server connections for {worst:.3f} s"


@pooler_only
@limit(120)
def test_a_successor_gets_the_places_of_the_process_before_it(env):
    with new_etcd(env) as etcd, nodes(env, [etcd.endpoint], names=["node1"]) as [target]:
        pooler, watch = target.pooler, Watch(env, LIMIT)
        load = Load(target, 10)
        until(lambda: watch.shares() == [LIMIT], "it has all", 20)
        old = pooler.process
        with open(pooler.log, "ab") as log:
            pooler.process = subprocess.Popen([binary(), "takeover", "-c", str(pooler.config)], cwd=pooler.directory,
                                              stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT)
        equal(old.wait(30), 0, "exit code of the old process")
        until(lambda: watch.shares() == [LIMIT], "its successor has all", 20)
        done = load.done
        until(lambda: load.done > done + 50, "clients are served")
        load.stop()
        without_errors(load)
        worst = watch.stop()
        assert worst < STAYS_SECONDS, f"more than {LIMIT} server connections for {worst:.3f} s"
        owners = {owner for key, owner in etcd.keys().items() if "/limits/" in key}
        assert all(owner.endswith(f"process {pooler.process.pid}") for owner in owners), owners


@pooler_only
@limit(120)
def test_a_successor_without_a_lease_leaves_the_process_before_it_in_its_place(env):
    with new_etcd(env) as etcd, nodes(env, [etcd.endpoint], names=["node1"]) as [target]:
        pooler = target.pooler
        load = Load(target, 10)
        until(lambda: load.done > 50, "clients are served")
        etcd.freeze()
        new = subprocess.run([binary(), "takeover", "-c", str(pooler.config)], cwd=pooler.directory, capture_output=True, text=True,
                             timeout=60)
        equal(new.returncode, 1, new.stderr)
        assert "has given this process no lease" in new.stderr and etcd.endpoint in new.stderr, new.stderr
        done = load.done
        until(lambda: load.done > done + 50, "clients are served as before")
        etcd.thaw()
        load.stop()
        without_errors(load)


@pooler_only
@limit(90)
def test_without_etcd_at_the_start_clients_wait_and_are_told_why(env):
    with new_etcd(env) as etcd:
        etcd.kill()
        with env.pooler_with(**sharing(etcd.endpoint), max_db_connections=LIMIT, query_wait_timeout="2s") as target:
            try:
                target.connect()
                raise AssertionError("served without etcd")
            except ServerError as error:
                equal(error.sqlstate, "53300")
                assert "limits are shared by etcd, which does not answer" in error.fields["M"], error.fields
            status, why = target.pooler.http("/readyz")
            equal(status, 503, "nothing can be served")
            assert etcd.endpoint in why, why
            assert f"etcd at {etcd.endpoint}" in target.pooler.text(), target.pooler.tail()
            etcd.start()
            with env.pooler_with(**sharing(etcd.endpoint), max_db_connections=LIMIT) as other:
                equal(env.connect(other).value("select 1"), "1")
            until(lambda: metric(target, "shared_lease_sure") == 1.0, "etcd is found when it comes", 20)
            until(lambda: target.pooler.http("/readyz")[0] == 200, "clients can be served")
            equal(env.connect(target).value("select 1"), "1")


@pooler_only
@limit(90)
def test_a_pooler_that_ends_gives_everything_back_at_once(env):
    with new_etcd(env) as etcd:
        with env.pooler_with(**sharing(etcd.endpoint), max_db_connections=LIMIT, max_user_connections=3, max_server_connections=9,
                             max_server_connections_per_server=8) as target:
            equal(env.connect(target).value("select 1"), "1")
            kinds = {key.split("/")[3] for key in etcd.keys()}
            equal(kinds, {"total", "database", "user", "server"})
        equal(etcd.keys(), {})


@pooler_only
@limit(90)
def test_etcd_is_reached_by_tls_with_a_certificate(env):
    path = env.certificates.path
    options = ["--cert-file", path("server.crt"), "--key-file", path("server.key"), "--client-cert-auth", "--trusted-ca-file",
               path("ca.crt")]
    own = {"cert_file": path("client.crt"), "key_file": path("client.key")}
    with new_etcd(env, scheme="https", options=options) as etcd:
        with env.pooler_with(**sharing(etcd.endpoint, ca_file=path("ca.crt"), **own), max_db_connections=LIMIT) as target:
            equal(env.connect(target).value("select 1"), "1")
        # An authority that has not signed etcd's certificate, and no certificate of one's own.
        for wrong in ({"ca_file": path("other-ca.crt"), **own}, {"ca_file": path("ca.crt")}):
            with env.pooler_with(**sharing(etcd.endpoint, **wrong), max_db_connections=LIMIT) as target:
                until(lambda: "no server connection that they limit can be opened until etcd answers" in target.pooler.text(), "it is said",
                      10)


@pooler_only
@limit(90)
def test_etcd_is_logged_in_to_and_again_when_its_token_is_no_good_any_more(env):
    with new_etcd(env, options=["--auth-token-ttl", "2"]) as etcd:
        for user, role in (("root", "root"), ("hawser", "limits")):
            etcd.ask("/v3/auth/user/add", name=user, password="of " + user)
            etcd.ask("/v3/auth/role/add", name=role)
            etcd.ask("/v3/auth/user/grant", user=user, role=role)
        plain = lambda text: base64.b64encode(text.encode()).decode()
        etcd.ask("/v3/auth/role/grant", name="limits", perm={"permType": "READWRITE", "key": plain("/hawser/"),
                                                             "range_end": plain("/hawser0")})
        etcd.ask("/v3/auth/enable")
        password = env.cluster.certificates.directory / "etcd.password"
        password.write_text("of hawser\n")
        password.chmod(0o600)
        more = {"user": "hawser", "password_file": str(password)}
        with env.pooler_with(**sharing(etcd.endpoint, **more), max_db_connections=LIMIT) as target:
            equal(env.connect(target).value("select 1"), "1")
            etcd.kill()  # tokens are in its memory
            etcd.start(answers=False)
            time.sleep(LEASE + 2)  # a lease that is not renewed ends
            equal(metric(target, "shared_lease_sure"), 1.0)
            equal(metric(target, "shared_lease_losses_total"), 0.0)
        password.write_text("wrong\n")
        with env.pooler_with(**sharing(etcd.endpoint, **more), max_db_connections=LIMIT) as target:
            until(lambda: "authentication failed" in target.pooler.text(), "it is said", 10)
