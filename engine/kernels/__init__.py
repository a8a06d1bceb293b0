"""Kernels: in Triton for GPUs, compiled by LLVM for CPUs."""
