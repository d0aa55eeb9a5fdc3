"""Train five variants of the multi-token layer on a GPU, to measure what each part of the layer contributes.

The task is find-the-block with the block's last letter as the answer, with several seeds per variant. The
results become kernels/data/multi_token_training.json:

    python -m course.record.multi_token_training --out training.json

All runs start at once, each in its own process, because one small model leaves most of the GPU idle. The
layers are `kernels.MultiTokenAttention`, computed by the plain PyTorch reference, which is faster at 40
tokens.
"""

import argparse
import functools
import json
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict
from datetime import date
from itertools import product
from multiprocessing import get_context
from pathlib import Path

import torch

from course.find_the_block import LastLetter, Plan, Training, Transformer, share_wrong
from kernels import MultiTokenAttention, reference

TASK, WIDTH, HEADS, LAYERS = LastLetter(6, 4, 2, 14), 32, 4, 2
TAPS = TASK.asked, 2 * TASK.size - 1
NOTHING = dict(kernel_size=None, after_kernel_size=None, norm=False, gate=False)
VARIANTS = {  # Each variant adds one part to the variant before it.
    "none": NOTHING,
    "taps": NOTHING | dict(kernel_size=TAPS),
    "+ head maps": NOTHING | dict(kernel_size=TAPS, head_group=HEADS, after_head_group=HEADS),
    "+ after softmax": NOTHING
    | dict(kernel_size=TAPS, head_group=HEADS, after_head_group=HEADS, after_kernel_size=TAPS),
    "+ norm and gate": dict(
        kernel_size=TAPS, head_group=HEADS, after_head_group=HEADS, after_kernel_size=TAPS
    ),
}


def model(variant, device):
    layer = functools.partial(
        MultiTokenAttention, **VARIANTS[variant], rotary_base=None, attention=reference.multi_token_attention
    )
    return Transformer(TASK, layer, WIDTH, HEADS, LAYERS).to(device)


def run(variant, seed, plan, device):
    """Run one training and return its record. Equal seeds give every variant the same texts."""
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    trained, began = model(variant, device), time.time()
    training = Training(trained, TASK, plan, seed)
    for _ in training.run():
        pass
    chunks = torch.stack(training.losses).cpu().double().split(max(1, plan.steps // 50))
    return {
        "variant": variant,
        "seed": seed,
        "share_wrong": share_wrong(trained, TASK, texts=8192),
        "seconds": round(time.time() - began, 1),
        "parameters": sum(parameter.numel() for parameter in trained.parameters()),
        # Each entry is the mean of this many steps.
        "loss": [float(f"{chunk.mean().item():.4g}") for chunk in chunks],
        "steps_a_point": max(1, plan.steps // 50),
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--processes", type=int, default=15)
    parser.add_argument("--out", type=Path, default=Path("multi_token_training.json"))
    options = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    plan = Plan(options.steps, options.batch, 4e-3, cool_down=0.4)
    book = {
        "recorded": {
            "date": date.today().isoformat(),
            "gpu": torch.cuda.get_device_name() if device == "cuda" else "CPU",
            "versions": f"torch {torch.__version__}",
        },
        "task": {"answer": "last letter", **asdict(TASK)},
        "plan": asdict(plan),
        "model": {"width": WIDTH, "heads": HEADS, "layers": LAYERS, "kernel_size": TAPS},
        "runs": [],
    }
    # The longest jobs start first, so that none of them runs alone at the end.
    jobs = list(product(reversed(VARIANTS), map(int, options.seeds.split(","))))
    with ProcessPoolExecutor(options.processes, get_context("spawn")) as pool:
        futures = [pool.submit(run, variant, seed, plan, device) for variant, seed in jobs]
        for future in futures:
            book["runs"].append(future.result())
            options.out.write_text(json.dumps(book) + "\n")
    for variant in VARIANTS:
        shares = [100 * row["share_wrong"] for row in book["runs"] if row["variant"] == variant]
        print(f"{variant:>16}: mean {sum(shares) / len(shares):6.2f} %", [f"{x:.2f}" for x in shares])
    print(f"{sum(row['seconds'] for row in book['runs']):.0f} s of runs", file=sys.stderr)


if __name__ == "__main__":
    main()
