"""Tests of both interpreting engines: they have the same order and results, seeds, and every kind of abnormal
end."""

import gc
import signal
import threading
import time
from types import SimpleNamespace

import numpy as np
import pytest
from numba import cuda

import sim
from example_kernels import endless_barriers, endless_spin, endless_with_loads, grid_wide, tiled_matmul
from iteration_clock import IterationClock
from sim import KernelBug, LaunchError, ThreadError, simulate
from sim.engine.scheduler import Scheduler
from sim.errors import Stuck
from sim.events import SITES, Observer, Site
from sim.forecast import directions
from sim.native.run.explain import SMALL_WITHOUT_FINDING
from sim.observers.order import HappensBefore

ENGINES = ("fibers", "threads")
TILE = 4
matmul = tiled_matmul(TILE)


@cuda.jit
def last_writer(order, count):
    """Record the order in which threads run between barriers and at atomics."""
    for _ in range(2):
        order[cuda.atomic.add(count, 0, 1)] = cuda.grid(1)
        cuda.syncthreads()


def recorded(**how):
    order, count = np.full(32, -1), np.zeros(1, np.int64)
    simulate(last_writer, **how)[2, 8](order, count)
    return order.tolist()


@pytest.mark.parametrize("engine", ENGINES)
def test_matmul(engine):
    random = np.random.default_rng(1)
    a, b = random.normal(size=(2, 8, 8)).astype(np.float32)
    c = np.full((8, 8), np.nan, np.float32)
    report = simulate(matmul, engine=engine)[(2, 2), (TILE, TILE)](a, b, c)
    np.testing.assert_allclose(c, a @ b, rtol=1e-5)
    assert report.findings == () and report.counters["barriers"] == 4 * 4


def test_the_order_is_the_seeds():
    assert recorded(seed=3) == recorded(seed=3) == recorded(seed=3, engine="threads")
    assert recorded(seed=3) != recorded(seed=4)
    assert sorted(recorded(seed=5)) == sorted(2 * list(range(16)))


@pytest.mark.parametrize("engine", ENGINES)
def test_an_exception_in_one_thread(engine):
    @cuda.jit
    def kernel(x):
        cuda.syncthreads()
        if cuda.threadIdx.x == 5:
            raise ValueError("five")
        cuda.syncthreads()

    for _ in range(2):
        with pytest.raises(
            ThreadError,
            match=r"thread 5 of block 0 raised ValueError: five\n  kernel line 4  raise ValueError",
        ) as caught:
            simulate(kernel, engine=engine)[1, 8](np.zeros(8))
        assert isinstance(caught.value.__cause__, ValueError)
    assert recorded(seed=3) == recorded(seed=3, engine=engine)


@pytest.mark.parametrize("engine", ENGINES)
def test_a_launch_within_a_launch(engine):
    inner_result = np.zeros(4)

    def fill(x):
        cuda.syncthreads()
        x[cuda.threadIdx.x] = cuda.blockDim.x

    launch_inner = simulate(fill, engine=engine)[1, 4]

    class Launcher:
        def launch(self):
            launch_inner(inner_result)

    launcher = Launcher()

    def outer(x):
        cuda.syncthreads()
        if cuda.threadIdx.x == 1:
            launcher.launch()
        cuda.syncthreads()
        x[cuda.threadIdx.x] = cuda.threadIdx.x

    x = np.zeros(3)
    simulate(outer, engine=engine)[1, 3](x)
    assert x.tolist() == [0, 1, 2] and inner_result.tolist() == [4, 4, 4, 4]


