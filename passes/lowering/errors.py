"""The way in which a lowering says that it does not handle a call."""

from __future__ import annotations


class NotLoweredError(Exception):
    """A call has arguments that no rule covers: it stays an ATen call. The text says what they are."""
