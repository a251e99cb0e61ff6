"""What is deleted for its age or size, and the clock by which things grow old."""
