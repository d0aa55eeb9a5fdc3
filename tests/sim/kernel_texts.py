"""Generator of random kernels.

The kernels have variables that change type, branches, loops, narrow integers, barriers, warp operations and
tuples. All of them are correct and deterministic.
"""

import random

LOADS = {
    "f32": "float",
    "f64": "float",
    "i8": "whole",
    "i16": "whole",
    "i32": "whole",
    "i64": "whole",
    "u8": "whole",
    "u32": "whole",
    "u64": "whole",
}
LITERALS = {"whole": ["0", "1", "-3", "7", "3000000000"], "float": ["0.0", "2.5", "-0.5", "1e30"]}
CONVERSIONS = {
    "whole": ["int8", "int16", "int32", "int64", "uint8", "uint32", "uint64", "int"],
    "float": ["float32", "float64", "float"],
}
WHOLE, ANY = ("i", "j", "k"), ("x", "y", "z", "w")  # integer variables, and variables of any numeric type
HEAD = """from numba import cuda, float32, float64, int8, int16, int32, int64, uint8, uint32, uint64


@cuda.jit(device=True)
def helper(a, b):
    r = 0
    if a > b:
        r = a
    return r + b


def kernel(f32, f64, i8, i16, i32, i64, u8, u32, u64, as_float, as_whole, n):
    t = cuda.threadIdx.x
"""


class Text:
    """Generator of one kernel's text. `together` says whether all threads reach the current position."""

    def __init__(self, seed):
        self.choose, self.lines, self.counters = random.Random(seed), [], 0
        self.loops = []  # one entry per enclosing loop: whether all threads must stay in it

    def kernel(self):
        known = set()
        for name in (*WHOLE, *ANY):
            self.assign(name, known, 1)
        self.block(known, 1, self.choose.randint(5, 9), True)
        for column, name in enumerate(sorted(known)):
            self.line(1, f"as_float[t, {column}] = {name}")
            self.line(1, f"as_whole[t, {column}] = {name}")
        return HEAD + "\n".join(self.lines) + "\n"

    def line(self, depth, text):
        self.lines.append("    " * depth + text)

    def one(self, *ways):
        return self.choose.choice(ways)

    # --- statements: `known` lists the variables that are definitely assigned -------------------------------

    def block(self, known, depth, length, together):
        for _ in range(length):
            self.statement(known, depth, together)

    def statement(self, known, depth, together):
        ways = (
            [self.plain] * 5
            + [self.augmented] * 2
            + [self.pair]
            + ([self.branch] * 2 + [self.loop, self.endless] if depth < 4 else [])
            + ([self.barrier, self.warp] * 2 if together else [])
        )
        self.one(*ways)(known, depth, together)

    def assign(self, name, known, depth):
        self.line(depth, f"{name} = {self.whole(known) if name in WHOLE else self.number(known)}")
        known.add(name)

    def plain(self, known, depth, together):
        self.assign(self.one(*WHOLE, *ANY, *ANY), known, depth)

    def augmented(self, known, depth, together):
        name = self.one(*WHOLE, *ANY)
        self.line(
            depth,
            f"{name} {self.one('+', '-', '*')}= {self.whole(known) if name in WHOLE else self.number(known)}",
        )

    def pair(self, known, depth, together):
        one, other = self.choose.sample(ANY, 2)
        self.line(depth, f"{one}, {other} = {self.one(f'{other}, {one}', f'{self.number(known)}, {one}')}")

    def branch(self, known, depth, together):
        same = together and self.choose.random() < 0.5
        self.line(depth, f"if {'n' if same else self.number(known)} > {self.one('0', '2', '5')}:")
        self.block(set(known), depth + 1, self.choose.randint(1, 3), same)
        if self.loops and not self.loops[-1] and self.choose.random() < 0.3:
            self.line(depth + 1, self.one("break", "continue"))
        if self.choose.random() < 0.5:
            self.line(depth, "else:")
            self.block(set(known), depth + 1, self.choose.randint(1, 2), same)

    def loop(self, known, depth, together):
        self.counters += 1
        same = together and self.choose.random() < 0.6
        self.line(depth, f"for c{self.counters} in range({self.one('2', '3', 'n' if same else 't % 3')}):")
        self.inside(known, depth, same)

    def endless(self, known, depth, together):
        self.counters += 1
        self.line(depth, f"c{self.counters} = 0")
        self.line(depth, f"while c{self.counters} < 3:")
        self.line(depth + 1, f"c{self.counters} += 1")
        self.inside(known, depth, together and self.choose.random() < 0.5)

    def inside(self, known, depth, same):
        self.loops.append(same)
        self.block(set(known), depth + 1, self.choose.randint(1, 3), same)
        self.loops.pop()

    def barrier(self, known, depth, together):
        self.line(depth, "cuda.syncthreads()")

    def warp(self, known, depth, together):
        name = self.one(*WHOLE, *ANY)
        value = self.whole(known) if name in WHOLE else self.number(known)
        self.line(
            depth,
            f"{name} = "
            + self.one(
                f"cuda.ballot_sync(0xFFFFFFFF, {value} > 1)",
                f"cuda.shfl_xor_sync(0xFFFFFFFF, int32({value}), 1)",
                f"cuda.syncthreads_count(int32({value} > 1))",
                (
                    "cuda.shfl_sync(0xFFFFFFFF, f32[t], 3)"
                    if name in ANY
                    else "cuda.shfl_down_sync(0xFFFFFFFF, i32[t], 2)"
                ),
            ),
        )

    # --- expressions ----------------------------------------------------------------------------------------

    def leaf(self, kind, known):
        names = sorted(known & set(WHOLE if kind == "whole" else ANY))
        loads = [f"{array}[t]" for array, of in LOADS.items() if of == kind]
        return self.one(*names * 2, *loads, *LITERALS[kind], *(("t", "n") if kind == "whole" else ()))

    def whole(self, known, depth=0):
        """Return a random integer expression."""
        if depth > 2 or self.choose.random() < 0.35:
            return self.leaf("whole", known)
        a, b = self.whole(known, depth + 1), self.whole(known, depth + 1)
        return self.one(
            f"({a} {self.one('+', '-', '*', '//', '%', '&', '|', '^')} {b})",
            f"({a} {self.one('<<', '>>')} {self.one('1', '5', '33')})",
            f"(-{a})",
            f"(~{a})",
            f"abs({a})",
            f"{self.one('min', 'max')}({a}, {b})",
            f"{self.one(*CONVERSIONS['whole'])}({self.number(known, depth + 1)})",
            f"cuda.popc(int64({a}))",
            f"({a} if {b} > 3 else {self.leaf('whole', known)})",
            f"helper({a}, {b})",
        )

    def number(self, known, depth=0):
        """Return a random numeric expression."""
        if depth > 2 or self.choose.random() < 0.3:
            return self.leaf(self.one("whole", "float"), known)
        a, b = self.number(known, depth + 1), self.number(known, depth + 1)
        return self.one(
            f"({a} {self.one('+', '-', '*', '/')} {b})",
            f"(-{a})",
            f"abs({a})",
            f"{self.one(*CONVERSIONS['float'])}({a})",
            f"({a} if {self.whole(known, depth + 1)} > 3 else {b})",
            f"({a} > {b})",
            f"helper({a}, {b})",
            self.whole(known, depth + 1),
        )
