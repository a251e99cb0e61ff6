"""Schemas of a registry: Avro, JSON Schema and Protobuf, with their rules of compatibility."""
