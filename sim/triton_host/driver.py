"""The driver that Triton uses inside `sim.triton()`. It describes the simulated GPU and runs launches."""

import functools
import re
import subprocess
import tempfile

import torch
from triton import knobs
from triton.backends.compiler import GPUTarget
from triton.backends.driver import DriverBase

from sim.triton_host.launcher import Launcher
from sim.triton_host.tuning import do_bench

# JITFunction keeps compiled kernels by device number, so these numbers must not be those of a real GPU.
FIRST_DEVICE = 1 << 16
# architecture -> bytes of shared memory that a block can have, registers of a multiprocessor
# Source: CUDA C++ Programming Guide, "Technical Specifications per Compute Capability".
LIMITS = {80: (166912, 65536), 86: (101376, 65536), 89: (101376, 65536), 90: (232448, 65536)}


class Utilities:
    """The part of Triton's driver that loads machine code and describes the device."""

    def __init__(self, session):
        self.session = session

    def get_device_properties(self, device=None):
        shared, registers = LIMITS[self.session.architecture]
        spec = self.session.options.spec
        return {
            "max_shared_mem": min(shared, spec.shared_bytes_per_block),
            "max_num_regs": registers,
            "multiprocessor_count": spec.multiprocessors,
            "warpSize": spec.warp_size,
            "max_threads_per_sm": spec.threads_per_multiprocessor,
            "sm_clock_rate": 1_410_000,
            "mem_clock_rate": 1_215_000,
            "mem_bus_width": 5120,
        }

    def load_binary(self, name, kernel, shared, device):
        """Return (module, function, registers and spilled registers of a thread, threads of a block)."""
        # Without a module, Triton has nothing to unload.
        return None, name, *count_registers(kernel), self.session.options.spec.max_threads_per_block

    def unload_module(self, module):
        pass


@functools.lru_cache(maxsize=256)
def count_registers(cubin):
    """Return the registers of a thread, and how many registers it spills, of machine code."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        command = [knobs.nvidia.cuobjdump.path, "--dump-resource-usage", file.name]
        text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    used = {name: int(number) for name, number in re.findall(r"\b(REG|STACK|LOCAL):(\d+)", text)}
    return used["REG"], used.get("LOCAL", 0) // 4


class SimulatedDriver(DriverBase):
    """A driver for the simulated GPU.

    session: the Session whose options apply.
    """

    launcher_cls = Launcher

    def __init__(self, session):
        super().__init__()
        self.session, self.utils = session, Utilities(session)

    @classmethod
    def is_active(cls):
        return True

    def map_python_to_cpp_type(self, ty):
        raise NotImplementedError("the simulated driver has no C++ launcher")

    def get_current_target(self):
        return GPUTarget("cuda", self.session.architecture, 32)

    def get_device_capability(self, device=None):
        return divmod(self.session.architecture, 10)

    def get_active_torch_device(self):
        return torch.device("cpu")

    def get_device_interface(self):
        return torch.cuda  # the session has replaced its functions

    def get_current_device(self):
        return FIRST_DEVICE + self.session.architecture

    def set_current_device(self, device):
        pass

    def get_current_stream(self, device=None):
        return 0

    def get_benchmarker(self):
        return do_bench

    def get_empty_cache_for_benchmark(self):
        return None

    def clear_cache(self, cache):
        pass

    def allocate_default_profile_scratch(self, size, alignment, stream):
        return torch.zeros(size, dtype=torch.int8)
