"""`sparklog sql`: runs SQL statements, shows their results, and has a prompt."""
