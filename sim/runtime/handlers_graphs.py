"""Runtime functions for graphs: stream capture, explicit nodes, and launches of graphs.

The parameters of each function are the Device and the C arguments, with pointers as integers. It returns an
error code.

A launch executes the operations in the order in which they were captured or added, except that each operation
follows its dependencies. The first launch also records the memory that unordered operations access, and
reports each pair of these operations that accesses the same bytes.

Source: CUDA Runtime API, "Graph Management" and "Stream Management".
"""

import ctypes
import struct
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from sim.runtime.call_sites import CallSite
from sim.runtime.errors import CAPTURE_INVALIDATED, CAPTURE_UNJOINED, ILLEGAL_STATE, INVALID_VALUE, SUCCESS
from sim.runtime.footprints import VERBS, Footprint, before, unordered
from sim.runtime.handlers_copies import copy, copy_region, read_region, set_rows
from sim.runtime.handlers_memory import write_int, write_pointer
from sim.runtime.launches import LaunchAttributes
from sim.runtime.stream_order import AFTER_HOST

CAPTURING = 1  # cudaStreamCaptureStatusActive


@dataclass(frozen=True)
class Node:
    """An operation of a graph.

    action: the function that executes it, or None for an empty node.
    site: the host call that added it.
    after: the handles of the nodes that it depends on.
    """

    action: Callable[[], int] | None
    site: CallSite
    after: frozenset[int] = frozenset()


@dataclass
class Graph:
    """A graph, or an executable graph. Nodes are identified by their handles.

    checked: whether a launch has searched the graph for missing dependencies.
    """

    nodes: dict[int, Node] = field(default_factory=dict)
    checked: bool = False

    def in_order(self) -> dict[int, Node]:
        """Return the nodes in the order of their addition, except that each node follows its dependencies.
        Nodes on a cycle are missing."""
        done, left = {}, dict(self.nodes)
        while ready := next((h for h, node in left.items() if not node.after & left.keys()), None):
            done[ready] = left.pop(ready)
        return done


@dataclass
class Capture:
    """A graph into which streams are being captured.

    last: stream -> the nodes on which its next operation depends.
    is_valid: False after a call that made the capture invalid.
    """

    graph: Graph = field(default_factory=Graph)
    last: dict[int, frozenset[int]] = field(default_factory=dict)
    is_valid: bool = True

    def add(self, handle: int, stream: int, action: Callable[[], int], site: CallSite) -> None:
        self.graph.nodes[handle] = Node(action, site, self.last.get(stream, frozenset()))
        self.last[stream] = frozenset([handle])

    def join(self, stream: int, nodes: frozenset[int]) -> None:
        """Make a stream's next operation depend on more nodes."""
        self.last[stream] = self.last.get(stream, frozenset()) | nodes


class Graphs:
    """The graphs of a program, and the streams that are capturing."""

    def __init__(self) -> None:
        self.graphs: dict[int, Graph] = {}
        self.capturing: dict[int, Capture] = {}  # stream -> the Capture that records its operations
        # event recorded during a capture -> the capture, and the nodes that precede the event
        self.events: dict[int, tuple[Capture, frozenset[int]]] = {}
        self.footprint: Footprint | None = None  # the memory that the current node accesses


def add(device, node, graph, dependencies, count, action):
    """Append an operation to a graph, and store its handle at `node`.

    dependencies, count: an array of handles.
    """
    if graph not in device.graphs.graphs:
        return INVALID_VALUE
    handle, after = device.new_handle(), frozenset(read_handles(dependencies, count))
    device.graphs.graphs[graph].nodes[handle] = Node(action, device.call, after)
    write_pointer(node, handle)
    return SUCCESS


def read_handles(at, count):
    """Return `count` handles from host memory."""
    return struct.unpack(f"<{count}Q", ctypes.string_at(at, 8 * count)) if count else ()


def new_graph(device, pointer, graph):
    """Store the handle of a graph at `pointer`."""
    handle = device.new_handle()
    device.graphs.graphs[handle] = graph
    write_pointer(pointer, handle)
    return SUCCESS


# --- stream capture -----------------------------------------------------------------------------------------


def cudaStreamBeginCapture(device, stream, mode):
    if stream in device.graphs.capturing or stream == 0:
        return ILLEGAL_STATE
    device.graphs.capturing[stream] = Capture()
    return SUCCESS


