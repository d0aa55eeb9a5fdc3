"""The memory map: the elements of one array, and which thread accessed each element, step by step."""

from math import prod

import numpy as np

from sim.events import ATOMIC, LOAD, STORE, Index3, index_text
from sim.recording import RecordedArray, Recording
from sim.viz import Row, Scene, View
from sim.viz.lockstep import block_number, requests, sentence

LOOKS = {LOAD: "load", STORE: "store", ATOMIC: "atomic"}
LEGEND = {"load": "loaded by thread", "store": "stored by thread", "atomic": "changed atomically"}
MOST_CELLS, MOST_STEPS, WIDEST = 1024, 256, 64
LEFT, TOP = 64, 50


def memory_map(recording: Recording, name: str, block: int | Index3 | None = None) -> View:
    """Return a View of the array called `name`. Each step is one warp request.

    For shared and local memory, the map shows the array of `block`, by default the lowest block in the trace.
    For global memory, it shows the accesses by all blocks, or only by `block`.

    Raise ValueError if the trace does not contain the array.
    """
    array = next((number for number, home in enumerate(recording.arrays) if home.name == name), None)
    if array is None:
        names = ", ".join(home.name for home in recording.arrays)
        raise ValueError(f"no array {name!r} in the trace; it holds {names or 'none'}")
    home = recording.arrays[array]
    everywhere = home.space in ("global", "const") and block is None
    blocks = range(len(recording.blocks)) if everywhere else [block_number(recording, block)]
    where = "" if everywhere else f" in block {index_text(recording.blocks[blocks[0]])}"
    scene, first, shown = grid(
        f"{home.space} array {name}{where}: who touched which element",
        home,
        recording.element[recording.array == array],
    )
    made = (request for number in blocks for request in requests(recording, number))
    found = [request for request in made if recording.array[request.rows[0]] == array]
    if not found:
        raise ValueError(f"block {block} never accessed {name}")
    scene.steps = [
        (sentence(recording, request), changes(recording, request.rows, first, shown))
        for request in found[:MOST_STEPS]
    ]
    return scene.of_trace(recording, MOST_STEPS, len(found), "steps")


def changes(recording: Recording, rows: np.ndarray, first: int, shown: int) -> list[Row]:
    """Return (cell, look, thread) for each access to a visible element."""
    columns = recording.element[rows] - first, recording.action[rows], recording.thread[rows]
    accesses = zip(*(column.tolist() for column in columns))
    return [(cell, LOOKS[action], thread) for cell, action, thread in accesses if 0 <= cell < shown]


def grid(title: str, home: RecordedArray, touched: np.ndarray) -> tuple[Scene, int, int]:
    """Return (a Scene with one cell per visible element, the index of the first visible element, the number
    of visible elements)."""
    elements, rowwise = prod(home.shape), len(home.shape) > 1 and home.shape[-1] <= WIDEST
    # A multi-dimensional array keeps its rows, unless they are too wide.
    columns = home.shape[-1] if rowwise else min(32, max(elements, 1))
    side = 22 if columns <= 33 else 14
    # A large array is drawn from the row of the first accessed element.
    first = int(touched.min()) // columns * columns if elements > MOST_CELLS else 0
    shown = min(elements - first, MOST_CELLS // columns * columns)
    rows = -(-shown // columns)
    scene = Scene(title, max(LEFT + columns * side + 8, 470), TOP + rows * side + 8)
    scene.cells = [
        (LEFT + i % columns * side, TOP + i // columns * side, side - 2, side - 2) for i in range(shown)
    ]
    scene.labels = [
        (LEFT + column * side + side // 2 - 1, TOP - 6, column, "middle")
        for column in range(0, columns, 1 if columns <= 16 else 4 if side == 22 else 8)
    ]
    scene.labels += [
        (LEFT - 8, TOP + row * side + side // 2 + 3, row_name(home, first + row * columns), "end")
        for row in range(rows)
    ]
    scene.legend(8, *LEGEND.items())
    if shown < elements:
        notice = f"{shown:,} of {elements:,} elements are drawn, from the first one that was accessed."
        scene.notices.append(notice)
    return scene, first, shown


def row_name(home: RecordedArray, element: int) -> str:
    """Return the label of a row: the indices that its elements share, or the index of its only element."""
    index = [int(i) for i in np.unravel_index(element, home.shape)] if home.shape else [0]
    return ", ".join(map(str, index[:-1] if len(index) > 1 and home.shape[-1] <= WIDEST else index))
