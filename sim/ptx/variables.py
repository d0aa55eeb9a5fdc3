"""The `__constant__` and `__device__` variables of a module, which the host can set and read.

As on a GPU, their bytes and addresses persist between launches. A launch reads what earlier launches have
stored, and pointers to variables remain valid.
"""

import re
import weakref
from collections.abc import Callable, Iterator, MutableMapping
from math import prod
from typing import Any

import ml_dtypes
import numpy as np

from sim.errors import LaunchError
from sim.memory.argument import host_array
from sim.ptx.heap_state import HeapState
from sim.ptx.origin import evaluate, plain_name, without_comments
from sim.ptx.pointers import PinnedArrays
from sim.ptx.regions import ADDRESSES

KEYWORDS = {"const": "__constant__", "global": "__device__"}
PLACES = {"const": "constant", "global": "variable"}  # the attributes of a Module for each state space
# type in the source -> numpy dtype
SIGNED = {"char": "i1", "short": "i2", "int": "i4", "long": "i8", "ptrdiff_t": "i8"}
OTHERS = {"bool": "?", "float": "f4", "double": "f8", "half": "f2", "__half": "f2", "size_t": "u8"}
OTHERS |= {"uchar": "u1", "ushort": "u2", "uint": "u4", "ulong": "u8"}
OTHERS |= {f"{u}int{8 * size}_t": f"{u or 'i'}{size}" for u in ("", "u") for size in (1, 2, 4, 8)}
TYPES = {name: np.dtype(code) for name, code in (SIGNED | OTHERS).items()}
TYPES["__nv_bfloat16"] = np.dtype(ml_dtypes.bfloat16)
ATTRIBUTES = r"(?:__align__|alignas|__attribute__)\s*\((?:[^()]|\([^()]*\))*\)"


