"""SQL over topics: DuckDB does the SQL, the topics are its tables (`sparklog.sql`, `sparklog sql`).

In this order: `session` takes a statement, `newest` bounds its "newest N rows", `topic_table` is the table that DuckDB
scans, `ranges` (pure) turns DuckDB's filter into offsets and times, `scan` reads them.
"""
