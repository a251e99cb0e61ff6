"""SQL over topics: DuckDB does the SQL, the topics are its tables (`sparklog.sql`, `sparklog sql`).

In this order: `session` takes a statement, `newest` bounds its "newest N rows", `topic_table` is what DuckDB scans,
`ranges` (pure) makes offsets and times of DuckDB's filter, `scan` reads them.
"""
