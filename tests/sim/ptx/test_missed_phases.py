"""Tests of waits at an mbarrier that can miss their phase, because nothing lets the next phase wait for them.

Whether a run misses the phase depends on the schedule. The order of the program decides in all schedules."""

import numpy as np
import pytest

from sim import cuda, load_ptx, simulate
from sim.isa import INSTRUCTIONS

# Thread 32 arrives twice at `full`, and the threads of the first warp wait for both phases.
KERNEL = """.version 8.0
.target sm_90
.address_size 64
.visible .entry k(.param .u64 p)
{
    .reg .b32 %r<4>; .reg .b64 %x<4>; .reg .pred %q, %p;
    .shared .align 8 .b64 full; .shared .align 8 .b64 empty;
    ld.param.u64 %x1, [p];
    mov.u32 %r1, %tid.x;
    setp.eq.u32 %q, %r1, 0;
    @%q mbarrier.init.shared.b64 [full], 1;
    @%q mbarrier.init.shared.b64 [empty], COUNT;
    bar.sync 0;
    setp.ge.u32 %q, %r1, 32;
    @%q bra OTHER;
    WAIT(A, full, 0)
    FREE
    WAIT(B, full, 1)
    bra END;
OTHER:
    setp.eq.u32 %q, %r1, 32;
    @!%q bra END;
    mbarrier.arrive.shared.b64 _, [full];
    TAKE
    mbarrier.arrive.shared.b64 _, [full];
END:
    mad.wide.u32 %x2, %r1, 4, %x1;
    st.global.u32 [%x2], %r1;
    ret;
}
"""
ARRIVE, ACQUIRE = "mbarrier.arrive.shared.b64 _, [empty];", "WAIT(C, empty, 0)"
RELAXED = "mbarrier.arrive.relaxed.cta.shared.b64 _, [empty];"
FIRST_LANE = "setp.eq.u32 %q, %r1, 0; @%q "


def findings(free, take, count, seed=0, engine="fibers"):
    text = KERNEL.replace("FREE", free).replace("TAKE", take).replace("COUNT", str(count))
    for name, barrier, parity in (("A", "full", 0), ("B", "full", 1), ("C", "empty", 0)):
        loop = f"{name}: mbarrier.try_wait.parity.shared.b64 %p, [{barrier}], {parity}; @!%p bra {name};"
        text = text.replace(f"WAIT({name}, {barrier}, {parity})", loop)
    launch = simulate(load_ptx(text)["k"], engine=engine, seed=seed, on_finding="report")[1, 64]
    return launch(np.zeros(64, np.int32)).findings


@pytest.mark.parametrize(
    ("free", "take", "count"),
    [
        ("", "", 1),  # nothing orders the second arrival after the first wait
        ("", ARRIVE + ACQUIRE, 1),  # the arriving thread waits for itself
        (f"{FIRST_LANE}{ARRIVE}", ACQUIRE, 1),  # for one lane of 32, and no lane waits for another
    ],
)
def test_a_phase_that_can_be_missed_is_found(free, take, count):
    for seed in range(3):
        (finding,) = findings(free, take, count, seed)
        assert finding.kind == "deadlock"
    assert {f.kind for f in findings(free, take, count, engine="threads")} == {"deadlock"}


@pytest.mark.parametrize(
    ("free", "take", "count"),
    [
        (ARRIVE, ACQUIRE, 32),
        (RELAXED, ACQUIRE, 32),
        (f"bar.warp.sync 0xffffffff; {FIRST_LANE}{ARRIVE}", ACQUIRE, 1),
        (f"vote.sync.any.pred %q, %q, 0xffffffff; {FIRST_LANE}{ARRIVE}", ACQUIRE, 1),
    ],
)
def test_an_arrival_that_waits_for_the_waiting_threads_is_right(free, take, count):
    for seed in range(3):
        assert not findings(free, take, count, seed), seed


init, arrive, is_over = (INSTRUCTIONS[f"mbarrier_{name}"] for name in ("init", "arrive", "test_wait_parity"))


@cuda.jit
def handed_on(out, acknowledged):
    bars = cuda.shared.array(2, np.int64)
    if cuda.threadIdx.x == 0:
        init(bars, 0, 1)
        init(bars, 1, 1)
    cuda.syncthreads()
    for i in range(2):
        if cuda.threadIdx.x == 0:
            arrive(bars, 0)
            while acknowledged and not is_over(bars, 1, i):
                pass
        else:
            while not is_over(bars, 0, i):
                pass
            arrive(bars, 1)
    out[cuda.threadIdx.x] = 1


def test_python_kernels():
    launch = simulate(handed_on, on_finding="report")[1, 2]
    assert not launch(np.zeros(2), True).findings
    (finding,) = launch(np.zeros(2), False).findings
    assert finding.kind == "deadlock"
