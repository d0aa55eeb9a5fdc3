"""Flash attention: softmax(scale · q kᵀ) v without storing the N×N matrix.

The inputs are queries, keys and values (B, H, N, d). The results are O (B, H, N, d) and L (B, H, N), the
log-sum-exp of each query's scores. Read the files in this order:

    operators.py        the host side: checks the arguments, launches a kernel, defines the gradient
    window.py           sliding windows
    forward.py          the float32 kernel: one thread per query, K and V tile by tile in shared memory
    warp.py             the same result with one warp per query, merged by five shuffles
    tensor_forward.py   bfloat16 and float16 on tensor cores
    hopper_blocks.py    blocks of warp groups (compute capability 9.0): sizes, work, copies of tiles
    hopper_forward.py   bfloat16 and float16 with products of warp groups
    decode.py           decoding of one token: the keys are split among warps
"""
