"""Child processes of the broker, which it starts and stops with itself."""
