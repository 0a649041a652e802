"""What the manual says about settings and commands, against the program."""

import contextlib
import os
import pathlib
import re
import shutil
import subprocess
import sys
import time

from harness.pooler import Serving, binary
from harness.postgres import SECRETS, free_port
from harness.suite import Skip, equal, limit, pooler_only, until
from harness.wire import Target

SAME_FOR_ALL_SERVERS = True
ROOT = pathlib.Path(__file__).parents[2]


def page(name):
    return (ROOT / "docs" / name).read_text()


def section(text, title):
    return text.split(f"## {title}\n", 1)[1].split("\n## ", 1)[0]


def rows(text):
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line.startswith("| `")]


@pooler_only
def test_names_of_settings_are_those_of_the_reference(env):
    said = {tuple(re.findall("`([^`]+)`", first + second))
            for first, second in rows(section(page("from-pgbouncer.md"), "Names of settings"))}
    there = {(match[2], match[1]) for match in re.finditer(r"^### (\S+)\n(?:(?!^### ).)*?PgBouncer: `(\w+)`", page("configuration.md"),
                                                           re.MULTILINE | re.DOTALL)}
    equal(sorted(said), sorted(there), "pairs of PgBouncer's name and Hawser's")


@pooler_only
def test_settings_without_an_equivalent_become_comments(env):
    table = rows(section(page("from-pgbouncer.md"), "Settings without an equivalent"))
    names = [name for row in table for name in re.findall("`([^`]+)`", row[0])]
    assert names, "no setting in the table"
    ini = pathlib.Path(env.directory) / "without.ini"
    ini.write_text("[databases]\na = host=h\n[pgbouncer]\nauth_file = u\n" + "".join(f"{name} = 1\n" for name in names))
    done = subprocess.run([binary(), "import", str(ini)], capture_output=True, text=True)
    equal(done.returncode, 0, f"exit code: {done.stderr}")
    missing = [name for name in names if not re.search(f"^# {name} = (1|[.]{{3}}) has no equivalent", done.stdout, re.MULTILINE)]
    equal(missing, [], "settings that the page lists, and import carries over")


@pooler_only
def test_the_first_five_minutes_work(env):
    text = page("first-five-minutes.md")
    toml = re.search(r"```toml\n(.*?)```", text, re.DOTALL).group(1)
    users = re.search(r"```\n(\"app\" .*?)```", text, re.DOTALL).group(1)
    directory = pathlib.Path(env.directory) / "five"
    directory.mkdir()
    port, http = free_port(), free_port()
    for there, here in (("127.0.0.1:6432", f"127.0.0.1:{port}"), ("127.0.0.1:5432", env.cluster.address),
                        ("[admin]\n", f'[admin]\nhttp_address = "127.0.0.1:{http}"\n')):
        assert there in toml, f"{there} is not in the page's configuration"
        toml = toml.replace(there, here)
    (directory / "hawser.toml").write_text(toml)
    (directory / "userlist.txt").write_text(users.replace("secret", SECRETS["app"]))
    (directory / "userlist.txt").chmod(0o600)
    check = subprocess.run([binary(), "check", "-c", "hawser.toml"], cwd=directory, capture_output=True, text=True)
    equal(check.returncode, 0, f"check: {check.stdout}{check.stderr}")
    psql = env.program_path("psql")
    hawser = subprocess.Popen([binary(), "serve", "-c", "hawser.toml"], cwd=directory, stderr=subprocess.DEVNULL)
    try:
        commands = re.findall(r"^psql -h 127.0.0.1 -p 6432 -U app (\w+)((?: -c \"[^\"]*\")+)$", text, re.MULTILINE)
        equal([database for database, _ in commands], ["app", "hawser"], "databases of the page's commands")
        said = []
        for database, statements in commands:
            arguments = [word for sql in re.findall('"([^"]*)"', statements) for word in ("-c", sql)]
            for _ in range(50):
                done = subprocess.run([psql, "-h", "127.0.0.1", "-p", str(port), "-U", "app", "-At", *arguments, database],
                                      capture_output=True, text=True, env={**os.environ, "PGPASSWORD": SECRETS["app"]})
                if "refused" not in done.stderr:
                    break
                time.sleep(0.1)
            equal(done.returncode, 0, f"psql: {done.stderr}")
            said.append(done.stdout)
        equal(said[0].splitlines(), ["SET", "7"])
        assert "app|app|" in said[1], said[1]
        status = subprocess.run([binary(), "status", "-c", "hawser.toml"], cwd=directory, capture_output=True, text=True)
        assert ": ready" in status.stdout, status.stdout + status.stderr
    finally:
        hawser.kill()
        hawser.wait()


