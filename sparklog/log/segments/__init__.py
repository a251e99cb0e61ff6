"""The segment files of a log: reading, writing and finding in one, and a log's list of them."""
