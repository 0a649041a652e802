"""What operators install: the packages, the dashboard, the alert rules."""

import gzip
import hashlib
import io
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib

from harness.pooler import Serving, binary
from harness.postgres import SECRETS, free_port
from harness.suite import Skip, equal, limit, pooler_only, until
from harness.wire import ServerError, Target

SAME_FOR_ALL_SERVERS = True
TAKES_SECONDS = 200
ROOT = pathlib.Path(__file__).parents[2]
DASHBOARD = ROOT / "packaging/grafana/hawser.json"
CHART = ROOT / "packaging/helm"
ALERTS = ROOT / "packaging/prometheus/alerts.yml"

# In namespaces of its own: a copy of this machine's root, which is thrown away.
COPY = r"""
set -eu
mount --make-rprivate /
mount -t tmpfs tmpfs "$SPACE"
mkdir "$SPACE/upper" "$SPACE/work" "$SPACE/root"
mount -t overlay overlay -o "lowerdir=/,upperdir=$SPACE/upper,workdir=$SPACE/work" "$SPACE/root" || { echo "NO OVERLAY"; exit 0; }
root=$SPACE/root
mount -t proc proc "$root/proc"
mount --rbind /dev "$root/dev"
mount -t tmpfs tmpfs "$root/run"
mount -t tmpfs tmpfs "$root/tmp"
ip link set lo up
"""

# The packages are installed, a server is made with the packaged extension, and Hawser runs as its user with the packaged
# configuration.
INSTALL = COPY + r"""
cp $PACKAGES "$root/tmp"
cat >"$root/tmp/inside" <<'END'
set -eu
dpkg -i /tmp/*.deb
stat -c '%n %U:%G %a' /etc/hawser /etc/hawser/hawser.toml /etc/hawser/userlist.txt
echo "program $(/usr/lib/hawser/pgbouncer -V | head -n 1)"
test -e /usr/share/doc/hawser/hawser.cdx.json
(cd /usr/share && ls man/man1/hawser.1.gz man/man1/hawser-serve.1.gz man/man5/hawser.toml.5.gz bash-completion/completions/hawser \
    zsh/vendor-completions/_hawser fish/vendor_completions.d/hawser.fish)

install -d -o postgres -g postgres -m 755 /run/postgresql /tmp/data
as_postgres() { setpriv --reuid postgres --regid postgres --init-groups "$@"; }
as_postgres "$BIN/initdb" -D /tmp/data -A scram-sha-256 --pwfile=/tmp/password >/dev/null
options="-c listen_addresses=127.0.0.1 -c unix_socket_directories=/run/postgresql -c session_preload_libraries=hawser"
as_postgres "$BIN/pg_ctl" -D /tmp/data -w -l /tmp/data/log -o "$options" start >/dev/null
export PGPASSWORD=secret
"$BIN/psql" -h /run/postgresql -U postgres -Atqc "CREATE EXTENSION hawser"

echo '"postgres" "secret"' >>/etc/hawser/userlist.txt
install -d -o hawser -g hawser -m 755 /run/hawser
as_hawser() { setpriv --reuid hawser --regid hawser --init-groups --no-new-privs "$@"; }
as_hawser hawser check -c /etc/hawser/hawser.toml || true
setpriv --reuid hawser --regid hawser --init-groups --no-new-privs hawser serve -c /etc/hawser/hawser.toml 2>/tmp/hawser.log &
hawser=$!
for _ in $(seq 50); do
    "$BIN/psql" -h 127.0.0.1 -p 6432 -U postgres -Atqc "SELECT 1" postgres >/dev/null 2>&1 && break
    sleep 0.1
done
"$BIN/psql" -h 127.0.0.1 -p 6432 -U postgres -Atqc "SELECT 'answer ' || 6 * 7" postgres || cat /tmp/hawser.log
"$BIN/psql" -h 127.0.0.1 -p 6432 -U postgres -Atqc "SELECT 'extension ' || extname FROM pg_extension WHERE extname = 'hawser'" postgres
as_hawser hawser status || as_hawser hawser status -c /etc/hawser/hawser.toml || true
kill $hawser
wait $hawser && echo "ended 0"
as_postgres "$BIN/pg_ctl" -D /tmp/data -m immediate stop >/dev/null
dpkg -P hawser >/dev/null
[ -e /etc/hawser ] || echo "purged"
END
echo secret >"$root/tmp/password"
chmod 644 "$root/tmp/password"
exec chroot "$root" /bin/sh /tmp/inside
"""


