"""Who has written to a partition, and which transactions are open or aborted: rules, and the files that remember."""
