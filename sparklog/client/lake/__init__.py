"""The lake worker: reads topics with the native client and appends them to their Delta tables."""
