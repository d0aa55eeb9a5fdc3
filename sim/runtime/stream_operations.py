"""Execution of the operations of a program's streams, with a search for races between operations."""

from collections import Counter

from sim.events import STORE
from sim.runtime.footprints import Footprint
from sim.runtime.stream_races import FORGOTTEN, Operation

NOT_RECORDED = "races between streams, or between nodes of a graph, were searched for in some launches only"
FIX = (
    "let this stream wait (cudaEventRecord after the other operation, then cudaStreamWaitEvent), or issue"
    " both operations in one stream"
)


def execute(device, action):
    """Execute the current operation of a stream, and report its conflicts with other operations. Return its
    error code."""
    if not device.streams.may_overlap():
        return action()
    (stream, number), outer = device.streams.current, device.graphs.footprint
    before = Counter(device.streams.clocks[stream])
    site, mine = device.call, Footprint()
    device.graphs.footprint = mine
    code = action()
    device.graphs.footprint, device.call = outer, site
    for conflict in device.races.add(device.streams, Operation(stream, number, before, mine, site)):
        what = device.memory.describe(conflict.address, whole=conflict.of_buffer)
        device.report("stream-race", "error", conflict.verdict(what), FIX)
    if device.races.forgotten:
        device.log.notes[FORGOTTEN] = None
    return code


def free_in_order(device, buffer, stream, action):
    """Free a buffer as an operation of a stream. It conflicts with every access not ordered before it."""
    code = use_whole_buffer(device, buffer, stream, "frees", action)
    device.races.free(buffer.base, buffer.end)
    return code


def use_whole_buffer(device, buffer, stream, verb, action):
    """Perform an action on a buffer as an operation of a stream. It conflicts with every access that is not
    ordered with it. Return its error code.

    verb: what the operation does with the buffer, as a word for the message.
    """

    def operation():
        if device.graphs.footprint is not None:
            device.graphs.footprint.add(STORE, buffer.base, buffer.root.size)
            device.graphs.footprint.verb = verb
        return action()

    return device.submit(stream, operation)
