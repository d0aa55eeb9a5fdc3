"""Runtime functions for graphs: stream capture, explicit nodes, and launches of graphs.

Each takes the Device, then the C arguments, with pointers as integers, and returns an error code.

A graph is a list of operations in the order in which they were captured or added. Each operation therefore
follows its dependencies, and a launch executes the operations in this order. A missing dependency is not
reported.

Source: CUDA Runtime API, "Graph Management" and "Stream Management".
"""

import ctypes
import struct
from collections.abc import Callable
from dataclasses import dataclass, field

from sim.runtime.call_sites import CallSite
from sim.runtime.errors import ILLEGAL_STATE, INVALID_VALUE, SUCCESS
from sim.runtime.handlers_copies import copy, copy_region, read_region, set_rows
from sim.runtime.handlers_memory import write_int, write_pointer

CAPTURING = 1  # cudaStreamCaptureStatusActive


@dataclass
class Node:
    """An operation of a graph, and the host call that added it. `action` is None for an empty node."""

    action: Callable[[], int] | None
    site: CallSite


@dataclass
class Graph:
    """A graph, or an executable graph. Nodes are identified by their handles."""

    nodes: dict[int, Node] = field(default_factory=dict)


class Graphs:
    """The graphs of a program, and the streams that are capturing."""

    def __init__(self) -> None:
        self.graphs: dict[int, Graph] = {}
        self.capturing: dict[int, Graph] = {}  # stream -> the graph that records its operations
        self.events: dict[int, Graph] = {}  # event recorded during a capture -> its graph


def add(device, node, graph, action):
    """Append an operation to a graph, and store its handle at `node`."""
    if graph not in device.graphs.graphs:
        return INVALID_VALUE
    handle = device.new_handle()
    device.graphs.graphs[graph].nodes[handle] = Node(action, device.call)
    write_pointer(node, handle)
    return SUCCESS


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
    device.graphs.capturing[stream] = Graph()
    return SUCCESS


def cudaStreamEndCapture(device, stream, pointer):
    """End a capture. Streams that joined it through events stop capturing too."""
    graph = device.graphs.capturing.get(stream)
    if graph is None:
        return ILLEGAL_STATE
    streams, events = device.graphs.capturing, device.graphs.events
    device.graphs.capturing = {s: g for s, g in streams.items() if g is not graph}
    device.graphs.events = {e: g for e, g in events.items() if g is not graph}
    return new_graph(device, pointer, graph)


def cudaStreamIsCapturing(device, stream, status):
    write_int(status, CAPTURING if stream in device.graphs.capturing else 0)
    return SUCCESS


# --- explicit nodes -----------------------------------------------------------------------------------------


def cudaGraphCreate(device, pointer, flags):
    return new_graph(device, pointer, Graph())


def cudaGraphAddEmptyNode(device, node, graph, dependencies, count):
    return add(device, node, graph, None)


def cudaGraphAddKernelNode(device, node, graph, dependencies, count, parameters):
    return add(device, node, graph, kernel_action(device, parameters))


def kernel_action(device, parameters):
    """Return the action of a cudaKernelNodeParams, which it copies."""
    kernel, *sizes, shared = struct.unpack("<Q7I", ctypes.string_at(parameters, 36))
    (arguments,) = struct.unpack("<Q", ctypes.string_at(parameters + 40, 8))
    function = device.functions.get(kernel)
    return device.prepare(function, tuple(sizes[:3]), tuple(sizes[3:]), arguments, shared)


def cudaGraphAddMemcpyNode(device, node, graph, dependencies, count, parameters):
    region = read_region(parameters)
    return add(device, node, graph, lambda: copy_region(device, region, "cudaGraphAddMemcpyNode"))


def cudaGraphAddMemcpyNode1D(device, node, graph, dependencies, count, to, source, nbytes, kind):
    return add(
        device, node, graph, lambda: copy(device, to, source, nbytes, kind, "cudaGraphAddMemcpyNode1D")
    )


