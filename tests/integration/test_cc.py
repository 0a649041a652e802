"""`hawser cc`: what is here, comparing, programs, and applying, as scripts use them."""

import contextlib
import functools
import json
import os
import pathlib
import shlex
import signal
import subprocess
import sys
import threading
import time

from harness.pooler import Pooler, binary
from harness.suite import Skip, equal, limit, pooler_only, until
from integration.test_lab import by_reno, lab, network
from integration.test_mptcp import needs_mptcp, two_machines

SAME_FOR_ALL_SERVERS = True
ALONE = "networks"
TAKES_SECONDS = 200

TOKEN = "a token for these tests"
ABSENT, INCOMPLETE, DENIED, NOT_THERE = 69, 74, 77, 78


def cc(*arguments, check=0, seconds=60, token=TOKEN, path=os.environ["PATH"]):
    environment = dict(os.environ, HAWSER_CC_TOKEN=token, PATH=path)
    run = subprocess.run([os.environ["HAWSER"], "cc", *map(str, arguments)], capture_output=True, text=True, timeout=seconds,
                         env=environment)
    assert check is None or run.returncode == check, f"exit code {run.returncode}: {run.stderr}{run.stdout}"
    return run


def here(test):
    """Needs the program itself, not a pooler."""
    @pooler_only
    @functools.wraps(test)
    def run(env):
        if "HAWSER" not in os.environ:
            raise Skip("no program: $HAWSER is not set")
        test(env)
    return run


def listed():
    return json.loads(cc("list", "--json").stdout)


class Server:
    """`hawser cc serve` on a free port."""

    def __init__(self, *options, before=(), listen="127.0.0.1:0"):
        command = [*before, os.environ["HAWSER"], "cc", "serve", "--listen", listen, *options]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
                                        env=dict(os.environ, HAWSER_CC_TOKEN=TOKEN))
        self.address = self.process.stdout.readline().removeprefix("listening on ").strip()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.terminate()
        self.process.wait()


@here
def test_list_says_what_the_kernel_says_and_what_stands_in_the_way(env):
    found = listed()
    with open("/proc/sys/net/ipv4/tcp_congestion_control") as file:
        assert found["default"] == file.read().strip()
    assert found["default"] in found["available"] and found["findings"]
    text = cc("list", "--rate", "95Mbit/s", "--rtt", "217ms").stdout
    assert "95.0 Mbit/s, 217 ms: 2.5 MiB under way" in text and "tcp_wmem" in text
    cc("list", "--rtt", "217", check=2)


@here
def test_both_directions_are_measured_at_the_receiver(env):
    with Server() as server:
        default = listed()["default"]
        run = cc("bench", server.address, "--algorithms", default, "--rounds", 1, "--seconds", 6, "--bytes", 1 << 20, "--no-udp", "--json")
        outcomes = json.loads(run.stdout)["outcomes"]
        assert [one["direction"] for one in outcomes] == ["down", "up"]
        for one in outcomes:
            assert sum(one["runs"][0]["each_second"]) == 8 << 20 and one["algorithm"] == default


@here
def test_the_path_itself_is_measured_by_datagrams_and_a_neighbours_share_is_told(env):
    with Server() as server:
        default = listed()["default"]
        run = cc("bench", server.address, "--algorithms", default, "--rounds", 1, "--seconds", 6, "--bytes", 1 << 20,
                 "--fairness", "--json", seconds=90)
        found = json.loads(run.stdout)
        assert [one["direction"] for one in found["path"]] == ["down", "up"], found["path"]
        for one in found["path"]:
            assert one["ceiling"] > 1e6 and 0 <= one["loss"] < 0.5 and 0 < one["rtt_ms"] < 1000, one
        beside = [one for one in found["outcomes"] if "neighbour" in one]
        assert beside and all(one["flows"] == 1 for one in beside), found["outcomes"]


