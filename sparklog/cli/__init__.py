"""The `sparklog` command; the only place that may import every layer."""
