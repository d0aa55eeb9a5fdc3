"""Flash attention: softmax(scale · q kᵀ) v without the N×N matrix in memory.

Queries, keys and values (B, H, N, d) enter; O (B, H, N, d) and L (B, H, N), the log-sum-exp of each query's
scores, leave. Read the files in this order:

    operators.py        the host side: checks the arguments, launches a kernel, defines the gradient
    window.py           sliding windows
    forward.py          the float32 kernel: a thread for each query, K and V tile by tile in shared memory
    warp.py             the same result by a warp for each query, which five shuffles merge
    tensor_forward.py   bfloat16 and float16 on tensor cores
    decode.py           one new token: the keys are split among warps
"""
