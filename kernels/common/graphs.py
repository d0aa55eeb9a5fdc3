"""Computations of many small launches on a GPU, recorded as CUDA graphs and replayed.

Python needs 5 to 15 µs for each operation of PyTorch, and a kernel for a few hundred tokens takes less time.
A computation of 40 launches therefore waits for Python. Replaying a graph takes a single call.

The first call with a key computes directly, because it may compile kernels. The second one records the
computation with copies of its tensors. Later calls copy their tensors into these copies, replay the graph,
and return copies of the results. The steps of a training loop often have their tensors at the same addresses,
so tensors at addresses that were seen before get a second recording, which reads them in place.

A recording keeps its copies and scratch memory allocated, so callers limit the size of the tensors.
Recordings for the same stream share their scratch memory. If there are too many recordings, the least
recently used one is released.
"""

import contextlib
import gc
import threading
from collections import OrderedDict

import torch

from kernels.common.launch import raw_stream

MOST_RECORDINGS = 16
MOST_IN_PLACE = 32  # recordings with fixed addresses per key, in total; each takes 10 ms to make
LARGE = 2**20  # elements; PyTorch copies a list with one block per 2**16 elements, too few for a large tensor
ONCE, NEVER = "computed once", "cannot be recorded"

# key, or (key, addresses of the tensors) -> ONCE, NEVER or Recording
recordings: OrderedDict = OrderedDict()
pools: dict = {}  # (device, stream) -> handle of the memory that its recordings share
lock = threading.RLock()


class Recording:
    """A recorded graph.

    given: the copies of tensors that the graph reads, or None.
    results: the tensors that the graph writes.
    in_place: the number of recordings with fixed addresses that were made for its key.
    """

    def __init__(self, graph, given, results):
        self.graph, self.given, self.results, self.in_place = graph, given, results, 0

    def replay(self, tensors):
        """Replay the graph with these tensors; return copies of its results."""
        if self.given:
            copy_all(self.given, tensors)
        self.graph.replay()
        fresh = [torch.empty_like(x) for x in self.results]
        copy_all(fresh, self.results)
        return fresh


def replayed(key, compute, tensors):
    """Return compute(*tensors), a list of tensors, by a recorded CUDA graph if possible.

    key: everything on which the launches of `compute` depend, except the shapes, types and layouts of the
        tensors and PyTorch's settings.
    tensors: contiguous tensors on one device. On the CPU, and during the capture of another graph, compute
        directly.
    """
    first = tensors[0]
    if not first.is_cuda or torch.cuda.is_current_stream_capturing():
        return compute(*tensors)
    device = first.get_device()
    if device != torch.cuda.current_device():
        return compute(*tensors)
    stream = raw_stream(device)
    key = key, device, stream, settings(), *((x.shape, x.dtype) for x in tensors)
    with lock:
        found = recordings.get(key)
        if type(found) is Recording:
            recordings.move_to_end(key)
            return recording_for(found, key, compute, tensors, (device, stream)).replay(tensors)
        if found is None:
            keep(key, ONCE)
        elif found is ONCE:
            found = recorded(compute, tensors, (device, stream), [torch.empty_like(x) for x in tensors])
            keep(key, found)
            if found is not NEVER:
                return found.replay(tensors)
    return compute(*tensors)


def recording_for(general, key, compute, tensors, place):
    """Return the Recording that reads tensors at these addresses, or else the one that copies tensors
    first."""
    key = key, *(x.data_ptr() for x in tensors)
    found = recordings.get(key)
    if found is None:
        keep(key, ONCE)
    elif found is ONCE and general.in_place < MOST_IN_PLACE:
        general.in_place += 1
        found = recorded(compute, tensors, place)
        keep(key, found)
    if type(found) is not Recording:
        return general
    recordings.move_to_end(key)
    return found


def keep(key, entry):
    """Store the entry of a key, and release the one that was used least recently if there are too many."""
    recordings[key] = entry
    recordings.move_to_end(key)
    if len(recordings) > MOST_RECORDINGS:
        recordings.popitem(last=False)


def recorded(compute, tensors, place, copies=None):
    """Return the Recording of compute(*tensors), or NEVER if a graph cannot contain one of its operations.

    place: (device, stream) of the replays.
    copies: the tensors that the graph reads, into which arguments are copied; by default, `tensors`.
    """
    current, side = torch.cuda.current_stream(), side_stream()
    if copies:
        copy_all(copies, tensors)
    given, graph = copies or tensors, torch.cuda.CUDAGraph()
    if place not in pools:
        pools[place] = torch.cuda.graph_pool_handle()
    side.wait_stream(current)
    try:
        with torch.cuda.stream(side), torch.no_grad():
            compute(*given)  # outside of the graph, libraries allocate their workspace for this stream
            with no_collection():
                # other threads may use the GPU meanwhile
                graph.capture_begin(pool=pools[place], capture_error_mode="thread_local")
                try:
                    results = list(compute(*given))
                finally:
                    graph.capture_end()
    except RuntimeError:
        pools.pop(place)  # PyTorch may still record into this memory
        return NEVER
    finally:
        current.wait_stream(side)
    return Recording(graph, copies, results)


@contextlib.contextmanager
def no_collection():
    """Disable Python's garbage collector, which might release the memory of a GPU during a capture."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def side_stream():
    """Return the stream of the current device for recording; the default stream cannot be captured."""
    device = torch.cuda.current_device()
    if device not in side_streams:
        side_streams[device] = torch.cuda.Stream()
    return side_streams[device]


side_streams: dict = {}


def copy_all(targets, sources):
    """Copy tensors to targets of the same shapes and types. Each large tensor takes one launch, and all other
    tensors of a type share one.

    A float32 tensor must not be copied as a tensor of 16-bit values. A GPU converts 16-bit values to float32
    and back, which changes signalling NaNs, and half of a float32 number can have the bits of one.
    """
    groups = {}
    for target, source in zip(targets, sources):
        if target.numel() >= LARGE:
            target.copy_(source)
        elif target.numel():
            group = groups.setdefault(target.dtype, ([], []))
            group[0].append(target)
            group[1].append(source)
    for group in groups.values():
        torch._foreach_copy_(*group)


def settings():
    """Return the settings of PyTorch that can change the kernels, the dtypes or the inference mode of an
    operation. They are part of the key of a recorded graph."""
    matmul = torch.backends.cuda.matmul
    return (
        torch.are_deterministic_algorithms_enabled(),
        torch.is_inference_mode_enabled(),
        torch.is_autocast_enabled("cuda") and torch.get_autocast_dtype("cuda"),
        torch.get_float32_matmul_precision(),
        matmul.allow_bf16_reduced_precision_reduction,
        matmul.allow_fp16_reduced_precision_reduction,
    )