@pytest.mark.parametrize("engine", ENGINES)
def test_several_launches_at_once(engine, few):
    results, seeds = {}, few(range(4), 2)

    def launch(seed):
        results[seed] = recorded(seed=seed, engine=engine)

    threads = [threading.Thread(target=launch, args=(seed,)) for seed in seeds]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == {seed: recorded(seed=seed) for seed in seeds}


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("threads", (1, 8))
def test_interrupted_from_the_keyboard(engine, threads):
    @cuda.jit
    def slow(x):
        cuda.syncthreads()
        for _ in range(10**9):
            x[cuda.threadIdx.x] += 1

    # A background process may ignore this signal.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    timer = threading.Timer(0.3, signal.pthread_kill, (threading.main_thread().ident, signal.SIGINT))
    timer.start()
    began = time.monotonic()
    gc.disable()  # an exception in a callback of the garbage collector, such as that of Hypothesis, is lost
    try:
        with pytest.raises(KeyboardInterrupt):
            simulate(slow, engine=engine)[1, threads](np.zeros(8))
    finally:
        gc.enable()
        signal.signal(signal.SIGINT, before)
    assert time.monotonic() - began < 60
    assert recorded(seed=3) == recorded(seed=3, engine=engine)


def endless_without_accesses(x):
    while True:
        pass


def endless_for(x):
    for _ in range(10**15):
        pass


@pytest.fixture
def impatient(monkeypatch):
    """Treat a thread as stuck after two seconds or 5,000 iterations.

    test_no_progress uses the defaults, which are eight seconds and 1,000,000 iterations.
    """
    for module in (sim.loop_limits, sim.engine.watchdog):
        monkeypatch.setattr(module, "PATIENCE", 2.0)
    monkeypatch.setattr(sim.loop_limits, "FIRST_PATIENCE", 0.03)
    monkeypatch.setattr(sim.loop_limits, "DEFAULT_STEPS", 5_000)


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    "kernel, line",
    [(endless_with_loads, 2), (endless_without_accesses, 2), (endless_spin, 3), (endless_barriers, 2)],
)
def test_endless_loops_end_and_name_the_line(kernel, line, engine):
    began = time.monotonic()
    with pytest.raises(KernelBug) as caught:
        simulate(kernel, engine=engine)[1, 4](np.zeros(4))
    assert time.monotonic() - began < 60
    (finding,) = caught.value.findings
    assert finding.kind == "no-progress" and finding.accesses[0].site.line == line
    assert f"{kernel.__name__} line" in str(caught.value) and "thread" in str(caught.value)


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("engine", ENGINES)
def test_a_long_for_loop_is_undecided_and_gets_cpu_time(engine, monkeypatch):
    """Check the CPU time, too: another process that uses the CPU must not shorten the limit."""
    for module in (sim.loop_limits, sim.engine.watchdog):
        monkeypatch.setattr(module, "PATIENCE", 0.25)
        monkeypatch.setattr(module, "PATIENCE_FACTOR", 2)
    monkeypatch.setattr(sim.engine.watchdog, "INTERVAL", 0.05)
    began = time.process_time()
    report = simulate(endless_for, engine=engine, on_finding="report")[1, 4](np.zeros(4))
    (finding,) = report.findings
    assert finding.kind == "undecided" and "within 0.5 s" in finding.reason
    assert time.process_time() - began > 0.5


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("engine", ENGINES)
def test_an_endless_loop_with_accesses_in_a_kernel_without_source(engine):
    namespace = {"cuda": cuda}
    exec("def kernel(x):\n    cuda.syncthreads()\n    while x[0] == 0:\n        x[1] += 1\n", namespace)
    began = time.monotonic()
    with pytest.raises(KernelBug, match="thread 0 of block 0 loops  kernel line [34]"):
        simulate(namespace["kernel"], engine=engine)[1, 1](np.zeros(2))
    assert time.monotonic() - began < 60


def long(x, rounds):
    i = 0
    while i < 20_000:
        i += 1
    rounds[0] = i


def waits_for_a_long_loop(x, rounds):
    """Wait while only the counter of a thread that yields changes."""
    if cuda.threadIdx.x == 0:
        for _ in range(1_000):
            cuda.atomic.add(rounds, 0, 0)
        cuda.atomic.add(x, 0, 1)
    while cuda.atomic.add(x, 0, 0) == 0:
        pass


