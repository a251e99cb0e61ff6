"""SQL over topics (`sparklog.sql`, `sparklog sql`): DuckDB runs the statements, and topics are its tables.

`session` receives a statement, `registered_topics` makes tables of the topics that it names, `tail_queries` finds the
offsets that a query for the newest rows needs, `topic_table` is the table that DuckDB scans, `ranges` computes offsets
and times from DuckDB's filter, and `scan` reads them.
"""
