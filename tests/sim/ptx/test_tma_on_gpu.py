"""Comparison of TMA in the simulator with a Hopper GPU, bit for bit: the kernels of hopper_corpus.py, the
bytes of tensor maps, and the boxes of tensor copies in shared memory."""

import ctypes
from math import prod

import numpy as np
import pytest

from ptx import hopper_corpus as corpus
from sim import load_ptx, simulate, tensor_map
from sim.isa.tensor_map import SWIZZLES, TYPES, TensorMap
from sim.ptx.nvrtc import compile_ptx

pytestmark = pytest.mark.gpu

BOX = r"""
extern "C" __global__ void k(const __grid_constant__ Map from, u32* y, int bytes, int x0, int x1, int x2, int
x3, int x4) {
    __shared__ __align__(1024) u32 tile[2048];
    __shared__ u64 bar;
    for (int i = 0; i < 2048; i++) tile[i] = 0xABABABAB;
    init(&bar, 1);
    fence();
    expect(&bar, bytes);
    asm volatile("cp.async.bulk.tensor.RANKd.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
                 " [%0], [%1, {COORDINATES}], [%2];"
                 :: "r"(at(tile)), "l"(&from), "r"(at(&bar)), "r"(x0), "r"(x1), "r"(x2), "r"(x3), "r"(x4) :
                 "memory");
    wait(&bar, 0);
    for (int i = 0; i < 2048; i++) y[i] = tile[i];
}"""
# (array shape, box, coordinates from the last axis on, options of tensor_map)
BOXES = {
    f"{len(shape)} dimensions, swizzle {swizzle}": (shape, box, at, {"swizzle": swizzle})
    for swizzle in SWIZZLES
    for shape, box, at in (
        ((256,), (8,), (72,)),
        ((40, 64), (9, 8), (60, 35)),
        ((7, 9, 40), (4, 3, 8), (-4, 7, 5)),
        ((3, 4, 5, 48), (2, 3, 2, 4), (8, 4, -1, 2)),
        ((5, 3, 4, 3, 12), (2, 2, 2, 2, 8), (8, 2, 3, -1, 4)),
    )
}
BOXES |= {
    f"element strides {steps}": ((64, 64), (8, 32), (4, 2), {"element_strides": steps})
    for steps in ((3, 1), (8, 1), (3, 2))
}
BOXES |= {"fill with NaN": ((16, 64), (8, 16), (56, 12), {"fill": "nan"})}
BOXES |= {"tf32": ((16, 64), (8, 16), (56, 12), {"dtype": "tf32"})}


def check(result):
    """Return the values of a call of cuda.bindings. Raise RuntimeError for an error."""
    status, *values = result
    if int(status):
        raise RuntimeError(str(status))
    return values[0] if len(values) == 1 else values


class Gpu:
    """The first GPU: modules, memory and launches by the driver API."""

    def __init__(self):
        from cuda.bindings import driver

        self.driver = driver
        check(driver.cuInit(0))
        check(driver.cuCtxSetCurrent(check(driver.cuDevicePrimaryCtxRetain(check(driver.cuDeviceGet(0))))))

    def upload(self, array):
        address = check(self.driver.cuMemAlloc(array.nbytes))
        check(self.driver.cuMemcpyHtoD(address, array.ctypes.data, array.nbytes))
        return int(address)

    def encode(self, given):
        """Return (the driver's tensor map, the address of its array on the GPU) for a sim.tensor_map."""
        described, address = (
            TensorMap.decode(given.tobytes()),
            self.upload(np.ascontiguousarray(given.tensor)),
        )
        driver = self.driver
        # cuda.bindings turns an empty list into a null pointer, which the driver refuses.
        strides = described.strides or [16]
        integers = lambda kind, values: [kind(value) for value in values]  # noqa: E731
        made = check(
            driver.cuTensorMapEncodeTiled(
                driver.CUtensorMapDataType(TYPES.index(described.type)),
                len(described.sizes),
                address,
                integers(driver.cuuint64_t, described.sizes),
                integers(driver.cuuint64_t, strides),
                integers(driver.cuuint32_t, described.box),
                integers(driver.cuuint32_t, described.element_strides),
                driver.CUtensorMapInterleave(0),
                driver.CUtensorMapSwizzle(SWIZZLES.index(described.swizzle)),
                driver.CUtensorMapL2promotion(0),
                driver.CUtensorMapFloatOOBfill(int(described.fill_nan)),
            )
        )
        return ctypes.string_at(made.getPtr(), 128), address

    def launch(self, text, grid, block, arguments):
        """Run the kernel `k`, and copy its arrays and the arrays of its tensor maps back."""
        function = check(
            self.driver.cuModuleGetFunction(check(self.driver.cuModuleLoadData(text.encode())), b"k")
        )
        values, back = [], []
        for argument in arguments:
            if hasattr(argument, "tensor"):
                raw, address = self.encode(argument)
                values.append((ctypes.c_char * 128).from_buffer_copy(raw))
                back.append((address, argument.tensor))
            elif isinstance(argument, np.ndarray):
                back.append((self.upload(argument), argument))
                values.append(ctypes.c_uint64(back[-1][0]))
            else:
                values.append(ctypes.c_int32(argument))
        pointers = (ctypes.c_void_p * len(values))(*map(ctypes.addressof, values))
        sizes = [(*(size if isinstance(size, tuple) else (size,)), 1, 1)[:3] for size in (grid, block)]
        check(self.driver.cuLaunchKernel(function, *sizes[0], *sizes[1], 0, 0, ctypes.addressof(pointers), 0))
        check(self.driver.cuCtxSynchronize())
        for address, array in back:
            check(self.driver.cuMemcpyDtoH(array.ctypes.data, address, array.nbytes))


@pytest.fixture(scope="module")
def gpu():
    return Gpu()


@pytest.mark.parametrize("name", corpus.KERNELS)
def test_the_kernels_of_the_corpus_run_on_a_gpu(name, gpu):
    (grid, block), arguments, wanted = corpus.LAUNCHES[name]
    given = arguments()
    gpu.launch(compile_ptx(corpus.source(name), "k.cu", architecture="sm_90a"), grid, block, given)
    result = given[1].tensor if name == "box" else given[2 if name == "product" else 1]
    assert np.array_equal(result, wanted)


@pytest.mark.parametrize("name", BOXES)
def test_boxes_and_maps_agree(name, gpu):
    shape, box, at, options = BOXES[name]
    array = np.random.default_rng(1).normal(size=shape).astype(np.float32)
    given = tensor_map(array, box, **options)
    raw, address = gpu.encode(given)
    described = TensorMap.decode(raw)
    assert described.encode() == raw and described.address == address
    text = corpus.PRELUDE + BOX.replace("RANK", str(len(shape))).replace(
        "COORDINATES", ", ".join(f"%{3 + i}" for i in range(len(shape)))
    )
    ptx, results = compile_ptx(text, "k.cu", architecture="sm_90a"), []
    steps = (*options.get("element_strides", (1,) * len(shape))[:-1], 1)  # the last axis has none
    nbytes = prod(-(-n // step) for n, step in zip(box, steps)) * array.itemsize
    for run in (
        gpu.launch,
        lambda ptx, grid, block, given: simulate(load_ptx(ptx)["k"])[grid, block](*given),
    ):
        y = np.zeros(2048, np.uint32)
        run(ptx, 1, 1, [given, y, nbytes, *at, *[0] * (5 - len(at))])
        results.append(y)
    assert np.array_equal(*results)
