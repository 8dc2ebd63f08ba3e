"""Which loops of a kernel become the axes of blocks, and how long they are; used by `loop-tile-blocks`."""
