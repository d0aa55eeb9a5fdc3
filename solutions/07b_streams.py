# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # 07b · Streams and the cost of a launch
#
# **50 minutes** · builds on lesson 07 (compiled kernels)
#
# You will be able to:
#
# - say which work on a GPU waits for which, and order it with events;
# - measure the time of a kernel correctly;
# - say what a launch costs, and when that matters.
#
# In lesson 07 you read what the compiler makes of a kernel. Here you launch it. A launch returns before the kernel has run, and from that follow most wrong timings and some wrong results. You need no GPU: you build a stream in Python. Cells that begin with `@live` run on your GPU if you have one. Otherwise they show what they printed on ours.

# %%
import json
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import torch
from numba import cuda
from numpy import float32

import kernels
from course import brought, check, guess, live
from course.figures import BLUE, ORANGE, show_figure
from course.pictures import draw_times

recorded = json.loads(
    (Path(kernels.__file__).parent / "data" / "lesson07.json").read_text("utf-8")
)
SOURCE = "recorded on {gpu}, {date}, {versions}".format(**recorded["recorded"])
print(SOURCE)
row_sums = brought("07_numba", "row_sums")

# %% [markdown]
# ## 1. Streams: which work waits for which
#
# A launch does not wait for the kernel. It puts the kernel in a queue and returns
# immediately. The GPU processes the queue in order, while Python continues. Such a
# queue is called a **stream**. You can build one in Python, because a stream is a queue
# with one worker:


# %%
class Stream:
    """A queue of work that one worker does in order, while the caller continues."""

    def __init__(self):
        self.worker = ThreadPoolExecutor(max_workers=1)
        self.last = self.worker.submit(lambda: None)

    def launch(self, work, *arguments):
        """Put some work at the end of the queue, and return at once."""
        self.last = self.worker.submit(work, *arguments)

    def synchronize(self):
        """Wait until all launched work is done."""
        self.last.result()

    def record_event(self):
        """Return an event: a mark at the current end of the queue."""
        return self.last

    def wait_event(self, event):
        """Make everything launched from now on wait until another stream has reached
        this event."""
        self.launch(event.result)


def slow_scale(x, factor, out):
    """Do the same as `scale`, in half a second."""
    time.sleep(0.5)
    out[:] = factor * x


# %% [markdown]
# **Predict.** What do the two lines print? After the launch: `___` After `synchronize`: `___`

# %% tags=["guess"]
guess("07b launch", after_the_launch=..., after_synchronize=...)

# %%
ones, tripled = np.ones(3), np.zeros(3)
stream = Stream()
stream.launch(slow_scale, ones, 3, tripled)
print("after the launch: ", tripled)
stream.synchronize()
print("after synchronize:", tripled)

# %% [markdown]
# Right after the launch, the result is not there yet. Within one stream this does no harm, because each kernel runs after all earlier ones. But before Python itself reads a result, it has to wait. PyTorch does this automatically in `.cpu()`, `.item()` and `print(tensor)`.
#
# In the picture, Python is in the upper row and the GPU's stream in the lower one. Time goes to the right.

# %%
show_figure(
    draw_times(
        {
            "Python": [
                *((n - 1, n - 0.3, f"launch\n{n}", BLUE) for n in (1, 2, 3)),
                (3, 10, "synchronize: Python waits", None),
            ],
            "the stream": [
                (3 * n - 2, 3 * n + 1, f"kernel {n}", ORANGE) for n in (1, 2, 3)
            ],
        }
    ),
    "two rows of bars over time. Python makes three short launches one after the "
    "other, and then waits in synchronize. The stream runs kernel 1 from the end of "
    "launch 1 on, then kernel 2, then kernel 3, each several times as long as a "
    "launch. Python's wait ends together with kernel 3.",
)

# %% [markdown]
# ### Bug hunt: a stopwatch
# Somebody measures a kernel, and is delighted:
#
# ```python
# begin = time.perf_counter()
# kernel[grid, block](q, k, l)
# print(time.perf_counter() - begin)
# ```
#
# **Guess before you run.** With our stream of half a second, which of the two times is below 0.1 seconds?

