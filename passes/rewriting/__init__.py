"""Changes of the IR that several passes make: index expressions over other values, moving and merging loops."""
