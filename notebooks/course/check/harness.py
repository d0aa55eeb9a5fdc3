"""The harness of the checks: runs one on a learner's answer and turns the outcome into words that help.

A check is a function of the answer and a fresh random generator. It compares what the answer gives with what an
oracle of its own gives, and returns one line about what it tried:

    @exercise("1.2", "merge")
    def ex01_2(merge, rng):
        compare(merge(left, right), wanted, what="merging two halves", tolerance=1e-12)
        return "merged 200 random pairs"
"""

import functools
import itertools
import linecache
import secrets
import sysconfig
import textwrap
import traceback
from pathlib import Path

import numpy as np

from course.progress import tick
from course.stubs import stub_of, what_to_do


class CheckFailed(AssertionError):
    """The verdict on a wrong answer. A notebook shows its message alone, without the way through our code."""

    def _render_traceback_(self):
        return str(self).splitlines()


def exercise(number, name):
    """Make a check of exercise `number` ("1.2") out of a function `body(answer, rng) -> what was tried`.

    The check is called as `check(answer, seed=None)`; a seed repeats the very same inputs. It raises CheckFailed,
    or prints one line and ticks the ledger.
    """

    def decorate(body):
        @functools.wraps(body)
        def check(answer, seed=None):
            seed = secrets.randbelow(100_000) if seed is None else seed
            title = f"exercise {number} · {name}"
            try:
                tried = body(answer, np.random.default_rng(seed))
            except CheckFailed as wrong:
                raise CheckFailed(f"✗ {title}: {wrong}   (seed {seed})") from None
            except Exception as error:
                if stub := stub_of(error):
                    missing = "" if stub == f"exercise {number}" else f"{stub} is "
                    raise CheckFailed(f"✗ {title}: {missing}not written yet\n  {what_to_do(stub)}") from None
                raise CheckFailed(f"✗ {title}: {explain(error)}   (seed {seed})") from error
            print(f"✓ {title}: {tried}")
            tick(number)

        check.number, check.title = number, name
        return check

    return decorate


# What a check says ----------------------------------------------------------------------------------------------


def fail(what, *, call=None, hint=None, wanted=None, got=None):
    """Reject the answer: what was tried, the call that shows it, wanted and got, and where to look."""
    values = [f"{word} {text(value)}" for word, value in [("wanted", wanted), ("got", got)] if value is not None]
    lines = [what, *indented(4, call, "      ".join(values)), *indented(2, hint)]
    raise CheckFailed("\n".join(lines))


def compare(got, wanted, *, what, tolerance, call=None, hint=None):
    """Reject `got` unless it has the shape of `wanted` and |got - wanted| <= tolerance * max(1, |wanted|) everywhere.

    Either is a number, a numpy array, a torch tensor, or a tuple or list of these. NaN passes only where NaN is wanted.
    """
    if got is None:
        fail(what, call=call, hint="Your function gave back nothing: does every way through it end in a return?")
    try:
        shape(got)
    except TypeError as error:
        fail(f"{what}: {error}", call=call, hint=hint)
    if shape(got) != shape(wanted):
        fail(f"{what}: wrong shape", call=call, hint=hint, wanted=str(shape(wanted)), got=str(shape(got)))
    mine, theirs = numbers(got), numbers(wanted)
    wrong = np.flatnonzero(~agree(mine, theirs, tolerance))
    if not wrong.size:
        return
    if theirs.size > FEW:
        index = list(index_of(wrong[0], wanted))
        what = f"{what}: {wrong.size} of {theirs.size} numbers differ, the first at {index}"
        got, wanted = mine[wrong[0]], theirs[wrong[0]]
    digits = next((d for d in (6, 10) if text(got, d) != text(wanted, d)), 17)
    fail(what, call=call, hint=hint, wanted=text(wanted, digits), got=text(got, digits))


FEW = 6  # so many numbers are shown whole; of more, the first that differs


def agree(mine, theirs, tolerance):
    """Which numbers agree, one bool each. A difference of NaN is no agreement."""
    with np.errstate(invalid="ignore"):
        near = np.abs(mine - theirs) <= tolerance * np.maximum(1, np.abs(theirs))
    finite = np.isfinite(theirs)
    return np.where(finite, near, (mine == theirs) | (np.isnan(mine) & np.isnan(theirs)))


