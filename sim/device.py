"""DeviceSpec: the numbers of a GPU that a kernel can collide with."""
from dataclasses import dataclass


@dataclass(frozen=True)
class DeviceSpec:
    """Limits and geometry of the simulated GPU; the defaults are an H200's (compute capability 9.0).

    Sources: CUDA C++ Programming Guide, "Technical Specifications per Compute Capability". Dynamic shared memory stops at 48 KiB
    because Numba never asks the driver for more; static shared memory may take all that a block can have.
    """

    name: str = "simulated sm_90"
    warp_size: int = 32
    max_threads_per_block: int = 1024
    max_block: tuple[int, int, int] = (1024, 1024, 64)
    max_grid: tuple[int, int, int] = (2**31 - 1, 65535, 65535)
    shared_bytes_per_block: int = 232448
    dynamic_shared_bytes: int = 49152
    multiprocessors: int = 132
    threads_per_multiprocessor: int = 2048
    blocks_per_multiprocessor: int = 32
    shared_bytes_per_multiprocessor: int = 233472
    sector_bytes: int = 32
    banks: int = 32
    bank_bytes: int = 4

    def resident_blocks(self, threads: int, shared_bytes: int) -> int:
        """How many blocks of `threads` threads and `shared_bytes` bytes the whole device holds at once."""
        warps = -(-threads // self.warp_size) * self.warp_size
        per_multiprocessor = min(self.blocks_per_multiprocessor, self.threads_per_multiprocessor // warps)
        if shared_bytes:
            per_multiprocessor = min(per_multiprocessor, self.shared_bytes_per_multiprocessor // shared_bytes)
        return per_multiprocessor * self.multiprocessors
