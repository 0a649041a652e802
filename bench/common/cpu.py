"""CPU time and memory of processes that are not ours.

CPU time comes from each process's CPU clock (clock_getcpuclockid(3)): nanoseconds, all threads,
ended ones included. Children that have ended stand in their parent's stat, in clock ticks.
"""

import os
import shutil
import subprocess
import time

TICKS_PER_S = os.sysconf("SC_CLK_TCK")
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
# clock_getcpuclockid(3): the complement of the process id, shifted; 2 is CPUCLOCK_SCHED.
CPUCLOCK_SCHED = 2


def process_cpu_s(pid):
    """CPU seconds of one process with its ended children; 0 if it is gone."""
    try:
        own = time.clock_gettime(((~pid) << 3) | CPUCLOCK_SCHED)
        ended = sum(int(field) for field in stat_fields(pid)[13:15]) / TICKS_PER_S
    except (OSError, IndexError):
        return 0.0
    return own + ended


def stat_fields(pid):
    """/proc/PID/stat behind the name, so that field N of proc(5) has index N - 3."""
    with open(f"/proc/{pid}/stat", "rb") as stat:
        return stat.read().rpartition(b")")[2].split()


def tree(pids):
    """The processes and all that descend from them."""
    children = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                children.setdefault(int(stat_fields(name)[1]), []).append(int(name))
            except (OSError, IndexError):
                continue  # it has ended meanwhile
    found, rest = [], list(pids)
    while rest:
        pid = rest.pop()
        found.append(pid)
        rest += children.get(pid, [])
    return found


def tree_cpu_s(pids):
    return sum(process_cpu_s(pid) for pid in tree(pids)) if pids else 0.0


def machine_cpu_s():
    """Busy and stolen CPU seconds of the whole machine."""
    with open("/proc/stat") as stat:
        user, nice, system, _idle, _wait, irq, softirq, steal = map(int, stat.readline().split()[1:9])
    return (user + nice + system + irq + softirq) / TICKS_PER_S, steal / TICKS_PER_S


class Window:
    """What happened between its making and `end`: rates, so that a late look does no harm.

    measured    processes whose CPU is the result (with their descendants)

    All processes of the benchmark descend from this one: what they did not use was somebody else's.
    """

    def __init__(self, measured):
        self.measured = measured
        self.begin = self._look()

    def _look(self):
        cpu = tree_cpu_s(self.measured)
        now = time.monotonic()
        busy, stolen = machine_cpu_s()
        return cpu, now, busy - tree_cpu_s([os.getpid()]), stolen

    def end(self):
        """CPU seconds a second: of the measured, of strangers, and stolen by the hypervisor."""
        cpu, now, strange, stolen = (b - a for a, b in zip(self.begin, self._look(), strict=True))
        return {
            "cpu_share": cpu / now,
            "foreign_cpu_share": max(0.0, strange / now),
            "stolen_cpu_share": stolen / now,
        }


def counts_instructions():
    """Whether this machine counts user-space instructions for us."""
    if not shutil.which("perf"):
        return False
    done = subprocess.run(
        ["perf", "stat", "-x,", "-e", "instructions:u", "true"], capture_output=True, text=True
    )
    return done.returncode == 0 and parse_instructions(done.stderr) is not None


def parse_instructions(text):
    """The count in `perf stat -x,` output, or None where the machine does not count."""
    for line in text.splitlines():
        fields = line.split(",")
        if len(fields) > 2 and fields[2].startswith("instructions") and fields[0].isdigit():
            return int(fields[0])
    return None


class Instructions:
    """Counts user-space instructions of processes for so many seconds, beside what runs."""

    def __init__(self, pids, seconds):
        self.seconds = seconds
        command = ["perf", "stat", "-x,", "-e", "instructions:u", "-p", ",".join(map(str, pids))]
        self.process = subprocess.Popen(
            [*command, "--", "sleep", str(seconds)],
            stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip

    def per_second(self):
        count = parse_instructions(self.process.communicate()[1])
        return None if count is None else count / self.seconds


def memory_kib(pids):
    """Proportional (PSS) and resident (RSS) memory of processes, in KiB."""
    sums = {"Pss": 0, "Rss": 0}
    for pid in tree(pids):
        with open(f"/proc/{pid}/smaps_rollup") as rollup:
            for line in rollup:
                name, _, rest = line.partition(":")
                if name in sums:
                    sums[name] += int(rest.split()[0])
    return sums["Pss"], sums["Rss"]


def own_memory_kib(pids):
    """Memory that processes share with nobody, and what the kernel needs to map all of theirs, in KiB.

    A server's shared buffers are no connection's; the page tables through which each process sees
    them are its own.
    """
    total = 0
    for pid in tree(pids):
        for name, wanted in (("smaps_rollup", "Pss_Anon"), ("status", "VmPTE")):
            try:
                with open(f"/proc/{pid}/{name}") as lines:
                    total += sum(int(line.split()[1]) for line in lines if line.startswith(f"{wanted}:"))
            except (OSError, IndexError):
                continue  # it has ended meanwhile
    return total


def kernel_memory_kib():
    """The kernel's memory for objects (slab) and for bytes in TCP buffers, of the whole machine."""
    slab = buffers = 0
    with open("/proc/meminfo") as meminfo:
        for line in meminfo:
            if line.startswith("Slab:"):
                slab = int(line.split()[1])
    with open("/proc/net/sockstat") as sockstat:
        for line in sockstat:
            if line.startswith("TCP:"):
                buffers = int(line.split()[-1]) * PAGE_BYTES // 1024
    return slab + buffers
