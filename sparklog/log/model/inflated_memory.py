"""The limit for the memory of decompressed batches: `queued.max.inflated.bytes` for all threads of the broker together.

A few kilobytes of a request can become gigabytes, and the topic's settings, which its creator chooses, can allow this
size. The broker therefore reads the decompressed size from the batch's metadata before it decompresses the batch. A
batch that alone would need more than the limit is refused (`batch_bytes_max`). A thread whose batch does not fit now
waits until other threads have released their batches.

A thread holds memory for one batch at a time and waits for nothing else meanwhile, so the wait ends.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from sparklog.format.body_layout import INFLATED_BYTES_MAX
from sparklog.settings import MIB

UNCOUNTED_BYTES = 2 * MIB
"""Batches up to this size are not counted. The event loop itself appends only such batches, so it never waits."""


class InflatedMemory:
    """Budget for the bytes of decompressed batches, shared by all threads."""

    def __init__(self, limit_bytes: int = INFLATED_BYTES_MAX) -> None:
        self.limit_bytes = limit_bytes
        self.held_bytes = 0
        self.peak_bytes = 0
        """Largest value of `held_bytes` so far."""
        self._turn = threading.Lock()
        """Held by the thread that waits for memory; later threads do not overtake it."""
        self._release = threading.Condition()

    def batch_bytes_max(self, topic_bytes_max: int) -> int:
        """Return the largest decompressed size of a batch of a topic: `topic_bytes_max`, the bound from the topic's
        settings, but at most the limit and INFLATED_BYTES_MAX."""
        return min(topic_bytes_max, self.limit_bytes, INFLATED_BYTES_MAX)

    @contextmanager
    def hold(self, size_bytes: int) -> Iterator[None]:
        """Wait until `size_bytes` are free, and hold them inside the context. A larger size than the limit counts as
        the limit."""
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
