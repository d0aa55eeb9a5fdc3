"""A proof that searches of memory never end, such as the searches for a free slot in a full hash table.

The comparison of threads (sim.progress) runs until each thread has returned to an earlier state. With
thousands of threads and slots, this takes longer than the time limit of a loop. This proof needs fewer
iterations, because threads with the same state share them: if one thread has moved from slot 3 to slot 4,
and memory has not changed, then every other thread at slot 3 moves to slot 4, too.
"""

import numpy as np

from sim.idle_variables import original_name
from sim.progress import comparable

ABSENT = object()  # replaces every key that differs from all values in memory

MOST_STATES = 1 << 16  # the maximum number of recorded states


class EndlessSearch:
    """A record of the iterations of threads, while all of them are in searches (sim.frontend.searches).

    The record begins when each thread that can run is in a search. Threads do not return to a search that
    they have left. If all of them are still in their searches at the end of the record, and no atomic has
    changed memory, memory was therefore constant during the record. The state at the start of an iteration
    then determines the state at the start of the next one. If an iteration has been recorded for each of
    these states, no thread can leave its search.
    """

    def __init__(self, context):
        self.context = context
        # whether the record can still become a proof
        self.is_possible = not (context.asynchronous or context.clustered or context.mbarriers)
        self.begin()

    def begin(self):
        """Discard the record. A new one begins when all threads are in searches."""
        self.changes, self.recording = self.context.changes, False
        self.searching = {}  # thread -> (the result of `place_of`, its Search)
        self.states = {}  # thread -> the state at the start of its current iteration
        self.successors = {}  # state -> the state at the start of the next iteration, or None
        self.values = {}  # view of an array -> its values (see `contents`)
        self.unknown = 0  # the number of states whose successor is None
        self.wait = 0  # the number of iterations before the threads are examined again

    def is_endless(self, site, frame):
        """Record that the current thread starts an iteration of the loop at `site`, in `frame`.

        Return whether the record proves that no thread can leave its search.
        """
        context, thread = self.context, self.context.thread
        if not self.is_possible or site not in context.searches:
            self.is_possible = False
            return False
        search = context.searches[site]
        place = place_of(frame, search), search
        if self.changes != context.changes or self.searching.get(thread, place) != place:
            self.begin()
        self.searching[thread] = place
        if self.recording:
            self.record(thread, state_of(site, frame, search, self.contents))
        elif self.is_time() and self.all_search():
            self.recording = True
        known = self.recording and not self.unknown and len(self.states) == len(self.searching)
        return self.is_possible and known and self.is_time() and self.all_search()

    def record(self, thread, state):
        """Store the state at the start of a thread's iteration, as the successor of the previous state."""
        previous, self.states[thread] = self.states.get(thread), state
        if state not in self.successors:
            self.successors[state] = None
            self.unknown += 1
        if previous is not None:
            self.unknown -= self.successors[previous] is None
            self.is_possible = self.successors[previous] in (None, state)
            self.successors[previous] = state
        self.is_possible &= state is not None and len(self.successors) <= MOST_STATES

    def contents(self, array):
        """Return the set of the values in an array at the beginning of the record."""
        view = id(array.root), array.offset, array.shape, array.dtype
        if view not in self.values:
            self.values[view] = set(array.numpy.ravel().tolist())
        return self.values[view]

    def is_time(self):
        """Return whether it is time to examine all threads: once every len(self.searching) iterations."""
        self.wait -= 1
        if self.wait > 0:
            return False
        self.wait = len(self.searching)
        return True

    def all_search(self):
        """Return whether each thread that can run is in a search, and no further block can start."""
        context = self.context
        if context.pending and len(context.live) < context.resident:
            return False
        for block in context.live:
            runnable = {*block.round, *block.ready}
            for thread in block.threads:
                is_waiting = thread.waits not in (None, "turn") and thread not in runnable
                if thread.done or thread is context.thread or is_waiting:
                    continue
                place, search = self.searching.get(thread, (None, None))
                is_inside = place is not None and place_of(thread.frame, search) == place
                if not is_inside or thread.frame.f_lineno not in search.lines:
                    return False
        return True


def place_of(frame, search):
    """Return a value that changes when a thread leaves its search and returns to it."""
    values = frame.f_locals.items() if search.around else ()
    return frame, *(value for name, value in values if original_name(name) in search.around)


def state_of(site, frame, search, contents):
    """Return the values that determine what an iteration does, as one tuple that can be compared. Return None
    if one of them is an object of an unknown kind.

    A key that differs from all values in memory is replaced by ABSENT, because all such keys have the same
    effect.

    contents: a function that returns the set of values in an array.
    """
    values, state = frame.f_locals, [site]
    for name, value in values.items():
        original = original_name(name)  # the rewriter may have split a variable by its types
        if original in search.keys:
            state += (
                name,
                ABSENT if is_absent(value, search.keys[original], values, contents) else comparable(value),
            )
        elif original not in search.names:
            continue
        elif isinstance(value, int | float | complex | np.generic):
            state += name, comparable(value)
        elif hasattr(value, "allocation"):
            state += name, id(value.root), value.offset, value.shape, value.dtype
        else:
            return None
    return tuple(state)


def is_absent(key, places, values, contents):
    """Return whether a key certainly differs from all values that the loop compares with it.

    places: the pairs (array, variable) of the key in `Search.keys`.
    values: the thread's variables.
    """
    if type(key) is not int:
        return False
    arrays = [values.get(array) for array, _ in places]
    if not all(hasattr(array, "allocation") and array.dtype.kind in "iu" for array in arrays):
        return False
    # Until the loop assigns a variable again, the variable may contain a value that memory no longer has.
    variables = {variable for _, variable in places}
    known = {value for name, value in values.items() if original_name(name) in variables}
    return key not in known and not any(key in contents(array) for array in arrays)
