"""The passes, one file each, and the registry that maps a pass name to its class."""

PASSES: dict[str, str] = {
    "assign-layouts": "tilewright.passes.assign_layouts:AssignLayoutsPass",
    "buffer-reuse": "tilewright.passes.buffer_reuse:BufferReusePass",
    "bufferize": "tilewright.passes.bufferize:BufferizePass",
    "canonicalize": "tilewright.passes.canonicalize:CanonicalizePass",
    "convert-aten-to-loop": "tilewright.passes.convert_aten_to_loop:ConvertAtenToLoopPass",
    "convert-loop-to-cpu": "tilewright.passes.convert_loop_to_cpu:ConvertLoopToCpuPass",
    "elide-copies": "tilewright.passes.elide_copies:ElideCopiesPass",
    "fold-add-into-mm": "tilewright.passes.fold_add_into_mm:FoldAddIntoMmPass",
    "generalize-kernels": "tilewright.passes.generalize_kernels:GeneralizeKernelsPass",
    "loop-collapse": "tilewright.passes.loop_collapse:LoopCollapsePass",
    "loop-fold-views": "tilewright.passes.loop_fold_views:LoopFoldViewsPass",
    "loop-fuse": "tilewright.passes.loop_fuse:LoopFusePass",
    "loop-simplify-index": "tilewright.passes.loop_simplify_index:LoopSimplifyIndexPass",
    "loop-hoist": "tilewright.passes.loop_hoist:LoopHoistPass",
    "loop-save-values": "tilewright.passes.loop_save_values:LoopSaveValuesPass",
    "loop-split-ranges": "tilewright.passes.loop_split_ranges:LoopSplitRangesPass",
    "loop-tile": "tilewright.passes.loop_tile:LoopTilePass",
    "merge-kernels": "tilewright.passes.merge_kernels:MergeKernelsPass",
    "order-writes": "tilewright.passes.order_writes:OrderWritesPass",
    "outline-kernels": "tilewright.passes.outline_kernels:OutlineKernelsPass",
    "recompose-upsampling": "tilewright.passes.recompose_upsampling:RecomposeUpsamplingPass",
    "reinplace": "tilewright.passes.reinplace:ReinplacePass",
    "retarget": "tilewright.passes.retarget:RetargetPass",
    "vectorize": "tilewright.passes.vectorize:VectorizePass",
}
"""For each pass name its class as `module:Class`, loaded on use."""
