"""Commands in a kernel of their own, in virtual time: user-mode Linux, which `make lab-kernel` builds.

Its root is this machine's file system, read-only. Its clock stands while something computes and jumps to the next timer
when all wait (`time-travel=inf-cpu`), so a slow machine changes no figure. It needs no rights, and has one processor.
"""

import ctypes
import os
import pathlib
import shlex
import signal
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
KERNEL = pathlib.Path(os.environ.get("HAWSER_LAB_KERNEL") or ROOT / ".run/lab-kernel/linux").absolute()
MARK = "hawser| "  # before lines of the console that are not the kernel's
# From 768 MiB on, Linux gives a connection's buffers the 4 and 6 MiB at most that larger machines give them.
MEMORY = "1024M"
POWER_OFF = "import ctypes; ctypes.CDLL(None).reboot(0x4321fedc)"
INIT = """#!/bin/sh
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
mount -t proc none /proc
mount -t tmpfs -o mode=755 none /run
mkdir /run/files
mount -t hostfs -o {directory} none /run/files
mount -t sysfs none /sys
grep -q ' /dev devtmpfs ' /proc/mounts || mount -t devtmpfs none /dev
mkdir -p /dev/shm
for at in /dev/shm /tmp /var/tmp; do mount -t tmpfs -o mode=1777 none $at; done
cd /run/files
settings=/proc/sys/net/ipv4
cat $settings/tcp_available_congestion_control >$settings/tcp_allowed_congestion_control
# What commands have left in the background may hold the pipe open; its last lines get a moment.
{{ sh -e commands 2>&1; echo $? >status; sleep 1; {python} -c {power_off}; }} | sed -u 's/^/{mark}/'
"""


def ends_with_parent():
    """The kernel ends its own processes when it is asked to end."""
    ctypes.CDLL(None).prctl(1, signal.SIGTERM)


def run(commands, files=None, show=sys.stderr):
    """Runs commands of the shell in a directory that has `files`, {name: text}; their exit code, and {name: text} of
    what is there then. What they write to standard output and error is shown as it comes."""
    if not KERNEL.is_file():
        raise FileNotFoundError(f"there is no {KERNEL}: `make lab-kernel` builds it")
    with tempfile.TemporaryDirectory(prefix="hawser-kernel-") as name:
        directory = pathlib.Path(name)
        init = INIT.format(directory=name, mark=MARK, python=shlex.quote(sys.executable), power_off=shlex.quote(POWER_OFF))
        for file, content in {"init": init, "commands": commands, **(files or {})}.items():
            (directory / file).write_text(content)
        (directory / "init").chmod(0o700)
        words = ["root=/dev/root", "rootfstype=hostfs", "rootflags=/", "ro", "con=null", "con0=null,fd:1", "time-travel=inf-cpu",
                 f"time-travel-start={time.time_ns()}", "umid=kernel", "quiet", f"mem={MEMORY}", f"uml_dir={name}", f"init={name}/init"]
        # Processors with AMX have more registers than user-mode Linux has room for: see scripts/lab_kernel_xsave.c.
        library = KERNEL.with_name("xsave.so")
        preload = {"LD_PRELOAD": str(library)} if library.exists() else {}
        kernel = subprocess.Popen([KERNEL, *words], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
                                  errors="replace", env={**os.environ, **preload}, preexec_fn=ends_with_parent)
        console = []
        try:
            for line in kernel.stdout:
                before, mark, words = line.rstrip().partition(MARK)
                if mark:
                    print(words, file=show, flush=True)
                else:
                    console = [*console[-11:], before]
        finally:
            kernel.terminate()
            kernel.wait()
        found = {path.name: path.read_text() for path in directory.iterdir() if path.is_file()}
    if "status" not in found:
        raise ChildProcessError("the kernel has ended; its console said:\n" + "\n".join(console))
    return int(found["status"]), found
