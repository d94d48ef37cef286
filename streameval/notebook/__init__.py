"""The public Python functions: what the commands compute, of frames and for notebooks."""
