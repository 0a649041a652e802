"""What somebody meets who comes from PgBouncer: what is seen of those who wait, what the log says, formats, and the names that tools rely on."""

import json
import os
import re
import shutil
import socket
import subprocess
import urllib.request

from harness import messages as m
from harness.pooler import binary
from harness.suite import Background, Skip, equal, pooler_only, until
from harness.wire import ServerError


def admin(env, target, database="hawser"):
    return env.connect(target, user="admin", database=database)


def status(target, **environment):
    ran = subprocess.run([binary(), "status", "--json", *(() if environment else ("--socket", target.pooler.directory / "hawser.sock"))],
                         capture_output=True, text=True, timeout=10, env={**os.environ, **environment})
    assert ran.returncode == 0, ran.stderr
    return json.loads(ran.stdout)


@pooler_only
def test_clients_that_wait_at_their_login_for_a_server_are_seen_everywhere(env):
    """The server takes connections and says nothing: no client gets as far as the pool's queue."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        server = f"127.0.0.1:{silent.getsockname()[1]}"
        with env.pooler_with(servers=[server], server_tls_sslmode="disable", server_connect_timeout="20s",
                             query_wait_timeout="20s") as target:
            clients = []
            for _ in range(3):
                client = env.raw(target)
                client.send(m.startup({"user": "app_trust", "database": "app"}))
                clients.append(client)
            console = admin(env, target)

            def pool():
                result = console.attempt("SHOW POOLS")
                rows = [dict(zip(result.columns, row)) for row in result.rows]
                return next((row for row in rows if row["database"] == "app"), {})
            until(lambda: pool().get("cl_waiting") == "3", "three clients that wait")
            until(lambda: int(pool()["maxwait"]) >= 1, "that they have waited for a second")
            equal(pool()["cl_active"], "0", "clients that are served")
            text = target.pooler.http("/metrics")[1]
            assert re.search(r'hawser_clients\{database="app",user="app_trust",state="waiting"\} 3\n', text), text
            waited = re.search(r'hawser_oldest_wait_seconds\{database="app",user="app_trust"\} (\S+)', text)
            assert float(waited[1]) >= 1, waited[0]
            assert '<td data-of="waiting">3<' in target.pooler.http("/")[1]
            equal(status(target)["pools"][0]["waiting"], 3)
            for client in clients:
                client.close()
            until(lambda: pool().get("cl_waiting") == "0", "that nobody waits any more")


@pooler_only
def test_the_log_says_why_a_login_failed_and_the_client_is_told_the_same_as_ever(env):
    secret = "md5" + "0" * 32
    hba = "host all all all scram-sha-256\n"
    with env.pooler_with(hba=hba, append=f'\n[[user]]\nname = "with_md5"\npassword = "{secret}"\n[[user]]\nname = "bare"\n') as target:
        for user, reason in (("app", "wrong password"), ("nobody_at_all", "no such user"), ("with_md5", "stored secret is of md5"),
                             ("bare", "no password is known")):
            try:
                env.connect(target, user=user, secret="not this one")
            except ServerError as error:
                equal((error.fields["C"], error.fields["M"]), ("28P01", f'password authentication failed for user "{user}"'))
                assert set(error.fields) <= set("SVCM"), error.fields
            else:
                raise AssertionError(f"{user} is in")
            until(lambda: any(f'"{user}"' in line.replace("\\", "") and reason in line for line in target.pooler.text().splitlines()),
                  f"a line for {user} with {reason}")


@pooler_only
def test_a_reload_says_what_has_changed_and_no_secret(env):
    with env.pooler_with(append='\n[[user]]\nname = "late"\npassword = "geheim-1"\n') as target:
        pooler = target.pooler
        pooler.append = '\n[[user]]\nname = "late"\npassword = "geheim-2"\n'
        pooler.write(pool_size=7, query_wait_timeout="6s")
        with open(pooler.directory / "userlist.txt", "a") as userlist:
            userlist.write('"newcomer" "geheim-3"\n')
        pooler.reload()
        line = next(line for line in pooler.text().splitlines() if "configuration reloaded" in line)
        for part in ("pool_size: 5 -> 7", "query_wait_timeout: 5 -> 6", "[[user]] late: password changed", "users_file: 1 users added"):
            assert part in line, (part, line)
        assert "geheim" not in pooler.text()
        mark = pooler.log.stat().st_size
        pooler.reload()
        assert "nothing changed" in pooler.text(mark), pooler.text(mark)


@pooler_only
def test_metrics_come_in_the_format_that_is_accepted(env):
    with env.pooler_with() as target:
        env.connect(target).value("select 1")

        def get(accept):
            request = urllib.request.Request(f"http://127.0.0.1:{target.pooler.http_port}/metrics", headers={"Accept": accept} if accept else {})
            with urllib.request.urlopen(request, timeout=5) as answer:
                return answer.headers["Content-Type"], answer.read().decode()
        kind, text = get("application/openmetrics-text;version=1.0.0;q=0.6,text/plain;version=0.0.4;q=0.3,*/*;q=0.2")
        assert kind.startswith("application/openmetrics-text; version=1.0.0") and text.endswith("# EOF\n"), kind
        kind, text = get("text/plain")
        assert kind.startswith("text/plain; version=0.0.4") and "# EOF" not in text, kind
        helped = set(re.findall(r"^# HELP (\S+) .", text, re.M))
        for sample in re.findall(r"^([a-z_]+)[{ ]", text, re.M):
            family = re.sub(r"_(bucket|count|sum)$", "", sample)
            assert sample in helped or family in helped, f"no help for {sample}"
        promtool = shutil.which("promtool")
        if promtool:
            ran = subprocess.run([promtool, "check", "metrics"], input=text, capture_output=True, text=True, timeout=20)
            equal((ran.returncode, ran.stderr), (0, ""), "promtool check metrics")


@pooler_only
def test_status_finds_a_process_that_nobody_gave_a_directory(env):
    place = f"/tmp/hawser-{os.geteuid()}" if os.geteuid() else "/run/hawser"
    if os.path.exists(f"{place}/hawser.sock") or os.path.exists(f"/run/user/{os.geteuid()}/hawser.sock"):
        raise Skip("a process of this user has the default control socket")
    bare = {"RUNTIME_DIRECTORY": "", "XDG_RUNTIME_DIR": ""}
    with env.pooler_with(start=False, control_socket=None) as target:
        target.pooler.environment = bare
        target.pooler.start()
        equal(status(target, **bare)["pid"], target.pooler.process.pid)