def each_waits_for_its_turn(x, rounds):
    t = cuda.blockIdx.x
    for i in range(25):
        while cuda.atomic.add(x, 0, 0) != cuda.gridDim.x * i + t:
            pass
        cuda.atomic.add(x, 0, 1)


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize(
    "kernel, blocks, threads", [(long, 1, 1), (waits_for_a_long_loop, 1, 8), (each_waits_for_its_turn, 8, 1)]
)
def test_a_long_loop_in_which_something_changes_is_right(kernel, blocks, threads):
    """Run a loop with up to ten times as many iterations as trigger a check."""
    report = simulate(kernel, observers=())[blocks, threads](np.zeros(1), np.zeros(1))
    assert report.findings == ()


@pytest.mark.parametrize("blocks", [1, 10_000])
def test_compiled_a_long_loop_is_judged_by_fibers(blocks, monkeypatch):
    def kernel(x):
        i = cuda.blockIdx.x - cuda.gridDim.x + 1
        while i < 20_000 and i >= 0:
            i += 1
        x[cuda.blockIdx.x] = i

    monkeypatch.setattr("sim.native.run.launch.WHILE_LIMIT", 5_000)
    x = np.zeros(blocks, np.int64)
    assert simulate(kernel, engine="native")[blocks, 1](x).findings == ()
    assert x[-1] == 20_000 and np.array_equal(x[:-1], np.arange(1 - blocks, 0))


def test_compiled_a_loop_with_a_barrier_counts_each_thread(monkeypatch):
    """Let the iterations of 64 threads together, but not those of one thread, exceed the limit."""

    def kernel(x):
        i = 0
        while i < 100:
            cuda.syncthreads()
            i += 1
        x[cuda.threadIdx.x] = i

    monkeypatch.setattr("sim.native.run.launch.WHILE_LIMIT", 5_000)
    simulation = simulate(kernel, engine="native")
    assert simulation[1, 64](np.zeros(64)).notes == (SMALL_WITHOUT_FINDING,)
    assert simulation[1, 32](np.zeros(32)).notes == ("compiled",)


def test_threads_that_repeat_themselves_are_found_soon(monkeypatch):
    def kernel(flag):
        while cuda.atomic.add(flag, cuda.threadIdx.x, 0) == 0:
            pass
        cuda.atomic.exch(flag, 1 - cuda.threadIdx.x, 1)

    monkeypatch.setattr(sim.loop_limits, "FIRST_PATIENCE", 0.05)
    monkeypatch.setattr(sim.loop_limits, "PATIENCE", 1e9)
    monkeypatch.setattr(sim.loop_limits, "DEFAULT_STEPS", 10**9)
    (finding,) = simulate(kernel, on_finding="report")[1, 2](np.zeros(2, np.int64)).findings
    assert finding.verdict == "a loop repeats without end"
    assert finding.reason.endswith("or for 0.05 s.")


def test_whether_a_loop_ends_that_changes_something_is_not_decided(monkeypatch):
    def kernel(x):
        left = x.shape[0]
        while left != 0:
            left -= 2

    monkeypatch.setattr(sim.loop_limits, "PATIENCE", 0.02)
    (finding,) = simulate(kernel, on_finding="report")[1, 1](np.zeros(3)).findings
    assert finding.verdict == "a loop repeats, and the simulator could not decide whether it ends"
    assert (
        finding.reason == "Something still changes, but no thread ended within 0.02 s or 8,388,608 accesses."
    )


def slow_loops():
    """Return (kernel, threads, whether it ends in time) for long loops whose state changes."""

    def index(x):
        i = 0
        while i < 80_000:
            i += 1

    def outer_index(x):
        for i in range(15_000):
            while cuda.atomic.add(x, 0, 1) < 3 * i:
                pass

    def taken(x):
        while cuda.atomic.add(x, 0, 1) < x[1]:
            pass

    def pushed(x):
        while x[0] >= 0:
            i = cuda.atomic.add(x, 0, 1)
            while cuda.atomic.add(x, 1, 0) <= i:
                pass
            cuda.atomic.add(x, 1, 1)
            cuda.atomic.add(x, 2 + i % 6, i)

    def turning(x):
        i = 0
        while i < 100_000:
            i = (i * 5 + 1) % 65_536

    return [
        (index, 1, True),
        (outer_index, 1, True),
        (taken, 4, True),
        (pushed, 4, False),
        (turning, 1, False),
    ]


