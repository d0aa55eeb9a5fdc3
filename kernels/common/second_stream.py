"""A second stream per GPU: its launches run at the same time as launches of the current stream.

The last blocks of a launch do not fill a GPU. Blocks of a launch in another stream then use the rest.
"""

import contextlib
import functools

import torch


@functools.cache
def second_stream(device):
    """Return the second stream of a GPU."""
    return torch.cuda.Stream(device)


@contextlib.contextmanager
def forked(device):
    """Let a block launch in the second stream, after all earlier launches of the current stream.

        with forked(device) as join:
            …       # at the same time as the launches between the block and join()
        …
        join()      # later launches of the current stream follow those of the block

    Tensors that are allocated in the block may only be used there, because their memory belongs to the second
    stream. On the CPU, the block runs as usual. The capture of a CUDA graph records both streams.
    """
    if device.type != "cuda":
        yield lambda: None
        return
    current, second = torch.cuda.current_stream(device), second_stream(device)
    second.wait_stream(current)
    with torch.cuda.stream(second):
        yield lambda: current.wait_stream(second)
