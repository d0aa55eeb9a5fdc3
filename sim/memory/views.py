"""Attributes and methods of Array that return another view of its memory, as in numpy."""

import operator


class Views:
    """The views of an Array. The Array provides `another`, `numpy`, `dtype`, `size`, `views` and `name`."""

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
            lacks = "has no imaginary part in memory"
            raise TypeError(f"{self.name} is an array of {self.dtype}, and {lacks}")
        return self.once(operator.attrgetter, "imag")

    def transpose(self, *axes):
        return self.derived(self.numpy.transpose(*axes))

    def reshape(self, *shape):
        return self.derived(self.numpy.reshape(*shape, copy=False))

    def ravel(self):
        return self.derived(self.numpy.reshape(-1, copy=False))

    def derived(self, array):
        """Return an Array for an ndarray over the memory of this Array."""
        # numpy may place an empty array at any address.
        moved = array.ctypes.data - self.numpy.ctypes.data if array.size else 0
        return self.another(moved, array.dtype, array.shape, array.strides)

    def once(self, getter, name):
        """Return the view that `getter(name)` selects, where `getter` is a function of the module `operator`.

        Views are cached, because a kernel reads the column of a field again on each access.
        """
        views, key = self.views, (getter, name)
        if views is None:
            views = self.views = {}
        if key not in views:
            views[key] = self.derived(getter(name)(self.numpy))
        return views[key]
