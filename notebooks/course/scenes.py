"""Figures with a slider that show a learner's run: tiles that move between global memory and the chip, and
the key tile that slides past the threads of a block."""

import math
from collections import Counter
from dataclasses import dataclass, field
from itertools import zip_longest

import numpy as np

from kernels.reference.tiled import Traffic, standard
from sim.events import LOAD, STORE
from sim.nouns import plural
from sim.viz import Scene, ranges

# Between global memory and the chip -------------------------------------------------------------------------

ARRAYS = ("Q", "K", "V", "O", "m, l")
# maximum number of lines in an arrow, each two pixels thick; a full arrow represents a tile of width d
LANES = 8
BAR = 64  # number of segments in the bar that shows the total data moved
# (whether elements are read, whether elements are written) -> look
MOVED = {(True, False): "load", (False, True): "store", (True, True): "atomic"}


@dataclass
class Step:
    """Data movement for one tile of scores.

    It contains the elements read and written per array, the query and key tiles, the elements written earlier
    to initialise arrays, and the running total.
    """

    read: Counter = field(default_factory=Counter)
    written: Counter = field(default_factory=Counter)
    queries: int = 0
    keys: int = 0
    before: int = 0
    total: int = 0

    def tile(self, name):
        """Return the tile index that this step uses in an array."""
        return self.keys if name in ("K", "V") else self.queries


class SteppedTraffic(Traffic):
    """Traffic that also records each step in execution order.

    Tiles have `size` rows, and d must be at least 2.
    """

    def __init__(self, q, k, v, size):
        super().__init__()
        self.names = {id(q): "Q", id(k): "K", id(v): "V"}
        self.size, self.steps, self.at = size, [Step()], {"Q": 0, "K": 0}

    def name(self, array):
        return self.names.get(id(array)) or ("m, l" if array.shape[1:] in ((), (1,)) else "O")

    def load(self, array, rows):
        name, step = self.name(array), self.steps[-1]
        if step.written or (name in ("Q", "K", "V") and name in step.read):
            self.steps.append(Step())
        tile = super().load(array, rows)
        self.note(self.steps[-1].read, name, rows, tile)
        return tile

    def store(self, array, rows, tile):
        super().store(array, rows, tile)
        self.note(self.steps[-1].written, self.name(array), rows, tile)

    def note(self, moved, name, rows, tile):
        moved[name] += tile.numel()
        if name in self.at:
            self.at[name] = (rows.start or 0) // self.size
        step = self.steps[-1]
        step.queries, step.keys, step.total = self.at["Q"], self.at["K"], self.moved


