"""Attributes and methods of Array that return another view of its memory, as in numpy."""

import operator


class Views:
    """The views of an Array. The Array provides `once`, `derived`, `numpy`, `dtype` and `name`."""

    __slots__ = ()

    # Each of these properties returns a view, so it is not an access to memory.
    @property
    def T(self):
        return self.once(operator.attrgetter, "T")

    @property
    def real(self):
        return self.once(operator.attrgetter, "real")

    @property
    def imag(self):
        if self.dtype.kind != "c":
            lacks = "has no imaginary part that is memory"
            raise TypeError(f"{self.name} is an array of {self.dtype}, and {lacks}")
        return self.once(operator.attrgetter, "imag")

    def transpose(self, *axes):
        return self.derived(self.numpy.transpose(*axes))

    def reshape(self, *shape):
        return self.derived(self.numpy.reshape(*shape, copy=False))

    def ravel(self):
        return self.derived(self.numpy.reshape(-1, copy=False))

    def view(self, dtype):
        return self.derived(self.numpy.view(getattr(dtype, "dtype", dtype)))