# What pages have to be typed: the test that runs it, or why none does.
TYPED = {
    r"make package\b.*": "test_packages.test_packages_install_and_serve_as_they_are",
    r"apt install \S+": "test_packages.test_packages_install_and_serve_as_they_are",
    r"make run\b.*": "scripts/test_scripts.sh",
    r"make test\b.*": "it is what runs this",
    r"cargo build --release": "make test begins with it",
    r"install target/release/hawser /usr/local/bin/": "it would change this machine; the copy in the next is tested",
    r"(install|systemd-sysusers|editor|systemctl)\b.*": "test_packages.test_the_steps_without_a_package_lead_to_a_service",
    r"hawser check --as hawser -c /etc/hawser/hawser.toml": "test_packages.test_the_steps_without_a_package_lead_to_a_service",
    r"hawser doctor": "test_doctor.test_nothing_is_found_where_nothing_is_wrong",
    r"hawser status": "test_packages.test_debians_pgbouncer_unit_runs_hawser_by_the_drop_in_of_the_page",
    r"psql -h 127.0.0.1 -p 6432 -U USER hawser": "test_docs.test_the_first_five_minutes_work",
    r"hawser serve --server \S+": "test_docs.test_what_the_first_page_shows_works_in_an_empty_directory",
    r"psql postgres://\S+": "test_docs.test_what_the_first_page_shows_works_in_an_empty_directory",
    r"hawser (serve --pgbouncer|import) /etc/pgbouncer/pgbouncer.ini.*":
        "test_docs.test_what_the_first_page_shows_works_in_an_empty_directory",
    r"hawser (check|serve|status) -c hawser.toml": "test_docs.test_the_first_five_minutes_work",
    r"psql -h 127.0.0.1 -p 6432 -U app .*": "test_docs.test_the_first_five_minutes_work",
    r"(openssl|chmod|chown) .*|cd /etc/hawser": "test_docs.test_the_certificate_of_the_security_page_is_accepted",
    r"SHOW QUERIES ORDER BY time;|RULE (ADD|DROP)\b.*|SHOW RULES;": "test_docs.test_the_console_of_the_pages_about_queries_and_rules",
    r"psql .* -U admin .*SWITCHOVER app'|pg_ctl (stop -m fast|promote) .*":
        "test_several_servers.test_no_transaction_fails_where_the_primary_is_stopped_fast_after_switchover",
    r"psql -c 'ALTER SYSTEM SET default_transaction_read_only .*":
        "test_several_servers.test_a_transaction_that_a_read_only_server_refuses_at_once_starts_again_on_another",
    r"pg_ctlcluster .*": "test_several_servers.test_planned_failovers_under_load_cost_no_client_an_error, by pg_ctl",
    r"helm install .*": "test_packages.test_the_helm_chart_renders_and_its_parts_agree",
    r"docker build .*": "it fetches images; test_kubernetes runs the program as their pods do",
    r"hawser link .*|psql -h 127.0.0.1 -p 5433 .*": "test_docs.test_the_link_is_set_up_as_its_page_says",
    r"hawser (cc serve --for|wan|mptcp setup) .*|(scp|rm|time) .*|sudo -u postgres pg_basebackup .*":
        "test_wan.test_the_page_leads_from_a_slow_replica_to_a_line_that_is_used",
    r"hawser cc (list|serve|bench)\b.*": "test_cc.test_both_directions_are_measured_at_the_receiver",
    r"hawser mptcp (setup|status)\b.*": "test_mptcp.test_status_says_why_there_is_one_subflow_and_setup_makes_five",
    r"hawser mptcp run -- psql .*": "test_mptcp.test_psql_under_run_has_five_subflows",
    r"hawser mptcp manage": "test_paths.test_a_transfer_takes_several_limits_over_ipv4_and_ipv6",
    r"hawser bypass .*": "test_bypass.test_programs_of_run_talk_past_tcp_in_ipv4_ipv6_and_both",
    r"hawser rds .*": "test_rds.test_the_pages_commands_and_its_program",
    r"hawser lab .*": "test_lab.test_a_report_counts_what_went_through",
    r"python3 bench/pooler/run.py --(list|selftest|report) ?.*":
        "test_docs.test_the_benchmark_checks_itself_and_writes_the_same_report_again",
    r"(make bench|make lab-kernel|python3 bench/|cargo run --release -p hawser-load) ?.*": "it measures, for hours",
}
PROGRAMS = (r"make|apt|cargo|install|hawser|psql|editor|systemctl|systemd-sysusers|python3|scp|rm|time|sudo|docker|helm|openssl|chmod|chown"
            r"|pg_ctl|pg_ctlcluster|cd|SHOW|RULE")


