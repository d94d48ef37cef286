"""The command line, one file for each large command."""