def tile_by_tile(orders, q, k, v, size):
    """Return a View of the data that each loop order moves per tile.

    The thickness of an arrow represents the number of elements.

    orders: {name: order(q, k, v, rows, columns, traffic)}.
    q, k, v: arrays of shape (N, d), d >= 2.
    size: number of rows and of columns in a tile.
    """
    runs = {name: stepped(order, q, k, v, size) for name, order in orders.items()}
    plain = Traffic()
    standard(q, k, v, plain)
    most = max(plain.moved, *(steps[-1].total for steps in runs.values()))
    n, d = q.shape
    title = f"N = {n}, d = {d}, tiles of {size}: an arrow is as thick as the numbers that move"
    scene = Scene(title, 660, 30 + 182 * len(runs), adds=False, empty="none")
    scene.legend(
        6,
        ("load", "read"),
        ("store", "written"),
        ("atomic", "read and written"),
        ("active", "stays on the chip"),
        ("global-load", "scores now"),
        ("rail", "scores forgotten"),
    )
    panels = [
        Panel(scene, 44 + 182 * number, name, steps, -(-n // size), size * d / LANES)
        for number, (name, steps) in enumerate(runs.items())
    ]
    for panel in panels:
        panel.add_bar(most, plain.moved)
    for steps in zip_longest(*runs.values()):
        told = [panel.show(step) for panel, step in zip(panels, steps) if step]
        scene.steps.append(("\n".join(words for words, _ in told), [row for _, rows in told for row in rows]))
    return scene.view()


def stepped(order, q, k, v, size):
    """Run one loop order and return its Steps."""
    traffic = SteppedTraffic(q, k, v, size)
    order(q, k, v, size, size, traffic)
    first = traffic.steps[0]
    first.before = first.total - first.read.total() - first.written.total()
    return traffic.steps


class Panel:
    """The part of the figure for one loop order: global memory, arrows, the chip, the scores, and a bar for
    the total data moved."""

    def __init__(self, scene, top, title, steps, tiles, lane):
        self.scene, self.top, self.title, self.lane, self.done = scene, top, title, lane, {}
        used = {name for step in steps for name in step.read | step.written}
        scene.labels += [
            (8, top, title, ""),
            (52, top + 18, "global memory", ""),
            (366, top + 18, "chip", ""),
        ]
        scene.labels += [(206, top + 18, "read ▶", ""), (290, top + 18, "◀ written", "")]
        scene.labels += [(44, self.y(row) + 12, name, "end") for row, name in enumerate(ARRAYS)]
        scene.labels += [(480 + 40 * j, top + 18, f"K{j}", "") for j in range(tiles)]
        scene.labels += [(464, self.y(i) + 12, f"Q{i}", "end") for i in range(tiles)]
        rows = list(enumerate(ARRAYS))
        self.home = {
            (name, i): self.cell(52 + 34 * i, self.y(row), 32, 16)
            for row, name in rows
            for i in range(tiles)
            if name in used
        }
        scene.labels += [
            (52, self.y(row) + 12, "never in global memory", "") for row, name in rows if name not in used
        ]
        self.reads, self.writes = (
            {name: self.arrow(x, self.y(row), tip) for row, name in rows} for x, tip in ((204, 3), (290, -3))
        )
        self.chip = {name: self.cell(366, self.y(row), 50, 16) for row, name in rows}
        self.scores = {
            (i, j): self.cell(470 + 40 * j, self.y(i), 38, 16) for i in range(tiles) for j in range(tiles)
        }

    def y(self, row):
        return self.top + 24 + 22 * row

    def cell(self, *place):
        self.scene.cells.append(place)
        return len(self.scene.cells) - 1

    def arrow(self, x, y, tip):
        """Return the line segments that draw an arrow, ordered from the middle outwards.

        The arrow points right, or left if `tip` is negative.
        """
        reach = [min(lane, LANES - 1 - lane) * tip for lane in range(LANES)]
        lanes = [
            self.cell(x + min(0, ahead), y + 2 * lane, 60 + abs(ahead), 2) for lane, ahead in enumerate(reach)
        ]
        return sorted(lanes, key=lambda cell: abs(2 * (cell - lanes[0]) + 1 - LANES))

    def add_bar(self, most, plain):
        """Add a bar for up to `most` elements, with a mark at the amount that the standard algorithm
        moves."""
        self.most, y = most, self.y(len(ARRAYS)) + 2
        self.bar = [self.cell(100 + 8 * piece, y, 8, 12) for piece in range(BAR)]
        mark = 100 + round(8 * BAR * plain / most)
        self.scene.boxes.append(("line", mark, y - 2, 2, 16))
        self.scene.labels += [
            (94, y + 10, "moved so far", "end"),
            (mark, y + 25, f"standard: {plain:,}", "middle"),
        ]

    def show(self, step):
        """Return one step as (description, looks)."""
        rows = [(cell, *look) for cell, look in self.done.items()]
        rows += [(cell, "empty", "") for cell in self.home.values()]
        for name in ARRAYS:
            i, read, written = step.tile(name), step.read[name], step.written[name]
            label = f"m{i}, l{i}" if name == "m, l" else f"{name}{i}"
            rows.append((self.chip[name], "load" if read else "active", label))
            if read or written:
                rows.append((self.home[name, i], MOVED[bool(read), bool(written)], label))
            rows += [(cell, "load", "") for cell in self.reads[name][: self.lanes(read)]]
            rows += [(cell, "store", "") for cell in self.writes[name][: self.lanes(written)]]
        now = self.scores[step.queries, step.keys]
        rows += [(cell, "empty", "") for cell in self.scores.values() if cell not in self.done]
        rows.append((now, "global-load", "now"))
        rows += [(cell, "global-store", "") for cell in self.bar[: round(BAR * step.total / self.most)]]
        self.done[now] = "rail", ""
        return self.words(step), rows

    def lanes(self, numbers):
        """Return the width of the arrow, in lines, for this number of elements."""
        return math.ceil(numbers / self.lane)

    def words(self, step):
        def moved(counter):
            return f"{counter.total()} ({'; '.join(counter)})" if counter else "nothing"

        set_up = f"{step.before} written to set up m, l and O; " if step.before else ""
        return (
            f"{self.title}: {set_up}Q{step.queries} meets K{step.keys}; read {moved(step.read)}, "
            f"written {moved(step.written)}; {plural(step.total, 'number')} so far"
        )


# The tile of keys that slides past the threads --------------------------------------------------------------

SIDE, KEYS, TOP = 26, 196, 58


def sliding_tile(recording, d, columns):
    """Return a View of the first block in a launch of lesson 05's kernel.

    Each row is a thread with its query, each column is a key, and each step is an epoch.

    recording: trace of the launch.
    d: elements per row.
    columns: keys per tile, at the start of shared memory.
    """
    threads, home = recording.threads[0], {array.name: array for array in recording.arrays}
    keys, first = home["k"].shape[0] // d, recording.blocks[0][0] * threads
    right = KEYS + SIDE * d * keys + 16
    scene = Scene(
        f"block {recording.blocks[0][0]}: a thread is a query, and the tile of {columns} keys slides past",
        right + SIDE * d + 12,
        TOP + SIDE * (threads + 2) + 34,
        adds=False,
    )
    scene.legend(
        6,
        ("global-load", "fetched, by the thread with this number"),
        ("active", "in use"),
        ("rail", "used"),
        ("store", "written"),
    )
    below = TOP + 2 * SIDE + 24
    places = {}  # (array, index) or (thread, key) -> cell
    for row, name in enumerate("kv"):
        places |= line_of(scene, name, range(keys * d), KEYS, TOP + SIDE * row)
    for t in range(threads):
        own = range((first + t) * d, (first + t + 1) * d)
        y = below + SIDE * t
        places |= line_of(scene, "q", own, 128, y) | line_of(scene, "o", own, right, y)
        for key in range(keys):
            places[t, key] = len(scene.cells)
            scene.cells.append((KEYS + SIDE * d * key, y, SIDE * d - 2, SIDE - 2))
        scene.labels.append((120, y + 16, f"thread {t}, query {first + t}", "end"))
    scene.labels += [(188, TOP + SIDE * row + 16, name, "end") for row, name in enumerate("KV")]
    scene.labels += [(KEYS + SIDE * d * key, TOP - 8, f"key {key}", "") for key in range(keys)]
    scene.labels += [
        (x, below - 8, name, "") for x, name in ((128, "Q"), (KEYS, "a query meets a key"), (right, "O"))
    ]
    scene.steps = list(epochs(recording, places, d, columns))
    return scene.view()


def line_of(scene, name, numbers, x, y):
    """Add consecutive elements of a flat array to the scene, from left to right.

    Return {(name, index): cell}.
    """
    start = len(scene.cells)
    scene.cells += [(x + SIDE * place, y, SIDE - 2, SIDE - 2) for place in range(len(numbers))]
    return {(name, number): start + place for place, number in enumerate(numbers)}


def epochs(recording, places, d, columns):
    """Yield (description of the epoch, looks of its cells) for each step."""
    used, tile, start = {}, set(), 0
    for epoch in np.unique(recording.epoch[recording.block == 0]).tolist():
        fetched = accesses(recording, epoch, LOAD, "global")
        written = accesses(recording, epoch, STORE, "global")
        coming = {place for place in fetched if place[0] in ("k", "v")}
        if coming:
            used |= dict.fromkeys(tile, ("rail", ""))
            tile, start = coming, min(number for _, number in coming) // d
        met = {
            (thread, start + number // d)
            for _, number, thread in touched(recording, epoch, LOAD, "shared")
            if number < columns * d and (thread, start + number // d) in places
        }
        looks = used | dict.fromkeys(tile if met else (), ("active", ""))
        looks |= {place: ("global-load", thread) for place, thread in fetched.items()}
        looks |= dict.fromkeys(met, ("active", "")) | dict.fromkeys(written, ("store", ""))
        used |= dict.fromkeys(met | {place for place in fetched if place[0] == "q"}, ("rail", ""))
        words = in_words(epoch, fetched, met, written, d)
        yield words, sorted((places[place], *look) for place, look in looks.items() if place in places)


def in_words(epoch, fetched, met, written, d):
    parts = []
    rows = {name: ranges({n // d for array, n in fetched if array == name}) for name in ("q", "k")}
    coming = [f"{word} {rows[name]}" for name, word in (("q", "queries"), ("k", "keys")) if rows[name]]
    if coming:
        parts.append(f"the threads fetch {' and '.join(coming)} together")
    if met:
        threads = ranges({thread for thread, _ in met})
        parts.append(f"the queries of threads {threads} meet keys {ranges({key for _, key in met})}")
    if written:
        parts.append(f"each thread writes its row of O: rows {ranges({n // d for _, n in written})}")
    return f"epoch {epoch}: " + ("; ".join(parts) or "no key moves")


def accesses(recording, epoch, action, space):
    """Return {(array, element): thread} for one kind of access to one memory space in an epoch."""
    return {(name, number): thread for name, number, thread in touched(recording, epoch, action, space)}


def touched(recording, epoch, action, space):
    """Yield (array, element, thread) for each access of one kind to one memory space in an epoch of the first
    block."""
    rows = (recording.block == 0) & (recording.epoch == epoch) & (recording.action == action)
    for array, number, thread in zip(
        recording.array[rows].tolist(), recording.element[rows].tolist(), recording.thread[rows].tolist()
    ):
        home = recording.arrays[array]
        if home.space == space:
            yield home.name, number, thread
