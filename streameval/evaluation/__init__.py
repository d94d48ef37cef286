"""Figures of files: readers, sums, reports."""
