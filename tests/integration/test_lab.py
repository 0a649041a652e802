"""`hawser lab`: networks between namespaces, as scripts use them. Skipped where this user may have none."""

import contextlib
import functools
import importlib
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time

from harness.suite import Skip, limit, pooler_only

SAME_FOR_ALL_SERVERS = True
ALONE = "lines"
TAKES_SECONDS = 100

WRONG, ABSENT, TAKEN, UNFAITHFUL, NO_RIGHTS, LACKS = 65, 69, 73, 75, 77, 78


def lab(*arguments, check=0, seconds=30, **more):
    """Runs `hawser lab`; gives its output. `check` is the exit code that it shall have, None any."""
    run = subprocess.run([os.environ["HAWSER"], "lab", *map(str, arguments)], capture_output=True, text=True, timeout=seconds, **more)
    if run.returncode == NO_RIGHTS and check != NO_RIGHTS:
        raise Skip(f"no rights: {run.stderr.strip()}")
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


@contextlib.contextmanager
def network(description, *options):
    """A laboratory that is down when the test ends; gives its name."""
    name = f"test-{os.getpid()}-{time.monotonic_ns()}"
    lab("up", description, "--name", name, *options)
    try:
        yield name
    finally:
        lab("down", name, check=None)


@contextlib.contextmanager
def by_reno(name):
    """A description whose far host sends by reno, which all users may use everywhere. (What an ordinary user runs inside may
    not choose it for the host.)"""
    with tempfile.TemporaryDirectory() as directory:
        path = pathlib.Path(directory) / f"{name}.toml"
        path.write_text('[[host]]\nname = "near"\n[[host]]\nname = "far"\nsysctl = { "net.ipv4.tcp_congestion_control" = "reno" }\n'
                        + lab("show", name).stdout)
        yield str(path)


def about(name):
    found = [one for one in json.loads(lab("list", "--json").stdout) if one["name"] == name]
    return found[0] if found else None


def exists(pid):
    return pathlib.Path(f"/proc/{pid}/stat").exists() and pathlib.Path(f"/proc/{pid}/stat").read_text().split()[2] != "Z"


def wait_until(condition, what, seconds=5):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"not within {seconds} s: {what}"
        time.sleep(0.02)


@here
def test_a_command_finds_the_far_host(env):
    with network("long-fat") as name:
        seen = lab("run", name, "--accept-unfaithful", "--", "env").stdout.splitlines()
        assert "HAWSER_LAB_FAR=10.77.0.2" in seen and "HAWSER_LAB_HOST=near" in seen and f"HAWSER_LAB={name}" in seen
        seen = lab("run", name, "--on", "far", "--", "env").stdout.splitlines()
        assert "HAWSER_LAB_HOST=far" in seen and "HAWSER_LAB_NEAR=10.77.0.1" in seen
        settings = lab("run", name, "--", "cat", "/proc/sys/net/ipv4/tcp_no_metrics_save").stdout
        assert settings == "1\n"


@here
def test_a_round_trip_takes_what_was_asked(env):
    with network("long-fat") as name:
        # The shortest of five: other tests hold this process up.
        program = ("import os, socket, time\n"
                   "def took():\n"
                   "    begin = time.monotonic()\n"
                   "    try: socket.create_connection((os.environ['HAWSER_LAB_FAR'], 9))\n"
                   "    except ConnectionRefusedError: return time.monotonic() - begin\n"
                   "print(min(took() for _ in range(5)))\n")
        took = float(lab("run", name, "--accept-unfaithful", "--", "python3", "-c", program).stdout)
        assert 0.217 <= took < 0.240, took


@here
def test_run_ends_as_its_command_did(env):
    with network("lan") as name:
        lab("run", name, "--", "sh", "-c", "exit 7", check=7)
        lab("run", name, "--", "sh", "-c", "kill -TERM $$", check=128 + signal.SIGTERM)
        lab("run", name, "--", "/no/such/program", check=127)
        lab("run", name, "--on", "mars", "--", "true", check=2)


@here
def test_two_of_one_name_are_refused_and_the_first_lives(env):
    with network("lan") as name:
        second = lab("up", "long-fat", "--name", name, check=TAKEN)
        assert name in second.stderr and "down" in second.stderr
        lab("run", name, "--", "true")


@here
def test_down_ends_what_runs_inside(env):
    with network("lan") as name:
        inside = subprocess.Popen([os.environ["HAWSER"], "lab", "run", name, "--", "sleep", "60"], stderr=subprocess.PIPE)
        wait_until(lambda: children(inside.pid), "the command runs")
        [command] = children(inside.pid)
        assert "1 processes" in lab("down", name).stdout
        inside.wait(5)
        assert not exists(command)
        assert about(name) is None
        lab("run", name, "--", "true", check=ABSENT)
        lab("down", name, check=ABSENT)


@here
def test_nothing_is_left_of_one_that_is_killed(env):
    with network("long-fat") as name:
        holder = about(name)
        inside = subprocess.Popen([os.environ["HAWSER"], "lab", "run", name, "--", "sh", "-c", "sleep 60 & sleep 60"],
                                  stderr=subprocess.PIPE)
        wait_until(lambda: children(inside.pid) and len(children(children(inside.pid)[0])) == 2, "the command runs")
        [shell] = children(inside.pid)
        commands = [shell, *children(shell)]
        os.kill(holder["pid"], signal.SIGKILL)
        assert inside.wait(5) == ABSENT, inside.stderr.read()
        wait_until(lambda: not any(map(exists, commands)), "what ran inside has ended")
        assert about(name) is None
        inodes = {f"net:[{host['inode']}]" for host in holder["hosts"]}
        wait_until(lambda: not inodes & namespaces(), "its namespaces are gone")
        lab("up", "long-fat", "--name", name)  # the name is free again


