"""Timers, memory measurement and GPU information for the benchmark programs."""

import datetime
import functools
import statistics
import warnings

import numba
import torch
import torch._functorch.config

DEVICE = "cuda"
FLUSH = 2**30  # bytes written between calls to flush the L2 cache
MOST_MS = 500  # approximate total time of one measurement's repeats, in milliseconds


def quiet():
    """Suppress warnings from torch.compile, and warnings about small grids, which some rows measure on
    purpose.

    Also disable TF32 for float32 convolutions.
    """
    torch._functorch.config.donated_buffer = False  # allow several backward passes through the same graph
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
    """Capture a call as a CUDA graph; return the function that launches the graph."""
    for _ in range(3):
        call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    return graph.replay


@functools.cache
def bandwidth():
    """Return the bandwidth of a copy on this GPU, reads and writes, in bytes per second."""
    source = torch.empty(2**29, device=DEVICE)
    target = torch.empty_like(source)
    return 2 * source.nbytes / (milliseconds(lambda: target.copy_(source)) / 1000)


def least_us(shape, bandwidth, itemsize=4):
    """Return the microseconds needed to read K and V once."""
    batch, heads, n, d = shape
    return 2 * itemsize * batch * heads * n * d / bandwidth * 1e6


def milliseconds(call, repeats=10):
    """Return the median GPU time of a call, after three warm-up calls.

    The number of repeats is reduced, but not below three, if they would take more than MOST_MS. Before each
    call, a buffer larger than the L2 cache is written. The host does not wait for a call to end, so Python
    launches the next call while the GPU works, as in training.
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
    """Return the peak GPU memory of a call in MiB, above the memory in use before it."""
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    call()
    torch.cuda.synchronize()
    return (torch.cuda.max_memory_allocated() - before) / 2**20


def backward_milliseconds(o, leaves, d_o, repeats=10):
    """Return the median time of a backward pass from o to its leaves."""
    return milliseconds(lambda: torch.autograd.grad(o, leaves, d_o, retain_graph=True), repeats)


def time_passes(attend, given, leaves, d_o, repeats=10):
    """Return {"forward_ms", "backward_ms", "forward_mib", "peak_mib"} of attend(*given).

    peak_mib covers both passes.

    leaves: the tensors that receive a gradient.
    d_o: the gradient of the output.
    """
    with torch.no_grad():
        forward_ms = milliseconds(lambda: attend(*given), repeats)
        forward_mib = peak(lambda: attend(*given))
    peak_mib = peak(lambda: torch.autograd.grad(attend(*given), leaves, d_o))
    backward_ms = backward_milliseconds(attend(*given), leaves, d_o, repeats)
    return dict(forward_ms=forward_ms, backward_ms=backward_ms, forward_mib=forward_mib, peak_mib=peak_mib)


def require_gpu(parser, program):
    """Exit with status 2 and a message if torch finds no CUDA GPU."""
    if not torch.cuda.is_available():
        parser.exit(2, f"python -m {program} runs kernels on a CUDA GPU, and torch finds none here\n")
