"""Answers of the first reader of lesson 18c (Hopper): wrong ones that its checks once accepted, and unusual
correct ones."""

from numba import cuda
from numpy import float32

from editing import wrong
from kernels.tensor_cores.bulk_copies import mbarrier_arrive
from power.lessons import from_solutions

place, add_tiles, TransactionBarrier, consume, produce = from_solutions(
    "18c",
    "place",
    "add_tiles",
    "TransactionBarrier",
    "consume",
    "produce",
    float32=float32,
    mbarrier_arrive=mbarrier_arrive,
)
POSITION = "((column // 8) ^ (row % 8)) * 8 + column % 8"
END = "    return wgmma_wait_0(total)"
ARRIVE = "        mbarrier_arrive(empty, stage)"
WAIT = "        wait(empty, stage, (phase + 1) % 2)\n"
EXPECT = "        mbarrier_expect(full, stage, 2 * 64 * (a.shape[1] + b.shape[1]))\n"
LAST = "(64 * step, column), full, stage)"
WAITED = "    total = wgmma_wait_0(total)\n"


@cuda.jit(device=True)
def exclusive_or(a, b):
    return (a | b) - (a & b)


@cuda.jit(device=True)
def by_a_helper(row, column):
    return exclusive_or(column // 8, row % 8) * 8 + column % 8


class Replayed:
    """Correct: a transaction barrier that keeps all operations and replays them for each test."""

    def __init__(self, arrivals):
        self.arrivals, self.operations = arrivals, []

    def arrive(self):
        self.expect(0)

    def expect(self, nbytes):
        self.operations.append((1, nbytes))

    def deliver(self, nbytes):
        self.operations.append((0, -nbytes))

    def is_complete(self, parity):
        phase = arrived = pending = 0
        for arrivals, nbytes in self.operations:
            arrived += arrivals
            pending += nbytes
            if arrived == self.arrivals and pending == 0:
                phase, arrived = phase + 1, 0
        return phase % 2 != parity


class TwentyPhases:
    """Wrong after phase 20."""

    def __init__(self, arrivals):
        self.inner = TransactionBarrier(arrivals)
        self.ended, self.before = 0, True

    def arrive(self):
        self.inner.arrive()

    def expect(self, nbytes):
        self.inner.expect(nbytes)

    def deliver(self, nbytes):
        self.inner.deliver(nbytes)

    def is_complete(self, parity):
        now = self.inner.is_complete(1)
        self.ended += now != self.before
        self.before = now
        return self.inner.is_complete(parity) if self.ended < 20 else bool(parity)


class SharedBytes(TransactionBarrier):
    """Wrong: all barriers count the same bytes."""

    counter = [0]

    @property
    def nbytes(self):
        return self.counter[0]

    @nbytes.setter
    def nbytes(self, value):
        self.counter[0] = value


class NeedsBytes(TransactionBarrier):
    """Wrong: expect(0) does not arrive."""

    def expect(self, nbytes):
        if nbytes:
            super().expect(nbytes)


class SmallCopies(TransactionBarrier):
    """Wrong: a copy delivers at most 65,535 bytes."""

    def deliver(self, nbytes):
        super().deliver(nbytes % 65536)


WRONG = {
    "ex18_6": wrong(place, ("a float", (POSITION, "(column ^ (row % 8) * 8) * float32(1)"))),
    "ex18_7": wrong(
        add_tiles,
        (
            "waits after each product",
            ("    wgmma_commit()\n", ""),
            ("of_b, True)", f"of_b, True)\n        wgmma_commit()\n    {WAITED.rstrip()}"),
            (END, "    return total"),
        ),
        ("a block-wide barrier", (END, f"{WAITED}    cuda.syncthreads()\n    return total")),
        ("whole sums", (END, f"{WAITED}    return (float32(int(total[0])),) + total[1:]")),
    ),
    "ex18_8": [
        ("twenty phases", TwentyPhases),
        ("bytes of all barriers", SharedBytes),
        ("expect(0) does not arrive", NeedsBytes),
        ("16 bits for bytes", SmallCopies),
    ],
    "ex18_9": wrong(
        consume,
        ("starts with zeros", ("    for step", "    total = (float32(0),) * 16\n    for step")),
        ("arrives at the next stage", ("empty, stage)", "empty, (stage + 1) % full.shape[0])")),
        ("does not arrive in the last step", (ARRIVE, f"        if step + 1 < steps:\n    {ARRIVE}")),
    ),
    "ex18_10": wrong(
        produce,
        ("expects before it waits", (WAIT, ""), (EXPECT, f"{EXPECT}{WAIT}")),
        ("waits for its copies", (LAST, f"{LAST}\n        wait(full, stage, phase % 2)")),
        ("arrives at empty too", (EXPECT, f"{EXPECT}        mbarrier_arrive(empty, stage)\n")),
    ),
}
RIGHT = {"ex18_6": [("a helper", by_a_helper)], "ex18_8": [("replays all operations", Replayed)]}
