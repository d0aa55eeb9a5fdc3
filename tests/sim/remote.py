"""Launches that run in another process. tests/sim/test_pickling.py sends these functions to a worker."""

from pathlib import Path

import numpy as np
from numba import cuda, int32

from ptx.corpus import CASES
from sim import KernelBug, load_ptx, simulate
from sim.observers import COUNTERS, DEFAULT, Trace

TOOLS = (*DEFAULT, *COUNTERS, Trace)
FILES = Path(__file__).parent / "ptx" / "cuda"
HAND_WRITTEN = """.version 8.0
.target sm_80
.address_size 64
.visible .entry race(.param .u64 x)
{
    .reg .b64 %rd<3>;
    .reg .b32 %r<2>;
    ld.param.u64 %rd1, [x];
    cvta.to.global.u64 %rd2, %rd1;
    mov.u32 %r1, %tid.x;
    st.global.u32 [%rd2], %r1;
    ret;
}
"""


@cuda.jit(device=True)
def mirrored(t):
    return 31 - t


@cuda.jit
def reverse(x):
    s = cuda.shared.array(32, int32)
    t = cuda.threadIdx.x
    s[t] = x[t]  # The elements are integers, because the poison of floats is NaN, which is unequal to itself.
    x[mirrored(t)] = s[mirrored(t)]
    x[t + 1] = 0


@cuda.jit
def raises(x):
    assert x[cuda.threadIdx.x] > 1


def python(engine):
    return reverse, (1, 32), (np.ones(32, np.int32),), engine


def ptx(engine):
    return load_ptx(HAND_WRITTEN)["race"], (1, 64), (np.zeros(64, np.uint32),), engine


def cuda_cpp(engine):
    case, name = CASES["sum_in_shared"], FILES / "sum_in_shared"
    source = name.with_suffix(".cu").read_text()
    module = load_ptx(name.with_suffix(".ptx").read_text(), source=source)
    return module["bug"], (case.grid, case.block), case.arguments(), engine


def report(make, engine, observers=TOOLS):
    """Return the report of one launch with all optional parts."""
    kernel, configuration, arguments, engine = make(engine)
    how = simulate(kernel, engine=engine, on_finding="report", observers=observers)
    return how[configuration](*arguments)


def pictures(found):
    """Return all figures and tables of a report as text."""
    return str(found), found._repr_html_(), str(found.by_line())


def shown(make, engine):
    """Return a report and everything that it displays in the process that ran the launch."""
    found = report(make, engine)
    return found, pictures(found)


def bug(make, engine):
    """Raise the KernelBug of a launch."""
    kernel, configuration, arguments, engine = make(engine)
    simulate(kernel, engine=engine)[configuration](*arguments)


def bug_and_text(make, engine):
    """Return the KernelBug of a launch, and its text."""
    try:
        bug(make, engine)
    except KernelBug as found:
        return found, str(found)
    raise AssertionError("the launch has no finding")


def refused():
    """Raise the LaunchError for a block that is too large."""
    simulate(reverse)[1, 2048](np.ones(32, np.int32))


def failing():
    """Raise the ThreadError of an assertion."""
    simulate(raises)[1, 32](np.ones(32, np.int32))