def typed(text):
    """Lines of blocks without a language that begin with a program, without prompt and remark."""
    blocks = re.findall(r"^ *```(\w*)\n(.*?)^ *```$", text, re.MULTILINE | re.DOTALL)
    lines = [line.strip() for language, block in blocks if not language for line in block.splitlines()]
    lines = [re.sub(r"^(\w*[$#] |hawser=# )?([A-Z_]+=\S+ )?", "", line) for line in lines]
    return [re.split(r"  +| # ", line)[0] for line in lines if re.match(rf"({PROGRAMS})( (?!=)|$)", line)]


@pooler_only
def test_what_pages_have_typed_is_run_by_a_test_or_listed_with_its_reason(env):
    # What the extension's pages have typed is run by extension/check.sh.
    pages = [path for path in (ROOT / "docs").rglob("*.md") if path.parent.name != "decisions" and path.name != "extension.md"]
    lines = [part for path in [ROOT / "README.md", *pages] for line in typed(path.read_text()) for part in re.split(r" && (?=apt)", line)]
    assert len(lines) > 100, f"only {len(lines)} lines: does the test still read the pages?"
    equal([line for line in lines if not any(re.fullmatch(pattern, line) for pattern in TYPED)], [], "run by no test")
    equal([pattern for pattern in TYPED if not any(re.fullmatch(pattern, line) for line in lines)], [], "no page has it")
    for of in TYPED.values():
        if match := re.match(r"(test_\w+)\.(\w+)", of):
            assert f"def {match[2]}(" in (ROOT / f"tests/integration/{match[1]}.py").read_text(), of


@pooler_only
@limit(60)
def test_the_link_is_set_up_as_its_page_says(env):
    """Both ends on this host, each command in the page's order."""
    directory = pathlib.Path(env.directory) / "link"
    directory.mkdir()
    far, near = free_port(), free_port()
    commands = re.findall(r"^ +(?:db|replica)\$ +((?:.*\\\n)*.*)$", section(page("link.md"), "Try it"), re.MULTILINE)
    equal([" ".join(command.split()[:3]) for command in commands],
          ["hawser link keygen", "hawser link keygen", "hawser link accept", "hawser link dial", "hawser link status", "psql -h 127.0.0.1"])
    keys = iter(re.findall(r"^ +(ed25519:\S+)$", page("link.md"), re.MULTILINE))
    here = {r"^hawser": binary(), r"0\.0\.0\.0:6433": f"127.0.0.1:{far}", r"--far db": f"--far 127.0.0.1:{far}",
            r"127\.0\.0\.1:5433": f"127.0.0.1:{near}", r"-p 5433": f"-p {near}", r"127\.0\.0\.1:5432": f"127.0.0.1:{env.cluster.port}",
            r"^psql": env.program_path("psql")}
    with contextlib.ExitStack() as ends:
        for command in commands:
            for there, now in here.items():
                command = re.sub(there, now, command)
            started = subprocess.Popen(["bash", "-c", f"exec {command}"], cwd=directory, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                       text=True, env={**os.environ, "PGPASSWORD": SECRETS["app"]})
            if " accept " in command or " dial " in command:
                ends.enter_context(started)
                ends.callback(started.terminate)
                said = started.stdout.readline()
                assert said.startswith("listens on"), f"{command}: {said}"
                continue
            said = started.communicate(timeout=30)[0]
            equal(started.returncode, 0, f"{command}: {said}")
            if "keygen" in command:
                here[re.escape(next(keys))] = said.strip()
        assert "(1 row)" in said, said