def built(directory, *parts):
    """The packages, with the program that is tested."""
    for tool in ("dpkg-deb", "cargo", "objdump", "strip"):
        if not shutil.which(tool):
            raise Skip(f"{tool} is not installed")
    target = pathlib.Path(directory) / "packages"
    done = subprocess.run([str(ROOT / "scripts/package.sh"), *parts], capture_output=True, text=True,
                          env={**os.environ, "HAWSER": binary(), "PACKAGE_DIR": str(target)})
    if "NOT BUILT" in done.stderr:
        raise Skip(re.search("NOT BUILT: (.*)", done.stderr).group(1))
    assert done.returncode == 0, done.stderr[-3000:]
    return sorted(str(path) for path in target.glob("*.deb"))


@pooler_only
def test_there_is_no_package_where_a_step_fails(env):
    """It was built without what had failed (the SBOM, or a program newer than the last build), and the exit code was 0."""
    home = pathlib.Path(env.directory) / "cargo"
    (home / "bin").mkdir(parents=True)
    (home / "bin/cargo").write_text("#!/bin/sh\nexit 3\n")
    (home / "bin/cargo").chmod(0o755)
    packages = pathlib.Path(env.directory) / "none"
    done = subprocess.run([str(ROOT / "scripts/package.sh"), "deb"], capture_output=True, text=True,
                          env={**os.environ, "HAWSER": binary(), "PACKAGE_DIR": str(packages), "CARGO_HOME": str(home)})
    equal((done.returncode, list(packages.glob("*.deb"))), (1, []), done.stderr)


@pooler_only
@limit(300)
def test_packages_install_and_serve_as_they_are(env):
    if os.geteuid() != 0:
        raise Skip("only root can install packages")
    if not shutil.which("dpkg"):
        raise Skip("dpkg is not installed")
    server = f"postgresql-{env.cluster.version}"
    known = subprocess.run(["dpkg-query", "-W", "-f", "${Status}", server], capture_output=True, text=True)
    if "ok installed" not in known.stdout:
        raise Skip(f"the server is not that of Debian's package {server}, on which the extension's depends")
    packages = built(env.directory, "deb", "extension")
    equal(len(packages), 2, f"packages: {packages}")
    said = in_copy(INSTALL, PACKAGES=" ".join(packages), BIN=str(env.cluster.bin))
    for line in ("/etc/hawser root:hawser 750", "/etc/hawser/hawser.toml root:hawser 640", "/etc/hawser/userlist.txt root:hawser 640",
                 "man/man5/hawser.toml.5.gz", "fish/vendor_completions.d/hawser.fish", "answer 42", "extension hawser", "ended 0",
                 "purged"):
        assert line in said.splitlines(), f"{line!r} is missing:\n{said[-3000:]}"
    assert re.search(r"^hawser .*: ready", said, re.MULTILINE), said[-3000:]
    assert re.search("^program .*PgBouncer", said, re.MULTILINE), said[-3000:]


# What Debian's package pgbouncer (1.18 to 1.24) sets, and its unit.
DEBIAN_INI = """[databases]
[pgbouncer]
logfile = /var/log/postgresql/pgbouncer.log
pidfile = /var/run/postgresql/pgbouncer.pid
listen_addr = localhost
listen_port = 6432
unix_socket_dir = /var/run/postgresql
auth_type = md5
auth_file = /etc/pgbouncer/userlist.txt
"""
DEBIAN_UNIT = """[Unit]
Description=connection pooler for PostgreSQL
After=network.target
[Service]
Type=notify
User=postgres
ExecStart=/usr/sbin/pgbouncer /etc/pgbouncer/pgbouncer.ini
ExecReload=/bin/kill -HUP $MAINPID
KillSignal=SIGINT
[Install]
WantedBy=multi-user.target
"""

