"""A quick test that shows, for most accesses near asynchronous copies, that the copies have already ended.

The search in sim.observers.copies compares one access with one copy at a time. This test compares arrays of
accesses and copies. The search examines only the accesses for which this test has no result.
"""

from typing import NamedTuple

import numpy as np

from sim.events import Moment

SEGMENT_BITS = 40  # the maximum number of bits of a segment's number
ENDLESS = np.iinfo(np.int64).max  # an epoch greater than all others, in place of sim.observers.copies.NEVER


class Moments(NamedTuple):
    """Moments of threads of one block, as parallel arrays."""

    epoch: np.ndarray
    thread: np.ndarray
    segment: np.ndarray

    def __getitem__(self, selection):
        return Moments(*(column[selection] for column in tuple(self)))


class Settled:
    """The copies to and from several places in memory by one block, as parallel arrays.

    block: the index of the block.
    places: a list of Successive, one for each place.
    order: the HappensBefore of the launch.
    """

    def __init__(self, block, places, order):
        self.block, self.order = block, order
        flights = [flight for copies in places for flight in copies.flights]
        place = np.repeat(np.arange(len(places)), [len(copies.flights) for copies in places])
        begins = [flight.begin for flight in flights]
        self.begins = Moments(*(np.array([getattr(at, name) for at in begins]) for name in Moments._fields))
        self.keys = place << SEGMENT_BITS | self.begins.segment
        self.firsts = self.keys.searchsorted(np.arange(len(places)) << SEGMENT_BITS)
        self.add_ends([flight.ends for flight in flights])
        # in_turn: for each copy, whether this copy and all earlier copies to the same place began only after
        # the end of the copy before them
        later = np.flatnonzero(place[1:] == place[:-1]) + 1
        late = np.zeros(len(flights), int)
        late[later] = ~self.have_ended(later - 1, self.begins[later])
        late = np.cumsum(late)
        self.in_turn = late == late[self.firsts[place]]

    def add_ends(self, ends):
        """Store the ends of all copies. `ends` is a list with a collection of Moments for each copy."""
        find = self.order.clocks.position
        distinct = {id(at): at for one in ends for at in one}
        number = {key: number for number, key in enumerate(distinct)}
        columns = [
            (min(at.epoch, ENDLESS), at.thread if at.thread.__class__ is int else -1, at.segment, position)
            for at in distinct.values()
            for position in (find((at.block, at.thread)),)
        ]
        self.counts = np.array([len(one) for one in ends])
        self.first_ends = np.cumsum(self.counts) - self.counts
        self.numbers = np.array([number[id(at)] for one in ends for at in one] + [0])
        self.ends = np.array(columns or [(0, 0, 0, 0)], np.int64).T

    def are_over(self, places, moments):
        """Return a mask: for each Moment, whether all earlier copies to a place have certainly ended. False
        means that the copies have to be examined one by one.

        places: the index of the place for each Moment.
        moments: the Moments.
        """
        last = self.keys.searchsorted(places << SEGMENT_BITS | moments.segment) - 1
        result = last < self.firsts[places]
        left = np.flatnonzero(~result)
        left = left[self.in_turn[last[left]]]
        result[left] = self.have_ended(last[left], moments[left])
        return result

    def have_ended(self, copies, moments):
        """Return a mask: for each Moment, whether a copy has ended before it.

        copies: the index of the copy for each Moment.
        moments: the Moments.
        """
        result, groups = np.zeros(len(copies), bool), {}
        _, first, number = np.unique(moments.segment, return_index=True, return_inverse=True)
        columns = (column[first].tolist() for column in moments)
        for at, row in enumerate(zip(*columns)):
            clocks = self.order.clocks_at(Moment(self.block, *row))
            groups.setdefault(tuple(map(id, clocks)), (clocks, []))[1].append(at)
        # There are few groups of Moments with equal clocks, because threads that pass a barrier share their
        # clocks.
        group = np.empty(len(first), int)
        for i, (_, members) in enumerate(groups.values()):
            group[members] = i
        ordered = np.argsort(group[number], kind="stable")
        ends = np.cumsum(np.bincount(group[number], minlength=len(groups)))
        for (clocks, _), chosen in zip(groups.values(), np.split(ordered, ends[:-1])):
            result[chosen] = self.are_ended(copies[chosen], moments[chosen], clocks)
        return result

    def are_ended(self, copies, moments, clocks):
        """Return the mask of `have_ended` for Moments of threads that have all acquired `clocks`."""
        result = np.zeros(len(copies), bool)
        known = max((clock.get(self.block, -1) for clock in clocks), default=-1)
        for number in range(self.counts[copies].max(initial=0)):
            exists = number < self.counts[copies]
            epoch, thread, segment, position = self.ends[
                :, self.numbers[self.first_ends[copies] + number * exists]
            ]
            acquired = (moments.epoch > epoch) | (epoch < known)
            acquired |= segment <= self.order.clocks.bounds(clocks, position)
            own = moments.thread == thread
            result |= exists & np.where(own, moments.segment > segment, acquired)
        return result