@limit(180)
@here
def test_postgresqls_own_programs_are_measured_over_each_algorithm(env):
    default = listed()["default"]
    path = f"{os.path.dirname(env.program_path('psql'))}:{os.environ['PATH']}"
    bench = ["bench", "--algorithms", default, "--rounds", 1, "--seconds", 6, "--bytes", 1 << 20, "--only", "down",
             "--no-udp", "--json", "--postgres"]
    with Server("--postgres", f"127.0.0.1:{env.cluster.port}") as server:
        run = cc(*bench, "postgres://app:app%27s%20secret@db.invalid/app", server.address, seconds=120, path=path)
        found = {one["work"]: one["figure"] for one in json.loads(run.stdout)["postgres"]}
        assert {"copy_out", "copy_in", "queries", "first_row"} <= set(found), run.stderr
        assert all(figure > 0 for figure in found.values()), found
    with Server() as server:
        refused = cc(*bench, "postgres://nobody@db.invalid/x", server.address, check=NOT_THERE, path=path)
        assert "--postgres" in refused.stderr


@here
def test_what_goes_wrong_has_an_exit_code_of_its_own(env):
    with Server() as server:
        assert "token" in cc("bench", server.address, check=DENIED, token="another token than that").stderr
        assert "nosuchthing" in cc("bench", server.address, "--algorithms", "nosuchthing", check=NOT_THERE).stderr
        cc("bench", server.address, check=2, token="short")
        gone = server.address
    assert "hawser cc serve" in cc("bench", gone, check=ABSENT).stderr


@here
def test_a_server_that_dies_in_a_transfer_is_said(env):
    with Server() as server:
        default = listed()["default"]
        with subprocess.Popen([os.environ["HAWSER"], "cc", "bench", server.address, "--algorithms", default, "--only", "down", "--no-udp"],
                              stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
                              env=dict(os.environ, HAWSER_CC_TOKEN=TOKEN)) as bench:
            bench.stderr.readline()
            time.sleep(0.5)  # the transfer is under way
            server.process.kill()
            _, errors = bench.communicate(timeout=30)
        assert bench.returncode == ABSENT, errors


@limit(60)
@here
def test_a_server_that_dies_between_its_transfers_leaves_what_was_measured(env):
    default = listed()["default"]
    page = pathlib.Path(env.directory) / "incomplete.html"
    for options in (["--json"], []):
        with Server() as server:
            command = [os.environ["HAWSER"], "cc", "bench", server.address, "--algorithms", default, "--only", "down", "--no-udp",
                       "--rounds", "2", "--seconds", "6", "--html", page, *options]
            with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                  env=dict(os.environ, HAWSER_CC_TOKEN=TOKEN)) as bench:
                while "round 1 of 2" not in (line := bench.stderr.readline()):
                    assert line, bench.communicate()
                time.sleep(1)  # the second transfer is under way
                server.process.kill()
                shown, errors = bench.communicate(timeout=40)
        assert bench.returncode == INCOMPLETE and "incomplete, after 1 of 2 transfers" in errors, (bench.returncode, errors)
        if options:
            found = json.loads(shown)
            assert found["incomplete"].startswith("after 1 of 2 transfers") and len(found["outcomes"][0]["runs"]) == 1, found
        else:
            assert shown.startswith("INCOMPLETE after 1 of 2") and f" {default} " in shown, shown
        assert "<b>Incomplete</b> after 1 of 2 transfers" in page.read_text()


@here
def test_a_program_runs_with_another_algorithm(env):
    found = listed()
    others = [name for name in found["allowed"] if name != found["default"]]
    if not others:
        raise Skip("no second algorithm is allowed here")
    program = ("import socket\n"
               "for family in (socket.AF_INET, socket.AF_INET6):\n"
               "    with socket.socket(family) as one: print(one.getsockopt(socket.IPPROTO_TCP, 13, 16).rstrip(b'\\0').decode())\n")
    run = cc("run", "--algorithm", others[0], "--", sys.executable, "-c", program, check=None)
    if run.returncode == 125:
        raise Skip(f"no supervisor: {run.stderr.strip()}")
    assert run.returncode == 0 and run.stdout.split() == [others[0]] * 2, f"{run.stdout}{run.stderr}"
    cc("run", "--algorithm", "nosuchthing", "--", "true", check=125)
    cc("run", "--algorithm", others[0], "--", "false", check=1)


