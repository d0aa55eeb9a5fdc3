"""Tests of the limits of the simulated address space.

A launch whose last allocation just fits is checked like any other. If it does not fit, the launch is refused.
"""

import itertools

import numpy as np
import pytest
from numba import cuda, float32

import sim
from sim import LaunchError, load_ptx, simulate
from sim.events import SPACES
from sim.memory.spaces import ALIGNMENT, AddressSpace, bind_arguments, in_binary_units, round_up
from sim.ptx.heap_state import BASE, GUARD, HeapSnapshot
from sim.ptx.module import Module
from sim.ptx.regions import NARROW_GAP, PERSISTENT_SPACES, RESERVED, Addresses, PaddedSpace

THREADS, LENGTH = 64, 60
NBYTES = 4 * LENGTH
TABLE = np.arange(LENGTH, dtype=np.float32)


@cuda.jit
def global_race(x):
    x[0] = cuda.threadIdx.x


@cuda.jit
def global_outside(x):
    x[cuda.threadIdx.x] = 1


@cuda.jit
def global_unwritten(x):
    i = cuda.threadIdx.x
    if i < x.size:
        x[i] += 1


@cuda.jit
def shared_race(x):
    tile = cuda.shared.array(LENGTH, float32)
    tile[0] = cuda.threadIdx.x
    if cuda.threadIdx.x < x.size:
        x[cuda.threadIdx.x] = 1


@cuda.jit
def shared_outside(x):
    tile = cuda.shared.array(LENGTH, float32)
    tile[cuda.threadIdx.x] = 1
    if cuda.threadIdx.x < LENGTH:
        x[cuda.threadIdx.x] = tile[cuda.threadIdx.x]


@cuda.jit
def shared_unwritten(x):
    tile = cuda.shared.array(LENGTH, float32)
    if cuda.threadIdx.x < LENGTH:
        x[cuda.threadIdx.x] = tile[cuda.threadIdx.x]


@cuda.jit
def local_outside(x):
    own = cuda.local.array(LENGTH, float32)
    own[cuda.threadIdx.x] = 1
    if cuda.threadIdx.x < LENGTH:
        x[cuda.threadIdx.x] = own[cuda.threadIdx.x]


@cuda.jit
def local_unwritten(x):
    own = cuda.local.array(LENGTH, float32)
    if cuda.threadIdx.x < LENGTH:
        x[cuda.threadIdx.x] = own[cuda.threadIdx.x]


@cuda.jit
def const_outside(x):
    value = TABLE[cuda.threadIdx.x]
    if cuda.threadIdx.x < LENGTH:
        x[cuda.threadIdx.x] = value


KINDS = {"race": "race-{}", "outside": "out-of-bounds", "unwritten": "uninitialized-read"}
PYTHON = [
    global_race,
    global_outside,
    global_unwritten,
    shared_race,
    shared_outside,
    shared_unwritten,
    local_outside,
    local_unwritten,
    const_outside,
]

MODULE = """
.version 8.0
.target sm_80
.address_size 64
VARIABLE
.visible .entry kernel(.param .u64 x)
{
    .reg .pred %p;
    .reg .b64 %x, %i, %at;
    .reg .b32 %t, %v;
    LOCAL
    ld.param.u64 %x, [x];
    cvta.to.global.u64 %x, %x;
    mov.u32 %t, %tid.x;
    mul.wide.u32 %i, %t, 4;
    ACCESS
    setp.ge.u32 %p, %t, 60;
    @%p ret;
    add.s64 %i, %i, %x;
    st.global.u32 [%i], %v;
    ret;
}
"""
ACCESS = {
    "race": "mov.u32 %v, %t; st.SPACE.u32 [ARRAY], %t;",
    "outside": "mov.u32 %v, %t; mov.u64 %at, ARRAY; add.s64 %at, %at, %i; st.SPACE.u32 [%at], %t;",
    "unwritten": "ld.SPACE.u32 %v, [ARRAY];",
}
PTX = [
    (space, fault)
    for space in SPACES
    for fault in KINDS
    if (space, fault)
    not in {("local", "race"), ("const", "race"), ("const", "unwritten"), ("global", "unwritten")}
]


def ptx_kernel(space, fault):
    """Return a kernel with one fault in its last variable, which is in the given state space."""
    declaration = f".{space} .align 4 .b8 v[{NBYTES}]" + (" = {1}" if space == "const" else "") + ";"
    access = ACCESS[fault].replace("ARRAY", "v")
    if space == "const":  # Threads cannot store to this state space.
        access = access.replace("st.SPACE.u32 [%at], %t", "ld.SPACE.u32 %v, [%at]")
    text = MODULE.replace("ACCESS", access.replace("SPACE", space))
    text = text.replace("LOCAL", declaration if space == "local" else "")
    return load_ptx(text.replace("VARIABLE", declaration if space != "local" else ""))["kernel"]


