"""Figures of tensor-core operands: the lane that holds each element of A, B and D in `mma.sync.m16n8k16`, and
the shared-memory banks of the rows that `ldmatrix` reads."""

import numpy as np

from sim.events import LOAD
from sim.viz import Scene

SIDE, GAP = 17, 26
LEFT, TOP = 40, 58
SHAPES = {"A": (16, 16), "B": (16, 8), "D": (16, 8)}
CORNERS = {
    "A": (LEFT, TOP + 16 * SIDE + GAP),
    "B": (LEFT + 16 * SIDE + GAP, TOP),
    "D": (LEFT + 16 * SIDE + GAP, TOP + 16 * SIDE + GAP),
}
LOOKS = "load", "store", "atomic", "active"  # colours of the four lanes of a quad
BANKS, WORD = 32, 4


# --- lanes --------------------------------------------------------------------------------------------------


def lanes_of(report):
    """Return the lane that held each element in one warp, {"A": {(row, column): lane}, "B": ..., "D": ...}.

    The traced launch must name its arrays a (32-bit words of A's rows), b (words of B's columns) and out (D).
    """
    trace, held = report.trace, {}
    names = [home.name for home in trace.arrays]
    for matrix, name in {"A": "a", "B": "b", "D": "out"}.items():
        home = names.index(name)
        rows = trace.array == home
        index = np.unravel_index(trace.element[rows], trace.arrays[home].shape)
        lanes = trace.thread[rows].tolist()
        held[matrix] = {
            cell: lane
            for row, column, lane in zip(*(axis.tolist() for axis in index), lanes, strict=True)
            for cell in cells_of(matrix, row, column)
        }
    return held


def cells_of(matrix, row, column):
    """Return the matrix cells that one array element covers.

    A 32-bit word holds two neighbours in a row of A or in a column of B.
    """
    if matrix == "D":
        return [(row, column)]
    pair = [(row, 2 * column), (row, 2 * column + 1)]
    return pair if matrix == "A" else [cell[::-1] for cell in pair]


def lane_map(report, title="which lane holds what"):
    """Return a View of `lanes_of`: all lanes at once, then each lane separately."""
    held = lanes_of(report)
    everything = [
        (matrix, cell, LOOKS[lane % 4], lane)
        for matrix, cells in held.items()
        for cell, lane in cells.items()
    ]
    steps = [("all lanes: the number in a cell is the lane that holds it", everything)]
    for lane in range(32):
        mine = [each for each in everything if each[3] == lane]
        steps.append((f"lane {lane}: {in_words(mine)}", mine))
    return view(title, steps)


def registers(*lanes):
    """Return a View of the elements that the given lanes hold, labelled with their registers as in the PTX
    ISA."""
    steps = []
    for lane in lanes:
        g, t = divmod(lane, 4)
        held = [
            ("A", (g + 8 * (r % 2), 2 * t + 8 * (r // 2) + e), f"a{r}") for r in range(4) for e in range(2)
        ]
        held += [("B", (2 * t + 8 * r + e, g), f"b{r}") for r in range(2) for e in range(2)]
        held += [("D", (g + 8 * (i // 2), 2 * t + i % 2), f"d{i}") for i in range(4)]
        cells = [(matrix, cell, LOOKS[lane % 4], name) for matrix, cell, name in held]
        steps.append((f"lane {lane}: {in_words(cells, named=True)}", cells))
    return view(f"what lanes {', '.join(map(str, lanes))} hold, and in which register", steps)


def in_words(cells, named=False):
    """Format (matrix, cell, look, mark) entries as "A[1, 4], A[1, 5], ...; B ...; D ...".

    named: append each entry's mark.
    """
    said = {matrix: [] for matrix in SHAPES}
    for matrix, (row, column), _, mark in cells:
        said[matrix].append(f"{mark} = " * named + f"{matrix}[{row}, {column}]")
    return "; ".join(", ".join(of) for of in said.values() if of) or "nothing"


def view(title, steps):
    """Return a Scene of the three matrices, arranged as in a matrix product on paper: B above D, A to its
    left."""
    columns, rows = 24 * SIDE + GAP, 32 * SIDE + GAP
    scene = Scene(title, LEFT + columns + 8, TOP + rows + 8, adds=False)
    scene.labels.append((8, 14, "colours: the four lanes of a quad, lane % 4", ""))
    place = {}
    for matrix, (height, width) in SHAPES.items():
        x, y = CORNERS[matrix]
        scene.labels.append((x - 20, y - 8, matrix, ""))
        scene.labels += [(x + SIDE * c + 8, y - 6, c, "middle") for c in range(0, width, 4)]
        scene.labels += [(x - 6, y + SIDE * r + 12, r, "end") for r in range(0, height, 4)]
        for cell in np.ndindex(height, width):
            place[matrix, cell] = len(scene.cells)
            scene.cells.append((x + SIDE * cell[1], y + SIDE * cell[0], SIDE - 2, SIDE - 2))
    for words, cells in steps:
        scene.steps.append((words, [(place[matrix, cell], look, mark) for matrix, cell, look, mark in cells]))
    return scene.view()


# --- banks --------------------------------------------------------------------------------------------------


def bank_map(report, name, title):
    """Return a View of the first `ldmatrix_x4` by warp 0 from the shared array `name`. For each of the four
    matrices, it shows the banks of the eight 16-byte rows and the number of wavefronts."""
    trace = report.trace
    home = [each.name for each in trace.arrays].index(name)
    rows = (trace.array == home) & (trace.action == LOAD) & (trace.thread < BANKS)
    thread, address = trace.thread[rows], trace.address[rows]
    starts = [int(address[thread == lane][0]) for lane in range(32)]
    scene = Scene(title, LEFT + 20 + BANKS * SIDE, TOP + 10 * SIDE, adds=False)
    scene.legend(6, ("load", "served at once"), ("clash", "two or more words of one bank"))
    scene.labels += [(LEFT + 20 + SIDE * bank + 8, TOP - 6, bank, "middle") for bank in range(0, BANKS, 4)]
    scene.labels += [(LEFT + 12, TOP + SIDE * row + 12, f"row {row}", "end") for row in range(8)]
    scene.labels.append((LEFT + 12, TOP + SIDE * 8 + 20, "words", "end"))
    scene.cells = [
        (LEFT + 20 + SIDE * bank, TOP + SIDE * row + 8 * (row == 8), SIDE - 2, SIDE - 2)
        for row in range(9)
        for bank in range(BANKS)
    ]
    scene.steps = [bank_step(number, starts[8 * number : 8 * number + 8]) for number in range(4)]
    return scene.view()


def bank_step(number, starts):
    """Return (words, looks) for one matrix whose rows begin at these byte addresses."""
    asked = [(row, start // WORD % BANKS + word) for row, start in enumerate(starts) for word in range(4)]
    wanted = np.bincount([bank for _, bank in asked], minlength=BANKS).tolist()
    look = ["clash" if count > 1 else "load" for count in wanted]
    looks = [(row * BANKS + bank, look[bank], "") for row, bank in asked]
    looks += [(8 * BANKS + bank, look[bank], count) for bank, count in enumerate(wanted) if count]
    wavefronts = max(wanted)
    lanes, plural = f"lanes {8 * number} to {8 * number + 7}", "s" * (wavefronts > 1)
    return f"matrix {number}, {lanes}: {wavefronts} wavefront{plural}", looks
