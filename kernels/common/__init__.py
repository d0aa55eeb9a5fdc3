"""Code that all attention kernels share: arguments, launches, splits, autograd, caches and device
functions."""
