"""The passes, one file each, and the registry that maps a pass name to its class."""
