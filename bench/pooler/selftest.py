"""Checks of the benchmark's own arithmetic: `bench/pooler/run.py --selftest`."""

import subprocess
import sys
import time
import unittest
import xml.etree.ElementTree as ElementTree

import cpu
import plot
import report
import targets


def data_of(cases, rounds=3):
    """Data as a run writes it, from {case: {contestant: [figures]}}."""
    names = {name for contestants in cases.values() for name in contestants}
    return {
        "settings": {"rounds": rounds, "many_clients": 18000, "seconds": 1, "scale": 1},
        "machine": {"cores": 2, "cpu": "test", "memory_gib": 1, "kernel": "6.1", "postgres": "15",
                    "descriptors": 20000, "instructions": False},
        "contestants": {name: {"title": name, "missing": None} for name in names},
        "titles": {case: case for case in cases},
        "cases": cases,
    }  # fmt: skip


def points(name, *found):
    return [{name: value} for value in found]


def target(row, what):
    return next(one for one in targets.TARGETS if one.row == row and one.what.startswith(what))


class Ratios(unittest.TestCase):
    def test_the_median_is_that_of_the_rounds_ratios(self):
        # By medians alone this would be 200 / 100; round by round it is 1, 4 and 1.5.
        data = data_of({"prepared_100": {
            "pgbouncer": points("tps", 50, 100, 200), "hawser": points("tps", 50, 400, 300)}})  # fmt: skip
        one = target("prepared, 100 clients", "TPS, relative to one")
        found = targets.measure(data, one)
        self.assertEqual(found, [1, 4, 1.5])
        self.assertEqual(targets.verdict(one, found), (1.5, "yes"))

    def test_less_is_better_where_it_is(self):
        one = target("prepared, 100 clients", "CPU")
        self.assertEqual(targets.verdict(one, [0.70]), (0.70, "yes"))
        self.assertEqual(targets.verdict(one, [0.71])[1], "**no**")
        self.assertEqual(targets.verdict(one, [0.6])[1], "yes, and the aim")
        self.assertEqual(targets.verdict(one, []), (None, "not measured"))

    def test_a_failed_round_is_left_out_with_its_partner(self):
        data = data_of({"prepared_100": {
            "pgbouncer": [{"tps": 100}, {"failed": "x"}, {"tps": 100}],
            "hawser": points("tps", 150, 900, 170)}})  # fmt: skip
        found = targets.measure(data, target("prepared, 100 clients", "TPS, relative to one"))
        self.assertEqual(found, [1.5, 1.7])

    def test_latency_is_what_is_added_to_direct(self):
        data = data_of({"latency_1": {
            "direct": points("p50_us", 50), "pgbouncer": points("p50_us", 75),
            "hawser": points("p50_us", 65)}}, rounds=1)  # fmt: skip
        self.assertEqual(targets.measure(data, target("1 client", "latency")), [15 / 25])

    def test_bulk_is_held_to_the_lesser_bound(self):
        for direct, least in ((1000, 600), (600, 570)):
            data = data_of({"bulk_8k_copy": {
                "direct": points("mb_per_s", direct), "pgbouncer": points("mb_per_s", 500),
                "hawser": points("mb_per_s", 600)}}, rounds=1)  # fmt: skip
            found = targets.measure(data, target("100 MB, rows of 8 kB, COPY", "MB/s"))
            self.assertAlmostEqual(found[0], 600 / least)

    def test_flatness_is_by_the_best_median(self):
        data = data_of({"a_1": {"hawser": points("tps", 90, 100, 95)},
                        "a_2": {"hawser": points("tps", 80, 190, 76)}, "a_3": {}})  # fmt: skip
        shares = targets.flatness(data, ["a_1", "a_2", "a_3"], "hawser")
        self.assertEqual(shares, {"a_1": 1.0, "a_2": 80 / 95})


