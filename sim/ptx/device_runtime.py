"""Functions of the device runtime that kernels call: printf, assert, and trap.

Source: PTX Writer's Guide to Interoperability, "System Calls" (vprintf, __assertfail).
"""

import re

import numpy as np

from sim.ptx.heap import FUNCTIONS
from sim.ptx.regions import VIEWS

# A conversion of printf. The groups are its length modifier and its letter.
CONVERSION = r"%[-+ #0]*\d*(?:\.\d+)?(hh|ll|[hlzjt])?([diouxXcsfFeEgGpaA%])"


class Trapped(Exception):
    """The exception raised by `trap` or a failed assertion to abort the kernel."""


def trap(site, reason=""):
    """Abort the kernel at a trap instruction. `reason` is appended to the message."""
    error = Trapped(f"the kernel stops itself here (trap){reason}")
    error.site = site
    raise error


def assertfail(run, site, message, file, line, function, size):
    """Abort the kernel with the message of a failed assertion."""
    error = Trapped(f"assertion failed: {read_text(run, site, message)}")
    error.site = site
    raise error


def vprintf(run, site, form, values):
    """Print as printf does, and return the number of arguments.

    form: the address of the format string.
    values: the address of the arguments. They are stored one after another, each aligned to its size.
    """
    shown, at = [], values
    text = read_text(run, site, form)
    for long, letter in re.findall(CONVERSION, text):
        if letter == "%":
            continue
        # Variadic arguments are promoted as in C: a float becomes a double, and a narrow integer an int.
        wide = letter in "ps" or long in ("l", "ll", "z", "j", "t")
        ptx_type = "f64" if letter in "fFeEgGaA" else "u64" if wide else "u32"
        size = np.dtype(VIEWS[ptx_type]).itemsize
        # Round up to the argument's alignment.
        at = -(-at // size) * size
        value = run.memory.make_load(ptx_type, "generic", 1, site)(at)
        at += size
        # Memory is read as unsigned integers.
        if letter in "di" and value >> 8 * size - 1:
            value -= 1 << 8 * size
        shown.append(read_text(run, site, value) if letter == "s" else chr(value) if letter == "c" else value)
    # Python's % operator supports neither length modifiers nor %p.
    python = re.sub(r"(%[-+ #0]*\d*(?:\.\d+)?)(?:hh|ll|[hlzjt])", r"\1", text).replace("%p", "%#x")
    if run.context.prints:
        print(python % tuple(shown), end="")
    return len(shown)


def read_text(run, site, address):
    """Return the zero-terminated text at an address. Invalid UTF-8 bytes become replacement characters."""
    load, letters = run.memory.make_load("u8", "generic", 1, site), []
    while letter := load(address + len(letters)):
        letters.append(letter)
    return bytes(letters).decode(errors="replace")


def function_name(program, name):
    """Return the name that the source of a Program uses for a function that CUDA provides to kernels. Return
    None if there is no such function."""
    place = program.wait_point()
    if name in ("vprintf", "__assertfail"):
        program.used.add("print" if name == "vprintf" else "assert")
        site = program.site("load")
        return program.new_name("device_function", lambda run: run.device_function(name, site))
    if name in FUNCTIONS:
        site = program.site("store")
        return program.new_name("heap", lambda run: run.on_heap(FUNCTIONS[name], site))
    if name in ("cudaCGGetIntrinsicHandle", "cudaCGSynchronize"):
        program.used.add("this_grid")
        return program.new_name("grid", lambda run: run.grid_barrier(name, place))
    return None
