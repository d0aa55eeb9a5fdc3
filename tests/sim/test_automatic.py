"""Tests of the engine "auto": which launches it compiles, and that its results equal those of `fibers`."""

import itertools
import weakref
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
from numba import cuda, float32

from corpus_cases import CASES, launched
from example_kernels import endless_barriers
from sim import LaunchError, automatic, launch, load_ptx, loop_limits, simulate
from sim.automatic import NOTE, Automatic, WorkLeft
from sim.observers import COUNTERS, DEFAULT, Races, Trace
from sim.ptx.program import SYNCHRONISATION


@pytest.fixture
def early(monkeypatch):
    """Let the engine "auto" compile a launch after a few accesses."""
    monkeypatch.setitem(launch.ENGINES, "auto", partial(Automatic, launch.native_engine, work=20))


def increase(x):
    i = cuda.grid(1)
    if i < x.size:
        x[i] += 1


def smooth(x):
    """Add up the elements of the block, after two barriers."""
    shared = cuda.shared.array(32, float32)
    t, i = cuda.threadIdx.x, cuda.grid(1)
    shared[t] = x[i]
    cuda.syncthreads()
    for step in (16, 8, 4, 2, 1):
        if t < step:
            shared[t] += shared[t + step]
        cuda.syncthreads()
    x[i] += shared[0]


def rotate(x):
    """Load an element that another block has stored, after two grid barriers."""
    grid, i = cuda.cg.this_grid(), cuda.grid(1)
    for _ in range(4):
        other = x[(i + 40) % x.size]
        grid.sync()
        x[i] = other + 1
        grid.sync()


def printing(x):
    print(cuda.grid(1))
    increase_one(x)


@cuda.jit(device=True)
def increase_one(x):
    x[cuda.grid(1)] += 1


def counting(x):
    """Let the order of the threads determine which element each thread gets."""
    x[cuda.atomic.add(x, 0, 1) % 8 + 1] += 1


COUNT = """
.version 7.0
.target sm_80
.address_size 64
.visible .global .align 4 .u32 launches;
.visible .entry count(.param .u64 out)
{
    .reg .b32 %r<8>;
    .reg .b64 %rd<5>;
    ld.param.u64 %rd1, [out];
    mov.u32 %r1, %ctaid.x;
    mov.u32 %r2, %tid.x;
    mad.lo.s32 %r3, %r1, 32, %r2;
    mul.wide.s32 %rd2, %r3, 4;
    add.s64 %rd3, %rd1, %rd2;
    ld.global.u32 %r4, [%rd3];
    add.s32 %r4, %r4, 1;
    st.global.u32 [%rd3], %r4;
    mov.u64 %rd4, launches;
    red.global.add.u32 [%rd4], 1;
    ret;
}
"""


@pytest.mark.parametrize("kernel", [increase, smooth, rotate], ids=lambda kernel: kernel.__name__)
def test_a_long_launch_is_started_again_in_compiled_code(kernel, early):
    found = {}
    for engine in ("fibers", "auto"):
        x = np.arange(320, dtype=np.float32)
        report = simulate(kernel, engine=engine)[10, 32](x)
        found[engine] = x.tolist(), report.counters, report.watched
    assert found["auto"] == found["fibers"]
    assert (report.engine, report.notes) == ("native", ("compiled", NOTE))


def test_a_short_launch_is_interpreted():
    report = simulate(increase)[10, 32](np.zeros(320))
    assert (report.engine, report.notes) == ("fibers", ())


def engines_of_launches(kernel, count, **options):
    """Return the engine of each of `count` launches, of 3,200 units of work each."""
    return [simulate(kernel, **options)[10, 32](np.zeros(321)).engine for _ in range(count)]


def fix_estimate(monkeypatch):
    """Fix the estimate of the compile time, so that it does not depend on the speed of the compiler."""
    for name, value in (("COMPILE_SECONDS", 0.25), ("FIRST_SECONDS", 0.0), ("INSTRUCTIONS", 900)):
        monkeypatch.setattr(automatic, name, value)


@pytest.fixture
def after_three(monkeypatch):
    """Let "auto" compile a kernel after three launches of 3,200 units, whatever their CPU time."""
    monkeypatch.setattr(automatic, "SECONDS", 1e9)
    fix_estimate(monkeypatch)
    monkeypatch.setitem(launch.ENGINES, "auto", partial(Automatic, launch.native_engine, work=38_000))