@pooler_only
def test_the_console_of_the_pages_about_queries_and_rules(env):
    queries, rules = page("queries.md"), page("rules.md")
    with env.pooler_with(append='\n[[user]]\nname = "report"\npassword = "secret"\n') as target:
        env.connect(target).execute("select 1")
        console = target.pooler.admin("hawser")
        (command,) = re.findall(r"^hawser=# (SHOW QUERIES .*;)$", queries, re.MULTILINE)
        columns = re.findall(r"^\| ((?:`\w+`(?:, )?)+) \|", section(queries, "Look"), re.MULTILINE)
        equal([name for names in columns for name in re.findall(r"\w+", names)], console.attempt(command).columns)
        block = section(rules, "See it, limit it, remove it")
        commands = re.findall(r"^hawser=# (.*;)$", block, re.MULTILINE)
        equal([command.split()[0] for command in commands], ["RULE", "SHOW", "RULE"])
        equal(console.execute(commands[0]).tags, ["RULE ADD"])
        shown = console.attempt(commands[1])
        header, row = ([cell.strip() for cell in line.split("|")] for line in re.findall(r"^ [a-z].*\|.*$", block, re.MULTILINE))
        equal(shown.columns, header)
        what = slice(header.index("name"), header.index("expires_in"))
        equal(list(shown.rows[0][what]), row[what])
        console.execute(commands[2])
        equal(console.attempt(commands[1]).rows, [])


@pooler_only
def test_the_benchmark_checks_itself_and_writes_the_same_report_again(env):
    run = [sys.executable, str(ROOT / "bench/pooler/run.py")]
    for options in (["--list"], ["--selftest"], ["--report", str(ROOT / "docs/benchmarks/results.json"), "--out", env.directory]):
        done = subprocess.run([*run, *options], capture_output=True, text=True, timeout=60)
        equal(done.returncode, 0, f"{options}: {done.stdout}{done.stderr}")
    equal((pathlib.Path(env.directory) / "results.md").read_text(), page("benchmarks/results.md"))


