"""Tests that "clean" implies "watched".

On every engine, a report states the fraction of a launch that each observer has seen, and notes events that
no observer has seen.
"""

import numpy as np
import pytest
from numba import cuda, float32

from sim import LaunchError, load_ptx, simulate
from sim.events import Observer
from sim.hooks import HOOKS
from sim.native.run import launch as native_launch
from sim.observers import COUNTERS, DEFAULT, Branches, Trace, Traffic

ENGINES = "fibers", "threads", "native"


def stranger(hook):
    """Return a third-party observer class that counts one event."""
    members = {hook: lambda self, *facts: setattr(self, "seen", self.seen + 1), "seen": 0}
    return type(f"Of_{hook}", (Observer,), members)


@cuda.jit
def everything(x, out):
    s = cuda.shared.array(32, float32)
    t = cuda.threadIdx.x
    mine = cuda.local.array(2, float32)
    if t < 30:
        mine[0] = x[t]
    s[t] = mine[0]
    cuda.threadfence()
    cuda.syncthreads()
    cuda.syncwarp()
    cuda.atomic.add(out, t, cuda.shfl_down_sync(0xFFFFFFFF, s[t], 1) + 0.5)
    if t > 100:
        unset = 1
    if t == 31:
        out[t + 1] = unset


@cuda.jit
def of_grid(x, out):
    cuda.cg.this_grid().sync()
    out[cuda.grid(1)] = 1


# Neither kernel causes these events: asynchronous copies, named barriers, mbarriers, the async proxy and
# setmaxnreg.
ELSEWHERE = {"arrived", "passed", "copy_sent", "copies_received", "copies_tracked"}
ELSEWHERE |= {"async_issued", "async_done", "async_tracked", "proxy_fenced", "bytes_expected"}
ELSEWHERE |= {"phase_ended", "registers_changed"}


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("hook", [hook for hook in HOOKS if hook not in ELSEWHERE])
def test_every_engine_calls_every_hook_of_an_observer_of_somebody_else(hook, engine):
    observers = stranger(hook)(), stranger("access_refused")()  # A refused access does not end the launch.
    kernel = of_grid if hook == "grid_barrier_opened" else everything
    launch = simulate(kernel, engine=engine, observers=observers, on_finding="report")[1, 32]
    report = launch(np.ones(32, np.float32), np.zeros(32, np.int32))
    assert observers[0].seen and report.watched == {type(observer).__name__: 1 for observer in observers}
    assert not any("watched" in note for note in report.notes)


@cuda.jit
def doubled(x, out):
    i = cuda.grid(1)
    if i < x.size:
        out[i] = 2 * x[i]


PTX = """.version 8.0
.target sm_80
.address_size 64
.visible .entry doubled(.param .u64 x, .param .u64 out)
{
    .reg .b64 %rd<6>;
    .reg .b32 %r<2>;
    .reg .f32 %f<2>;
    .reg .pred %p<2>;
    ld.param.u64 %rd1, [x];
    ld.param.u64 %rd2, [out];
    mov.u32 %r1, %tid.x;
    setp.gt.u32 %p1, %r1, 63;
    @%p1 bra DONE;
    mul.wide.u32 %rd3, %r1, 4;
    add.s64 %rd4, %rd1, %rd3;
    add.s64 %rd5, %rd2, %rd3;
    ld.global.f32 %f1, [%rd4];
    add.f32 %f1, %f1, %f1;
    st.global.f32 [%rd5], %f1;
DONE:
    ret;
}
"""
KERNELS = {"python": lambda: doubled, "ptx": lambda: load_ptx(PTX)["doubled"]}
OBSERVERS = (
    *DEFAULT,
    *COUNTERS,
    Trace,
    *map(stranger, ("accesses", "branches", "collective", "block_ended")),
)
BLIND = (Branches, *map(stranger, ("branches", "collective", "block_ended", "fenced", "unassigned")))


def launched(language, engine, observers):
    arrays = np.ones(64, np.float32), np.zeros(64, np.float32)
    return simulate(KERNELS[language](), engine=engine, observers=observers)[1, 64](*arrays)


def test_observers_of_one_name_have_the_least_share_of_them():
    observers = stranger("accesses")(), stranger("accesses")()
    observers[0].share = 0.5
    assert launched("python", "fibers", observers).watched == {"Of_accesses": 0.5}


@pytest.mark.parametrize("language", KERNELS)
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("observer", OBSERVERS, ids=lambda observer: observer.__name__)
def test_a_report_says_what_each_observer_has_watched(observer, engine, language):
    report = launched(language, engine, [*DEFAULT, observer])
    assert report.watched == {tool.__name__: 1 for tool in (*DEFAULT, observer)}
    assert not any("watched" in note for note in report.notes)


NOBODY = "no observer has checked the accesses to memory"


@pytest.mark.parametrize("language", KERNELS)
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("observers", [(), *((one,) for one in BLIND), BLIND], ids=len)
def test_accesses_that_no_observer_watches_are_a_note(observers, engine, language):
    assert NOBODY in launched(language, engine, observers).notes
    assert NOBODY in str(launched(language, engine, observers))
    assert NOBODY not in launched(language, engine, [*observers, stranger("accesses")]).notes


UNCHECKED = "nothing has checked the launch: its observers only count or record events"


