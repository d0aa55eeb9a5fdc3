"""The types of elements on which each language has atomics, and replacements for the missing ones.

Sources: section "Atomic Functions" of the CUDA C++ Programming Guide, the type lists of Numba's
`cuda.atomic`, and the documentation of Triton's `tl.atomic_*`.
"""

import re
from typing import NamedTuple

from sim.observers.words import CPP, NUMBA, TRITON

INTEGER, FLOAT, COMPLEX = "integer", "floating-point", "complex"
PAIR = "pair"  # two 16-bit floating-point values: __half2, __nv_bfloat162
# kind of a numpy dtype -> kind of an ElementType
KINDS = {"b": INTEGER, "i": INTEGER, "u": INTEGER, "f": FLOAT, "V": FLOAT, "c": COMPLEX}
# Types are pairs (kind, size in bytes). The atomicAdd of bfloat16 values requires sm_80, and atomics of 16
# bytes require sm_90. All other atomics exist on each GPU for which CUDA 13 can compile.
SMALLEST = 4  # bytes; the smallest size of an element for which all operations have atomics
INTEGERS = {(INTEGER, 4), (INTEGER, 8)}
NUMBERS = INTEGERS | {(FLOAT, 4), (FLOAT, 8)}
ATOMICS = {  # {language: {operation: types}}
    CPP: {
        "add": NUMBERS | {(FLOAT, 2), (PAIR, 4)},
        "sub": {(INTEGER, 4)},
        "min": INTEGERS,
        "max": INTEGERS,
        "and": INTEGERS,
        "or": INTEGERS,
        "xor": INTEGERS,
        "exchange": INTEGERS | {(FLOAT, 4), (INTEGER, 16)},
        "swap": INTEGERS | {(INTEGER, 2), (INTEGER, 16)},
    },
    NUMBA: {
        "add": NUMBERS,
        "sub": NUMBERS,
        "min": NUMBERS,
        "max": NUMBERS,
        "and": INTEGERS,
        "or": INTEGERS,
        "xor": INTEGERS,
        "exchange": INTEGERS,
        "swap": INTEGERS,
    },
    TRITON: {
        "add": NUMBERS | {(FLOAT, 2)},
        "sub": NUMBERS | {(FLOAT, 2)},
        "min": NUMBERS,
        "max": NUMBERS,
        "and": INTEGERS,
        "or": INTEGERS,
        "xor": INTEGERS,
        "exchange": NUMBERS,
        "swap": NUMBERS | {(INTEGER, 2), (FLOAT, 2)},
    },
}
OPERATIONS = {"+": "add", "-": "sub", "|": "or", "&": "and", "^": "xor", "min": "min", "max": "max"}
# the atomics of CUDA C++ whose 64-bit version takes only unsigned integers
UNSIGNED_ONLY = "add", "exchange", "swap"
SIGNED_64 = re.compile(r"(?<!unsigned )\blong long\b(?! unsigned)|\bint64_t\b")
SIGNED_NOTE = " (defined only for unsigned long long: cast the pointer to unsigned long long *)"
# names of C++ types, in the declaration of an element
SHORT_INTEGER = re.compile(r"\bshort\b|\bu?int16_t\b|\bchar16_t\b|\bushort\d?\b")
PAIR_TYPE = r"\b(?:__half2|half2|(?:__)?nv_bfloat162)\b"
PAIR_CALL = re.compile(r"\b__h\w+2(?:_rn)?\(")  # __hadd2(a, b)


class ElementType(NamedTuple):
    """The type of an element: its kind, and its size in bytes."""

    kind: str
    size: int

    @classmethod
    def of(cls, dtype, size):
        """Return the type of an element of `size` bytes, or None if KINDS lacks the kind of its dtype.

        An unknown dtype (None) counts as an integer.
        """
        kind = "i" if dtype is None else dtype.kind
        return cls(KINDS[kind], size) if kind in KINDS else None

    def __str__(self):
        if self.kind == PAIR:
            return "pairs of 16-bit floating-point values"
        return f"{8 * self.size}-bit {'integers' if self.kind == INTEGER else f'{self.kind} values'}"


