"""Checks of snapshots and outcome files."""
