"""Threads, blocks, and the loop over all blocks of a grid."""

from collections import deque
from functools import lru_cache
from math import prod

from sim.engine.barrier import distinct_witnesses
from sim.engine.cluster import CLUSTER, Cluster, cluster_index, deadlock_finding
from sim.engine.equal_operands import EqualOperands
from sim.engine.lane_masks import LaneMasks
from sim.engine.scheduler import FINISHED, ONE_OF_BLOCK, PARKED, YIELDED
from sim.errors import Abandoned, LaunchError, OutOfTurns, Stuck
from sim.events import Finding
from sim.sites import block_indices, cluster_rank, local_address


class Thread:
    """A CUDA thread.

    While the thread waits, `waits` is the kind of operation for which it waits, `frame` is its position in
    the kernel, and `payload` is the value that it contributes.
    """

    __slots__ = (
        "index linear warp lane block fiber waits frame calls iterations payload result done error"
        " sent groups async_sent async_groups products cluster_phase failed_atomic times_skipped"
        " failed_wait origin turns_left retries".split()
    )

    def __init__(self, index, linear, warp_size, block):
        self.index, self.linear, self.block = index, linear, block
        self.warp, self.lane = divmod(linear, warp_size)
        self.fiber = self.waits = self.frame = self.payload = self.result = self.error = None
        self.done = False
        # results of call_chain and iteration_counts for `frame`; empty if the kernel does not need them
        self.calls = self.iterations = ()
        # asynchronous copies (sim.memory.transfer.Sent)
        self.sent = []  # the copies since the last commit
        self.groups = []  # for each commit, a list of copies
        # the same two lists for bulk copies (sim.memory.async_proxy.Pending)
        self.async_sent, self.async_groups = [], []
        self.products = None  # the ThreadProducts (sim.memory.products) if the thread uses wgmma
        # Phase of barrier.cluster in which the thread has arrived. It is None after the thread has waited.
        self.cluster_phase = None
        # Origin of the undefined value that the thread passes to a shuffle. After the shuffle, it is the
        # origin of the result.
        self.origin = False
        self.failed_atomic = None  # the thread's last atomic, if it did not change memory
        # (mbarrier, site) of the thread's last test of a phase, if the phase was incomplete
        self.failed_wait = None
        # number of times in a row that the thread was skipped because its atomic would fail again
        self.times_skipped = 0
        self.turns_left = 0  # number of opportunities to yield that the thread may still decline
        self.retries = False  # whether the thread has lost a compare-and-swap since it last yielded

    def run(self, kernel, arguments):
        """Run the kernel as the body of the fiber. An exception is stored in `error` for the scheduler."""
        try:
            kernel(*arguments)
        except (Exception, Stuck) as error:
            self.error = error
        except Abandoned:
            pass
        self.done = True

    def run_generator(self, steps):
        """Run a kernel that is a generator, in the same way as `run`."""
        try:
            yield from steps
        except (Exception, Stuck) as error:
            self.error = error
        self.done = True
        yield


def call_chain(frame):
    """Return the calls that led to `frame`, innermost first.

    A barrier inside a function counts as a different barrier for each call to the function.
    """
    frame = frame.f_back
    if frame is None or frame.f_code is BEGIN:
        return ()
    return (frame.f_code, frame.f_lasti), *call_chain(frame)


def iteration_counts(frame):
    """Return the current iteration of each loop around `frame`, beginning with loops in its callers."""
    around, own = frame.f_back, frame.f_locals.get(ITERATIONS, ())
    return own if around is None or around.f_code is BEGIN else (*iteration_counts(around), *own)


BEGIN = Thread.run.__code__
ITERATIONS = "__sim_iterations"  # variable in which a rewritten function counts the iterations of its loops


