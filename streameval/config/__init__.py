"""The configuration of a process: its keys, where they come from, and its log."""
