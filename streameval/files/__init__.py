"""Outcome files, snapshots and tables, on disks and in object stores."""
