"""The `sparklog` command. Only this package is allowed to import every layer."""
