"""Draw the README's figures from recorded results.

python -m kernels.bench.plots draws kernels/data/*.png from kernels/data/bench.json and
multi_token_training.json. All lines of a figure were measured in float32, on one GPU, in one run.
"""

import json
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

from kernels.bench.timing import least_us
from kernels.common.data import DATA

# Okabe and Ito's colours, which colour-blind readers can distinguish, and distinct markers for print
STYLES = {
    "kernels": ("#D55E00", "o", "these kernels"),
    "eager": ("#0072B2", "s", "PyTorch eager"),
    "compile": ("#009E73", "^", "torch.compile"),
    "sdpa": ("#999999", "D", "scaled_dot_product_attention (no convolution)"),
    "split keys": ("#CC79A7", "v", "these kernels without a convolution"),
}


def main():
    table = json.loads((DATA / "bench.json").read_text(encoding="utf-8"))
    for name, draw in {"speedup": speedup, "training": training, "decoding": decoding}.items():
        figure = draw(table)
        figure.savefig(DATA / f"{name}.png", dpi=120)
        plt.close(figure)
        print(Path("kernels/data") / f"{name}.png")
    record = DATA / "multi_token_training.json"
    if record.exists():
        multi_token_training(json.loads(record.read_text(encoding="utf-8"))).savefig(
            record.with_suffix(".png"), dpi=120
        )
        print(Path("kernels/data") / f"{record.stem}.png")


def figure_with(panels, title, table):
    """Return (figure, its panels from left to right); the title includes the machine and date of the
    measurement."""
    figure, axes = plt.subplots(1, panels, figsize=(4.6 * panels + 1, 4), layout="constrained", squeeze=False)
    figure.suptitle(
        f"{title}\n{table['gpu']}, {table['date']}, torch {table['torch']}, float32, taps"
        f" {table['taps'][0]}×{table['taps'][1]}",
        fontsize=10,
    )
    return figure, axes[0]


def series(rows, name, key, heads):
    """Return (N, value) of a contestant over the shapes with batch · heads = `heads`."""
    chosen = [row for row in rows if row["name"] == name and row["shape"][0] * row["shape"][1] == heads]
    return [row["shape"][2] for row in chosen], [row[key] for row in chosen]


def line(axes, name, x, y):
    colour, marker, label = STYLES[name]
    axes.plot(x, y, color=colour, marker=marker, label=label)


def over_n(axes, label, x):
    axes.set_xscale("log", base=2)
    axes.set_xticks(x, [str(n) for n in x])
    axes.set_xlabel("N")
    axes.set_ylabel(label)
    axes.grid(alpha=0.3)


def speedup(table):
    """Plot the speed-up over PyTorch eager, forward and backward, against N."""
    figure, panels = figure_with(2, "Times faster than PyTorch eager · causal, B·H = 8, d = 64", table)
    for axes, key in zip(panels, ("forward_ms", "backward_ms")):
        n, eager = series(table["training"], "eager", key, 8)
        for name in ("kernels", "compile", "eager"):
            line(
                axes,
                name,
                n,
                [slow / fast for slow, fast in zip(eager, series(table["training"], name, key, 8)[1])],
            )
        axes.set_title(key.removesuffix("_ms"))
        over_n(axes, "times faster", n)
        axes.set_ylim(bottom=0)
    panels[0].legend(fontsize=8)
    return figure


def training(table):
    """Plot forward and backward milliseconds, and memory, against N."""
    figure, panels = figure_with(3, "Forward, backward, memory · causal, B·H = 8, d = 64", table)
    for axes, (key, label) in zip(
        panels,
        {"forward_ms": "forward, ms", "backward_ms": "backward, ms", "peak_mib": "peak memory, MiB"}.items(),
    ):
        for name in dict.fromkeys(row["name"] for row in table["training"]):
            n, values = series(table["training"], name, key, 8)
            line(axes, name, n, values)
        axes.set_yscale("log")
        over_n(axes, label, n)
    panels[0].legend(fontsize=8)
    return figure


def decoding(table):
    """Plot microseconds per token against the cache's length, and the time to read the cache once."""
    figure, panels = figure_with(3, "Decoding one token · d = 64, CUDA graphs", table)
    for axes, heads in zip(panels, (8, 32, 128)):
        for name in dict.fromkeys(row["name"] for row in table["decoding"]):
            n, values = series(table["decoding"], name, "us", heads)
            line(axes, name, n, values)
        axes.plot(
            n,
            [least_us((1, heads, length, 64), table["bandwidth"]) for length in n],
            "k:",
            label="K and V read once, at a copy's speed",
        )
        axes.set_title(f"B·H = {heads}")
        axes.set_yscale("log")
        over_n(axes, "µs a token", n)
    panels[0].legend(fontsize=7)
    return figure


def multi_token_training(book):
    """Plot the fraction of wrong answers of every run, and the mean for each variant of the layer."""
    figure, axes = plt.subplots(figsize=(7, 4), layout="constrained")
    variants = list(dict.fromkeys(run["variant"] for run in reversed(book["runs"])))
    for place, variant in enumerate(variants):
        wrong = [100 * run["share_wrong"] for run in book["runs"] if run["variant"] == variant]
        axes.plot([place] * len(wrong), wrong, "o", color=STYLES["eager"][0], label="a seed")
        mean = sum(wrong) / len(wrong)
        axes.plot([place - 0.2, place + 0.2], [mean] * 2, color=STYLES["kernels"][0], label="mean")
        axes.annotate(f"{mean:.1f}", (place + 0.22, mean), va="center", fontsize=8)
    axes.set_xticks(range(len(variants)), variants)
    axes.set_ylabel("wrong answers, %")
    axes.set_ylim(bottom=-1)
    axes.grid(alpha=0.3, axis="y")
    axes.legend(*(part[:2] for part in axes.get_legend_handles_labels()), fontsize=8)
    task, plan = book["task"], book["plan"]
    axes.set_title(
        f"Find the block, answer its last letter: {task['blocks']} blocks of {task['size']}, {task['asked']}"
        f" asked\n{plan['steps']} steps of {plan['batch']} texts · {book['recorded']['gpu']},"
        f" {book['recorded']['date']}",
        fontsize=10,
    )
    return figure


if __name__ == "__main__":
    main()
