"""Targets: each folder checks what may arrive, prints it as target text, then compiles and runs that text."""
