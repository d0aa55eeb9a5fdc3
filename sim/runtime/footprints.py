"""The memory that operations access, and pairs of unordered nodes of a graph that access the same memory."""

from collections.abc import Iterable, Mapping
from itertools import combinations

import numpy as np

from sim.events import ATOMIC, CONST, GLOBAL, LOAD, STORE, Batch, Observer

CONFLICTS = (STORE, STORE), (STORE, LOAD), (LOAD, STORE), (STORE, ATOMIC), (ATOMIC, STORE)
CONFLICTS += (LOAD, ATOMIC), (ATOMIC, LOAD)
VERBS = {LOAD: "reads", STORE: "writes", ATOMIC: "atomically updates"}
PENDING_LIMIT = 1 << 16  # number of ranges to collect before they are merged


class Footprint(Observer):
    """The ranges of memory that one operation accesses. As an observer, it adds the accesses of a launch."""

    checks = False
    local = False

    def __init__(self) -> None:
        self.verb = ""  # what the operation does with the memory if it allocates or frees it
        # action -> merged ranges, as rows (start, end)
        self.ranges = {action: np.empty((0, 2), np.int64) for action in VERBS}
        self.pending: dict[int, list[np.ndarray]] = {action: [] for action in VERBS}
        self.count = 0

    def accesses(self, batch: Batch) -> None:
        for action in VERBS:
            mine = np.isin(batch.space, (GLOBAL, CONST)) & (batch.action == action)
            start = batch.address[mine].astype(np.int64)
            self.add_rows(action, np.stack([start, start + batch.size[mine]], 1))

    def add(self, action: int, address: int, nbytes: int) -> None:
        """Add the bytes that a copy accesses."""
        self.add_rows(action, np.array([[address, address + nbytes]], np.int64))

    def add_rows(self, action: int, rows: np.ndarray) -> None:
        self.pending[action].append(rows)
        self.count += len(rows)
        if self.count > PENDING_LIMIT:
            self.merge()

    def add_granules(self, action: int, address: int, nbytes: int, mask: np.ndarray) -> None:
        """Add the granules that compiled code has accessed.

        address: the address of the first granule.
        nbytes: the size of a granule in bytes.
        mask: a boolean for each granule, True if it was accessed.
        """
        start = address + np.flatnonzero(mask) * nbytes
        self.add_rows(action, np.stack([start, start + nbytes], 1))

    def within(self, actions: tuple[int, ...], start: int, end: int) -> np.ndarray:
        """Return the merged ranges of some actions, clipped to the bytes between two addresses."""
        self.merge()
        rows = merged(np.concatenate([self.ranges[action] for action in actions])).clip(start, end)
        return rows[rows[:, 0] < rows[:, 1]]

    def include(self, other: "Footprint") -> None:
        """Add all ranges of another footprint."""
        other.merge()
        for action, rows in other.ranges.items():
            self.add_rows(action, rows)

    def forget(self, start: int, end: int) -> None:
        """Remove the ranges that lie within a buffer. No range belongs to two buffers."""
        self.merge()
        for action, rows in self.ranges.items():
            self.ranges[action] = rows[(rows[:, 1] <= start) | (rows[:, 0] >= end)]

    def merge(self) -> None:
        for action, rows in self.pending.items():
            self.ranges[action] = merged(np.concatenate([self.ranges[action], *rows]))
        self.pending, self.count = {action: [] for action in VERBS}, 0

    def conflict(self, other: "Footprint") -> tuple[int, int, int] | None:
        """Return (lowest common address, own action, action of the other footprint), or None without a
        conflict.

        Two atomic updates do not conflict, and neither do two reads.
        """
        self.merge(), other.merge()
        found = [
            (address, mine, theirs)
            for mine, theirs in CONFLICTS
            if (address := first_common(self.ranges[mine], other.ranges[theirs])) is not None
        ]
        return min(found, key=lambda conflict: conflict[0], default=None)


def merged(rows: np.ndarray) -> np.ndarray:
    """Return sorted ranges that cover the same bytes, without overlaps. Each row is (start, end)."""
    rows = rows[np.argsort(rows[:, 0], kind="stable")]
    if not len(rows):
        return rows
    ends = np.maximum.accumulate(rows[:, 1])
    begins = np.concatenate([[True], rows[1:, 0] > ends[:-1]])
    last = np.append(np.flatnonzero(begins)[1:] - 1, len(rows) - 1)
    return np.stack([rows[begins, 0], ends[last]], 1)


def first_common(a: np.ndarray, b: np.ndarray) -> int | None:
    """Return the lowest byte that two sets of merged ranges share, or None."""
    if not len(a) or not len(b):
        return None
    # the first range of b that ends after the start of each range of a
    at = np.searchsorted(b[:, 1], a[:, 0], side="right")
    inside = at < len(b)
    common = np.maximum(a[inside, 0], b[at[inside], 0])
    common = common[common < a[inside, 1]]
    return int(common.min()) if len(common) else None


def unordered(dependencies: Mapping[int, Iterable[int]]) -> list[tuple[int, int]]:
    """Return the pairs of nodes that no path of dependencies connects.

    dependencies: maps each node to the nodes that it depends on. Nodes follow their dependencies.
    """
    earlier = before(dependencies)
    return [(a, b) for a, b in combinations(dependencies, 2) if a not in earlier[b]]


def before(dependencies: Mapping[int, Iterable[int]]) -> dict[int, set[int]]:
    """Return, for each node, the nodes that precede it. `dependencies` is as in `unordered`."""
    found: dict[int, set[int]] = {}
    for node, direct in dependencies.items():
        found[node] = set(direct).union(*(found.get(other, ()) for other in direct))
    return found
