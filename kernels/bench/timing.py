"""Clocks, memory and the name of this GPU, for programs that time kernels."""

import datetime
import functools
import statistics
import warnings

import numba
import torch
import torch._functorch.config

DEVICE = "cuda"
FLUSH = 2**30  # bytes written between calls
MOST_MS = 500  # that one number's repeats take, about


def quiet():
    """Only the tables: no warnings about small grids, which are what some rows are about, or about what
    torch.compile might do. Float32 convolutions without TF32."""
    torch._functorch.config.donated_buffer = False  # a backward pass is timed many times
    torch.backends.cudnn.allow_tf32 = False
    warnings.filterwarnings("ignore", message=".*Grid size .* low occupancy")
    warnings.filterwarnings("ignore", module=r"torch\._inductor")


def machine():
    """Return the date, the GPU and the versions with which a table was recorded."""
    return {
        "date": datetime.date.today().isoformat(),
        "gpu": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "numba": numba.__version__,
    }


def replay(call):
    """The call as a CUDA graph, to be launched again and again."""
    for _ in range(3):
        call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    return graph.replay


@functools.cache
def bandwidth():
    """Bytes a second that a copy reads and writes on this GPU."""
    source = torch.empty(2**29, device=DEVICE)
    target = torch.empty_like(source)
    return 2 * source.nbytes / (milliseconds(lambda: target.copy_(source)) / 1000)


def least_us(shape, bandwidth, itemsize=4):
    """Microseconds to read K and V once."""
    batch, heads, n, d = shape
    return 2 * itemsize * batch * heads * n * d / bandwidth * 1e6


def milliseconds(call, repeats=10):
    """The median time of a call on the GPU, after three to warm up; of fewer repeats, but of three at least,
    where they would take more than MOST_MS.

    Before each, a buffer larger than the L2 cache is written; and nothing waits for a call's end, so that
    Python launches the next one while the GPU works, as in training.
    """
    buffer = torch.empty(FLUSH, dtype=torch.int8, device=DEVICE)
    pairs = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(3 + repeats)]

    def timed(pairs):
        for start, end in pairs:
            buffer.zero_()
            start.record()
            call()
            end.record()
        torch.cuda.synchronize()
        return [start.elapsed_time(end) for start, end in pairs]

    first = timed(pairs[:3])[-1]
    enough = max(3, int(MOST_MS / max(first, 1e-3)))
    return statistics.median(timed(pairs[3 : 3 + min(repeats, enough)]))


def peak(call):
    """MiB of GPU memory that a call takes at its peak, beyond what is there already."""
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    call()
    torch.cuda.synchronize()
    return (torch.cuda.max_memory_allocated() - before) / 2**20


def backward_milliseconds(o, leaves, d_o, repeats=10):
    """The median time of a backward pass from o to its leaves."""
    return milliseconds(lambda: torch.autograd.grad(o, leaves, d_o, retain_graph=True), repeats)
