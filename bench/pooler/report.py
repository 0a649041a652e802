"""The results as people read them: results.md, results.json and the plots."""

import json
import os
from statistics import median

import plot
from targets import FLAT, INSIDE, INSIDE_TARGETS, TARGETS, flatness, measure, rounds_of, values, verdict

# (figure, heading, form): the columns of the table of all medians, where anybody has them.
COLUMNS = [
    ("tps", "TPS", "{:,.0f}"),
    ("logins_per_s", "logins/s", "{:,.0f}"),
    ("mb_per_s", "MB/s", "{:,.0f}"),
    ("cpu_us", "pooler CPU us", "{:.1f}"),
    ("cpu_us_per_mb", "pooler CPU us/MB", "{:.0f}"),
    ("instructions", "pooler instructions", "{:,.0f}"),
    ("server_cpu_us", "server CPU us", "{:.1f}"),
    ("server_connections", "server connections", "{:,.0f}"),
    ("server_mib", "server MiB", "{:,.0f}"),
    ("rests_tps", "TPS with rests", "{:,.0f}"),
    ("rests_p50_us", "p50 us with rests", "{:,.0f}"),
    ("rests_p99_us", "p99 us with rests", "{:,.0f}"),
    ("idle_kib", "KiB an idle client", "{:.2f}"),
    ("idle_rss_kib", "the same by RSS", "{:.2f}"),
    ("after_one_kib", "KiB after one transaction", "{:.2f}"),
    ("after_one_with_server_kib", "the same with the server's", "{:.2f}"),
    ("kernel_both_ends_kib", "kernel KiB, both ends", "{:.1f}"),
    ("tps_alone", "TPS, 1,000 connected", "{:,.0f}"),
    ("tps_turns", "TPS, all in turns", "{:,.0f}"),
    ("show_clients_ms", "SHOW CLIENTS ms", "{:.1f}"),
    ("show_pools_ms", "SHOW POOLS ms", "{:.1f}"),
    ("show_lists_ms", "SHOW LISTS ms", "{:.1f}"),
    ("reload_ms", "RELOAD ms", "{:.1f}"),
    ("metrics_ms", "/metrics ms", "{:.1f}"),
    ("idle_second_ms", "CPU ms in an idle second", "{:.1f}"),
    ("growth", "worst growth for each client", "{:.2f}"),
    ("open", "transactions open", "{:.0f}"),
    ("tps_without", "TPS without", "{:,.0f}"),
    ("share", "share kept", "{:.2f}"),
    ("turns_share", "share kept in turns", "{:.2f}"),
    ("quiet_p99_us", "p99 us without", "{:,.0f}"),
    ("p99_times", "p99 by that without", "{:.2f}"),
    ("p50_us", "p50 us", "{:,.0f}"),
    ("p95_us", "p95 us", "{:,.0f}"),
    ("p99_us", "p99 us", "{:,.0f}"),
    ("p999_us", "p99.9 us", "{:,.0f}"),
    ("load_cpu_us", "generator CPU us", "{:.1f}"),
    ("pgbench_tps", "pgbench TPS", "{:,.0f}"),
    ("pgbench_cpu_us", "pgbench CPU us", "{:.1f}"),
    ("errors", "errors", "{:,.0f}"),
    ("lost", "lost", "{:,.0f}"),
    ("foreign_cpu_share", "foreign cores", "{:.2f}"),
]
# Who is in the plots.
CURVES = ("direct", "pgbouncer", "hawser", INSIDE)
# Figures of which the range over the rounds is shown beside the median.
WITH_RANGE = ("tps", "logins_per_s", "mb_per_s", "cpu_us", "idle_kib")
# A round in which strangers kept so much of a core busy is named under the tables.
NOISY_CORES = 0.15


