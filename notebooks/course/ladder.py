"""The ladder of speed: every kernel that the learner writes, by its counted work and its time on a GPU.

A rung is a kernel of one lesson with a task. It has a small size, which the simulator counts, and a large
one, which a GPU runs. `show_ladder` draws a rung and those below it; `time_rung` runs the learner's kernel on
a GPU. `course.record.ladder` writes the recorded times.
"""

import json
import math
from dataclasses import dataclass
from functools import cache
from html import escape
from pathlib import Path
from urllib.parse import quote

from course.rungs import RUNGS, problem

RECORD = Path(__file__).parent / "recorded" / "ladder.json"
# operations per second in float32 and on tensor cores in bfloat16, bytes per second (NVIDIA's data sheets)
GPUS = {"H100": (66.9e12, 989e12, 3.35e12), "H200": (66.9e12, 989e12, 4.8e12)}


@dataclass(frozen=True)
class Step:
    """One line of the ladder.

    counted: memory transactions (wavefronts and sectors) per 1,000 useful multiply-adds, in the simulator.
    ms, library_ms: time on a GPU, of the kernel and of PyTorch. limit_ms: lower bound on the time. These
    three are None for a kernel that has not been timed.
    """

    lesson: str
    words: str
    counted: float
    ms: float | None = None
    library_ms: float | None = None
    limit_ms: float | None = None

    @property
    def of_limit(self):
        return self.ms and self.limit_ms / self.ms

    @property
    def of_library(self):
        return self.ms and self.library_ms / self.ms


@cache
def recorded():
    """Return the record: {"gpu": ..., "date": ..., "steps": {lesson: {"counted": ..., "ms": ..., ...}}}."""
    return json.loads(RECORD.read_text(encoding="utf-8"))


def count(lesson, *answers):
    """Return the memory transactions per 1,000 useful multiply-adds of a kernel, counted in the simulator."""
    from sim import simulate
    from sim.observers import COUNTERS

    reports = []

    def run(kernel, grid, block, *arguments, shared=0):
        launched = simulate(kernel, observers=COUNTERS)
        reports.append(launched[grid, block, 0, shared](*arguments))

    small = problem(lesson, "cpu", *answers)
    small.launch(run)
    counters = [report.counters for report in reports]
    transactions = sum(c["banks"]["wavefronts"] + c["coalescing"]["sectors"] for c in counters)
    return 1000 * transactions / small.adds


def measure(lesson, *answers):
    """Return {"ms": ..., "library_ms": ..., "limit_ms": ...} of a kernel on this GPU.

    Raise ValueError if the kernel's output is wrong.
    """
    import torch
    from numba import cuda

    from kernels.bench.timing import milliseconds

    compiled = {}

    def run(kernel, grid, block, *arguments, shared=0):
        if kernel not in compiled:
            compiled[kernel] = kernel if hasattr(kernel, "py_func") else cuda.jit(kernel)
        stream = cuda.external_stream(torch.cuda.current_stream().cuda_stream)
        compiled[kernel][grid, block, stream, shared](*arguments)

    large = problem(lesson, "cuda", *answers)
    large.launch(run)
    torch.cuda.synchronize()
    wanted = large.wanted().double()
    wrong = ((large.out().double() - wanted).abs().max() / wanted.abs().max()).item()
    if not wrong <= large.tolerance:
        raise ValueError(f"the kernel of lesson {lesson} is off by {percent(wrong)} of the largest entry")
    name = torch.cuda.get_device_name()
    float32, bfloat16, bandwidth = next(rates for gpu, rates in GPUS.items() if gpu in name)
    rate = bfloat16 if large.tensor_cores else float32
    return {
        "ms": milliseconds(lambda: large.launch(run)),
        "library_ms": milliseconds(large.library),
        "limit_ms": 1000 * max(2 * large.adds / rate, large.moved / bandwidth),
    }


def steps(until, counted=None):
    """Return the steps up to this lesson. `counted` replaces the recorded count of the last one."""
    found = []
    for lesson, rung in RUNGS.items():
        row = dict(recorded()["steps"][lesson])
        if lesson == until and counted is not None:
            row["counted"] = counted
        found.append(Step(lesson, rung.words, **row))
        if lesson == until:
            return found
    raise ValueError(f"lesson {until} has no rung")


def percent(fraction):
    """Format a fraction: 0.0123 as "1.2 %", 1.5 as "150 %", None as "not timed"."""
    if fraction is None:
        return "not timed"
    return f"{100 * fraction:.2g} %" if fraction < 0.1 else f"{100 * fraction:.0f} %"


def rounded(number):
    """Format a count or a time with two or three digits."""
    if number is None:
        return "not timed"
    return f"{number:.0f}" if number >= 10 else f"{number:.1f}" if number >= 1 else f"{number:.3f}"


def source():
    """Return where the recorded times come from."""
    if "gpu" not in recorded():
        return "no time has been recorded yet"
    return f"times: {recorded()['gpu']}, recorded {recorded()['date']}"


def show_ladder(lesson, *answers):
    """Count the work of the learner's kernel in the simulator, and show it above the rungs of earlier
    lessons."""
    from IPython.display import display

    from course.tables import show_table

    found = steps(lesson, count(lesson, *answers))
    show_table(
        ["", "kernel", "task", "transactions", "ms", "of PyTorch", "of the limit"],
        *(
            [
                step.lesson,
                step.words,
                RUNGS[step.lesson].task,
                rounded(step.counted),
                rounded(step.ms),
                percent(step.of_library),
                percent(step.of_limit),
            ]
            for step in found
        ),
        title=f"transactions: per 1,000 useful multiply-adds, counted in sim; {source()}",
    )
    display(Picture(found))


