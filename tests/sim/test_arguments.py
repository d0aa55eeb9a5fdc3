"""Tests of numbers, dtypes, all kinds of arguments, and launches that no device accepts, on both engines.

Results are compared with numpy's.
"""

import linecache
import math
import pickle
from enum import Enum, IntEnum
from math import sqrt

import ml_dtypes
import numpy as np
import pytest
from numba import bool_, complex64, complex128, cuda, float32, float64, int8, int32, uint8, uint32, uint64
from numba.cuda import libdevice
from numba.cuda.types import bfloat16, float16

from sim import LaunchError, ThreadError, simulate
from sim.memory import argument

Mode = Enum("Mode", "slow fast")
Size = IntEnum("Size", "small large")
RECORD = np.dtype([("n", np.int32), ("x", np.float64)])


# --- numbers ------------------------------------------------------------------------------------------------


def test_bits(launch):
    @cuda.jit
    def kernel(x, y, z, out):
        narrow = x[0]
        wide, plain = y[0], z[0]
        out[0], out[1], out[2] = cuda.popc(narrow), cuda.popc(wide), cuda.popc(plain)
        out[3], out[4], out[5] = cuda.clz(x[1]), cuda.clz(wide), cuda.clz(plain)
        out[6], out[7] = cuda.ffs(plain), cuda.ffs(x[1])
        out[8], out[9] = cuda.brev(plain), cuda.clz(cuda.threadIdx.x + 1)
        out[10] = cuda.selp(plain > 3, 1, 2)

    out = np.zeros(11, int)
    launch(kernel, 1, 1, np.array([-1, 16], np.int32), np.array([-1]), np.array([24], np.uint32), out)
    assert out.tolist() == [32, 64, 2, 27, 0, 27, 4, 5, 0x18000000, 63, 1]


def test_fused_multiply_add_rounds_once(launch):
    @cuda.jit
    def kernel(x, out):
        out[0] = cuda.fma(x[0], x[1], x[2])
        out[1] = cuda.cbrt(x[3])

    tiny = 2.0**-52
    out = np.zeros(2, np.float64)
    launch(kernel, 1, 1, np.array([1 + tiny, 1 - tiny, -1, 27.0]), out)
    assert out[0] == -(tiny**2) and abs(out[1] - 3) <= 1e-15


def test_half_precision(launch):
    @cuda.jit
    def kernel(x, out):
        a, b = x[0], x[1]
        out[0], out[1] = cuda.fp16.hadd(a, b), cuda.fp16.hfma(a, b, a)
        out[2], out[3] = cuda.fp16.hmax(a, b), cuda.fp16.hsqrt(a)
        out[4] = float16(0.1) + a * b

    x, out = np.array([2.25, 0.5], np.float16), np.zeros(5, np.float16)
    launch(kernel, 1, 1, x, out)
    np.testing.assert_array_equal(
        out, np.array([2.75, 3.375, 2.25, 1.5, np.float16(0.1) + np.float16(1.125)], np.float16)
    )


def test_libdevice_and_math(launch):
    @cuda.jit
    def kernel(x, out):
        out[0], out[1] = libdevice.fmul_rn(x[0], x[1]), cuda.libdevice.fadd_rn(x[0], x[1])
        out[2], out[3] = math.exp(x[0]), math.hypot(x[0], x[1])
        out[4], out[5] = math.log(float32(0)), math.pi
        out[6] = sqrt(x[1])

    x, out = np.array([3, 4], np.float32), np.zeros(7, np.float32)
    launch(kernel, 1, 1, x, out)
    np.testing.assert_allclose(out, [12, 7, math.exp(3), 5, -math.inf, math.pi, 2], rtol=1e-6)


def test_conversions(launch):
    @cuda.jit
    def kernel(x, out):
        v = x[0]
        out[0], out[1], out[2], out[3] = int32(v), np.int8(300), uint8(-1), int(v)
        out[4], out[5], out[6] = float32(0.1) == 0.1, bool(v), uint32(1) - uint32(2) == uint64(2**64 - 1)
        out[7], out[8] = np.float32(1) / np.float32(3) == float32(1 / 3), abs(-v) == v

    out = np.zeros(9, int)
    launch(kernel, 1, 1, np.array([7.75]), out)
    assert out.tolist() == [7, 44, 255, 7, 0, 1, 1, 1, 1]