class Block:
    """The threads of one block and their shared memory."""

    def __init__(self, index, shape, warp_size):
        self.index = index
        self.threads = [Thread(one, linear, warp_size, self) for linear, one in enumerate(indices(shape))]
        self.ready = list(self.threads)  # the runnable threads
        self.alive = len(self.threads)  # number of threads that have not returned
        self.round = []  # the threads that the scheduler resumes next, one after another
        # per warp, a mask of the lanes that have not returned
        self.lanes_alive = [
            (1 << min(warp_size, len(self.threads) - first)) - 1
            for first in range(0, len(self.threads), warp_size)
        ]
        self.epoch = 0  # number of barriers passed
        self.shared = {}  # declaration of a shared array -> Array
        self.warp_groups = {}  # key -> Group (sim.engine.warp)
        self.lane_masks, self.equal_operands = LaneMasks(), EqualOperands()
        self.warpgroup_arrivals = {}  # key -> Arrivals (sim.engine.warpgroup)
        self.registers = None  # the RegisterPool (sim.engine.register_pool), if the block executes setmaxnreg
        self.named_barriers = {}  # number -> NamedBarrier
        self.mbarriers = {}  # address -> Barrier (sim.isa.mbarrier)
        self.parked = set()  # the mbarriers at which threads are suspended until a phase ends
        self.located = {}  # (state space, address, shift) -> location of an mbarrier (sim.ptx.copies)
        # the operations of the async proxy that the block has issued
        self.in_flight = []
        # address of a tile in shared memory -> the Tile (sim.memory.tensor_map) of the last tensor copy to it
        self.tiles = {}
        # the blocks of the cluster, in the order of their ranks, and its barrier (sim.engine.cluster)
        self.cluster, self.barrier = (self,), None
        self.wrong_rank = None  # the last rank outside the cluster to which mapa was applied

    def wake_parked(self, every):
        """Let threads that are suspended at an mbarrier test it again.

        every: whether to wake all of these threads, instead of only those whose phase may end when copies
            complete.
        """
        for barrier in self.parked:
            if every or barrier.tracked or barrier.bulk:
                barrier.wake()
        self.parked = {barrier for barrier in self.parked if barrier.parked}

    def home(self, address):
        """Return (block, address within this block) for an address in shared memory, which can belong to
        another block of the cluster. The block is None if the cluster has no block with this rank."""
        rank = cluster_rank(address) if len(self.cluster) > 1 else None
        if rank is None:
            return self, address
        return self.cluster[rank] if rank < len(self.cluster) else None, local_address(address)

    @property
    def rank(self):
        """The rank of the block in its cluster."""
        return self.cluster.index(self)


@lru_cache(maxsize=8)  # blocks have the same shape
def indices(shape):
    """Return all (x, y, z) below `shape`, with x varying fastest, as CUDA numbers threads and blocks."""
    return tuple((x, y, z) for z in range(shape[2]) for y in range(shape[1]) for x in range(shape[0]))


def all_wait_for_grid(block):
    """Return whether all threads of a parked block wait at the grid barrier.

    With ONE_OF_BLOCK, only one thread waits, on behalf of its block.
    """
    return all(thread.waits != ONE_OF_BLOCK for thread in block.threads)


