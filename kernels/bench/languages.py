"""Compare the same kernels in three languages with the reference: python -m kernels.bench.languages

On a GPU, print the largest float32 errors of each language over the shapes of `kernels.cases.conv`. `python
-m kernels.bench --only languages` prints their times.
"""

import argparse
import functools
import json
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace

import torch

from kernels.bench.timing import require_gpu
from kernels.cases import conv as conv_cases
from kernels.cases.conv import SHAPES
from kernels.cases.tolerances import relative_errors, within_tolerance
from kernels.reference import attention, conv_attention_decode, scores

# language -> {host function: its module}
HOMES = {
    "Numba": {
        "flash_forward": "kernels.flash.forward",
        "conv_forward": "kernels.conv.forward",
        "conv_backward": "kernels.conv.backward",
        "conv_attention_decode": "kernels.conv.decode",
    },
    "CUDA C++": dict.fromkeys(
        ("flash_forward", "conv_forward", "conv_backward", "conv_attention_decode"),
        "kernels.cuda_cpp.operators",
    ),
    "Triton": {
        "flash_forward": "kernels.triton.flash_forward",
        "conv_forward": "kernels.triton.conv_forward",
        "conv_backward": "kernels.triton.conv_backward",
        "conv_attention_decode": "kernels.triton.conv_decode",
    },
}
RESULTS = (*conv_cases.RESULTS, "flash O", "flash L", "decode O")


@functools.cache
def language(name):
    """Return a language's host functions as attributes; their modules are imported on first use."""
    return SimpleNamespace(
        **{function: getattr(import_module(home), function) for function, home in HOMES[name].items()}
    )


def inputs(shape, seed=0, device="cpu"):
    """Return the inputs of `kernels.cases.conv`, and the queries of the last min(c_q, N) tokens."""
    q, k, v, w, d_o = conv_cases.inputs(shape, seed, device)
    return q, k, v, w, d_o, q[:, :, -min(shape.c_q, shape.n) :]


def results(functions, q, k, v, w, d_o, window, causal, only=RESULTS, flash=None, **options):
    """Return {name: result} of a language's functions.

    only: the results to compute.
    flash: additional options for flash attention.
    options: options for both convolutional passes.
    """
    run = {"run": options["run"]} if "run" in options else {}
    flash = run | (flash or {})
    got = {}
    if {"flash O", "flash L"} & set(only):
        got |= zip(("flash O", "flash L"), functions.flash_forward(q, k, v, causal, **flash))
    if "decode O" in only:
        got["decode O"] = functions.conv_attention_decode(window, k, v, w, **run)
    if set(conv_cases.RESULTS) & set(only):
        o, log_sum = functions.conv_forward(q, k, v, w, causal, **options)
        got |= {"O": o, "L": log_sum}
        if {"dQ", "dK", "dV", "dW"} & set(only):
            gradients = functions.conv_backward(q, k, v, w, o, log_sum, d_o, causal, **options)
            got |= zip(("dQ", "dK", "dV", "dW"), gradients)
    return {name: got[name] for name in only}


def reference(q, k, v, w, d_o, window, causal):
    """Return {name: correct result} in float64."""
    q, k, v, w, d_o, window = (x.double() for x in (q, k, v, w, d_o, window))
    right = dict(zip(conv_cases.RESULTS, conv_cases.reference(q, k, v, w, d_o, causal)))
    log_sum = torch.logsumexp(scores(q, k, causal), -1)
    return right | {
        "flash O": attention(q, k, v, causal),
        "flash L": log_sum,
        "decode O": conv_attention_decode(window, k, v, w),
    }


def errors_of(name, shape, seed=0, device="cpu", **options):
    """Return the relative errors of a language on this shape."""
    tensors = inputs(shape, seed, device)
    got = results(language(name), *tensors, shape.causal, **options)
    return relative_errors(got, reference(*tensors, shape.causal))


# On a GPU ---------------------------------------------------------------------------------------------------


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--json", type=Path, help="write the errors to this file too")
    parser.add_argument("--shapes", type=int, default=len(SHAPES), help="how many of the shapes")
    parser.add_argument("names", nargs="*", default=list(HOMES), help="languages; all by default")
    arguments = parser.parse_args()
    require_gpu(parser, "kernels.bench.languages")
    every = SHAPES[:: -(-len(SHAPES) // arguments.shapes)]
    table = {"errors": {name: worst(name, every) for name in arguments.names}}
    wrong = [name for name, errors in table["errors"].items() if not within_tolerance(errors)]
    print(f"largest relative errors against float64 on {len(every)} shapes")
    for name, errors in table["errors"].items():
        print(f"{name:>9}  " + "  ".join(f"{what} {error:.1e}" for what, error in errors.items()), flush=True)
    if wrong:
        parser.exit(1, f"beyond the tolerances: {', '.join(wrong)}\n")
    if arguments.json:
        arguments.json.write_text(json.dumps(table, indent=1) + "\n")


def worst(name, shapes):
    """Return {result: largest error of a language over these shapes}, NaN if any is NaN."""
    errors = [errors_of(name, shape, device="cuda") for shape in shapes]
    return {what: max((e[what] for e in errors), key=lambda e: (e != e, e)) for what in RESULTS}


if __name__ == "__main__":
    main()
