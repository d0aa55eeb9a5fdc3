"""Code shared by all kinds of attention. Read the files in this order:

arguments.py         checks of shapes, types and devices, and their error messages
launch.py            launch a kernel in the simulator (CPU tensors) or on a GPU (CUDA tensors)
specialised.py       pack the arguments of a launch once per shape; load machine code
fingerprint.py, code_cache.py
                     hash a kernel and everything that it calls; keep its machine code on disk
driver.py            the functions of the CUDA driver that load and launch kernels
second_stream.py     launch independent kernels at the same time
device_argument.py   pass a CUDA tensor to a kernel that only Numba can launch
warm_up.py           compile kernels ahead of their first use
autograd.py          register gradients of custom operators, and call them with little overhead
tiles.py             device functions: weights of the online softmax, copies into shared memory
strips.py            device functions: convolution of scores with taps
splits.py            decoding: divide the keys among blocks, and merge the partial results
extent.py            the part of a longer sequence that a launch computes
kv_cache.py          caches for decoding: keys, values and the latest queries
data.py              recorded measurements and PTX
"""