@pytest.mark.parametrize(
    "kernel, threads, ends", slow_loops(), ids=lambda value: getattr(value, "__name__", None)
)
def test_a_slow_loop_goes_on_if_a_number_approaches_a_bound(kernel, threads, ends, monkeypatch):
    monkeypatch.setattr(sim.loop_limits, "PATIENCE", 0.4)
    monkeypatch.setattr(sim.loop_limits, "FIRST_PATIENCE", 0.04)
    clock, x = IterationClock(monkeypatch), np.array([0, 30_000, *[0] * 6])
    findings = simulate(kernel, engine="fibers", on_finding="report", observers=())[1, threads](x).findings
    assert (
        [f.verdict for f in findings] == []
        if ends
        else ["a loop repeats, and the simulator could not decide whether it ends"]
    )
    assert clock.seconds > 0.4 and (ends or clock.seconds < 2), clock.seconds


def endless_queue(items, head, tail):
    while tail[0] > 0:
        i = cuda.atomic.add(head, 0, 1)
        if i < tail[0]:
            items[i] += 1


def queue_that_ends(items, head, tail):
    while cuda.atomic.add(head, 0, 1) < 4_000:
        pass


@pytest.mark.parametrize("engine", ["fibers", "threads", "native"])
def test_a_queue_that_stays_empty_is_given_up_early(engine, monkeypatch):
    """Wait for an empty queue. Only the queue's counter and the values drawn from it grow."""
    monkeypatch.setattr(sim.loop_limits, "PATIENCE", 0.2)
    arguments = np.zeros(64, np.int32), np.zeros(1, np.int32), np.full(1, 64, np.int32)
    launched = simulate(endless_queue, on_finding="report", engine=engine)[1, 8]
    (finding,) = launched(*arguments).errors
    assert finding.kind == "undecided" and "within 0.2 s" in finding.reason
    assert simulate(queue_that_ends, engine=engine)[1, 8](*arguments).errors == ()


def test_a_loop_behind_an_error_is_not_awaited_longer(monkeypatch):
    """Loop after an out-of-bounds read, whose value keeps changing."""

    def kernel(x):
        i = 0
        while x[i] == 0 or i >= 3:
            i += 1

    monkeypatch.setattr(sim.loop_limits, "PATIENCE", 0.02)
    findings = simulate(kernel, on_finding="report")[1, 1](np.zeros(3)).findings
    assert [finding.kind for finding in findings] == ["out-of-bounds", "undecided"]
    assert "within 0.02 s" in findings[1].reason


def test_an_atomic_whose_result_nobody_reads_tells_threads_nothing():
    def kernel(bins, read):
        old = cuda.atomic.add(bins, 0, 1)
        if read:
            bins[1] = old

    def ignored(bins, read):
        old = cuda.atomic.add(bins, 0, 1)  # noqa: F841

    for one, schedules in ((kernel, True), (ignored, False)):
        report = simulate(one, engine="fibers")[2, 4](np.zeros(2, np.int64), False)
        assert ("schedules" in report.counters) == schedules


@pytest.mark.parametrize("engine", ["fibers", "threads", "native"])
def test_atomics_whose_results_are_unused_order_nothing(engine):
    # The order of the two atomics depends on the seed, so the store must not be ordered after the atomic of
    # the other thread.

    def kernel(x):
        i = cuda.grid(1)
        if i == 0 or i == 33:
            cuda.atomic.add(x, 0, 1)
        cuda.syncwarp()
        if i == 33:
            x[0] = 7
        cuda.syncwarp()

    for seed in range(4):
        report = simulate(kernel, engine=engine, seed=seed, on_finding="report")[2, 32](np.zeros(1, np.int64))
        assert [finding.kind for finding in report.findings] == ["race-global"], seed