class Store:
    """The bytes of a module's variables.

    number: the number of the module, which identifies its addresses.
    roots: {name of a variable: its bytes, as uint8}.
    unset: {name of a constant variable: a mask of the bytes not set by the host}.
    pointers: {name of a variable: the initial addresses not yet written to its bytes}.
    laid_out: the names of the variables that some launch could reach. Memory may contain their addresses.
    pinned: the arrays to which pointers in memory refer (sim.ptx.pointers).
    device: the memory of a whole program (sim.runtime), which every launch can access; None by default.
    """

    def __init__(self, text: Any, origin: Any) -> None:
        self.text, self.origin = text, origin
        self.roots: dict[str, np.ndarray] = {}
        self.unset: dict[str, np.ndarray] = {}
        self.pointers: dict[str, tuple] = {}
        self.laid_out: dict[str, None] = {}  # in the order in which launches reached them
        self.heap = HeapState()
        # the most recent launch that made a SharedPointers (a weak reference), and its number
        self.tagged_launch, self.launch_number = (lambda: None), 0
        self.number, self.pinned = text.number, PinnedArrays(text.number)
        self.device: Any = None

    def add_variables(self, text: Any) -> None:
        """Make another PTX text of the same source share the variables of this module. Add the variables that
        only the other text declares to this module."""
        self.text.variables.update({**text.variables, **self.text.variables})
        text.variables = self.text.variables

    def release_at_end(self) -> None:
        """Make the addresses of the module free when it is deleted."""
        weakref.finalize(self, ADDRESSES.deleted.append, self.number).atexit = False

    def root(self, variable: Any) -> np.ndarray:
        """Return the bytes of a variable. At first, they are its initial value, or zeros as in C++."""
        if variable.name not in self.roots:
            root = self.roots[variable.name] = np.zeros(variable.bytes, np.uint8)
            self.pointers[variable.name] = variable.pointers
            if variable.initial:
                root[: len(variable.initial)] = np.frombuffer(variable.initial, np.uint8)
            elif variable.space == "const" and not self.starts_with_zeros(variable):
                self.unset[variable.name] = np.ones(variable.bytes, bool)
        return self.roots[variable.name]

    def starts_with_zeros(self, variable: Any) -> bool:
        """Return whether the initial zeros of a variable count as set by the program.

        Compilers omit an initialiser of zeros, so the PTX does not show whether there is one. A variable in a
        namespace that the source does not declare belongs to a library, and counts as set.
        """
        if self.origin.language != "C++":
            return True
        found = Declaration.find(self.origin, variable)
        return found.initialised if found else bool(self.origin.main_text) and variable.name.startswith("_Z")

    def unwritten(self, variable: Any, kernel: str) -> np.ndarray | None:
        """Return a mask of a constant variable's bytes not set by the host, or None if all are set.

        kernel: the name of the kernel that uses the variable, or "" if the variable can only be reached
            through pointers.

        Raise LaunchError if the kernel uses the variable and the host has not set any byte.
        """
        self.root(variable)
        # Only constant variables are tracked, because kernels cannot write to them.
        unset = self.unset.get(variable.name)
        if unset is None or not unset.any():
            return None
        if unset.all() and kernel:
            name, view = plain_name(variable.name), self.view(variable)
            how = f'kernels.constant["{name}"] = {describe(view)}'
            if self.device is not None:
                how = f"cudaMemcpyToSymbol({name}, source, {variable.bytes})"
            raise LaunchError(
                f"{name} is constant memory that has not been set, and {kernel} can read it: all its elements"
                f" would be 0\n  set it before the launch: {how}"
            )
        return unset

    def write_pointers(self, variable: Any, address: Callable[[Any], int]) -> None:
        """Write the addresses in a variable's initial value to its bytes. Only the first call has an effect.

        address: a function (Symbol) that returns the address.
        """
        root = self.root(variable)
        for offset, symbol in self.pointers.pop(variable.name, ()):
            root[offset : offset + 8] = np.frombuffer(address(symbol).to_bytes(8, "little"), np.uint8)

    def view(self, variable: Any) -> np.ndarray:
        """Return the variable as an array with the type and shape in the source. If these are not known,
        return its bytes."""
        root = self.root(variable)
        found = Declaration.find(self.origin, variable)
        dtype, width = found.dtype if found else by_ptx_type(variable)
        if dtype is None or root.size % (dtype.itemsize * width):
            return root
        count = root.size // (dtype.itemsize * width)
        shape = found.shape if found else (() if variable.count == 1 else None)
        if shape is None or prod(shape) != count:
            shape = (count,)
        return root.view(dtype).reshape(shape if width == 1 else (*shape, width))

    def set(self, variable: Any, value: Any) -> None:
        """Copy a value to a variable, or to its first elements. Raise LaunchError if the value does not
        fit."""
        view, name = self.view(variable), plain_name(variable.name)
        given = as_array(value, view, name)
        if given.nbytes > view.nbytes or given.ndim > 1 and given.shape != view.shape:
            raise LaunchError(f"{name} is {describe(view)}, got {describe(given)}")
        root = self.root(variable)
        root[: given.nbytes] = np.frombuffer(given.tobytes(), np.uint8)
        pointers = self.pointers.get(variable.name, ())
        # Addresses in the overwritten part of the initial value no longer apply.
        self.pointers[variable.name] = tuple(p for p in pointers if p[0] >= given.nbytes)
        if variable.name in self.unset:
            self.unset[variable.name][: given.nbytes] = False


