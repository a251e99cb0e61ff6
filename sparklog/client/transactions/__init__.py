"""Transactions of many participants, and their leases."""
