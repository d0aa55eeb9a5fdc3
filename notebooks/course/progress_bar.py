"""The progress bar of the lessons: tqdm's, unless COURSE_QUIET=1 asks for silence."""

import os
from collections.abc import Iterable

from tqdm.auto import tqdm


def progress_bar(iterable: Iterable | None = None, **tqdm_arguments) -> tqdm:
    """tqdm.auto.tqdm(iterable, ...): a bar in a notebook and in a terminal. Silent while a notebook is built
    or tested."""
    return tqdm(iterable, **{"disable": quiet(), **tqdm_arguments})


def quiet() -> bool:
    """Return whether the variable COURSE_QUIET silences the bars."""
    return os.environ.get("COURSE_QUIET", "") not in ("", "0")
