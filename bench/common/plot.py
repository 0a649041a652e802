"""Line charts as SVG, without any library: `make bench` needs no more than Python.

A chart has categories on the x axis, a line for each contestant through its medians, and a bar from
its lowest to its highest round at each point.
"""

from html import escape
from math import ceil, floor, log10

WIDTH, HEIGHT = 720, 400
LEFT, RIGHT, TOP, BOTTOM = 70, 20, 56, 52
INK, GRID = "#333333", "#dddddd"
# Okabe and Ito's colours: told apart also by people who see fewer of them.
COLOURS = ["#999999", "#d55e00", "#0072b2", "#009e73", "#cc79a7", "#e69f00", "#56b4e9"]


def step_of(highest, ticks=5):
    """A round distance of grid lines: 1, 2 or 5 times a power of ten."""
    if highest <= 0:
        return 1
    raw = highest / ticks
    power = 10 ** floor(log10(raw))
    return next(factor * power for factor in (1, 2, 5, 10) if raw <= factor * power)


def text(x, y, words, anchor="middle", size=12, extra=""):
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}" '
        f'fill="{INK}" {extra}>{escape(words)}</text>'
    )


def line_chart(title, x_title, y_title, categories, series):
    """The SVG's text.

    categories  labels of the x axis
    series      {name: [(median, lowest, highest) or None for each category]}
    """
    highest = max((point[2] for line in series.values() for point in line if point), default=1)
    step = step_of(highest)
    top_value = step * max(1, ceil(highest / step))
    wide, high = WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM

    def x_of(index):
        return LEFT + wide * (index + 0.5) / len(categories)

    def y_of(value):
        return TOP + high * (1 - value / top_value)

    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
        'font-family="sans-serif">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        text(LEFT, 20, title, "start", 15, 'font-weight="bold"'),
        text(LEFT + wide / 2, HEIGHT - 12, x_title),
        text(16, TOP + high / 2, y_title, extra=f'transform="rotate(-90 16 {TOP + high / 2:.0f})"'),
    ]
    for tick in range(round(top_value / step) + 1):
        y = y_of(tick * step)
        out.append(f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}" '
                   f'stroke="{GRID}"/>')  # fmt: skip
        out.append(text(LEFT - 8, y + 4, f"{tick * step:,.10g}", "end"))
    for index, label in enumerate(categories):
        out.append(text(x_of(index), HEIGHT - BOTTOM + 18, str(label)))
    key_x = LEFT
    for number, (name, line) in enumerate(series.items()):
        colour = COLOURS[number % len(COLOURS)]
        # Bars of several lines at one category stand beside each other.
        aside = (number - (len(series) - 1) / 2) * 5
        there = [(x_of(index) + aside, point) for index, point in enumerate(line) if point]
        path = " ".join(f"{x:.1f},{y_of(point[0]):.1f}" for x, point in there)
        out.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        for x, (middle, low, top) in there:
            out.append(f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{y_of(low):.1f}" y2="{y_of(top):.1f}" '
                       f'stroke="{colour}"/>')  # fmt: skip
            out.append(f'<circle cx="{x:.1f}" cy="{y_of(middle):.1f}" r="3.5" fill="{colour}"/>')
        out.append(f'<circle cx="{key_x + 5}" cy="38" r="4" fill="{colour}"/>')
        out.append(text(key_x + 14, 42, name, "start"))
        key_x += 30 + 7 * len(name)
    out.append("</svg>\n")
    return "\n".join(out)


def rates_chart(title, samples):
    """The SVG's text: the rate of each of several counters, and of all together, over time.

    samples     [(seconds, {name: bytes since it began})], in order of time; names come and go
    """
    lines, total, previous, before = {}, [], {}, None
    for at, counters in samples:
        if before is not None and at > before:
            rate = {name: max(count - previous.get(name, 0), 0) * 8 / 1e6 / (at - before) for name, count in counters.items()}
            for name, value in rate.items():
                lines.setdefault(name, []).append((at, value))
            total.append((at, sum(rate.values())))
        previous, before = counters, at
    highest = max((value for _, value in total), default=1)
    step = step_of(highest)
    top_value = step * max(1, ceil(highest / step))
    last = max((at for at, _ in total), default=1)
    wide, high = WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM

    def points(line):
        return " ".join(f"{LEFT + wide * at / last:.1f},{TOP + high * (1 - value / top_value):.1f}" for at, value in line)

    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        text(LEFT, 20, title, "start", 15, 'font-weight="bold"'),
        text(LEFT, 42, f"black: all together; in colours: each of {len(lines)} paths", "start"),
        text(LEFT + wide / 2, HEIGHT - 12, "seconds"),
        text(16, TOP + high / 2, "Mbit/s", extra=f'transform="rotate(-90 16 {TOP + high / 2:.0f})"'),
    ]
    for tick in range(round(top_value / step) + 1):
        y = TOP + high * (1 - tick * step / top_value)
        out.append(f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}" stroke="{GRID}"/>')
        out.append(text(LEFT - 8, y + 4, f"{tick * step:,.10g}", "end"))
    seconds = step_of(last, 8)
    for tick in range(int(last / seconds) + 1):
        out.append(text(LEFT + wide * tick * seconds / last, HEIGHT - BOTTOM + 18, f"{tick * seconds:.10g}"))
    for number, line in enumerate(lines.values()):
        colour = COLOURS[number % len(COLOURS)]
        out.append(f'<polyline points="{points(line)}" fill="none" stroke="{colour}" stroke-width="1"/>')
    out.append(f'<polyline points="{points(total)}" fill="none" stroke="{INK}" stroke-width="2"/>')
    out.append("</svg>\n")
    return "\n".join(out)