# %%
begin = time.perf_counter()
stream.launch(slow_scale, ones, 3, tripled)
launched = time.perf_counter() - begin
stream.synchronize()
done = time.perf_counter() - begin
print("without waiting, below 0.1 seconds:", launched < 0.1)
print("with waiting, below 0.1 seconds:   ", done < 0.1)

# %% [markdown]
# Without waiting, you measure only how long the launch itself takes, so twice as many keys would take "the same time". Here are three ways to time `row_sums`, with 65,536 queries and 16,384 keys of 64 numbers:

# %%
print(f"microseconds, {SOURCE}\n")
for name, microseconds in recorded["stopwatch_us"].items():
    print(f"{name:28} {microseconds:>10}")

# %% [markdown]
# The third way is the best. An **event** is a mark in the stream, and the GPU itself records the time when it reaches the mark. So the time that Python spends waiting is not included. Python's own work is included only if the stream is empty and waits for the next launch. Here is the same, live:


# %% tags=["gpu"]
@live
def stopwatches_live():
    """Time one launch in three ways."""
    kernel = row_sums(float32(0))
    q, k = (
        0.1 * torch.randn(65536, 64, device="cuda"),
        0.1 * torch.randn(16384, 64, device="cuda"),
    )
    l = torch.empty(65536, device="cuda")
    kernel[512, 128](q, k, l)  # compiles
    torch.cuda.synchronize()
    before, after = (
        torch.cuda.Event(enable_timing=True),
        torch.cuda.Event(enable_timing=True),
    )
    begin = time.perf_counter()
    before.record()
    kernel[512, 128](q, k, l)
    after.record()
    launched = time.perf_counter() - begin
    torch.cuda.synchronize()
    done = time.perf_counter() - begin
    print(
        f"launch {1e6 * launched:.0f}, synchronize {1e6 * done:.0f}, "
        f"between events {1000 * before.elapsed_time(after):.0f} microseconds"
    )


# %% [markdown]
# ### Bug hunt: two streams
# A program may have several streams. Each processes its work in order. **Between** streams there is no order at all, unless you create one.
#
# **Guess before you run.** The first stream fills x with ones, slowly, and the second computes 3 · x. What is in `out`?
#
# - ( ) 3, 3, 3
# - ( ) 0, 0, 0
# - ( ) an error

# %%
first, second = Stream(), Stream()


def in_two_streams(mark):
    """Return 3 · x, where the first stream fills x and the second one computes.

    mark: whether the second waits for the first."""
    x, out = np.zeros(3), np.full(3, np.nan)
    first.launch(slow_scale, np.ones(3), 1, x)
    if mark:
        second.wait_event(first.record_event())
    second.launch(np.multiply, x, 3, out)
    first.synchronize()
    second.synchronize()
    return out


print("no order:  ", in_two_streams(mark=False))
print("with order:", in_two_streams(mark=True))

# %% [markdown]
# The result is zeros, without an error: the second stream was faster. The two calls of `synchronize` do not help, because they come too late. An event does help: the second stream waits for the mark of the first one, and Python does not wait. The picture shows both cases over time:

# %%
fill = (1, 7, "x = ones, slowly", ORANGE)
show_figure(
    draw_times(
        {
            "no order: first": [fill],
            "no order: second": [(2, 3.5, "3 · x", ORANGE)],
            "with order: first": [fill],
            "with order: second": [
                (2, 7, "waits for the mark", None),
                (7, 8.5, "3 · x", ORANGE),
            ],
        },
        marks=[(7, "with order: first", "with order: second")],
    ),
    "two streams over time, twice. With no order the second stream computes 3 · x "
    "while the first is still filling x with ones. With order, the first stream "
    "reaches a mark at the end of its filling; the second waits until then, and an "
    "arrow leads from the mark to the beginning of 3 · x.",
)