def cudaStreamEndCapture(device, stream, pointer):
    """End a capture. Streams that joined it through events stop capturing too.

    It fails if the stream has not waited for the work of all other streams.
    """
    capture = device.graphs.capturing.get(stream)
    if capture is None:
        return ILLEGAL_STATE
    nodes = capture.graph.nodes
    joined = before({h: node.after for h, node in nodes.items()} | {None: capture.last.get(stream, ())})[None]
    code = SUCCESS if len(joined) == len(nodes) else CAPTURE_UNJOINED
    if not capture.is_valid:
        code = CAPTURE_INVALIDATED
    streams, events = device.graphs.capturing, device.graphs.events
    device.graphs.capturing = {s: c for s, c in streams.items() if c is not capture}
    device.graphs.events = {e: given for e, given in events.items() if given[0] is not capture}
    return code or new_graph(device, pointer, capture.graph)


def cudaStreamIsCapturing(device, stream, status):
    write_int(status, CAPTURING if stream in device.graphs.capturing else 0)
    return SUCCESS


# --- explicit nodes -----------------------------------------------------------------------------------------


def cudaGraphCreate(device, pointer, flags):
    return new_graph(device, pointer, Graph())


def cudaGraphAddEmptyNode(device, node, graph, dependencies, count):
    return add(device, node, graph, dependencies, count, None)


def cudaGraphAddKernelNode(device, node, graph, dependencies, count, parameters):
    action = kernel_action(device, parameters, LaunchAttributes())
    return add(device, node, graph, dependencies, count, action)


def kernel_action(device, parameters, attributes):
    """Return the action of a cudaKernelNodeParams. The action contains a copy of the parameters."""
    kernel, *sizes, shared = struct.unpack("<Q7I", ctypes.string_at(parameters, 36))
    (arguments,) = struct.unpack("<Q", ctypes.string_at(parameters + 40, 8))
    function = device.functions.get(kernel)
    return device.prepare(function, tuple(sizes[:3]), tuple(sizes[3:]), arguments, shared, attributes)


def cudaGraphAddMemcpyNode(device, node, graph, dependencies, count, parameters):
    region = read_region(parameters)
    action = lambda: copy_region(device, region, "cudaGraphAddMemcpyNode", True)  # noqa: E731
    return add(device, node, graph, dependencies, count, action)


def cudaGraphAddMemcpyNode1D(device, node, graph, dependencies, count, to, source, nbytes, kind):
    given = to, source, nbytes, kind, "cudaGraphAddMemcpyNode1D", True
    action = lambda: copy(device, *given)  # noqa: E731
    return add(device, node, graph, dependencies, count, action)


def cudaGraphAddMemsetNode(device, node, graph, dependencies, count, parameters):
    """Add a cudaMemsetParams: address, pitch, value, bytes per element, width, height."""
    address, pitch, value, size, width, height = struct.unpack("<QQIIQQ", ctypes.string_at(parameters, 40))
    pattern = value.to_bytes(4, "little")[:size]
    name = "cudaGraphAddMemsetNode"
    action = lambda: set_rows(device, address, pitch, pattern, width, height, name, True)  # noqa: E731
    return add(device, node, graph, dependencies, count, action)


def cudaGraphAddHostNode(device, node, graph, dependencies, count, parameters):
    function, data = struct.unpack("<QQ", ctypes.string_at(parameters, 16))
    return add(device, node, graph, dependencies, count, lambda: call_host(device, function, data))


def cudaGraphAddChildGraphNode(device, node, graph, dependencies, count, child):
    if child not in device.graphs.graphs:
        return INVALID_VALUE
    inner = Graph(dict(device.graphs.graphs[child].nodes))
    return add(device, node, graph, dependencies, count, lambda: execute(device, inner))


def call_host(device, function, *arguments):
    """Call a function of the program, as an operation of the current stream."""
    if device.streams.pending:
        device.log.notes[AFTER_HOST] = None
    device.streams.reach_host()
    ctypes.CFUNCTYPE(None, *[ctypes.c_size_t] * len(arguments))(function)(*arguments)
    return SUCCESS


