"""The array class that kernels use. An Array is a view of an allocation, and checks every access.

`sim.memory.accessors` contains the fast path for single elements.
"""

import functools
import itertools
import math
import operator
from dataclasses import dataclass

import numpy as np

from sim.events import ADDRESS_BITS, ADDRESS_MASK, INTEGER_POISON, LOAD, SITE_SHIFT
from sim.isa.conversions import cast, domain
from sim.memory.alignment import Alignment
from sim.memory.indices import PARTS, FromEnd, checked_integer, indices_of_part, is_integer
from sim.memory.marks import WORDS, Marks
from sim.memory.methods import MAX_FAST_RANK, Methods
from sim.memory.record import Record
from sim.memory.spaces import poison
from sim.memory.views import Views


class Array(Views, Marks, Methods):
    """A view of an allocation that behaves like an ndarray inside a kernel.

    root: the underlying bytes: those of the allocation, or the private copy of a block or thread.
    offset, strides: in bytes.
    marks: for local memory whose reads are checked, a record of the elements that the thread has written,
        otherwise None. At first, it is a list with -1 for each written element and 0 for each other element.
        When a second view shares it, it becomes a bytearray with 255 for each written byte.
    code: the size and the address of the first element, as in a log entry.
    """

    __slots__ = (
        *"allocation root offset dtype shape strides ndim size name context data cells written code".split(),
        *"shift marks writable views whole".split(),
        *(f"{letter}{axis}" for letter in "ns" for axis in range(MAX_FAST_RANK)),
    )
    wraps = True  # whether negative indices count from the end

    def __init__(self, context, allocation, root, offset, layout, name, address, marks=None):
        self.context, self.allocation, self.root, self.offset = context, allocation, root, offset
        self.dtype, self.shape, self.strides = layout.dtype, layout.shape, layout.strides
        self.ndim, self.size, self.shift, self.name = layout.ndim, layout.size, layout.shift, name
        self.writable, self.marks, self.views, self.whole = allocation.writable, marks, None, None
        self.code = (layout.shift << ADDRESS_BITS) + address
        self.__class__ = layout.array
        if layout.span is not None:
            self.prepare_fast_access(layout)

    def prepare_fast_access(self, layout):
        """Set the attributes that the fast path uses: the sizes and strides in elements, `data` and `cells`.

        `data[flat]` is an element in the type with which a kernel computes. Stores go to `cells`.
        """
        for name, value in layout.axes:
            setattr(self, name, value)
        # The elements of a view can be separated by gaps, so `span` extends from the first to the last
        # element.
        end = self.offset + layout.span
        memory = self.root if layout.span == self.root.size else self.root[self.offset : end]
        memory = memory.view(layout.dtype)
        if not self.writable:
            memory.flags.writeable = False
        # The elements of a memoryview are Python ints and bools, which represent wide signed integers and
        # booleans in a kernel. The elements of a numpy array are numpy's scalars. A memoryview rejects
        # floats, and integers that do not fit. `cast` then converts these values by the rules of the GPU,
        # whereas numpy would convert a float by the rules of the CPU.
        self.cells = memoryview(memory) if layout.whole else memory
        self.data = self.cells if layout.wide else memory
        if type(self.marks) is list:
            self.written = self.marks
        elif self.marks is not None:  # -1 means that every byte of the element has been written
            self.written = memoryview(self.marks)[self.offset : end].cast(WORDS[layout.dtype.itemsize])

    @property
    def numpy(self):
        """An ndarray over the same memory."""
        if self.whole is None:
            self.whole = np.ndarray(self.shape, self.dtype, self.root, self.offset, self.strides)
        return self.whole

    # --- the general path -----------------------------------------------------------------------------------

    def load(self, index, site):
        """Load one element, or return a view, for any kind of index. A refused load returns poison."""
        place = self.place(index, site, "read")
        if place is None:
            return domain(poison(self.dtype))
        if isinstance(place, Array):
            return place
        if self.dtype.names:
            return Record(self, place)
        self.announce(place, site)
        return domain(self.numpy[place])

    def store(self, index, value, site):
        """Store to one element, or to every element of a view. For a view, the value is a number, or an array
        with the view's shape."""
        if not self.writable:
            raise read_only_error(self)
        place = self.place(index, site, "written")
        if place is None:
            return
        if isinstance(place, Array):
            return place.store_all(value, site)
        if self.dtype.names:
            return Record(self, place).fill(value, site)
        self.announce(place, site, value)
        self.numpy[place] = cast(self.dtype)(value)

    def store_all(self, value, site):
        """Fill the array with a number, or with the elements of another array. The other array is broadcast
        as in numpy."""
        if isinstance(value, Array):
            numbers = np.empty(value.shape, object)
            numbers.flat = list(value.elements())
            value = numbers
        values = np.broadcast_to(np.asarray(value, object), self.shape).flat
        store = self.context.store[self.ndim] if 1 <= self.ndim <= MAX_FAST_RANK else None
        for place, number in zip(itertools.product(*map(range, self.shape)), values):
            if store is None:
                self.store(place, number, site)
            else:
                store(self, *place, number, site)

    def place(self, index, site, what):
        """Resolve an index to a tuple of valid integers or to a view (an Array). Return None if the access is
        refused.

        A negative index is reported but not refused, and a negative literal is not even reported.
        """
        if slice in map(type, index):
            return self.part(index)
        # Plain integers in bounds are the most common case.
        if len(index) == self.ndim and all(type(i) is int and 0 <= i < n for i, n in zip(index, self.shape)):
            return index
        if len(index) == 1 and isinstance(index[0], tuple):
            index = index[0]
        if len(index) == 1 and isinstance(index[0], str):
            return self.once(operator.itemgetter, index[0])
        if len(index) != self.ndim or any(i is Ellipsis for i in index):
            return self.part(index)
        indices = tuple(checked_integer(i, self) for i in index)
        if any(not -n <= i < n for i, n in zip(indices, self.shape)):
            if self.dtype.names:  # the element is a Record, whose fields are checked when they are accessed
                return indices
            self.context.refuse(site, what, self, indices)
            return None
        if any(i < 0 and type(given) is not FromEnd for i, given in zip(indices, index)):
            self.context.refuse(site, what, self, indices)
        return tuple(i + n if i < 0 else i for i, n in zip(indices, self.shape))

    def announce(self, place, site, value=None):
        """Log an access that did not take the fast path, and check reads of local memory."""
        if self.marks is not None:
            self.mark(place, site)
        if self.context.log is not None:
            self.context.log.append((site << SITE_SHIFT) + (self.shift << ADDRESS_BITS) + self.address(place))
            if site & 3 != LOAD:
                self.context.values.append(value)

    def address(self, place):
        """Return the simulated address of the element at index `place`."""
        return (self.code & ADDRESS_MASK) + sum(map(operator.mul, place, self.strides))

    def part(self, index):
        """Return a slice or a row. As in numpy, it is another view of the same allocation."""
        moved, axes, n = 0, [], len(index)
        for i, size, stride in zip(index, self.shape, self.strides):
            if type(i) is slice:
                start, stop, step = i.indices(size)
                axes.append((len(range(start, stop, step)), step * stride))
                moved += start * stride
            elif type(i) is int and 0 <= i < size:
                moved += i * stride
            else:
                # `unusual_part` handles every other index.
                n = math.inf
        if n > self.ndim:
            if len(index) > self.ndim and all(map(is_integer, index)):
                given = f"{self.name} has {self.ndim} dimensions, but is indexed with {len(index)} indices"
                raise IndexError(f"{given}; wanted {self.name}[{', '.join(['i'] * self.ndim) or '()'}]")
            return self.unusual_part(
                tuple(i if isinstance(i, PARTS) else checked_integer(i, self) for i in index)
            )
        axes += zip(self.shape[n:], self.strides[n:])
        shape, strides = zip(*axes)
        return self.another(moved if math.prod(shape) else 0, self.dtype, shape, strides)

    def unusual_part(self, index):
        """Return a view for an index that contains anything other than in-bounds integers and slices."""
        try:
            return self.derived(self.numpy[index])
        except IndexError:
            if sum(isinstance(i, int | slice) for i in index) > self.ndim:
                raise
            return Outside(self, indices_of_part(index, self.shape))

    def view(self, dtype):
        return reinterpreted(self.derived(self.numpy.view(getattr(dtype, "dtype", dtype))))

    def another(self, moved, dtype, shape, strides):
        """Return a view of the same allocation that begins `moved` bytes after this one."""
        self.share_marks()
        layout = layout_of(dtype, shape, strides, self.marks is not None)
        offset, address = self.offset + moved, (self.code & ADDRESS_MASK) + moved
        of_memory = self.context, self.allocation, self.root, offset
        return Array(*of_memory, layout, self.name, address, self.marks)

    # --- other operations in a kernel -----------------------------------------------------------------------

    def __getitem__(self, index):
        return self.load(index if isinstance(index, tuple) else (index,), self.context.sites.current("load"))

    def __setitem__(self, index, value):
        index = index if isinstance(index, tuple) else (index,)
        self.store(index, value, self.context.sites.current("store"))

    def __len__(self):
        return self.shape[0]

    def __iter__(self):
        site, load = self.context.sites.current("load"), self.context.load[1]
        return (load(self, i, site) for i in range(self.shape[0]))

    @property
    def itemsize(self):
        return self.dtype.itemsize

    @property
    def nbytes(self):
        return self.size * self.dtype.itemsize

    def __repr__(self):
        return f"<{self.allocation.space} array {self.name} {self.dtype}{list(self.shape)}>"


