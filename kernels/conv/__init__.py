"""Convolutional attention: the scores are convolved with taps before the softmax.

The inputs are queries, keys and values (B, H, N, d) and taps (H, c_q, c_k). The results are O (B, H, N, d)
and L (B, H, N), the log-sum-exp of each query's scores. For one head, with P_q = c_q - 1 and P_k = (c_k - 1)
// 2:

    S0 = scale · q kᵀ, 0 where masked
    T[i, j] = Σ_ab w[a, b] · S0[i - P_q + a, j - P_k + b], -inf where masked
    O = softmax(T) v

Read the files in this order:

    operators.py         the public function: checks arguments, defines the gradient
    tiles.py             device functions: products of tiles, and the mapping of threads to elements
    forward.py           the float32 forward kernel
    backward.py          the two float32 backward kernels: dQ and dW, then dK and dV; backward_tiles.py has
                         their device functions
    decode.py            decoding of one token, with the keys split among warps
    tensor_forward.py, tensor_backward.py (with tensor_backward_tiles.py, tensor_sums.py), tensor_decode.py
                         the same for bfloat16 and float16, on tensor cores
    hopper_forward.py    the forward kernel with `wgmma`, for GPUs of compute capability 9.0; hopper_tiles.py
                         has its device functions
    banded_backward.py   the backward pass of 16-bit tensors on GPUs of compute capability 9.0. Its kernels
                         are in banded_wgmma.py (with banded_convolution.py), banded_scores.py (the same
                         with `mma.sync`, for wide heads and many taps), both with banded_tiles.py, and
                         banded_products.py
"""
