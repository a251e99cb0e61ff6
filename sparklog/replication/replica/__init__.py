"""One replica of one partition: the rules of its leader and of its followers, pure. See
docs/internals/replication.md."""
