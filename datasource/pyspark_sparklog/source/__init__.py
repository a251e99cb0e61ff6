"""The batch and streaming source."""
