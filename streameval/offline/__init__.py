"""Offline evaluation on what the stream leaves behind."""
