"""Where topics are stored."""