# Debian's files with one database, the page's drop-in, and its command by the unit's user. Then what the page has typed to
# run the packaged unit; what starts services is a stub, and what edits files does what the page's table says.
SWITCH = COPY + r"""
install -D "$HAWSER" "$root/usr/bin/hawser"
mkdir -p "$root/usr/lib/hawser" "$root/var/log/postgresql" "$root/etc/systemd/system/pgbouncer.service.d"
ln -sf ../../bin/hawser "$root/usr/lib/hawser/pgbouncer"
printf '%s' "$DROP_IN" >"$root/etc/systemd/system/pgbouncer.service.d/override.conf"
printf '%s' "$UNIT" >"$root/etc/systemd/system/pgbouncer.service"
rm -rf "$root/etc/pgbouncer"
mkdir "$root/etc/pgbouncer"
printf '%s' "$INI" | sed 's/^.databases.$/&\napp = host=127.0.0.1/' >"$root/etc/pgbouncer/pgbouncer.ini"
: >"$root/etc/pgbouncer/userlist.txt"
cat >"$root/tmp/inside" <<'END'
set -eu
install -d -o postgres -g postgres -m 2775 /run/postgresql
install -d -o postgres -g postgres "/run/$RUNTIME"
chown root:postgres /var/log/postgresql
chmod 1775 /var/log/postgresql
chown postgres:postgres /etc/pgbouncer/*
chmod 640 /etc/pgbouncer/*
if command -v systemd-analyze >/dev/null; then
    systemd-analyze verify /etc/systemd/system/pgbouncer.service 2>&1 | grep pgbouncer.service && exit 1
    echo "verified"
fi
eval "hawser $CHECK --as postgres" || true
RUNTIME_DIRECTORY=/run/$RUNTIME setpriv --reuid postgres --regid postgres --init-groups --no-new-privs $EXEC &
pid=$!
console() {
    setpriv --reuid postgres --regid postgres --init-groups "$BIN/psql" -h /var/run/postgresql -p 6432 -U pgbouncer -Atqc "$1" pgbouncer
}
for _ in $(seq 300); do console "SHOW VERSION" >/dev/null 2>&1 && break; sleep 0.1; done
console "SHOW VERSION"
[ "$(cat /var/run/postgresql/pgbouncer.pid)" = $pid ] && echo "pid file"
hawser status
kill -HUP $pid
kill -INT $pid
wait $pid && echo "ended 0"
stat -c '%n %U' /var/log/postgresql/pgbouncer.log
cat /var/log/postgresql/pgbouncer.log

getent passwd hawser >/dev/null || useradd --system --user-group --no-create-home hawser
rm -rf /etc/hawser
install -d -o root -g hawser -m 750 /etc/hawser
systemctl() { echo "stub systemctl $*"; }
editor() {
    sed -i -e 's,^users_file = .*,users_file = "userlist.txt",' -e '/^logfile = /d' -e '/^pidfile = /d' \
        -e '/^address/s,/var/run/postgresql,/run/hawser,' "$1"
}
eval "$(printf '%s' "$STEPS" | sed 's,^hawser check.*,install -d -o hawser -g hawser /run/hawser; & || true,')"
END
exec chroot "$root" /bin/sh /tmp/inside
"""


def in_copy(script, **variables):
    """What a script that begins with COPY says, with its errors."""
    for tool in ("unshare", "setpriv", "ip"):
        if not shutil.which(tool):
            raise Skip(f"{tool} is not installed")
    # Not below /tmp, which the root inside covers by one of its own.
    with tempfile.TemporaryDirectory(dir="/var/tmp") as space:
        done = subprocess.run(["unshare", "--mount", "--net", "--pid", "--fork", "--kill-child", "sh", "-c", script], text=True,
                              timeout=240,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env={**os.environ, "SPACE": space, **variables})
    if "NO OVERLAY" in done.stdout or "unshare:" in done.stdout:
        raise Skip(f"no copy of the root can be made here: {done.stdout[-300:]}")
    equal(done.returncode, 0, f"exit code, with\n{done.stdout[-3000:]}")
    return done.stdout


