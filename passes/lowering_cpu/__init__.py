"""What the passes from loop kernels to the `cpu` dialect share: index analysis, cost model, widening, emission."""
