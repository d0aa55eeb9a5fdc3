"""Helpers for the modules with mutants, which derive wrong answers by editing a correct one."""

import ast
import builtins
import functools
import inspect
import linecache
import textwrap

from course.definitions import used_names


def edited(piece, *edits):
    """Return the function or class after replacing each (old, new) of `edits` in its source.

    Every `old` must occur exactly once.
    """
    piece = getattr(piece, "py_func", piece)
    source, outside = source_and_globals(piece)
    for old, new in edits:
        if source.count(old) != 1:
            raise ValueError(f"{old!r} stands {source.count(old)} times in {piece.__name__}")
        source = source.replace(old, new)
    name = f"<{piece.__name__} with {edits}>"
    # registers the source text, which sim reads
    linecache.cache[name] = len(source), None, source.splitlines(keepends=True), name
    if unknown := used_names(source) - {*outside, *vars(builtins), piece.__name__}:
        raise ValueError(f"the edited {piece.__name__} uses {sorted(unknown)}, which its module lacks")
    namespace = {}
    exec(compile(source, name, "exec"), {**outside}, namespace)
    return namespace[piece.__name__]


@functools.cache
def source_and_globals(piece):
    """Return the source of a function or class, and the global names of its module."""
    if not isinstance(piece, type):
        return textwrap.dedent(inspect.getsource(piece)), piece.__globals__
    # inspect finds classes by their module, and executed text has none.
    text = "".join(linecache.getlines(piece.__init__.__code__.co_filename))
    nodes = [node for node in ast.parse(text).body if getattr(node, "name", None) == piece.__name__]
    return ast.get_source_segment(text, nodes[0]), piece.__init__.__globals__


def wrong(piece, *answers):
    """Return [(description, wrong answer)] for each (description, edits ...)."""
    return [(what, edited(piece, *edits)) for what, *edits in answers]
