"""The multi-token layer: convolutions and maps over heads before and after the softmax, then a norm and a
gate.

Queries, keys and values (B, H, N, d) and the layer's optional parts enter; y (B, H, N, d) leaves. The
formulas are those of `multi_token_attention` in operators.py. Read the files in this order:

    operators.py   the public functions: check arguments, define the gradient
    bands.py       forward and backward, a band of query rows at a time
    kernels.py     the kernels that a band is passed through
    decode.py      one new token, in four kernels: two in decode_scores.py, two in decode_values.py
"""
