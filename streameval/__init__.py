"""streameval: evaluation that runs while a recommender serves."""

__version__ = "0.1.0"
