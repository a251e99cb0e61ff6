"""Administration: topics, groups, transactions, offsets."""
