"""Programs for users: `tilewright-opt`, `-run`, `-translate` and the `torch.compile` adapter."""
