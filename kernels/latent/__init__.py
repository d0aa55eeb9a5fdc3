"""Reciprocal and latent attention: all heads share latent keys and values, which W_q and W_v project for each
head.

Queries (B, H, N, d), latents k̃ and ṽ (B, N_k, L), W_q (H, d, L) and W_v (H, L, d) enter; O (B, H, N, d) and
L (B, H, N), the log-sum-exp of each query's scores, leave. No N×N_k matrix and no expanded key or value is
stored. Read the files in this order:

    operators.py          the public function: checks arguments, defines the gradient
    arguments.py          the checks
    tiles.py              device functions: a resident tile, streamed tiles, and their products
    forward.py            the float32 forward kernel, and the formulas
    backward.py           the formulas of the gradients, and the host side
    backward_queries.py, backward_keys.py
                          its two kernels
    decode.py             one new token: the latents are split among blocks
    tensor_forward.py, tensor_decode.py
                          the same for bfloat16 and float16, on tensor cores
"""
