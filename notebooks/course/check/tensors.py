"""Instruments answers in PyTorch: measures tensor sizes, memory and operations, and detects forbidden
functions."""

import sys
import weakref
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import kernels
from course.check.harness import is_theirs
from course.check.words import fail
from kernels.reference.tiled import Traffic

# Methods that move values out of PyTorch, where the check can no longer track them.
OFF = {"numpy", "tolist", "__array__", "save"}
READY_MADE = {"scaled_dot_product_attention", "softmax", "log_softmax"}
KERNELS = str(Path(kernels.__file__).parent)
YOURS = "Write this function yourself, or use what you wrote in earlier exercises."
IN_PYTORCH = "Compute with torch: the check cannot measure the memory of arrays outside PyTorch."
AUTOGRAD = {"backward", "grad", "requires_grad_"}


@dataclass
class Seen:
    """Measurements of an answer: elements of the largest tensor that it created, maximum number of elements
    alive at once, and number of operations."""

    largest: int = 0
    shape: tuple = ()
    alive: dict = field(default_factory=dict)  # storage -> (elements, number of live tensors that share it)
    kept: int = 0
    operations: int = 0
    called: list = field(default_factory=list)
    looks_away: bool = False

    def made(self, tensor):
        there = tensor.untyped_storage().nbytes() // tensor.element_size()
        # A view created by expand() stores fewer elements than its shape says.
        made = min(tensor.numel(), there)
        if made > self.largest:
            self.largest, self.shape = made, tuple(tensor.shape)
        place = tensor.untyped_storage().data_ptr()
        numbers, count = self.alive.get(place, (there, 0))
        self.alive[place] = numbers, count + 1
        self.kept = max(self.kept, sum(numbers for numbers, _ in self.alive.values()))
        weakref.finalize(tensor, self.gone, place)

    def gone(self, place):
        numbers, count = self.alive.get(place, (0, 1))
        if count > 1:
            self.alive[place] = numbers, count - 1
        else:
            self.alive.pop(place, None)


class DispatchMode(TorchDispatchMode):
    """Torch dispatch mode that `torch.compile` does not have to skip.

    For a mode that it has to skip, PyTorch imports torch._dynamo at the first operation, which takes seconds,
    and makes every later operation slower.
    """

    @classmethod
    def _should_skip_dynamo(cls):
        return False


class Results(DispatchMode):
    """Torch dispatch mode that records every tensor that an operation returns."""

    def __init__(self, seen):
        super().__init__()
        self.seen = seen

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        if self.seen.looks_away:
            return result
        self.seen.operations += 1
        for tensor in tree_leaves(result):
            if isinstance(tensor, torch.Tensor):
                self.seen.made(tensor)
        return result


class Calls(TorchFunctionMode):
    """Torch function mode that records the name of every PyTorch function before it runs."""

    def __init__(self, seen):
        super().__init__()
        self.seen = seen

    def __torch_function__(self, function, types, args=(), kwargs=None):
        if not self.seen.looks_away:
            self.seen.called.append(getattr(function, "__name__", str(function)))
        return function(*args, **(kwargs or {}))


WATCHING = []


@contextmanager
def watched():
    """Measure the enclosed code and yield a `Seen`. Tensors that existed before do not count."""
    seen = Seen()
    WATCHING.append(seen)
    try:
        with Calls(seen), Results(seen):
            yield seen
    finally:
        WATCHING.remove(seen)


@contextmanager
def global_memory():
    """Exclude the enclosed operations from the counts.

    These operations belong to the course's model of global memory, not to the answer.
    """
    before = [seen.looks_away for seen in WATCHING]
    for seen in WATCHING:
        seen.looks_away = True
    try:
        yield
    finally:
        for seen, was in zip(WATCHING, before, strict=True):
            seen.looks_away = was


@contextmanager
def record_calls(functions, allowed=None):
    """Yield the names of those Python functions in `functions` that the enclosed code calls. If `allowed` is
    given, also yield the functions of `kernels` that the learner's code calls, except those in `allowed`."""
    names, called = {function.__code__: function.__qualname__ for function in functions}, []
    free = {function.__code__ for function in (Traffic.load, Traffic.store, *(allowed or ()))}

    def note(frame, event, _):
        if event != "call":
            return
        code = frame.f_code
        if code in names:
            called.append(names[code])
        elif allowed is not None and code not in free and is_from_kernels(frame):
            called.append(f"{frame.f_globals['__name__']}.{code.co_name}")

    watching = names or allowed is not None
    before = sys.getprofile()
    sys.setprofile(note if watching else before)
    try:
        yield called
    finally:
        sys.setprofile(before)


def is_from_kernels(frame):
    """Return whether a frame is a call from the learner's code into the package `kernels`."""
    return frame.f_code.co_filename.startswith(KERNELS) and is_theirs(frame.f_back)


