"""Record the PTX of small launches in kernels/data/triton.zip: python -m kernels.triton.record

Triton compiles the kernels without a GPU. The simulator runs the recorded PTX where Triton is not installed.
"""

import hashlib
import re
from pathlib import Path

import torch

from kernels.common.data import record_ptx
from kernels.triton.conv_backward import conv_backward
from kernels.triton.conv_decode import conv_attention_decode
from kernels.triton.conv_forward import conv_forward
from kernels.triton.flash_forward import flash_forward
from kernels.triton.halo import neighbour_sums
from kernels.triton.head_map import mix_heads
from kernels.triton.launch import fresh, record_name, type_of
from kernels.triton.small import convolve, doubled, planted, softmax_row

FILES = sorted(Path(__file__).parent.glob("*.py"))
TILES = Path(__file__).parent / "tiles.py"
# tile sizes small enough that a simulator runs the launches in seconds
FLASH = dict(rows=16, keys=16, num_warps=1)
CONV = dict(size=32, num_warps=4)
ROWS = [
    (64, 1),
    (64, 2),
    (64, 4),
    (128, 8),
    (256, 1),
    (256, 2),
    (256, 4),
    (256, 8),
    (1024, 4),
]  # n, num_warps


def calls(run):
    """Call every host function with small arguments and the runner `run`; ignore the results."""
    q, k, v, d_o = torch.randn(4, 1, 1, 20, 5)
    w = torch.randn(1, 3, 4)
    flash_forward(q, k, v, **FLASH, run=run)
    for causal in (True, False):
        o, log_sum = conv_forward(q, k, v, w, causal, **CONV, run=run)
    conv_backward(q, k, v, w, o, log_sum, d_o, **CONV, run=run)
    conv_attention_decode(q[:, :, -3:], k, v, w, splits=2, run=run)
    mix_heads(torch.randn(1, 2, 5, 17), torch.randn(1, 2, 2), run=run)
    for barrier in (True, False):
        neighbour_sums(torch.randn(64), barrier, run=run)
    doubled(torch.randn(100), run=run)
    for n, num_warps in ROWS:
        softmax_row(torch.randn(1, n), num_warps, run=run)
    for way in range(3):
        convolve(torch.randn(32, 32), torch.randn(3, 4), way, run=run)
    for name in "ABCDE":
        planted(name, run=run)


def without_debug_info(ptx):
    """Remove the debug sections, which sim does not read, and shorten paths to those within the project."""
    ptx = ptx[: ptx.find("\t.section\t.debug")]
    ptx = re.sub(r'"[^"]*/(kernels/triton/\w+\.py)"', r'"\1"', ptx)
    ptx = re.sub(r'"[^"]*/(triton/language/\w+\.py)"', r'"\1"', ptx)
    return re.sub(r"[ \t]+// \S+\.py:.*", "", ptx)


def sources(name):
    """Return a short digest of the sources of a kernel: its file and tiles.py."""
    text = next(text for text in map(Path.read_text, FILES) if f"def {name}(" in text)
    return hashlib.sha256((text + TILES.read_text()).encode()).hexdigest()[:12]


def recorder(texts):
    """Return a runner that launches nothing, and stores the PTX of each kernel in `texts`."""

    def record(kernel, grid, *arguments, num_warps, **constants):
        ptx, shared = fresh(kernel, tuple(type_of(a) for a in arguments), num_warps, **constants)
        name = record_name(kernel, num_warps, **constants)
        texts[name] = f"// sources {sources(kernel.__name__)} shared {shared}\n{without_debug_info(ptx)}"
        print(name)

    return record


if __name__ == "__main__":
    made = {}
    calls(recorder(made))
    record_ptx("triton", made)
