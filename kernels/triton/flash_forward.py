"""Flash attention forward pass in Triton: one program per tile of queries, looping over tiles of keys.

Algorithm, names and grid are those of `kernels/flash/forward.py`, without threads: a row of o is a row of a
tile, K and V are loaded where they are used, and there are no barriers. The compiler decides whether tiles
pass through shared memory, in which order, and where barriers are needed.
"""

from kernels.common.arguments import attention_arguments
from kernels.common.launch import output, width_for
from kernels.triton.launch import launch
from kernels.triton.optional import tl, triton
from kernels.triton.tiles import head_of_program, load_rows, products, reciprocal, store_rows, weight

ROWS, KEYS = 64, 32  # queries per program; keys per tile


@triton.jit(do_not_specialize=["n", "keys"])
def flash_forward_kernel(
    q,
    k,
    v,
    scale,
    o,
    log_sum,
    n,
    keys,
    d,
    CAUSAL: tl.constexpr,
    ROWS: tl.constexpr,
    KEYS: tl.constexpr,
    WIDTH: tl.constexpr,
):
    """Compute attention o (B, H, n, d) of q (B, H, n, d), k and v (B, H, keys, d), and its log-sum-exp
    log_sum (B, H, n), all float32."""
    head, i0 = head_of_program(), tl.program_id(0) * ROWS
    k_rows, v_rows = k + head * keys * d, v + head * keys * d
    i = i0 + tl.arange(0, ROWS)
    # 1. load the queries, and initialise the state
    q_tile = scale * load_rows(q + head * n * d, i0, n, d, ROWS, WIDTH)
    o_tile = tl.zeros((ROWS, WIDTH), tl.float32)
    m, l = tl.full((ROWS,), float("-inf"), tl.float32), tl.zeros((ROWS,), tl.float32)
    # 2. loop over every tile with a key that some query sees
    last_key = tl.minimum(keys, i0 + ROWS) if CAUSAL else keys
    for j0 in range(0, last_key, KEYS):
        j = j0 + tl.arange(0, KEYS)[None, :]
        seen = (j < keys) & (j <= i[:, None]) if CAUSAL else j < keys
        scores = products(q_tile, load_rows(k_rows, j0, keys, d, KEYS, WIDTH))
        scores = tl.where(seen, scores, float("-inf"))
        larger = tl.maximum(m, tl.max(scores, 1))
        shrink, p = weight(m, larger), weight(scores, larger[:, None])
        m, l = larger, l * shrink + tl.sum(p, 1)
        v_tile = load_rows(v_rows, j0, keys, d, KEYS, WIDTH)
        o_tile = o_tile * shrink[:, None] + tl.dot(p, v_tile, input_precision="ieee")
    # 3. normalise and store
    store_rows(o + head * n * d, i0, ROWS, n, d, o_tile * reciprocal(l)[:, None])
    tl.store(log_sum + head * n + i, m + tl.log(l), mask=i < n)


def flash_forward(q, k, v, causal=True, scale=None, run=None, rows=ROWS, keys=KEYS, num_warps=4):
    """Return (O, L) like `kernels.flash.forward.flash_forward`, float32 only.
    rows, keys: tile sizes, powers of two; keys at least 16."""
    q, k, v, scale = attention_arguments(q, k, v, scale)
    batch, heads, n, d = q.shape
    o, log_sum = output(q.shape, like=q), output(q.shape[:3], like=q)
    constants = dict(CAUSAL=bool(causal), ROWS=rows, KEYS=keys, WIDTH=width_for(d), num_warps=num_warps)
    grid = (-(-n // rows), heads, batch)
    arguments = q, k, v, scale, o, log_sum, n, k.shape[2], d
    launch(flash_forward_kernel, grid, *arguments, **constants, run=run)
    return o, log_sum
