"""Kernels for GPUs in Triton, each beside its plain-torch reference; loaded only where they run."""
