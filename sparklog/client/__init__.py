"""Producer, Consumer and Admin: synchronous, with threads inside where needed."""
