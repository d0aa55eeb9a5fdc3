"""Figure of a tile in shared memory: where the 16-byte chunks of eight rows lie, and in which banks."""

import numpy as np

from sim import simulate
from sim.viz import Scene

ROWS, CHUNKS, ELEMENTS = 8, 8, 8  # rows in the figure, chunks in a row, 16-bit elements in a chunk
BANKS_OF_A_CHUNK = 4
SIDE, LEFT, TOP = 44, 70, 64


def chunk_map(place, title):
    """Return a View of the positions of all chunks, then of each column of chunks with its wavefronts.

    place(row, column) returns the position, within a row of 64 16-bit elements, at which an element is
    stored. It may be a device function.
    """
    stored = positions_of(place)
    scene = Scene(title, LEFT + SIDE * CHUNKS + 12, TOP + SIDE // 2 * ROWS + 12, adds=False)
    scene.legend(6, ("load", "served at once"), ("clash", "two or more chunks in the same banks"))
    for chunk in range(CHUNKS):
        first = BANKS_OF_A_CHUNK * chunk
        banks = f"{first}–{first + BANKS_OF_A_CHUNK - 1}"
        scene.labels.append((LEFT + SIDE * chunk + SIDE // 2, TOP - 8, banks, "middle"))
    scene.labels.append((LEFT - 8, TOP - 8, "banks", "end"))
    for row in range(ROWS):
        scene.labels.append((LEFT - 8, TOP + SIDE // 2 * row + 15, f"row {row}", "end"))
    scene.cells = [
        (LEFT + SIDE * position, TOP + SIDE // 2 * row, SIDE - 2, SIDE // 2 - 2)
        for row in range(ROWS)
        for position in range(CHUNKS)
    ]
    everything = [(CHUNKS * row + to, "load", chunk) for (row, chunk), to in stored.items()]
    scene.steps.append(("the number in a cell is the chunk of its row that is stored there", everything))
    for chunk in range(CHUNKS):
        positions = [stored[row, chunk] for row in range(ROWS)]
        wavefronts = max(positions.count(position) for position in positions)
        cells = [
            (CHUNKS * row + to, "clash" if positions.count(to) > 1 else "load", chunk)
            for row, to in enumerate(positions)
        ]
        s = "s" * (wavefronts > 1)
        scene.steps.append((f"chunk {chunk} of the eight rows: {wavefronts} wavefront{s}", cells))
    return scene.view()


def positions_of(place):
    """Return {(row, chunk): the position, in chunks, at which place stores this chunk of the row}.

    A device function may call others, so it runs in the simulator."""

    def kernel(columns):
        for row in range(ROWS):
            for chunk in range(CHUNKS):
                columns[row, chunk] = place(row, ELEMENTS * chunk)

    columns = np.zeros((ROWS, CHUNKS), np.int64)
    simulate(kernel)[1, 1](columns)
    return {index: int(column) // ELEMENTS for index, column in np.ndenumerate(columns)}