class Declaration:
    """The declaration of a variable in the source.

    dtype: (numpy dtype of its type or None, number of vector components).
    shape: its shape, or None if the shape cannot be evaluated.
    initialised: whether it has an initialiser.
    """

    def __init__(self, dtype: tuple, shape: tuple[int, ...] | None, initialised: bool) -> None:
        self.dtype, self.shape, self.initialised = dtype, shape, initialised

    @classmethod
    def find(cls, origin: Any, variable: Any) -> "Declaration | None":
        """Return the declaration of a variable in the main file or in a header included by it, or None."""
        name = re.escape(plain_name(variable.name))
        texts = (text for text in (origin.main_text, *origin.headers) if re.search(rf"\b{name}\b", text))
        found = (cls.find_in(text, name, origin) for text in texts)
        return next((declaration for declaration in found if declaration), None)

    @classmethod
    def find_in(cls, text: str, name: str, origin: Any) -> "Declaration | None":
        """Return the declaration of a name in the text of one source file, or None."""
        text = re.sub(ATTRIBUTES, "", without_comments(text))
        for statement, end in re.findall(r"([^;{}]*)([;{}])", text):
            head, *rest = re.split(rf"\b{name}\b", statement, maxsplit=1)
            if not rest or not re.search(r"__(constant|device|managed)__", head) or "(" in head:
                continue
            dimensions, rest_of_it = re.fullmatch(r"\s*((?:\[[^\]]*\]\s*)*)(.*)", rest[0], re.S).groups()
            if rest_of_it[:1] not in ("", ",", "="):
                continue
            # C++ allows `int x = 1;` and `int x{1};`.
            initialised = rest_of_it.startswith("=") or end == "{" and not rest_of_it
            words = re.findall(r"\w+", re.split(r"[,\[=]", head)[0])
            first = head if "," not in head else head.partition(",")[0]
            pointer = "*" in head.rpartition(",")[2] or "*" in first
            # A size can be an expression of constants, such as N * 4.
            constants = origin.constants()
            shape = [evaluate(part, constants) for part in re.findall(r"\[([^\]]*)\]", dimensions)]
            whole = None if None in shape else tuple(n for n in shape if n is not None)
            return cls((np.dtype("u8"), 1) if pointer else type_of(words), whole, initialised)
        return None


def type_of(words: list[str]) -> tuple[np.dtype | None, int]:
    """Return (dtype, number of vector components) for the words of a C++ type, or (None, 1) for a
    structure."""
    unsigned, known = "unsigned" in words, [word for word in words if word in TYPES]
    for word in words:
        vector = re.fullmatch(r"(\w+?)([1-4])", word)
        if vector and vector[1] in TYPES:
            return TYPES[vector[1]], int(vector[2])
    if not known and not unsigned:
        return None, 1
    sizes = [TYPES[word] for word in known if word in SIGNED] or ([np.dtype("i4")] if unsigned else [])
    if "double" in known or not sizes:
        return TYPES[known[-1]], 1
    widest = max(sizes, key=lambda dtype: dtype.itemsize)
    if "short" in known or "char" in known:
        widest = min(sizes, key=lambda dtype: dtype.itemsize)
    return np.dtype(f"u{widest.itemsize}") if unsigned else widest, 1


def by_ptx_type(variable: Any) -> tuple[np.dtype | None, int]:
    """Return (dtype, 1) for the PTX type of a variable, or (None, 1) if several dtypes are possible."""
    kind, width = variable.type[0], variable.type[1:]
    if kind not in "uf" or width not in ("8", "16", "32", "64"):
        return None, 1
    return np.dtype(f"{'i' if kind == 'u' else kind}{int(width) // 8}"), 1


def describe(array: np.ndarray) -> str:
    """Return the type and shape of an array in words, for messages."""
    if array.ndim == 0:
        return f"one {array.dtype}"
    return f"an array of {array.dtype} with shape {array.shape}"