def test_vector_types(launch):
    @cuda.jit
    def kernel(out):
        pair = cuda.float32x2(1, 2.5)
        four = cuda.float4(pair, 3, 4)
        narrow = cuda.uchar2(257, 2)
        out[0], out[1], out[2], out[3], out[4] = four.x, four.y, four.z, four.w, narrow.x

    out = np.zeros(5, np.float64)
    launch(kernel, 1, 1, out)
    assert out.tolist() == [1, 2.5, 3, 4, 1]


# --- arguments ----------------------------------------------------------------------------------------------

DTYPES = [
    np.bool_,
    np.int8,
    np.uint8,
    np.int16,
    np.uint16,
    np.int32,
    np.uint32,
    np.int64,
    np.uint64,
    np.float16,
    ml_dtypes.bfloat16,
    np.float32,
    np.float64,
    np.complex64,
    np.complex128,
]


@cuda.jit
def copy(x, out):
    i = cuda.grid(1)
    if i < x.shape[0]:
        out[i] = x[i]


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_dtype_survives_a_load_and_a_store(launch, dtype):
    x = np.array([0, 1, 1, 0, 100, 17, 3]).astype(dtype)
    if np.dtype(dtype).kind == "c":
        x += np.array(2j).astype(dtype)
    out = np.zeros_like(x)
    launch(copy, 1, 8, x, out)
    assert out.tobytes() == x.tobytes()


@pytest.mark.parametrize(
    "numba_type",
    [bool_, int8, uint8, int32, uint64, float16, bfloat16, float32, float64, complex64, complex128],
    ids=str,
)
def test_every_dtype_in_shared_and_local_memory(launch, numba_type):
    @cuda.jit
    def kernel(x, out):
        i = cuda.threadIdx.x
        tile, mine = cuda.shared.array(4, numba_type), cuda.local.array(1, numba_type)
        tile[i] = x[i]
        cuda.syncthreads()
        mine[0] = tile[3 - i]
        out[i] = mine[0]

    name = str(numba_type)
    x = np.array([1, 0, 1, 3]).astype(ml_dtypes.bfloat16 if name == "__nv_bfloat16" else name)
    out = np.zeros_like(x)
    launch(kernel, 1, 4, x, out)
    assert out.tobytes() == x[::-1].tobytes()


@pytest.mark.parametrize(
    "dtype", ["bool", "uint8", "int32", "float16", "bfloat16", "float32", "float64", "complex64"]
)
def test_torch_tensors_on_the_cpu(launch, dtype):
    torch = pytest.importorskip("torch")
    x = torch.tensor([1, 0, 1, 1, 0]).to(getattr(torch, dtype))
    out = torch.zeros(10, dtype=x.dtype)[::2]
    launch(copy, 1, 8, x, out)
    assert torch.equal(x, out)


def test_a_tensor_that_wants_gradients(launch):
    torch = pytest.importorskip("torch")
    x, out = torch.arange(3.0, requires_grad=True), torch.zeros(3)
    launch(copy, 1, 4, x, out)
    assert out.tolist() == [0, 1, 2]


@pytest.mark.parametrize(
    "view",
    [
        lambda a: a[::3],
        lambda a: a[::-1],
        lambda a: a[10:2:-2],
        lambda a: a[:0],
        lambda a: np.broadcast_to(a[:1], 5),
    ],
    ids=["strided", "reversed", "backwards", "empty", "broadcast"],
)
def test_views_as_arguments(launch, view):
    x = view(np.arange(12.0))
    out = np.zeros(2 * len(x))[::2]
    launch(copy, 1, 16, x, out)
    np.testing.assert_array_equal(out, x)


