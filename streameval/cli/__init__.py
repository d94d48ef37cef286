"""The command line, one file a large command."""
