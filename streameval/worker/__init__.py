"""The running service around the core."""