def cudaGraphExecKernelNodeSetParams(device, executable, node, parameters):
    found = device.graphs.graphs.get(executable, Graph())
    if node not in found.nodes:
        return INVALID_VALUE
    # Keep the node's attributes, such as those of a launch that a stream has captured.
    attributes = getattr(found.nodes[node].action, "attributes", LaunchAttributes())
    action = kernel_action(device, parameters, attributes)
    found.nodes[node] = replace(found.nodes[node], action=action, site=device.call)
    found.checked = False
    return SUCCESS


def cudaGraphKernelNodeSetParams(device, node, parameters):
    for handle, graph in device.graphs.graphs.items():
        if node in graph.nodes:
            return cudaGraphExecKernelNodeSetParams(device, handle, node, parameters)
    return INVALID_VALUE


def cudaGraphAddDependencies(device, graph, origins, targets, edges, count):
    """Add edges between existing nodes."""
    nodes = device.graphs.graphs[graph].nodes
    for origin, node in zip(read_handles(origins, count), read_handles(targets, count)):
        if origin not in nodes or node not in nodes:
            return INVALID_VALUE
        nodes[node] = replace(nodes[node], after=nodes[node].after | {origin})
    return SUCCESS


def cudaGraphGetNodes(device, graph, nodes, count):
    """Store the number of nodes, and their handles if `nodes` is not null."""
    handles = list(device.graphs.graphs[graph].nodes)
    for at, handle in enumerate(handles if nodes else ()):
        write_pointer(nodes + 8 * at, handle)
    write_pointer(count, len(handles))
    return SUCCESS


# --- execution ----------------------------------------------------------------------------------------------


def cudaGraphInstantiate(device, pointer, graph, flags):
    """Store an executable copy of a graph at `pointer`. A graph with a cycle is invalid."""
    found = device.graphs.graphs.get(graph)
    if found is None or len(found.in_order()) < len(found.nodes):
        return INVALID_VALUE
    return new_graph(device, pointer, Graph(dict(found.nodes)))


cudaGraphInstantiateWithFlags = cudaGraphInstantiate


def cudaGraphClone(device, pointer, graph):
    return cudaGraphInstantiate(device, pointer, graph, 0)


def cudaGraphExecUpdate(device, executable, graph, result):
    """Replace the operations of an executable graph by those of a graph with the same number of nodes."""
    old, new = device.graphs.graphs.get(executable), device.graphs.graphs.get(graph)
    if old is None or new is None or len(old.nodes) != len(new.nodes):
        return INVALID_VALUE
    old.nodes, old.checked = dict(new.nodes), False
    return SUCCESS


def cudaGraphLaunch(device, executable, stream):
    found = device.graphs.graphs.get(executable)
    if found is None:
        return INVALID_VALUE
    return device.submit(stream, lambda: execute(device, found))


def execute(device, graph):
    """Execute a graph. Return the first error code. Findings name the calls that added the operations."""
    launched, outer, nodes = device.call, device.graphs.footprint, graph.in_order()
    pairs = [] if graph.checked else unordered({handle: node.after for handle, node in nodes.items()})
    footprints = {handle: Footprint() for pair in pairs for handle in pair}
    graph.checked, code = True, SUCCESS
    for handle, node in nodes.items():
        device.call, mine = node.site, footprints.get(handle)
        device.graphs.footprint = mine or outer
        code = node.action() if node.action else SUCCESS
        device.graphs.footprint = outer
        if mine and outer:
            outer.include(mine)
        if code:
            break
    report_missing_dependencies(device, nodes, pairs, footprints)
    device.call = launched
    return code


def report_missing_dependencies(device, nodes, pairs, footprints):
    """Report pairs of unordered nodes that access the same memory, unless both only read it."""
    for first, second in pairs:
        if found := footprints[first].conflict(footprints[second]):
            address, early, late = found
            what = device.memory.describe(address)
            device.call = nodes[second].site
            device.report(
                "graph-race",
                "error",
                f"no dependency orders this node after the node added at {nodes[first].site}: that node"
                f" {VERBS[early]} {what}, and this one {VERBS[late]} it",
                "add the dependency to the node, or let the stream of this node wait for an event that is"
                " recorded after the other node",
            )


def cudaGraphUpload(device, executable, stream):
    return SUCCESS


def cudaGraphDestroy(device, graph):
    return SUCCESS if device.graphs.graphs.pop(graph, None) else INVALID_VALUE


cudaGraphExecDestroy = cudaGraphDestroy
