"""Pages of a worker: metrics, health, the overview."""
