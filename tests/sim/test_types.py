# ruff: noqa: F841 (what is assigned is what is compared)
"""Tests that the front end infers the types of Numba's CUDA target, for each assignment and each merge of
several."""

import math
from types import SimpleNamespace

import numpy as np
import pytest
from numba import cuda, types
from numba.cuda import dispatcher

from numba_types import compare

DEEP = False


@cuda.jit(device=True)
def clamped(v, low=0):
    if v < low:
        return low
    return v


@cuda.jit(device=True)
def factorial(n):
    if n < 2:
        return 1
    return n * factorial(n - 1)


def everything(x, i8, u32, u64, out, n):
    t = cuda.threadIdx.x
    m = 0
    if n > 3:
        m = x[t]
        y = m * m
    z = m * m
    for i in range(t):
        a = i
    for j in range(t):
        b = j
    for k in range(i8[0]):
        c = k
    for k2 in range(u32[0]):
        c2 = k2
    for k3 in range(u64[0]):
        c3 = k3
    for k4 in range(u32[0]):
        c4 = k4
    for k5 in range(t, n):
        c5 = k5
    for k6 in range(t, t, t):
        c6 = k6
    g = cuda.grid(1)
    bb = cuda.ballot_sync(0xFFFFFFFF, 1)
    am = cuda.activemask()
    s = cuda.syncthreads_count(1)
    la = cuda.laneid
    w = cuda.warpsize
    sz = x.size
    sh = x.shape[0]
    nd = x.ndim
    ln = len(x)
    p = cuda.popc(i8[0])
    p2 = cuda.popc(t)
    lt = cuda.lanemask_lt()
    w2 = x[0] if n else 0
    w3 = n and x[0]
    f = float(x[0])
    ii = int(u32[0])
    rr = round(x[0])
    rr2 = round(x[0], 2)
    ab = abs(t)
    neg = -t
    inv = ~t
    no = not t
    mx = max(t, t)
    mx2 = min(t, 3)
    bl = t < 3
    bn = -bl
    bi = ~bl
    gs = cuda.gridsize(1)
    gx, gy = cuda.grid(2)
    oo = cuda.atomic.add(x, 0, 1)
    cl = cuda.clz(t)
    ff = cuda.ffs(t)
    mm, pr = cuda.match_all_sync(0xFFFFFFFF, t)
    an = cuda.any_sync(0xFFFFFFFF, t)
    sf = cuda.shfl_sync(0xFFFFFFFF, t, 0)
    its = x.itemsize
    h = 0xFFFFFFFF
    h2 = 0x7FFFFFFFFFFFFFFF
    h3 = 0xFFFFFFFFFFFFFFFF
    s2 = sum((t, t))
    for e in x:
        e2 = e
    for q, e3 in enumerate(x):
        q2 = q
    sd = x.strides[0]
    dm = divmod(t, t)
    dm1, dm2 = dm


def merges(x, i8, u32, u64, out, n):
    a = 0
    for i in range(n):
        if i > 2:
            a = x[i]
            continue
        if i > 5:
            a = u32[i]
            break
        b = a
    else:
        a = 3
    c = a
    d = i8[0]
    while d < 5:
        d += 1
        if d == 3:
            d = u64[0]
            break
        e = d
    f = d
    if DEEP:
        f = x[0]
    g = f
    h = 0 if n else x[0]
    h *= 2
    p, q = 0, x[0]
    for k in range(3):
        p, q = q, p
    r = math.sqrt(p) + q
    s = True
    s = s + True
    t = i8[0] * x[0]
    t += i8[0]
    u = u32[0] - u32[1]
    u -= 1
    v = u64[0] if n > 2 else u32[0]
    w = u64[0] if n > 2 else n
    y = x[0]
    y **= 2
    z = x[0] ** n
    aa = min(x[0], i8[0], n)
    ab = max(u32[0], i8[0])
    ac = x.shape
    ad, ae = ac[0], len(ac)
    af = n // 2 + n % 3 - (n << 2) | (n & 3) ^ u32[0]
    ag = math.floor(x[0])
    ah = math.exp(n)
    ai = n / 2
    aj = np.float32(n) * np.int8(3)
    ak = clamped(x[0])
    al = clamped(n)
    am = clamped(u32[0], 2.5)
    an = factorial(n)
    ao = (n > 2) + 1
    ap = -(n > 2)


KERNELS = [everything, merges]
ARGUMENTS = {
    "x": types.float32[::1],
    "i8": types.int8[::1],
    "u32": types.uint32[::1],
    "u64": types.uint64[::1],
    "out": types.float64[::1],
    "n": types.int64,
}


@pytest.fixture(autouse=True)
def no_gpu(monkeypatch):
    """Provide a fake GPU, which Numba requests before it types a call to a device function."""
    monkeypatch.setattr(dispatcher, "get_current_device", lambda: SimpleNamespace(compute_capability=(8, 0)))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.__name__)
def test_inferred_as_numba_infers(kernel):
    compare(kernel, ARGUMENTS)
