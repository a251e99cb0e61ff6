"""What the broker does with the rules of `sparklog.security`."""
