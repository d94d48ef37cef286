"""Profiles: what the messages of other trackers become, as events of streameval."""