def test_column_major_and_scalar_arrays(launch):
    @cuda.jit
    def kernel(x, scalar, out):
        i, j = cuda.grid(2)
        out[i, j] = x[i, j] + scalar[()]

    x, out = np.asfortranarray(np.arange(6.0).reshape(2, 3)), np.zeros((2, 3), order="F")
    launch(kernel, 1, (2, 3), x, np.array(10.0), out)
    np.testing.assert_array_equal(out, x + 10)


def test_one_array_passed_twice_and_overlapping_views(launch):
    @cuda.jit
    def kernel(x, same, upper):
        x[0] = 5
        same[1] = same[0] + 1
        upper[0] = x[1] + 1

    x = np.zeros(4, int)
    launch(kernel, 1, 1, x, x, x[2:])
    assert x.tolist() == [5, 6, 7, 0]


@pytest.mark.parametrize(
    "value", [True, 7, -7, 2**63, 2.5, 1 + 2j, np.uint8(200), np.int16(-3), np.float32(0.1), np.float16(0.1)]
)
def test_scalars_as_arguments(launch, value):
    @cuda.jit
    def kernel(value, out):
        out[0] = value

    out = np.zeros(1, np.asarray(value).dtype)
    launch(kernel, 1, 1, value, out)
    assert out[0] == value


def test_enumerations_keep_their_identity(launch):
    @cuda.jit
    def kernel(mode, out):
        out[0], out[1], out[2] = mode is Mode.fast, mode == Mode.fast, Mode["slow"] is Mode.slow
        out[3] = 10 + Size.large

    out = np.zeros(4, int)
    launch(kernel, 1, 1, Mode.fast, out)
    assert out.tolist() == [1, 1, 1, 12]


def test_records(launch):
    @cuda.jit
    def kernel(x, out):
        i = cuda.threadIdx.x
        tile = cuda.shared.array(2, RECORD)
        tile[i] = x[i]
        cuda.syncthreads()
        out[i] = tile[1 - i]

    x = np.array([(1, 2.5), (3, 4.5)], RECORD)
    out = np.zeros_like(x)
    launch(kernel, 1, 2, x, out)
    assert out.tolist() == [(3, 4.5), (1, 2.5)]


def without_reference(error):
    """Return an error's text without the line that names its page."""
    return str(error).removesuffix("\n  → refused-launch")


def test_a_refused_launch_names_its_page():
    with pytest.raises(LaunchError) as caught:
        simulate(copy)[1, 1025](np.zeros(1, int), np.zeros(1, int))
    expected = "block.x is 1,025; the device takes 1 to 1,024\n  → refused-launch"
    assert str(caught.value) == str(pickle.loads(pickle.dumps(caught.value))) == expected
    assert caught.value.verdict == expected.splitlines()[0]


# --- limits -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "configuration, message",
    [
        ((1, 1025), "block.x is 1,025; the device takes 1 to 1,024"),
        ((1, (32, 33)), "a block of 32 x 33 x 1 has 1,056 threads; the device takes up to 1,024"),
        ((1, (1, 1, 65)), "block.z is 65; the device takes 1 to 64"),
        ((0, 1), "grid.x is 0; the device takes 1 to 2,147,483,647"),
        (((1, 65536), 1), "grid.y is 65,536; the device takes 1 to 65,535"),
        ((1, 1.5), "block 1.5 must be an integer or a tuple of up to three integers"),
        (((1, 1, 1, 1), 1), "grid (1, 1, 1, 1) has 4 dimensions; wanted one to three"),
        ((1, 1, 0, 1.5), "1.5 bytes of dynamic shared memory; wanted an integer"),
        ((1, 1, 0, 49153), "49,153 bytes of dynamic shared memory; Numba can ask for 0 to 49,152"),
    ],
)
def test_configurations_that_no_device_takes(configuration, message):
    with pytest.raises(LaunchError) as caught:
        simulate(copy)[configuration](np.zeros(1, int), np.zeros(1, int))
    assert without_reference(caught.value) == message


