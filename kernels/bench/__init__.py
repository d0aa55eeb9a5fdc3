"""Programs that compare and time the kernels. Each is run as python -m kernels.bench.NAME.

    compare          correctness: every kernel by every engine and on the GPU, against float64
    languages        correctness of the kernels in CUDA C++ and Triton
    conv             times of convolutional attention next to PyTorch; also python -m kernels.bench
    latent, multi_token, attention, distributed
                     times of the other kinds of attention
    tensor_kernels   registers, occupancy and times of the kernels on tensor cores
    launch           the host's time of a launch
    plots            the README's figures from the recorded tables

`timing.py` has the clocks that these programs share, `counters.py` the simulator's counters next to ncu's.
`record/` writes the data that lessons show.
"""