def type_in_cpp(in_ptx, target, text):
    """Return the ElementType of an element in CUDA C++.

    in_ptx: the ElementType of its values in PTX, which represents a bfloat16 and a pair as integers.
    target: the text of the element in the source, or "".
    text: the source that may declare the element or its array.
    """
    if in_ptx == (INTEGER, 2) and "bfloat16" in text and not SHORT_INTEGER.search(text):
        return ElementType(FLOAT, 2)
    return ElementType(PAIR, 4) if in_ptx == (INTEGER, 4) and is_pair(target, text) else in_ptx


def is_pair(target, text):
    """Return whether an element is a pair of 16-bit floating-point values, as far as the source shows it."""
    names = re.findall(r"[^\W\d]\w*", re.sub(r"\[[^][]*\]", "", target))
    if not names:
        return False
    declared = rf"{PAIR_TYPE}(?:\s*(?:const\b|volatile\b|__restrict__\b|[*&]))*\s*{names[-1]}\b"
    cast = rf"\b{names[-1]}\s*=[^=;]*{PAIR_TYPE}"
    changed = rf"{re.escape(target)}\s*=\s*{PAIR_CALL.pattern}"
    return any(re.search(pattern, text) for pattern in (declared, cast, changed))


def exists(language, operation, type_):
    """Return whether a language has an atomic.

    operation: a key of ATOMICS[language].
    type_: an ElementType, or None if it is unknown. The atomic then counts as existing.
    """
    return type_ is None or type_ in ATOMICS[language][operation]


def atomic(facts, operation):
    """Return the term for an atomic on the element of a race, or for a replacement if the language lacks the
    atomic.

    facts: the Facts about the race.
    operation: a key of ATOMICS, or None if only a compare-and-swap in a loop performs the update.
    """
    language, type_ = facts.language, facts.element_type
    if not exists(language, operation or "swap", type_):
        return replacement(facts, operation)
    if operation is None:
        return "{swap} in a loop"
    signed = language == CPP and type_ == (INTEGER, 8) and SIGNED_64.search(facts.text_of_function)
    return f"{{{operation}}}" + SIGNED_NOTE * bool(signed and operation in UNSIGNED_ONLY)


def replacement(facts, operation):
    """Return a term for an operation whose atomic does not exist for the type of the element."""
    language, type_ = facts.language, facts.element_type
    if operation == "sub" and exists(language, "add", type_):
        return "{add} of the negative value"
    lacks = "CUDA C++" if language == CPP else language
    without = f"({lacks} has no {{{operation or 'swap'}}} of {type_})"
    if type_.kind == COMPLEX or language == TRITON:
        return f"a lock {without}"
    if type_.kind == INTEGER and language == CPP:
        return f"cuda::atomic_ref{' in a loop' * (operation is None)} {without}"
    has_swap = (INTEGER, type_.size) in ATOMICS[language]["swap"]
    if not has_swap:
        return f"an atomic on elements of 32 bits {without}"
    if operation == "swap" or operation == "exchange" and (INTEGER, type_.size) in INTEGERS:
        return f"{{{operation}}} of the bits of the value {without}"
    return f"{{swap}} of the bits of the value, in a loop {without}"


def atomic_load(facts):
    """Return the term for an atomic load of the element of a race (Facts)."""
    language, type_ = facts.language, facts.element_type
    if exists(language, "add", type_):
        return "an atomic ({add} of 0)"
    if language == CPP:
        read = "{swap} of 0 and 0, " if exists(CPP, "swap", type_) else ""
        return (
            f"an atomic ({read}load() of cuda::atomic_ref, or ld.relaxed in inline PTX; CUDA C++ has no"
            f" {{add}} of {type_})"
        )
    return f"an atomic on elements of 32 bits ({language} has no {{add}} of {type_})"
