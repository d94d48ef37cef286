"""Checks of outcome files, snapshots and the log: one check one file, in an ordered table.

`evidence` gathers what they look at, `registry` lists them, `run` runs them. A check is a function
of the evidence and its settings; it reads no clock and writes nothing.
"""
