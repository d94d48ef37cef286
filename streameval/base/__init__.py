"""Small helpers that know nothing of streameval: errors, bounds, durations, waiting."""
