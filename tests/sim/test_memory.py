"""Tests of shared, local and constant memory, views and atomics, on both engines.

Results are compared with numpy's.
"""

import numpy as np
import pytest
from numba import cuda, float32, float64, int32

from sim import ThreadError, simulate

TILE = (2, 3)
WEIGHTS = np.array([[1.5, 2.5], [3.5, 4.5]])


# --- memory -------------------------------------------------------------------------------------------------


def test_shared_arrays_two_on_a_line_and_of_two_dimensions(launch):
    @cuda.jit
    def kernel(x, out):
        i, j = cuda.threadIdx.x, cuda.threadIdx.y
        a, b = cuda.shared.array(TILE, float32), cuda.shared.array(shape=(3, 2), dtype=np.float64)
        a[i, j], b[j, i] = x[i, j], -x[i, j]
        cuda.syncthreads()
        out[i, j] = a[1 - i, 2 - j] + 100 * b[2 - j, 1 - i]

    x, out = np.arange(6.0).reshape(TILE), np.zeros(TILE)
    launch(kernel, 1, TILE, x, out)
    np.testing.assert_array_equal(out, -99 * x[::-1, ::-1])


@cuda.jit(device=True)
def mirrored(value, i):
    """Return the value of the opposite thread. Twice the number of threads must be 16."""
    tile = cuda.shared.array(8, float64)
    tile[i] = value
    cuda.syncthreads()
    result = tile[7 - i]
    cuda.syncthreads()
    return result


def test_a_device_function_with_a_shared_array_called_twice(launch):
    @cuda.jit
    def kernel(x, y, out):
        i = cuda.threadIdx.x
        out[i] = 100 * mirrored(x[i], i) + mirrored(y[i], i)

    x, y = np.arange(8, dtype=np.float32), np.arange(8, 16)
    out = np.zeros(8, int)
    launch(kernel, 1, 8, x, y, out)
    assert out.tolist() == [100 * (7 - i) + 15 - i for i in range(8)]


def test_two_specialisations_have_two_shared_arrays(launch):
    @cuda.jit(device=True)
    def buffer(value):
        tile = cuda.shared.array(2, float64)
        tile[0 if value > 0 else 1] = value
        return tile

    @cuda.jit
    def kernel(x, y, out):
        first, again, other = buffer(x[0]), buffer(x[1]), buffer(y[0])
        out[0], out[1], out[2] = first[0], again[1], other[0]
        first[0] = 9.0
        out[3], out[4] = again[0], other[0]

    out = np.zeros(5, int)
    launch(kernel, 1, 1, np.array([1.0, -2.0]), np.array([3], np.int32), out)
    assert out.tolist() == [1, -2, 3, 9, 3]


def test_dynamic_shared_memory_is_one_run_of_bytes(launch):
    @cuda.jit
    def kernel(out):
        words, floats = cuda.shared.array(0, int32), cuda.shared.array(0, dtype=float32)
        tail = words[2:4]
        words[0], words[1] = 1, 2
        tail[0], floats[3] = 3, 1.0
        out[0], out[1], out[2], out[3], out[4] = words[0], floats.size, words[2], tail[1], words[:2].size

    out = np.zeros(5, int)
    launch(kernel, 1, 1, out, shared=16)
    assert out.tolist() == [1, 4, 3, 0x3F800000, 2]


def test_local_arrays_are_private(launch):
    @cuda.jit
    def kernel(out):
        i = cuda.threadIdx.x
        mine = cuda.local.array((2, 2), "int32")
        for row in range(2):
            for column in range(2):
                mine[row, column] = i + 10 * row + column
        cuda.syncthreads()
        out[i] = mine[0, 0] + mine[0, 1] + mine[1, 0] + mine[1, 1]

    out = np.zeros(8, int)
    launch(kernel, 1, 8, out)
    assert out.tolist() == [4 * i + 22 for i in range(8)]


@pytest.mark.parametrize("engine", ["fibers", "native"])
@pytest.mark.parametrize("place, findings", [(0, 0), (1, 1), (2, 0), (3, 0)])
def test_views_of_local_memory_share_what_is_written(place, findings, engine):
    def kernel(place, out):
        mine = cuda.local.array(4, float32)
        mine[0] = 1.0
        tail = mine[2:]
        tail[0], mine[3] = 2.0, 3.0
        out[0] = mine[place] + tail[1]

    out = np.zeros(1, np.float32)
    report = simulate(kernel, engine=engine, on_finding="report")[1, 1](place, out)
    assert [finding.kind for finding in report.findings] == ["uninitialized-read"] * findings
    assert findings or out[0] == [1, None, 2, 3][place] + 3


