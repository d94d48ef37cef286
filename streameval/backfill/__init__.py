"""Backfill: the figures of a past span of time, as Prometheus would have scraped them.

1. `logs`: event files, or the partitions of the topic, from some number on.
2. `run`: reads them once, and takes the figures at each step.
3. `work_folder`: keeps samples and state, so that a killed run goes on; writes the OpenMetrics.
"""