# %% [markdown]
# ### Exercise 7.5 · pipelined · about eight lines
# With two streams you can copy data while you compute. A long array comes in `parts` parts, and there is room for two, `buffers[0]` and `buffers[1]`. Part p is stored in `buffers[p % 2]`. This is called [**double buffering**](../docs/glossary.md). `fill(p, buffer)` copies part p to its buffer, in the stream `copier`. `compute(p, buffer)` uses it, in the stream `worker`.
#
# Launch all the work, part by part, with events:
#
# - No part is computed before it has been filled.
# - No buffer is filled again before its part has been computed.
# - No stream waits longer than that, and Python does not wait at all.
#
# The streams have the methods of `Stream` above. The check runs your function several times: in some runs the stream `copier` is faster, in others the stream `worker` is.
#
# <details><summary>Hint 1: two events for each part</summary>
#
# Record one after `fill(p)`, for the worker. Record another after `compute(p)`: which stream waits for it, and before which part?
#
# </details>
# <details><summary>Hint 2: when to record an event</summary>
#
# `record_event()` marks the *current* end of the queue, so call it right after the launch. Keep the events of `compute` in a list.
#
# </details>


# %% tags=["exercise"]
def pipelined(copier, worker, parts, buffers, fill, compute):
    """Launch fill(p, buffers[p % 2]) in the copier and compute(p, buffers[p % 2]) in
    the worker for each part p, ordered by events."""
    # BEGIN SOLUTION 7.5
    computed = []
    for p in range(parts):
        if p >= 2:
            copier.wait_event(computed[p - 2])
        copier.launch(fill, p, buffers[p % 2])
        worker.wait_event(copier.record_event())
        worker.launch(compute, p, buffers[p % 2])
        computed.append(worker.record_event())
    # END SOLUTION


# %% tags=["check"]
check.ex07_5(pipelined)

# %% [markdown]
# Now run it with real streams and six parts. Filling a part takes a tenth of a second, and so does computing with it. **Predict**: how many seconds does it take in one stream? `___` And how many in two? `___`

# %% tags=["guess"]
guess("07b pipeline", one_stream=..., two_streams=...)


# %% tags=["uses-exercise"]
def seconds_for_six_parts(copier, worker):
    """Return the time from the first launch to the end of the last."""

    def for_a_while(p, buffer):
        time.sleep(0.1)

    begin = time.perf_counter()
    pipelined(copier, worker, 6, [None, None], for_a_while, for_a_while)
    copier.synchronize()
    worker.synchronize()
    return time.perf_counter() - begin


in_one = seconds_for_six_parts(first, first)
print("one stream, at least 1.2 seconds: ", in_one >= 1.2)
print(
    "two streams, less than 0.8 of that:",
    seconds_for_six_parts(first, second) < 0.8 * in_one,
)

# %% [markdown]
# With two streams it takes 0.7 seconds: fill the first part; then, five times, fill one
# part while computing the one before it; then compute the last part. A kernel can do
# the same within a block, with tiles instead of parts (part 5 of the course).
#
# ### Two libraries, two streams
# The bug with the early reader also happens with Numba and PyTorch, because **each library chooses its own stream**. `kernel[grid, block](...)` uses the default stream. PyTorch uses its *current* stream. That is the same default stream, until you write `with torch.cuda.stream(torch.cuda.Stream())`. In that block, PyTorch uses one stream and your kernel another, and CUDA makes neither wait for the other. (The default stream does wait for ordinary streams, but PyTorch creates its streams as *non-blocking*, which excludes them from that rule.) So a read can come too early in two ways:
#
# - **The kernel reads** data that PyTorch has not written yet. Numba protects you from
#   this if you pass a *tensor*: it asks PyTorch for the current stream and makes
#   Numba's own stream wait for an event recorded there, as our `wait_event` does. It
#   does not do so for a tensor that you converted to a Numba array earlier, with
#   `cuda.as_cuda_array(tensor)`.
# - **PyTorch reads** data that the kernel has not written yet. Nothing protects you from this.
#
# We made two experiments. In the first, PyTorch's stream waits a tenth of a second and
# then fills x with ones. `scale` multiplies x by 3, and we count the results that are
# not 3. In the second, `row_sums` takes milliseconds to write its sums, PyTorch copies
# them immediately, and we count those that are missing in the copy.
#
# **Predict.** In which of these cases is the count not 0? With the kernel in the default stream: `scale` reads a tensor; `scale` reads an array that was wrapped before; PyTorch reads the results of `row_sums`. With the kernel in PyTorch's stream: `scale` reads a tensor; PyTorch reads the results of `row_sums`.

# %%
print(SOURCE, "\n")
print(f"{'reader':42} {'stream of the kernel':22} not seen")
for row in recorded["wrong_stream"]:
    print(
        f"{row['reads']:42} {row['kernel_stream']:22} {row['not_seen']} of "
        f"{row['elements']}"
    )

