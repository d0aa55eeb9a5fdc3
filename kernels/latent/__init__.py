"""Latent attention with a reciprocal term: all heads share latent keys and values.

The inputs are queries (B, H, N, d), latents k̃ and ṽ (B, N_k, L), and per-head projections W_q (H, d, L) and
W_v (H, L, d). The results are O (B, H, N, d) and L (B, H, N), the log-sum-exp of each query's scores. Neither
N×N_k matrices nor projected keys or values are stored. Read the files in this order:

    operators.py          the public function: checks arguments, defines the gradient
    arguments.py          the checks
    tiles.py              device functions: a resident tile, streamed tiles, and their products
    forward.py            the float32 forward kernel, and the formulas
    backward.py           the formulas of the gradients, and the host side
    backward_queries.py, backward_keys.py
                          the two backward kernels
    decode.py             decoding of one token: the latents are split among blocks
    tensor_forward.py, tensor_backward.py, tensor_decode.py
                          the same for bfloat16 and float16, on tensor cores
    tensor_sums.py        the sums of the heads' gradients in 16 bits
"""
