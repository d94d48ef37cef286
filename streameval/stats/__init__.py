"""Statistics as pure functions of sums."""
