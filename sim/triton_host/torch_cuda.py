"""Replacements for torch.cuda on machines without a GPU, and the redirection of "cuda" to the CPU."""

import contextlib
import time
from types import SimpleNamespace

import torch
from torch.overrides import TorchFunctionMode

from sim.triton_host.tensors import CREATORS, FRESH, POINTERS


class Redirection(TorchFunctionMode):
    """A mode in which PyTorch's functions create tensors on the CPU where a program asks for "cuda".

    Tensors without values, such as those of torch.empty, contain poison. Tensors whose address the program
    reads are remembered.
    """

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        if func is torch.Tensor.cuda:
            return args[0]
        if func == torch.Tensor.is_cuda.__get__:
            return args[0].device.type == "cpu"
        if is_cuda(kwargs.get("device")) or isinstance(kwargs.get("device"), int):
            kwargs["device"] = "cpu"
        kwargs.pop("pin_memory", None)
        if func is torch.Tensor.pin_memory:
            return args[0]
        result = func(*("cpu" if is_cuda(value) else value for value in args), **kwargs)
        if func is torch.Tensor.data_ptr:
            return POINTERS.add(args[0], result)
        return FRESH.fill(result) if func in CREATORS else result


def is_cuda(value):
    """Return whether a value names a CUDA device."""
    if isinstance(value, torch.device):
        return value.type == "cuda"
    return isinstance(value, str) and (value == "cuda" or value.startswith("cuda:"))


class Event:
    """An event of a simulated stream. Its times are those of the host."""

    def __init__(self, *given, **named):
        self.time = None

    def record(self, stream=None):
        self.time = time.perf_counter()

    def elapsed_time(self, other):
        return max((other.time - self.time) * 1e3, 1e-3)

    def synchronize(self):
        pass

    def wait(self, stream=None):
        pass

    def query(self):
        return True


class Stream:
    """A simulated stream. All work is done when a call returns."""

    cuda_stream = 0
    device = torch.device("cpu")

    def __init__(self, *given, **named):
        pass

    def synchronize(self):
        pass

    def wait_stream(self, stream):
        pass

    def wait_event(self, event):
        pass

    def record_event(self, event=None):
        event = event or Event()
        event.record()
        return event

    def query(self):
        return True


class Entered(contextlib.nullcontext):
    """A context manager without effect, for devices and streams."""

    def __init__(self, *given, **named):
        super().__init__()


def constant(value):
    """Return a new function that ignores its arguments and returns a value."""
    return lambda *given, **named: value


def replacements(session):
    """Return {name: replacement} for the functions of torch.cuda."""
    spec, capability = session.options.spec, divmod(session.architecture, 10)
    limits = session.driver.utils.get_device_properties()
    stream = Stream()
    properties = SimpleNamespace(
        name=f"simulated sm_{session.architecture}",
        major=capability[0],
        minor=capability[1],
        total_memory=80 << 30,
        multi_processor_count=spec.multiprocessors,
        warp_size=spec.warp_size,
        max_threads_per_multi_processor=spec.threads_per_multiprocessor,
        regs_per_multiprocessor=limits["max_num_regs"],
        shared_memory_per_block=spec.dynamic_shared_bytes,
        shared_memory_per_block_optin=limits["max_shared_mem"],
        shared_memory_per_multiprocessor=spec.shared_bytes_per_multiprocessor,
        L2_cache_size=50 << 20,
        gcnArchName="",
        is_integrated=False,
        is_multi_gpu_board=False,
    )
    names = "synchronize empty_cache set_device set_stream init reset_peak_memory_stats ipc_collect"
    memory = "memory_allocated max_memory_allocated memory_reserved max_memory_reserved"
    # Each name needs an object of its own, because torch._dynamo keeps a rule for each object.
    return {
        **{name: constant(None) for name in names.split()},
        **{name: constant(0) for name in memory.split()},
        **{name: type(name, (Entered,), {}) for name in ("device", "device_of", "stream", "StreamContext")},
        **{name: constant(stream) for name in ("current_stream", "default_stream")},
        "is_available": constant(True),
        "is_bf16_supported": constant(True),
        "device_count": constant(1),
        "current_device": constant(0),
        "get_device_capability": constant(capability),
        "get_device_name": constant(properties.name),
        "get_device_properties": constant(properties),
        "mem_get_info": constant((properties.total_memory, properties.total_memory)),
        "Event": Event,
        "Stream": Stream,
    }