def start_before_the_end(monkeypatch, space, room):
    """Let each launch start its allocations in a state space `room` bytes before the end of the window."""
    original = AddressSpace.__init__

    def begin(self):
        original(self)
        self.next[space] = self.end(space) - room

    monkeypatch.setattr(AddressSpace, "__init__", begin)


def check_at_the_limit(monkeypatch, run, space, room, wanted, window=1 << 34):
    """Run at the limit, one step below it and one step above it.

    Up to the limit, the findings must be the usual ones. Above it, the launch must be refused.

    room: the number of bytes that the allocations need.
    window: the number of bytes of the state space.
    """
    limit = in_binary_units(window)
    assert {finding.kind for finding in run().findings} == {wanted}
    for spare in (0, ALIGNMENT):
        with monkeypatch.context() as patch:
            start_before_the_end(patch, space, room + spare)
            assert {finding.kind for finding in run().findings} == {wanted}
    with monkeypatch.context() as patch:
        start_before_the_end(patch, space, room - ALIGNMENT)
        with pytest.raises(LaunchError, match=f"all {space} memory of a launch has to fit into {limit}"):
            run()


@pytest.mark.parametrize("kernel", PYTHON, ids=lambda kernel: kernel.__name__)
@pytest.mark.parametrize("engine", ["fibers", "threads", "native"])
def test_python_kernels_at_the_limit(kernel, engine, monkeypatch):
    space, fault = kernel.__name__.split("_")
    copies = THREADS if space == "local" else 1
    unwritten = fault == "unwritten" and space == "global"

    def run():
        x = sim.empty(LENGTH) if unwritten else np.zeros(LENGTH, np.float32)
        return simulate(kernel, engine=engine, on_finding="report")[1, THREADS](x)

    room = round_up(NBYTES * copies, ALIGNMENT) + ALIGNMENT
    check_at_the_limit(monkeypatch, run, space, room, KINDS[fault].format(space))


@pytest.mark.parametrize("space, fault", PTX)
@pytest.mark.parametrize("engine", ["fibers", "native"])
def test_ptx_kernels_at_the_limit(space, fault, engine, monkeypatch):
    copies = THREADS if space == "local" else 1
    # Addresses persist between launches, so each run starts without any.
    monkeypatch.setattr(Module, "address_space", lambda module: PaddedSpace(Addresses()))

    def run():
        kernel, x = ptx_kernel(space, fault), np.zeros(LENGTH, np.uint32)
        return simulate(kernel, engine=engine, on_finding="report")[1, THREADS](x)

    allocations = 2 if space == "global" else 1  # The two allocations are x and the variable.
    gap = NARROW_GAP if space in PERSISTENT_SPACES else 0
    room = allocations * (gap + round_up(NBYTES * copies, ALIGNMENT) + ALIGNMENT)
    window = {"shared": 1 << 28, "const": 1 << 32, "local": 1 << 32}.get(space, 1 << 34)
    check_at_the_limit(monkeypatch, run, space, room, KINDS[fault].format(space), window)


# --- many variables ---------------------------------------------------------------------------------------------

MANY = """
.version 8.0
.target sm_90
.address_size 64
GLOBAL
.visible .entry many(.param .u64 x) CLUSTER
{
    LOCAL
    .reg .b64 %x, %a, %sum;
    .reg .b32 %t, %p, %v;
    mov.u64 %sum, 0;
    ADDRESSES
    mov.u32 %t, %tid.x;
    mul.lo.u32 %p, %t, STRIDE;
    mov.u32 %v, LAST;
    add.u32 %v, %v, %p;
    ACCESS
    ret;
}
"""