# The page's lines as they are, in a checkout's place; what starts services and edits files is a stub.
STEPS = COPY + r"""
mkdir -p "$root/tmp/checkout/target/release" "$root/tmp/bin"
cp -r "$PACKAGING" "$root/tmp/checkout/packaging"
cp "$HAWSER" "$root/tmp/checkout/target/release/hawser"
printf '#!/bin/sh\necho "stub $0 $*"\n' >"$root/tmp/bin/systemctl"
cp "$root/tmp/bin/systemctl" "$root/tmp/bin/editor"
chmod +x "$root"/tmp/bin/*
{
    echo 'set -eu; cd /tmp/checkout; PATH=/tmp/bin:$PATH'
    printf '%s' "$STEPS" | sed 's/^hawser check.*/echo "\\"a\\" \\"b\\"" >>\/etc\/hawser\/userlist.txt; & || echo "check $?"/'
    echo 'stat -c "%n %U:%G %a" /etc/hawser /etc/hawser/hawser.toml /etc/hawser/userlist.txt'
    echo 'install -d -o hawser -g hawser /run/hawser'
    echo 'as_hawser() { RUNTIME_DIRECTORY=/run/hawser setpriv --reuid hawser --regid hawser --init-groups "$@"; }'
    echo 'as_hawser hawser serve -c /etc/hawser/hawser.toml 2>/tmp/log &'
    echo 'for _ in $(seq 300); do grep -q ready /tmp/log && break; sleep 0.1; done'
    echo 'sed -i "s/^#loops = 0/loops = 1/" /etc/hawser/hawser.toml'
    sed -n 's/^ExecReload=\(.*\)/as_hawser \1; echo "reload $?"/p' "$PACKAGING/hawser.service"
    echo 'echo nonsense >>/etc/hawser/hawser.toml'
    sed -n 's/^ExecReload=\(.*\)/as_hawser \1 || echo "reload refused"/p' "$PACKAGING/hawser.service"
    echo 'cat /tmp/log; kill $!'
} >"$root/tmp/inside"
chroot "$root" /bin/sh /tmp/inside
"""


@pooler_only
@limit(120)
def test_the_steps_without_a_package_lead_to_a_service(env):
    if os.geteuid() != 0 or not shutil.which("systemd-sysusers"):
        raise Skip("the steps need root and systemd-sysusers")
    text = (ROOT / "docs/operations.md").read_text().split("## systemd\n", 1)[1]
    steps = re.search(r"```\n(install .*?)```", text, re.DOTALL)[1]
    said = in_copy(STEPS, HAWSER=binary(), STEPS=steps, PACKAGING=str(ROOT / "packaging"))
    lines = said.splitlines()
    for line in ("/etc/hawser root:hawser 750", "/etc/hawser/hawser.toml root:hawser 640", "/etc/hawser/userlist.txt root:hawser 640",
                 "stub /tmp/bin/systemctl enable --now hawser.service", "hawser: reloaded, except for what needs a restart: loops",
                 "reload 0", "reload refused"):
        assert line in lines, f"{line!r} is missing:\n{said[-3000:]}"
    assert "every setting is valid" in said and "serve: ready" in said, said[-3000:]


