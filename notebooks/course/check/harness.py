"""Harness that runs a check on a learner's answer and formats the outcome as a helpful message.

A check is a function of the answer and a fresh random generator. It compares the answer's results with an
independent reference, and returns one line that describes what was tested:

    @exercise("1.2", "merge")
    def ex01_2(merge, rng):
        compare(merge(left, right), wanted, what="merging two halves", tolerance=1e-12)
        return "merged 200 random pairs"
"""

import functools
import itertools
import linecache
import os
import re
import secrets
import sys
import sysconfig
import traceback
from pathlib import Path

import numpy as np

from course.check.patience import DoesNotEnd, patience
from course.check.trial import trial_of_check
from course.check.words import (
    CheckFailed,
    Interrupted,
    NotChecked,
    agree,
    array,
    brief,
    compare,
    dictionary,
    explained,
    fail,
    indented,
    instance,
    numbers,
    shape,
    text,
    wrap_lines,
)
from course.outdated import why_outdated
from course.progress import how_far, tick
from course.progress_bar import quiet
from course.stubs import advise, stub_of

__all__ = [
    "CheckFailed",
    "agree",
    "array",
    "NotChecked",
    "compare",
    "dictionary",
    "exercise",
    "explained",
    "fail",
    "instance",
    "numbers",
    "shape",
    "text",
]


def exercise(number, name):
    """Decorate `body(answer, rng) -> summary` as the check of exercise `number` ("1.2").

    The decorated check is called as `check(answer, seed=None)`; a fixed seed reproduces the inputs. It prints
    one line and records the exercise as done, or raises CheckFailed.
    """

    def decorate(body):
        @functools.wraps(body)
        def check(answer, seed=None):
            seed = secrets.randbelow(100_000) if seed is None else seed
            title = f"exercise {number} · {name}"
            if outdated := why_outdated():
                raise CheckFailed(f"✗ {title}: {outdated}")
            try:
                with patience(is_theirs, is_launch) as watch, trial_of_check() as trial:
                    tried = ", ".join([body(answer, np.random.default_rng(seed)), *trial.finish()])
            except NotChecked as missing:
                print(wrap_lines(f"{title}: not checked. {missing}"))
                return
            except CheckFailed as wrong:
                raise CheckFailed(f"✗ {title}: {wrong}   (seed {seed})") from None
            except KeyboardInterrupt as stop:
                raise Interrupted(
                    f"✗ {title}: {describe_position(stop, 'interrupted')}\n  {NO_VERDICT}"
                ) from None
            except DoesNotEnd as stop:
                late = describe_position(
                    stop, f"stopped because your code was still running after {watch.waited} seconds,"
                )
                raise CheckFailed(f"✗ {title}: {late}\n  {ENDLESS}   (seed {seed})") from None
            except Exception as error:
                if stub := stub_of(error):
                    missing = "" if stub == f"exercise {number}" else f"{stub} is "
                    raise CheckFailed(f"✗ {title}: {missing}not written yet\n  {advise(stub)}") from None
                raise CheckFailed(f"✗ {title}: {explain(error)}   (seed {seed})") from error
            print(wrap_lines(f"✓ {title}: {tried}"))
            tick(number)
            say_how_far(number)

        check.number, check.title = number, name
        return check

    return decorate


def say_how_far(number):
    """Display the learner's progress with links.

    Nothing is displayed outside an interactive notebook, because builds and tests compare outputs.
    """
    shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    if not quiet() and getattr(shell, "kernel", None):
        from IPython.display import Markdown, display

        display(Markdown(how_far(number)))


# Exceptions in the learner's code ---------------------------------------------------------------------------

HERE = Path(__file__).resolve().parents[1]
LAUNCHES = tuple(str(HERE.parents[1] / package) for package in ("sim", "kernels"))
NOT_THE_LEARNERS = ("<frozen", str(HERE), *LAUNCHES, sysconfig.get_path("stdlib"))
# folders of installed packages, including those of another Python
PACKAGES = re.compile(r"[/\\](site|dist)-packages[/\\]")


def explain(error):
    """Describe an exception in the learner's code: the failing line, the exception, the call that caused it,
    and the hints that the check has added to it as notes."""
    ours, theirs = steps_of(error)
    said = f"{type(error).__name__}: {error}"
    if not theirs:
        return "\n".join(["the check cannot use your answer", *indented(4, said, source(*ours[-1]))])
    call = f"called by  {source(*ours[-1])}"
    hints = indented(2, *getattr(error, "__notes__", ()))
    return "\n".join([*failing_line(theirs), *indented(4, said, call, arguments(theirs[0][0])), *hints])


def describe_position(stop, how):
    """Describe the line at which the learner's code was stopped.

    No line is shown if the check's own code was running.
    """
    ours, theirs = steps_of(stop)
    if not theirs:
        return f"{how} while the check's own code was running, outside your code"
    line, *code = failing_line(theirs)
    return "\n".join([f"{how} in {line}", *code, *indented(4, f"called by  {source(*ours[-1])}")])


# appended to the message of a check that was stopped
NO_VERDICT = "The check did not finish, so there is no verdict on your answer."
ENDLESS = "Does every iteration of the loop bring it closer to its end?"


def steps_of(error):
    """Return two lists of (frame, line) from an exception's traceback.

    The first list has the check's frames up to the call of the learner's code, the second all of the
    learner's frames. Both are empty if an interrupt arrives before the check begins.
    """
    steps = list(traceback.walk_tb(error.__traceback__))
    body, steps = steps[1:2], steps[2:]  # The first frame is the harness's own.
    way = itertools.takewhile(lambda step: not is_theirs(step[0]), steps)
    ours = [*body, *(step for step in way if is_the_checks(step[0]))]
    return ours, [step for step in steps if is_theirs(step[0])]


def is_theirs(frame):
    """Return whether a frame belongs to the learner's code, that is, to a cell or to a file outside any
    package.

    Compiled packages have relative source paths.
    """
    file = frame.f_code.co_filename
    if file.startswith(NOT_THE_LEARNERS) or PACKAGES.search(file):
        return False
    return file.startswith("<") or os.path.isabs(file)


def is_launch(frame):
    return frame.f_code.co_filename.startswith(LAUNCHES)


def is_the_checks(frame):
    return frame.f_code.co_filename.startswith(str(HERE))


def failing_line(steps):
    """Return the failing line as text: "line 3 of merge    m = max(m1, m2)".

    Lines are counted from the start of the function, because notebook cells show no line numbers.
    """
    frame, line = steps[-1]
    named = [step[0] for step in steps if not step[0].f_code.co_name.startswith("<")]
    code = (named or [frame])[-1].f_code
    return f"line {line - code.co_firstlineno + 1} of {code.co_name}", *indented(4, source(frame, line))


def source(frame, line):
    return linecache.getline(frame.f_code.co_filename, line).strip()


def arguments(frame):
    """Format the arguments of a call with their values at the time of the failure."""
    names = frame.f_code.co_varnames[: frame.f_code.co_argcount]
    return ", ".join(f"{name} = {brief(frame.f_locals[name])}" for name in names if name in frame.f_locals)
