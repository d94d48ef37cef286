"""Kafka: records in, dead letters out. Reading stands on private parts of one aiokafka."""

from importlib.metadata import version
from typing import Final

from streameval.base.errors import RefusedError

AIOKAFKA: Final = "0.14.0"
"""The release whose private parts `aiokafka_internals` knows, as pyproject.toml names it."""

if version("aiokafka") != AIOKAFKA:
    raise RefusedError(
        f"aiokafka {version('aiokafka')} is installed, and reading stands on private parts of"
        f" {AIOKAFKA}: pip install 'aiokafka=={AIOKAFKA}'"
    )