# %% [markdown]
# Every count that is not 0 belongs to a program that ended without an error. A 0 in the default stream can be due to the event, or to luck. A 0 in PyTorch's stream is certain, because there the writer and the reader are in the same queue.
#
# So the fix is the third number of the launch: `kernel[grid, block, stream]` with PyTorch's current stream, which you have to query at every launch. Here is the second experiment, live:


# %% tags=["gpu"]
def in_torchs_stream():
    """Return PyTorch's current stream as a stream for Numba."""
    return cuda.external_stream(torch.cuda.current_stream().cuda_stream)


@live
def sums_missing():
    """Launch in either stream, and count the sums that PyTorch copied too early."""
    kernel = row_sums(float32(0))
    q, k = (
        0.1 * torch.randn(65536, 64, device="cuda"),
        0.1 * torch.randn(1024, 64, device="cuda"),
    )
    for name, stream_of in {
        "the default": lambda: 0,
        "PyTorch's": in_torchs_stream,
    }.items():
        l, seen = torch.zeros(65536, device="cuda"), torch.zeros(65536, device="cuda")
        torch.cuda.synchronize()
        with torch.cuda.stream(torch.cuda.Stream()):
            kernel[512, 128, stream_of()](q, k, l)
            seen.copy_(l)
        torch.cuda.synchronize()
        print(
            f"launched in {name} stream: "
            f"{(seen == 0).sum().item()} of 65536 sums are missing in the copy"
        )


# %% [markdown]
# ## 2. PyTorch tensors, and the cost of a launch
#
# The live cells pass CUDA tensors of PyTorch to kernels of Numba. Nothing is copied: a CUDA tensor describes the address, shape and type of its data, and Numba uses that. Three things can go wrong:
#
# - A **numpy array** is accepted too. Numba then copies it to the GPU before the launch and back after it, and waits. The result is correct, but this is slow.
# - A tensor that **requires a gradient** is refused. Pass `tensor.detach()`; a gradient needs a backward pass that somebody has written (lesson 12).
# - A tensor that is **not contiguous** has a different array type, so Numba compiles again. A transposed tensor has layout F (column-major: neighbours differ in the *first* index), and a slice such as `x[:, ::2]` has layout A (any strides).
#
# Besides, each launch takes time in Python: finding the types, wrapping the tensors, calling the driver. Here are the times for a kernel with four tensors of 1024 numbers and one float32:

# %%
print(f"microseconds per launch, {SOURCE}\n")
for name, microseconds in recorded["launch_us"].items():
    print(f"{name:28} {microseconds:>10}")

# %% [markdown]
# These are means over many launches in a row. (In section 1, "to the end of the launch" was a single launch after a pause, together with recording two events, so it took longer.)
#
# *Wrapped before* means that each tensor was converted to a Numba array once, with `cuda.as_cuda_array(tensor)`, and not at each launch. *kernels.common.launch* launches the kernels of this package: CPU tensors go to `sim`, and CUDA tensors go to their GPU, in PyTorch's current stream. It passes Numba only what a launch needs to know about each tensor, so it is faster than Numba's own inspection. A **CUDA graph** is a recording of launches, here of a hundred, that PyTorch replays with a single call. Its line is a hundredth of the time from that call until the GPU has finished. So the GPU itself needs no longer than that for 1024 numbers, and in all the other lines it waits for Python.
#
# For a kernel that runs for a millisecond this is not important. For a kernel that processes a single token it is.

# %% [markdown]
# ## In three lines
# - A launch has a stream and returns immediately. So wait before you read the result, and time kernels with events, after a first launch.
# - The work of one stream can run before, after or during the work of another one. With an event, a stream waits for another.
# - A launch costs time in Python. For small kernels, capture the launches in a CUDA graph.
#
# **You can now** launch a kernel together with PyTorch without a race between the two, and measure its time.
#
# **Read on:** NVIDIA, *CUDA C++ Programming Guide*, section "Asynchronous Concurrent Execution" (streams and events) · PyTorch documentation, "CUDA semantics".
#
# **Next:** [lesson 08](08_memory.ipynb) explains what "waiting for memory" means, and counts it.