class Cpu(unittest.TestCase):
    def setUp(self):
        self.started = []

    def tearDown(self):
        for process in self.started:
            process.kill()
            process.wait()

    def python(self, text):
        process = subprocess.Popen([sys.executable, "-c", text], stdout=subprocess.PIPE, text=True)
        self.addCleanup(process.stdout.close)
        self.started.append(process)
        return process

    def test_a_known_busy_loop_is_found(self):
        # Burns exactly 0.5 s of CPU in a thread, however long that takes, and then waits.
        process = self.python(
            "import threading, time, sys\n"
            "def burn():\n"
            "    end = time.thread_time() + 0.5\n"
            "    while time.thread_time() < end: pass\n"
            "print('ready', flush=True)\n"
            "time.sleep(0.2)\n"
            "thread = threading.Thread(target=burn); thread.start(); thread.join()\n"
            "print('done', flush=True); time.sleep(60)\n"
        )
        process.stdout.readline()
        window = cpu.Window([process.pid])
        begun = time.monotonic()
        process.stdout.readline()
        taken = time.monotonic() - begun
        self.assertAlmostEqual(window.end()["cpu_share"] * taken, 0.5, delta=0.05)

    def test_descendants_count_also_when_they_have_ended(self):
        process = self.python(
            "import subprocess, sys, time\n"
            "burn = 'import time\\nwhile time.process_time() < 0.3: pass'\n"
            "print('ready', flush=True)\n"
            "subprocess.run([sys.executable, '-c', burn])\n"
            "print('done', flush=True); time.sleep(60)\n"
        )
        process.stdout.readline()
        before = cpu.tree_cpu_s([process.pid])
        process.stdout.readline()
        self.assertAlmostEqual(cpu.tree_cpu_s([process.pid]) - before, 0.3, delta=0.06)

    def test_memory_of_a_process_is_found(self):
        process = self.python(
            "import sys, time\n"
            "print('ready', flush=True); time.sleep(0.3)\n"
            "held = bytearray(b'x' * (64 << 20))\n"
            "print('done', flush=True); time.sleep(60)\n"
        )
        process.stdout.readline()
        before, _ = cpu.memory_kib([process.pid])
        process.stdout.readline()
        after, _ = cpu.memory_kib([process.pid])
        self.assertAlmostEqual((after - before) / 1024, 64, delta=3)

    def test_instructions_are_read_only_where_they_were_counted(self):
        self.assertEqual(cpu.parse_instructions("123456,,instructions:u,1000,100.00,,"), 123456)
        self.assertIsNone(cpu.parse_instructions("<not supported>,,instructions:u,0,100.00,,"))


class Report(unittest.TestCase):
    def test_a_chart_is_well_formed_and_in_its_frame(self):
        series = {"one <&>": [(10, 9, 12), None, (30, 28, 31)], "none": [None] * 3}
        svg = plot.line_chart("t", "x", "y", ["1", "2", "3"], series)
        root = ElementTree.fromstring(svg)
        circles = [node for node in root if node.tag.endswith("circle") and node.get("r") == "3.5"]
        self.assertEqual(len(circles), 2)
        for circle in circles:
            self.assertTrue(plot.TOP <= float(circle.get("cy")) <= plot.HEIGHT - plot.BOTTOM)

    def test_grid_lines_are_round_and_enough(self):
        for highest, step in ((4.9, 1), (5.1, 2), (42, 10), (60_000, 20_000), (0, 1)):
            self.assertEqual(plot.step_of(highest), step)

    def test_a_report_without_hawser_says_so(self):
        data = data_of({"prepared_100": {"pgbouncer": points("tps", 1, 2, 3)}})
        text = report.target_table(data)
        self.assertEqual(text.count("not measured"), len(targets.TARGETS))


def main():
    suite = unittest.defaultTestLoader.loadTestsFromModule(sys.modules[__name__])
    return 0 if unittest.TextTestRunner(verbosity=2).run(suite).wasSuccessful() else 1
