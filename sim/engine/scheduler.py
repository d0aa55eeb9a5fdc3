"""The scheduler's loop. It resumes one thread at a time, opens barriers, and reports why no thread can
run."""

import sys

from sim.engine import attempts, barrier, mbarrier, named_barrier, register_pool, warp, warpgroup
from sim.engine.cluster import CLUSTER
from sim.errors import OutOfTime, OutOfTurns, SimulatorError, Stuck, ThreadError
from sim.events import SITES, Access, Finding, index_text
from sim.frames import format_none_parameters, recursive_call, site_of_error
from sim.isa.invalid import InvalidOperand

# The number of times that a thread that has lost a compare-and-swap may continue where it would otherwise
# yield.
RETRY_TURNS = 8
# Results of run_block.
FINISHED, PARKED, YIELDED = "finished", "parked", "yielded"
# Values of Thread.waits: the kinds of operation that a thread waits for.
BARRIER, GRID, WARP, TURN, PHASE = "syncthreads", "grid.sync", warp.WARP, "turn", "phase of an mbarrier"
# One thread waits for other blocks on behalf of its own block, as in cooperative_groups.h.
ONE_OF_BLOCK = "grid.sync, for its block"


class Dim3:
    """The coordinates x, y, z that a kernel reads.

    A launch has one object per variable (threadIdx, blockIdx, ...), which is updated when another thread
    runs.
    """

    __slots__ = ("x", "y", "z")

    def __init__(self, x=0, y=0, z=0):
        self.x, self.y, self.z = x, y, z

    def __iter__(self):
        return iter((self.x, self.y, self.z))

    def __repr__(self):
        return f"({self.x}, {self.y}, {self.z})"


FIX_LOOP = (
    "look at what should end the loop; if the kernel is only slow, simulate(kernel, max_steps=...) raises the"
    " limit"
)
FIX_UNDECIDED = (
    "if the kernel is only slow, let it continue: simulate(kernel, max_steps=10**9) stops it only after that"
    " many iterations; otherwise look at what should end the loop"
)
PYTHON_LIMIT = "maximum recursion depth"  # part of the message of Python's own RecursionError
STOPPED = (
    "stopped before its end, so its results are incomplete: the simulator could not decide whether a loop"
    " ends; simulate(kernel, max_steps=10**9) lets it continue"
)
HOISTED = (
    "The loop waits for memory to change, but the load is neither volatile nor atomic. The compiler has moved"
    " the load out of the loop, which therefore tests the same value again and again."
)
FIX_HOISTED = (
    "load the value through a volatile pointer or atomically (atomicAdd(p, 0), cuda::atomic_ref), and write"
    " it with an atomic after a fence"
)


