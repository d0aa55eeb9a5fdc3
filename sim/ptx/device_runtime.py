"""Functions of the device's run-time system that kernels call: printf, assert, and the end of a kernel by
a trap."""

import re

import numpy as np

from sim.ptx.regions import VIEWS

# a conversion of printf: its length modifier and its letter
CONVERSION = r"%[-+ #0]*\d*(?:\.\d+)?(hh|ll|[hlzjt])?([diouxXcsfFeEgGpaA%])"


class Trapped(Exception):
    """A thread has ended the kernel, by `trap` or by an assertion that does not hold."""


def trap(site):
    error = Trapped("the kernel stops itself here (trap)")
    error.site = site
    raise error


def assertfail(run, site, message, file, line, function, size):
    error = Trapped(f"assertion failed: {read_text(run, site, message)}")
    error.site = site
    raise error


def vprintf(run, site, form, values):
    """Print as printf does. The arguments follow each other in memory from address `values` on, each at a
    multiple of its size. Return the number of arguments."""
    shown, at = [], values
    text = read_text(run, site, form)
    for long, letter in re.findall(CONVERSION, text):
        if letter == "%":
            continue
        wide = letter in "ps" or long in ("l", "ll", "z", "j", "t")
        ptx_type = "f64" if letter in "fFeEgGaA" else "u64" if wide else "u32"
        size = np.dtype(VIEWS[ptx_type]).itemsize
        at = -(-at // size) * size
        value = run.memory.make_load(ptx_type, "generic", 1, site)(at)
        at += size
        # memory gives unsigned integers
        if letter in "di" and value >> 8 * size - 1:
            value -= 1 << 8 * size
        shown.append(read_text(run, site, value) if letter == "s" else chr(value) if letter == "c" else value)
    # Python's % knows no length modifiers, and no %p
    python = re.sub(r"(%[-+ #0]*\d*(?:\.\d+)?)(?:hh|ll|[hlzjt])", r"\1", text).replace("%p", "%#x")
    print(python % tuple(shown), end="")
    return len(shown)


def read_text(run, site, address):
    """Return the text at an address, which ends with a zero byte."""
    load, letters = run.memory.make_load("u8", "generic", 1, site), []
    while letter := load(address + len(letters)):
        letters.append(letter)
    return bytes(letters).decode(errors="replace")
