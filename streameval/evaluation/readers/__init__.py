"""Readers: files to batches of units."""
