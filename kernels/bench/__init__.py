"""Programs that validate and time the kernels. Run each one as python -m kernels.bench.NAME.

    compare          correctness: every kernel on every engine and on the GPU, against float64
    languages        correctness of the kernels in CUDA C++ and Triton
    conv             times of convolutional attention compared with PyTorch; also python -m kernels.bench
    latent, multi_token, attention, distributed
                     times of the other kinds of attention
    tensor_kernels   registers, occupancy and times of the tensor-core kernels
    launch           host time of a launch
    plots            the README's figures, from recorded results

`timing.py` has the timers that these programs share; `counters.py` compares the simulator's counters with
ncu's. `record/` writes the data that lessons show.
"""