def findings_of_many(count, space, stride, cluster=False, engine="fibers", nbytes=32):
    """Return the kinds of the findings of a kernel with `count` variables in a state space.

    It accesses the last variable through a 32-bit address. Each thread accesses the element `stride` bytes
    after the element of the thread before it.
    """
    initial = " = {1}" if space == "const" else ""
    variables = "\n".join(f".{space} .align 4 .b8 v{n}[{nbytes}]{initial};" for n in range(count))
    text = MANY.replace("LOCAL" if space == "local" else "GLOBAL", variables)
    text = text.replace("LOCAL", "").replace("GLOBAL", "")
    text = text.replace("CLUSTER", ".explicitcluster .reqnctapercluster 2,1,1" if cluster else "")
    addresses = "\n".join(f"mov.u64 %a, v{n}; add.s64 %sum, %sum, %a;" for n in range(count))
    load = "ld.const.u32 %t, [%v]; ld.param.u64 %x, [x]; st.global.u32 [%x], %t;"
    access = load if space == "const" else f"st.{space}.u32 [%v], %t;"
    text = text.replace("ADDRESSES", addresses).replace("STRIDE", str(stride)).replace("ACCESS", access)
    kernel, x = load_ptx(text.replace("LAST", f"v{count - 1}"))["many"], np.zeros(1, np.uint32)
    report = simulate(kernel, engine=engine, on_finding="report")[2, 8](x)
    return {finding.kind for finding in report.findings} - {"misuse", "race-global"}


@pytest.mark.parametrize("engine", ["fibers", "native"])
@pytest.mark.parametrize("cluster", [False, True])
@pytest.mark.parametrize("count", [255, 256, 257])
def test_shared_variables_of_a_cluster(count, cluster, engine):
    """Declare more variables than fit into 28 bits of addresses with the usual number of guard bytes."""
    assert findings_of_many(count, "shared", 4, cluster, engine) == set()
    assert findings_of_many(count, "shared", 0, cluster, engine) == {"race-shared"}


@pytest.mark.parametrize("space", ["local", "const"])
@pytest.mark.parametrize("count", [255, 256, 257])
def test_addresses_have_32_bits(space, count, monkeypatch):
    """Declare more variables than fit into 32 bits of addresses with the usual number of guard bytes."""
    addresses = Addresses()
    monkeypatch.setattr(Module, "address_space", lambda module: PaddedSpace(addresses))
    assert findings_of_many(count, space, 4) == set()
    assert findings_of_many(count, space, 8) == {"out-of-bounds"}


def test_thousands_of_shared_variables():
    assert findings_of_many(4200, "shared", 4) == set()
    assert findings_of_many(4200, "shared", 0, cluster=True) == {"race-shared"}


@pytest.mark.parametrize("count, nbytes", [(232_448, 1), (1, 232_448), (58_112, 4)])
def test_all_shared_memory_of_a_device_fits(count, nbytes):
    space = PaddedSpace(Addresses())
    space.fit_gaps("shared", [(nbytes, 1)] * count + [(RESERVED.bytes, 8)])
    root = np.broadcast_to(np.uint8(0), nbytes)
    bases = [space.add("v", "shared", root, None).base for _ in range(count)]
    space.add("reserved", "shared", np.zeros(RESERVED.bytes, np.uint8), None)
    assert bases[-1] + nbytes < space.end("shared") == (SPACES.index("shared") << 34) + (1 << 28)
    assert all(above - below >= nbytes + ALIGNMENT for below, above in itertools.pairwise(bases))


# --- the device heap --------------------------------------------------------------------------------------------

ALLOCATES = """
.version 8.0
.target sm_80
.address_size 64
.extern .func (.param .b64 p) malloc (.param .b64 n);
.visible .entry allocates(.param .u64 x)
{
    .reg .b64 %x, %n, %p;
    ld.param.u64 %x, [x];
    mov.u64 %n, 256;
    {
        .param .b64 given;
        .param .b64 result;
        st.param.b64 [given], %n;
        call (result), malloc, (given);
        ld.param.b64 %p, [result];
    }
    st.global.u64 [%p], %n;
    st.global.u64 [%x], %p;
    ret;
}
"""
NBYTES_OF_PIECE = 256 + GUARD  # the addresses that an allocation of the kernel takes


@pytest.mark.parametrize("spare, fits", [(16, True), (0, True), (-16, False)])
def test_the_device_heap_at_the_limit(spare, fits, monkeypatch):
    monkeypatch.setattr(
        "sim.ptx.heap_state.HeapState.at_start",
        lambda state, launch: HeapSnapshot(next=BASE, end=BASE + NBYTES_OF_PIECE + spare),
    )
    launch = simulate(load_ptx(ALLOCATES)["allocates"], on_finding="report")[1, 1]
    if fits:
        assert launch(np.zeros(1, np.uint64)).findings == ()
    else:
        with pytest.raises(LaunchError, match="no simulated addresses are left for the heap"):
            launch(np.zeros(1, np.uint64))


# --- variables of a module --------------------------------------------------------------------------------------

