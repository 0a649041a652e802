"""`hawser mptcp cgroup` with real BPF, wherever this machine's kernel is older or forbids it: in another kernel, emulated.

The tests are those of test_mptcp_cgroup. Skipped where they run here already, and where there is no such kernel
(`make bpf-kernel`) or no emulator.
"""

import os
import pathlib
import re

from harness import emulator
from harness.pooler import binary
from harness.suite import Skip, limit
from integration.test_mptcp import needs_mptcp

SAME_FOR_ALL_SERVERS = True
ALONE = "networks"

SECONDS = 500
# As many need BPF, and there are others.
TESTS = 4


@needs_mptcp
@limit(SECONDS + 20)
def test_the_tests_of_cgroups_in_a_kernel_that_lets_bpf_in(env):
    if os.environ.get("HAWSER_EMULATED"):
        raise Skip("this is that kernel")
    program = pathlib.Path(binary()).resolve()
    if any(program.is_relative_to(place) for place in ("/tmp", "/run", "/var/tmp", "/dev/shm")):
        raise Skip(f"{program} is not to be seen in another kernel: it has a /tmp and a /run of its own")
    environment = {"HAWSER": program, "PG_BIN": env.cluster.bin, "HAWSER_EMULATED": 1, "PYTHONDONTWRITEBYTECODE": 1}
    said = emulator.run(["/usr/bin/python3", "tests/run.py", "-k", "test_mptcp_cgroup"], environment, SECONDS)
    counts = re.search(r"^(\d+) passed, (\d+) failed, (\d+) skipped", said, re.MULTILINE)
    assert counts, said[-3000:]
    passed, failed, skipped = map(int, counts.groups())
    assert passed > TESTS and (failed, skipped) == (0, 0), said[-6000:]
