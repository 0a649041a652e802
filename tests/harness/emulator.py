"""Another kernel, in an emulator: it runs a command with this machine's files, which it can read and not write.

`make bpf-kernel` fetches the kernel. Without a processor's help it is slow, some ten times; it needs root, as whoever shares
all files does.
"""

import contextlib
import os
import pathlib
import shlex
import shutil
import subprocess
import tempfile
import time

from harness.suite import Skip

ROOT = pathlib.Path(__file__).resolve().parents[2]
KERNEL = pathlib.Path(os.environ.get("HAWSER_BPF_KERNEL") or ROOT / ".run/bpf-kernel")
FILE_SERVERS = ("/usr/libexec/virtiofsd", "/usr/lib/qemu/virtiofsd", "virtiofsd")
MEMORY = "2048M"

# The only program of that machine. What it writes is gone with it.
INIT = """#!/bin/sh
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin LANG=C.UTF-8 HOME=/root
mount -t proc proc /proc; mount -t sysfs sys /sys; mount -t devtmpfs dev /dev 2> /dev/null
mkdir -p /dev/pts /dev/shm; mount -t devpts none /dev/pts; mount -t tmpfs none /dev/shm
for place in /tmp /run /var/tmp; do mount -t tmpfs -o mode=1777 none $place; done
mount -t cgroup2 none /sys/fs/cgroup; mount -t bpf bpf /sys/fs/bpf
ip link set lo up
ulimit -n 65536
exec 2>&1
for module in {modules}; do {insmod} {kernel}/$module.ko; done
cd {root}
{command}
echo "ended with $?"
echo o > /proc/sysrq-trigger
sleep 10
"""


def found(*names):
    for name in names:
        if path := shutil.which(name):
            return path
    raise Skip(f"{names[-1]} is not installed")


MODULES = ("veth", "inet_diag", "tcp_diag", "mptcp_diag")
NETWORK_MODULES = ("failover", "net_failover", "virtio_net")
# With the ciphers that it is to have.
TLS_MODULES = ("tls", "crypto_null", "gf128mul", "ghash-generic", "gcm", "libchacha", "chacha_generic", "libpoly1305",
               "poly1305_generic", "chacha20poly1305")


def run(command, environment, seconds, modules=MODULES):
    """What the command writes, whatever its exit code, which is in the last line: `ended with N`. The machine's time is that of
    its own instructions: however slow it is, nothing there is late."""
    with machine(command, environment, modules) as (arguments, _):
        one = {"tcg,thread=multi": "tcg,thread=single"}
        arguments = [one.get(word, word) for word in arguments]
        arguments[arguments.index("-smp") + 1] = "1"
        arguments += ["-icount", "shift=0,sleep=off", "-rtc", "clock=vm"]
        done = subprocess.run(arguments, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", timeout=seconds)
        return done.stdout + done.stderr


@contextlib.contextmanager
def machine(command, environment, modules=MODULES, tap=None):
    """The emulator's command line, and a directory that it sees; with `tap`, such a device is its eth0."""
    if not (KERNEL / "vmlinuz").exists():
        raise Skip(f"no kernel in {KERNEL}: `make bpf-kernel` fetches one")
    if missing := [module for module in modules if not (KERNEL / f"{module}.ko").exists()]:
        raise Skip(f"{KERNEL} has no module {missing[0]}: `make bpf-kernel` fetches it anew")
    emulator, server = found("qemu-system-x86_64"), found(*FILE_SERVERS)
    insmod = shutil.which("insmod") or f"{found('busybox')} insmod"
    words = [f"{name}={value}" for name, value in environment.items()]
    # Not below /tmp and the like, which are other ones there.
    with tempfile.TemporaryDirectory(dir=KERNEL) as directory, contextlib.ExitStack() as stack:
        place = pathlib.Path(directory)
        init = place / "init"
        init.write_text(INIT.format(insmod=insmod, modules=" ".join(modules), kernel=KERNEL, root=ROOT,
                                    command=shlex.join(["env", *words, *map(str, command)])))
        init.chmod(0o755)
        socket = place / "files"
        files = subprocess.Popen([server, f"--socket-path={socket}", "-o", "source=/", "-o", "sandbox=chroot", "-o", "cache=always"],
                                 stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        stack.callback(lambda: (files.kill(), files.wait()))
        end = time.monotonic() + 10
        while not socket.exists():
            if files.poll() is not None or time.monotonic() > end:
                raise Skip(f"{server} does not serve this machine's files")
            time.sleep(0.05)
        network = ["-netdev", f"tap,id=net,ifname={tap},script=no,downscript=no",
                   "-device", "virtio-net-pci,netdev=net,romfile="] if tap else []
        arguments = [emulator, "-accel", "tcg,thread=multi", "-cpu", "max", "-smp", "2", "-m", MEMORY,
                     "-object", f"memory-backend-memfd,id=memory,size={MEMORY},share=on", "-numa", "node,memdev=memory",
                     "-chardev", f"socket,id=files,path={socket}", "-device", "vhost-user-fs-pci,chardev=files,tag=root",
                     *network, "-display", "none", "-serial", "stdio", "-monitor", "none", "-no-reboot", "-kernel", KERNEL / "vmlinuz",
                     "-append", f"console=ttyS0 panic=-1 no_timer_check quiet root=root rootfstype=virtiofs ro init={init}"]
        yield list(map(str, arguments)), place
