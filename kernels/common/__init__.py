"""Code that all kinds of attention share. Read the files in this order:

arguments.py         check tensors by the letters of their dimensions, types and devices; error messages
launch.py            launch a kernel on the simulator (CPU tensors) or on a GPU (CUDA tensors)
device_argument.py   a CUDA tensor as a kernel's argument
autograd.py          gradients of operators
tiles.py             device functions: the online softmax's weights, tiles into shared memory
strips.py            device functions: the convolution of scores with taps
splits.py            divide the keys of one new token among blocks, and merge their results
extent.py            which scores a launch owns in a part of a longer sequence
kv_cache.py          keys, values and queries that decoding keeps
data.py              recorded measurements and PTX
"""
