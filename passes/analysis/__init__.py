"""What several passes ask of the IR: index values, their ranges, loop nests, order of effects. Nothing here changes the IR."""
