"""The parts of `loop-fuse`, each a decision of its own; `passes/loop_fuse.py` says in which order they work."""
