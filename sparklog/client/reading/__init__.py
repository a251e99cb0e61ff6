"""Batches as readers get them, and reading ranges of a partition without a consumer."""