@pooler_only
@limit(300)
def test_debians_pgbouncer_unit_runs_hawser_by_the_drop_in_of_the_page(env):
    if os.geteuid() != 0:
        raise Skip("only root can become the user of the unit")
    text = (ROOT / "docs/from-pgbouncer.md").read_text()
    drop_in = re.search(r"```\n(\[Service\]\nExecStart=\n.*?)```", text, re.DOTALL)[1]
    command = re.findall("^ExecStart=(.+)$", drop_in, re.MULTILINE)
    equal(len(command), 1, "commands of the drop-in")
    check = re.search(r"`hawser (check --pgbouncer) FILE\.ini`", text)[1]
    runtime = re.search("^RuntimeDirectory=(.+)$", drop_in, re.MULTILINE)[1]
    steps = re.search(r"```\n(hawser import .*?)```", text, re.DOTALL)[1]
    said = in_copy(SWITCH, HAWSER=binary(), DROP_IN=drop_in, UNIT=DEBIAN_UNIT, INI=DEBIAN_INI, EXEC=command[0], BIN=str(env.cluster.bin),
                   CHECK=f"{check} /etc/pgbouncer/pgbouncer.ini", RUNTIME=runtime, STEPS=steps)
    lines = said.splitlines()
    for line in ("pid file", "ended 0", "/var/log/postgresql/pgbouncer.log postgres", "stub systemctl enable --now hawser",
                 "ok     /etc/hawser/userlist.txt can be read"):
        assert line in lines, f"{line!r} is missing:\n{said[-3000:]}"
    assert "verified" in lines or not shutil.which("systemd-analyze"), said
    assert re.search("^PgBouncer 1", said, re.MULTILINE), f"no answer of the console:\n{said[-3000:]}"
    assert re.search("^hawser .*: ready", said, re.MULTILINE), f"root's `hawser status` has not found it:\n{said[-3000:]}"
    assert re.search(r"^ok .*userlist.txt can be read", said, re.MULTILINE) and "ermission denied" not in said, said[-3000:]


@pooler_only
@limit(300)
def test_the_image_is_whole_and_its_root_serves(env):
    if os.geteuid() != 0:
        raise Skip("only root can change the root")
    file, program = pathlib.Path(env.directory) / "image.tar", pathlib.Path(env.directory) / "program"
    subprocess.run(["strip", "--strip-all", "-o", str(program), binary()], check=True)
    done = subprocess.run([str(ROOT / "scripts/image.py"), str(program), "amd64", "0.1.0", str(file)], capture_output=True, text=True)
    equal(done.returncode, 0, done.stderr)
    with tarfile.open(file) as archive:
        blobs = {name: archive.extractfile(name).read() for name in archive.getnames()}
    for name, content in blobs.items():
        assert not name.startswith("blobs/") or name == "blobs/sha256/" + hashlib.sha256(content).hexdigest(), name

    def blob(descriptor):
        content = blobs["blobs/" + descriptor["digest"].replace(":", "/")]
        equal(len(content), descriptor["size"])
        return content
    equal(json.loads(blobs["oci-layout"]), {"imageLayoutVersion": "1.0.0"})
    (named,) = json.loads(blobs["index.json"])["manifests"]
    manifest = json.loads(blob(named))
    about = json.loads(blob(manifest["config"]))
    files = gzip.decompress(blob(manifest["layers"][0]))
    equal(about["rootfs"]["diff_ids"], ["sha256:" + hashlib.sha256(files).hexdigest()])
    root = pathlib.Path(env.directory) / "root"
    with tarfile.open(fileobj=io.BytesIO(files)) as archive:
        archive.extractall(root, filter="tar")
    # The tested program may need libraries; that of the image does not.
    for library in re.findall(r"(/\S+) \(0x", subprocess.run(["ldd", binary()], capture_output=True, text=True).stdout):
        (root / library[1:]).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(library, root / library[1:])
    (user, group) = map(int, about["config"]["User"].split(":"))
    program = ["chroot", f"--userspec={user}:{group}", "--groups=", str(root), *about["config"]["Entrypoint"]]
    done = subprocess.run([*program, "--version"], capture_output=True, text=True)
    equal((done.returncode, done.stdout.split()[0]), (0, "hawser"), done.stderr)
    port = free_port()
    (root / "etc/hawser/hawser.toml").write_text(
        f'[listen]\naddress = "127.0.0.1:{port}"\n[[database]]\nname = "*"\nservers = ["127.0.0.1:{env.cluster.port}"]\n'
        '[auth]\nusers_file = "userlist.txt"\n[admin]\nhttp_address = ""\ncontrol_socket = "/run/hawser/hawser.sock"\n')
    (root / "etc/hawser/userlist.txt").write_text(f'"app" "{SECRETS["app"]}"\n')
    os.chown(root / "etc/hawser/userlist.txt", user, group)
    (root / "etc/hawser/userlist.txt").chmod(0o600)
    with Serving() as serving:
        serving.target = Target(port, str(root), SECRETS)
        serving.log = root / "log"
        with open(serving.log, "wb") as log:
            serving.process = subprocess.Popen([*program, *about["config"]["Cmd"]], stderr=log)
        until(serving.listens, "it listens")
        try:
            equal(env.connect(serving.target).value("select 6 * 7"), "42")
        except (OSError, ServerError) as error:
            raise AssertionError(f"{error}, with the log\n{serving.log.read_text()}") from None
        assert (root / "run/hawser/hawser.sock").is_socket(), "no control socket"


