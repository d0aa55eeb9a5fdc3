"""Code shared by all kinds of attention. Read the files in this order:

arguments.py         checks of shapes, types and devices, and their error messages
launch.py            launch a kernel in the simulator (CPU tensors) or on a GPU (CUDA tensors)
device_argument.py   pass a CUDA tensor to a Numba kernel with little overhead
autograd.py          register gradients of custom operators
tiles.py             device functions: weights of the online softmax, copies into shared memory
strips.py            device functions: convolution of scores with taps
splits.py            decoding: divide the keys among blocks, and merge the partial results
extent.py            the part of a longer sequence that a launch computes
kv_cache.py          caches for decoding: keys, values and the latest queries
data.py              recorded measurements and PTX
"""