@pytest.mark.parametrize(
    "options, message",
    [
        ({"seed": -1}, "seed is -1; wanted an integer, 0 or more"),
        ({"max_steps": "9"}, "max_steps is '9'; wanted an integer, 0 or more"),
        ({"spec": "sm_80"}, "spec is 'sm_80'; wanted a sim.DeviceSpec"),
        ({"observers": ["races"]}, "observers has 'races'; wanted classes "),
        ({"observers": 3}, "observers has 3; wanted classes "),
    ],
)
def test_options_that_are_none(options, message):
    with pytest.raises(LaunchError) as caught:
        simulate(copy, **options)
    assert str(caught.value).startswith(message)


def test_a_launch_without_grid_and_block_is_told_so():
    with pytest.raises(LaunchError, match="the grid and the block are missing"):
        simulate(copy)(np.zeros(1), np.zeros(1))


@pytest.mark.parametrize("engine", ["fibers", "native"])
def test_an_integer_of_more_than_64_bits_is_named(engine):
    with pytest.raises(
        LaunchError, match="argument x is 18446744073709551616; a kernel takes integers of 64"
    ):
        simulate(copy, engine=engine)[1, 1](2**64, np.zeros(1))


@cuda.jit(device=True)
def with_a_local_array():
    cuda.local.array(30_000, float64)


@cuda.jit
def much_shared():
    cuda.shared.array((200, 200), float64)


@cuda.jit
def much_local():
    cuda.local.array(40_000, float64)
    with_a_local_array()


@pytest.mark.parametrize("engine", ["fibers", "native"])
@pytest.mark.parametrize(
    "kernel, message",
    [
        (
            much_shared,
            "the kernel needs 320,000 bytes of shared memory per block\n  the device has 232,448: make the"
            " tiles smaller",
        ),
        (
            much_local,
            "the kernel needs 560,000 bytes of local memory per thread\n  the device has 524,288: pass an array"
            " with a row for each thread",
        ),
    ],
)
def test_too_much_memory(kernel, message, engine):
    with pytest.raises(LaunchError) as caught:
        simulate(kernel, engine=engine)[1, 1]()
    assert without_reference(caught.value) == message


@cuda.jit
def shares(x):
    cuda.shared.array(30_000, int8)[0] = x[0]


@cuda.jit
def shares_much(x):
    cuda.shared.array(200_000, int8)[0] = x[0]


@pytest.mark.parametrize("engine", ["fibers", "native"])
def test_declared_and_dynamic_memory_share_48_kib(engine):
    """Declare shared memory and request dynamic shared memory. As on an H200, only declared memory may exceed
    48 KiB."""
    x = np.zeros(1, np.int8)
    simulate(shares_much, engine=engine)[1, 1](x)
    simulate(shares, engine=engine)[1, 1, 0, 19_152](x)
    with pytest.raises(
        LaunchError, match="needs 49,153 bytes of shared memory per block, 19,153 of it dynamic"
    ):
        simulate(shares, engine=engine)[1, 1, 0, 19_153](x)


@cuda.jit(device=True)
def returns_nothing(x):
    x[0] = 1


def test_a_kernel_that_returns_a_value():
    """Return values from kernels. `return`, `return None` and the result of a function without a value are
    allowed."""

    def early(x):
        if x[0] > 0:
            return None
        return returns_nothing(x)

    def late(x):
        if x[0] > 0:
            return
        return x[0]

    x = np.zeros(1)
    simulate(early)[1, 1](x)
    assert x[0] == 1
    with pytest.raises(LaunchError) as caught:
        simulate(late, engine="native")[1, 1](x)
    assert (
        without_reference(caught.value) == "the kernel returns a value: late line 4  return x[0]\n"
        "  wanted `return` alone: store the result in an array that is an argument, out[i] = ..."
    )


