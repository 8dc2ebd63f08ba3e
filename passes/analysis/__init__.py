"""What several passes ask of the IR: index values and ranges, nests, memory, order. Nothing here changes the IR."""
