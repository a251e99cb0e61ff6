"""One partition's log on a file system: append, read, roll, seal, reopen."""
