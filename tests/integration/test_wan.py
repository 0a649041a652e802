"""`hawser wan`: the page docs/wan.md, command by command, in the laboratory; and what it refuses."""

import contextlib
import os
import pathlib
import re
import shlex
import socket
import subprocess
import sys
import tempfile
import time

from harness.suite import equal, limit, until
from integration.test_cc import TOKEN, Server
from integration.test_lab import here, network
from integration.test_link import End, free_port, hawser

SAME_FOR_ALL_SERVERS = True
ALONE = "networks"
TAKES_SECONDS = 90

ROOT = pathlib.Path(__file__).parents[2]
SECRET = "PRIVATE KEY"


def wan(*arguments, check=0, token=None):
    environment = dict(os.environ, **({"HAWSER_CC_TOKEN": token} if token else {}))
    run = subprocess.run([hawser(), "wan", *map(str, arguments)], capture_output=True, text=True, timeout=60, env=environment)
    equal(run.returncode, check, f"exit code: {run.stderr}{run.stdout}")
    return run.stderr if check else run.stdout


@contextlib.contextmanager
def hosts():
    """A directory for the files of each of two hosts, and the arguments of an ordinary `setup`."""
    with tempfile.TemporaryDirectory() as made:
        near, far = (pathlib.Path(made, name) for name in ("near", "far"))
        line = ["--rate", "95Mbit/s", "--rtt", "217ms"]
        yield near, far, [*line, "--root", near, "--listen", f"127.0.0.1:{free_port()}", "--to", f"127.0.0.1:{free_port()}"]


def files(root):
    return {str(path.relative_to(root)): path.read_text() for path in sorted(root.rglob("*")) if path.is_file()}


def service(root, name="wan"):
    """What the unit runs, with the files of a host that has its own ones: the arguments of `hawser link`."""
    line = (root / f"etc/hawser/link-{name}.conf").read_text().removeprefix("ARGUMENTS=")
    return shlex.split(line.replace("/etc/hawser", f"{root}/etc/hawser"))


@here
def test_a_dry_run_shows_everything_but_keys_and_writes_nothing(env):
    with hosts() as (near, far, options):
        said = wan("setup", "10.0.0.1", "--dry-run", *options)
        assert not near.exists(), files(near)
        for part in ("95 Mbit/s, 217.0 ms (as given)", "link-wan.conf", "dial --far 10.0.0.1:6433", "hawser-link@.service",
                     "systemctl enable --now hawser-link@wan"):
            assert part in said, f"{part}: {said}"
        assert SECRET not in said, said
        wan("setup", "10.0.0.1", *options)
        given = near / "etc/hawser/link-wan.far"
        said = wan("accept", given, "--dry-run", "--root", far)
        assert "accept --listen 0.0.0.0:6433" in said and SECRET not in said and not far.exists(), said


@here
def test_files_that_are_there_stay_and_are_named(env):
    with hosts() as (near, _, options):
        wan("setup", "10.0.0.1", *options)
        before = files(near)
        said = wan("setup", "10.0.0.2", *options, check=1)
        assert "link-wan.key" in said and "--name" in said, said
        equal(files(near), before)
        # Another name is another link; the unit is there.
        wan("setup", "10.0.0.2", *options, "--name", "other")
        equal(sorted(set(files(near)) - set(before)), [f"etc/hawser/link-other.{kind}" for kind in ("conf", "far", "key", "peers")])
        for kind in ("key", "far"):
            equal((near / f"etc/hawser/link-wan.{kind}").stat().st_mode & 0o777, 0o600)


@here
def test_what_cannot_work_is_refused_with_the_reason(env):
    with hosts() as (near, far, options):
        with socket.create_server(("127.0.0.1", 0)) as taken:
            port = taken.getsockname()[1]
            there = [f"127.0.0.1:{port}" if before == "--listen" else option for before, option in zip(["", *options], options)]
            assert "nothing was written" in wan("setup", "10.0.0.1", *there, check=1)
            assert not near.exists()
            wan("setup", f"10.0.0.1:{port}", *options)
            given = near / "etc/hawser/link-wan.far"
            said = wan("accept", given, "--root", far, check=1)
            assert f"0.0.0.0:{port}" in said and "another link may have it" in said and not far.exists(), said
        given.chmod(0o644)
        assert "mode 644" in wan("accept", given, "--root", far, check=1)
        given.chmod(0o600)
        given.write_text(given.read_text().replace("127.0.0.1:", "127.0.0.1 --allow db:"))
        assert "link-wan.far" in wan("accept", given, "--root", far, check=1)
        unknown = wan("setup", "10.0.0.1", "--root", near, check=1)
        assert "--rate 95Mbit/s" in unknown and "HAWSER_CC_TOKEN" in unknown, unknown
        # A name without an address, and a host where nothing runs.
        assert "has no address" in wan("setup", "no.such.host.invalid", "--rate", "1Mbit/s", "--root", near, check=1)
        assert "cc serve" in wan("setup", "127.0.0.1", "--root", near, check=1, token=TOKEN)
        assert "no link answers" in wan("check", "--name", "nosuch", check=1)


