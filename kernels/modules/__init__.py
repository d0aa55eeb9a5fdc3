"""The kernels as layers: nn.Modules that take the place of PyTorch's own."""
