"""`sparklog sql`: statements, output, and the prompt."""
