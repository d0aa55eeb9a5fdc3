"""Formats a verdict: the test, the call, expected and actual values, and a hint."""

import textwrap

import numpy as np

WIDTH = 88  # Width in columns, as in the lessons' code. A notebook would break longer lines inside words.


def wrap_lines(message):
    """Wrap long lines between words, and indent continuation lines by two more columns."""
    return "\n".join(
        textwrap.fill(
            line,
            WIDTH,
            subsequent_indent=" " * (len(line) - len(line.lstrip()) + 2),
            break_long_words=False,
            break_on_hyphens=False,
        )
        for line in message.splitlines()
    )


class MessageAlone(BaseException):
    """Exception that a notebook shows without a traceback."""

    def _render_traceback_(self):
        return wrap_lines(str(self)).splitlines()


class CheckFailed(MessageAlone, AssertionError):
    """Verdict on a wrong answer."""


class Interrupted(MessageAlone, KeyboardInterrupt):
    """Exception that says that the learner interrupted a check."""


class NotChecked(Exception):
    """Exception that says which requirement of a check this machine lacks."""


def fail(what, *, call=None, hint=None, wanted=None, got=None):
    """Reject the answer with a message: the test, the call, expected and actual values, and a hint."""
    values = [
        f"{word} {text(value)}" for word, value in [("wanted", wanted), ("got", got)] if value is not None
    ]
    lines = [what, *indented(4, call, "      ".join(values)), *indented(2, hint)]
    raise CheckFailed("\n".join(lines))


def compare(got, wanted, *, what, tolerance, call=None, hint=None):
    """Reject `got` unless it has the shape of `wanted` and |got - wanted| <= tolerance * max(1, |wanted|).

    Each of the two is a number, a numpy array, a torch tensor, or a tuple or list of these. NaN is accepted
    only where NaN is expected.
    """
    if got is None:
        fail(what, call=call, hint="Your function returned None. Does every path through it end in a return?")
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


def instance(got, kinds, *, what, call=None, hint=None):
    """Reject `got` unless its type is one of `kinds`. `what` describes the expected type: "a whole
    number"."""
    if isinstance(got, bool) or not isinstance(got, kinds):
        fail(f"wanted {what}, got a {type(got).__name__}", call=call, got=brief(got), hint=hint)


def dictionary(said, keys, *, what, wanted):
    """Reject `said` unless it is a dictionary with exactly these keys. Name the keys that are missing or
    unknown.

    what: the values that it has to contain.
    wanted: an example of the whole dictionary.
    """
    if not isinstance(said, dict):
        fail(f"the result must be a dictionary with {what}", wanted=wanted, got=brief(said))
    for problem, found in [
        ("has no value for", [key for key in keys if key not in said]),
        ("has a value for", [key for key in said if key not in keys]),
    ]:
        if found:
            named = ", ".join(map(repr, found))
            fail(f"the dictionary {problem} {named}: it needs {what}", wanted=wanted)


FEW = 6  # Arrays with more elements than this are not shown in full; only their first difference is.


def agree(mine, theirs, tolerance):
    """Return a boolean array that is true where two arrays agree within the tolerance.

    The tolerance is relative for values above 1. NaN agrees only with NaN.
    """
    with np.errstate(invalid="ignore"):
        near = np.abs(mine - theirs) <= tolerance * np.maximum(1, np.abs(theirs))
    finite = np.isfinite(theirs)
    return np.where(finite, near, (mine == theirs) | (np.isnan(mine) & np.isnan(theirs)))


ROUNDED = (
    "Correct but for rounding: compute in the dtype of the inputs, from the first operation to the last."
)


def explained(got, mistakes, otherwise, tolerance=1e-6, wanted=None):
    """Return the hint for the mistake that produces exactly `got`, or else `otherwise`.

    mistakes: {hint: value}.
    wanted: the correct result. A value that differs from it by rounding only is not taken for a mistake
        that has no effect on these inputs.
    """
    try:
        found = numbers(got)
    except TypeError:
        return otherwise
    if wanted is not None:
        mistakes = {ROUNDED: wanted} | mistakes
    same = (
        hint
        for hint, value in mistakes.items()
        if (mine := numbers(value)).shape == found.shape and agree(found, mine, tolerance).all()
    )
    return next(same, otherwise)


def array(value):
    """Convert a number, numpy array or torch tensor to a float64 array."""
    if hasattr(value, "detach"):
        value = value.detach().cpu().double().numpy()
    try:
        if value is None or isinstance(value, str):
            raise TypeError
        return np.asarray(value, dtype=np.float64)
    except (TypeError, ValueError):
        raise TypeError(f"{brief(value)} is neither a number nor an array of numbers") from None


def shape(value):
    """Return the shape of an array, or of a tuple or list of equally shaped parts.

    For parts of different shapes, return a tuple of their shapes.
    """
    if not isinstance(value, (tuple, list)):
        return array(value).shape
    parts = [shape(part) for part in value]
    alike = all(part == parts[0] for part in parts)
    return (len(parts), *(parts[0] if parts else ())) if alike else tuple(parts)


def numbers(value):
    """Flatten all numbers in `value`, in order, into one float64 array."""
    if not isinstance(value, (tuple, list)):
        return array(value).ravel()
    return np.concatenate([numbers(part) for part in value] or [np.empty(0)])


def index_of(position, value):
    """Return the index in `value` of element `position` of `numbers(value)`: (2, 5) means value[2][5]."""
    if not isinstance(value, (tuple, list)):
        return tuple(int(i) for i in np.unravel_index(position, array(value).shape))
    sizes = [numbers(part).size for part in value]
    place = int(np.searchsorted(np.cumsum(sizes), position, side="right"))
    return place, *index_of(position - sum(sizes[:place]), value[place])


def text(value, digits=6):
    """Format a value as a learner would write it: (2, nan, -inf), without dtypes.

    Values that are not numeric are formatted with repr.
    """
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


def brief(value):
    shown = " ".join(repr(value).split())
    return shown if len(shown) <= 80 else f"{shown[:77]}..."