def test_the_work_of_earlier_launches_counts(after_three):
    def kernel(x):
        x[cuda.grid(1)] += 1

    assert engines_of_launches(kernel, 5) == ["fibers"] * 3 + ["native"] * 2


def test_launches_with_findings_do_not_count(after_three):
    def kernel(x):
        x[cuda.grid(1) + 2] += 1  # is outside for the last thread

    assert engines_of_launches(kernel, 5, on_finding="report") == ["fibers"] * 5


def test_a_kernel_that_cannot_be_compiled_is_tried_again_after_further_launches(after_three, monkeypatch):
    def kernel(x):
        x[cuda.grid(1)] += 1
        if x.size == 0:
            print("empty")

    number, attempts, native = 0, [], launch.native_engine()
    monkeypatch.setattr(native, "lower", lambda launch: attempts.append(number))
    for number in range(1, 10):
        assert engines_of_launches(kernel, 1) == ["fibers"]
    assert attempts == [4, 8]


@pytest.mark.parametrize("least, blocks", [(0.0, 0), (1e9, 1)])
def test_a_launch_of_many_blocks_is_compiled_in_or_after_its_first_block(least, blocks, monkeypatch):
    def kernel(x):
        x[cuda.grid(1)] += 1

    ended, take_over = [], automatic.WatchedGrid.take_over
    monkeypatch.setattr(
        automatic.WatchedGrid, "take_over", lambda self: ended.append(self.ended) or take_over(self)
    )
    # The work of a block is 32 turns and 64 accesses, which are 320 units.
    monkeypatch.setattr(automatic, "LEAST_TIME", least)
    monkeypatch.setitem(launch.ENGINES, "auto", partial(Automatic, launch.native_engine, work=1000))
    assert simulate(kernel)[200, 32](np.zeros(6400)).engine == "native"
    assert ended == [blocks]


@pytest.mark.parametrize(
    "blocks, ends, started, work, left",
    [
        (1, [], 1, 3, 3),  # a single block is expected to take as long as until now
        (8, [], 1, 3, 21),  # each further block is expected to take as long as the first one until now
        (8, [], 8, 3, 3),  # all blocks have started, as at a grid barrier
        (2, [3], 2, 5, 1),  # the second block is expected to take as long as the first one
        (2, [3], 2, 8, 2),  # the second block has taken longer than the first one
        (8, [3, 9], 3, 9, 27),  # the average of a block is 4.5
        (3, [1], 2, 12, 21),  # the average of the first two blocks is expected to be 11
    ],
)
def test_the_work_that_is_left_is_estimated_from_the_blocks(blocks, ends, started, work, left):
    """Compare the estimate of a launch whose blocks ended at the work in `ends`."""
    estimate = WorkLeft(blocks)
    for ended, at in enumerate(ends, 1):
        estimate.block_ended(ended + 1, at)
    assert estimate.estimate(started, work) == pytest.approx(left)


def test_blocks_that_wait_for_each_other_do_not_count_as_one_block(monkeypatch):
    # When the first block ends, the other blocks have done nearly all of their work.
    monkeypatch.setattr(automatic, "taken_over", set())
    fix_estimate(monkeypatch)
    monkeypatch.setitem(launch.ENGINES, "auto", partial(Automatic, launch.native_engine, work=95_000))
    assert simulate(rotate)[10, 32](np.arange(320, dtype=np.float32)).engine == "fibers"


def test_a_launch_with_long_loops_without_accesses_is_compiled(monkeypatch):
    def kernel(x):
        number = cuda.grid(1)
        for i in range(100):
            number = (number * 75 + i) % 65537
        x[cuda.grid(1)] = number

    found = {}
    for seconds, engine in ((1e9, "fibers"), (1e-9, "native")):
        monkeypatch.setattr(automatic, "SECONDS", seconds)
        x = np.zeros(320, np.int64)
        report = simulate(kernel)[10, 32](x)
        assert report.engine == engine
        found[engine] = x.tolist(), report.findings, report.counters
    assert found["native"] == found["fibers"]


@pytest.mark.parametrize(("tick", "engine"), [(0.001, "fibers"), (0.05, "native")])
def test_the_work_left_is_estimated_from_the_time_of_the_first_block(tick, engine, monkeypatch):
    """Let each reading of the clock add `tick` seconds. The clock is read about 20 times in the first block."""
    clock = itertools.count(0.0, tick)
    monkeypatch.setattr(automatic, "time", SimpleNamespace(thread_time=lambda: next(clock)))

    def kernel(x):
        x[cuda.grid(1)] += 1

    assert simulate(kernel)[10, 32](np.zeros(320)).engine == engine


