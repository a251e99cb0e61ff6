"""The `sparklog` command. Only this package may import every layer."""
