"""The multi-token layer: convolutions and head maps before and after the softmax, then a norm and a gate.

The inputs are queries, keys and values (B, H, N, d) and the parameters of the optional operations; the result
is y (B, H, N, d). `multi_token_attention` in operators.py has the formulas. Read the files in this order:

    operators.py        the public functions: check arguments, define the gradient
    bands.py            forward and backward pass, one band of query rows at a time
    stages.py           the stages of a pass, each a product or a kernel over a band
    kernels.py          the kernels for bands of float32 scores
    tensor_*.py         the kernels for bands of bfloat16 scores, on tensor cores
    decode.py           decoding of one token, in the four kernels of decode_scores.py and decode_values.py;
                        for 16-bit tensors, tensor_decode.py replaces two of them. On compute capability 9.0,
                        hopper_scores.py and hopper_values.py replace three; hopper_decode.py has the steps
                        that these two kernels share
"""
