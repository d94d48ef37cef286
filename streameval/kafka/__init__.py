"""Kafka: records in, dead letters out. Reading stands on private parts of aiokafka 0.14."""

from importlib.metadata import version

from streameval.base.errors import RefusedError

if not version("aiokafka").startswith("0.14."):
    raise RefusedError(
        f"aiokafka {version('aiokafka')} is installed, and reading stands on private parts of 0.14:"
        " pip install 'aiokafka==0.14.0'"
    )
