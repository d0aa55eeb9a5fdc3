"""The timeline: the threads of one block over time, with barriers as vertical lines and waiting threads as
rails."""

from collections import Counter
from dataclasses import dataclass, field
from math import prod

import numpy as np

from sim.events import BARRIER, LOAD, SITES, STORE, Index3, Site, index_text
from sim.nouns import plural
from sim.recording import Recording
from sim.viz import VERBS, Scene, View, ranges
from sim.viz.lockstep import block_number, epochs, times

MOST_THREADS, MOST_COLUMNS = 64, 160
LEFT, TOP, WIDE, NARROW, GAP = 64, 44, 24, 6, 6
LEGEND = {
    "global-load": "load, global",
    "load": "load, shared",
    "global-store": "store, global",
    "store": "store, shared",
    "atomic": "atomic",
    "rail": "waits",
}


def timeline(recording: Recording, block: int | Index3 | None = None) -> View:
    """Return a View of `block`, by default the lowest block in the trace.

    Time is measured in accesses that a thread has made since the last barrier, not in clock cycles.
    """
    number, threads = block_number(recording, block), prod(recording.threads)
    moments = [(epoch, rows, times(recording, rows)) for epoch, rows in epochs(recording, number)]
    total = sum(int(time.max()) + 1 for *_, time in moments if len(time))
    title = f"block {index_text(recording.blocks[number])}: what each thread does, access by access"
    scene = Timeline(title, 0, 0, recording=recording, threads=threads, total=total)
    for epoch, rows, time in moments:
        opened = (recording.block == number) & (recording.action == BARRIER) & (recording.epoch == epoch)
        sites = recording.site[opened].tolist()
        scene.epoch(epoch, rows, time, SITES[sites[0]] if sites else None)
    scene.frame()
    if scene.shown < threads:
        scene.notices.append(f"{scene.shown} of {threads:,} threads are drawn.")
    return scene.of_trace(recording, MOST_COLUMNS, total, "moments")


@dataclass
class Timeline(Scene):
    """The picture under construction: a column for each of `total` time steps, and a gap per barrier."""

    adds: bool = False
    empty: str = "none"
    recording: Recording = field(kw_only=True)
    threads: int = 0
    total: int = 0
    x: int = LEFT

    def __post_init__(self) -> None:
        self.shown = min(self.threads, MOST_THREADS)
        self.row = 12 if self.shown <= 32 else 8
        # Fit all columns into 720 pixels if possible.
        self.column = min(WIDE, max(NARROW, 720 // max(self.total, 1)))

    def epoch(self, number: int, rows: np.ndarray, time: np.ndarray, barrier: Site | None) -> None:
        """Add the accesses `rows` between two barriers. `barrier` is the site of the second barrier, or
        None."""
        for moment in range(int(time.max()) + 1 if len(time) else 0):
            if len(self.steps) == MOST_COLUMNS:
                return
            self.moment(rows[time == moment], f"epoch {number}, access {moment}", barrier)
        if barrier:
            self.boxes.append(("line", self.x + 2, TOP - 6, 2, self.shown * self.row + 8))
            self.labels.append((self.x + 3, TOP + self.shown * self.row + 16, barrier.line, "middle"))
            self.x += GAP

    def moment(self, rows: np.ndarray, when: str, barrier: Site | None) -> None:
        """Add a box for each thread that makes an access, and a rail for each thread that waits at the
        barrier."""
        busy = self.recording.thread[rows].tolist()
        for thread, look in zip(busy, map(self.look, rows.tolist())):
            if thread < self.shown:
                self.boxes.append((look, self.x, TOP + thread * self.row, self.column, self.row - 2))
        # A thread without an access at this time has already reached the barrier.
        waiting = sorted(set(range(self.threads)) - set(busy)) if barrier else []
        self.boxes += [
            ("rail", self.x, TOP + thread * self.row + self.row // 2 - 2, self.column, 2)
            for thread in waiting
            if thread < self.shown
        ]
        words = f"{when}: {doings(self.recording, rows)}"
        if waiting:
            wait = f"{plural(len(waiting), 'thread')} wait{'s' * (len(waiting) == 1)}"
            words += f"; {wait} ({ranges(waiting)})"
        self.cells.append((self.x, TOP - 4, self.column, self.shown * self.row + 6))
        self.steps.append((words, [(len(self.steps), "cursor", "")]))
        self.x += self.column

    def look(self, row: int) -> str:
        space = self.recording.arrays[self.recording.array[row]].space
        verb = {LOAD: "load", STORE: "store"}.get(int(self.recording.action[row]), "atomic")
        return f"global-{verb}" if space in ("global", "const") and verb != "atomic" else verb

    def frame(self) -> None:
        """Add thread numbers and the legend around the columns, and set the picture's size."""
        self.width, self.height = max(self.x + 12, 640), TOP + self.shown * self.row + 30
        self.labels += [
            (LEFT - 8, TOP + thread * self.row + self.row - 3, thread or "thread 0", "end")
            for thread in range(0, self.shown, 8 if self.shown > 16 else 1)
        ]
        if any(look == "line" for look, *_ in self.boxes):
            self.labels.append((LEFT - 8, self.height - 14, "line", "end"))
        self.legend(8, *LEGEND.items())


def doings(recording: Recording, rows: np.ndarray) -> str:
    """Return the accesses in one time step, grouped by source line: "16 threads load x (line 5)"."""
    counts: Counter[tuple[int, str, str | None]] = Counter()
    for position in rows.tolist():
        event = recording[position]
        counts[event.site.line, event.action, event.array] += 1
    return ", ".join(
        f"{plural(n, 'thread')} {VERBS[action][n == 1]} {array} (line {line})"
        for (line, action, array), n in sorted(counts.items())
    )
