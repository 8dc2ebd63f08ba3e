"""Importers: the graphs of PyTorch's tracers to the `aten` dialect."""
