"""Helpers for the modules with mutants, which derive wrong answers by editing a correct one."""

import builtins
import inspect
import linecache
import textwrap

from course.definitions import used_names


def edited(piece, *edits):
    """Return the function after replacing each (old, new) of `edits` in its source.

    Every `old` must occur exactly once.
    """
    piece = getattr(piece, "py_func", piece)
    source = textwrap.dedent(inspect.getsource(piece))
    for old, new in edits:
        if source.count(old) != 1:
            raise ValueError(f"{old!r} stands {source.count(old)} times in {piece.__name__}")
        source = source.replace(old, new)
    name = f"<{piece.__name__} with {edits}>"
    # registers the source text, which sim reads
    linecache.cache[name] = len(source), None, source.splitlines(keepends=True), name
    if unknown := used_names(source) - {*piece.__globals__, *vars(builtins), piece.__name__}:
        raise ValueError(f"the edited {piece.__name__} uses {sorted(unknown)}, which its module lacks")
    namespace = {}
    exec(compile(source, name, "exec"), {**piece.__globals__}, namespace)
    return namespace[piece.__name__]


def wrong(piece, *answers):
    """Return [(description, wrong answer)] for each (description, edits ...)."""
    return [(what, edited(piece, *edits)) for what, *edits in answers]
