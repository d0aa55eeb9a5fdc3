"""Progress bar of the lessons: tqdm, unless COURSE_QUIET=1 is set."""

import os
from collections.abc import Iterable

from tqdm.auto import tqdm


def progress_bar(iterable: Iterable | None = None, **tqdm_arguments) -> tqdm:
    """Return tqdm.auto.tqdm(iterable, ...), for notebooks and terminals.

    The bar is hidden while a notebook is built or tested.
    """
    return tqdm(iterable, **{"disable": quiet(), **tqdm_arguments})


def quiet() -> bool:
    """Return whether COURSE_QUIET disables progress bars."""
    return os.environ.get("COURSE_QUIET", "") not in ("", "0")
