"""Checks of outcome files, snapshots and the log: one file for each.

`evidence` gathers their data, `catalogue` has them, `run` runs them. A check is a function of the
evidence and its settings; it reads no clock and writes nothing.
"""
