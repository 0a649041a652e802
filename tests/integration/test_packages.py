"""What operators install: the packages, the dashboard, the alert rules."""

import hashlib
import json
import os
import pathlib
import re
import shutil
import subprocess
import tempfile
import tomllib

from harness.pooler import binary
from harness.suite import Skip, equal, limit, pooler_only

SAME_FOR_ALL_SERVERS = True
ALONE = "processes"
TAKES_SECONDS = 60
ROOT = pathlib.Path(__file__).parents[2]
DASHBOARD = ROOT / "packaging/grafana/hawser.json"
CHART = ROOT / "packaging/helm"
ALERTS = ROOT / "packaging/prometheus/alerts.yml"

# Runs in namespaces of its own, in a copy of this machine's root that is thrown away: the packages are installed, a server is
# made with the packaged extension, and Hawser runs as its user with the packaged configuration.
INSTALL = r"""
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
cp $PACKAGES "$root/tmp"
cat >"$root/tmp/inside" <<'END'
set -eu
dpkg -i /tmp/*.deb
stat -c '%n %U:%G %a' /etc/hawser /etc/hawser/hawser.toml /etc/hawser/userlist.txt
echo "program $(/usr/lib/hawser/pgbouncer -V | head -n 1)"
test -e /usr/share/doc/hawser/hawser.cdx.json

install -d -o postgres -g postgres -m 755 /run/postgresql /tmp/data
as_postgres() { setpriv --reuid postgres --regid postgres --init-groups "$@"; }
as_postgres "$BIN/initdb" -D /tmp/data -A scram-sha-256 --pwfile=/tmp/password >/dev/null
as_postgres "$BIN/pg_ctl" -D /tmp/data -w -l /tmp/data/log -o "-c listen_addresses=127.0.0.1 -c unix_socket_directories=/run/postgresql -c session_preload_libraries=hawser" start >/dev/null
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
@limit(300)
def test_packages_install_and_serve_as_they_are(env):
    if os.geteuid() != 0:
        raise Skip("only root can install packages")
    for tool in ("dpkg", "unshare", "setpriv", "ip"):
        if not shutil.which(tool):
            raise Skip(f"{tool} is not installed")
    server = f"postgresql-{env.cluster.version}"
    known = subprocess.run(["dpkg-query", "-W", "-f", "${Status}", server], capture_output=True, text=True)
    if "ok installed" not in known.stdout:
        raise Skip(f"the server is not that of Debian's package {server}, on which the extension's depends")
    packages = built(env.directory, "deb", "extension")
    equal(len(packages), 2, f"packages: {packages}")
    # Not below /tmp, which the root inside covers by one of its own.
    with tempfile.TemporaryDirectory(dir="/var/tmp") as space:
        done = subprocess.run(["unshare", "--mount", "--net", "--pid", "--fork", "--kill-child", "sh", "-c", INSTALL], text=True, timeout=240,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                              env={**os.environ, "SPACE": space, "PACKAGES": " ".join(packages), "BIN": str(env.cluster.bin)})
    said = done.stdout
    if "NO OVERLAY" in said or "unshare:" in said:
        raise Skip(f"no copy of the root can be made here: {said[-300:]}")
    equal(done.returncode, 0, f"exit code, with\n{said[-3000:]}")
    for line in ("/etc/hawser root:hawser 750", "/etc/hawser/hawser.toml root:hawser 640", "/etc/hawser/userlist.txt root:hawser 640",
                 "answer 42", "extension hawser", "ended 0", "purged"):
        assert line in said.splitlines(), f"{line!r} is missing:\n{said[-3000:]}"
    assert re.search(r"^hawser .*: ready", said, re.MULTILINE), said[-3000:]
    assert re.search("^program .*PgBouncer", said, re.MULTILINE), said[-3000:]


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
    assert "signal" in said and "systemctl try-restart hawser.service" in said and "has not taken the place" in said, said
    said = upgrade(ACTIVE="3")
    assert "signal" not in said and "restart" not in said, said


class Chart:
    """The Helm chart, rendered as far as its templates go: values, `with`, `if`, `toYaml`, `indent`. What they use beyond that is an error."""

    def __init__(self, yaml, **values):
        self.yaml = yaml
        self.about = yaml.safe_load((CHART / "Chart.yaml").read_text())
        self.values = yaml.safe_load((CHART / "values.yaml").read_text()) | values
        self.used = set()

    def value(self, expression):
        """Of an expression without pipes."""
        if match := re.fullmatch(r"not (\S+)", expression):
            return not self.value(match[1])
        if match := re.fullmatch(r"gt \(int (\S+)\) (\d+)", expression):
            return int(self.value(match[1])) > int(match[2])
        if match := re.fullmatch(r'\(printf "%s-hawser" \.Release\.Name\)', expression):
            return "release-hawser"
        if match := re.fullmatch(r'include \(print \$\.Template\.BasePath "/(\S+)"\) \.', expression):
            return self.render(match[1])
        known = {".Release.Name": "release", ".Chart.AppVersion": self.about["appVersion"]}
        if expression in known:
            return known[expression]
        assert expression.startswith(".Values."), f"the test cannot render {{{{ {expression} }}}}"
        value = self.values
        path = expression.split(".")[2:]
        self.used.add(path[0])
        for name in path:
            assert isinstance(value, dict) and name in value, f"values.yaml has no {'.'.join(path)}"
            value = value[name]
        return value

    def piped(self, expression, dot):
        first, *filters = [part.strip() for part in expression.split("|")]
        as_yaml = first.startswith("toYaml ")
        first = first.removeprefix("toYaml ")
        value = dot if first == "." else self.value(first)
        if as_yaml:
            value = self.yaml.safe_dump(value, default_flow_style=False).rstrip("\n")
        for name, *arguments in (part.split(" ", 1) for part in filters):
            match name:
                case "default":
                    value = value or self.value(arguments[0])
                case "sha256sum":
                    value = hashlib.sha256(value.encode()).hexdigest()
                case "indent" | "nindent":
                    indented = "\n".join(" " * int(arguments[0]) + line for line in value.split("\n"))
                    value = ("\n" if name == "nindent" else "") + indented
                case _:
                    raise AssertionError(f"the test does not know the filter {name}")
        return str(value)

    def render(self, template):
        """The text; all names are looked up, also in blocks that are not shown."""
        text = re.sub(r"\s*\{\{- ", "{{ ", (CHART / "templates" / template).read_text())
        shown, blocks = [], [(True, None)]
        for part in re.split(r"(\{\{.*?\}\})", text):
            if not part.startswith("{{"):
                shown += [part] * blocks[-1][0]
                continue
            expression = part[2:-2].strip()
            if match := re.fullmatch(r"(with|if) (.*)", expression):
                value = self.value(match[2])
                blocks.append((blocks[-1][0] and bool(value), value))
            elif expression == "end":
                blocks.pop()
            elif blocks[-1][0]:
                shown.append(self.piped(expression, blocks[-1][1]))
            elif not expression.startswith(("toYaml .", "include")) or ".Values" in expression:
                self.value(expression.removeprefix("toYaml ").split(" |")[0])
        equal(len(blocks), 1, f"blocks of {template} that have no end")
        return "".join(shown)

    def objects(self):
        rendered = {path.name: self.yaml.safe_load(self.render(path.name)) for path in sorted((CHART / "templates").glob("*.yaml"))}
        return {made["kind"]: made for made in rendered.values() if made}


def seconds(text):
    return int(re.fullmatch(r"(\d+)s", text)[1])


@pooler_only
def test_the_helm_chart_renders_and_its_parts_agree(env):
    try:
        import yaml
    except ImportError:
        raise Skip("PyYAML is not installed") from None
    everything = {"replicas": 1, "imagePullSecrets": [{"name": "x"}], "podAnnotations": {"a": "b"}, "nodeSelector": {"a": "b"},
                  "tolerations": [{"key": "a"}], "affinity": {"nodeAffinity": {}}, "users": '"a" "b"\n',
                  "service": {"type": "LoadBalancer", "port": 5432, "annotations": {"a": "b"}},
                  "serviceMonitor": {"enabled": True, "labels": {"a": "b"}}}
    for values, kinds in (({}, {"Deployment", "PodDisruptionBudget", "Secret", "Service"}),
                          (everything, {"Deployment", "Secret", "Service", "ServiceMonitor"}),
                          ({"existingSecret": "mine"}, {"Deployment", "PodDisruptionBudget", "Service"})):
        chart = Chart(yaml, **values)
        objects = chart.objects()
        equal(set(objects), kinds, "objects")
        equal(set(chart.values) - chart.used, set(), "values that no template uses")
        pod = objects["Deployment"]["spec"]["template"]["spec"]
        (container,) = pod["containers"]
        ports = {port["name"]: port["containerPort"] for port in container["ports"]}
        equal({port["targetPort"] for port in objects["Service"]["spec"]["ports"]}, set(ports), "ports of the service")
        labels = objects["Deployment"]["spec"]["template"]["metadata"]["labels"]
        for of, selector in (("Deployment", objects["Deployment"]["spec"]["selector"]["matchLabels"]), ("Service", objects["Service"]["spec"]["selector"])):
            assert selector.items() <= labels.items(), f"the selector of the {of} finds no pod"
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
    if helm := shutil.which("helm"):
        for command in (("lint", str(CHART)), ("template", "release", str(CHART))):
            done = subprocess.run([helm, *command], capture_output=True, text=True, timeout=60)
            equal(done.returncode, 0, done.stdout + done.stderr)
