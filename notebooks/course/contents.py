"""Table of the lessons with their content, duration and prerequisites, and three routes through the
course."""

from dataclasses import dataclass
from textwrap import fill

from course.figures import BLUE, GREEN, ORANGE
from course.progress import done, exercises


@dataclass(frozen=True)
class Lesson:
    """Metadata of one lesson.

    file: name of its notebook.
    minutes: time that test readers needed with only the lesson's text (for 17, its author), or None.
    after: numbers of the lessons that it builds on.
    """

    file: str
    title: str
    builds: str
    minutes: int | None
    after: tuple[str, ...] = ()

    @property
    def number(self):
        return self.file.partition("_")[0]


PARTS = {
    "1 · Attention by hand": [
        Lesson(
            "01_online_softmax",
            "Online softmax",
            "a softmax that reads each number once; the merge of two halves",
            60,
        ),
        Lesson(
            "02_flash_attention",
            "Flash attention",
            "attention tile by tile, both loop orders, every byte counted",
            95,
            ("01",),
        ),
    ],
    "2 · A GPU out of Python threads": [
        Lesson(
            "03_threads_and_blocks",
            "Threads and blocks",
            "your own CUDA simulator in sixty lines; block sum; tiled matmul",
            115,
        ),
        Lesson(
            "04_what_can_go_wrong",
            "What can go wrong",
            "nine kernels, nine bugs: guess, run, fix",
            95,
            ("03",),
        ),
        Lesson(
            "05_flash_kernel",
            "The flash kernel",
            "the kernel of lesson 02, thread by thread",
            100,
            ("02", "03"),
        ),
        Lesson("06_warps", "Warps", "shuffles, votes, one warp per query row", 90, ("01", "04")),
    ],
    "3 · The real thing": [
        Lesson(
            "07_numba",
            "Numba",
            "the same kernels compiled: types, PTX read aloud, launches, streams",
            110,
            ("05", "06"),
        ),
        Lesson("08_memory", "Memory", "sectors and banks: predicted, counted, measured", 75, ("07",)),
        Lesson(
            "08b_roofline",
            "Occupancy and roofline",
            "how many blocks fit, bytes in flight, and how fast a kernel can be at best",
            50,
            ("08",),
        ),
    ],
    "4 · Convolutional attention": [
        Lesson(
            "09_conv_attention",
            "Convolutional attention",
            "two masks and a convolution; a test that finds leaks",
            100,
            ("02",),
        ),
        Lesson(
            "10_overlapping_tiles",
            "Overlapping tiles",
            "halos; the forward pass tile by tile",
            130,
            ("09", "04"),
        ),
        Lesson(
            "11_conv_forward",
            "The forward kernel",
            "a tile for a block: scores, convolution, statistics, output",
            160,
            ("10", "08"),
        ),
        Lesson(
            "12_conv_gradients", "Gradients by hand", "the backward pass on paper; gradcheck", 115, ("09",)
        ),
        Lesson(
            "13_conv_backward",
            "The backward kernels",
            "two kernels, atomics, and the reproducible way",
            175,
            ("12", "10"),
        ),
        Lesson(
            "14_decoding",
            "Decoding",
            "one token at a time: a cache, split keys, your own merge",
            100,
            ("10",),
        ),
        Lesson(
            "15_training",
            "Training",
            "your layer in a small transformer that finds the block; without taps it hardly does",
            90,
            ("13",),
        ),
    ],
    "5 · Fast": [
        Lesson(
            "16_tensor_cores",
            "Tensor cores",
            "products by whole warps: fragments, ldmatrix, a tiled bfloat16 matmul; what rounding costs",
            115,
            ("08",),
        ),
        Lesson(
            "17_fast_forward",
            "Fast forward",
            "flash attention and its convolution on tensor cores; copies under way; routes counted first",
            170,
            ("11", "16"),
        ),
        Lesson(
            "18_fast_backward",
            "Fast backward and decode",
            "taps as diagonals of products; registers against blocks; a token at the speed of memory",
            140,
            ("13", "14", "16"),
        ),
    ],
    "6 · Beyond": [
        Lesson(
            "19_heads",
            "Heads",
            "maps over heads, a convolution after the softmax, two passes; four faults found by experiments",
            120,
            ("12", "14"),
        ),
        Lesson(
            "20_latent_attention",
            "Latent attention",
            "one small cache for all heads: absorb or expand, a reciprocal band, a shared gradient",
            70,
            ("12", "14"),
        ),
        Lesson(
            "21_triton",
            "Triton",
            "programs over tiles instead of threads; what the compiler decides; races found without a GPU",
            130,
            ("05", "10"),
        ),
        Lesson(
            "22_cuda_cpp",
            "CUDA C++",
            "your kernels in CUDA C++, no GPU; PTX of three languages; a race in a .cu file found by line",
            120,
            ("07", "11"),
        ),
        Lesson(
            "23_many_gpus",
            "Many GPUs",
            "a sequence over many machines: halos, a ring, balanced chunks; four processes on your laptop",
            70,
            ("10",),
        ),
    ],
}
LESSONS = {lesson.number: lesson for lessons in PARTS.values() for lesson in lessons}
WAYS = {
    "the simulator only": ("03", "04", "06", "08"),
    "attention only": ("01", "02", "09", "12", "15"),
    "everything": tuple(LESSONS),
}


