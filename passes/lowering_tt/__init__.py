"""How loop kernels become Triton IR; see `passes/convert_loop_to_tt.py`."""
