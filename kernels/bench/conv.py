"""Time convolutional attention on this GPU compared with PyTorch, and measure its memory: python -m
kernels.bench

The contestants, in float32 and then, on tensor cores, in bfloat16, are: the kernels; PyTorch eager
    (`kernels.reference`); the same through torch.compile; and `scaled_dot_product_attention` (SDPA), which
    has no convolution, with the name of the backend that it chose. In decoding, "split keys" has no
    convolution either: it runs the decoding kernels with a single tap of 1, which divide the keys among
        blocks
    as usual.

Before a contestant is timed, its results are compared with float64 (one head, all batches). A contestant with
wrong results is not timed. Times are medians of CUDA events around calls with a cold cache. Decoding is timed
with replayed CUDA graphs, because the GPU processes a token faster than Python launches a kernel. Memory is
the peak above the inputs.
"""

import argparse
import functools
import json
import sys
from pathlib import Path

import torch
import torch._functorch.config
from torch.nn.attention import SDPBackend
from torch.nn.functional import scaled_dot_product_attention

from kernels import conv_attention, conv_attention_decode, flash_attention
from kernels.bench import languages
from kernels.bench.text import text
from kernels.bench.timing import (
    DEVICE,
    bandwidth,
    least_us,
    machine,
    milliseconds,
    quiet,
    replay,
    require_gpu,
    time_passes,
)
from kernels.cases.conv import Shape
from kernels.reference import attention
from kernels.reference import conv_attention as eager
from kernels.reference import conv_attention_decode as eager_decode

TAPS = 7, 7
WIDE = (2, 32, 4096, 128), (6, 11)
ONE_BATCH = [(1, 8, n, 64) for n in (512, 1024, 2048, 4096)]
FLOATS = [*((shape, TAPS) for shape in [*ONE_BATCH, (4, 16, 2048, 64)]), WIDE]  # in float32
HALVES = [((1, 8, 4096, 64), TAPS), ((4, 16, 2048, 64), TAPS), ((4, 16, 4096, 64), (11, 11)), WIDE]
FLASH = [(4, 16, 4096, 64)]  # without taps, in bfloat16
CACHES = [(batch, 8, n, 64) for batch in (1, 4, 16) for n in (512, 2048, 8192, 16384, 65536)]
HALF_CACHES = [(1, 8, 4096, 64), (8, 16, 16384, 64)]
# the largest errors allowed for O and for a gradient, relative to their largest elements; a missing mask, tap
# or key causes errors above 0.1
ALLOWED = {torch.float32: (1e-4, 1e-3), torch.bfloat16: (3e-2, 6e-2)}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--json", type=Path, help="write the table to this file too")
    parser.add_argument("--only", nargs="+", choices=SECTIONS, default=SECTIONS, help="these tables, not all")
    arguments = parser.parse_args()
    require_gpu(parser, "kernels.bench")
    quiet()
    table = {**machine(), "taps": TAPS, "bandwidth": bandwidth()}
    for section in arguments.only:
        table[section] = list(SECTIONS[section]())
        if arguments.json:
            arguments.json.write_text(json.dumps(table, indent=1) + "\n")
    print(text(table))
    sys.exit(any("refused" in row for section in arguments.only for row in table[section]))


# Values -----------------------------------------------------------------------------------------------------


def errors(got, right):
    """Return the largest error of each tensor relative to its largest correct element; infinite if a value is
    not finite."""
    return [
        error if (error := ((a - b).abs().max() / b.abs().max()).item()) < float("inf") else float("inf")
        for a, b in zip(got, right, strict=True)
    ]