@here
def test_a_host_that_does_not_answer_is_said_and_a_refusal_measures_the_way(env):
    with hosts() as (near, _, _):
        said = wan("setup", f"127.0.0.1:{free_port()}", "--rate", "95Mbit/s", "--dry-run", "--root", near)
        assert "the round trip measured" in said, said
        with network("lan") as name:
            # There is no such host on the line: nothing refuses.
            setup = [hawser(), "wan", "setup", "10.77.0.77", "--rate", "95Mbit/s", "--root", str(near)]
            run = subprocess.run([hawser(), "lab", "run", name, "--", *setup], capture_output=True, text=True, timeout=60)
        assert run.returncode == 1 and "does not answer" in run.stderr and "open TCP port 6433" in run.stderr, run.stderr
        assert not near.exists(), files(near)


@here
def test_a_wrong_key_is_said_by_check(env):
    with hosts() as (near, far, options):
        port = free_port()
        wan("setup", f"127.0.0.1:{port}", *options)
        wan("accept", near / "etc/hawser/link-wan.far", "--root", far)
        # The near end of another setup: its keys are not those of this far end.
        wan("setup", f"127.0.0.1:{port}", *options, "--name", "other")
        with contextlib.ExitStack() as stack:
            def started(arguments):
                end = End(*arguments)
                stack.callback(end.kill)
                return end
            far_end = started(service(far))
            stranger = started(service(near, "other"))
            listen = options[options.index("--listen") + 1]
            said = wan("check", "--socket", stranger.socket, "--listen", listen, check=1)
            assert "no path of the link" in said and "keys" in said, said
            assert "no near end has connected" in wan("check", "--socket", far_end.socket, check=1)
            stranger.kill()
            right = started(service(near))
            until(right.up, "a path is up", 20)
            assert "path" in wan("check", "--socket", far_end.socket)
            # The target is not there.
            said = wan("check", "--socket", right.socket, "--listen", listen, check=1)
            assert "does not reach its target" in said, said


@here
def test_a_configuration_gets_a_section_and_is_kept_as_it_was(env):
    with hosts() as (near, far, options):
        config = near / "hawser.toml"
        near.mkdir()
        text = '[[database]]\nname = "app"\nservers = ["link://wan/127.0.0.1:5432"]\n[auth]\nusers_file = "users"\n'
        config.write_text(text)
        (near / "users").write_text('"app" "secret"\n')
        wan("setup", "10.0.0.1", *options, "--config", config)
        equal((near / "hawser.toml.before-link-wan").read_text(), text)
        assert config.read_text().startswith(text) and "[link.wan]" in config.read_text(), config.read_text()
        said = wan("setup", "10.0.0.1", *options, "--config", config, check=1)
        assert "[link.wan] already" in said, said
        # One that is refused stays as it was.
        broken = far / "hawser.toml"
        far.mkdir()
        broken.write_text("[nonsense]\n")
        said = wan("accept", near / "etc/hawser/link-wan.far", "--root", far, "--config", broken, check=1)
        assert "is as it was" in said, said
        equal(files(far), {"hawser.toml": "[nonsense]\n"})


@here
def test_the_line_is_measured_where_the_far_end_serves(env):
    with hosts() as (near, _, _), Server(listen="127.0.0.1:6480"):
        said = wan("setup", "127.0.0.1", "--root", near, "--dry-run", token=TOKEN)
        assert "measured by datagrams" in said, said


# PostgreSQL's port on a host of the laboratory, led to a server's unix socket.
LED = """
import socket, sys, threading
listener = socket.create_server(("127.0.0.1", 5432))
print("listens", flush=True)
def carry(one, other):
    while piece := one.recv(1 << 16):
        other.sendall(piece)
    other.shutdown(socket.SHUT_WR)
while True:
    client, server = listener.accept()[0], socket.socket(socket.AF_UNIX)
    server.connect(sys.argv[1])
    for pair in ((client, server), (server, client)):
        threading.Thread(target=carry, args=pair, daemon=True).start()
"""


