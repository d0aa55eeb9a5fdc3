"""Measure the results of lesson 17 on an H200, and print them as the JSON of kernels/data/lesson17.json.

    python -m course.record.lesson17 > lesson17.json

The script times the flash kernels of solutions/17_fast_forward.py with larger tiles and, for comparison, the
kernels of the package and of PyTorch. (bench.json has the times of the convolutions.) Progress goes to
stderr.
"""

import json
import linecache
import sys
from math import sqrt

import torch
from numba import cuda
from numpy import float32, int32, uint32
from torch.nn.functional import scaled_dot_product_attention

from course.definitions import cells_of, needed_definitions, source
from kernels.bench.timing import machine, milliseconds
from kernels.flash.forward import flash_attention

SIZES, SMALL = "WIDTH, KEYS, WARPS = 64, 64, 4", "WIDTH, KEYS, WARPS = 16, 16, 2"
PADDED, UNPADDED = "PITCH = WIDTH + 8", "PITCH = WIDTH"
N, D = 65_536, 64
STEPS = {  # step -> (name of the loop, whether operands are loaded without ldmatrix, whether rows are padded)
    "plain loads": ("one_buffer", True, False),
    "ldmatrix": ("one_buffer", False, False),
    "ldmatrix, padded rows": ("one_buffer", False, True),
    "two places": ("two_buffers", False, True),
    "two places, plain loads": ("two_buffers", True, True),
}


# Loads of operands without ldmatrix -------------------------------------------------------------------------


@cuda.jit(device=True)
def two_words(tile, row, c):
    """Pack tile[row, c] and tile[row + 1, c] into one register."""
    return uint32((int32(tile[row, c]) & 0xFFFF) | (int32(tile[row + 1, c]) << 16))


@cuda.jit(device=True)
def plain_value_operands(tile, first, column):
    """Load the operands of the lesson's value_operands without ldmatrix."""
    lane = cuda.threadIdx.x % 32
    row, c = first + lane % 4 * 2, column + lane // 4
    return (
        two_words(tile, row, c),
        two_words(tile, row + 8, c),
        two_words(tile, row, c + 8),
        two_words(tile, row + 8, c + 8),
    )


# Timed kernels ----------------------------------------------------------------------------------------------


def flash_kernel(loop, plain, padded):
    """Return (kernel, queries per block, threads), compiled from the lesson's text with the recording's
    sizes."""
    text = needed_definitions(
        cells_of(source("17")), "flash_with, one_buffer, two_buffers, plain_key_operands"
    )
    for old, new in [(SMALL, SIZES), *([] if padded else [(PADDED, UNPADDED)])]:
        if text.count(old) != 1:
            raise ValueError(f"{old!r} stands {text.count(old)} times in lesson 17")
        text = text.replace(old, new)
    name = f"<lesson 17: {loop}, {plain}, {padded}>"
    linecache.cache[name] = len(text), None, text.splitlines(keepends=True), name
    names = {"__name__": "lesson17"}
    exec(compile(text, name, "exec"), names)
    if plain:
        names |= {"key_operands": names["plain_key_operands"], "value_operands": plain_value_operands}
    return names["flash_with"](names[loop]), names["ROWS"], names["THREADS"]


def flash_steps():
    """Yield a table row for each implementation, all with the same input: one head of N tokens, causal,
    bfloat16."""
    torch.manual_seed(17)
    q, k, v = torch.randn(3, 1, 1, N, D, device="cuda").bfloat16()
    wanted = scaled_dot_product_attention(*(x.float() for x in (q, k, v)), is_causal=True)
    scale = float32(1 / sqrt(D))
    for step, how in STEPS.items():
        kernel, rows, threads = flash_kernel(*how)
        out = torch.full((N, D), torch.nan, device="cuda")
        given = [cuda.as_cuda_array(x[0, 0].view(torch.int16)) for x in (q, k, v)]
        arguments = *given, scale, cuda.as_cuda_array(out)
        launch = kernel[-(-N // rows), threads]
        launch(*arguments)
        yield row(step, lambda launch=launch, arguments=arguments: launch(*arguments), out, wanted[0, 0]) | {
            "registers": next(iter(kernel.get_regs_per_thread().values()))
        }
    in_float32 = [x.float() for x in (q, k, v)]
    for name, attend, given in [
        ("package", lambda *x: flash_attention(*x, causal=True), (q, k, v)),
        ("package, float32", lambda *x: flash_attention(*x, causal=True), in_float32),
        ("SDPA", lambda *x: scaled_dot_product_attention(*x, is_causal=True), (q, k, v)),
    ]:
        yield row(name, lambda attend=attend, given=given: attend(*given), attend(*given), wanted)


def row(name, call, out, wanted, largest=0.05):
    """Return a table row with the milliseconds per call. Raise ValueError if the output `out` is wrong."""
    torch.cuda.synchronize()
    difference = (out.float() - wanted).abs().max().item()
    if not difference <= largest:
        raise ValueError(f"{name}: {difference} from what is wanted")
    found = {"name": name, "ms": milliseconds(call), "difference": difference}
    print(found, file=sys.stderr, flush=True)
    return found


def main():
    flash = {"n": N, "d": D, "rows": [*flash_steps()]}
    print(json.dumps(machine() | {"flash": flash}, indent=1))


if __name__ == "__main__":
    main()
