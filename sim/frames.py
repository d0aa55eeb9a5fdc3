"""A map from stack frames of kernels to source locations."""

import functools
import linecache
import sys
import traceback
from collections import Counter

from sim.events import SITES, Site

OUTERMOST_MODULE = "sim.engine.grid"  # the module that runs threads; frames further out belong to no thread


def is_simulator_frame(frame):
    """Return whether a stack frame belongs to the simulator rather than to a kernel."""
    name = frame.f_globals.get("__name__") or ""
    return name.startswith("sim.") or frame.f_code.co_filename == "<accessors>"


def kernel_frames(frame):
    """Return the stack frames of the kernel and of its functions, outermost first.

    frame: the innermost stack frame of a thread.
    """
    frames = []
    while frame is not None and frame.f_globals.get("__name__") != OUTERMOST_MODULE:
        if not is_simulator_frame(frame):
            frames.append(frame)
        frame = frame.f_back
    return frames[::-1]


class FrameSites:
    """The site numbers of the functions that a kernel calls, looked up by stack frame and cached for one
    launch.

    Rewritten code contains numbers for loads and stores, but not for these calls.
    """

    def __init__(self):
        self.numbers = {}  # (id of code, instruction offset, action) -> site number
        self.codes = {}  # id of code -> (code, its instruction positions); the reference keeps the id valid

    def current(self, action):
        """Return the number of the kernel's current site, found from its innermost stack frame."""
        frame = sys._getframe(1)
        while is_simulator_frame(frame):
            frame = frame.f_back
        return self.of_frame(frame, action)

    def of_frame(self, frame, action):
        """Return the number of the site that `frame` is executing."""
        code = frame.f_code
        key = (id(code), frame.f_lasti, action)  # hashing a code object would visit all its instructions
        number = self.numbers.get(key)
        if number is None:
            if id(code) not in self.codes:
                self.codes[id(code)] = code, positions_in(code)
            line, _, column, _ = self.codes[id(code)][1][frame.f_lasti // 2]
            number = self.numbers[key] = SITES.add(site_at(code, line, column or 0, action))
        return number

    def register(self, frame, action, number):
        """Register `number` as the site that `frame` is executing.

        PTX kernels have no Python frames; they pass a WaitPoint instead.
        """
        self.numbers[id(frame.f_code), frame.f_lasti, action] = number


def site_of_error(error):
    """Return the number of the site that raised `error`. Compiled code stores it in the error."""
    if hasattr(error, "site"):
        return error.site
    frames = list(traceback.walk_tb(error.__traceback__))
    of_kernel = [(frame, line) for frame, line in frames if not is_simulator_frame(frame)]
    frame, line = (of_kernel or frames)[-1]
    return SITES.add(site_at(frame.f_code, line, 0, "loop"))


def recursive_call(error, call_sites):
    """Return the number of the site of the innermost call in a recursion that raised RecursionError.

    call_sites: as in Context.
    """
    frames = [(f, line) for f, line in traceback.walk_tb(error.__traceback__) if not is_simulator_frame(f)]
    codes = [frame.f_code for frame, _ in frames]
    repeated = Counter(codes).most_common(1)[0][0]
    called = max(at for at, code in enumerate(codes) if code is repeated)
    frame, line = frames[max(called - 1, 0)]
    caller = frame.f_code.co_name
    known = call_sites.get((caller, repeated.co_name), call_sites.get((caller, None)))
    return SITES.add(site_at(frame.f_code, line, 0, "call")) if known is None else known


def format_none_parameters(error):
    """Return a line for the message that names the kernel's None arguments, if `error` is about None;
    otherwise ""."""
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__) if not is_simulator_frame(frame)]
    if "NoneType" not in str(error) or not frames:
        return ""
    code, given = frames[-1].f_code, frames[-1].f_locals
    none = [name for name in code.co_varnames[: code.co_argcount] if given.get(name, 0) is None]
    wanted = f"wanted an array or a number, or a test: if {none[0]} is not None" if none else ""
    return f"\n  {' and '.join(none)} is None; {wanted}" if none else ""


@functools.lru_cache(256)
def positions_in(code):
    """Return (line, end line, column, end column) for each instruction in a code object."""
    return list(code.co_positions())


def site_at(code, line, column, action):
    """Return the Site at a line of `code`, with the source text from the file or the notebook cell."""
    text = linecache.getline(code.co_filename, line)
    indent = len(text) - len(text.lstrip())
    return Site(action, code.co_name, line - code.co_firstlineno + 1, column, text.strip(), indent)
