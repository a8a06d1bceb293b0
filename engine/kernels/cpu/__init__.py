"""Kernels for CPUs, written in LLVM's intermediate form and compiled for the machine they run on."""
