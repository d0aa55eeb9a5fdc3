"""Code that the kernels on tensor cores share; all take bfloat16 or float16 and accumulate in float32.

Tensors enter as int16 bits, in rows padded to 64 or 128 elements; O leaves as int32, two 16-bit values each.
Read the files in this order:

    instructions.py   `mma`, `ldmatrix`, `cp.async` and conversions, as inline PTX
    tiles.py          device functions: copies of tiles, the online softmax, products of a warp's rows
    launch.py         the host side: pad and view the tensors, choose the grid, launch
"""
