"""The log's values and policies, without files."""
