"""Delta tables of topics: the rules of a round, the table, its Parquet files. `worker` is a layer above the client."""