@here
def test_a_dry_run_of_apply_writes_nothing(env):
    default = listed()["default"]
    text = cc("apply", "--system", "--algorithm", default, "--buffers", 32 << 20, "--persist", "--dry-run").stdout
    assert "33554432" in text and "sysctl.d" in text
    assert not os.path.exists("/etc/sysctl.d/90-hawser-congestion.conf")
    cc("apply", "--algorithm", default, check=2)
    cc("apply", "--system", "--algorithm", "nosuchthing", "--dry-run", check=NOT_THERE)


@here
def test_a_default_that_a_namespace_may_not_have_is_refused_with_the_reason(env):
    allowed = pathlib.Path("/proc/sys/net/ipv4/tcp_allowed_congestion_control").read_text().split()
    restricted = [one for one in listed()["available"] if one not in allowed]
    if not restricted:
        raise Skip("every algorithm of this kernel is allowed")
    with network("lan") as name:
        refused = lab("run", name, "--", os.environ["HAWSER"], "cc", "apply", "--system", "--algorithm", restricted[0],
                      "--buffers", 32 << 20, check=DENIED)
        assert "tcp_allowed_congestion_control" in refused.stderr and "root" not in refused.stderr, refused.stderr
        undone = lab("run", name, "--", os.environ["HAWSER"], "cc", "undo").stdout
        assert "there is nothing to undo" in undone, undone


@here
def test_one_destination_has_an_algorithm_of_its_own_until_undo(env):
    with network("lan") as name:
        def inside(*command, check=0):
            return lab("run", name, "--", *command, check=check).stdout
        found = json.loads(inside(os.environ["HAWSER"], "cc", "list", "--json"))
        others = [one for one in found["allowed"] if one != found["default"]]
        if not others:
            raise Skip("no second algorithm is allowed here")
        far = "10.77.0.2"
        program = (f"import socket\none = socket.socket()\none.setblocking(False)\none.connect_ex(('{far}', 9))\n"
                   "print(one.getsockopt(socket.IPPROTO_TCP, 13, 16).rstrip(b'\\0').decode())")
        asks = f"{sys.executable} -c {shlex.quote(program)}"
        script = f"$HAWSER cc apply --to {far} --algorithm {others[0]} && {asks} && $HAWSER cc undo && {asks}"
        lines = inside("sh", "-c", script).split("\n")
        assert f"congctl {others[0]}" in lines[0] and lines[2] == others[0], lines
        assert "connections that exist keep their algorithm" in lines[1], lines
        assert lines[3].startswith("removed: ") and lines[4] == found["default"], lines


@needs_mptcp
def test_a_route_of_apply_is_a_copy_of_the_way_there(env):
    algorithm = listed()["default"]
    far = "203.0.113.0/24"
    with two_machines() as (near, _):
        def apply(*more, code=0):
            return near.run(binary(), "cc", "apply", "--to", far, "--algorithm", algorithm, *more, code=code)
        near.ip("addr", "add", "198.51.100.7/32", "dev", "lo")
        near.ip("route", "add", "default", "via", "10.77.0.2", "proto", "bird", "src", "198.51.100.7", "mtu", "1400")
        said = apply()
        copy = f"via 10.77.0.2 dev net0 src 198.51.100.7 mtu 1400 congctl {algorithm}"
        assert f"{far} {copy}" in said and "when that changes, apply it again" in said, said
        now = near.ip("route", "get", "203.0.113.9")
        assert "src 198.51.100.7" in now and "mtu 1400" in now, now
        # The gateway moves: what is applied again is no copy of the copy.
        near.ip("route", "replace", "default", "via", "10.77.0.9", "dev", "net0")
        dry = apply("--dry-run")
        assert "in place of: route 203.0.113.0/24 via 10.77.0.2" in dry and "via 10.77.0.9" in dry, dry
        apply()
        now = near.ip("route", "get", "203.0.113.9")
        assert "via 10.77.0.9" in now and "198.51.100.7" not in now and "mtu" not in now, now
        # A gateway that no prefix of the interface has.
        near.run(binary(), "cc", "undo")
        near.ip("route", "del", "default")
        near.ip("route", "add", "default", "via", "172.31.1.1", "dev", "net0", "onlink")
        apply()
        shown = near.ip("route", "show", far)
        assert "via 172.31.1.1" in shown and "onlink" in shown, shown
        near.run(binary(), "cc", "undo")
        equal(near.ip("route", "show", far), "")
        # What is not copied is refused, with the reason.
        near.ip("route", "add", far, "nexthop", "via", "10.77.0.2", "nexthop", "via", "10.77.0.9")
        assert "several ways" in near.run(binary(), "cc", "apply", "--to", "203.0.113.9", "--algorithm", algorithm, code=68)


