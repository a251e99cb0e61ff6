"""Processes that the broker starts beside itself, and ends with itself."""
