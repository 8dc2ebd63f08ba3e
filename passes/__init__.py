"""The passes, one file each, and the registry that maps a pass name to its class."""

PASSES: dict[str, str] = {
    "merge-kernels": "tilewright.passes.merge_kernels:MergeKernelsPass",
    "outline-kernels": "tilewright.passes.outline_kernels:OutlineKernelsPass",
    "buffer-reuse": "tilewright.passes.buffer_reuse:BufferReusePass",
    "canonicalize": "tilewright.passes.canonicalize:CanonicalizePass",
    "bufferize": "tilewright.passes.bufferize:BufferizePass",
    "loop-fold-views": "tilewright.passes.loop_fold_views:LoopFoldViewsPass",
    "loop-fuse": "tilewright.passes.loop_fuse:LoopFusePass",
    "loop-simplify-index": "tilewright.passes.loop_simplify_index:LoopSimplifyIndexPass",
}
"""For each pass name its class as `module:Class`, loaded on use."""
