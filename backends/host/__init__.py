"""The host program around the kernels: compiled, or printed as Python, with its calls into ATen."""
