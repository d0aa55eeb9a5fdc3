"""Unmodified Triton programs without a GPU. It requires Triton and PyTorch.

Inside `with sim.triton():`, Triton compiles kernels for sm_80 as usual, and a simulated driver runs their PTX
on CPU tensors. Tensors that a program asks for on "cuda" are created on the CPU.

Read the files in this order:

    session     sim.triton: install and remove the simulated driver; options and reports
    driver      the driver that Triton asks for its target, its properties and its launches
    launcher    one compiled kernel: arguments, hidden parameters and the simulated launch
    tensors     unwritten tensors, and tensors whose address the program has read
    tuning      replacements for autotuning and benchmarks, which a simulation cannot time
    torch_cuda  replacements for torch.cuda, and the redirection of "cuda" to the CPU
    command     python -m sim triton script.py
"""