@pytest.mark.parametrize(
    "line, part",
    [
        ("cuda.shared.array((TILE, TILE + 1), float64)", "TILE + 1"),
        ("cuda.local.array(2 * TILE, float64)", "2 * TILE"),
        ("cuda.shared.array(shape=x.shape[0], dtype=float64)", "x.shape"),
        ("cuda.local.array(max(TILE, 2), float64)", "max(TILE, 2)"),
    ],
)
def test_a_shape_that_numba_does_not_take(line, part):
    """Use shapes that numba-cuda 0.30 rejects, because its type inference does not treat a sum of names as a
    literal."""
    names = {"cuda": cuda, "float64": float64, "TILE": 8}
    text = f"def kernel(x):\n    s = {line}\n    s[0] = x[0]\n"
    linecache.cache["<computed shape>"] = len(text), None, text.splitlines(True), "<computed shape>"
    exec(compile(text, "<computed shape>", "exec"), names)
    for engine in ("fibers", "native"):
        with pytest.raises(LaunchError) as caught:
            simulate(names["kernel"], engine=engine)[1, 1](np.zeros(1))
        assert str(caught.value).startswith(
            f"{part} in the shape of a declared array is not a constant for Numba: kernel line 2  s = {line}\n "
            " use numbers"
        )


def test_a_grid_that_cannot_meet(launch):
    @cuda.jit
    def kernel():
        cuda.cg.this_grid().sync()

    with pytest.raises(
        LaunchError,
        match="the kernel synchronises the whole grid, whose 5,000 blocks must all be resident at once",
    ):
        launch(kernel, 5000, 1)


@pytest.mark.parametrize(
    "argument, message",
    [
        (
            "text",
            "argument x is a str; a kernel takes numpy arrays, CPU tensors, numbers, records and tuples of them",
        ),
        (
            [1, 2],
            "argument x is a list; a kernel takes numpy arrays, CPU tensors, numbers, records and tuples of them",
        ),
        (
            np.array([None]),
            (
                "argument x: a GPU does not support dtype object\n"
                "  wanted a native boolean, integer, floating-point or complex dtype; convert with .astype()"
            ),
        ),
        (
            np.zeros(1, ">f4"),
            (
                "argument x: a GPU does not support dtype >f4\n"
                "  wanted a native boolean, integer, floating-point or complex dtype; convert with .astype()"
            ),
        ),
        (
            np.zeros(1, [("n", "i4"), ("name", "U4")]),
            (
                "argument x, field name: a GPU does not support dtype <U4\n"
                "  wanted a native boolean, integer, floating-point or complex dtype; text as numbers, with"
                " .view(np.uint8 or np.uint32)"
            ),
        ),
        pytest.param(
            np.zeros(1, np.longdouble),
            (
                f"argument x: a GPU does not support dtype {np.dtype(np.longdouble)}\n"
                "  wanted a native boolean, integer, floating-point or complex dtype; convert with .astype()"
            ),
            marks=pytest.mark.skipif(np.dtype(np.longdouble).itemsize == 8, reason="no wider type here"),
        ),
    ],
)
@pytest.mark.parametrize("engine", ["fibers", "native"])
def test_arguments_that_no_kernel_takes(argument, message, engine):
    with pytest.raises(LaunchError) as caught:
        simulate(copy, engine=engine)[1, 1](argument, np.zeros(1, int))
    assert str(caught.value) == message


def whole_sum(out, x):
    out[0] = (x + x)[0]


def times_a_number(out, x):
    x[:] = x[:] * 2.0


def changed(out, x):
    x[1:] -= 1


def equal(out, x):
    if (x == out)[0]:
        out[0] = 1


def negative(out, x):
    out[0] = (-x)[0]


def magnitude(out, x):
    out[0] = abs(x)[0]


def as_float(out, x):
    out[0] = float(x)


def first(out, x):
    out[0] = x[0]


def more(out, x):
    out[0] = x + 1


BY_ELEMENT = (
    " takes numbers in a kernel, but x is an array; wanted a loop, or an element per thread: out[i] = "
)
NO_DIMENSIONS = np.array(3.0)