class Scheduler:
    """The loop over the threads of a block. The context reports every barrier to the observers."""

    def __init__(self, context):
        self.context = context
        # Whether a barrier counts arrivals from any instruction (PTX), rather than requiring all threads to
        # reach the same call (CUDA C++).
        self.counts_arrivals = False
        self.atomics_yield = (
            # Whether each thread yields at each atomic, which is necessary if threads spin on memory.
            False
        )
        self.abandoned = 0  # number of blocks that were ended early
        self.unwatched = 0  # number of logged accesses that no observer received, because a thread was ended
        self.woken = False  # whether threads of parked blocks can run again
        self.thread_index, self.block_index, self.block = Dim3(), Dim3(), None

    # --- the loop -------------------------------------------------------------------------------------------

    def run_block(self, block):
        """Run `block` until it is FINISHED, PARKED at a grid barrier, or all its threads have YIELDED."""
        enter, thread = self.enter, None
        if self.context.entered >= self.context.loops.next_common_test:
            self.test_common_loop()
        try:
            while block.alive:
                if self.context.turns > self.context.max_turns:
                    for live in self.context.live:
                        self.block_ended(live)
                    raise OutOfTurns
                # 1. Each runnable thread runs until it waits, in the order of the schedule.
                block.round, block.ready = self.context.schedule.split_ready(block, block.ready)
                for thread in block.round:
                    if thread.failed_atomic is not None and self.should_skip(thread, len(block.round) == 1):
                        block.ready.append(thread)
                        continue
                    enter(thread)
                    thread.fiber.resume()
                    if thread.done:
                        self.end_thread(thread)
                if block.parked:
                    block.wake_parked(not block.ready)
                # 2. All ready threads have only yielded, so let other blocks run.
                if block.ready and all(thread.waits == TURN for thread in block.ready):
                    if mbarrier.is_deadlocked(self.context, block):
                        raise Stuck
                    return YIELDED
                # 3. No thread can run: a barrier opens, a warp operation completes, or the kernel has a bug.
                if not block.ready and block.alive and not self.resolve_waits(block) and block.alive:
                    return PARKED
            self.block_ended(block)
            return FINISHED
        except BaseException as error:
            if isinstance(error, OutOfTime):
                barrier.report_missed(self, block, thread)
            # Accesses after an error are incomplete, so no observer may receive them.
            self.context.flush_ended()
            log = self.context.log or []
            self.unwatched += len(log)
            del log[:]
            raise

    def test_common_loop(self):
        """Test whether all threads repeat a failed atomic in the common loop of the kernel. The test examines
        each thread, so its next call takes place after twice as many turns.

        No further blocks start until the third test, so that each thread can repeat its atomic.
        """
        context, loops = self.context, self.context.loops
        loops.common_tests += 1
        loops.holds_blocks = loops.common_tests <= 2
        loops.next_common_test = 2 * context.entered
        if not context.max_steps and not self.woken and attempts.nothing_changes(context):
            loops.tested(True)

    def should_skip(self, thread, alone):
        """Return whether to skip `thread`, because it would repeat a failed atomic on unchanged memory.

        After `max_skips` skips, the thread runs anyway, because it may do something else between two such
        atomics. The thread is not skipped if no other thread can run, or during a comparison of threads
        (sim.progress), which needs iterations of all threads. `alone`: whether no other thread of the block
        can run. A skip counts as an iteration.
        """
        failed, loops = thread.failed_atomic, self.context.loops
        if loops.is_test_due():
            loops.tested(not self.woken and attempts.nothing_changes(self.context))
        if loops.is_endless or loops.progress_check:
            return False
        if alone and len(self.context.live) == 1 and not self.context.pending:
            return False
        if not failed.would_fail_again() or thread.times_skipped >= self.context.schedule.max_skips:
            thread.times_skipped = 0
            return False
        thread.times_skipped += 1
        if self.context.max_steps is None:
            self.context.loops.steps -= 1
        return True

    def enter(self, thread):
        """Make `thread` the current thread. Raise OutOfTime if the launch has to end."""
        context, index, limit = self.context, self.thread_index, self.context.error_limit
        # If all findings are warnings, check the limit less often.
        is_limited = context.has_errors or limit.deadline is not None
        if (is_limited or context.findings and not context.entered & 63) and limit.must_end():
            raise OutOfTime
        if thread.block is not self.block:
            self.enter_block(thread.block)
        index.x, index.y, index.z = thread.index
        context.thread = thread
        context.entered += 1
        # A thread that has waited for its own block or warp may not decline further opportunities to yield.
        # Otherwise, the blocks that could end the wait of a warp that polls between two votes would never
        # run.
        if self.atomics_yield and thread.waits in (None, TURN):
            thread.turns_left, thread.retries = context.schedule.patience, False
        context.begin_segment(thread)

    def enter_block(self, block):
        if not self.context.mixes_blocks:
            self.context.flush()
        self.block = block
        self.block_index.x, self.block_index.y, self.block_index.z = block.index

    def end_thread(self, thread):
        thread.block.alive -= 1
        if thread.block.barrier is not None and thread.block.barrier.complete():
            self.woken = True
        if thread.error is not None:
            self.handle_error(thread)
        self.context.loops.restart()
        warp.lane_ended(self.context, thread)
        if not self.context.has_errors and barrier.is_first_missed(self, thread):
            self.context.error_limit.expect_error()

    def handle_error(self, thread):
        """Raise the ThreadError for an exception in `thread`. Append a finding and raise Stuck if an operand
        is invalid or the thread made no progress."""
        self.context.flush_ended()
        error = thread.error
        if isinstance(error, (SimulatorError, OutOfTime)):
            raise error
        if isinstance(error, RecursionError):
            site = recursive_call(error, self.context.call_sites)
            self.context.findings.append(
                recursion_finding(error, self.context.witness("calls", site, thread))
            )
            raise Stuck from error
        if not isinstance(error, Stuck):
            number = site_of_error(error)
            site = SITES[number]
            if isinstance(error, InvalidOperand):
                self.context.findings.append(self.operand_finding(thread, error, number))
                raise Stuck from error
            errors = tuple(finding for finding in self.context.findings if finding.severity == "error")
            before = f"\n  Before that: {errors[0].verdict}" if errors else ""
            raised = ThreadError(
                f"thread {index_text(thread.index)} of block {index_text(thread.block.index)} raised"
                f" {type(error).__name__}: {error}\n  {site.function} line {site.line}  {site.source}"
                f"{format_none_parameters(error)}{before}"
            )
            raised.findings = errors
            raised.access = self.context.witness(f"raised {type(error).__name__}", number, thread)
            raise raised from error
        if not self.context.synchronizes:
            self.block_ended(thread.block)  # an undefined value can cause the endless loop
        site, *decided = error.args or (site_of_error(error), error.decided)
        waits = mbarrier.failed_waits(self.context, thread)
        blocked = register_pool.blocked_finding(self, (*thread.block.cluster, *self.context.live))
        if blocked and all(decided):
            self.context.findings.append(blocked)
        elif waits and all(decided):
            self.context.findings.append(mbarrier.deadlock_finding(self.context, thread, site, waits))
        else:
            if waits:  # a time limit ends an arbitrary thread, so name the first thread that polls
                thread = min(waits, key=mbarrier.place)
                site = waits[thread][1]
            self.report_no_progress(thread, site, *decided)
        raise error

    def operand_finding(self, thread, error, site):
        """Return the finding for an InvalidOperand, which an instruction at this site raised."""
        threads = error.threads or (thread,)
        witnesses = tuple(self.context.witness("executes", site, thread) for thread in threads)
        return Finding(
            "invalid-operand", "error", error.verdict, witnesses, reason=error.reason, fix=error.fix
        )

    def report_no_progress(self, thread, site, decided=True):
        """Append the finding that `thread` makes no progress, with the `site` if it is known.

        If `decided` is false, the kernel may be correct, and the finding states only that the launch was
        stopped.
        """
        hoisted = self.context.hoisted.get(site)
        witnesses = (self.context.witness("loops", site, thread),)
        if hoisted is not None:
            witnesses += (self.context.witness("read", hoisted, thread),)
        self.context.findings.append(
            Finding(
                "no-progress" if decided else "undecided",
                "error",
                "a loop repeats without end"
                if decided
                else "a loop repeats, and the simulator could not decide whether it ends",
                witnesses,
                reason=self.context.loops.format_budget(decided) if hoisted is None else HOISTED,
                fix=FIX_HOISTED if hoisted is not None else FIX_LOOP if decided else FIX_UNDECIDED,
            )
        )
        if not decided:
            self.context.notes[STOPPED] = None

    # --- waiting --------------------------------------------------------------------------------------------

    def wait(self, waits, frame, payload=None):
        """Suspend the current thread at `frame`. Return the result that was set before the thread was
        resumed."""
        thread = self.context.thread
        thread.waits, thread.frame, thread.payload = waits, frame, payload
        thread.fiber.suspend()
        return thread.result

    def yield_turn(self, frame, repeats=False):
        """Let other threads run before the current thread continues, if threads of this kernel spin on
        memory.

        repeats: whether the thread is about to repeat a failed atomic. If so, it yields even if the schedule
            would let it continue.
        """
        if not self.atomics_yield or not repeats and self.has_turns_left():
            return
        thread = self.context.thread
        if not self.context.schedule.keeps_spinning(thread):
            thread.block.ready.append(thread)
            self.wait(TURN, frame)

    def park(self, barrier, frame):
        """Suspend the current thread until the phase of an mbarrier may have ended."""
        thread = self.context.thread
        barrier.parked.append(thread)
        thread.block.parked.add(barrier)
        self.wait(PHASE, frame)

    def yield_before_atomic(self, key, frame):
        """Let other threads run before an atomic. `key` identifies the atomic and its operands."""
        thread = self.context.thread
        failed = thread.failed_atomic
        if failed is not None:
            failed.set_next(key)
        repeated = failed is not None and failed.repeated
        if self.atomics_yield and not repeated and self.context.schedule.stalls(thread, key[0], frame):
            thread.block.ready.append(thread)
            self.wait(TURN, frame)
        self.yield_turn(frame, failed is not None and failed.would_fail_again())

    def let_retry(self):
        """Let the current thread continue for RETRY_TURNS turns, because it has lost a compare-and-swap.

        It can then repeat the operation with the new value. If the thread had to yield first, it would
        usually lose again, and n threads that change one element would need about n * n turns.
        """
        thread = self.context.thread
        if not thread.retries:
            thread.retries, thread.turns_left = True, max(thread.turns_left, RETRY_TURNS)

    def has_turns_left(self):
        """Return whether the schedule lets the current thread continue at a point where it could yield."""
        thread = self.context.thread
        thread.turns_left -= 1
        self.context.entered += 1
        return thread.turns_left >= 0

    def resolve_waits(self, block):
        """Resolve a state in which no thread of `block` can run.

        Return True if threads were woken. Return False if the block stays parked or was ended.
        """
        waiting = [thread for thread in block.threads if not thread.done]
        what = {thread.waits for thread in waiting}
        if WARP in what and warp.complete_converged(self.context, block):
            return True
        # Another block has to run first, so park this block.
        if ONE_OF_BLOCK in what or CLUSTER in what:
            self.context.flush()
            return False
        # Count equal positions instead of building a set, because hashing a code object takes a microsecond.
        places = [(thread.frame.f_code, thread.frame.f_lasti, thread.calls) for thread in waiting]
        meet = places.count(places[0]) == len(block.threads)
        together = meet and len({thread.iterations for thread in waiting}) == 1
        # All threads wait at one grid barrier. It opens once every block is parked there (Grid.release).
        if what == {GRID} and together:
            self.context.flush()
            return False
        if self.counts_arrivals and named_barrier.join_block_barrier(
            self, block, [t for t in waiting if t.waits == BARRIER]
        ):
            return True
        if what == {BARRIER} and (
            together or self.counts_arrivals and barrier.is_same_barrier(waiting, block)
        ):
            if not meet:
                self.context.findings.append(barrier.several_calls_finding(self, block))
            barrier.deliver_vote(waiting)
            self.pass_barrier(block) if self.context.may_merge_epochs() else self.open_barrier(block)
            return True
        # No barrier can open. Report the most specific reason, and end the block.
        self.context.flush()
        self.context.findings.append(self.stuck_finding(block, what, meet))
        self.abandon(block)
        return False

    def stuck_finding(self, block, what, meet):
        """Return the finding for a block in which no thread can run.

        what: the kinds of operations at which threads wait.
        meet: whether all threads of the block wait at the same position in the source.
        """
        if register_pool.REGISTERS in what:
            return register_pool.blocked_finding(self, (block,))
        if meet and what <= {BARRIER, GRID}:
            return barrier.different_iterations_finding(self, block)
        if what == {BARRIER}:
            return barrier.divergence_finding(self, block)
        if WARP in what:
            return warp.divergence_finding(self, block)
        if warpgroup.WARPGROUP in what:
            return warpgroup.missing_threads_finding(self, block)
        if named_barrier.NAMED_BARRIER in what:
            return named_barrier.incomplete_finding(self, block)
        return barrier.deadlock_finding(self, block)

    def open_barrier(self, block):
        """Open the barrier at which all threads of `block` wait, and start a new epoch."""
        self.context.flush()
        self.pass_barrier(block)
        self.context.announce("barrier_opened", block.index, block.epoch)
        self.context.begin_epoch()
        block.epoch += 1

    def pass_barrier(self, block):
        """Let the threads of `block` continue after a barrier."""
        self.context.collective(block.threads[0].waits, block, block.threads[0].frame)
        self.context.counters["barriers"] += 1
        block.ready = list(block.threads)

    def waiting_witness(self, thread):
        """Return the Access that shows, in a finding, where `thread` waits or that it has returned."""
        if thread.done:
            return Access("returned", thread.block.index, thread.index)
        return self.context.witness("waits", self.context.sites.of_frame(thread.frame, "call"), thread)

    def block_ended(self, block):
        for pending in block.in_flight:
            pending.arrive()
        self.context.end_block(block)

    def abandon(self, block):
        """End a block early by unwinding its threads."""
        self.abandoned += 1
        for thread in block.threads:
            if not thread.done and thread.frame is not None:  # a thread without a frame has not started
                thread.fiber.abandon()
            thread.done = True
        block.alive, block.ready = 0, []


def recursion_finding(error, witness):
    """Return the finding for a RecursionError: calls are nested more deeply than the simulator allows."""
    fix = "look at the condition that should end the recursion, or replace the recursion by a loop"
    if PYTHON_LIMIT in str(error):
        limit = f"The simulator stops at Python's limit of {sys.getrecursionlimit():,} active calls."
        fix += "; if the recursion is only deep, raise the limit with sys.setrecursionlimit"
    else:
        limit = f"The simulator stops when {error}."
    return Finding(
        "undecided",
        "error",
        "a recursion has too many active calls, and the simulator could not decide whether it ends",
        (witness,),
        reason=f"{limit} On a GPU, the active calls of a thread must fit into its stack, which has 1 KB"
        " unless the host sets cudaLimitStackSize.",
        fix=fix,
    )