@pytest.mark.parametrize(("slower", "engine"), [(1000, "fibers"), (0.001, "native")])
def test_a_launch_on_a_slow_machine_is_compiled_later(slower, engine, monkeypatch):
    """Let each reading of the clock add 10 ms, on machines of different speeds."""
    clock = itertools.count(0.0, 0.01)
    monkeypatch.setattr(automatic, "time", SimpleNamespace(thread_time=lambda: next(clock)))
    monkeypatch.setattr(automatic, "slowness", lambda: slower)

    def kernel(x):
        x[cuda.grid(1)] += 1

    assert simulate(kernel)[10, 32](np.zeros(320)).engine == engine


def test_the_speed_of_the_machine_is_measured():
    assert 0.05 < automatic.slowness() < 50 and automatic.slowness() == automatic.slowness()


@pytest.mark.parametrize(("compiled", "engine"), [(False, "fibers"), (True, "native")])
def test_a_compiled_kernel_is_restarted_early(compiled, engine, monkeypatch):
    def kernel(x):
        x[cuda.grid(1)] += 1

    # The only block does 3,200 units of work, between LEAST_RESTART_TIME and LEAST_TIME times the work of a
    # second. This is enough for an estimate only if the kernel has been compiled.
    monkeypatch.setattr(automatic, "SECONDS", 1e9)
    monkeypatch.setattr(automatic, "taken_over", weakref.WeakSet([kernel] * compiled))
    monkeypatch.setitem(launch.ENGINES, "auto", partial(Automatic, launch.native_engine, work=30_000))
    assert simulate(kernel)[1, 320](np.zeros(320)).engine == engine


def test_a_barrier_counts_as_many_instructions():
    programs = [
        load_ptx(COUNT.replace("ret;", barriers * "bar.sync 0;\n" + "ret;"))["count"].program()[0]
        for barriers in (0, 20)
    ]
    without, with_barriers = (program.count_instructions() for program in programs)
    assert with_barriers == without + 20 * (1 + SYNCHRONISATION)


def test_variables_of_a_module_are_restored(early):
    module, out = load_ptx(COUNT), np.zeros(320, np.uint32)
    assert simulate(module["count"])[10, 32](out).engine == "native"
    assert (out == 1).all() and module.variable["launches"] == 320


TICKETS = """
.version 7.0
.target sm_80
.address_size 64
.visible .entry tickets(.param .u64 out)
{
    .reg .pred %p; .reg .b32 %r<4>; .reg .b64 %d<6>; .shared .align 8 .b64 phase;
    ld.param.u64 %d1, [out];
    mov.u32 %r1, %tid.x;
    setp.ne.u32 %p, %r1, 0;
    @%p bra READY;
    mbarrier.init.shared.b64 [phase], 32;
READY:
    bar.sync 0;
    TAKE
    mul.wide.u32 %d2, %r2, 4;
    add.s64 %d3, %d1, %d2;
    st.global.u32 [%d3+4], %r1;
    mbarrier.arrive.shared.b64 %d4, [phase];
WAIT:
    mbarrier.test_wait.shared.b64 %p, [phase], %d4;
    @!%p bra WAIT;
    ret;
}
"""


@pytest.mark.parametrize(
    "take, attempts",
    [("atom.global.add.u32 %r2, [%d1], 1;", 0), ("mov.u32 %r3, %ctaid.x; mad.lo.u32 %r2, %r3, 32, %r1;", 1)],
    ids=["by an atomic", "by the index"],
)
def test_a_kernel_with_mbarriers_is_not_lowered_if_it_acts_on_atomics(take, attempts, early, monkeypatch):
    lowered, native = [], launch.native_engine()
    lower = native.lower
    monkeypatch.setattr(native, "lower", lambda launch: lowered.append(launch) or lower(launch))
    kernel, out = load_ptx(TICKETS.replace("TAKE", take))["tickets"], np.zeros(65, np.uint32)
    report = simulate(kernel)[2, 32](out)
    assert not report.findings and len(lowered) == attempts
    assert sorted(out[1:]) == sorted([*range(32)] * 2)


INTERPRETED = {
    "prints": (printing, dict),
    "acts on atomics": (counting, dict),
    "max_steps": (increase, lambda: {"max_steps": 10**6}),
    "trace": (increase, lambda: {"observers": [*DEFAULT, Trace]}),
    "counters with a state": (increase, lambda: {"observers": [observer() for observer in COUNTERS]}),
}


