"""Public test tools."""