class Atomics(Observer):
    def launch_started(self, context):
        context.counters["atomics"] = 0
        self.context = context

    def atomic_done(self, at, address, wrote, reach):
        self.context.counters["atomics"] += 1


def test_what_is_known_of_each_other_does_not_grow_while_threads_spin():
    """Let two blocks release their accesses and then poll each other many times."""
    order = HappensBefore()
    for block in (0, 1):
        order.release(block, 0, 0, 0, "grid")
    for segment in range(1, 50):
        for block in (0, 1):
            order.perform_atomic(block, 0, 0, segment, 16, True, "grid")
    assert max(len(segments) for segments, _ in order.history.values()) < 5


def test_threads_that_spin_do_not_ask_in_vain_for_ever():
    """Let 60 blocks compete for a lock. Without deprioritisation, they would make 3,600 attempts."""

    def kernel(lock, total):
        while cuda.atomic.cas(lock, 0, 0, 1) != 0:
            pass
        total[0] += 1
        cuda.atomic.exch(lock, 0, 0)

    total = np.zeros(1)
    report = simulate(kernel, observers=[Atomics])[60, 1](np.zeros(1, np.int64), total)
    assert total[0] == 60 and report.counters["atomics"] < 500


def test_a_watchdog_that_bites_between_two_threads_is_not_lost(monkeypatch):
    monkeypatch.setattr(Scheduler, "resolve_waits", lambda self, block: (_ for _ in ()).throw(Stuck))
    with pytest.raises(KernelBug, match="no-progress: a loop repeats without end"):
        simulate(last_writer)[1, 2](np.zeros(4), np.zeros(1, np.int64))


def test_max_steps():
    def count(x):
        i = 0
        while i < 100:
            i += 1
        x[0] = i

    x = np.zeros(1)
    simulate(count, max_steps=100)[1, 1](x)
    assert x[0] == 100
    with pytest.raises(KernelBug, match="99 iterations"):
        simulate(count, max_steps=99)[1, 1](x)


@pytest.mark.parametrize("engine", ENGINES)
def test_blocks_that_wait_for_each_other(engine):
    """Let a block spin on a flag that a later block sets."""

    @cuda.jit
    def kernel(flag, x):
        if cuda.blockIdx.x == 0:
            while cuda.atomic.add(flag, 0, 0) < 3:
                cuda.nanosleep(100)
            x[cuda.threadIdx.x] = 42
        elif cuda.threadIdx.x == 0:
            cuda.threadfence()
            cuda.atomic.add(flag, 0, 1)

    for seed in range(5):
        x = np.zeros(2)
        simulate(kernel, seed=seed, engine=engine)[4, 2](np.zeros(1, np.int32), x)
        assert x.tolist() == [42, 42]


@pytest.mark.parametrize("engine", ENGINES)
def test_grid_barrier(engine):
    x, y = np.zeros(32), np.zeros(32)
    simulate(grid_wide, engine=engine, seed=2)[4, 8](x, y)
    np.testing.assert_array_equal(y, 3 * np.arange(32)[::-1] + 3)


@pytest.mark.parametrize("engine", [*ENGINES, "native"])
def test_a_grid_barrier_returns_zero(engine):
    def kernel(out):
        i = cuda.grid(1)
        lane = cuda.shfl_sync(0xFFFFFFFF, i, 1)
        out[i] = lane + cuda.cg.this_grid().sync()

    out = np.zeros(64, np.int64)
    simulate(kernel, engine=engine)[2, 32](out)
    assert out.tolist() == [1] * 32 + [33] * 32


@pytest.mark.parametrize("engine", [*ENGINES, "native"])
def test_a_process_that_has_numbered_very_many_places_names_the_right_one(engine):
    def outside(x, out):
        out[cuda.threadIdx.x] = x[cuda.threadIdx.x + 1]

    SITES.sites += [None] * ((1 << 19) - len(SITES.sites))
    (finding,) = simulate(outside, engine=engine, on_finding="report")[1, 4](
        np.zeros(4), np.zeros(4)
    ).findings
    assert (
        finding.kind == "out-of-bounds"
        and finding.accesses[0].site.function == "outside"
        and finding.accesses[0].site.line == 2
    )


