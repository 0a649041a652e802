"""Logins that the system's PAM judges. Its services are files of /etc/pam.d, in a mount namespace of the pooler's own."""

import glob
import os
import shutil
import time

from harness.pooler import Pooler
from harness.suite import Background, Skip, crowd, equal, limit, pooler_only
from harness.wire import ServerError

SAME_FOR_ALL_SERVERS = True

PASSWORD = "a PAM password"
CHECK = """\
#!/bin/sh
password=$(tr -d '\\0')
echo "$PAM_USER from $PAM_RHOST" >> "$0.asked"
test "$password" = "%s"
""" % PASSWORD
HANGS = """\
#!/bin/sh
sleep 6
"""
SERVICE = """\
auth    required pam_exec.so expose_authtok quiet {script}
account required pam_permit.so
"""


def start(env, name, script, options="", **settings):
    """A pooler for whom `suite` is the only service there is."""
    if os.getuid() != 0:
        raise Skip("services of PAM are root's to change")
    if not shutil.which("unshare"):
        raise Skip("no unshare here: services of PAM would be the machine's own")
    if not glob.glob("/lib/*/security/pam_exec.so") + glob.glob("/usr/lib/*/security/pam_exec.so"):
        raise Skip("no pam_exec.so here, the module that the test asks by")
    directory = f"{env.directory}/{name}"
    os.makedirs(f"{directory}/pam.d", exist_ok=True)
    path = f"{directory}/check"
    with open(path, "w") as file:
        file.write(script)
    os.chmod(path, 0o755)
    with open(f"{directory}/pam.d/suite", "w") as file:
        file.write(SERVICE.format(script=path))
    hba = f"host app all all pam pamservice=suite {options}\nhost hawser admin all trust\n"
    pooler = Pooler(f"{directory}/pooler", env.cluster, settings={"users_file": None, **settings}, hba=hba)
    pooler.launcher = ["unshare", "-m", "sh", "-c", f'mount --bind {directory}/pam.d /etc/pam.d && exec "$@"', "sh"]
    return pooler.start(), f"{path}.asked"


def refused(pooler, secret=PASSWORD, user="app"):
    try:
        with pooler.target.connect(user, secret=secret):
            pass
    except ServerError as error:
        equal((error.sqlstate, error.fields["M"]), ("28000", f'PAM authentication failed for user "{user}"'))
        return
    raise AssertionError(f"{user} has logged in")


@pooler_only
def test_pam_judges_a_password(env):
    pooler, asked = start(env, "pam", CHECK)
    try:
        equal(pooler.target.connect("app", secret=PASSWORD).value("select session_user"), "app")
        refused(pooler, secret="wrong")
        with open(asked) as file:
            equal(file.read(), "app from 127.0.0.1\n" * 2)
        assert "pam_authenticate failed" in pooler.text(), pooler.text()
        assert PASSWORD not in pooler.text()
    finally:
        pooler.stop()


@pooler_only
def test_pam_without_the_service_lets_nobody_in(env):
    pooler, asked = start(env, "pam-other", CHECK, options="pamservice=no-such-service")
    try:
        refused(pooler)
        assert not os.path.exists(asked)
    finally:
        pooler.stop()


@pooler_only
@limit(60)
def test_a_module_that_hangs_delays_its_own_logins_alone(env):
    pooler, _ = start(env, "pam-hangs", HANGS, server_connect_timeout="1s")
    try:
        def waits(_):
            began = time.monotonic()
            refused(pooler)
            return time.monotonic() - began
        waiting = Background(crowd, 4, waits)
        time.sleep(0.3)  # all of them wait
        began = time.monotonic()
        equal(len(pooler.show("version")), 1)
        assert time.monotonic() - began < 0.8
        waited = waiting.join(30)
        assert min(waited) > 0.9 and max(waited) < 8, waited
        assert "no answer within 1 s" in pooler.text(), pooler.text()
        # The process that asks is gone: the module's own may have left its group.
        asking = [path for path in glob.glob("/proc/[0-9]*/cmdline") if is_asking(path, pooler)]
        equal(asking, [])
    finally:
        pooler.stop()


def is_asking(path, pooler):
    try:
        with open(path, "rb") as file, open(path.replace("cmdline", "stat")) as stat:
            return b"pam-check" in file.read() and int(stat.read().rsplit(")", 1)[1].split()[1]) == pooler.process.pid
    except OSError:
        return False
