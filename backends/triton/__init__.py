"""Kernels for CUDA devices: Triton's IR as text, compiled by Triton in processes of its own."""