def test_places_are_numbered_once():
    def step(x):
        cuda.syncthreads()
        x[cuda.threadIdx.x] += 1

    simulate(step)[1, 4](np.zeros(4))
    before = len(SITES.sites)
    for engine in ("fibers", "native"):
        simulate(step, engine=engine)[1, 4](np.zeros(4))
    assert len(SITES.sites) <= before + 3  # sites that the native engine adds for its columns


def test_more_places_than_numbers_are_refused(monkeypatch):
    monkeypatch.setattr(SITES, "sites", range(1 << 30))
    with pytest.raises(LaunchError, match="start a new process"):
        SITES.add(Site("load", "of a test", 1, 0, ""))


def every_thread_draws(count, sums):
    """Count the threads of the grid. Every thread yields after each atomic."""
    for _ in range(3):
        cuda.atomic.add(count, 0, 1)
    while cuda.atomic.add(count, 1, 0) != 0:
        pass
    cuda.atomic.max(sums, cuda.blockIdx.x, cuda.threadIdx.x)


def waits_for_the_last_block(count, sums):
    if cuda.blockIdx.x == 5:
        cuda.atomic.exch(count, 0, 1)
    while cuda.atomic.add(count, 0, 0) == 0:
        pass


def waits_for_the_grid(count, sums):
    sums[cuda.blockIdx.x] = 1
    cuda.cg.this_grid().sync()


@pytest.fixture
def few_threads(monkeypatch):
    """Simulate a system that refuses to create another thread while 20 are running."""
    running = set()

    class Limited(threading.Thread):
        def start(self):
            if len(running) >= 20:
                raise RuntimeError("can't start new thread")
            running.add(self)
            super().start()

        def run(self):
            super().run()
            running.discard(self)

    limited = SimpleNamespace(Lock=threading.Lock, Thread=Limited)
    monkeypatch.setattr(sim.engine.os_thread, "threading", limited)
    monkeypatch.setattr("sim.reruns.MAX_TURNS", 500)
    yield
    assert not running


def counted(engine):
    """Return (count, sums, findings, notes) for 6 blocks of 8 threads that use the results of atomics."""
    count, sums = np.zeros(2, np.int64), np.zeros(6, np.int64)
    report = simulate(every_thread_draws, engine=engine)[6, 8](count, sums)
    return (
        count.tolist(),
        sums.tolist(),
        report.findings,
        [note for note in report.notes if "resident" in note],
    )


@pytest.mark.usefixtures("few_threads")
def test_blocks_wait_until_the_system_has_threads_for_them():
    *results, notes = counted("threads")
    assert results == [[144, 0], [7] * 6, ()] and results == [*counted("fibers")[:3]]
    assert [note.partition(",")[0] for note in notes] == [
        "the operating system has threads for 2 resident blocks only"
    ]


@pytest.mark.usefixtures("few_threads")
@pytest.mark.parametrize("kernel", [waits_for_the_grid, waits_for_the_last_block])
def test_a_launch_that_needs_more_resident_blocks_than_the_system_bears_is_refused(kernel, monkeypatch):
    monkeypatch.setattr(sim.loop_limits, "FIRST_PATIENCE", 0.05)
    count, sums = np.zeros(2, np.int64), np.zeros(6, np.int64)
    with pytest.raises(LaunchError, match="too few of them for the blocks that must be resident at once"):
        simulate(kernel, engine="threads")[6, 8](count, sums)
    assert not sums.any() and not count.any()
    assert simulate(kernel, engine="fibers")[6, 8](count, sums).errors == ()


def test_directions_of_numpy_scalars():
    assert directions([np.float32(1), np.float32(2), np.float32(2)]) == {0, 1}
