"""The passes, one file each, and the registry that maps a pass name to its class."""

PASSES: dict[str, str] = {}
"""For each pass name its class as `module:Class`, loaded on use."""