def timed_if_right(row, results, right, times):
    """Return `row` with its errors, and with the times of `times()` or the reason why the contestant was
    rejected.

    results: returns the contestant's tensors.
    right: the correct tensors in float64, for one head: O, and the gradients if they were computed.
    """
    found = errors([x[:, :1].double() for x in results()], right)
    allowed = ALLOWED[row["dtype"]]
    row = row | {"dtype": str(row["dtype"]).removeprefix("torch."), "errors": found}
    wrong = [
        f"{name} is off by {error:.1e}, and at most {most:.0e} is allowed"
        for name, error, most in zip(("O", "dQ", "dK", "dV", "dW"), found, (allowed[0], *4 * allowed[1:]))
        if error > most
    ]
    return row | ({"refused": "; ".join(wrong)} if wrong else times())


def one_head(*tensors):
    """Return the first head of tensors (B, H, ...) in float64, as autograd leaves."""
    return [x.detach()[:, :1].double().requires_grad_() for x in tensors]


def right_results(attend, leaves, d_o):
    """Return O and the gradients for one head, in float64."""
    o = attend(*leaves)
    return [o.detach(), *torch.autograd.grad(o, leaves, d_o[:, :1].double())]


# Whole sequences --------------------------------------------------------------------------------------------


def contestants():
    """Return {name: function(q, k, v, w) -> O}, all causal."""
    return {
        "kernels": conv_attention,
        "eager": eager,
        "compile": torch.compile(eager),
        "sdpa": lambda q, k, v, w: scaled_dot_product_attention(q, k, v, is_causal=True),
    }


def measured(shape, taps=TAPS, dtype=torch.float32):
    """Yield one row per contestant: milliseconds forward and backward, and the peak MiB of both."""
    q, k, v = (x.requires_grad_() for x in torch.randn(3, *shape, device=DEVICE, dtype=dtype))
    w = (torch.randn(shape[1], *taps, device=DEVICE, dtype=dtype) / 7).requires_grad_()
    d_o = torch.randn(shape, device=DEVICE, dtype=dtype)
    head_w = w.detach()[:1].double().requires_grad_()
    convolved = right_results(eager, [*one_head(q, k, v), head_w], d_o)
    convolved[4] = convolved[4][None]  # as in both_passes
    plain = right_results(functools.partial(attention, causal=True), one_head(q, k, v), d_o)
    torch._dynamo.reset()
    for name, attend in contestants().items():
        leaves, right = ((q, k, v), plain) if name == "sdpa" else ((q, k, v, w), convolved)
        yield timed_if_right(
            {
                "shape": shape,
                "taps": taps,
                "dtype": dtype,
                "name": name,
                "backend": sdpa_backend(q, k, v) if name == "sdpa" else None,
            },
            lambda attend=attend, leaves=leaves: both_passes(attend, (q, k, v, w), leaves, d_o),
            right,
            lambda attend=attend, leaves=leaves: time_passes(attend, (q, k, v, w), leaves, d_o),
        )


def both_passes(attend, given, leaves, d_o):
    """Return O and the gradients of the leaves, (B, H, ...); the gradient of w is (1, H, c_q, c_k)."""
    o = attend(*given)
    gradients = torch.autograd.grad(o, leaves, d_o)
    return [o.detach(), *(x if x.ndim == 4 else x[None] for x in gradients)]


def sdpa_backend(q, k, v, causal=True):
    """Return the backend that `scaled_dot_product_attention` chooses: "flash", "cudnn", …"""
    choice = torch._fused_sdp_choice(q, k, v, is_causal=causal)
    return SDPBackend(choice).name.lower().removesuffix("_attention")


def measured_flash(shape, dtype=torch.bfloat16):
    """Yield the forward time in milliseconds of attention without taps, for these kernels and for SDPA."""
    q, k, v = torch.randn(3, *shape, device=DEVICE, dtype=dtype)
    with torch.no_grad():
        right = [attention(*one_head(q, k, v), causal=True)]
        for name, attend in {"kernels": flash_attention, "sdpa": scaled_dot_product_attention}.items():
            call = lambda attend=attend: attend(q, k, v, is_causal=True)  # noqa: E731
            yield timed_if_right(
                {
                    "shape": shape,
                    "dtype": dtype,
                    "name": name,
                    "backend": sdpa_backend(q, k, v) if name == "sdpa" else None,
                },
                lambda call=call: [call()],
                right,
                lambda call=call: {"forward_ms": milliseconds(replay(call), repeats=20)},
            )


