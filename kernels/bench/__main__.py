"""Entry point of python -m kernels.bench: time convolutional attention on this GPU, as `kernels.bench.conv`
does."""

from kernels.bench.conv import main

main()
