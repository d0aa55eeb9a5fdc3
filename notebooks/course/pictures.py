"""Figures that several lessons share: rows of squares, timelines, and the stages from a Python kernel to
machine code."""

from operator import itemgetter

import matplotlib.pyplot as plt
from matplotlib.colors import to_rgb

from course.figures import BLUE, GREEN, ORANGE
from sim.viz.lockstep import requests

WIDE = 11  # width in inches, which is 880 pixels in a notebook
PALE = "#e8e8e8"


# Rows of squares --------------------------------------------------------------------------------------------


def draw_cells(columns, rows, framed=(), numbers=True):
    """Draw one square per number; larger numbers are darker, and 0 is pale.

    columns: one heading per column.
    rows: (label, numbers) pairs; a row without numbers is a heading.
    framed: columns to frame.
    numbers: whether to print the numbers in the squares.
    """
    side = 0.1 * max(len(words) for words, values in rows if len(values)) + 0.3
    square, high = (WIDE - side) / len(columns), 0.32
    most = max(max(values) for _, values in rows if len(values))
    figure = plt.figure(figsize=(WIDE, high * (len(rows) + 1)))
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set(xlim=(-side / square, len(columns)), ylim=(len(rows), -1))
    axes.axis("off")
    for x, word in enumerate(columns):
        axes.text(x + 0.5, -0.5, word, ha="center", va="center", fontsize=10 if square < 0.35 else 13)
    for y, (words, values) in enumerate(rows):
        weight, family = ("normal", "monospace") if len(values) else ("bold", "sans-serif")
        axes.text(-side / square, y + 0.5, words, va="center", fontsize=11, weight=weight, family=family)
        for x, value in enumerate(values):
            draw_square(axes, x, y, value / most, f"{value:g}" if numbers else "")
    if framed:
        frame = plt.Rectangle((min(framed), 0), len(framed), len(rows))
        frame.set(fill=False, edgecolor=ORANGE, linewidth=3)
        axes.add_patch(frame)
    return figure


def draw_square(axes, x, y, shade, word):
    """Draw a square with a text, shaded from pale (0) to blue (1)."""
    colour = [(1 - shade) * pale + shade * full for pale, full in zip(to_rgb(PALE), to_rgb(BLUE))]
    axes.add_patch(plt.Rectangle((x + 0.06, y + 0.06), 0.88, 0.88, facecolor=colour))
    ink = "white" if shade > 0.9 else "black"
    axes.text(x + 0.5, y + 0.52, word, ha="center", va="center", fontsize=11, color=ink)


def draw_divergence(reports):
    """Draw which lanes execute each line together.

    reports: {heading: report of a traced launch of one block}. Time runs downwards, and inactive lanes are
    pale.
    """
    rows = []
    for heading, report in reports.items():
        for warp, moments in moments_of(report.recording).items():
            rows.append((f"{heading}: warp {warp}", ()))
            rows += [
                (f"{time}  {source}", [int(lane in lanes) for lane in range(report.recording.spec.warp_size)])
                for time, (_, source, lanes) in enumerate(moments, 1)
            ]
    return draw_cells(range(report.recording.spec.warp_size), rows, numbers=False)


def moments_of(recording):
    """Return {warp: [(line, source, active lanes)]} for the first block of a trace."""
    found = {}
    for request in requests(recording, 0):
        site = recording[request.rows[0]].site
        lanes = set((recording.thread[request.rows] % recording.spec.warp_size).tolist())
        found.setdefault(request.warp, []).append((site.line, site.source, lanes))
    return {warp: sorted(found[warp], key=itemgetter(0)) for warp in sorted(found)}


# Timelines --------------------------------------------------------------------------------------------------


def draw_times(rows, marks=()):
    """Draw a timeline with one row of bars per stream or thread.

    rows: {name: [(begin, end, words, colour)]}, from top to bottom; the colour None means waiting.
    marks: (time, name of the row that reaches the mark, name of the row that waits for it).
    """
    figure, axes = plt.subplots(figsize=(WIDE, 0.3 + 0.85 * len(rows)))
    height = {name: -place for place, name in enumerate(rows)}
    for name, bars in rows.items():
        for begin, end, words, colour in bars:
            draw_bar(axes, height[name], begin, end, words, colour)
    for time, reached, waiting in marks:
        arrow = {"arrowstyle": "-|>", "linewidth": 2.5, "color": "black"}
        axes.annotate("", xy=(time, height[waiting]), xytext=(time, height[reached]), arrowprops=arrow)
        axes.plot(time, height[reached], marker="D", markersize=11, color="black")
        axes.text(time + 0.2, height[reached], "the mark", va="center", fontsize=12)
    axes.set(yticks=[*height.values()], xticks=[], xlabel="time")
    axes.set_yticklabels([*height], fontsize=12)
    axes.spines[["top", "right"]].set_visible(False)
    return figure


def draw_bar(axes, height, begin, end, words, colour):
    """Draw one bar with its text, hatched if it represents waiting."""
    axes.barh(
        height,
        end - begin,
        left=begin,
        color=colour or "white",
        edgecolor="black" if colour else BLUE,
        hatch="" if colour else "//",
    )
    ground = {} if colour else {"bbox": {"facecolor": "white", "edgecolor": "none"}}
    ink = "white" if colour == BLUE else "black"
    middle = (begin + end) / 2
    axes.text(middle, height, words, ha="center", va="center", fontsize=11, color=ink, **ground)


# Stages of compilation --------------------------------------------------------------------------------------

STATIONS = (
    "your function,\nin Python",
    "its types, from\nits arguments' types",
    "PTX: instructions\nto be read",
    "machine code\nfor one GPU",
)
MAKERS = "Numba,\nat the\nfirst\nlaunch", "Numba\nand\nlibNVVM", "the\nassembler"


def draw_way(lines=("", "", "", "")):
    """Draw the stages of a kernel from Python to the GPU, each with a line of code, and the path to sim."""
    figure = plt.figure(figsize=(WIDE, 2.7))
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set(xlim=(-1.15, 10.15), ylim=(-1.5, 0.85))
    axes.axis("off")
    for place, (words, line) in enumerate(zip(STATIONS, lines)):
        box = plt.Rectangle((3 * place - 1.1, -0.65), 2.2, 1.3)
        box.set(facecolor="white", edgecolor=GREEN if place == 3 else BLUE, linewidth=2)
        axes.add_patch(box)
        axes.text(3 * place, 0.28 if line else 0, words, ha="center", va="center", fontsize=12)
        axes.text(3 * place, -0.33, line, ha="center", va="center", fontsize=10, family="monospace")
    arrow = {"arrowstyle": "->", "linewidth": 2}
    for place, maker in enumerate(MAKERS):
        axes.annotate("", xy=(3 * place + 1.9, 0), xytext=(3 * place + 1.1, 0), arrowprops=arrow)
        axes.text(3 * place + 1.5, 0.12, maker, ha="center", va="bottom", fontsize=10)
    axes.annotate("", xy=(1.3, -1.3), xytext=(0, -0.65), arrowprops=arrow | {"color": ORANGE})
    axes.text(
        1.45, -1.3, "simulate(kernel): Python runs each line, for each thread", va="center", fontsize=12
    )
    return figure
