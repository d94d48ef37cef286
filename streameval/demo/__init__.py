"""The whole service on a simulated recommender: `streameval demo`."""