@needs_mptcp
def test_undo_removes_what_is_ours_here_and_stops_at_nothing(env):
    with two_machines() as (near, _):
        near.ip("route", "add", "198.51.100.0/24", "via", "10.77.0.2", "table", "77", "proto", "72")
        for to in ("192.0.2.0/25", "192.0.2.128/25"):
            near.ip("route", "add", to, "via", "10.77.0.2", "proto", "72")
        dry = near.run(binary(), "cc", "undo", "--dry-run").splitlines()
        equal([line.split(":")[0] for line in dry], ["to be removed"] * 2)
        done = near.run(binary(), "cc", "undo").splitlines()
        equal([line.split(":")[0] for line in done], ["removed"] * 2)
        left = near.ip("route", "show", "table", "all", "proto", "72")
        assert "198.51.100.0/24" in left and "192.0.2" not in left, left
        assert "there is nothing to undo" in near.run(binary(), "cc", "undo")
        # What lasts is the machine's, and this namespace is not.
        refused = near.run(binary(), "cc", "apply", "--to", "192.0.2.0/24", "--algorithm", listed()["default"], "--persist", code=1)
        assert "--persist" in refused and "network namespace" in refused, refused
        assert "network namespace" in near.hawser("setup", "server", "--persist", code=1)


@limit(120)
@here
def test_bench_finds_bbr_on_the_long_fat_path(env):
    with network("long-fat") as name:
        found = json.loads(lab("run", name, "--accept-unfaithful", "--", os.environ["HAWSER"], "cc", "list", "--json").stdout)
        slow = next((one for one in ("cubic", "reno") if one in found["allowed"]), None)
        if slow is None or "bbr" not in found["allowed"]:
            raise Skip(f"bbr and a loss-based algorithm are needed: there is {found['allowed']}")
        before = [os.environ["HAWSER"], "lab", "run", name, "--on", "far", "--accept-unfaithful", "--"]
        with Server(before=before, listen="10.77.0.2:6480"):
            run = lab("run", name, "--accept-unfaithful", "--", "env", f"HAWSER_CC_TOKEN={TOKEN}", os.environ["HAWSER"], "cc", "bench",
                      "10.77.0.2", "--only", "down", "--algorithms", f"bbr,{slow}", "--rounds", 1, "--seconds", 12,
                      "--no-udp", "--json", seconds=90)
        steady = {one["algorithm"]: one["steady"] for one in json.loads(run.stdout)["outcomes"]}
        assert steady["bbr"] > 2 * steady[slow], steady


@limit(150)
@here
def test_a_firewall_that_drops_is_told_from_a_program_that_is_not_there(env):
    path = pathlib.Path(env.directory) / "firewall.toml"
    # All is dropped from the 12th second on, without an answer: after the first transfer, and before the last.
    path.write_text('[[link]]\nname = "wan"\nrtt = "20ms"\nrate = "10Mbit/s"\noutages = [{ at = "12s", lasts = "1h" }]\n')
    with network(path) as name:
        here, there = ([os.environ["HAWSER"], "lab", "run", name, "--on", host, "--accept-unfaithful", "--"] for host in ("near", "far"))
        default = listed()["default"]
        bench = [*here, "env", f"HAWSER_CC_TOKEN={TOKEN}", os.environ["HAWSER"], "cc", "bench", "10.77.0.2", "--only", "down",
                 "--algorithms", default, "--seconds", "6", "--rounds", "3"]
        with Server(before=there, listen="10.77.0.2:6480"):
            begun = subprocess.run([*bench, "--no-udp"], capture_output=True, text=True, timeout=90)
            assert begun.returncode == INCOMPLETE and "a firewall" in begun.stderr and "INCOMPLETE after" in begun.stdout, begun
            later = subprocess.run(bench, capture_output=True, text=True, timeout=60)
            assert later.returncode == ABSENT and "its port to be open" in later.stderr, later