@pytest.mark.parametrize("language", KERNELS)
@pytest.mark.parametrize("engine", [*ENGINES, "auto"])
@pytest.mark.parametrize("observers", [COUNTERS, [Traffic], [Trace], [*COUNTERS, Trace]], ids=len)
def test_a_launch_that_is_only_measured_has_a_note(observers, engine, language):
    report = launched(language, engine, observers)
    assert UNCHECKED in report.notes and UNCHECKED in str(report)
    for check in (*DEFAULT, stranger("accesses")):
        assert UNCHECKED not in launched(language, engine, [*observers, check]).notes


# --- parts that an engine or an observer leaves out ---------------------------------------------------------


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("space", ["shared", "local"])
@pytest.mark.parametrize("observer", OBSERVERS, ids=lambda observer: observer.__name__)
def test_arrays_of_objects_are_not_watched(observer, space, engine):
    def shared(out):
        parts = cuda.shared.array(4, np.object_)
        parts[cuda.threadIdx.x] = 1
        out[cuda.threadIdx.x] = parts[cuda.threadIdx.x]

    def local(out):
        parts = cuda.local.array(4, np.object_)
        parts[0] = 1
        out[cuda.threadIdx.x] = parts[0]

    kernel = {"shared": shared, "local": local}[space]
    report = simulate(kernel, engine=engine, observers=[*DEFAULT, observer])[1, 4](np.zeros(4))
    assert (
        f"accesses to {space} arrays of objects are not checked: {space} line 2 "
        f" parts = cuda.{space}.array(4, np.object_)"
    ) in report.notes


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("observer", [Branches, stranger("branches")])
def test_branches_of_a_kernel_without_source_are_not_watched(observer, engine):
    namespace = {"cuda": cuda}
    exec("def kernel(x):\n    if cuda.threadIdx.x < 3:\n        x[cuda.threadIdx.x] = 1", namespace)
    report = simulate(namespace["kernel"], engine=engine, observers=[observer])[1, 4](np.zeros(4))
    name = observer.__name__
    assert report.watched == {name: 0}
    assert f"{name} has not observed all branches: kernel has no source code" in report.notes


@pytest.mark.parametrize("language", KERNELS)
@pytest.mark.parametrize("engine", ENGINES)
def test_a_trace_says_which_share_it_has_recorded(engine, language):
    report = launched(language, engine, [*DEFAULT, Trace(limit=32)])
    assert report.watched["Trace"] == 0.25 and len(report.trace) == 32
    assert "Trace has recorded only 25.0% of the events that it observes" in report.notes


@cuda.jit
def last_block_is_long(x):
    for _ in range(2_000 if cuda.blockIdx.x == cuda.gridDim.x - 1 else 1):
        x[cuda.grid(1)] += 1


@pytest.mark.parametrize("observer", [*COUNTERS, Trace, stranger("accesses")], ids=lambda o: o.__name__)
def test_a_block_that_the_log_of_compiled_code_has_no_room_for(observer, monkeypatch):
    monkeypatch.setattr(native_launch, "LOG_CAPACITY", 70_000)
    launch = simulate(last_block_is_long, engine="native", observers=[*DEFAULT, observer])
    report = launch[600, 32](np.zeros(600 * 32))
    name = observer.__name__
    wants = observer is not Branches
    assert report.watched[name] == pytest.approx(599 / 600) or not wants
    assert any(note.startswith(f"{name} watched 599 of 600 blocks: ") for note in report.notes)
    assert all(report.watched[tool.__name__] == 1 for tool in DEFAULT)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("observer", [*COUNTERS, Trace, *DEFAULT], ids=lambda o: o.__name__)
def test_what_a_thread_did_before_it_was_ended(observer, engine):
    """Observers receive the accesses of a thread that loops without an end, because an undefined value may be
    the reason for the loop."""

    def kernel(x):
        t = cuda.threadIdx.x
        if cuda.blockIdx.x == 0:
            x[t] = 1
        else:
            while x[t] >= 0:
                x[t + 4] += 1

    launch = simulate(
        kernel, engine=engine, observers=[stranger("accesses"), observer], max_steps=500, on_finding="report"
    )
    report = launch[2, 1](np.zeros(8))
    assert [finding.kind for finding in report.findings if finding.kind == "no-progress"]
    assert not any("threads that were ended" in note for note in report.notes)
    assert report.watched["Of_accesses"] == 1


@pytest.mark.parametrize("engine", ENGINES)
def test_accesses_of_ended_threads_appear_as_a_note(engine):
    """End threads that wait for an atomic flag. Their accesses are incomplete, so no observer receives them."""

    def waits(x, flag):
        x[cuda.threadIdx.x] = 1
        while cuda.atomic.add(flag, 0, 0) == 0:
            pass

    launch = simulate(waits, engine=engine, max_steps=1_000, on_finding="report")
    report = launch[1, 4](np.zeros(4), np.zeros(1, np.int32))
    assert [finding.kind for finding in report.findings] == ["no-progress"]
    assert report.watched["Races"] < 1
    assert any("accesses of threads that were stopped have not been checked" in note for note in report.notes)


def test_a_hook_on_an_instance_is_refused():
    """Set a hook on an instance, which is refused. It would never be called, but its observer would count as
    watching."""
    observer = Observer()
    observer.accesses = print
    with pytest.raises(LaunchError, match="wanted a subclass of Observer with a method accesses"):
        simulate(lambda x: None, observers=[observer])