@pytest.mark.parametrize(
    "kernel, x, said",
    [
        (whole_sum, np.ones(3), f"+{BY_ELEMENT}x[i] + y[i]"),
        (times_a_number, np.ones(3), f"*{BY_ELEMENT}x[i] * y[i]"),
        (changed, np.ones(3), f"-{BY_ELEMENT}x[i] - y[i]"),
        (equal, np.ones(3), f"=={BY_ELEMENT}x[i] == y[i]"),
        (negative, np.ones(3), f"-{BY_ELEMENT}-x[i]"),
        (magnitude, np.ones(3), f"abs{BY_ELEMENT}abs(x[i])"),
        (
            as_float,
            np.ones(3),
            "<global array x float64[3]> is not a number, so it cannot be converted to a float",
        ),
        (
            first,
            np.ones((3, 2)),
            "<global array x float64[2]> is not a number, so it cannot be converted to a float",
        ),
        (first, NO_DIMENSIONS, "x has 0 dimensions, but is indexed with 1 indices; wanted x[()]"),
        (
            more,
            NO_DIMENSIONS,
            "+ takes numbers in a kernel, but x is an array without dimensions; wanted its element, x[()]",
        ),
        (first, None, "'NoneType' object is not subscriptable"),
        (more, None, "unsupported operand type(s) for +: 'NoneType' and 'int'"),
    ],
)
@pytest.mark.parametrize("engine", ["fibers", "native"])
def test_what_is_no_number_is_named(kernel, x, said, engine):
    """Combine whole arrays with numbers. This once raised an internal error, or used numpy's own product."""
    with pytest.raises(ThreadError) as caught:
        simulate(kernel, engine=engine)[1, 1](np.zeros(1), x)
    message = str(caught.value)
    assert f": {said}\n  {kernel.__name__} line " in message
    named = message.endswith("\n  x is None; wanted an array or a number, or a test: if x is not None")
    assert named is (x is None)


def test_an_array_compared_with_none_is_not_none():
    def kernel(out, x):
        if x != None:  # noqa: E711
            out[0] = 1

    simulate(kernel)[1, 1](out := np.zeros(1), np.zeros(3))
    assert out[0] == 1


def test_a_kernel_that_imports_goes_by_fibers():
    """Import a module inside a kernel. The native engine once raised Numba's error about an unsupported
    opcode."""

    def kernel(out):
        from math import sqrt as root

        out[0] = root(4.0)

    report = simulate(kernel, engine="native")[1, 1](out := np.zeros(1))
    assert out[0] == 2 and "an import in a kernel has no compiled form" in report.notes[0]


def test_a_wrong_number_of_arguments():
    with pytest.raises(LaunchError) as caught:
        simulate(copy)[1, 1](np.zeros(1, int))
    assert (
        str(caught.value) == "copy(x, out) was launched with 1 argument: missing a required argument: 'out'"
    )


@pytest.mark.parametrize("engine", ["fibers", "native"])
def test_a_field_of_several_records(engine):
    point = np.dtype([("x", np.float64), ("y", np.float32)], align=True)

    def kernel(ions, out):
        i = cuda.threadIdx.x
        ions[i].hits[2].x = 5 + i
        out[i] = ions[i].hits[1].y + ions[i]["hits"][2]["x"]

    ions, out = np.zeros(2, [("hits", point, 3)]), np.zeros(2)
    ions["hits"]["y"] = 3
    assert simulate(kernel, engine=engine)[1, 2](ions, out).findings == ()
    assert out.tolist() == [8, 9] and ions["hits"]["x"][:, 2].tolist() == [5, 6]


@pytest.mark.parametrize("engine", ["fibers", "threads", "native"])
def test_each_argument_is_classified_once(engine, monkeypatch):
    """Count how often a launch looks up the array of each argument: only once, on every engine."""

    @cuda.jit
    def kernel(x, pair, scale):
        x[cuda.threadIdx.x] += scale * pair[0][0] + pair[1]

    asked, original = [], argument.host_array
    monkeypatch.setattr(
        argument, "host_array", lambda value, name: asked.append(name) or original(value, name)
    )
    simulate(kernel, engine=engine)[1, 4](np.zeros(4), (np.ones(1), 2), 3.0)
    assert asked == ["x", "pair[0]", "pair[1]", "scale"]
