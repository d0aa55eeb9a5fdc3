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
            85,
            ("01",),
        ),
    ],
    "2 · A GPU out of Python threads": [
        Lesson("03_threads_and_blocks", "Threads and blocks", "your own CUDA simulator in sixty lines", 70),
        Lesson(
            "03b_sums_and_tiles",
            "Sums and tiles",
            "a sum by halves, a race that a test misses, a tiled matmul; the same kernels in sim",
            60,
            ("03",),
        ),
        Lesson(
            "04_what_can_go_wrong",
            "What can go wrong",
            "five kernels, five bugs: guess, run, fix",
            50,
            ("03b",),
        ),
        Lesson(
            "04b_waiting_forever",
            "Waiting forever",
            "four kernels that wait; six kernels without a label",
            55,
            ("04",),
        ),
        Lesson(
            "05_flash_kernel",
            "The flash kernel",
            "the kernel of lesson 02, thread by thread",
            70,
            ("02", "03b"),
        ),
        Lesson("05b_bug_hunt", "A bug hunt", "six mistakes in a published flash kernel", 35, ("05", "04")),
        Lesson("06_warps", "Warps", "shuffles, votes, one warp per query row", 90, ("01", "04")),
    ],
    "3 · The real thing": [
        Lesson(
            "07_numba",
            "Numba",
            "the same kernels compiled: types, PTX read aloud, what a bare 0.0 costs",
            80,
            ("05", "06"),
        ),
        Lesson(
            "07b_streams",
            "Streams",
            "launches that do not wait, a stopwatch that works, two libraries on one GPU",
            50,
            ("07",),
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
            "two masks and a convolution, by hand and in PyTorch",
            60,
            ("02",),
        ),
        Lesson(
            "09b_sees_the_future",
            "Does it see the future?",
            "a test that finds leaks, and a published function that has one",
            60,
            ("09",),
        ),
        Lesson(
            "10_overlapping_tiles", "Overlapping tiles", "halos; the forward pass tile by tile", 90, ("09",)
        ),
        Lesson(
            "10b_published_tiles",
            "A published algorithm",
            "five faults, a test with two tokens that finds three, a race with correct results",
            45,
            ("10", "04"),
        ),
        Lesson(
            "11_conv_forward",
            "The forward kernel",
            "a block of threads for each tile: scores, convolution, softmax, output",
            90,
            ("10", "08"),
        ),
        Lesson(
            "11b_conv_forward_fast",
            "The forward kernel, fast",
            "three bugs; patches and strips, counted; how far an H200 is from its limits",
            75,
            ("11", "08b"),
        ),
        Lesson(
            "12_conv_gradients",
            "Gradients by hand",
            "the backward pass on paper, validated in three ways",
            85,
            ("09",),
        ),
        Lesson(
            "12b_wrong_gradients",
            "Wrong gradients",
            "your gradients in autograd; four mistakes told apart by experiments",
            40,
            ("12", "10"),
        ),
        Lesson(
            "13_conv_backward",
            "The backward kernels",
            "what a tile of gradients loads and owns; the kernel of dQ and dW",
            80,
            ("12", "10"),
        ),
        Lesson(
            "13b_keys_and_sums",
            "The second backward kernel",
            "the kernel of dK and dV; atomics, and the reproducible way",
            50,
            ("13",),
        ),
        Lesson(
            "13c_published_backward",
            "A published backward pass",
            "four faults told apart by where gradients are wrong; work and memory",
            45,
            ("13b", "10b"),
        ),
        Lesson(
            "14_decoding",
            "Decoding",
            "one token at a time: a cache, split keys, how many splits",
            60,
            ("10",),
        ),
        Lesson(
            "14b_decoding_kernel",
            "Decoding, tested",
            "a test that finds 22 wrong decoders; your own merge as a kernel",
            60,
            ("14",),
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
            "a product by one warp: fragments, lane by lane; what rounding costs",
            65,
            ("08",),
        ),
        Lesson(
            "16b_tiled_products",
            "Tiled products",
            "ldmatrix without bank conflicts; a bfloat16 matmul of any size",
            60,
            ("16",),
        ),
        Lesson(
            "17_fast_forward",
            "Fast flash attention",
            "flash attention on tensor cores; copies in flight during products",
            90,
            ("11", "16b"),
        ),
        Lesson(
            "17b_fast_convolution",
            "Fast convolution",
            "the convolution as a matrix product, and a count that says which way is cheapest",
            75,
            ("17",),
        ),
        Lesson(
            "18_fast_backward",
            "Fast backward",
            "the gradient of the taps as a matrix product; which barriers are needed; how many registers",
            90,
            ("13", "17b"),
        ),
        Lesson(
            "18b_fast_decode",
            "Fast decoding",
            "a token at the speed of memory; overlapping rows; launches and graphs",
            55,
            ("14b", "18"),
        ),
        Lesson(
            "18c_hopper",
            "Hopper",
            "swizzled tiles, products of four warps, a barrier that counts bytes, a pipeline",
            85,
            ("16b", "17"),
        ),
    ],
    "6 · Beyond": [
        Lesson(
            "19_heads", "Heads", "maps over heads, a convolution after the softmax, two passes", 80, ("12",)
        ),
        Lesson(
            "19b_heads_decoded",
            "Heads, decoded",
            "how few queries a decoder keeps; four faults found by experiments",
            50,
            ("19", "12b", "14"),
        ),
        Lesson(
            "20_latent_attention",
            "Latent attention",
            "one small cache for all heads: where its projections belong, and its shared gradient",
            70,
            ("12", "14"),
        ),
        Lesson(
            "21_triton",
            "Triton",
            "programs over tiles instead of threads; what the compiler decides; flash attention",
            85,
            ("05", "06"),
        ),
        Lesson(
            "21b_triton_limits",
            "What Triton cannot express",
            "races found without a GPU; three ways to convolve a tile",
            60,
            ("21", "10"),
        ),
        Lesson(
            "22_cuda_cpp",
            "CUDA C++",
            "your kernels in CUDA C++, no GPU; PTX of three languages",
            85,
            ("07", "11"),
        ),
        Lesson(
            "22b_cuda_programs",
            "CUDA programs",
            "four bugs in .cu files, a whole program without a GPU, `__restrict__`",
            45,
            ("22",),
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
    "the simulator only": ("03", "03b", "04", "04b", "06", "08"),
    "attention only": ("01", "02", "09", "09b", "12", "12b", "15"),
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
            count = f"{sum(number in ticked for number in numbers)} of {len(numbers)}" if numbers else "–"
            head = f"**{part}**" if lesson is found[0] else ""
            rows.append(
                f"| {head} | [{lesson.number} {lesson.title}]({lesson.file}.ipynb) | {lesson.builds} |"
                f" {lesson.minutes or '?'} | {count} |"
            )
    return "\n".join(rows)


PLACES = {
    "01": (0, 0), "02": (1, 0), "09": (2, 0), "12": (3, 0), "13": (4, 0.2), "15": (5, 0.42),
    "05": (2, -1.3), "10": (3, -1.2), "14": (3.95, -1.35), "18": (5.22, -0.33), "20": (5.02, -1.1),
    "19": (5, -1.76), "21": (3.2, -2.2), "23": (5, -2.33), "22": (4, -3.8), "16": (5, -3.8),
    "17": (6.15, -3.4),
    "03": (0, -3), "04": (1, -3), "06": (2, -3), "07": (3, -3), "08": (4, -3), "11": (5, -3),
}  # fmt: skip


def by_number():
    """Return {number: (its lessons, the numbers that they build on)}. Lessons 08 and 08b count as one."""
    found = {}
    for lesson in LESSONS.values():
        lessons, before = found.setdefault(lesson.number[:2], ([], []))
        lessons.append(lesson)
        others = [number[:2] for number in lesson.after if number[:2] != lesson.number[:2]]
        before += [number for number in others if number not in before]
    return found


def draw_map():
    """Draw the lessons as boxes, with an arrow from each lesson to those that build on it."""
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(14, 6))
    axes.set(xlim=(-0.5, 6.6), ylim=(-4.1, 0.7))
    axes.axis("off")
    colours = {"attention only": GREEN, "the simulator only": ORANGE, "everything": BLUE}
    boxes = {}
    for number, (lessons, _) in by_number().items():
        way = next(
            way for way in ("attention only", "the simulator only", "everything") if number in WAYS[way]
        )
        box = {
            "boxstyle": "round,pad=0.35",
            "facecolor": "white",
            "edgecolor": colours[way],
            "linewidth": 2.5,
        }
        words = f"{', '.join(lesson.number for lesson in lessons)}\n{fill(lessons[0].title, 13)}"
        boxes[number] = axes.text(
            *PLACES[number], words, ha="center", va="center", fontsize=11, bbox=box
        ).get_bbox_patch()
    for x, (way, colour) in zip((-0.45, 0.65, 1.95), colours.items()):
        axes.text(x, -3.9, f"■ {way}", color=colour, fontsize=12, weight="bold")
    figure.canvas.draw()  # Drawing the figure computes the box sizes, which the arrows need.
    for number, (_, before) in by_number().items():
        for other in before:
            ends = {"patchA": boxes[other], "patchB": boxes[number], "shrinkA": 2, "shrinkB": 2}
            axes.annotate(
                "",
                xy=PLACES[number],
                xytext=PLACES[other],
                arrowprops={"arrowstyle": "-|>", "color": "grey", "linewidth": 1.4, **ends},
            )
    return figure


def map_in_words():
    """Describe the figure of draw_map in words, for readers who cannot see it."""
    stands = (
        (f"{number} builds on {' and '.join(before)}" if before else f"{number} needs none")
        for number, (_, before) in by_number().items()
    )
    return (
        f"the lessons as boxes, with arrows: {'; '.join(stands)}. Green: attention only. Orange: the"
        " simulator only. Blue: everything else."
    )
