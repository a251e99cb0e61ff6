"""Delta tables of topics: the rules of a round, the table, its Parquet files. The worker is in `client/lake`."""