def time_rung(lesson, *answers):
    """Time the learner's kernel on this machine's GPU. Without a GPU, print the recorded time."""
    import torch

    if torch.cuda.is_available():
        row = measure(lesson, *answers)
        whose = f"your kernel on this {torch.cuda.get_device_name()}"
    else:
        row = recorded()["steps"][lesson]
        whose = "No GPU here, and the solution's kernel has not been timed yet"
        if "ms" in row:
            whose = f"No GPU here. The solution's kernel on an {recorded()['gpu']}, {recorded()['date']}"
    step = Step(lesson, "", **{"counted": 0, **row})
    print(whose, end="")
    if step.ms:
        print(f": {step.ms:.3f} ms; PyTorch {step.library_ms:.3f} ms; the limit {step.limit_ms:.3f} ms")
        print(f"{percent(step.of_library)} of PyTorch's speed, {percent(step.of_limit)} of the limit")
    else:
        print(".")


LEFT, BAR, GAP, ROW, TOP = 240, 210, 130, 30, 50
PANELS = {  # title -> (value of a step, ends of the logarithmic axis)
    "memory transactions per 1,000 multiply-adds": (lambda step: step.counted, (1, 10_000)),
    "speed, as a fraction of the limit": (lambda step: step.of_limit, (1e-4, 1)),
}
STYLE = (
    "svg{--ink:#1b1b1b;--paper:#fff;--line:#c8c8c8;--old:#7fb2d6;--new:#d55e00}"
    "@media(prefers-color-scheme:dark){svg{--ink:#e8e8e8;--paper:#161616;--line:#4a4a4a;"
    "--old:#2f6f9f;--new:#e8833a}}"
    "text{font:13px system-ui,sans-serif;fill:var(--ink)}.end{text-anchor:end}.middle{text-anchor:middle}"
)


class Picture:
    """The ladder as a picture: two bars for each kernel, for its counted work and for its speed."""

    def __init__(self, found):
        self.steps = found

    def __repr__(self):
        return "\n".join(
            f"lesson {step.lesson}, {step.words}: {rounded(step.counted)} transactions,"
            f" speed: {percent(step.of_limit)}{' of the limit' * bool(step.ms)}"
            for step in self.steps
        )

    def _repr_html_(self):
        words = escape(repr(self), quote=True)
        image = quote(self.svg(), safe=" =:/;,().-!")
        return (
            f'<figure style="margin:8px 0"><img alt="{words}" width="{self.width}"'
            f' src="data:image/svg+xml,{image}">'
            f"<details><summary>in words</summary><pre>{words}</pre></details></figure>"
        )

    @property
    def width(self):
        return LEFT + len(PANELS) * (BAR + GAP)

    def svg(self):
        """Return the picture as SVG, in the colours of the reader's light or dark theme."""
        height = TOP + ROW * len(self.steps) + 34
        parts = [panel(self.steps, place, height, *given) for place, given in enumerate(PANELS.items())]
        for place, step in enumerate(self.steps):
            bold = " font-weight='700'" if step is self.steps[-1] else ""
            parts.append(
                f"<text x='{LEFT - 8}' y='{TOP + ROW * place + 16}' class='end'{bold}>"
                f"{escape(step.words)} · {step.lesson}</text>"
            )
        parts.append(
            f"<rect x='{LEFT + BAR + GAP}' y='{height - 22}' width='4' height='16' fill='var(--ink)'/>"
            f"<text x='{LEFT + BAR + GAP + 12}' y='{height - 9}'>PyTorch on the same task</text>"
        )
        return (
            f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {self.width} {height}'"
            f" width='{self.width}'><style>{STYLE}</style>"
            f"<rect width='100%' height='100%' fill='var(--paper)'/>{''.join(parts)}</svg>"
        )


def panel(found, place, height, title, given):
    """Return one panel of the picture: an axis, and a bar for each step that has a value."""
    value, (low, high) = given
    left = LEFT + place * (BAR + GAP)

    def position(number):
        inside = min(max(number, low), high)
        return round(left + BAR * math.log(inside / low) / math.log(high / low), 1)

    parts = [f"<text x='{left}' y='16'>{title}</text>"]
    for power in range(round(math.log10(low)), round(math.log10(high)) + 1):
        x, tick = position(10**power), f"{100 * 10**power:g} %" if place else f"{10**power:,}"
        parts.append(
            f"<line x1='{x}' x2='{x}' y1='{TOP - 8}' y2='{height - 30}' stroke='var(--line)'/>"
            f"<text x='{x}' y='{TOP - 14}' class='middle'>{tick}</text>"
        )
    for row, step in enumerate(found):
        y, number, fill = TOP + ROW * row, value(step), "new" if step is found[-1] else "old"
        words = (percent if place else rounded)(number)
        if number is not None:
            parts.append(
                f"<rect x='{left}' y='{y + 2}' width='{position(number) - left}' height='19'"
                f" fill='var(--{fill})'/>"
            )
        if place and step.ms:
            parts.append(
                f"<rect x='{position(step.limit_ms / step.library_ms) - 2}' y='{y - 1}' width='4'"
                " height='25' fill='var(--ink)'/>"
            )
        parts.append(f"<text x='{left + BAR + 8}' y='{y + 16}'>{words}</text>")
    return "".join(parts)
