"""Device functions for the convolution of scores with taps; each thread computes a strip of adjacent columns.

A strip is STRIP adjacent columns of one row. ROW_THREADS threads share a row. Taps are stored in shared
memory, zero-padded to TAPS × TAPS.
"""

from numba import cuda
from numpy import float32

from kernels.common.tiles import GROUP, INDEX

STRIP, ROW_THREADS = 8, 4  # adjacent columns per thread; threads per row
TAPS = 16  # rows and columns of taps in shared memory: 15, rounded up to a multiple of GROUP
WINDOW = STRIP + GROUP
# Registers per thread. With 128, two blocks of 256 threads are resident. The latency that the
# second block hides outweighs the cost of spilling.
MOST_REGISTERS = 128


@cuda.jit(device=True)
def load_taps(taps, w, flipped):
    """Load w (c_q, c_k) into taps (TAPS, TAPS) with zero padding; reverse both dimensions if `flipped`."""
    c_q, c_k = w.shape
    for element in range(cuda.threadIdx.x, TAPS * TAPS, cuda.blockDim.x):
        a, b = element // TAPS, element % TAPS
        tap = float32(0)
        if a < c_q and b < c_k:
            tap = w[c_q - 1 - a, c_k - 1 - b] if flipped else w[a, b]
        taps[a, b] = tap


@cuda.jit(device=True)
def convolve_strip(strip, place, tile, taps, i, j, c_q, c_k):
    """Set strip[place + x] to Σ_ab taps[a, b] · tile[i + a, j + x + b], for each x < STRIP.

    For each row of taps, the thread loads each element of the tile once, into a window of registers, and uses
    it for up to STRIP sums. The window then moves on by GROUP columns.
    """
    window = cuda.local.array(WINDOW, float32)
    for x in range(STRIP):
        strip[place + x] = float32(0)
    for a in range(c_q):
        for x in range(STRIP):
            window[x] = tile[i + a, (j & INDEX) + x]
        add_group(strip, place, window, tile, taps, i, j, a, 0)
        if c_k > GROUP:
            add_group(strip, place, window, tile, taps, i, j, a, GROUP)
            if c_k > 2 * GROUP:
                add_group(strip, place, window, tile, taps, i, j, a, 2 * GROUP)
                if c_k > 3 * GROUP:
                    add_group(strip, place, window, tile, taps, i, j, a, 3 * GROUP)


@cuda.jit(device=True)
def add_group(strip, place, window, tile, taps, i, j, a, b):
    """Add strip[place + x] += Σ_y taps[a, b + y] · tile[i + a, j + x + b + y] for y < GROUP.

    Afterwards, `window` contains the STRIP columns that begin at column j + b + GROUP.
    """
    for x in range(GROUP):
        window[STRIP + x] = tile[i + a, ((j + b) & INDEX) + STRIP + x]
    for y in range(GROUP):
        tap = taps[a, (b & INDEX) + y]
        for x in range(STRIP):
            strip[place + x] += tap * window[x + y]
    for x in range(STRIP):
        window[x] = window[x + GROUP]


@cuda.jit(device=True)
def add_tap_gradients(sums, g_tile, s_tile, a, b, part, parts, rows, first, last):
    """Accumulate Σ_ij dT[i, j] · S0[i + a, j + b + x] in sums[x].

    The sum covers the rows part, part + parts, … < rows and the columns [first, last). The window of S0
    slides through registers as in `convolve_strip`.
    """
    window = cuda.local.array(WINDOW, float32)
    for i in range(part, rows, parts):
        for x in range(STRIP):
            window[x] = s_tile[i + a, ((first + b) & INDEX) + x]
        for j in range(first, last, GROUP):
            for x in range(GROUP):
                window[STRIP + x] = s_tile[i + a, ((j + b) & INDEX) + STRIP + x]
            for y in range(GROUP):
                d_t = g_tile[i, (j & INDEX) + y] if j + y < last else float32(0)
                for x in range(STRIP):
                    sums[x] += d_t * window[x + y]
            for x in range(STRIP):
                window[x] = window[x + GROUP]
