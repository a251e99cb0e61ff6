"""What operators ask for: topics, groups, transactions, offsets."""
