"""The offsets of one log, and the order in which they always are.

::

    log start <= recovery point <= flushed <= written <= appended
    log start <= high watermark <= written

========================  ==========================================================================================
log start                 the first offset that can be read
recovery point            after an unclean stop, the records from here on are scanned
flushed                   all records below are fsynced (or deleted)
written                   all records below are handed to the operating system: this is the log end
appended                  the offsets below are assigned; this is above `written` only during a write
high watermark            consumers can read the records below
========================  ==========================================================================================

Only `LogOffsets` changes these offsets, with one method per move. A move that would break the order is refused: it is a
mistake in the program, never a state of the disk.
"""

from __future__ import annotations

import threading


class OffsetOrderError(AssertionError):
    """A move would have broken the order of the offsets. The message names all offsets."""


class LogOffsets:
    """The offsets of a log. Reading an attribute needs no lock, and several threads can move offsets."""

    __slots__ = ("_lock", "appended", "flushed", "high_watermark", "log_start", "recovery_point", "written")

    def __init__(
        self, *, log_start: int = 0, recovery_point: int = 0, log_end: int = 0, high_watermark: int | None = None
    ) -> None:
        """Set the offsets of an opened log. `flushed` begins at `recovery_point`, because data above it are possibly
        not fsynced. `high_watermark`: None stands for the log start."""
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
        """Assign the offsets below `appended` to batches that are written next."""
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
        """Record that all records below `offset` are fsynced; `flushed` never goes back."""
        self._move(flushed=max(self.flushed, offset))

    def recover_from(self, offset: int) -> None:
        """Raise the recovery point to `offset`, which is flushed; it never goes back."""
        self._move(recovery_point=max(self.recovery_point, offset))

    def raise_high_watermark(self, offset: int) -> None:
        """Raise the high watermark to `offset`, at most to the log end; it never goes back."""
        if offset > self.high_watermark:
            with self._lock:
                self.high_watermark = max(self.high_watermark, min(offset, self.written))
                if not self._in_order():
                    raise OffsetOrderError(f"the log's offsets are out of order: {self}")

    def raise_log_start(self, offset: int) -> None:
        """Raise the log start to `offset`; it never goes back. The records below are deleted and need no fsync, so the
        recovery point and `flushed` follow."""
        with self._lock:
            start = max(self.log_start, offset)
            point = max(self.recovery_point, start)
            self._set(log_start=start, recovery_point=point, flushed=max(self.flushed, point))

    def truncate(self, log_end: int) -> None:
        """Cut the log back to `log_end`: all offsets above are lowered to it."""
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
            attempted = repr(self)
            for name, offset in zip(changes, before, strict=True):
                setattr(self, name, offset)
            raise OffsetOrderError(f"the log's offsets would be out of order: {attempted}")

    def _in_order(self) -> bool:
        return (
            0 <= self.log_start <= self.recovery_point <= self.flushed <= self.written <= self.appended
            and self.log_start <= self.high_watermark <= self.written
        )


_NAMES = ("log_start", "recovery_point", "flushed", "written", "appended", "high_watermark")
