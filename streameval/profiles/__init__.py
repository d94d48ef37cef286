"""Profiles: messages of other trackers as events of streameval."""
