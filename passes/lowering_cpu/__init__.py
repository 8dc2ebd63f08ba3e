"""What the passes from loop kernels down to the `cpu` dialect share: index analysis, the cost model, widening, emission."""
