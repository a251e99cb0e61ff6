"""Options of the data source: the table, aliases, parsing."""
