"""The pure core: no I/O, no clock, no environment, no randomness. Start with `partition`."""