@pytest.mark.parametrize("engine", ["fibers", "native"])
def test_fields_called_as_methods_of_ours(engine):
    def kernel(x):
        one = x[cuda.threadIdx.x]
        one.load = one.store + one.column
        one.fill, x[cuda.threadIdx.x].store = one.load, 7

    x = np.zeros(2, [(name, np.float32) for name in ("load", "store", "column", "fill")])
    x["store"], x["column"] = [1, 2], [10, 20]
    simulate(kernel, engine=engine)[1, 2](x)
    assert x.tolist() == [(11, 7, 10, 11), (22, 7, 20, 22)]


def test_rows_of_an_array_of_three_dimensions(launch):
    @cuda.jit
    def kernel(x, out):
        for i, plane in enumerate(x):
            for row in plane:
                out[i, 0] += row[0]
            plane[0][0] = 10 * i
            out[i, 1] = plane[0, 0]

    x, out = np.arange(8).reshape(2, 2, 2), np.zeros((2, 2), int)
    launch(kernel, 1, 1, x, out)
    assert out.tolist() == [[2, 0], [10, 10]]


def test_constants_from_globals_closures_and_array_like(launch):
    scale, table = 3, np.array([1, 2, 4, 8], np.int16)

    @cuda.jit
    def kernel(out):
        i = cuda.threadIdx.x
        weights = cuda.const.array_like(WEIGHTS)
        out[i] = scale * table[i] + weights[i // 2, i % 2] + WEIGHTS[0, 0] + weights.shape[1]

    out = np.zeros(4, np.float64)
    launch(kernel, 1, 4, out)
    np.testing.assert_array_equal(out, 3 * table + WEIGHTS.ravel() + 1.5 + 2)


def test_views(launch):
    @cuda.jit
    def kernel(x, out):
        row, column, back = x[1], x[:, 2], x[::-1, 1:3]
        out[0], out[1], out[2] = row[3], column[2], back[0, 1]
        out[3], out[4], out[5] = x[1:, ::2].shape[0], x.size, len(row)
        out[6], out[7] = x.T[3, 0], x.reshape(4, 3)[1, 0]
        out[8], out[9] = x.ravel()[5], x[-1, -1]
        row[0:2] = 7
        out[10] = x[1, 0] + x[1, 1]
        total = 0
        for value in x[0]:
            total += value
        out[11] = total
        out[12] = row[None, :][0, 2] + x[0, :, np.newaxis][3, 0]

    x, out = np.arange(12).reshape(3, 4), np.zeros(13, int)
    launch(kernel, 1, 1, x, out)
    assert out.tolist() == [7, 10, 10, 2, 12, 4, 3, 3, 5, 11, 14, 6, 9]


def test_cached_loads_and_stores(launch):
    @cuda.jit
    def kernel(x, y, out):
        i = cuda.threadIdx.x
        cuda.stcg(out, (0, i), cuda.ldca(x, i))
        cuda.stcs(out, (1, i), cuda.ldcg(x, i))
        cuda.stwb(out, (2, i), cuda.ldcs(x, i))
        cuda.stwt(out, (3, i), cuda.ldlu(x, i) + cuda.ldcv(y, (i, 0)))

    x, y, out = np.arange(5.0), np.arange(5.0).reshape(5, 1), np.zeros((4, 5), int)
    launch(kernel, 1, 5, x, y, out)
    np.testing.assert_array_equal(out, [x, x, x, 2 * x])


def test_constant_memory_is_read_only(launch):
    def kernel():
        WEIGHTS[0, 0] = 1.0

    with pytest.raises(ThreadError, match="a global array is constant: a kernel may only read it"):
        launch(kernel, 1, 1)


def put(x, value):
    x[0, 0] = value


def writes_by_another_name(out):
    table = cuda.const.array_like(WEIGHTS)
    out[0] = 1
    table[0, 0] = 1


def writes_in_a_function(out):
    out[0] = 1
    put(cuda.const.array_like(WEIGHTS), 1)


def adds_to_one_of_two(out):
    table = cuda.const.array_like(WEIGHTS)
    for array in (table, table):
        cuda.atomic.add(array, (0, 0), out.size)
    out[0] = 1


@pytest.mark.parametrize("engine", ["fibers", "native"])
@pytest.mark.parametrize("kernel", (writes_by_another_name, writes_in_a_function, adds_to_one_of_two))
def test_constant_memory_is_read_only_by_any_name(kernel, engine):
    before = WEIGHTS.copy()
    with pytest.raises(ThreadError, match="a global array is constant: a kernel may only read it"):
        simulate(kernel, engine=engine)[1, 1](np.zeros(1))
    np.testing.assert_array_equal(WEIGHTS, before)


@pytest.mark.parametrize("dtype", (np.float32, np.int64))
@pytest.mark.parametrize("write", ("x[0] = 1", "cuda.atomic.add(x, 0, 1)"))
def test_a_read_only_argument_is_never_written(launch, write, dtype):
    names = {"cuda": cuda}
    exec(f"def kernel(x, y):\n    y[0] = x[0]\n    {write}", names)
    x, y = np.zeros(4, dtype), np.ones(4, dtype)
    x.flags.writeable = False
    with pytest.raises(ThreadError, match="x is a read-only array: a kernel may only read it"):
        launch(names["kernel"], 1, 1, x, y)
    assert not x.any() and not y[0]


# --- atomics ------------------------------------------------------------------------------------------------

VALUES = np.random.default_rng(3).permutation(64)
ATOMICS = {
    "add": (5, 5 + VALUES.sum()),
    "sub": (5, 5 - VALUES.sum()),
    "max": (5, 63),
    "min": (5, 0),
    "nanmax": (5, 63),
    "nanmin": (5, 0),
    "and_": (-1, 0),
    "or_": (64, 127),
    "xor": (1, 1 ^ np.bitwise_xor.reduce(VALUES)),
}


@pytest.mark.parametrize("name", ATOMICS)
@pytest.mark.parametrize("dtype", [np.int32, np.uint32, np.int64, np.uint64])
def test_atomics_of_integers(launch, name, dtype):
    operation = getattr(cuda.atomic, name)

    def kernel(x, values):
        operation(x, 0, values[cuda.grid(1)])

    before, after = ATOMICS[name]
    x = np.array([before]).astype(dtype)
    launch(kernel, 2, 32, x, VALUES.astype(dtype))
    assert x[0] == np.array(after).astype(dtype)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_atomics_of_floats_in_shared_memory(launch, dtype):
    @cuda.jit
    def kernel(out, values):
        i = cuda.threadIdx.x
        cell = cuda.shared.array((2, 2), float64)
        if i == 0:
            cell[0, 0] = cell[0, 1] = cell[1, 0] = cell[1, 1] = 0.5
        cuda.syncthreads()
        cuda.atomic.add(cell, (0, 0), values[i])
        cuda.atomic.sub(cell, (0, 1), values[i])
        cuda.atomic.max(cell, (1, 0), values[i])
        cuda.atomic.nanmin(cell, (1, 1), values[i])
        cuda.syncthreads()
        if i < 4:
            out[i] = cell[i // 2, i % 2]

    out = np.zeros(4, dtype)
    launch(kernel, 1, 64, out, VALUES.astype(dtype))
    assert out.tolist() == [0.5 + VALUES.sum(), 0.5 - VALUES.sum(), 63, 0]


def test_atomics_that_wrap_exchange_and_compare(launch):
    @cuda.jit
    def kernel(x, old):
        i = cuda.threadIdx.x
        old[0, i] = cuda.atomic.inc(x, 0, 4)
        old[1, i] = cuda.atomic.dec(x, 1, 4)
        old[2, i] = cuda.atomic.exch(x, 2, i)
        old[3, i] = cuda.atomic.cas(x, 3, 0, i + 1)
        old[4, i] = cuda.atomic.compare_and_swap(x[4:], 0, i + 1)

    x, old = np.zeros(5, np.uint32), np.zeros((5, 12), int)
    launch(kernel, 1, 12, x, old)
    assert sorted(old[0].tolist()) == sorted([0, 1, 2, 3, 4, 0, 1, 2, 3, 4, 0, 1]) and x[0] == 2
    assert sorted(old[1].tolist()) == sorted([0, 4, 3, 2, 1, 0, 4, 3, 2, 1, 0, 4]) and x[1] == 3
    assert sorted([*old[2].tolist(), x[2]]) == [0, *range(12)]
    for cell, seen in ((x[3], old[3]), (x[4], old[4])):
        assert sorted(set(seen.tolist())) == [0, cell] and (seen == 0).sum() == 1


def test_the_same_bytes_viewed_as_another_dtype(launch):
    def kernel(x, bits):
        i = cuda.threadIdx.x
        bits[i] = x.view(np.int32)[i]

    x, bits = np.array([1.0, -2.5, 0.1], np.float32), np.zeros(3, np.int32)
    launch(kernel, 1, 3, x, bits)
    np.testing.assert_array_equal(bits, x.view(np.int32))


@pytest.mark.parametrize("engine", ["fibers", "threads", "native"])
def test_two_arrays_in_one_assignment(engine):
    """Assign to two arrays in one statement. The text that logs a loop's accesses is generated after the
    loop."""

    def kernel(out):
        a, b = cuda.local.array(4, float32), cuda.shared.array(4, float32)
        for i in range(4):
            a[i], b[i] = i, 2 * i
        for i in range(4):
            out[i] = a[i] + b[i]

    out = np.zeros(4, np.float32)
    assert not simulate(kernel, engine=engine)[1, 1](out).findings
    assert out.tolist() == [0, 3, 6, 9]


@pytest.mark.parametrize("engine", ["fibers", "native"])
def test_each_array_of_an_assignment_has_the_name_of_its_variable(engine):
    def kernel():
        first, i = cuda.shared.array(shape=(1), dtype=float32), cuda.threadIdx.x
        i, second = cuda.threadIdx.x + max(1, 2), cuda.shared.array(2, float32)
        third = fourth = cuda.local.array(1, float32)
        first[i] = second[i] = third[i] = fourth[i] = 0

    found = simulate(kernel, engine=engine, on_finding="report")[1, 1]().findings
    assert {finding.array for finding in found} == {"first", "second", "fourth"}


PARTICLE = np.dtype([("id", np.int32), ("at", np.float32, 3), ("was", np.dtype([("id", np.int32)]))])


def row(x, p, out, i):
    out[0] = x[i][1] + x[i, 1:][0]


def kept_row(x, p, out, i):
    part = x[i]
    out[0] = part[1] + len(part)
    for number in part[1:2]:
        out[0] += number


def column(x, p, out, i):
    part = x[..., None, i].T
    cuda.atomic.add(part, (0, 0), 1)


def stored_row(x, p, out, i):
    x[i, 1:2] = 5


def field_that_is_an_array(x, p, out, i):
    out[0] = p[i].at[1]


def stored_field_that_is_an_array(x, p, out, i):
    p[i].at[1] = 5


def record_in_a_record(x, p, out, i):
    out[0] = p[i].was.id


@pytest.mark.parametrize("engine", ["fibers", "native"])
@pytest.mark.parametrize(
    "kernel, verdict",
    [
        (row, "x[4, 1] is outside x, whose shape is 4 x 2"),
        (kept_row, "x[4, 1] is outside x, whose shape is 4 x 2"),
        (column, "x[0, 4] is outside x, whose shape is 4 x 2"),
        (stored_row, "x[4, 1] is outside x, whose shape is 4 x 2"),
        (field_that_is_an_array, "index (4, 1) is outside a part of p, whose shape is 4 x 3"),
        (stored_field_that_is_an_array, "index (4, 1) is outside a part of p, whose shape is 4 x 3"),
        (record_in_a_record, "p[4] is outside p, whose shape is 4"),
    ],
)
def test_a_part_outside_of_its_array(engine, kernel, verdict):
    x, p, out = np.zeros((4, 2)), np.zeros(4, PARTICLE), np.zeros(1)
    report = simulate(kernel, engine=engine, on_finding="report")[1, 1](x, p, out, 4)
    assert {(finding.kind, finding.verdict) for finding in report.findings} == {("out-of-bounds", verdict)}
    assert not x.any()


@pytest.mark.parametrize("engine", ["fibers", "native"])
def test_a_part_that_nobody_touches_may_lie_outside(engine):
    """Create views past the end of an array. As on a GPU, such a view is only an address until it is accessed."""

    def kernel(x, p, out):
        i = cuda.threadIdx.x
        part, field, record = x[i], p[i].at, p[i]
        if i < out.size:
            out[i] = part[1] + field[0] + record.id

    x, p, out = np.ones((4, 2)), np.ones(4, PARTICLE), np.zeros(4)
    assert simulate(kernel, engine=engine)[1, 32](x, p, out).findings == ()
    assert (out == 3).all()