class Columns(Array):
    """An array of records whose fields are attributes.

    This is a separate class because a `__getattr__` in Array would slow down every attribute lookup.
    """

    __slots__ = ()

    def __getattr__(self, name):
        """Return the column of one field: this field of all records."""
        if name not in self.dtype.names:
            raise AttributeError(f"{self.name}, an array of {self.dtype}, has no {name}")
        return self.once(operator.itemgetter, name)


class Outside(Array):
    """An out-of-range slice or row, such as the row after the last.

    Creating the view is not an access. An access to its elements is reported as out of bounds in the array
    `of`.

    numpy: the indices of the view's elements in `of`, which are out of bounds.
    """

    __slots__ = ("of",)

    def __init__(self, of, elements):
        self.context, self.allocation, self.root = of.context, of.allocation, of.root
        self.dtype, self.name = of.dtype, of.name
        self.writable, self.views, self.whole, self.of = of.writable, None, elements, of
        self.shape, self.ndim, self.size = elements.shape, elements.ndim, elements.size
        self.strides, self.offset, self.code, self.shift = elements.strides, of.offset, of.code, of.shift
        for axis in range(MAX_FAST_RANK):
            setattr(self, f"n{axis}", 0)  # no index is in bounds, so the fast path never applies

    def place(self, index, site, what):
        place = super().place(index, site, what)
        if type(place) is tuple:
            self.context.refuse(site, what, self.of, self.whole[place])
        return place if isinstance(place, Array) else None

    def derived(self, array):
        return Outside(self.of, array)

    def part(self, index):
        return self.derived(self.whole[index])


