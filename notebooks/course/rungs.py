"""Tasks of the ladder: the inputs and launches of each kernel that the learner writes, and PyTorch's way."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

TAPS = 7


@dataclass(frozen=True)
class Rung:
    """A kernel of one lesson.

    words: what the kernel does differently from the one before. task: what it computes.
    file: notebook with the answers. names: names of the answers in it.
    small, large: sizes for the simulator and for a GPU.
    """

    words: str
    task: str
    file: str
    names: tuple[str, ...]
    small: dict
    large: dict


@dataclass(frozen=True)
class Problem:
    """A task with its data.

    launch(run): launch all kernels by run(kernel, grid, block, *arguments, shared=...).
    out, wanted: functions that return the result, and the expected result.
    library: function that computes the same in PyTorch.
    adds: multiply-adds that the task needs. moved: bytes that it has to read and write.
    """

    launch: Callable
    out: Callable
    wanted: Callable
    library: Callable
    adds: float
    moved: float
    tensor_cores: bool = False
    tolerance: float = 1e-3  # relative to the largest expected entry


RUNGS = {
    "05": Rung(
        "one thread per query",
        "attention, float32",
        "05_flash_kernel",
        ("flash_kernel",),
        {"n": 32, "d": 16},
        {"n": 16384, "d": 64},
    ),
    "06": Rung(
        "one warp per query",
        "attention, float32",
        "06_warps",
        ("warp_attention",),
        {"n": 16, "d": 16},
        {"n": 16384, "d": 64},
    ),
    "11": Rung(
        "one thread per score",
        "convolution, float32",
        "11_conv_forward",
        ("conv_kernel",),
        {"n": 30, "d": 16},
        {"n": 8192, "d": 16},
    ),
    "13b": Rung(
        "gradients, two kernels",
        "gradients, float32",
        "13b_keys_and_sums",
        ("queries_kernel", "keys_kernel"),
        {"n": 12, "d": 16},
        {"n": 4096, "d": 16},
    ),
    "14b": Rung(
        "a token, your merge",
        "one token, float32",
        "14b_decoding_kernel",
        ("merge_splits",),
        {"n": 64, "d": 16, "heads": 1},
        {"n": 65536, "d": 64, "heads": 8},
    ),
    "16b": Rung(
        "tiles on tensor cores", "matmul, bfloat16", "16b_tiled_products", ("matmul",), {"n": 64}, {"n": 4096}
    ),
    "17": Rung(
        "copies in flight",
        "attention, bfloat16",
        "17_fast_forward",
        ("flash_with", "two_buffers"),
        {"n": 32, "d": 16},
        {"n": 16384, "d": 64},
    ),
    "17b": Rung(
        "taps as a band matrix",
        "convolution, bfloat16",
        "17b_fast_convolution",
        ("conv_kernel",),
        {"n": 64, "d": 16},
        {"n": 8192, "d": 64},
    ),
    "18": Rung(
        "taps as diagonals",
        "gradient of taps, bfloat16",
        "18_fast_backward",
        ("add_products", "sum_diagonals"),
        {"tiles": 1},
        {"tiles": 8192},
    ),
    "18c": Rung(
        "copies by TMA, wgmma",
        "matmul, bfloat16",
        "18c_hopper",
        ("matmul_of", "produce", "consume"),
        {"n": 64, "k": 512},
        {"n": 4096, "k": 4096},
    ),
}
# file -> the line of a lesson that defines its sizes, which the GPU's versions replace
SIZES = {"17_fast_forward": "WIDTH, KEYS, WARPS = 16, 16, 2", "18c_hopper": "COLUMNS, STAGES = 32, 2"}


def problem(lesson, device, *answers):
    """Return the Problem of a rung on "cpu" (small) or "cuda" (large), for the learner's functions."""
    import torch

    torch.manual_seed(int(lesson[:2]))
    rung = RUNGS[lesson]
    size = rung.small if device == "cpu" else rung.large
    return MAKERS[lesson](device, *answers, **size)


def causal_pairs(n):
    return n * (n + 1) / 2


def attention_inputs(device, n, d):
    import torch

    return torch.randn(3, n, d, device=device)


def sdpa(q, k, v, causal):
    from torch.nn.functional import scaled_dot_product_attention

    return scaled_dot_product_attention(q[None, None], k[None, None], v[None, None], is_causal=causal)[0, 0]


