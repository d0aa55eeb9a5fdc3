"""Sums of the gradients of latent attention's tensor-core kernels, rounded to 16 bits.

    kernel        computes                                              grid
    key_sums      Σ_h (dk̃ + α [band] dk̃) and Σ_h dṽ                     ⌈keys / WARPS⌉, B
    query_sums    dq̃ + α [band] dq̃, and Σ [band] dq̃ · q̃ of each block   ⌈rows / (WARPS · REPEATS)⌉, B · H

Each reads its float32 sums once; PyTorch's operators would read and write most of them three times. A lane
owns pairs of columns, and reads each with one load. Sums have a fixed order.
"""

import functools

import torch
from numba import cuda
from numpy import float32, int32, uint32

from kernels.common.launch import Bits, launch, output
from kernels.common.splits import LANES, PLACE, sum_of_warp
from kernels.tensor_cores.instructions import floats_of, high_bf16, high_f16, low_bf16, low_f16
from kernels.tensor_cores.launch import kind_of
from kernels.tensor_cores.tiles import ARITHMETIC

WARPS = 8  # per block; each has a row
REPEATS = 4  # rows of query_sums per warp
HALVES = {"bfloat16": (low_bf16, high_bf16), "float16": (low_f16, high_f16)}


@functools.cache
def key_sums_kernel(kind, band):
    """Return the kernel; `band`: whether there are sums of the band."""
    pack = ARITHMETIC[kind].pack

    @cuda.jit
    def latent_key_sums_kernel(dk, band_dk, dv, alpha, k_out, v_out):
        """Store the sums over the heads in k_out and v_out (B, N_k, width / 2), two 16-bit values per
        element.

        dk, dv: (B, H, N_k, width / 2), two float32 values per element.
        band_dk: (B, H, N, width / 2), the last N keys; not used without a band.
        alpha: (1,).
        """
        lane, batch, j = (
            cuda.threadIdx.x & 31,
            cuda.blockIdx.y,
            cuda.blockIdx.x * WARPS + (cuda.threadIdx.x >> 5),
        )
        keys, before = dk.shape[2], dk.shape[2] - band_dk.shape[2]
        if j >= keys:
            return
        for pair in range(lane, dk.shape[3], LANES):
            k0 = k1 = b0 = b1 = v0 = v1 = float32(0)
            for head in range(dk.shape[1]):
                x, y = floats_of(dk[batch, head, j, pair])
                k0, k1 = k0 + x, k1 + y
                x, y = floats_of(dv[batch, head, j, pair])
                v0, v1 = v0 + x, v1 + y
                if band and j >= before:
                    x, y = floats_of(band_dk[batch, head, (j - before) & PLACE, pair])
                    b0, b1 = b0 + x, b1 + y
            if band:
                k0, k1 = k0 + alpha[0] * b0, k1 + alpha[0] * b1
            k_out[batch, j, pair], v_out[batch, j, pair] = int32(pack(k0, k1)), int32(pack(v0, v1))

    return latent_key_sums_kernel


@functools.cache
def query_sums_kernel(kind):
    """Return the kernel for 16-bit values of this type."""
    pack, (low, high) = ARITHMETIC[kind].pack, HALVES[kind]

    @cuda.jit
    def latent_query_sums_kernel(dq, band_dq, q, alpha, out, parts):
        """Store dq + alpha · band_dq in out, and Σ band_dq · q of each block in parts.

        dq: (B, H, N, width / 2), the last N of M rows; two float32 values per element.
        band_dq: (B, H, N_k, width / 2), whose last M rows belong to q, like dq.
        q: (B, H, M, width / 2), q̃, two 16-bit values per element, like out.
        alpha: (1,).
        parts: (B · H, blocks).
        """
        sums = cuda.shared.array(WARPS, float32)
        lane, warp, total = cuda.threadIdx.x & 31, cuda.threadIdx.x >> 5, float32(0)
        batch, head = cuda.blockIdx.y // q.shape[1], cuda.blockIdx.y % q.shape[1]
        rows, before, missing = q.shape[2], q.shape[2] - dq.shape[2], band_dq.shape[2] - q.shape[2]
        for turn in range(REPEATS):
            i = (cuda.blockIdx.x * REPEATS + turn) * WARPS + warp
            if i < rows:
                for pair in range(lane, q.shape[3], LANES):
                    b0, b1 = floats_of(band_dq[batch, head, (missing + i) & PLACE, pair])
                    x, y = float32(0), float32(0)
                    if i >= before:
                        x, y = floats_of(dq[batch, head, (i - before) & PLACE, pair])
                    both = uint32(q[batch, head, i, pair])
                    total += b0 * low(both) + b1 * high(both)
                    out[batch, head, i, pair] = int32(pack(x + alpha[0] * b0, y + alpha[0] * b1))
        total = sum_of_warp(total)
        if lane == 0:
            sums[warp] = total
        cuda.syncthreads()  # all warps have stored their sums
        if cuda.threadIdx.x == 0:
            total = float32(0)
            for x in range(WARPS):
                total += sums[x]
            parts[cuda.blockIdx.y, cuda.blockIdx.x] = total

    return latent_query_sums_kernel


# Host -------------------------------------------------------------------------------------------------------


def add_heads(dk, band_dk, dv, alpha, results, run=None):
    """Store dk̃ and dṽ in results, two tensors (B, N_k, width) of a 16-bit type, from the float32 gradients of
    each head.

    band_dk: the sums of the band for the last keys, or None.
    """
    batch, _, keys, _ = dk.shape
    kernel = key_sums_kernel(kind_of(results[0]), band_dk is not None)
    given = (Bits(x, torch.int64) for x in (dk, dk if band_dk is None else band_dk, dv))
    grid = -(-keys // WARPS), batch
    launch(kernel, grid, WARPS * LANES, *given, alpha, *(Bits(x, torch.int32) for x in results), run=run)


def add_band(dq, band_dq, latent_q, alpha, run=None):
    """Return (dq̃ (B, H, M, width) in the type of latent_q, dα (1,)).

    dq: (B, H, N, width), the gradient of the last N queries, without the band.
    band_dq: (B, H, N_k, width), the sums of the band.
    latent_q: (B, H, M, width), q̃.
    """
    batch, heads, rows, width = latent_q.shape
    blocks = -(-rows // (WARPS * REPEATS))
    result, parts = (
        output(latent_q.shape, like=dq, dtype=latent_q.dtype),
        output((batch * heads, blocks), like=dq),
    )
    given = *(Bits(x, torch.int64) for x in (dq, band_dq)), Bits(latent_q, torch.int32), alpha
    arguments = *given, Bits(result, torch.int32), parts
    launch(query_sums_kernel(kind_of(latent_q)), (blocks, batch * heads), WARPS * LANES, *arguments, run=run)
    return result, parts.sum().view(1)
