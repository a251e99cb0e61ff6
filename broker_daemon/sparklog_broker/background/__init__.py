"""What the broker does unasked."""
