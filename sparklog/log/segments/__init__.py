"""The segments of a log: reading, writing and searching a segment file, and the list of a log's segments."""