# One token --------------------------------------------------------------------------------------------------


def decoders(one_tap):
    """Return {name: function(q_window, k, v, w) -> O of the last token}; one_tap: (H, 1, 1), all ones."""
    return {
        "kernels": conv_attention_decode,
        "eager": eager_decode,
        "compile": torch.compile(eager_decode, dynamic=False),
        "sdpa": lambda q_window, k, v, w: scaled_dot_product_attention(q_window[:, :, -1:], k, v),
        "split keys": lambda q_window, k, v, w: conv_attention_decode(q_window[:, :, -1:], k, v, one_tap),
    }


def measured_decoding(shape, dtype=torch.float32):
    """Yield one row per contestant: microseconds for one token with a cache of (B, H, N, d)."""
    k, v = torch.randn(2, *shape, device=DEVICE, dtype=dtype)
    q_window, w = torch.randn_like(k[:, :, -TAPS[0] :]), torch.randn(shape[1], *TAPS, device=DEVICE) / 7
    w, one_tap = w.to(dtype), torch.ones(shape[1], 1, 1, device=DEVICE, dtype=dtype)
    torch._dynamo.reset()
    with torch.no_grad():
        head, least = one_head(q_window, k, v), least_us(shape, bandwidth(), k.itemsize)
        convolved = eager_decode(*head, w[:1].double())
        plain = eager_decode(head[0][:, :, -1:], *head[1:], one_tap[:1].double())
        for name, decode in decoders(one_tap).items():
            call = lambda decode=decode: decode(q_window, k, v, w)  # noqa: E731
            yield timed_if_right(
                {
                    "shape": shape,
                    "dtype": dtype,
                    "name": name,
                    "backend": sdpa_backend(q_window[:, :, -1:], k, v, False) if name == "sdpa" else None,
                    "least_us": least,
                },
                lambda call=call: [call()],
                [plain if name in ("sdpa", "split keys") else convolved],
                lambda call=call: {"us": 1000 * milliseconds(replay(call), repeats=20)},
            )


# Languages --------------------------------------------------------------------------------------------------


def measured_languages(shape):
    """Yield one row per language: milliseconds of flash attention and of convolutional attention, forward and
    backward.

    Each row also contains the time per token in microseconds, measured in a CUDA graph.
    """
    q, k, v, w, d_o, window = languages.inputs(Shape(*shape, *TAPS, True), device=DEVICE)
    for name in languages.HOMES:
        functions = languages.language(name)
        o, log_sum = functions.conv_forward(q, k, v, w)
        yield {
            "shape": shape,
            "name": name,
            "flash_ms": milliseconds(lambda: functions.flash_forward(q, k, v)),
            "forward_ms": milliseconds(lambda: functions.conv_forward(q, k, v, w)),
            "backward_ms": milliseconds(lambda: functions.conv_backward(q, k, v, w, o, log_sum, d_o)),
            "us": 1000 * milliseconds(replay(lambda: functions.conv_attention_decode(window, k, v, w))),
        }


# one function per table, which yields its rows
SECTIONS = {
    "training": lambda: [row for shape, taps in FLOATS for row in measured(shape, taps)],
    "halves": lambda: [row for shape, taps in HALVES for row in measured(shape, taps, torch.bfloat16)],
    "flash": lambda: [row for shape in FLASH for row in measured_flash(shape)],
    "decoding": lambda: [row for shape in CACHES for row in measured_decoding(shape)],
    "decoding_halves": lambda: [r for shape in HALF_CACHES for r in measured_decoding(shape, torch.bfloat16)],
    "languages": lambda: [row for shape in ONE_BATCH for row in measured_languages(shape)],
}


if __name__ == "__main__":
    main()