def explained(got, mistakes, otherwise, tolerance=1e-6):
    """The hint whose mistake gives just what was got, or `otherwise`; `mistakes` is {hint: value}."""
    try:
        found = numbers(got)
    except TypeError:
        return otherwise
    same = (hint for hint, value in mistakes.items() if (mine := numbers(value)).shape == found.shape and agree(found, mine, tolerance).all())
    return next(same, otherwise)


def array(value):
    """One number, numpy array or torch tensor as a float64 array."""
    if hasattr(value, "detach"):
        value = value.detach().cpu().double().numpy()
    try:
        if value is None or isinstance(value, str):
            raise TypeError
        return np.asarray(value, dtype=np.float64)
    except (TypeError, ValueError):
        raise TypeError(f"{brief(value)} is neither a number nor an array of numbers") from None


def shape(value):
    """The shape of an array; of a tuple or list too, where its parts are alike, else a tuple of their shapes."""
    if not isinstance(value, (tuple, list)):
        return array(value).shape
    parts = [shape(part) for part in value]
    alike = all(part == parts[0] for part in parts)
    return (len(parts), *(parts[0] if parts else ())) if alike else tuple(parts)


def numbers(value):
    """Every number in `value`, in order, in one float64 array."""
    if not isinstance(value, (tuple, list)):
        return array(value).ravel()
    return np.concatenate([numbers(part) for part in value] or [np.empty(0)])


def index_of(position, value):
    """Where number `position` of `numbers(value)` stands: (2, 5) is value[2][5]."""
    if not isinstance(value, (tuple, list)):
        return tuple(int(i) for i in np.unravel_index(position, array(value).shape))
    sizes = [numbers(part).size for part in value]
    place = int(np.searchsorted(np.cumsum(sizes), position, side="right"))
    return place, *index_of(position - sum(sizes[:place]), value[place])


def text(value, digits=6):
    """A value as a learner would write it: (2, nan, -inf), without dtypes; what is no number, as Python shows it."""
    if isinstance(value, str):
        return value
    if isinstance(value, (tuple, list)):
        opening, closing = "()" if isinstance(value, tuple) else "[]"
        return opening + ", ".join(text(part, digits) for part in value) + closing
    try:
        found = array(value)
    except TypeError:
        return brief(value)
    if found.ndim == 0:
        return f"{found.item():.{digits}g}"
    return text(list(found), digits) if found.size <= FEW else f"an array of shape {found.shape}"


def indented(spaces, *lines):
    return [textwrap.indent(line, " " * spaces) for line in lines if line]


# What a learner's exception says --------------------------------------------------------------------------------

HERE = Path(__file__).resolve().parents[1]
NOT_THE_LEARNERS = (
    "<frozen",
    str(HERE),
    *(str(HERE.parents[1] / package) for package in ("sim", "kernels")),
    *(sysconfig.get_path(place) for place in ("stdlib", "purelib", "platlib")),
)


def explain(error):
    """An exception from the learner's code: their line first, then the exception, then the call that provoked it."""
    _harness, body, *steps = traceback.walk_tb(error.__traceback__)
    ours = [body, *filter(is_the_checks, itertools.takewhile(lambda step: not is_theirs(step), steps))]
    theirs = [step for step in steps if is_theirs(step)]
    said = f"{type(error).__name__}: {error}"
    if not theirs:
        return "\n".join(["the check cannot use your answer", *indented(4, said, source(*ours[-1]))])
    call = f"called by  {source(*ours[-1])}"
    return "\n".join([*failing_line(theirs), *indented(4, said, call, arguments(theirs[0][0]))])


def is_theirs(step):
    return not step[0].f_code.co_filename.startswith(NOT_THE_LEARNERS)


def is_the_checks(step):
    return step[0].f_code.co_filename.startswith(str(HERE))


def failing_line(steps):
    """ "line 3 of merge    m = max(m1, m2)": counted within the function, as a cell has no lines of its own."""
    frame, line = steps[-1]
    named = [step[0] for step in steps if not step[0].f_code.co_name.startswith("<")]
    code = (named or [frame])[-1].f_code
    return f"line {line - code.co_firstlineno + 1} of {code.co_name}", *indented(4, source(frame, line))


def source(frame, line):
    return linecache.getline(frame.f_code.co_filename, line).strip()


def arguments(frame):
    """The arguments of the call as they stand when it fails."""
    names = frame.f_code.co_varnames[: frame.f_code.co_argcount]
    return ", ".join(f"{name} = {brief(frame.f_locals[name])}" for name in names if name in frame.f_locals)


def brief(value):
    shown = " ".join(repr(value).split())
    return shown if len(shown) <= 80 else f"{shown[:77]}..."
