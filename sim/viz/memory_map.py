"""memory map: the cells of one array, and which thread touched which of them, when."""

from math import prod

import numpy as np

from sim.events import ATOMIC, LOAD, STORE, Home, Index3, Recording, index_text
from sim.viz import Row, Scene, View, cut_notice
from sim.viz.lockstep import block_number, requests, sentence

LOOKS = {LOAD: "load", STORE: "store", ATOMIC: "atomic"}
MOST_CELLS, MOST_STEPS, WIDEST = 1024, 256, 64
LEFT, TOP = 64, 50


def memory_map(recording: Recording, name: str, block: int | Index3 | None = None) -> View:
    """A View of the array called `name`. A shared or local array is that of `block` (the lowest in the trace,
    if None); global memory shows every block's accesses, or those of `block`. A step is what the lanes of one
    warp do together."""
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
    total = 0
    for number in blocks:
        for request in requests(recording, number):
            if recording.array[request.rows[0]] == array:
                total += 1
                if total <= MOST_STEPS:
                    scene.steps.append(
                        (sentence(recording, request), changes(recording, request.rows, first, shown))
                    )
    if not scene.steps:
        raise ValueError(f"block {block} never touched {name}")
    if total > MOST_STEPS:
        scene.notices.append(f"The first {MOST_STEPS} of {total:,} steps are drawn.")
    scene.notices += cut_notice(recording)
    return scene.view()


def changes(recording: Recording, rows: np.ndarray, first: int, shown: int) -> list[Row]:
    """(cell, look, thread) for each access whose element is among those shown."""
    cells = (recording.element[rows] - first).tolist()
    threads, actions = recording.thread[rows].tolist(), recording.action[rows].tolist()
    return [
        (cell, LOOKS[action], thread)
        for cell, thread, action in zip(cells, threads, actions)
        if 0 <= cell < shown
    ]


def grid(title: str, home: Home, touched: np.ndarray) -> tuple[Scene, int, int]:
    """(a Scene with a cell for each element, the first element that is shown, how many are)."""
    columns = (
        home.shape[-1]
        if len(home.shape) > 1 and home.shape[-1] <= WIDEST
        else min(32, max(prod(home.shape), 1))
    )
    elements, side = prod(home.shape), 22 if columns <= 33 else 14
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
    scene.legend(
        8,
        *[
            (
                look,
                {"load": "loaded by thread", "store": "stored by thread", "atomic": "changed atomically"}[
                    look
                ],
            )
            for look in LOOKS.values()
        ],
    )
    if shown < elements:
        scene.notices.append(
            f"{shown:,} of {elements:,} elements are drawn, from the first that was touched."
        )
    return scene, first, shown


def row_name(home: Home, element: int) -> str:
    """The indices that the elements of a row share, or the first element's index if there is only one."""
    index = [int(i) for i in np.unravel_index(element, home.shape)] if home.shape else [0]
    return (
        str(index[0])
        if len(index) == 1
        else ", ".join(map(str, index[:-1])) + ("" if home.shape[-1] <= WIDEST else f", {index[-1]}")
    )
