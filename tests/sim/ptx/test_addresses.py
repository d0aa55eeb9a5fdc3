"""Tests of addresses in PTX: variables, functions and arguments keep their addresses.

A pointer stored by one launch is valid in the next.
"""

import gc
import itertools
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from ptx.test_cuda_cpp import module
from sim import simulate
from sim.memory.spaces import owner_number
from sim.ptx.foreign import explain_address
from sim.ptx.regions import ADDRESSES, GAP, HEAP_BASE, NARROW_GAP, Addresses, ModuleKey, PaddedSpace

INDEX = np.arange(4, dtype=np.int32)
ENGINES = pytest.mark.parametrize("engine", ["fibers", "threads", "native"])


@pytest.fixture
def launch(engine):
    """Return the function (kernel, *arguments, grid, block) -> Report."""
    _, kernels = module("pointers", Path(__file__).with_name("programs"))

    def run(name, *arguments, grid=1, block=4):
        return simulate(kernels[name], engine=engine, on_finding="report")[grid, block](*arguments)

    return run


def clean(report):
    return [f.kind for f in report.findings if f.kind != "misuse"] == []


@ENGINES
def test_a_pointer_to_a_variable(launch, engine):
    y = np.zeros(4, np.int32)
    assert clean(launch("store_variable", block=1)) and clean(launch("use_variable", y))
    assert y.tolist() == [10, 11, 12, 13]
    (finding,) = launch("use_beyond", y).findings
    assert finding.message.startswith("out-of-bounds: table[4] is outside table")
    assert "race-global" in [finding.kind for finding in launch("race_on_variable", y).findings]


@ENGINES
@pytest.mark.parametrize("k", [0, 1])
def test_a_pointer_to_a_function(launch, engine, k):
    y = np.zeros(4, np.int32)
    assert clean(launch("store_function", k, block=1)) and clean(launch("use_function", y))
    assert y.tolist() == ((3, 2)[k] * INDEX).tolist()


@ENGINES
def test_objects_with_virtual_functions_live_until_they_are_deleted(launch, engine):
    objects, y = np.zeros(2, np.uint64), np.zeros(4, np.int32)
    assert clean(launch("store_objects", objects, block=1)) and clean(launch("use_objects", objects, y))
    assert y.tolist() == [0, 101, 2, 103]
    # A launch without `objects` reports no leak.
    assert clean(launch("fill", np.zeros(256, np.int32), block=256))
    assert clean(launch("delete_objects", objects, block=1))
    kinds = {finding.kind for finding in launch("use_objects", objects, y).findings}
    assert "use-after-free" in kinds


@ENGINES
def test_a_pointer_to_an_argument(launch, engine):
    to, x, y = np.zeros(1, np.uint64), INDEX + 50, np.zeros(4, np.int32)
    assert clean(launch("store_argument", to, x, block=1))
    assert clean(launch("use_both", to, x, y)) and (y == x).all()
    other = np.zeros(4, np.int32)
    (finding,) = [f for f in launch("use_argument", to, other).findings if f.kind != "misuse"]
    assert "is in no array of this launch" in finding.message
    assert "It is in x of an earlier launch" in finding.message and "give x to this launch" in finding.message


@ENGINES
def test_a_pointer_to_an_array_that_is_deleted(launch, engine):
    """Create a thousand arrays, so that the host probably reuses the deleted array's memory for one of
    them."""
    to, y = np.zeros(1, np.uint64), np.zeros(4, np.int32)
    x = INDEX + 50
    at = x.ctypes.data
    assert clean(launch("store_argument", to, x, block=1))
    del x
    gc.collect()
    many = [INDEX + 70 for _ in range(1000)]
    new = next((array for array in many if array.ctypes.data == at), many[0])
    (finding,) = [f for f in launch("use_both", to, new, y).findings if f.kind != "misuse"]
    assert "It is in x of an earlier launch" in finding.message


# --- pointers from another module, and from shared memory ---------------------------------------------------


@pytest.fixture
def modules(engine):
    """Return two functions (kernel, *arguments, block) -> Report, one for each of two modules
    with identical text."""
    found = [module("pointers", Path(__file__).with_name("programs"))[1] for _ in range(2)]

    def run(kernels, name, *arguments, block=4):
        return simulate(kernels[name], engine=engine, on_finding="report")[1, block](*arguments)

    return [partial(run, kernels) for kernels in found]


@ENGINES
def test_an_array_has_one_address_in_all_modules(modules, engine):
    store, use = modules
    to, x, y = np.zeros(1, np.uint64), np.arange(16, dtype=np.int32), np.zeros(4, np.int32)
    assert clean(store("store_argument", to, x[8:], block=1))
    assert clean(use("use_both", to, x[8:], y)) and y.tolist() == [8, 9, 10, 11]
    other = np.zeros(4, np.int32)
    (finding,) = [f for f in use("use_argument", to, other).findings if f.kind != "misuse"]
    assert "It is in x of an earlier launch" in finding.message and other.tolist() == [-1] * 4


@ENGINES
def test_a_view_and_its_array_in_one_launch(modules, engine):
    store, use = modules
    to, x, y = np.zeros(1, np.uint64), np.arange(16, dtype=np.int32), np.zeros(4, np.int32)
    assert clean(store("store_argument", to, x[8:], block=1))
    report = use("use_both", to, x[:4], y)  # other bytes of the same array
    (finding,) = [f for f in report.findings if f.kind != "misuse"]
    assert finding.kind == "out-of-bounds" and "It is in x of an earlier launch" in finding.message


