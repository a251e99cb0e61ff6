"""Coordinators of groups and transactions, and the internal topics with their state."""