def table(headings, rows):
    lines = [headings, ["---"] * len(headings), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


def target_table(data):
    rows = []
    for target in TARGETS + (INSIDE_TARGETS if INSIDE in data["contestants"] else []):
        found = measure(data, target)
        middle, met = verdict(target, found)
        measured = "-"
        if middle is not None:
            span = f"{min(found):.2f} to {max(found):.2f}"
            measured = f"{target.form.format(middle)} ({span})"
        sign = "at least" if target.at_least else "at most"
        required = f"{sign} {target.form.format(target.required)}"
        rows.append([target.row, target.what, required, target.form.format(target.aim), measured,
                     met])  # fmt: skip
    return table(["case", "figure", "required", "aim", "measured", "met"], rows)


def curves(data):
    """(file, title, x title, [(label, case)]) of each plot that has data."""
    many = data["settings"]["many_clients"]
    names = sorted({1000, 10_000, 18_000, many})
    wanted = [
        ("read-only", "Read-only, 10 backends", [10, 100, 1000], "prepared"),
        ("many-clients", "Read-only, many clients, 10 backends", names, "prepared"),
        ("contention", "10 rows, 1 % updates, 10 backends", range(100, 1001, 100), "contention"),
    ]
    for file, title, counts, kind in wanted:
        points = [(f"{count:,}", f"{kind}_{count}") for count in counts]
        points = [(label, case) for label, case in points if case in data["cases"]]
        if points:
            yield file, title, points


def point_of(data, case, contestant):
    found = values(data, case, contestant, "tps")
    return (median(found) / 1000, min(found) / 1000, max(found) / 1000) if found else None


def curve_section(data, directory):
    parts = []
    for file, title, points in curves(data):
        series = {}
        for name, about in data["contestants"].items():
            line = [point_of(data, case, name) for _, case in points]
            if any(line) and name in CURVES:
                series[about["title"]] = line
        labels = [label for label, _ in points]
        svg = plot.line_chart(title, "clients", "kTPS", labels, series)
        with open(os.path.join(directory, f"{file}.svg"), "w") as out:
            out.write(svg)
        rows = [
            [name, *("none" if not point else f"{point[0]:.1f}" for point in line)]
            for name, line in series.items()
        ]
        parts.append(f"### {title}\n\n![{title}]({file}.svg)\n\n"
                     + table(["kTPS at clients", *labels], rows))  # fmt: skip
    for kind, _many in (("prepared", True), ("contention", False)):
        cases = [case for case in data["cases"] if case.startswith(f"{kind}_")]
        cases = [case for case in cases if case.split("_")[1].isdigit()]
        cases = [case for case in cases if int(case.split("_")[1]) >= 100]
        for name, title in (("hawser", "Hawser's"), (INSIDE, "Inside the server, the")):
            if shares := flatness(data, cases, name):
                worst = min(shares, key=shares.get)
                met = "met" if shares[worst] >= FLAT else "**not met**"
                parts.append(
                    f"{title} {kind} curve from 100 clients on: its lowest median is "
                    f"{shares[worst]:.2f} of its best (at {worst.split('_')[1]} clients); "
                    f"required {FLAT}: {met}.\n"
                )
    return "\n".join(parts)


def case_section(data, case, title):
    contestants = data["cases"][case]
    present = [
        column for column in COLUMNS
        if any(values(data, case, name, column[0]) for name in contestants)
    ]  # fmt: skip
    present = [
        (name, heading, form) for name, heading, form in present
        if name not in ("errors", "lost")
        or any(sum(values(data, case, contestant, name)) for contestant in contestants)
    ]  # fmt: skip
    rows, notes = [], []
    for contestant, points in contestants.items():
        about = data["contestants"][contestant]["title"]
        cells = [about]
        for name, _, form in present:
            found = values(data, case, contestant, name)
            cell = form.format(median(found)) if found else "-"
            if len(found) > 1 and name in WITH_RANGE:
                cell += f" ({form.format(min(found))} to {form.format(max(found))})"
            cells.append(cell)
        if any(rounds_of(data, case, contestant)):
            rows.append(cells)
        failures = {point["failed"] for point in points if "failed" in point}
        notes += [f"- {about}: {reason}" for reason in sorted(failures)]
        errors = {point["first_error"] for point in points if "first_error" in point}
        notes += [f"- {about}, an error that clients saw: {text}" for text in sorted(errors)]
    text = f"### {title}\n\n"
    if rows:
        text += table(["", *(heading for _, heading, _ in present)], rows)
    return text + ("\n" + "\n".join(notes) + "\n" if notes else "")


def noise_section(data):
    noisy = []
    for case, contestants in data["cases"].items():
        for name, points in contestants.items():
            for number, point in enumerate(points, 1):
                share = point.get("foreign_cpu_share") or 0
                share += point.get("stolen_cpu_share") or 0
                if share > NOISY_CORES:
                    noisy.append(f"{case}/{name}/{number} ({share:.2f})")
    if not noisy:
        return "No round shared the machine with strangers.\n"
    listed = ", ".join(noisy[:40]) + (f" and {len(noisy) - 40} more" if len(noisy) > 40 else "")
    return (f"Rounds in which other programs, or the hypervisor, took more than {NOISY_CORES} "
            f"of a core (case/contestant/round): {listed}.\n")  # fmt: skip


def markdown(data, directory):
    about, settings = data["machine"], data["settings"]
    lines = [
        "# Results",
        "",
        "Written by `bench/pooler/run.py`; [README.md](README.md) says how. "
        "Medians of the rounds, in brackets lowest to highest; ratios are taken within a round.",
        "",
        f"{about['cores']} cores ({about['cpu']}), {about['memory_gib']} GiB, Linux "
        f"{about['kernel']}, PostgreSQL {about['postgres']}, {about['descriptors']:,} descriptors "
        f"to a process; {settings['rounds']} rounds of {settings['seconds']:g} s, scale "
        f"{settings['scale']}, 10 backends. "
        + ("" if about["instructions"] else "This machine does not count instructions."),
        "",
    ]
    missing = [
        f"- {one['title']}: not measured: {one['missing']}"
        for one in data["contestants"].values() if one["missing"]
    ]  # fmt: skip
    if missing:
        lines += [*missing, ""]
    lines += ["## Required of Hawser", "", target_table(data), "## Curves", ""]
    lines += [curve_section(data, directory), "## All cases", ""]
    lines += [case_section(data, case, data["titles"][case]) for case in data["cases"]]
    lines += ["## Noise", "", noise_section(data)]
    return "\n".join(lines)


def write(data, directory):
    """Writes results.json, results.md and the plots."""
    os.makedirs(directory, exist_ok=True)
    with open(os.path.join(directory, "results.json"), "w") as out:
        json.dump(data, out, indent=1)
        out.write("\n")
    text = markdown(data, directory)
    with open(os.path.join(directory, "results.md"), "w") as out:
        out.write(text)
    return text