@here
def test_a_command_dies_with_run(env):
    with network("lan") as name:
        inside = subprocess.Popen([os.environ["HAWSER"], "lab", "run", name, "--", "sleep", "60"])
        wait_until(lambda: children(inside.pid), "the command runs")
        [command] = children(inside.pid)
        inside.kill()
        inside.wait(5)
        wait_until(lambda: not exists(command), "the command has ended")


@here
def test_a_wrong_description_is_explained_by_file_and_line(env):
    path = pathlib.Path(env.directory) / "wrong.toml"
    path.write_text("[[link]]\nrate = \"95MB/s\"\n")
    said = lab("up", path, check=WRONG).stderr
    assert f"{path}:2: " in said and "Mbit/s" in said, said
    said = lab("up", "no-such-name", check=WRONG).stderr
    assert "long-fat" in said, said


@here
def test_an_unfaithful_run_is_refused_with_its_figures(env):
    path = pathlib.Path(env.directory) / "strict.toml"
    path.write_text("lateness_max = \"0us\"\n[[link]]\nrtt = \"2ms\"\n")
    program = ["python3", "-c", "import os, socket\ns = socket.socket()\ns.connect_ex((os.environ['HAWSER_LAB_FAR'], 9))"]
    with network(path) as name:
        said = lab("run", name, "--", *program, check=UNFAITHFUL).stderr
        assert "packets left more than 0ns late" in said and "worst" in said, said
        lab("run", name, "--accept-unfaithful", "--", *program)


@here
def test_a_report_counts_what_went_through(env):
    path = pathlib.Path(env.directory) / "black.toml"
    path.write_text("[[link]]\nname = \"hole\"\nrtt = \"2ms\"\n[link.forward]\nloss = \"100%\"\n")
    report = pathlib.Path(env.directory) / "report.json"
    program = ("import os, socket\ns = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)\n"
               "for _ in range(50): s.sendto(bytes(100), (os.environ['HAWSER_LAB_FAR'], 9))")
    with network(path) as name:
        lab("run", name, "--accept-unfaithful", "--report-json", report, "--", "python3", "-c", program)
        wait_until(lambda: json.loads(lab("report", name, "--json").stdout)["paths"][0]["packets"] == 50, "all are counted")
        forward, backward = json.loads(lab("report", name, "--json").stdout)["paths"]
        assert forward["dropped_by_loss"] == 50 and forward["bytes"] == 50 * 128, forward
        assert forward["direction"] == "near>far" and backward["packets"] == 0, backward
    assert json.loads(report.read_text())["paths"][0]["link"] == "hole"


@here
def test_without_rights_it_says_which(env):
    if os.geteuid() != 0:
        raise Skip("only root can give its rights away")
    without = ["setpriv", "--bounding-set=-all", "--inh-caps=-all", "--", os.environ["HAWSER"], "lab", "up", "long-fat",
               "--name", "norights"]
    # Without CAP_SETFCAP root may map itself into no user namespace, and without CAP_SYS_ADMIN it has no other.
    run = subprocess.run(without, capture_output=True, text=True, timeout=20)
    assert run.returncode == NO_RIGHTS, (run.returncode, run.stderr)
    assert "CAP_NET_ADMIN" in run.stderr, run.stderr
    assert about("norights") is None


@here
@limit(300)
def test_rate_delay_loss_and_limits_are_as_asked_and_as_in_virtual_time(env):
    run = lab("selftest", check=None, seconds=290)
    if run.returncode == UNFAITHFUL:
        raise Skip(f"this machine is too busy to tell: {run.stderr.strip()}")
    assert run.returncode == 0, run.stdout + run.stderr


def children(pid):
    with contextlib.suppress(OSError):
        return [int(child) for child in pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return []


def namespaces():
    found = set()
    for path in pathlib.Path("/proc").glob("[0-9]*/ns/net"):
        with contextlib.suppress(OSError):
            found.add(os.readlink(path))
    return found


def in_virtual_time(module):
    """A module of the benchmarks that runs commands in a kernel of its own."""
    sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "bench/congestion"))
    if not importlib.import_module("virtual_kernel").KERNEL.is_file():
        raise Skip("there is no kernel of its own: `make lab-kernel` builds it")
    return importlib.import_module(module)


# A minute and a half on an idle machine; its figures do not depend on how long it takes.
@limit(620)
@here
def test_all_algorithms_are_compared_in_a_kernel_of_its_own(env):
    algorithms = in_virtual_time("algorithms")
    found = algorithms.compare(lab("show", "long-fat").stdout, 1, "--seconds", 15, "--rounds", 1)
    steady = {one["algorithm"]: one["steady"] / 1e6 for one in found["comparison"]["outcomes"]}
    assert len(steady) == 17, steady
    assert steady["bbr"] > 40 and max(rate for name, rate in steady.items() if name != "bbr") < steady["bbr"], steady
    assert all(0.3 < rate < 91 for rate in steady.values()), steady
    # Virtual time: no packet is late.
    assert sum(found["report"]["lateness"]["counts"][80:]) == 0, found["report"]["lateness"]


