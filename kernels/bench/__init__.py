"""Programs that compare and time the kernels; python -m kernels.bench times convolutional attention."""
