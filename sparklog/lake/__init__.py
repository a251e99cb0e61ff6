"""A topic as a Delta table: the rules of a round, the table, its Parquet files. The worker is in `client/lake`."""
