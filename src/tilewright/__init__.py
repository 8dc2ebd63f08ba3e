"""A `torch.compile` backend whose every stage is a textual IR."""

__version__ = "0.1.0"