class Grid:
    """The blocks of one launch, in a seeded order."""

    def __init__(self, scheduler, kernel, arguments, grid, block, resident):
        self.scheduler, self.context = scheduler, scheduler.context
        self.kernel, self.arguments, self.shape, self.resident = kernel, arguments, block, resident
        # The blocks of a unit start together. A unit is a cluster, or a single block without clusters.
        size = self.context.cluster
        firsts = [index for index in indices(grid) if not any(i % n for i, n in zip(index, size))]
        units = [block_indices(index, size) for index in firsts]
        self.blocks = prod(grid)
        self.ended = 0  # number of blocks that have ended
        self.free = []  # fibers that run no thread
        # The LaunchError raised when the system ran out of threads; `resident` is then lower than the
        # device's limit.
        self.refusal = None
        self.order = [units[i] for i in self.context.schedule.order(len(units))]

    def run_without_waiting(self):
        """Run a kernel whose threads never wait. Each thread is a plain call of the kernel."""
        context, enter = self.context, self.scheduler.enter
        for (index,) in self.order:
            if context.turns > context.max_turns:
                raise OutOfTurns
            block = self.new_block(index)
            for position in context.schedule.order(len(block.threads)):
                thread = block.threads[position]
                enter(thread)
                thread.run(self.kernel, self.arguments)
                if thread.error is not None:
                    self.scheduler.handle_error(thread)
                context.loops.restart()
            self.scheduler.block_ended(block)
            self.ended += 1

    def run(self, fiber_type, free):
        """Run a kernel whose threads may wait.

        fiber_type: the class of the fibers.
        free: the list of fibers that can be used, to which the grid adds new ones (sim.engine.pool).

        Blocks run one after another, unless a block waits for another one. Raise LaunchError if the system
        has too few threads for the blocks that must be resident at the same time.
        """
        self.fiber_type, self.free, pending, live, parked = fiber_type, free, deque(self.order), deque(), []
        self.context.live, self.context.pending = live, pending
        self.context.resident = self.resident
        try:
            self.reserve(self.blocks if self.context.cooperative else len(pending[0]))
            while pending or live or parked:
                # At a grid barrier of cooperative_groups.h, a block wakes other blocks.
                if self.scheduler.woken:
                    self.scheduler.woken = False
                    live.extend(block for block in parked if block.ready)
                    parked = [block for block in parked if not block.ready]
                if not live and pending:
                    live.extend(self.start(pending.popleft()))
                elif not live:  # every block is parked
                    live.extend(self.release(parked))
                    parked = []
                    continue
                self.context.schedule.rotate(live)
                outcome = self.scheduler.run_block(live[0])
                block = live.popleft()
                if outcome == PARKED:
                    parked.append(block)
                elif outcome == FINISHED:
                    self.ended += 1
                    self.free.extend(thread.fiber for thread in block.threads)
                elif outcome == YIELDED:
                    live.append(block)
                    resident = len(live) + len(parked)
                    room = resident + len(pending[0]) <= self.resident if pending else False
                    # If all threads only poll mbarriers, the start of another block could not end their wait.
                    room = room and not (self.context.loops.progress_check and self.context.polls.count)
                    room = room and not self.context.loops.holds_blocks
                    if pending and room and self.context.schedule.may_start_block(len(pending)):
                        self.start_another(pending, live, resident)
        except BaseException as error:
            for block in [*live, *parked]:
                self.scheduler.abandon(block)
                self.free.extend(thread.fiber for thread in block.threads)
            # The threads may be in the loop only because some blocks could not start, so report this instead.
            if isinstance(error, Stuck) and self.refusal and pending:
                raise self.refusal from None
            raise

    def new_block(self, index):
        self.context.counters["blocks"] += 1
        self.context.begin_epoch()
        block = Block(index, self.shape, self.context.spec.warp_size)
        self.context.counters["threads"] += len(block.threads)
        return block

    def reserve(self, blocks):
        """Create fibers until enough are free for `blocks` blocks.

        Raise LaunchError if the system has no more threads. The new fibers are then closed, so that some
        threads remain available.
        """
        before, wanted = len(self.free), blocks * prod(self.shape)
        try:
            while len(self.free) < wanted:
                self.free.append(self.fiber_type())
        except LaunchError:
            for fiber in self.free[before:]:
                fiber.close()
            del self.free[before:]
            raise

    def start(self, unit):
        """Return the new blocks of a unit, whose threads are ready to run. Raise LaunchError like
        `reserve`."""
        self.reserve(len(unit))
        blocks = tuple(self.new_block(index) for index in unit)
        # Without an explicit cluster launch, each block is a cluster by itself.
        Cluster(cluster_index(unit[0], self.context.cluster), blocks)
        for thread in (thread for block in blocks for thread in block.threads):
            thread.fiber = self.free.pop()
            thread.fiber.begin(thread, self.kernel, self.arguments)
        return blocks

    def start_another(self, pending, live, resident):
        """Start the next unit. `resident` is the number of blocks already running.

        If the system has no more threads, the unit waits until a block ends, as on a GPU without free
        resources.
        """
        try:
            live.extendleft(self.start(pending[0]))
            pending.popleft()
        except LaunchError as refusal:
            self.resident, self.refusal = resident, refusal
            self.context.notes[
                f"the operating system has threads for {resident} resident blocks only, so each further block"
                " started after another block had ended"
            ] = None

    def release(self, parked):
        """Open the grid barrier if all blocks wait there, and return the blocks.

        Otherwise append a finding, end the parked blocks and return an empty list.
        """
        if any(thread.waits == CLUSTER and not thread.done for block in parked for thread in block.threads):
            self.context.flush()
            self.context.findings.append(deadlock_finding(self.scheduler, parked))
            for block in parked:
                self.scheduler.abandon(block)
            return []
        if len(parked) == self.blocks and all(all_wait_for_grid(block) for block in parked):
            for block in parked:
                for thread in block.threads:
                    thread.result = 0  # the barrier returns cudaSuccess (0)
                self.scheduler.open_barrier(block)
            self.context.announce("grid_barrier_opened")
            if not self.context.loops_around_grid:
                self.context.loops.restart()  # all threads have left their `while` loops
            return parked
        others, abandoned = self.blocks - len(parked), self.scheduler.abandoned
        elsewhere = ["have ended"] * (abandoned < others) + ["wait elsewhere"] * (abandoned > 0)
        self.context.findings.append(
            Finding(
                "deadlock",
                "error",
                f"{len(parked)} of {self.blocks} blocks wait at a grid barrier that the others never"
                f" reach: they {' or '.join(elsewhere)}",
                distinct_witnesses(self.scheduler, min(parked, key=lambda block: block.index[::-1]).threads),
                reason="A grid barrier opens when every thread of every block has arrived.",
                fix="let every thread reach grid.sync() the same number of times",
            )
        )
        for block in parked:
            self.scheduler.abandon(block)
        return []