def hours(numbers):
    """Format the total duration of these lessons, such as "5 h 10".

    A "+" at the end means that the duration of at least one lesson is unknown.
    """
    times = [LESSONS[number].minutes for number in numbers]
    whole, minutes = divmod(sum(filter(None, times)), 60)
    return f"{whole} h {minutes:02}{' +' * (None in times)}"


def contents():
    """Return the table of lessons with the learner's progress, as Markdown."""
    ticked, numbered = done(), exercises()
    rows = ["| | lesson | what you build | minutes | done |", "|---|---|---|---:|---:|"]
    for part, found in PARTS.items():
        for lesson in found:
            numbers = numbered[lesson.number]
            count = f"{sum(number in ticked for number in numbers)} of {len(numbers)}"
            head = f"**{part}**" if lesson is found[0] else ""
            rows.append(
                f"| {head} | [{lesson.number} {lesson.title}]({lesson.file}.ipynb) | {lesson.builds} |"
                f" {lesson.minutes or '?'} | {count} |"
            )
    return "\n".join(rows)


PLACES = {
    "01": (0, 0), "02": (1, 0), "09": (2, 0), "12": (3, 0), "13": (4, 0.2), "15": (5, 0.2), "21": (3.2, -2.2),
    "05": (2, -1.3), "10": (3, -1.2), "14": (4, -1.3), "20": (5, -0.75), "19": (5, -1.55), "23": (5, -2.2),
    "22": (4, -3.8), "16": (5, -3.8), "17": (6, -3.4), "18": (6, -1),
    "03": (0, -3), "04": (1, -3), "06": (2, -3), "07": (3, -3), "08": (4, -3), "11": (5, -3),
    "08b": (3.1, -3.8),
}  # fmt: skip


def draw_map():
    """Draw the lessons as boxes, with an arrow from each lesson to those that build on it."""
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(14, 6))
    axes.set(xlim=(-0.5, 6.5), ylim=(-4.1, 0.6))
    axes.axis("off")
    colours = {"attention only": GREEN, "the simulator only": ORANGE, "everything": BLUE}
    boxes = {}
    for number, lesson in LESSONS.items():
        way = next(
            way for way in ("attention only", "the simulator only", "everything") if number in WAYS[way]
        )
        box = {
            "boxstyle": "round,pad=0.35",
            "facecolor": "white",
            "edgecolor": colours[way],
            "linewidth": 2.5,
        }
        words = f"{number}\n{fill(lesson.title, 13)}"
        boxes[number] = axes.text(
            *PLACES[number], words, ha="center", va="center", fontsize=11, bbox=box
        ).get_bbox_patch()
    for x, (way, colour) in zip((-0.45, 0.6, 1.85), colours.items()):
        axes.text(x, -3.9, f"■ {way}", color=colour, fontsize=12, weight="bold")
    figure.canvas.draw()  # Drawing the figure computes the box sizes, which the arrows need.
    for number, lesson in LESSONS.items():
        for before in lesson.after:
            ends = {"patchA": boxes[before], "patchB": boxes[number], "shrinkA": 2, "shrinkB": 2}
            axes.annotate(
                "",
                xy=PLACES[number],
                xytext=PLACES[before],
                arrowprops={"arrowstyle": "-|>", "color": "grey", "linewidth": 1.4, **ends},
            )
    return figure


def map_in_words():
    """Describe the figure of draw_map in words, for readers who cannot see it."""
    stands = (
        (
            f"{lesson.number} builds on {' and '.join(lesson.after)}"
            if lesson.after
            else f"{lesson.number} needs none"
        )
        for lesson in LESSONS.values()
    )
    return (
        f"the lessons as boxes, with arrows: {'; '.join(stands)}. Green: attention only. Orange: the"
        " simulator only. Blue: everything else."
    )
