"""The reference interpreter: runs the levels above machine code on torch tensors."""
