"""The offsets of one log, and the order they always stand in.

::

    log start <= recovery point <= flushed <= written <= appended
    log start <= high watermark <= written

========================  ==========================================================================================
log start                 the first offset that can be read
recovery point            after an unclean stop everything from here on is scanned
flushed                   everything below is on the disk (or deleted)
written                   everything below has been handed to the operating system: the log end for everybody else
appended                  offsets below have been given out; above `written` only while a write is under way
high watermark            reads end here
========================  ==========================================================================================

`LogOffsets` is the only place that changes them: one method per move, each of which ends with a check of the whole
order. A broken order is a mistake in the program, never a state of the disk.
"""

from __future__ import annotations

import threading


class OffsetOrderError(AssertionError):
    """A move would have broken the order of the offsets; the message names all of them. Nothing was changed."""


class LogOffsets:
    """The offsets of a log. Reading an attribute needs no lock; several threads may move them."""

    __slots__ = ("_lock", "appended", "flushed", "high_watermark", "log_start", "recovery_point", "written")

    def __init__(
        self, *, log_start: int = 0, recovery_point: int = 0, log_end: int = 0, high_watermark: int | None = None
    ) -> None:
        """Set the offsets found on the disk: data above `recovery_point` may not be on it yet."""
        self._lock = threading.Lock()
        self.log_start = log_start
        self.recovery_point = self.flushed = recovery_point
        self.written = self.appended = log_end
        self.high_watermark = log_start if high_watermark is None else high_watermark
        if not self._in_order():
            raise OffsetOrderError(f"the log's offsets are out of order: {self}")

    def __repr__(self) -> str:
        return ", ".join(f"{name.replace('_', ' ')} {getattr(self, name)}" for name in _NAMES)

    # --- moves ---

    def reserve(self, appended: int) -> None:
        """Assign the offsets below `appended`; the write follows."""
        if appended < self.appended:
            self._move(appended=appended)  # refuses it
        self.appended = appended  # alone at the top of the order: nothing else to check

    def wrote(self) -> None:
        """Record that the assigned offsets are written."""
        self.written = self.appended

    def take_back(self) -> None:
        """Free the assigned offsets again, because the write has failed."""
        self._move(appended=self.written)

    def flushed_to(self, offset: int) -> None:
        """Note that all records below `offset` are on the disk; never goes back."""
        self._move(flushed=max(self.flushed, offset))

    def recover_from(self, offset: int) -> None:
        """Raise the recovery point to `offset`, which is flushed; it never goes back."""
        self._move(recovery_point=max(self.recovery_point, offset))

    def raise_high_watermark(self, offset: int) -> None:
        """Raise the high watermark, at most to the end of the written data; it never goes back."""
        if offset > self.high_watermark:
            with self._lock:
                self.high_watermark = max(self.high_watermark, min(offset, self.written))
                if not self._in_order():
                    raise OffsetOrderError(f"the log's offsets are out of order: {self}")

    def raise_log_start(self, offset: int) -> None:
        """Raise the log start: records below `offset` are deleted, so they need not reach the disk any more. It never
        goes back."""
        with self._lock:
            start = max(self.log_start, offset)
            point = max(self.recovery_point, start)
            self._set(log_start=start, recovery_point=point, flushed=max(self.flushed, point))

    def truncate(self, log_end: int) -> None:
        """Cut the log back to end at `log_end`: nothing points beyond it any more."""
        with self._lock:
            self._set(
                log_start=min(self.log_start, log_end),
                recovery_point=min(self.recovery_point, log_end),
                flushed=min(self.flushed, log_end),
                written=min(self.written, log_end),
                appended=min(self.written, log_end),
                high_watermark=min(self.high_watermark, log_end),
            )

    def restart_at(self, offset: int) -> None:
        """Empty the log: it starts and ends at `offset`."""
        self._move(**dict.fromkeys(_NAMES, offset))

    # --- the order ---

    def _move(self, **changes: int) -> None:
        with self._lock:
            self._set(**changes)

    def _set(self, **changes: int) -> None:
        before = [getattr(self, name) for name in changes]
        for name, offset in changes.items():
            setattr(self, name, offset)
        if not self._in_order():
            wanted = repr(self)
            for name, offset in zip(changes, before, strict=True):
                setattr(self, name, offset)
            raise OffsetOrderError(f"the log's offsets would be out of order: {wanted}")

    def _in_order(self) -> bool:
        return (
            0 <= self.log_start <= self.recovery_point <= self.flushed <= self.written <= self.appended
            and self.log_start <= self.high_watermark <= self.written
        )


_NAMES = ("log_start", "recovery_point", "flushed", "written", "appended", "high_watermark")