@ENGINES
@pytest.mark.parametrize(
    "name, user, kind, words",
    [
        ("export_variable", "use_argument", "out-of-bounds", "It is in table, a variable of another module"),
        ("store_objects", "use_objects", "out-of-bounds", "heap memory that a launch of another module"),
        ("export_function", "call_function", "invalid-call", "which is a function of another module"),
    ],
)
def test_a_pointer_of_another_module(modules, engine, name, user, kind, words):
    store, use = modules
    to, y = np.zeros(2, np.uint64), np.zeros(4, np.int32)
    assert clean(store(name, to, block=1))
    assert clean(store(user, to, y)) or name == "store_objects"
    found = [f for f in use(user, to, y).findings if f.kind == kind]
    assert found and all(words in f.message for f in found)


@ENGINES
def test_a_pointer_to_shared_memory_of_an_earlier_launch(launch, engine):
    to, y = np.zeros(1, np.uint64), np.zeros(4, np.int32)
    assert clean(launch("export_shared", to))
    (finding,) = [f for f in launch("use_argument", to, y).findings if f.kind != "misuse"]
    assert finding.kind == "out-of-bounds" and "None" not in finding.message
    assert "a pointer to shared memory is valid only in the block that took it" in finding.message


def test_a_deleted_module_returns_its_addresses():
    """Delete a module. The most recent launch is kept alive, so another module is launched after the
    deletion."""
    kernels, other = (module("pointers", Path(__file__).with_name("programs"))[1] for _ in range(2))
    number = kernels.text.number
    simulate(kernels["store_variable"])[1, 1]()
    owned = lambda: [g for g in ADDRESSES.ranges.values() if getattr(g.key, "module", None) == number]  # noqa: E731
    assert {g.name for g in owned()} == {"table", "to_variable"}
    del kernels
    simulate(other["store_variable"])[1, 1]()
    gc.collect()
    simulate(other["use_variable"])[1, 4](np.zeros(4, np.int32))
    assert owned() == []


@ENGINES
def test_large_launches_use_variables_of_the_module(launch, engine):
    y, grid, block = np.zeros(64 * 256, np.int32), 64, 256
    assert clean(launch("fill", y, grid=grid, block=block))
    report = launch("reverse", y, 0, grid=grid, block=block)
    assert clean(report) and (y.reshape(grid, block) == np.arange(block)[::-1]).all()
    if engine == "native":
        assert report.notes == ("compiled",)
    (finding,) = launch("reverse", y, 1, grid=grid, block=block).findings
    assert finding.message.startswith("out-of-bounds: weights[256]") and finding.accesses[0].block[0] == 40


# --- addresses ----------------------------------------------------------------------------------------------


def place(addresses, *keys, nbytes=1024):
    """Return the addresses that a launch assigns to these keys in global memory. The key of a variable is its
    name."""
    space = PaddedSpace(addresses)
    root = np.broadcast_to(np.uint8(0), nbytes)
    keys = [ModuleKey(0, key) if isinstance(key, str) else key for key in keys]
    return [space.add(str(key), "global", root, None, key=key).base for key in keys]


def test_a_key_has_one_address():
    addresses = Addresses()
    first, argument = place(addresses, "table", (1, 2))
    assert place(addresses, (3, 4), "table", (1, 2))[1:] == [first, argument]
    assert argument - first >= GAP


def test_an_array_has_one_number_for_life():
    numbers = set()
    for _ in range(100):
        array = np.zeros(16)
        numbers.add(owner_number(array))
        assert owner_number(array[3:].reshape(13, 1)) in numbers
    assert len(numbers) == 100 and owner_number(np.frombuffer(b"12345678")) == 0


def test_arguments_of_earlier_launches_make_room():
    """Fill the window. Addresses of arguments are then reused; addresses of variables never are."""
    addresses, half = Addresses(), HEAP_BASE // 2
    table, first, *_ = place(addresses, "table", (0, 1), (1, 2))
    (large,) = place(addresses, (2, 3), nbytes=half)
    again, other, small = place(addresses, "table", (3, 4), (4, 5), nbytes=1024)
    assert again == table and other > large + half
    (huge,) = place(addresses, (5, 6), nbytes=half + half // 2)
    assert huge > table and (0, 1) not in {key for _, key in addresses.ranges}
    assert place(addresses, "table")[0] == table


def test_a_thousand_launches_with_new_arrays_do_not_fill_the_window():
    addresses = Addresses()
    (table,) = place(addresses, "table")
    for n in range(2000):
        base, again = place(addresses, (n, n + 1), "table")
        assert again == table and table < base < HEAP_BASE


def test_modules_do_not_share_addresses():
    """Fill the window with a large variable and the variables of 200 modules.

    The guard bytes shrink, and no two ranges overlap.
    """
    addresses = Addresses()
    place(addresses, ModuleKey(0, "table"), nbytes=11 << 30)
    for n in range(200):
        place(addresses, ModuleKey(n + 1, "table"))
    ranges = sorted(addresses.ranges.values(), key=lambda found: found.base)
    gaps = [above.base - below.end for below, above in itertools.pairwise(ranges)]
    assert len(ranges) == 201 and ranges[-1].end < HEAP_BASE
    assert NARROW_GAP <= min(gaps) < GAP


def test_an_address_of_the_host_is_called_one():
    for address, expected in ((0x5619_AA90_F5F0, True), (0x7FFC_0123_4560, True), (1 << 36, False)):
        reason, fix, _ = explain_address(address, None, None)
        assert ("host memory" in reason, "cudaMemcpy" in fix) == (expected, expected)
