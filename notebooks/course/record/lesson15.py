"""Train find-the-block models on a GPU for lesson 15, with and without convolution, for several seeds.

The results become kernels/data/lesson15.json:

    python -m course.record.lesson15 --out lesson15.json

The file is rewritten after every run, so an interruption costs at most one run. Progress goes to stderr.
"""

import argparse
import functools
import json
import os
import signal
import sys
import time
from dataclasses import asdict
from datetime import date
from importlib.metadata import version
from pathlib import Path

os.environ["NUMBA_CUDA_LOW_OCCUPANCY_WARNINGS"] = "0"

import torch

from course.find_the_block import Plan, Task, Training, Transformer, share_wrong
from kernels import ConvAttention, reference

# Task(blocks, letters per block, letters asked, alphabet), (width, heads, layers), Plan(steps, batch, rate)
CANDIDATES = {
    "recorded": (Task(5, 3, 2, 12), (32, 2, 2), Plan(1800, 256, 4e-3, cool_down=0.4)),
    # Without convolution only 6 to 14 % of these answers are wrong, which is too small a difference to show.
    "large": (Task(8, 5, 2, 26), (128, 4, 2), Plan(2500, 256, 2e-3)),
    "tiny": (Task(2, 2, 2, 6), (16, 2, 1), Plan(20, 8, 3e-3)),  # small enough to try this script on a CPU
}


class OutOfTime(Exception):
    pass


def say(*words):
    print(*words, file=sys.stderr, flush=True)