RACE = """
.version 8.0
.target sm_80
.address_size 64
VARIABLES
.visible .entry race(.param .u64 x)
{
    .reg .b64 %x;
    .reg .b32 %t;
    ld.param.u64 %x, [x];
    mov.u32 %t, %tid.x;
    st.global.u32 [%x], %t;
    ret;
}
.visible .entry idle(.param .u64 x)
{
    ret;
}
.visible .entry copy(.param .u64 x, .param .u64 y)
{
    .reg .b64 %x, %y;
    .reg .b32 %v;
    ld.param.u64 %x, [x];
    ld.param.u64 %y, [y];
    ld.global.u32 %v, [%x];
    st.global.u32 [%y], %v;
    ret;
}
"""


def with_variables(count):
    names = [f"library_variable_{n}" for n in range(count)]
    return load_ptx(RACE.replace("VARIABLES", "\n".join(f".global .align 4 .u32 {n};" for n in names)))


@pytest.mark.parametrize("engine", ["fibers", "threads", "native"])
@pytest.mark.parametrize("count", [0, 1, 1021, 1022, 1023, 3000])
def test_variables_that_a_kernel_cannot_reach_change_nothing(count, engine):
    module = with_variables(count)

    def run(name):
        x = np.zeros(4, np.uint32)
        return simulate(module[name], engine=engine, on_finding="report")[1, 64](x)

    assert [finding.kind for finding in run("race").findings] == ["race-global"]
    (idle,) = run("idle").findings
    assert idle.verdict == "the launch wrote to none of its arrays (argument0)"
    (unwritten,) = simulate(module["copy"], engine=engine, on_finding="report")[1, 1](
        sim.empty(1, np.uint32), np.zeros(1, np.uint32)
    ).findings
    assert (unwritten.kind, unwritten.array) == ("uninitialized-read", "argument0")
    assert not module.store.laid_out  # no launch spends memory or time on these variables


@pytest.mark.parametrize("engine", ["fibers", "native"])
def test_a_variable_that_a_kernel_reaches_is_no_array_of_the_launch(engine):
    """Read a variable of a library, which a finding about the arguments must not name."""
    text = RACE.replace("VARIABLES", ".global .align 4 .u32 library_variable = 1;")
    text = text.replace(
        "mov.u32 %t, %tid.x;\n    st.global.u32 [%x], %t;", "ld.global.u32 %t, [library_variable];"
    )
    (finding,) = simulate(load_ptx(text)["race"], engine=engine, on_finding="report")[1, 8](
        np.zeros(4, np.uint32)
    ).findings
    assert finding.verdict == "the launch wrote to none of its arrays (argument0)"


def test_a_variable_that_another_one_points_to_is_laid_out():
    text = """
.version 8.0
.target sm_80
.address_size 64
.global .align 4 .u32 unused = 5;
.global .align 4 .u32 seven = 7;
.const .align 8 .u64 second = generic(seven);
.const .align 8 .u64 first = generic(second);
.visible .entry follow(.param .u64 x)
{
    .reg .b64 %x, %at;
    .reg .b32 %v;
    ld.param.u64 %x, [x];
    ld.const.u64 %at, [first];
    ld.u64 %at, [%at];
    ld.u32 %v, [%at];
    st.global.u32 [%x], %v;
    ret;
}
"""
    x = np.zeros(1, np.uint32)
    simulate(load_ptx(text)["follow"])[1, 1](x)
    assert x[0] == 7


def idle(x, y, out, n):
    if cuda.grid(1) >= n:
        out[0] = x[0] + y[0]


@pytest.mark.parametrize("engine", ["fibers", "native"])
@pytest.mark.parametrize("starts", list(itertools.permutations((0, 100, 200))))
def test_arrays_are_laid_out_and_named_in_the_order_of_the_parameters(starts, engine):
    memory = np.zeros(300)
    arrays = [memory[start : start + 10] for start in starts]
    (finding,) = simulate(idle, engine=engine, on_finding="report")[1, 8](*arrays, 8).findings
    assert finding.verdict == "the launch wrote to none of its arrays (x, y, out)"
    bases = [
        allocation.base for allocation, _ in bind_arguments(AddressSpace(), dict(zip("xyz", arrays))).values()
    ]
    assert bases == sorted(bases)


@pytest.mark.parametrize("engine", ["fibers", "native"])
def test_a_launch_with_an_empty_array_may_write_nothing(engine):
    # The data of the launch can be empty, and the other arrays can hold its results.
    report = simulate(idle, engine=engine, on_finding="report")[1, 8](np.zeros(0), *np.zeros((2, 10)), 8)
    assert report.findings == ()
