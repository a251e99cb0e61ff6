"""The batch and streaming sink."""