class Recorder:
    def __init__(self, options):
        self.options, self.began = options, time.time()
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self.attention = {} if self.device.type == "cuda" else {"attention": reference.conv_attention}

    def left(self):
        return self.options.limit - (time.time() - self.began)

    def model(self, candidate, convolution):
        """Return a model with or without convolution.

        With convolution, each head has asked × (2 size - 1) taps. Without it, each head has one tap. Both
        models use the same class, kernels and initial weights.
        """
        task, (width, heads, layers), _ = candidate
        taps = (task.asked, 2 * task.size - 1) if convolution else (1, 1)
        layer = functools.partial(ConvAttention, kernel_size=taps, **self.attention)
        return Transformer(task, layer, width, heads, layers).to(self.device)

    def warm_up(self, candidate):
        """Compile the kernels before the first run, so that its time excludes compilation."""
        began = time.time()
        task, _, plan = candidate
        for convolution in (True, False):
            training = Training(self.model(candidate, convolution), task, plan, 0)
            for _ in range(2):
                training.step()
        say(f"warm-up {time.time() - began:.1f} s, loss {training.losses[-1].item():.2f}")

    def train(self, candidate, convolution, seed):
        """Train one model and return (model, record)."""
        task, _, plan = candidate
        torch.manual_seed(seed)
        model = self.model(candidate, convolution)
        training, began = Training(model, task, plan, seed), time.time()
        for done in training.run():
            if done % 250 == 0:
                say(
                    f"   {done:5} loss {training.losses[-1].item():.4f}  {time.time() - began:.1f} s,"
                    f" {self.left():.0f} s left"
                )
            if self.left() < 0:
                raise OutOfTime(f"after {done} steps of seed {seed}, convolution {convolution}")
        torch.stack(training.losses).sum().item()  # wait for the GPU before reading the clock
        seconds = time.time() - began
        chunks = torch.stack(training.losses).cpu().double().split(max(1, plan.steps // 100))
        run = {
            "seed": seed,
            "convolution": convolution,
            "share_wrong": share_wrong(model, task, texts=8192),
            "seconds": round(seconds, 1),
            "parameters": sum(parameter.numel() for parameter in model.parameters()),
            "loss": [
                float(f"{chunk.mean().item():.4g}") for chunk in chunks
            ],  # Each entry is the mean of this many steps.
            "steps_a_point": max(1, plan.steps // 100),
        }
        if convolution:
            run["taps"] = [rounded(layer.attention.taps) for layer in model.layers]
        say(
            f"seed {seed} {'with' if convolution else 'without'}: {100 * run['share_wrong']:.2f} % wrong,"
            f" {seconds:.1f} s"
        )
        return model, run

    def record(self):
        candidate = CANDIDATES[self.options.task]
        task, (width, heads, layers), plan = candidate
        book = {
            "recorded": self.machine(),
            "task": asdict(task),
            "plan": asdict(plan),
            "model": {
                "width": width,
                "heads": heads,
                "layers": layers,
                "kernel_size": [task.asked, 2 * task.size - 1],
                "without": [1, 1],
            },
            "runs": [],
            "maps": {},
        }
        try:
            self.warm_up(candidate)
            for seed in map(int, self.options.seeds.split(",")):
                for convolution in (True, False):
                    model, run = self.train(candidate, convolution, seed)
                    book["runs"].append(run)
                    if seed == int(self.options.seeds.split(",")[0]):
                        book["maps"]["with" if convolution else "without"] = maps(model, task)
                    self.write(book)
            book["complete"] = True
        except (KeyboardInterrupt, OutOfTime) as stop:
            say(f"stopped early: {stop!r}; {len(book['runs'])} runs are kept")
        self.write(book)
        summary(book["runs"])

    def machine(self):
        gpu = self.device.type == "cuda"
        versions = f"torch {torch.__version__}" + (
            f", CUDA {torch.version.cuda}, numba-cuda {version('numba-cuda')}" if gpu else ""
        )
        return {
            "date": date.today().isoformat(),
            "gpu": torch.cuda.get_device_name() if gpu else "CPU",
            "versions": versions,
        }

    def write(self, book):
        draft = Path(str(self.options.out) + ".draft")
        draft.write_text(json.dumps(book) + "\n")
        draft.replace(self.options.out)


@torch.no_grad()
def maps(model, task, seed=15):
    """Return one text with each layer's and head's attention in the rows of its question and answer, in
    percent.

    The percentages are indexed as [layer][head][row][key].
    """
    text = task.draw(1, torch.Generator().manual_seed(seed))
    caught = []
    hooks = [
        layer.attention.register_forward_pre_hook(lambda module, inputs: caught.append((module, inputs[0])))
        for layer in model.layers
    ]
    logits = model(text[:, :-1].to(model.logits.weight.device))
    for hook in hooks:
        hook.remove()
    rows = task.asked + task.size - 1
    weights = []
    for module, x in caught:
        q, k, _ = module.heads(x)
        p = torch.softmax(reference.conv_scores(q, k, module.taps), dim=-1)
        weights.append((100 * p[0, :, -rows:]).round().int().tolist())
    return {"text": text[0].tolist(), "said": logits[0, -task.size :].argmax(-1).tolist(), "percent": weights}


def rounded(tensor):
    return [[[float(f"{tap:.3g}") for tap in row] for row in head] for head in tensor.detach().cpu().tolist()]


def summary(runs):
    for convolution in (True, False):
        shares = [run["share_wrong"] for run in runs if run["convolution"] == convolution]
        if shares:
            say(
                f"{'with' if convolution else 'without'}: mean {100 * sum(shares) / len(shares):.2f} %, worst"
                f" {100 * max(shares):.2f} %, best {100 * min(shares):.2f} %"
            )
    say(f"all runs: {sum(run['seconds'] for run in runs):.0f} s")


def stop(*_):
    raise KeyboardInterrupt


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--task", choices=CANDIDATES, default="recorded")
    parser.add_argument("--seeds", default="0,1,2,3,4")
    parser.add_argument("--limit", type=float, default=560, help="seconds in all")
    parser.add_argument("--out", type=Path, default=Path("lesson15.json"))
    signal.signal(signal.SIGTERM, stop)
    Recorder(parser.parse_args()).record()
