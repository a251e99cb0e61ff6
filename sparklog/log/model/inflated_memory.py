"""The memory that decompressed batches may take: `queued.max.inflated.bytes` for all threads of the broker together.

A few kilobytes of a request can become gigabytes, and the topic's own settings allow it: its creator chooses them. The
broker therefore takes the decompressed size from the batch's metadata before anything is decompressed. It refuses a
batch that alone would need more than the limit, and lets threads wait until the other batches have gone.

A thread holds memory for one batch at a time and waits for nothing else meanwhile, so the wait ends.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from sparklog.format.body_layout import INFLATED_BYTES_MAX
from sparklog.settings import MIB

UNCOUNTED_BYTES = 2 * MIB
"""Sizes up to this one are not counted. The event loop appends only smaller batches itself, so it never waits."""


class InflatedMemory:
    """Counts the bytes of decompressed batches. Any thread."""

    def __init__(self, limit_bytes: int = INFLATED_BYTES_MAX) -> None:
        self.limit_bytes = limit_bytes
        self.held_bytes = 0
        self.peak_bytes = 0
        """Largest value of `held_bytes` so far."""
        self._turn = threading.Lock()
        """Held by the thread that waits for memory; later threads do not overtake it."""
        self._release = threading.Condition()

    def batch_bytes_max(self, topic_bytes_max: int) -> int:
        """Return bytes that one batch of a topic may take, of the bound in the topic's settings."""
        return min(topic_bytes_max, self.limit_bytes, INFLATED_BYTES_MAX)

    @contextmanager
    def hold(self, size_bytes: int) -> Iterator[None]:
        """Wait for `size_bytes`, at most the limit, and hold them inside the context."""
        held = min(size_bytes, self.limit_bytes)
        if held <= UNCOUNTED_BYTES:
            yield
            return
        with self._turn, self._release:
            self._release.wait_for(lambda: self.held_bytes + held <= self.limit_bytes)
            self.held_bytes += held
            self.peak_bytes = max(self.peak_bytes, self.held_bytes)
        try:
            yield
        finally:
            with self._release:
                self.held_bytes -= held
                self._release.notify_all()
