"""The IR of each level: one file per dialect, with its verifiers and canonicalization patterns."""