@pooler_only
def test_what_the_first_page_shows_works_in_an_empty_directory(env):
    directory = pathlib.Path(env.directory) / "first"
    directory.mkdir()
    port = free_port()
    toml = re.search(r"```toml\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)[1]
    server = f"127.0.0.1:{env.cluster.port}"
    (directory / "hawser.toml").write_text(toml.replace("127.0.0.1:6432", f"127.0.0.1:{port}").replace("127.0.0.1:5432", server)
                                           + '[admin]\nhttp_address = ""\n')
    (directory / "userlist.txt").write_text(f'"app" "{SECRETS["app"]}"\n')
    (directory / "userlist.txt").chmod(0o600)
    (directory / "pgbouncer.ini").write_text(f"[databases]\napp = host=127.0.0.1 port={env.cluster.port}\n[pgbouncer]\nlisten_addr "
                                             f"= 127.0.0.1\n"
                                             f"listen_port = {port}\nunix_socket_dir =\nauth_type = scram-sha-256\nauth_file = "
                                             f"userlist.txt\n")
    url = f"postgres://app:{SECRETS['app']}@{server}"
    psql = env.program_path("psql")
    for arguments in (["-c", "hawser.toml"], ["--pgbouncer", "pgbouncer.ini"], ["--server", url, "--listen", f"127.0.0.1:{port}"]):
        with Serving() as serving:
            serving.target = Target(port, str(directory), SECRETS)
            serving.process = subprocess.Popen([binary(), "serve", *arguments], cwd=directory, stderr=subprocess.DEVNULL)
            until(serving.listens, f"serve {arguments} listens")
            done = subprocess.run([psql, f"postgres://app:{SECRETS['app']}@127.0.0.1:{port}/app", "-Atc", "select 6 * 7"],
                                  capture_output=True, text=True)
            equal(done.stdout.strip(), "42", f"{arguments}: {done.stderr}")
    done = subprocess.run([binary(), "import", "pgbouncer.ini"], cwd=directory, capture_output=True, text=True)
    equal(done.returncode, 0, done.stderr)
    (directory / "imported.toml").write_text(done.stdout)
    done = subprocess.run([binary(), "check", "-c", "imported.toml"], cwd=directory, capture_output=True, text=True)
    equal(done.returncode, 0, done.stdout + done.stderr)


# Rows of README's table: the cases of the benchmark whose figures they are.
MEASURED = {
    "prepared, 100 clients": [("prepared, 100 clients", "CPU"), ("prepared, 100 clients", "TPS")],
    "prepared, 1,000 clients": [("prepared, 1,000 clients", "CPU"), ("prepared, 1,000 clients", "TPS")],
    "simple, 100 clients": [("simple, 100 clients", "CPU"), ("simple, 100 clients", "TPS")],
    "statements without a name, 100 clients": [("unnamed extended, 100 clients", "CPU"), ("unnamed extended, 100 clients", "TPS")],
    "new connections a second": [("new connections", "a second"), ("new connections with TLS", "a second")],
    "memory of an idle client": [("idle client", "memory"), ("idle client with TLS", "memory")],
    "1,000 clients at work": [("many connected, 1,000 at work", "TPS")],
}


@pooler_only
def test_figures_of_the_readme_are_those_of_the_last_whole_run(env):
    text = (ROOT / "README.md").read_text()
    table = section(text, "How fast").split("|---|---|\n")[1].split("\n\n")[0].splitlines()
    assert len(table) <= 10 and "*" not in "".join(table), "a table of at most ten rows, without stars"
    said = dict(re.match(r"\| ([^:]+):.* \| (.*) \|$", row).groups() for row in table if ":" in row)
    required = section(page("benchmarks/results.md"), "Required of Hawser")
    for row, cases in MEASURED.items():
        for case, figure in cases:
            measured = re.search(rf"^\| {re.escape(case)} \| {figure}.*? \| (?:[^|]* \| ){{2}}([\d.]+)", required, re.MULTILINE)[1]
            assert re.search(rf"\b{re.escape(measured)}\b", said[row]), f"README has {said[row]} for {row}, the run {measured} for {figure}"


@pooler_only
def test_the_certificate_of_the_security_page_is_accepted(env):
    """The page's block had a file of an authority that no command before it made."""
    if not shutil.which("openssl"):
        raise Skip("no openssl")
    tls = section(page("security.md"), "TLS")
    directory = pathlib.Path(env.directory) / "certificate"
    directory.mkdir()
    for command in re.search(r"^```\n(.*?)^```$", tls, re.MULTILINE | re.DOTALL)[1].splitlines():
        if command.startswith(("openssl", "chmod")):  # not `cd /etc/hawser`, nor `chown`, which takes root
            subprocess.run(command.split(), cwd=directory, check=True, capture_output=True)
    (directory / "hawser.toml").write_text(
        f'[listen]\naddress = "127.0.0.1:{free_port()}"\n[[database]]\nname = "*"\nservers = ["{env.cluster.address}"]\n'
        f'[[user]]\nname = "app"\npassword = "{SECRETS["app"]}"\n' + re.search(r"```toml\n(.*?)```", tls, re.DOTALL)[1])
    check = subprocess.run([binary(), "check", "-c", "hawser.toml"], cwd=directory, capture_output=True, text=True)
    equal(check.returncode, 0, f"check: {check.stdout}{check.stderr}")
    assert "certificate and key match" in check.stdout, check.stdout


@pooler_only
def test_users_of_the_server_are_looked_up_by_the_function_of_the_security_page(env):
    """No page had the function, and `check` did not ask."""
    text = section(page("security.md"), "Users of the server")
    sql, toml = (re.search(rf"```{language}\n(.*?)```", text, re.DOTALL)[1] for language in ("sql", "toml"))
    role, password = re.search('"(hawser)" "(.*?)"', text).groups()
    directory = pathlib.Path(env.directory) / "lookup"
    directory.mkdir(exist_ok=True)
    (directory / "userlist.txt").write_text(f'"{role}" "{password}"\n')
    (directory / "userlist.txt").chmod(0o600)
    port = free_port()
    good = (f'[listen]\naddress = "127.0.0.1:{port}"\n[admin]\nhttp_address = ""\n'
            + toml.replace("127.0.0.1:5432", f"127.0.0.1:{env.cluster.port}"))

    def check(text):
        (directory / "hawser.toml").write_text(text)
        done = subprocess.run([binary(), "check", "-c", "hawser.toml"], cwd=directory, capture_output=True, text=True, timeout=60)
        return [line for line in done.stdout.splitlines() if "auth_query" in line]

    postgres = env.server("postgres")
    try:
        for statement in sql.split(";\n"):
            postgres.execute(statement)
        equal(check(good), [f'ok     auth_query works in database "postgres" as user "{role}"'])
        with Serving() as serving:
            serving.target = Target(port, str(directory), SECRETS)
            serving.process = subprocess.Popen([binary(), "serve", "-c", "hawser.toml"], cwd=directory, stderr=subprocess.DEVNULL)
            until(serving.listens, "it listens")
            equal(env.connect(serving.target, user="app2").value("select session_user"), "app2")
        postgres.execute("drop function auth.lookup")
        (line,) = check(good)
        assert line.startswith("warn") and "function auth.lookup" in line, line
        (line,) = check(good.replace("auth_dbname", "#auth_dbname"))
        assert line.startswith("note") and "auth_dbname names one" in line, line
    finally:
        postgres.execute("drop schema if exists auth cascade")
        postgres.execute("drop role if exists hawser")


@pooler_only
def test_manual_pages_are_of_the_program_as_it_is(env):
    directory = pathlib.Path(env.directory) / "man"
    directory.mkdir()
    done = subprocess.run([binary(), "man", str(directory)], capture_output=True, text=True)
    equal(done.returncode, 0, done.stderr)
    settings = set(re.findall(r"^### (\S+)$", page("configuration.md"), re.MULTILINE))
    text = (directory / "hawser.toml.5").read_text().replace("\\-", "-")
    equal(settings - set(re.findall(r"^\\fB(\S+)\\fR$", text, re.MULTILINE)), set(), "settings without an entry")
    commands = re.findall(r"^  ([a-z]+) ", subprocess.run([binary(), "--help"], capture_output=True, text=True).stdout, re.MULTILINE)
    equal([name for name in commands if name != "help" and not (directory / f"hawser-{name}.1").exists()], [], "commands without a page")
    if shutil.which("groff"):
        done = subprocess.run(["groff", "-man", "-Tutf8", "-ww", "-z", "-k", *sorted(map(str, directory.iterdir()))], capture_output=True,
                              text=True)
        equal((done.returncode, done.stderr), (0, ""), "groff")


@pooler_only
def test_a_shell_completes_commands_and_options(env):
    script = pathlib.Path(env.directory) / "completions"
    for shell, syntax in (("bash", ["bash", "-n"]), ("zsh", ["zsh", "-n"]), ("fish", ["fish", "--no-execute"])):
        done = subprocess.run([binary(), "completions", shell], capture_output=True, text=True)
        equal(done.returncode, 0, done.stderr)
        assert "pgbouncer" in done.stdout and "pam-check" not in done.stdout, "a hidden command is offered"
        script.write_text(done.stdout)
        if shutil.which(shell):
            equal(subprocess.run([*syntax, str(script)], capture_output=True, text=True).returncode, 0, shell)
    script.write_text(subprocess.run([binary(), "completions", "bash"], capture_output=True, text=True).stdout)
    asked = '''. "$1"; COMP_WORDS=(hawser {}); COMP_CWORD={}; _hawser hawser "{}" "{}"; echo "${{COMPREPLY[*]}}"'''
    for words, last, before, wanted in (("tak", "tak", "hawser", "takeover"), ("check --st", "--st", "check", "--strict")):
        command = asked.format(words, len(words.split()), last, before)
        done = subprocess.run(["bash", "-c", command, "bash", str(script)], capture_output=True, text=True)
        equal(done.stdout.split(), [wanted], done.stderr)


@pooler_only
@limit(120)
def test_the_site_is_built_and_its_links_lead_somewhere(env):
    own = ROOT / "target/mdbook/bin/mdbook"
    if not (os.environ.get("MDBOOK") or shutil.which("mdbook") or own.exists()):
        raise Skip("mdbook is not installed: `make docs` installs it")
    done = subprocess.run([str(ROOT / "scripts/docs.py")], capture_output=True, text=True,
                          env={**os.environ, "CARGO_TARGET_DIR": f"{env.directory}/site"} if not own.exists() else None)
    equal(done.returncode, 0, f"make docs: {done.stdout}{done.stderr}")
