"""Code shared by the tensor-core kernels, which compute in bfloat16 or float16 with float32 accumulators.

Kernels receive 16-bit tensors as int16 bit patterns, in rows padded to 64 or 128 elements. They store O as
int32, two 16-bit values per element. Read the files in this order:

    instructions.py      `mma`, `ldmatrix`, `cp.async` and conversions, as inline PTX
    tiles.py             device functions: copies of tiles, the online softmax, products of a warp's rows
    windows.py           device functions of decoding: a warp's products of keys with a window of queries
    row_products.py      row sums of the product of two tensors
    launch.py            the host side: pad and view the tensors, choose the grid, launch
    warpgroup.py         `wgmma` and other instructions of warp groups (compute capability 9.0)
    bulk_copies.py       bulk copies (TMA) and transaction barriers
    warpgroup_tiles.py   device functions: products, softmax and stores of a warp group's accumulators
"""
