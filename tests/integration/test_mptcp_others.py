"""`hawser mptcp` beside other programs that manage MPTCP: the real mptcpd and NetworkManager, in namespaces of the test.

Each is skipped where it is not installed: `make test ALL=1` does not install them, for both would begin to manage the
machine. $MPTCPD and $NETWORK_MANAGER name them, with arguments; else /usr/libexec/mptcpd (Debian's, with its plugins from
mptcpd-plugins) and NetworkManager in PATH.
"""

import contextlib
import os
import shlex
import shutil
import subprocess
import time

from harness.suite import Skip, equal, until
from integration.test_mptcp import needs_mptcp, two_machines
from integration.test_paths import SETTING, managed, needs_manager, setting

SAME_FOR_ALL_SERVERS = True
ALONE = "networks"

UNSENT = "/proc/sys/net/ipv4/tcp_notsent_lowat"


@contextlib.contextmanager
def mptcpd(machine, plugin, address="10.77.0.2"):
    """It, in the network namespace of a machine; what it makes of that machine's address is there."""
    words = shlex.split(os.environ.get("MPTCPD", "/usr/libexec/mptcpd"))
    if not shutil.which(words[0]):
        raise Skip("mptcpd is not installed (apt-get install mptcpd mptcpd-plugins, or $MPTCPD)")
    how = ["--log=stderr", f"--path-manager={plugin}", "--addr-flags=subflow", "--notify-flags=existing,skip_link_local,skip_loopback"]
    process = machine.start(*words, *how, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def made():
        # It takes in what comes while it runs: mptcpd 0.12 overlooks an address that was there before, as often as not.
        with contextlib.suppress(Skip):
            machine.ip("addr", "del", f"{address}/24", "dev", "net0")
        machine.ip("addr", "add", f"{address}/24", "dev", "net0")
        time.sleep(1)  # it takes in the address
        return process.poll() is not None or machine.status()["endpoints"]

    try:
        until(made, "mptcpd has made an endpoint", 20)
        if process.poll() is not None:
            raise Skip(f"mptcpd does not run here: it ended with {process.returncode}")
        yield process
    finally:
        process.terminate()
        process.wait()


def endpoints(machine):
    return [(endpoint["address"], endpoint["flags"], endpoint["ours"]) for endpoint in machine.status()["endpoints"]]


@needs_mptcp
def test_setup_beside_mptcpd_says_so_and_leaves_its_endpoints(env):
    with two_machines() as (server, client):
        with mptcpd(client, "addr_adv"):
            before = client.status()
            equal(endpoints(client), [("10.77.0.2", ["subflow"], False)])
            assert any(note.startswith("mptcpd runs here: ") for note in before["notes"]), before["notes"]
            said = client.hawser("setup", "client")
            assert "mptcpd runs here" in said, said
            equal(client.status()["limits"], {"subflows": 8, "add_addr_accepted": 8})
            client.hawser("setup", "server", "--ports", "2")
            equal(len(endpoints(client)), 3)
            client.hawser("undo")
            equal(endpoints(client), [("10.77.0.2", ["subflow"], False)])
            equal(client.status()["limits"], before["limits"], "what mptcpd had set")
        equal([note for note in client.status()["notes"] if "mptcpd" in note], [])


@needs_manager
def test_manage_beside_mptcpd_is_refused_and_changes_nothing(env):
    with two_machines() as (_, client):
        for plugin in ("addr_adv", "sspi"):
            unsent = client.run("cat", UNSENT)
            with mptcpd(client, plugin):
                error = client.hawser("manage", code=1)
                assert "mptcpd runs here" in error and "end that one first" in error, error
                equal(setting(client), "kernel")
                equal(client.run("cat", UNSENT), unsent)
                equal(endpoints(client)[0][0], "10.77.0.2")

                client.run("sh", "-c", f"echo userspace > {SETTING}")
                notes = client.status()["notes"]
                assert any("mptcpd" in note for note in notes) and not any("no program" in note for note in notes), notes
                for words in (("manage",), ("setup", "client"), ("setup", "server")):
                    error = client.hawser(*words, code=1)
                    assert "in userspace" in error and "mptcpd" in error, error
                equal(setting(client), "userspace", "as mptcpd's user has set it")
                equal(client.run("cat", UNSENT), unsent)
            client.run("sh", "-c", f"echo kernel > {SETTING}")
            client.run(os.environ["HAWSER"], "mptcp", "undo")
            client.run("sh", "-c", "ip mptcp endpoint flush")


@needs_mptcp
def test_an_endpoint_of_mptcpd_in_the_way_stops_setup_before_anything_is_made(env):
    with two_machines() as (_, client):
        with mptcpd(client, "addr_adv", "10.78.0.2"):
            before = client.status()
            error = client.hawser("setup", "client", code=1)
            assert "made by somebody else; it is left as it is, and nothing was changed" in error, error
            after = client.status()
            equal((after["endpoints"], after["limits"]), (before["endpoints"], before["limits"]))


# A system bus and NetworkManager with files of their own, over the machine's in a mount namespace; /sys is read-only, so
# that NetworkManager does not wait for udev. Ends both when standard input ends.
MANAGED = """
set -e
umask 077
mount -t tmpfs none /run
mkdir -p /run/lib /run/etc/system-connections
mount --bind /run/lib /var/lib
if [ ! -d /etc/NetworkManager ]; then
    mkdir -p /run/upper /run/work
    mount -t overlay none -o lowerdir=/etc,upperdir=/run/upper,workdir=/run/work /etc
    mkdir /etc/NetworkManager
fi
mount --bind /run/etc /etc/NetworkManager
mount -o remount,ro,bind /sys
cat > /run/bus.conf <<X
<!DOCTYPE busconfig PUBLIC "-//freedesktop//DTD D-Bus Bus Configuration 1.0//EN" "http://www.freedesktop.org/standards/dbus/1.0/busconfig.dtd">
<busconfig><type>session</type><listen>unix:path=/run/dbus/system_bus_socket</listen>
<policy context="default"><allow user="*"/><allow own="*"/>
<allow send_type="method_call"/><allow send_type="method_return"/><allow send_type="error"/><allow send_type="signal"/>
<allow receive_type="method_call"/><allow receive_type="method_return"/><allow receive_type="error"/>
<allow receive_type="signal"/></policy></busconfig>
X
printf '[main]\nplugins=keyfile\nauth-polkit=false\n[device-all]\nmanaged=1\n' > /run/etc/NetworkManager.conf
printf '%s\n' '[connection]' id=net0 type=ethernet interface-name=net0 '[ipv4]' method=manual \
    address1=10.77.0.2/24,10.77.0.1 '[ipv6]' method=disabled \
    > /run/etc/system-connections/net0.nmconnection
mkdir -p /run/dbus
dbus-daemon --config-file=/run/bus.conf --nofork 2>/dev/null & bus=$!
while [ ! -S /run/dbus/system_bus_socket ]; do sleep 0.1; done
"$@" --no-daemon --config=/run/etc/NetworkManager.conf & manager=$!
cat > /dev/null
kill $manager $bus
wait
"""


@contextlib.contextmanager
def network_manager(machine):
    """It, managing net0 of a machine: what it makes is there."""
    words = shlex.split(os.environ.get("NETWORK_MANAGER", "NetworkManager"))
    for program, package in ((words[0], "network-manager"), ("dbus-daemon", "dbus-daemon"), ("unshare", "util-linux")):
        if not shutil.which(program, path=os.environ["PATH"] + ":/usr/sbin"):
            raise Skip(f"{program} is not installed ({package})")
    machine.ip("addr", "flush", "dev", "net0")
    process = machine.start("unshare", "--mount", "--propagation", "private", "sh", "-c", MANAGED, "sh", *words,
                            stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    try:
        until(lambda: process.poll() is not None or machine.status()["endpoints"], "NetworkManager has made an endpoint", 20)
        if process.poll() is not None:
            raise Skip(f"NetworkManager does not run here: {process.stderr.read().strip()}")
        yield process
    finally:
        process.communicate("", timeout=10)


@needs_manager
def test_setup_and_manage_beside_networkmanager_leave_its_endpoints(env):
    with two_machines() as (_, client):
        with network_manager(client):
            before = client.status()
            equal(endpoints(client), [("10.77.0.2", ["subflow"], False)])
            assert any(note.startswith("NetworkManager runs here: ") for note in before["notes"]), before["notes"]
            said = client.hawser("setup", "client")
            assert "NetworkManager runs here" in said, said
            client.hawser("setup", "server", "--ports", "2")
            equal(len(endpoints(client)), 3)
            client.hawser("undo")
            equal(endpoints(client), [("10.77.0.2", ["subflow"], False)])
            equal(client.status()["limits"], before["limits"])

            command = [os.environ["HAWSER"], "mptcp", "manage"]
            with managed(lambda **how: client.start(*command, **how)) as (_, said):
                equal(setting(client), "userspace")
            assert any("NetworkManager runs here" in line for line in said) and any("1 endpoints" in line for line in said), said
            equal(setting(client), "kernel")
            equal(endpoints(client), [("10.77.0.2", ["subflow"], False)])