class Reinterpreted(Array):
    """A view whose elements differ in type from those of the array, so that they may be misaligned. Views
    of such a view are Reinterpreted, too."""

    __slots__ = ()

    def place(self, index, site, what):
        place = super().place(index, site, what)
        if type(place) is tuple and not self.dtype.names:
            needs, address = self.dtype.alignment, self.address(place)
            access = self.allocation, address, self.itemsize, needs, site, what
            if Alignment.of(self.context).refuses("an access", *access, poison=INTEGER_POISON):
                return None
        return place

    def another(self, moved, dtype, shape, strides):
        # Numba does not require an alignment for the fields of packed records.
        packed = self.dtype.names and not self.dtype.isalignedstruct
        view = super().another(moved, dtype, shape, strides)
        return view if packed else reinterpreted(view)


class ReinterpretedColumns(Reinterpreted, Columns):
    """A Reinterpreted view whose elements are records."""

    __slots__ = ()


def reinterpreted(view):
    """Return a view, and make it a Reinterpreted unless all its elements are certainly aligned."""
    needs = view.dtype.alignment
    if any(n % needs for n in (view.address(()), view.allocation.alignment, *view.strides)):
        view.__class__ = ReinterpretedColumns if view.dtype.names else Reinterpreted
    return view


FAST, WATCHED = (
    {rank: type(f"{name}{rank}", (Array,), {"__slots__": ()}) for rank in range(1, MAX_FAST_RANK + 1)}
    for name in ("Array", "Watched")  # Watched: arrays in local memory that have `marks`
)


@dataclass(frozen=True)
class Layout:
    """The properties shared by all arrays with the same dtype, shape and strides.

    array: the class of the arrays.
    span: the number of bytes from the first element to the end of the last element, or None if there is no
        fast path.
    axes: pairs (name, value) for the attributes with sizes and strides in elements.
    whole: whether the elements are integers or booleans.
    wide: whether a Python int or bool represents an element.
    """

    dtype: np.dtype
    shape: tuple
    strides: tuple
    ndim: int
    size: int
    shift: int
    array: type
    span: int | None = None
    axes: tuple = ()
    whole: bool = False
    wide: bool = False


@functools.lru_cache(4096)
def layout_of(dtype, shape, strides, watched):
    """Return the Layout for arrays of this kind.

    watched: whether the arrays are local memory with marks.
    """
    dtype = np.dtype(dtype.str) if dtype.kind in "iu" else dtype  # numpy's longlong becomes int64
    itemsize, rank, size = dtype.itemsize, len(shape), math.prod(shape)
    shift = itemsize.bit_length() - 1
    of_array = dtype, shape, strides, rank, size, shift
    if not (
        1 <= rank <= MAX_FAST_RANK
        and size
        and all(s >= 0 and s % itemsize == 0 for s in strides)
        and itemsize == 1 << shift
        and (itemsize <= 8 or not watched)
        and not dtype.names
    ):
        return Layout(*of_array, Columns if dtype.names else Array)
    span = itemsize + sum((n - 1) * s for n, s in zip(shape, strides))
    axes = [(f"n{axis}", n) for axis, n in enumerate(shape)]
    axes += [(f"s{axis}", s // itemsize) for axis, s in enumerate(strides)]
    wide = dtype.kind == "b" or dtype.kind == "i" and itemsize >= 4
    made = (WATCHED if watched else FAST)[rank]
    return Layout(*of_array, made, span, tuple(axes), dtype.kind in "biu", wide)


def array_at(context, allocation, offset, dtype, shape, strides, name):
    """Return a view of an allocation that begins `offset` bytes after its first byte."""
    layout = layout_of(dtype, tuple(shape), tuple(strides), False)
    return Array(context, allocation, allocation.root, offset, layout, name, allocation.base + offset)


def read_only_error(array):
    """Return the error for a write to a read-only array."""
    what = "constant" if array.allocation.space == "const" else "a read-only array"
    return TypeError(f"{array.name} is {what}: a kernel may only read it")
