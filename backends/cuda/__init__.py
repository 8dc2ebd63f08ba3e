"""CUDA devices: loading compiled kernels through the driver, and launching them."""
