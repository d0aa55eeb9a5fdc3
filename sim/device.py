"""The limits of the simulated GPU, and the cost of its memory requests."""

from dataclasses import dataclass

import numpy as np

# placeholder for the word of a lane that accesses no word; sorts after every word of shared memory
NOTHING = np.iinfo(np.int32).max


@dataclass(frozen=True)
class DeviceSpec:
    """Limits and geometry of the simulated GPU. The defaults describe an H200 (compute capability 9.0).

    Source: CUDA C++ Programming Guide, "Technical Specifications per Compute Capability". According to its
    section on shared memory, a block can use more than 48 KiB of dynamic shared memory only if the host
    requests it from the driver, which Numba never does. (An H200 ran a Numba kernel with 200,000 bytes of
    declared shared memory, and refused one with 30,000 declared and 19,153 dynamic bytes.)
    """

    name: str = "simulated sm_90"
    warp_size: int = 32
    max_threads_per_block: int = 1024
    max_block: tuple[int, int, int] = (1024, 1024, 64)
    max_grid: tuple[int, int, int] = (2**31 - 1, 65535, 65535)
    shared_bytes_per_block: int = 232448
    dynamic_shared_bytes: int = 49152
    local_bytes_per_thread: int = 524288
    heap_bytes: int = 8 << 20
    multiprocessors: int = 132
    threads_per_multiprocessor: int = 2048
    blocks_per_multiprocessor: int = 32
    shared_bytes_per_multiprocessor: int = 233472
    sector_bytes: int = 32
    banks: int = 32
    bank_bytes: int = 4

    def __post_init__(self) -> None:
        if self.warp_size != 32:
            raise ValueError(
                f"warp_size={self.warp_size}: every CUDA GPU has warps of 32 lanes, and masks have 32 bits;"
                " leave warp_size as it is"
            )

    def resident_blocks(self, threads: int, shared_bytes: int) -> int:
        """Return the number of blocks of `threads` threads and `shared_bytes` bytes that the whole device
        holds at a time."""
        warps = -(-threads // self.warp_size) * self.warp_size
        per_multiprocessor = min(self.blocks_per_multiprocessor, self.threads_per_multiprocessor // warps)
        if shared_bytes:
            per_multiprocessor = min(per_multiprocessor, self.shared_bytes_per_multiprocessor // shared_bytes)
        return per_multiprocessor * self.multiprocessors

    def requests(self, lane: np.ndarray, site: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Group accesses into requests: the k-th execution of a site by each lane of a warp is one request.

        lane, site: int64 arrays with one entry per access. Each lane's accesses are in program order.

        Return (order, request): access order[i] belongs to request[i]. Requests are numbered consecutively
        from 0, ordered by site, then warp, then k.
        """
        n, lanes = len(lane), (int(lane.max()) // self.warp_size + 1) * self.warp_size
        shift = n.bit_length()
        # Sorting packed integers is faster than argsort.
        key = np.sort(((site - site.min()) * lanes + lane) << shift | np.arange(n))
        order, group = key & ((1 << shift) - 1), key >> shift
        runs = starts_of_runs(group)  # There is one run per site and lane.
        lengths = np.diff(runs, append=n)
        warps = starts_of_runs(group[runs] // self.warp_size)  # This is the first run per site and warp.
        # A warp makes as many requests at a site as its busiest lane has accesses there.
        longest = np.maximum.reduceat(lengths, warps)
        first = np.repeat(np.cumsum(longest) - longest, np.diff(warps, append=len(runs)))
        return order, np.arange(n) + np.repeat(first - runs, lengths)

    def sectors(
        self, request: np.ndarray, address: np.ndarray, size: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return (touched, fewest) for each request to global memory.

        touched: the number of sectors that its addresses fall into.
        fewest: the minimum number of sectors for that many bytes.

        Bytes accessed by several lanes count once.
        """
        count, low = int(request.max()) + 1, int(address.min()) // self.sector_bytes * self.sector_bytes
        span = max(int(address.max()) - low + 1, self.sector_bytes).bit_length()
        key = np.sort(request << span | (address - low))
        key = key[starts_of_runs(key)]
        nbytes = np.zeros(count, np.int64)
        nbytes[request] = size  # All accesses of an instruction have the same size.
        fewest = -(-np.bincount(key >> span, minlength=count) * nbytes // self.sector_bytes)
        sector = key // self.sector_bytes
        touched = np.bincount(key[starts_of_runs(sector)] >> span, minlength=count)
        return touched, fewest

    def wavefronts(
        self, request: np.ndarray, lane: np.ndarray, address: np.ndarray, size: np.ndarray, serial: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return three arrays, (wavefronts, fewest, ways), with one entry per request to shared memory.

        A wavefront, Nsight Compute's term, is one pass of the banks: each bank serves one 4-byte word to all
        lanes that access that word. Accesses of 8 bytes are served per half warp, and accesses of 16 bytes
        per quarter warp.

        wavefronts: the number of wavefronts.
        fewest: the number of wavefronts without bank conflicts.
        ways: the maximum number of different words in one bank.

        serial: for each access, whether lanes that access the same word are served one after another, as for
            atomics.

        Source: CUDA C++ Programming Guide, "Shared Memory", for compute capability 5.x and later.
        """
        count, words = int(request.max()) + 1, np.maximum(size // self.bank_bytes, 1)
        phases = np.ones(count, np.int64)
        phases[request] = -(-self.warp_size * words // self.banks)
        first = np.cumsum(phases) - phases
        # A row per phase (half or quarter warp), with an entry per lane: the accessed word, as bank << shift
        # | row within the bank.
        word = address // self.bank_bytes
        word -= word.min() // self.banks * self.banks
        shift = (int(word.max()) + int(words.max())).bit_length()
        wanted = np.full(int(phases.sum()) * self.banks, NOTHING, np.int32)
        place = first[request] * self.banks + lane % self.warp_size * words
        for part in range(int(words.max())):
            has = words > part
            wanted[place[has] + part] = (word[has] + part) % self.banks << shift | (
                word[has] + part
            ) // self.banks
        wanted = np.sort(wanted.reshape(-1, self.banks), axis=1)
        # A word counts once per bank, or once per lane if the accesses are serial.
        new = np.empty(wanted.shape, bool)
        new[:, 0] = True
        np.not_equal(wanted[:, 1:], wanted[:, :-1], out=new[:, 1:])
        if serial.any():
            is_serial = np.zeros(count, bool)
            is_serial[request] = serial
            new |= np.repeat(is_serial, phases)[:, None]
        new &= wanted != NOTHING
        # Count the words per bank in each phase.
        place = np.flatnonzero(new)
        bank = wanted.reshape(-1)[place] >> shift
        words = np.bincount(place // self.banks * self.banks + bank, minlength=wanted.size)
        ways = words.reshape(wanted.shape).max(axis=1)
        return (
            np.add.reduceat(ways, first, dtype=np.int64),
            np.add.reduceat(new[:, 0], first, dtype=np.int64),
            np.maximum.reduceat(ways, first),
        )


def starts_of_runs(values: np.ndarray) -> np.ndarray:
    """Return the positions where a new value starts in a sorted array of non-negative integers."""
    return np.flatnonzero(np.diff(values, prepend=-1))