class Walk:
    """The page's commands, typed on two hosts of the laboratory, each with files of its own."""

    def __init__(self, env, name, made, stack):
        self.env, self.name, self.made, self.stack, self.token = env, name, made, stack, None

    def on(self, host, command):
        root = f"{self.made}/{host}"
        programs = r"^(?:sudo -u postgres )?(time )?(psql|pg_basebackup)\b"
        meant = {
            r"^scp (\S+) root@primary:$": rf"cp \1 {self.made}/primary/",
            r"/etc/hawser": f"{root}/etc/hawser",
            r"(?<=wan setup )primary": "10.77.0.2",
            r"\bhawser wan (setup|accept)(.*)": rf"{hawser()} wan \1\2 --root {root}",
            r"\bhawser wan check": f"{hawser()} wan check --listen 127.0.0.1:5433 --socket {root}/socket",
            r"\bhawser cc": f"{hawser()} cc",
            programs: lambda found: f"{found[1] or ''}{self.env.program_path(found[2])}",
            r"-U app\b": "-U app_trust -d app",
            r"Tq0b\w+": self.token or "",
            r'"\$PGDATA"': f"{root}/data",
        }
        for there, now in meant.items():
            command = re.sub(there, now, command)
        side = {"primary": "far", "replica": "near"}[host]
        return [hawser(), "lab", "run", self.name, "--accept-unfaithful", "--on", side, "--", "bash", "-c", f"cd {root}; {command}"]

    def start(self, command, first):
        process = self.stack.enter_context(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
        self.stack.callback(process.terminate)
        line = process.stdout.readline()
        assert line.startswith(first), f"{command}: {line}"
        return line.removeprefix(first).strip()

    def start_service(self, host):
        root = pathlib.Path(self.made, host)
        unit = (root / "etc/systemd/system/hawser-link@.service").read_text()
        started = re.search("^ExecStart=(.*)$", unit, re.MULTILINE)[1].replace("/run/hawser-link-%i", str(root))
        arguments = (root / "etc/hawser/link-wan.conf").read_text().strip().removeprefix("ARGUMENTS=")
        self.start(self.on(host, f"ARGUMENTS='{arguments}'; exec {started}"), "listens")

    def type(self, host, command):
        if command.startswith("hawser cc serve"):
            self.token = self.start(self.on(host, command), "token: ")
            return
        begun = time.monotonic()
        done = subprocess.run(self.on(host, command), capture_output=True, text=True, timeout=150)
        took = time.monotonic() - begun
        equal(done.returncode, 0, f"{command}: {done.stderr}{done.stdout}")
        if re.search("wan (setup|accept)", command) and "--dry-run" not in command:
            self.start_service(host)
        if "--dry-run" in command:
            assert "measured by datagrams" in done.stdout and not pathlib.Path(self.made, host, "etc").exists(), done.stdout
        if command.startswith("psql"):
            assert "(1 row)" in done.stdout, done.stdout
        if "wan check" in command:
            assert "PostgreSQL answers" in done.stdout, done.stdout
        if "generate_series(1, 300000)" in command:
            rate = 300000 * 1001 * 8 / 1e6 / took
            print(f"    {rate:.1f} Mbit/s in {took:.1f} s; load {os.getloadavg()[0]:.0f}")
            # 85 on a quiet machine, and 7 by TCP with cubic.
            assert rate > 40, f"{rate:.1f} Mbit/s"


@here
@limit(400)
def test_the_page_leads_from_a_slow_replica_to_a_line_that_is_used(env):
    page = (ROOT / "docs/wan.md").read_text().split("## Without the link")[0]
    typed = re.findall(r"^(primary|replica)# (.*)$", page, re.MULTILINE)
    equal(len(typed), 11, "commands of the page")
    with network("long-fat", "--seed", "1") as name, tempfile.TemporaryDirectory() as made, contextlib.ExitStack() as stack:
        for host in ("primary", "replica"):
            pathlib.Path(made, host).mkdir()
        walk = Walk(env, name, made, stack)
        server = f"{env.cluster.socket_dir}/.s.PGSQL.{env.cluster.port}"
        walk.start(walk.on("primary", f"exec {sys.executable} -c '{LED}' {server}"), "listens")
        for host, command in typed:
            walk.type(host, command)
        assert (pathlib.Path(made) / "replica/data/standby.signal").exists(), "the base backup"