def names_in(text):
    return set(re.findall(r"\bhawser_[a-z_]+", text))


@pooler_only
def test_dashboard_and_alerts_name_metrics_that_there_are(env):
    env.connect().execute("select 1")
    status, page = env.pooler.http("/metrics")
    equal(status, 200)
    kinds = dict(re.findall(r"^# TYPE (\S+) (\S+)$", page, re.MULTILINE))
    families = set(kinds)
    for name, kind in kinds.items():
        if kind == "histogram":
            families |= {f"{name}_bucket", f"{name}_sum", f"{name}_count"}
        # OpenMetrics names the family of a counter without its suffix.
        if kind == "counter" and not name.endswith("_total"):
            families.add(f"{name}_total")
    labels = {name: set(re.findall(r'(\w+)="', series)) for name, series in re.findall(r"^(hawser_\w+)\{(.*?)\} ", page, re.MULTILINE)}
    used = 0
    dashboard = json.loads(DASHBOARD.read_text())
    first = [panel for panel in dashboard["panels"] if panel["gridPos"]["y"] == 0]
    equal([panel["type"] for panel in first], ["stat"] * 4, "the first row is of single figures")
    places = [(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in dashboard["panels"]]
    equal(len(set(places)), len(places), "places of panels")
    expressions = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    expressions += [variable["query"]["query"] for variable in dashboard["templating"]["list"] if variable["type"] == "query"]
    expressions += re.findall(r"^\s+expr: (.*)$", ALERTS.read_text(), re.MULTILINE)
    for expression in expressions:
        names = names_in(expression)
        used += len(names)
        unknown = names - families
        assert not unknown, f"/metrics has no {sorted(unknown)}: {expression}"
        for name, selectors in re.findall(r"(hawser_\w+)\{(.*?)\}", expression):
            asked = set(re.findall(r"(\w+)\s*(?:=~|!~|!=|=)", selectors)) - {"instance", "job"}
            assert name not in labels or asked <= labels[name], f"{name} has no label {sorted(asked - labels[name])}: {expression}"
    assert used > 40, f"only {used} names of metrics found: does the test still read the files?"


@pooler_only
def test_alert_rules_are_prometheus_rules(env):
    promtool = os.environ.get("PROMTOOL") or shutil.which("promtool")
    if not promtool:
        raise Skip("promtool is not installed (Debian: prometheus), nor named by $PROMTOOL")
    done = subprocess.run([promtool, "check", "rules", str(ALERTS)], capture_output=True, text=True)
    equal(done.returncode, 0, f"promtool: {done.stdout}{done.stderr}")


# Stubs in place of systemd, and a process that answers SIGUSR2 as Hawser does: another one is the main process then.
UPGRADE = r"""
set -eu
mount --make-rprivate /
mount -t tmpfs tmpfs /run
mkdir -p /run/systemd/system /run/bin
mount -t tmpfs tmpfs /etc
mkdir /etc/hawser
echo root:x:0:0::/:/bin/sh >/etc/passwd
echo hawser:x:990:990::/:/bin/sh >>/etc/passwd
: >/etc/hawser/userlist.txt
cat >/run/bin/systemctl <<'END'
#!/bin/sh
echo "systemctl $*" >>/run/asked
case $1 in
show) cat /run/main ;;
is-active) exit "${ACTIVE:-0}" ;;
esac
END
printf '#!/bin/sh\nexit 0\n' >/run/bin/systemd-sysusers
chmod +x /run/bin/*
PATH=/run/bin:$PATH
export PATH ACTIVE
sh -c 'trap "echo signal >>/run/asked; [ \"$TAKES\" = no ] || echo 4711 >/run/main" USR2; echo $$ >/run/main; while :; do sleep 0.1; done' &
running=$!
while [ ! -s /run/main ]; do sleep 0.05; done
sh "$POSTINST" configure 0.0.9 2>&1
kill $running
cat /run/asked
"""


@pooler_only
@limit(120)
def test_an_upgrade_of_the_package_takes_over_and_restarts_only_where_that_fails(env):
    if os.geteuid() != 0 or not shutil.which("unshare"):
        raise Skip("namespaces need root and unshare")

    def upgrade(**variables):
        environment = {**os.environ, "POSTINST": str(ROOT / "packaging/debian/postinst"), "TAKES": "yes", **variables}
        done = subprocess.run(["unshare", "--mount", "sh", "-c", UPGRADE], capture_output=True, text=True, timeout=100, env=environment)
        if done.returncode and "mount" in done.stderr:
            raise Skip("no mounts in a namespace: " + done.stderr.strip())
        equal(done.returncode, 0, done.stderr)
        return done.stdout

    said = upgrade()
    assert "signal" in said and "restart" not in said, said
    said = upgrade(TAKES="no")
    assert "signal" in said and "systemctl try-restart hawser.service" in said and "has not taken over" in said, said
    said = upgrade(ACTIVE="3")
    assert "signal" not in said and "restart" not in said, said


# Helm's own engine as a package of PyPI, which takes 250 MB: only ALL=1 fetches it.
HELM = ROOT / ".run/helm"
HELM_PACKAGES = ("helm-python-sdk==0.2.2", "PyYAML==6.0.3")
# A process of its own, for the engine brings Go's runtime. Prints what each template became, as objects where it is YAML.
RENDER = """
import json, sys, yaml
from helm_python.chart import Chart, lint
chart, values = sys.argv[1], json.load(sys.stdin)
findings = [message for message in lint(chart, values, strict=True)["messages"] if message["severity"] > 1]
assert not findings, findings
with Chart.load(chart) as loaded:
    rendered = loaded.render(values, name="release", namespace="space")
    texts = {path.rsplit("/", 1)[1]: text for path, text in rendered.items()}
    objects = [yaml.safe_load(text) for name, text in texts.items() if name.endswith(".yaml")]
    print(json.dumps({"notes": texts["NOTES.txt"], "values": loaded.merge_values(values),
                      "objects": {one["kind"]: one for one in objects if one}}))
"""


def fetched_helm():
    if not (HELM / "helm_python").is_dir():
        if not os.environ.get("ALL"):
            raise Skip("Helm's engine is not fetched: run with ALL=1")
        done = subprocess.run([sys.executable, "-m", "pip", "install", "-q", "--root-user-action=ignore", "--disable-pip-version-check",
                               "--target", str(HELM), *HELM_PACKAGES], capture_output=True, text=True)
        if done.returncode:
            raise Skip(f"Helm's engine cannot be had: {done.stderr.strip()[-300:]}")
    return HELM


def helm(values):
    """A finished process whose output is what RENDER prints of the chart with these values."""
    return subprocess.run([sys.executable, "-c", RENDER, str(CHART)], input=json.dumps(values), capture_output=True, text=True, timeout=60,
                          env={**os.environ, "PYTHONPATH": str(fetched_helm())})


def seconds(text):
    return int(re.fullmatch(r"(\d+)s", text)[1])


@pooler_only
def test_the_helm_chart_renders_and_its_parts_agree(env):
    everything = {"replicas": 1, "imagePullSecrets": [{"name": "x"}], "podAnnotations": {"a": "b"}, "nodeSelector": {"a": "b"},
                  "extraEnv": [{"name": "RUST_BACKTRACE", "value": "1"}],
                  "extraVolumes": [{"name": "tls", "secret": {"secretName": "tls"}}],
                  "extraVolumeMounts": [{"name": "tls", "mountPath": "/etc/hawser-tls"}],
                  "tolerations": [{"key": "a"}], "affinity": {"nodeAffinity": {}}, "users": '"a" "b"\n',
                  "service": {"type": "LoadBalancer", "port": 5432, "annotations": {"a": "b"}},
                  "serviceMonitor": {"enabled": True, "labels": {"a": "b"}}}
    said = (ROOT / "docs/kubernetes.md").read_text() + (CHART / "values.yaml").read_text()
    typed = set(re.findall(r"--set(?:-file)? (\w+)[.=]", said))
    used = set(re.findall(r"\.Values\.(\w+)", "".join(path.read_text() for path in (CHART / "templates").iterdir())))
    for values, kinds in (({}, {"Deployment", "PodDisruptionBudget", "Secret", "Service"}),
                          (everything, {"Deployment", "Secret", "Service", "ServiceMonitor"}),
                          ({"existingSecret": "mine"}, {"Deployment", "PodDisruptionBudget", "Service"})):
        done = helm(values)
        equal(done.returncode, 0, done.stderr)
        rendered = json.loads(done.stdout)
        objects, notes, chosen = rendered["objects"], rendered["notes"], rendered["values"]
        equal(set(objects), kinds, "objects")
        assert f"release-hawser.space.svc:{chosen['service']['port']}" in notes, notes
        equal("No user can log in" in notes, values == {}, notes)
        equal(set(chosen) ^ used, set(), "values that no template uses, or that values.yaml lacks")
        assert {"image", "config", "users"} <= typed <= set(chosen), f"the pages' `helm install` sets {typed}"
        pod = objects["Deployment"]["spec"]["template"]["spec"]
        (container,) = pod["containers"]
        ports = {port["name"]: port["containerPort"] for port in container["ports"]}
        equal({port["targetPort"] for port in objects["Service"]["spec"]["ports"]}, set(ports), "ports of the service")
        labels = objects["Deployment"]["spec"]["template"]["metadata"]["labels"]
        for of, selector in (("Deployment", objects["Deployment"]["spec"]["selector"]["matchLabels"]),
                             ("Service", objects["Service"]["spec"]["selector"])):
            assert selector.items() <= labels.items(), f"the selector of the {of} finds no pod"
        for where, name in ((container, "env"), (pod, "volumes"), (container, "volumeMounts")):
            wanted = chosen["extra" + name[0].upper() + name[1:]]
            assert all(one in where.get(name, []) for one in wanted), f"{wanted} is not in the pod's {name}"
        if values.get("existingSecret"):
            equal(pod["volumes"][0]["secret"]["secretName"], "mine")
            continue
        equal(pod["volumes"][0]["secret"]["secretName"], objects["Secret"]["metadata"]["name"])
        files = objects["Secret"]["stringData"]
        config = tomllib.loads(files["hawser.toml"])
        equal(config["listen"]["address"], [f"0.0.0.0:{ports['postgresql']}"])
        equal(config["admin"]["http_address"], f"0.0.0.0:{ports['http']}")
        ends = pod["terminationGracePeriodSeconds"] - container["lifecycle"]["preStop"]["sleep"]["seconds"]
        assert seconds(config["process"]["shutdown_timeout"]) < ends, "the kubelet kills before open transactions have had their time"
        for name, probe in container.items():
            if name.endswith("Probe"):
                status, _ = env.pooler.http(probe["httpGet"]["path"])
                equal((status, probe["httpGet"]["port"]), (200, "http"), name)
        with tempfile.TemporaryDirectory() as directory:
            for name, text in files.items():
                (pathlib.Path(directory) / name).write_text(text)
            # Whether the settings are known; the server of the example is not there.
            said = subprocess.run([binary(), "check", "-c", f"{directory}/hawser.toml"], capture_output=True, text=True, timeout=60).stdout
            assert "hawser.toml: every setting is valid" in said, said
    refused = helm({"config": '[admin]\nhttp_address = "127.0.0.1:9632"\n'})
    assert refused.returncode and 'the probes need http_address = "0.0.0.0:9632"' in refused.stderr, refused.stderr
