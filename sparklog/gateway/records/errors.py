"""Errors of single records."""

from __future__ import annotations

from sparklog.errors import SchemaMismatchError


class InvalidRecordError(SchemaMismatchError):
    """A record that the topic does not take."""

    def __init__(self, message: str, index: int) -> None:
        super().__init__(message)
        self.index = index
        """Place of the record in its batch."""
