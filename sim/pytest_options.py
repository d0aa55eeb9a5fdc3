"""The command-line options of the pytest plug-in, and the checks of their values."""

import argparse
import difflib
from pathlib import Path

ENGINES = ("native", "auto", "fibers", "threads")
OBSERVER_NAMES = ("bounds", "races", "uninitialized", "misuse", "counters", "trace")


def pytest_addoption(parser):
    group = parser.getgroup("cuda-sim", "numba.cuda kernels on a simulated GPU")
    group.addoption(
        "--cuda-sim",
        action="store_true",
        help="simulate every launch of a numba.cuda kernel; no GPU is needed, and findings fail tests",
    )
    group.addoption(
        "--triton-sim",
        action="store_true",
        help="simulate every launch of a Triton kernel, on CPU tensors; the options --cuda-sim-... apply",
    )
    group.addoption(
        "--cuda-sim-engine",
        choices=ENGINES,
        help="native compiles kernels for the CPU, and leaves to fibers what it cannot compile; it is the"
        " default, but with --triton-sim alone the default is auto, which compiles only long launches",
    )
    group.addoption(
        "--cuda-sim-seeds",
        type=parse_seeds,
        default=(0,),
        metavar="0,1,...",
        help="run each launch once under each of these orders of threads",
    )
    group.addoption(
        "--cuda-sim-tools",
        type=parse_words(lambda: OBSERVER_NAMES),
        default=OBSERVER_NAMES[:4],
        metavar="TOOL,...",
        help=f"which observers watch: {', '.join(OBSERVER_NAMES)}; the first four by default",
    )
    group.addoption(
        "--cuda-sim-max-steps",
        type=parse_max_steps,
        metavar="N",
        help="how many iterations loops may take until a thread ends; by default a million, or as many as"
        " fit in 1 s",
    )
    group.addoption(
        "--cuda-sim-allow",
        type=parse_words(kinds_of_findings),
        default=(),
        metavar="KIND,...",
        help="kinds of findings that do not fail a test, for instance race-global; the kind exception means"
        " that a thread raised one in a kernel without debug=True",
    )
    group.addoption(
        "--cuda-sim-report",
        type=Path,
        metavar="DIR",
        help="write the reports as HTML, a page for each test that launched a kernel",
    )
    group.addoption(
        "--cuda-sim-format",
        choices=("github", "sarif", "json"),
        help="at the end, print the findings in this format, too",
    )
    group.addoption(
        "--cuda-sim-output", type=Path, metavar="FILE", help="where to write them; by default the terminal"
    )


def parse_seeds(text):
    if not all(each.strip().isdecimal() for each in text.split(",")):
        raise argparse.ArgumentTypeError(f"{text}: not a list of whole numbers, such as 0,1,2")
    return tuple(map(int, text.split(",")))


def parse_max_steps(text):
    if not text.isdecimal() or not int(text):
        raise argparse.ArgumentTypeError(f"{text}: not a whole number above 0, such as 10000000")
    return int(text)


def parse_words(known):
    """Return a parser for comma-separated words, all of which must be in `known()`."""

    def parse(text):
        given = tuple(filter(None, (word.strip() for word in text.split(","))))
        if problem := describe_unknown(given, known()):
            raise argparse.ArgumentTypeError(problem)
        return given

    return parse


def describe_unknown(given, known):
    """Return a message that names the words that are not in `known`, or "" if all are."""
    unknown = [word for word in given if word not in known]
    if not unknown:
        return ""
    near = [difflib.get_close_matches(str(word), known, 1, 0)[0] for word in unknown]
    return f"{', '.join(map(str, unknown))}: not among {', '.join(known)}; the nearest is {', '.join(near)}"


def kinds_of_findings():
    from sim.events import KINDS

    return KINDS