def within(
    answer,
    given,
    *,
    call,
    largest=None,
    kept=None,
    operations=None,
    refused=(),
    ready_made=(),
    allowed=None,
    hint=None,
):
    """Return answer(*given), and reject the answer if it modifies its inputs or exceeds a limit.

    If a limit is set, values must not leave PyTorch (through numpy or tolist).

    largest: maximum number of elements in one new tensor.
    kept: maximum number of elements alive at once, or a function that computes it from the result.
    operations: maximum number of PyTorch operations.
    refused: names of PyTorch functions that must not be called.
    ready_made: functions of the course that must not be called.
    allowed: functions of `kernels` that the answer may call; all others are rejected. None allows all.
    """
    tensors = [getattr(value, "hidden", value) for value in tree_leaves(given)]
    before = [value.clone() if isinstance(value, torch.Tensor) else value for value in tensors]
    with watched() as seen, record_calls(ready_made, allowed) as ours:
        result = answer(*given)
    code = getattr(answer, "__code__", None)
    if allowed is not None and code and code.co_filename.startswith(KERNELS):
        ours.insert(0, f"{answer.__module__}.{code.co_name}")  # the answer is the package's function itself
    kept = kept(result) if callable(kept) else kept
    bounded = largest or kept or operations
    for name in ours:
        fail(f"it calls {name}, which is the package's own solution", call=call, hint=YOURS)
    for name in seen.called:
        if name in refused or (bounded and name in OFF):
            why = hint if name in refused else IN_PYTORCH
            fail(f"it calls {name}, which this exercise does not allow", call=call, hint=why)
    if largest is not None and seen.largest > largest:
        fail(
            f"it creates a tensor of shape {seen.shape} with {seen.largest:,} elements; at most"
            f" {largest:,} are needed",
            call=call,
            hint=hint,
        )
    if kept is not None and seen.kept > kept:
        fail(f"it keeps {seen.kept:,} elements in memory at once; {kept:,} are enough", call=call, hint=hint)
    if operations is not None and seen.operations > operations:
        fail(
            f"it uses {seen.operations:,} PyTorch operations; {operations:,} are enough for any"
            " number of rows",
            call=call,
            hint=hint,
        )
    unchanged(tensors, before, call)
    return result


def unchanged(now, before, call):
    """Reject an answer that modified its arguments."""
    for number, (mine, old) in enumerate(zip(now, before, strict=True)):
        if isinstance(old, torch.Tensor) and not torch.equal(
            mine.nan_to_num(nan=7.25), old.nan_to_num(nan=7.25)
        ):
            fail(
                f"it modified its input number {number + 1}",
                call=call,
                hint="*=, += and methods ending in _ modify a tensor in place; x = x * y creates one.",
            )


MULTIPLIES = {
    *("mul", "mul_", "div", "div_", "addcmul", "addcmul_", "addcdiv", "addcdiv_", "pow", "pow_", "square"),
    *("dot", "vdot", "mv", "addmv", "addr", "ger", "outer", "prod", "cumprod"),
}


class Products(DispatchMode):
    """Counter of matrix products, their multiply-adds and the diagonals that are read.

    `deepest` is the largest inner size of a product. `others` has the names of other multiplications of
    floats.
    """

    def __init__(self):
        super().__init__()
        self.products, self.of_matrices, self.others = 0, 0, []
        self.deepest, self.diagonals = 0, 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result, name = function(*args, **(kwargs or {})), function.overloadpacket.__name__
        if name in ("mm", "bmm", "addmm", "baddbmm"):
            self.products += len(result) if result.ndim == 3 else 1
            self.of_matrices += result.numel() * args[-2].shape[-1]
            self.deepest = max(self.deepest, args[-2].shape[-1])
        if name in ("diagonal", "diagonal_copy", "diag", "trace"):
            self.diagonals += 1
        if name in MULTIPLIES and result.is_floating_point():
            self.others.append(name)
        return result


class OffChip:
    """A tensor in global memory, which exposes its shape and dtype. Only `traffic.load` returns its
    values."""

    def __init__(self, tensor):
        self.hidden = tensor

    shape = property(lambda self: self.hidden.shape)
    dtype = property(lambda self: self.hidden.dtype)
    device = property(lambda self: self.hidden.device)
    ndim = property(lambda self: self.hidden.ndim)
    new_full = property(lambda self: self.hidden.new_full)
    new_zeros = property(lambda self: self.hidden.new_zeros)
    new_empty = property(lambda self: self.hidden.new_empty)
    new_tensor = property(lambda self: self.hidden.new_tensor)
    new_ones = property(lambda self: self.hidden.new_ones)

    def __len__(self):
        return len(self.hidden)

    def size(self, *axis):
        return self.hidden.size(*axis)

    def numel(self):
        return self.hidden.numel()

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        # These functions create another array in global memory.
        if function in (torch.empty_like, torch.zeros_like, torch.full_like):
            inner = [value.hidden if isinstance(value, cls) else value for value in args]
            with global_memory():
                return cls(function(*inner, **(kwargs or {})))
        fail(f"it calls {function.__name__} on a whole array in global memory", hint=BY_TILES)

    def __getattr__(self, name):
        fail(f"it accesses .{name} of a whole array in global memory", hint=BY_TILES)

    def refuse(self, *_):
        fail(
            "it computes on a whole array in global memory, or takes a part of it without traffic.load",
            hint=BY_TILES,
        )

    __getitem__ = __setitem__ = __matmul__ = __rmatmul__ = __mul__ = __rmul__ = __add__ = __radd__ = (
        __sub__
    ) = __truediv__ = __iter__ = __array__ = refuse


BY_TILES = (
    "An array in global memory can only be loaded from and stored to: traffic.load(array, rows),"
    " traffic.store(array, rows, tile)."
)


class Counted(Traffic):
    """Traffic between OffChip tensors and the chip. `loads` counts the loaded tiles."""

    loads = 0

    def load(self, array, rows):
        self.loads += 1
        with global_memory():
            tile = super().load(unwrap(array), rows)
        for seen in WATCHING:
            seen.made(tile)
        return tile

    def store(self, array, rows, tile):
        with global_memory():
            super().store(getattr(array, "hidden", array), rows, tile)


def unwrap(array):
    """Return the tensor inside an OffChip. A plain tensor is already on the chip and is returned
    unchanged."""
    if not isinstance(array, OffChip):
        fail("it loads from an array that is not in global memory", hint=BY_TILES)
    return array.hidden