def as_array(value: Any, view: np.ndarray, name: str) -> np.ndarray:
    """Return a value as a contiguous array of the variable's type. Raise LaunchError if it has another
    type."""
    if isinstance(value, bytes):
        return np.frombuffer(value, np.uint8)
    given = value if isinstance(value, np.generic) else host_array(value, name)
    if given is not None:
        given = np.ascontiguousarray(given).reshape(np.shape(given))
        whole = {given.dtype.kind, view.dtype.kind} <= set("iu")
        alike = given.dtype.itemsize == view.dtype.itemsize if whole else given.dtype == view.dtype
        if alike or view.dtype == np.uint8 and view.ndim == 1:
            return given
        raise LaunchError(
            f"{name} is {describe(view)}, got {describe(given)}; pass {name}.astype(numpy.{view.dtype})"
        )
    try:
        given = np.asarray(value)
        if given.dtype.kind not in "biuf" or given.dtype.kind == "f" and view.dtype.kind in "iu?":
            raise TypeError(f"{given.dtype} cannot be stored there")
        return np.array(value, view.dtype)
    except (TypeError, ValueError, OverflowError) as error:
        raise LaunchError(f"{name} is {describe(view)}, got {value!r}: {error}") from None


class Variables(MutableMapping[str, np.ndarray]):
    """The variables of a module in one state space, "const" or "global". The keys are the names in the
    source.

    `variables[name]` is an array, which has no dimensions if the variable is a single number. The array shows
    the stores of kernels, and the host can modify it in place. For constant memory, it is a copy.
    `variables[name] = value` sets the variable.
    """

    def __init__(self, store: Store, space: str) -> None:
        self.store, self.space = store, space

    def __getitem__(self, name: str) -> np.ndarray:
        variable = self.find(name)
        view = self.store.view(variable)
        if self.space == "global":
            return view
        unset = self.store.unset.get(variable.name)
        if unset is not None and unset.all():
            raise LaunchError(f"{name}, which is {describe(view)}, has not been set")
        view = view.copy()
        view.flags.writeable = False  # a change of the copy would not set the variable
        return view

    def __setitem__(self, name: str, value: Any) -> None:
        self.store.set(self.find(name), value)

    def __delitem__(self, name: str) -> None:
        """Restore the initial value of the variable."""
        variable = self.find(name)
        self.store.root(variable)[:] = Store(self.store.text, self.store.origin).root(variable)
        self.store.pointers[variable.name] = variable.pointers
        if variable.name in self.store.unset:
            self.store.unset[variable.name][:] = True

    def __iter__(self) -> Iterator[str]:
        return iter(dict.fromkeys(plain_name(name) for name in self.source_names()))

    def __contains__(self, name: object) -> bool:
        return name in list(self)  # because __getitem__ would raise for an unset variable

    def __len__(self) -> int:
        return len(list(iter(self)))

    def __repr__(self) -> str:
        return f"<{KEYWORDS[self.space]} variables: {', '.join(self) or 'none'}>"

    def source_names(self) -> list[str]:
        """Return the PTX names of the variables declared in the source. Without a source, return the names of
        all variables."""
        found = [v for v in self.store.text.variables.values() if v.space == self.space]
        text = without_comments(self.store.origin.main_text)
        names = set(re.findall(r"\w+", text))
        return [v.name for v in found if not text or plain_name(v.name) in names]

    def find(self, name: str) -> Any:
        """Return the variable with this name in the source or in PTX. Raise LaunchError unless there is
        exactly one such variable."""
        variables = self.store.text.variables
        alike = [v for key, v in variables.items() if key == name] or [
            v for key, v in variables.items() if plain_name(key) == name
        ]
        mine = [v for v in alike if v.space == self.space]
        if len(mine) == 1:
            return mine[0]
        if mine:
            names = ", ".join(v.name for v in mine)
            raise LaunchError(f"several {KEYWORDS[self.space]} variables are called {name}: {names}")
        other = next((v.space for v in alike if v.space in PLACES), None)
        if other:
            raise LaunchError(f'{name} is a {KEYWORDS[other]} variable: kernels.{PLACES[other]}["{name}"]')
        raise LaunchError(
            f"the module has no {KEYWORDS[self.space]} variable {name!r}; it has {', '.join(self) or 'none'}"
            "\n  a compiler omits variables that no kernel uses; the variables of a template exist after"
            ' kernels["name<...>"]'
        )