def flash_05(device, kernel, n, d):
    import torch
    from numpy import float32

    q, k, v = attention_inputs(device, n, d)
    out, rows, columns = torch.empty(n * d, device=device), 32, 32
    arguments = q.flatten(), k.flatten(), v.flatten(), out, n, d, columns, float32(d**-0.5)
    shared = 4 * d * 2 * (rows + columns)
    return Problem(
        lambda run: run(kernel, -(-n // rows), rows, *arguments, shared=shared),
        lambda: out.view(n, d),
        lambda: sdpa(q, k, v, False),
        lambda: sdpa(q, k, v, False),
        2 * n * n * d,
        16 * n * d,
    )


def warps_06(device, warp_attention, n, d):
    import torch
    from numpy import float32

    q, k, v = attention_inputs(device, n, d)
    out, kernel = torch.empty_like(q), warp_attention(d)
    arguments = q, k, v, float32(d**-0.5), False, out
    return Problem(
        lambda run: run(kernel, -(-n // 2), 64, *arguments),
        lambda: out,
        lambda: sdpa(q, k, v, False),
        lambda: sdpa(q, k, v, False),
        2 * n * n * d,
        16 * n * d,
    )


def eager(q, k, v, w):
    """Compute convolutional attention of one head in plain PyTorch."""
    from kernels import reference

    return reference.conv_attention(q[None, None], k[None, None], v[None, None], w[None])[0, 0]


def conv_11(device, conv_kernel, n, d):
    import torch
    from numpy import float32

    q, k, v = attention_inputs(device, n, d)
    w = torch.randn(TAPS, TAPS, device=device) / TAPS
    out, log_sum, size = torch.empty_like(q), torch.empty(n, device=device), 16
    kernel, rows = conv_kernel(size), size - TAPS + 1
    arguments = q, k, v, w, float32(d**-0.5), out, log_sum
    return Problem(
        lambda run: run(kernel, -(-n // rows), (size, size), *arguments),
        lambda: out,
        lambda: eager(q, k, v, w),
        lambda: eager(q, k, v, w),
        causal_pairs(n) * (2 * d + TAPS**2),
        16 * n * d,
    )


def backward_13(device, queries_kernel, keys_kernel, n, d):
    import torch
    from numpy import float32

    from kernels import reference

    q, k, v = attention_inputs(device, n, d)
    w, d_o = torch.randn(TAPS, TAPS, device=device) / TAPS, torch.randn(n, d, device=device)
    leaves = [x.requires_grad_() for x in (q, k, v, w)]
    o = eager(*leaves)
    inputs = [x.detach() for x in leaves]
    t = reference.conv_scores(inputs[0][None, None], inputs[1][None, None], inputs[3][None])[0, 0]
    log_sum, delta = torch.logsumexp(t, 1), (d_o * o.detach()).sum(1)
    d_q, d_k, d_v = (torch.empty_like(x) for x in inputs[:3])
    d_w = torch.zeros(1, TAPS, TAPS, device=device)
    size, threads = (32, 256) if device == "cuda" else (16, 32)
    given = *inputs, log_sum, delta, d_o, float32(d**-0.5)
    by_rows, by_columns = queries_kernel(size), keys_kernel(size)
    blocks, wanted = -(-n // (size - 2 * (TAPS - 1))), []

    def launch(run):
        d_w.zero_()
        run(by_rows, blocks, threads, *given, d_q, d_w)
        run(by_columns, blocks, threads, *given, d_k, d_v)

    def library():
        return torch.autograd.grad(o, leaves, d_o, retain_graph=True)

    def expected():
        wanted.append(library())
        return torch.cat([x.flatten() for x in wanted[-1]])

    return Problem(
        launch,
        lambda: torch.cat([x.flatten() for x in (d_q, d_k, d_v, d_w[0])]),
        expected,
        library,
        causal_pairs(n) * (7 * d + 5 * TAPS**2),
        32 * n * d,
        tolerance=0.02,
    )


def decode_14(device, merge_splits, n, d, heads):
    import torch

    from kernels import conv_attention_decode, reference
    from kernels.common.splits import merge_splits_kernel

    q = torch.randn(1, heads, TAPS, d, device=device)
    k, v = torch.randn(2, 1, heads, n, d, device=device)
    w, found = torch.randn(heads, TAPS, TAPS, device=device) / TAPS, []

    def launch(run):
        def with_merge(kernel, grid, block, *arguments):
            if kernel is merge_splits_kernel:
                kernel, arguments = merge_splits, arguments[:2]
            run(kernel, grid, block, *arguments)

        found[:] = [conv_attention_decode(q, k, v, w, run=with_merge)]

    return Problem(
        launch,
        lambda: found[0],
        lambda: reference.conv_attention_decode(q, k, v, w),
        lambda: reference.conv_attention_decode(q, k, v, w),
        heads * n * (TAPS * d + TAPS**2 + d),
        8 * heads * n * d,
    )


def matmul_16(device, kernel, n):
    import torch

    a, b = torch.randn(2, n, n, device=device).bfloat16()
    c, bits = torch.empty(n, n, device=device), [x.view(torch.int16) for x in (a, b)]
    return Problem(
        lambda run: run(kernel, (-(-n // 32), -(-n // 32)), 128, *bits, c),
        lambda: c,
        lambda: a.float() @ b.float(),
        lambda: a @ b,
        n**3,
        8 * n * n,
        tensor_cores=True,
        tolerance=0.02,
    )


def flash_17(device, flash_with, two_buffers, n, d):
    import torch
    from numpy import float32

    if device == "cuda":
        names = enlarged("WIDTH, KEYS, WARPS = 64, 64, 4")
        flash_with, two_buffers, rows = names["flash_with"], names["two_buffers"], names["ROWS"]
    else:
        rows = 32
    q, k, v = attention_inputs(device, n, d).bfloat16()
    out, kernel = torch.empty(n, d, device=device), flash_with(two_buffers)
    arguments = *(x.view(torch.int16) for x in (q, k, v)), float32(d**-0.5), out
    return Problem(
        lambda run: run(kernel, -(-n // rows), 2 * rows, *arguments),
        lambda: out,
        lambda: sdpa(q, k, v, True),
        lambda: sdpa(q, k, v, True),
        causal_pairs(n) * 2 * d,
        8 * n * d,
        tensor_cores=True,
        tolerance=0.02,
    )


def conv_17b(device, conv_kernel, n, d):
    import torch
    from numpy import float32

    rows = 32
    if device == "cuda":
        names = enlarged("WIDTH, KEYS, WARPS = 64, 16, 4", "17b_fast_convolution")
        conv_kernel, rows = names["conv_kernel"], names["ROWS"]
    q, k, v = attention_inputs(device, n, d).bfloat16()
    w = (torch.randn(TAPS, TAPS, device=device) / TAPS).bfloat16()
    out, kernel = torch.empty(n, d, device=device), conv_kernel(TAPS)
    bits = [x.view(torch.int16) for x in (q, k, v)]
    arguments = *bits, w.float(), float32(d**-0.5), out
    return Problem(
        lambda run: run(kernel, -(-n // rows), 2 * rows, *arguments),
        lambda: out,
        lambda: eager(*(x.float() for x in (q, k, v, w))),
        lambda: eager(q, k, v, w),
        causal_pairs(n) * (2 * d + TAPS**2),
        8 * n * d,
        tensor_cores=True,
        tolerance=0.02,
    )


def taps_18(device, add_products, sum_diagonals, tiles):
    import torch
    from torch.nn.functional import conv2d

    kernel = tap_gradients(add_products, sum_diagonals)
    s = torch.randn(tiles, 32 + TAPS - 1, 32 + TAPS - 1, device=device).bfloat16()
    g = torch.randn(tiles, 32, 32, device=device).bfloat16()
    d_w = torch.empty(tiles, TAPS, TAPS, device=device)
    arguments = s.view(torch.int16), g.view(torch.int16), d_w
    return Problem(
        lambda run: run(kernel, tiles, 128, *arguments),
        lambda: d_w,
        lambda: conv2d(s[None].float(), g[:, None].float(), groups=tiles)[0],
        lambda: conv2d(s[None], g[:, None], groups=tiles)[0],
        tiles * 32 * 32 * TAPS**2,
        tiles * (2 * (32 + TAPS - 1) ** 2 + 2 * 32 * 32 + 4 * TAPS**2),
        tensor_cores=True,
        tolerance=0.02,
    )


def tap_gradients(add_products, sum_diagonals):
    """Return lesson 18's kernel for many tiles, one per block: s (tiles, 38, 38), g (tiles, 32, 32) and d_w
    (tiles, 7, 7)."""
    from numba import cuda
    from numpy import float32, int16

    @cuda.jit
    def kernel(s, g, d_w):
        s_tile = cuda.shared.array((48, 56), int16, alignment=16)
        g_tile = cuda.shared.array((32, 56), int16, alignment=16)
        diagonals = cuda.shared.array((4, 9, 8), float32)
        sums = cuda.local.array(4, float32)
        tile, warp = cuda.blockIdx.x, cuda.threadIdx.x >> 5
        for e in range(cuda.threadIdx.x, 48 * 56, cuda.blockDim.x):
            i, j = e // 56, e % 56
            s_tile[i, j] = s[tile, i, j] if i < s.shape[1] and j < s.shape[2] else int16(0)
            if i < 32:
                g_tile[i, j] = g[tile, i, j] if j < g.shape[2] else int16(0)
        cuda.syncthreads()
        for a in range(warp, d_w.shape[1], 4):
            for x in range(4):
                sums[x] = float32(0)
            for row in range(0, 32, 16):
                for column in range(0, 32, 8):
                    add_products(sums, s_tile, row + a, g_tile, row, column)
            sum_diagonals(d_w[tile], a, diagonals[warp], sums, d_w.shape[2])

    return kernel


def pipeline_18c(device, matmul_of, produce, consume, n, k):
    import torch

    rows, columns, depth, threads = 64, 32, 64, 160
    if device == "cuda":
        columns, lesson = 256, "18c_hopper"
        text = f"COLUMNS, STAGES = {columns}, 4"
        parts = RUNGS["18c"].names
        names = finished(lesson, parts, lambda given: resized(given, lesson, text))
        matmul_of, produce, consume = (names[part] for part in parts)
    matmul = matmul_of(produce, consume)
    a, b = torch.randn(2, n, k, device=device).bfloat16()
    c = torch.empty(n, n, device=device)
    maps = [tile_map(a, (rows, depth)), tile_map(b, (columns, depth))]
    return Problem(
        lambda run: run(matmul, (n // columns, n // rows), threads, *maps, k // depth, c),
        lambda: c,
        lambda: a.float() @ b.float().T,
        lambda: a @ b.T,
        n * n * k,
        4 * n * (k + n),
        tensor_cores=True,
        tolerance=0.02,
    )


def tile_map(matrix, box):
    """Return the tensor map of a bfloat16 matrix with the 128-byte swizzle: on a GPU as a tensor there, else
    as an array for the simulator."""
    import torch

    from sim import tensor_map
    from sim.isa.tensor_map import TensorMap

    if not matrix.is_cuda:
        return tensor_map(matrix.view(torch.int16).numpy(), box, swizzle=128)
    sizes, strides = tuple(matrix.shape[::-1]), (2 * matrix.stride(0),)
    described = TensorMap("bf16", matrix.data_ptr(), sizes, strides, box[::-1], (1, 1), swizzle=128)
    return torch.frombuffer(bytearray(described.encode()), dtype=torch.uint8).to(matrix.device)


def enlarged(sizes, further=None):
    """Return {name: value} of the learner's lesson 17 with larger tiles, or of lesson `further`, which brings
    over functions of lesson 17."""
    first = "17_fast_forward"
    names = finished(first, ("flash_with", "two_buffers"), lambda text: resized(text, first, sizes))
    if further is None:
        return names

    def larger(lesson, *wanted):
        return [names[name] for name in wanted]

    def edit(text):
        return text.replace(" = brought(", " = larger(")

    return finished(further, ("conv_kernel",), edit, larger=larger)


def resized(text, lesson, sizes):
    """Replace the line of a lesson that defines its sizes."""
    old = SIZES[lesson]
    if text.count(old) != 1:
        raise ValueError(f"{lesson} has the line {old!r} {text.count(old)} times; expected once")
    return text.replace(old, sizes)


def finished(lesson, needed, edit, **given):
    """Return {name: value} of the learner's saved notebook after `edit` of its text, or of the solution if
    the notebook is missing or one of the needed functions is unfinished."""
    from course.bootstrap import ROOT
    from course.brought import definitions, execute_definitions, is_unfinished

    for folder in (Path.cwd(), ROOT / "solutions"):
        notebook = folder / f"{lesson}.ipynb"
        if notebook.exists():
            names = execute_definitions(edit(definitions(notebook)), notebook, **given)
            if not any(is_unfinished(names[name], set()) for name in needed):
                return names
    raise ValueError(f"there is no solution of lesson {lesson}")


MAKERS = {
    "05": flash_05,
    "06": warps_06,
    "11": conv_11,
    "13b": backward_13,
    "14b": decode_14,
    "16b": matmul_16,
    "17": flash_17,
    "17b": conv_17b,
    "18": taps_18,
    "18c": pipeline_18c,
}
