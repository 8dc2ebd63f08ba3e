"""CPU kernels: `cpu`, `scf`, `vector` and `arith` ops printed as LLVM IR and compiled in this process."""
