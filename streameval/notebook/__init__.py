"""The public Python functions: the commands, of frames and for notebooks."""
