"""Redis: counters, offsets, checkpoints, the lease."""
