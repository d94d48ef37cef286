"""Experiments: their `definition`, the final `sums` of their arms, the `users` of each arm."""
