"""The logs of partitions on a file system, and the log directories, housekeeping and repair tools around them."""
