"""Kafka: records in, dead letters out."""
