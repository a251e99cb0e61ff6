"""Mirrors: topics that are filled from the topics of a Kafka cluster, with the same offsets. The rules are pure."""
