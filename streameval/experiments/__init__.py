"""Experiments judged: the `scorecard` of the sums (`core.experiments`) by the rules of `stats`."""
