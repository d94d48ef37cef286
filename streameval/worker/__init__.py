"""The running service around the core: the loop, its partitions, restore, the process."""
