"""The text of a verdict: what was tried, the call that shows it, the wanted and the actual value, and where
to look."""

import textwrap

import numpy as np

WIDTH = 88  # columns, as the code of lessons: a notebook would break a longer line inside a word


def wrapped(message):
    """A message whose long lines go on, two columns further in, on the next, broken between words."""
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
    """An exception of which a notebook shows the message alone, without the way through our code."""

    def _render_traceback_(self):
        return wrapped(str(self)).splitlines()


class CheckFailed(MessageAlone, AssertionError):
    """The verdict on a wrong answer."""


class Interrupted(MessageAlone, KeyboardInterrupt):
    """The learner has interrupted a check."""


class NotChecked(Exception):
    """An error: something that a check needs is missing on this machine. The message says what."""


def fail(what, *, call=None, hint=None, wanted=None, got=None):
    """Reject the answer with a message: what was tried, the call that shows it, expected and actual values,
    and where to look."""
    values = [
        f"{word} {text(value)}" for word, value in [("wanted", wanted), ("got", got)] if value is not None
    ]
    lines = [what, *indented(4, call, "      ".join(values)), *indented(2, hint)]
    raise CheckFailed("\n".join(lines))


def compare(got, wanted, *, what, tolerance, call=None, hint=None):
    """Reject `got` unless it has the shape of `wanted` and |got - wanted| <= tolerance * max(1, |wanted|)
    everywhere.

    Either is a number, a numpy array, a torch tensor, or a tuple or list of these. NaN passes only where NaN
    is wanted.
    """
    if got is None:
        fail(
            what,
            call=call,
            hint="Your function gave back nothing: does every way through it end in a return?",
        )
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
    """Reject `got` unless its type is one of `kinds`; `what` describes them in words, such as "a whole
    number"."""
    if isinstance(got, bool) or not isinstance(got, kinds):
        fail(f"wanted {what}, got a {type(got).__name__}", call=call, got=brief(got), hint=hint)


FEW = 6  # values of up to this many elements are shown whole; of larger ones, the first that differs


def agree(mine, theirs, tolerance):
    """Return a bool for each element: whether the two values agree. NaN never agrees."""
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
    same = (
        hint
        for hint, value in mistakes.items()
        if (mine := numbers(value)).shape == found.shape and agree(found, mine, tolerance).all()
    )
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
    """The shape of an array; of a tuple or list too, where its parts are alike, else a tuple of their
    shapes."""
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
    """Return the index of element `position` of `numbers(value)`: (2, 5) is value[2][5]."""
    if not isinstance(value, (tuple, list)):
        return tuple(int(i) for i in np.unravel_index(position, array(value).shape))
    sizes = [numbers(part).size for part in value]
    place = int(np.searchsorted(np.cumsum(sizes), position, side="right"))
    return place, *index_of(position - sum(sizes[:place]), value[place])


def text(value, digits=6):
    """A value as a learner would write it: (2, nan, -inf), without dtypes; what is no number, as Python shows
    it."""
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