@contextlib.contextmanager
def served(env, name, **settings):
    """PostgreSQL behind `hawser serve` on the far host of a network."""
    pooler = Pooler(f"{env.directory}/{name}", env.cluster, {"http_address": "", "client_tls_sslmode": None, **settings})
    pooler.write(address=[f"10.77.0.2:{pooler.port}"])
    with open(pooler.log, "ab") as log:
        process = subprocess.Popen([os.environ["HAWSER"], "lab", "run", name, "--on", "far", "--accept-unfaithful", "--",
                                    os.environ["HAWSER"], "serve", "-c", pooler.config], cwd=pooler.directory, stdin=subprocess.DEVNULL,
                                    stdout=log, stderr=log)
    try:
        until(lambda: "ready" in pooler.text() or process.poll() is not None, "ready", 10)
        assert process.poll() is None, pooler.tail()
        yield pooler
    finally:
        lab("down", name, check=None)
        process.wait(15)


def copied(env, name, port, seconds):
    """Bytes of a COPY that a plain client has had, and when: [(seconds, bytes)]."""
    # Two of them: the rows of one are all made before the first is sent.
    statement = "copy (select repeat('x', 999) from generate_series(1, 1000) a, generate_series(1, 100000) b) to stdout"
    psql = [env.program_path("psql"), "-Xq", f"host=10.77.0.2 port={port} user=app_trust dbname=app sslmode=disable", "-c", statement]
    process = subprocess.Popen([os.environ["HAWSER"], "lab", "run", name, "--accept-unfaithful", "--", *psql],
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd="/", start_new_session=True)
    began, points, total = time.monotonic(), [(0.0, 0)], 0
    try:
        while points[-1][0] < seconds:
            piece = os.read(process.stdout.fileno(), 1 << 20)
            assert piece, process.stderr.read().decode()
            total += len(piece)
            points.append((time.monotonic() - began, total))
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
    return points


def megabits(points, begin):
    """From then to the end."""
    (t0, b0), (t1, b1) = next(point for point in points if point[0] >= begin), points[-1]
    return (b1 - b0) * 8 / 1e6 / max(t1 - t0, 1e-9)


@limit(120)
@here
def test_auto_finds_bbr_for_a_copy_over_the_long_fat_path(env):
    with by_reno("long-fat") as description, network(description, "--seed", "3") as name:
        found = json.loads(lab("run", name, "--on", "far", "--accept-unfaithful", "--", os.environ["HAWSER"], "cc", "list",
                               "--json").stdout)
        if "bbr" not in found["allowed"]:
            raise Skip(f"bbr is not for all users here: there is {found['allowed']}")
        with served(env, name, congestion="auto") as pooler:
            points = copied(env, name, pooler.port, 30)
            said = pooler.text()
        # Reno has 3 to 5, bbr 65 on a machine with nothing else to do.
        assert "bbr is tried" in said, (megabits(points, 20), said)
        assert megabits(points, 20) > 15, (megabits(points, 20), said)


@limit(90)
@here
def test_more_connections_have_more_where_each_flow_is_limited(env):
    with network("per-flow", "--seed", "1") as name, served(env, name) as pooler:
        one = megabits(copied(env, name, pooler.port, 8), 3)
        assert 3 < one < 10.5, one  # (10 Mbit/s; a sample may have what was queued before it)
        all_of_them = []
        threads = [threading.Thread(target=lambda: all_of_them.append(megabits(copied(env, name, pooler.port, 10), 3))) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(all_of_them) == 4 and sum(all_of_them) > 1.4 * one, (one, all_of_them)
