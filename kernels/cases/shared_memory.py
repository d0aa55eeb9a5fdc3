"""The static shared memory, in bytes, of each launch of the convolutional and multi-token kernels."""

from kernels.common.arguments import MAX_HEAD_DIM, MOST_TAPS
from kernels.common.launch import width_for
from kernels.common.splits import LANES, MERGING_WARPS
from kernels.common.strips import TAPS
from kernels.conv import backward as conv_backward
from kernels.conv import decode as conv_decode
from kernels.conv import forward as conv_forward
from kernels.conv.tiles import PADDING
from kernels.multi_token import decode_scores, decode_values
from kernels.multi_token import kernels as multi_token_kernels
from kernels.multi_token.decode import class_of


def conv_forward_shared(d, **_):
    """Return the bytes of shared memory: scores, a chunk each of q and k, some rows of v, the taps, and a
    factor per row."""
    size = conv_forward.SIZE
    chunks = 2 * size * conv_forward.CHUNK_WORDS + conv_forward.ROWS_AT_A_TIME * width_for(d)
    return (4 * (size * (size + PADDING) + chunks + TAPS**2 + size),)


def conv_backward_shared(d, **_):
    """Return the bytes of shared memory, which are equal for both kernels.

    Shared memory holds tiles of scores and of their gradients, a chunk of each factor of both products, some
    rows, and the taps in both directions.
    """
    size = conv_backward.SIZE
    chunks = 2 * size * conv_backward.CHUNK_WORDS + min(16 * width_for(d), 512)
    return (4 * (2 * size * (size + PADDING) + chunks + 2 * TAPS**2),) * 2


def conv_decode_shared(d, c_q, **_):
    """Return the bytes of shared memory of both launches.

    split   per warp a sub-tile of K, its ring buffers, o, weights, m, l; the window of queries and its taps
    merge   o and l of the merging warps
    """
    lanes, warps = conv_decode.LANES, conv_decode.WARPS
    width, slots = -(-d // lanes) * lanes, -(-c_q // 4) * 4
    own = warps * (lanes * conv_decode.PITCH + slots * conv_decode.RING + width + lanes + 2)
    return 4 * (own + (width + MOST_TAPS) * slots), 4 * MERGING_WARPS * (MAX_HEAD_DIM + 1)


def multi_token_shared(heads, **_):
    """Return {kernel: bytes of shared memory}.

    convolve       a tile with its halo, and the taps
    mix            a map
    softmax        the maximum and the sum of each warp
    taps           both tiles
    """
    halo = multi_token_kernels.HALO_ROWS * multi_token_kernels.PITCH
    gradients = multi_token_kernels.SIZE * multi_token_kernels.GRADIENT_PITCH + multi_token_kernels.THREADS
    sums = 4 * multi_token_kernels.WARPS
    return dict(
        convolve=4 * (halo + TAPS**2),
        mix=4 * heads**2,
        softmax=2 * sums,
        softmax_back=sums,
        taps=4 * (halo + gradients),
    )


def multi_token_row_shared(heads, c_q, **_):
    """Return the bytes of shared memory of the four launches that decode one token.

    window   sub-tiles of K, scores, the window of queries and its taps
    mix      the map, its values and statistics
    values   P, U, O and the statistics
    merge    partial sums and a row
    """
    scores, values, rows, most = decode_scores, decode_values, 2 * c_q - 1, class_of(heads)
    slots, tap_slots = (-(-count // 4) * 4 for count in (rows, c_q))
    pieces = scores.WINDOW_WARPS * (scores.KEYS * scores.PITCH + rows * scores.TILE)
    return (
        4 * (pieces + MAX_HEAD_DIM * slots + MOST_TAPS * tap_slots),
        4 * most * (most + scores.mixed_keys(most) * scores.MIX_THREADS + 2),
        4 * (min(values.VALUE_WARPS, most) * c_q * values.SPAN + most * (LANES + MAX_HEAD_DIM + 2 * c_q)),
        4 * (values.MERGE_THREADS + MAX_HEAD_DIM),
    )


def of_launches(names):
    """Return a function (**size) -> list of the bytes of shared memory of the kernels with these names."""
    return lambda **size: tuple(multi_token_shared(**size)[name] for name in names.split())
