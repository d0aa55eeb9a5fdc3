"""Tests of the SIMD video instructions that NVRTC emits for CUDA's intrinsics on packed bytes and
halfwords."""

import numpy as np
import pytest

from sim import simulate

TEXT = """
extern "C" __global__ void k(const unsigned *a, const unsigned *b, unsigned *out) {
    int i = threadIdx.x, n = blockDim.x;
    out[i] = __vabsdiffu4(a[i], b[i]);
    out[n + i] = __vabsdiffs4(a[i], b[i]);
    out[2 * n + i] = __vsadu4(a[i], b[i]);
    out[3 * n + i] = __vsads4(a[i], b[i]);
    out[4 * n + i] = __vsadu2(a[i], b[i]);
    out[5 * n + i] = __vabs4(a[i]);
    out[6 * n + i] = __vadd4(a[i], b[i]);
    out[7 * n + i] = __vmaxs2(a[i], b[i]);
}
"""


@pytest.mark.parametrize("engine", ["fibers", "native", "threads"])
def test_packed_bytes_and_halfwords(engine, tmp_path):
    pytest.importorskip("cuda.bindings.nvrtc")
    from sim.ptx.nvrtc import load_cuda

    path = tmp_path / "k.cu"
    path.write_text(TEXT)
    a, b = np.random.default_rng(3).integers(0, 1 << 32, (2, 64), np.uint32)
    out = np.zeros((8, 64), np.uint32)
    simulate(load_cuda(path)["k"], engine=engine)[1, 64](a, b, out)

    def lanes(x, dtype):
        return x.view(dtype).reshape(64, -1).astype(np.int64)

    def packed(values, dtype):
        return values.astype(dtype).view(np.uint32).reshape(64)

    u1, s1, u2 = (abs(lanes(a, t) - lanes(b, t)) for t in (np.uint8, np.int8, np.uint16))
    sums = [x.sum(1).astype(np.uint32) for x in (u1, s1, u2)]
    wanted = [packed(u1, np.uint8), packed(s1, np.uint8), *sums, packed(abs(lanes(a, np.int8)), np.uint8)]
    wanted += [packed(lanes(a, np.uint8) + lanes(b, np.uint8), np.uint8)]
    wanted += [packed(np.maximum(lanes(a, np.int16), lanes(b, np.int16)), np.int16)]
    np.testing.assert_array_equal(out, wanted)
