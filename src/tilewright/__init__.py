"""A `torch.compile` backend whose every stage is a textual IR."""

from tilewright.stats import last_compile_stats, reset_compile_stats

__all__ = ["__version__", "last_compile_stats", "reset_compile_stats"]

__version__ = "0.1.0"
