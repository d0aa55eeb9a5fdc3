"""Comparison of wgmma in the simulator with a Hopper GPU, bit for bit on whole numbers, and of 16-bit sums
within rounding.

Each probe runs the PTX of wgmma_kernels on the GPU and in the simulator. Results of the simulator alone are
compared with numpy in test_wgmma.py.
"""

import numpy as np
import pytest

from ptx.wgmma_corpus import HELPERS, KERNELS, THREADS, expected, operands
from ptx.wgmma_kernels import Case
from sim import load_ptx, simulate
from sim.isa.wgmma import TYPES
from sim.ptx.nvrtc import compile_ptx

pytestmark = pytest.mark.gpu
BF16 = "f32", "bf16", "bf16"
PROBES = {f"{'.'.join(types)} n={n}": (types, n, {}) for types in TYPES for n in (8, 96, 256)}
PROBES |= {f"{'.'.join(types)} A in registers": (types, 32, {"in_registers": True}) for types in TYPES}
PROBES |= {
    f"swizzle {swizzle}, major {major}, pad {pad}": (
        BF16, 64, {"swizzles": (swizzle, swizzle), "majors": (major, major), "pad": pad}
    )
    for swizzle in (0, 32, 64, 128) for major in (False, True) for pad in (0, 1024)
}  # fmt: skip
PROBES |= {
    f"swizzles {a} and {b}, majors {major_a} and {major_b}": (
        BF16, 64, {"swizzles": (a, b), "majors": (major_a, major_b)}
    )
    for a, b in ((128, 64), (32, 128), (0, 32)) for major_a, major_b in ((False, True), (True, False))
}  # fmt: skip
PROBES |= {
    f"signs {signs}": (BF16, 16, {"signs": signs, "scale": 0}) for signs in ((-1, 1), (1, -1), (-1, -1))
}


def on_gpu(text, name, block, arguments):
    """Run a PTX kernel with one block on the GPU, and copy its arrays back."""
    from cuda.core import Device, LaunchConfig, ObjectCode, launch
    from numba import cuda

    device = Device()
    device.set_current()
    arrays = [cuda.to_device(array) for array in arguments]
    kernel = ObjectCode.from_ptx(text.encode()).get_kernel(name)
    pointers = [array.device_ctypes_pointer.value for array in arrays]
    launch(device.create_stream(), LaunchConfig(grid=1, block=block), kernel, *pointers)
    device.sync()
    for array, argument in zip(arrays, arguments):
        array.copy_to_host(argument)


def in_simulator(text, name, block, arguments):
    simulate(load_ptx(text)[name])[1, block](*arguments)


@pytest.mark.parametrize("name", PROBES)
def test_products_of_whole_numbers_agree(name):
    types, n, more = PROBES[name]
    case, results = Case(types, n, **more), []
    for run in (on_gpu, in_simulator):
        out = case.y.copy()
        run(case.text, "k", 128, [case.x, out])
        results.append(out)
    assert np.array_equal(*results)


@pytest.mark.parametrize("types", [("f32", "f16", "f16"), BF16, ("f16", "f16", "f16")], ids=".".join)
def test_sums_of_fractions_agree_within_rounding(types):
    results = []
    for run in (on_gpu, in_simulator):
        case = Case(types, 64, fractions=True)
        run(case.text, "k", 128, [case.x, case.y])
        results.append(case.numbers(case.y))
    error = np.abs(results[0] - results[1]).max() / np.abs(results[1]).max()
    assert error <= (2e-3 if types[0] == "f16" else 1e-6)


@pytest.mark.parametrize("name", sorted(KERNELS.keys() - {"tensor copies", "pipeline"}))
def test_correct_kernels_of_the_corpus_agree(name):
    text = compile_ptx(HELPERS + KERNELS[name], "k.cu", architecture="sm_90a")
    a, b, shape = operands(name)
    out = np.zeros(shape, np.float32)
    on_gpu(text, "k", THREADS.get(name, 128), [a.view(np.uint16), b.view(np.uint16), out])
    assert np.array_equal(out, expected(name, a, b))
