"""One element of an array of records."""

import operator

from sim.memory.methods import MAX_FAST_RANK


class Record:
    """One element of an array of records. Its fields are elements of the array's columns, and are loaded when
    they are used."""

    def __init__(self, array, place):
        # `__setattr__` stores to a field, so set the attributes of the object directly.
        vars(self).update(_array=array, _place=place)

    def __getattr__(self, name):
        return self.load(name, self._array.context.sites.current("load"))

    def __setattr__(self, name, value):
        self.store(name, value, self._array.context.sites.current("store"))

    def __getitem__(self, field):
        return self.load(field, self._array.context.sites.current("load"))

    def __setitem__(self, field, value):
        self.store(field, value, self._array.context.sites.current("store"))

    def load(self, field, site):
        """Load a field, given its name or its position."""
        column, place = self.column(field), self._place
        if 1 <= len(place) <= MAX_FAST_RANK:
            return column.context.load[len(place)](column, *place, site)
        return column.load(place, site)

    def store(self, field, value, site):
        column, place = self.column(field), self._place
        if 1 <= len(place) <= MAX_FAST_RANK:
            return column.context.store[len(place)](column, *place, value, site)
        return column.store(place, value, site)

    def column(self, field):
        known = (self._array.views or {}).get((operator.itemgetter, field))
        return self.checked_column(field) if known is None else known

    def checked_column(self, field):
        names = self._array.dtype.names
        name = names[field] if isinstance(field, int) else field
        if name not in names:
            found = f"{', '.join(names)}, and none called {name}"
            raise AttributeError(f"{self._array.name} has the fields {found}")
        return self._array.once(operator.itemgetter, name)

    def fill(self, value, site):
        """Store to every field, from another record or a tuple."""
        for position, name in enumerate(self._array.dtype.names):
            self.column(name).store(self._place, value[position], site)
