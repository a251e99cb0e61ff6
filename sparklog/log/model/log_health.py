"""The failure, if any, that makes a log unusable."""

from __future__ import annotations

from sparklog.errors import SparklogError


class LogHealth:
    """Usability of a log. Reading it needs no lock. A failure stays until the log is opened again."""

    def __init__(self) -> None:
        self.failure: SparklogError | None = None
        """Reason why the log accepts no appends (and, once closed, no reads) any more."""
        self.is_closed = False

    def fail(self, error: SparklogError) -> SparklogError:
        """Refuse all appends from now on; returns `error`."""
        self.failure = error
        return error

    def check(self) -> None:
        """Raise the failure if there is one."""
        if self.failure is not None:
            raise type(self.failure)(str(self.failure))  # a new object: the same one would collect tracebacks
