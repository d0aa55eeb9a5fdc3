"""The events of a launch that order its threads, and happens-before orders that are computed from these
events on demand."""

# The maximum number of events that are kept for orders computed on demand. Each event takes about 200 bytes.
MAX_WAITING = 1 << 18


class EventLog:
    """The events that order threads, each as (name of a method of HappensBefore, its arguments ...).

    limit: the number of events that are kept while no order is registered.
    count: the number of events so far.
    """

    def __init__(self, limit):
        self.limit, self.count, self.events, self.orders = limit, 0, [], []

    def add(self, event):
        """Add an event."""
        self.count += 1
        if self.orders:
            self.events.append(event)
            if len(self.events) >= MAX_WAITING:
                self.clear()
        elif len(self.events) < self.limit:
            self.events.append(event)

    def clear(self):
        """Pass all events to the orders, and drop them."""
        for order in self.orders:
            order.current()
            order.done = 0
        self.events.clear()


class OnDemand:
    """A HappensBefore that receives the events of a log only when the order is needed.

    Create it before the log drops any event.
    """

    def __init__(self, log, order):
        self.log, self.order, self.done = log, order, 0
        log.orders.append(self)

    def current(self):
        """Return the order of all events so far."""
        for name, *facts in self.log.events[self.done :]:
            getattr(self.order, name)(*facts)
        self.done = len(self.log.events)
        return self.order