def cudaGraphAddMemsetNode(device, node, graph, dependencies, count, parameters):
    """Add a cudaMemsetParams: address, pitch, value, bytes per element, width, height."""
    address, pitch, value, size, width, height = struct.unpack("<QQIIQQ", ctypes.string_at(parameters, 40))
    pattern = value.to_bytes(4, "little")[:size]
    name = "cudaGraphAddMemsetNode"
    return add(device, node, graph, lambda: set_rows(device, address, pitch, pattern, width, height, name))


def cudaGraphAddHostNode(device, node, graph, dependencies, count, parameters):
    function, data = struct.unpack("<QQ", ctypes.string_at(parameters, 16))
    return add(device, node, graph, lambda: call_host(function, data))


def cudaGraphAddChildGraphNode(device, node, graph, dependencies, count, child):
    if child not in device.graphs.graphs:
        return INVALID_VALUE
    nodes = list(device.graphs.graphs[child].nodes.values())
    return add(device, node, graph, lambda: execute(device, nodes))


def call_host(function, data):
    """Call a function of the program."""
    ctypes.CFUNCTYPE(None, ctypes.c_void_p)(function)(data)
    return SUCCESS


def cudaGraphExecKernelNodeSetParams(device, executable, node, parameters):
    found = device.graphs.graphs.get(executable, Graph()).nodes
    if node not in found:
        return INVALID_VALUE
    found[node] = Node(kernel_action(device, parameters), device.call)
    return SUCCESS


def cudaGraphKernelNodeSetParams(device, node, parameters):
    for handle, graph in device.graphs.graphs.items():
        if node in graph.nodes:
            return cudaGraphExecKernelNodeSetParams(device, handle, node, parameters)
    return INVALID_VALUE


def cudaGraphAddDependencies(device, graph, origins, targets, edges, count):
    """Accept edges between existing nodes, if they agree with the order in which the nodes were added."""
    order = list(device.graphs.graphs[graph].nodes)
    pairs = zip(*(struct.unpack(f"<{count}Q", ctypes.string_at(at, 8 * count)) for at in (origins, targets)))
    return SUCCESS if all(order.index(a) < order.index(b) for a, b in pairs) else INVALID_VALUE


def cudaGraphGetNodes(device, graph, nodes, count):
    """Store the number of nodes, and their handles if `nodes` is not null."""
    handles = list(device.graphs.graphs[graph].nodes)
    for at, handle in enumerate(handles if nodes else ()):
        write_pointer(nodes + 8 * at, handle)
    write_pointer(count, len(handles))
    return SUCCESS


# --- execution ----------------------------------------------------------------------------------------------


def cudaGraphInstantiate(device, pointer, graph, flags):
    found = device.graphs.graphs.get(graph)
    return INVALID_VALUE if found is None else new_graph(device, pointer, Graph(dict(found.nodes)))


cudaGraphInstantiateWithFlags = cudaGraphInstantiate


def cudaGraphClone(device, pointer, graph):
    return cudaGraphInstantiate(device, pointer, graph, 0)


def cudaGraphExecUpdate(device, executable, graph, result):
    """Replace the operations of an executable graph by those of a graph with the same number of nodes."""
    old, new = device.graphs.graphs.get(executable), device.graphs.graphs.get(graph)
    if old is None or new is None or len(old.nodes) != len(new.nodes):
        return INVALID_VALUE
    old.nodes = dict(new.nodes)
    return SUCCESS


def cudaGraphLaunch(device, executable, stream):
    found = device.graphs.graphs.get(executable)
    if found is None:
        return INVALID_VALUE
    nodes = list(found.nodes.values())
    return device.submit(stream, lambda: execute(device, nodes))


def execute(device, nodes):
    """Execute operations in order. Return the first error code. Findings name the calls that added them."""
    launched = device.call
    for node in nodes:
        device.call = node.site
        if code := node.action() if node.action else SUCCESS:
            return code
    device.call = launched
    return SUCCESS


def cudaGraphUpload(device, executable, stream):
    return SUCCESS


def cudaGraphDestroy(device, graph):
    return SUCCESS if device.graphs.graphs.pop(graph, None) else INVALID_VALUE


cudaGraphExecDestroy = cudaGraphDestroy