@pytest.mark.parametrize("name", INTERPRETED)
def test_some_launches_are_always_interpreted(name, early, capsys):
    kernel, options = INTERPRETED[name]
    found = {}
    for engine in ("fibers", "auto"):
        x = np.zeros(32, np.int32)
        report = simulate(kernel, engine=engine, on_finding="report", **options())[4, 8](x)
        found[engine] = x.tolist(), report, capsys.readouterr().out
    assert found["auto"] == found["fibers"]


def test_a_launch_continues_if_numba_is_not_installed(monkeypatch):
    def refuse():
        raise LaunchError("Numba is not installed")

    monkeypatch.setitem(launch.ENGINES, "auto", partial(Automatic, refuse, work=20))
    x = np.zeros(320)
    report = simulate(increase)[10, 32](x)
    assert (report.engine, report.notes) == ("fibers", ()) and (x == 1).all()


@pytest.mark.parametrize("engine, stride", [("fibers", 0), ("native", 1)])
def test_a_launch_with_a_finding_is_not_compiled(engine, stride, monkeypatch):
    """Let the first block race or not. The work suffices for compilation only in the second block."""
    monkeypatch.setattr(automatic, "LEAST_TIME", 1e9)
    monkeypatch.setitem(launch.ENGINES, "auto", partial(Automatic, launch.native_engine, work=400))

    def store(x, stride):
        x[cuda.grid(1) * stride] = cuda.grid(1)

    report = simulate(store, on_finding="report")[10, 32](np.zeros(320), stride)
    assert report.engine == engine
    assert {finding.kind for finding in report.findings} == ({"race-global"} if stride == 0 else set())


def test_more_instructions_need_more_work(monkeypatch):
    """Compile a kernel of several instructions only in a launch with more work."""
    monkeypatch.setattr(automatic, "INSTRUCTIONS", 1)
    monkeypatch.setitem(launch.ENGINES, "auto", partial(Automatic, launch.native_engine, work=200))

    def triple(x):
        x[cuda.grid(1)] *= 3

    assert simulate(triple)[10, 32](np.ones(320)).engine == "fibers"
    assert simulate(triple)[1000, 32](np.ones(32000)).engine == "native"
    # This process has compiled the kernel now, so a small launch suffices.
    assert simulate(triple)[10, 32](np.ones(320)).engine == "native"


def test_a_launch_too_short_for_its_instructions_is_not_lowered(monkeypatch):
    asked = []
    monkeypatch.setattr(automatic, "INSTRUCTIONS", 1)
    monkeypatch.setitem(
        launch.ENGINES, "auto", partial(Automatic, lambda: asked.append(launch.native_engine()), work=200)
    )

    def double(x):
        x[cuda.grid(1)] *= 2

    assert simulate(double)[10, 32](np.ones(320)).engine == "fibers" and not asked


def test_an_endless_loop_is_left_to_the_interpreter(early, monkeypatch):
    monkeypatch.setattr("sim.native.run.launch.FIRST_LIMIT", 1 << 12)
    monkeypatch.setattr("sim.native.run.launch.FIRST_SECONDS", -1)
    monkeypatch.setattr(loop_limits, "FIRST_PATIENCE", 0.05)
    report = simulate(endless_barriers, on_finding="report")[1, 32](np.zeros(1))
    assert report.engine == "native" and [finding.kind for finding in report.findings] == ["no-progress"]


def test_the_state_of_an_observer_is_restored(early):
    """Use an instance of Races in the interpreter, and then in compiled code that finds a race."""

    def late(x):
        if cuda.blockIdx.x == 9:
            x[0] = cuda.threadIdx.x

    races = Races(allow_equal_writes=True)
    found = [
        simulate(late, engine=engine, observers=[races], on_finding="report")[10, 32](np.zeros(1)).findings
        for engine in ("fibers", "auto")
    ]
    assert found[0] == found[1] != ()


@pytest.mark.parametrize("name", [*CASES][::40])
@pytest.mark.parametrize("twin", ["buggy", "fixed"])
def test_findings_are_those_of_fibers(name, twin, early):
    (wanted, left), (found, values) = (launched(CASES[name], twin, engine=e) for e in ("fibers", "auto"))
    assert found.findings == wanted.findings and found.counters == wanted.counters
    for argument, value in left.items():
        np.testing.assert_array_equal(values[argument], value)
