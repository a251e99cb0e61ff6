"""The turn to receive a consumer's fetches: it belongs to the background thread, or to the polling thread.

If much data arrive, the background thread reads ahead while the application works. If little arrives, the background
thread would only hand each record on to another thread that has to be woken. Then the request in flight is left to the
next poll, which waits at the socket itself. The background thread takes the request back in these cases:

- poll is not called for a while (IDLE_S).
- An answer is larger than SPARSE_BYTES.
- An answer is late.
- There is other work to do.
"""

from __future__ import annotations

import select
import threading
import time
from collections.abc import Callable

from sparklog.client.net.connection import Connection
from sparklog.client.net.read_ahead import READ_AHEAD_BYTES_MAX
from sparklog.client.net.waker import Waker

SPARSE_BYTES = READ_AHEAD_BYTES_MAX
"""Largest size in bytes of a sparse answer: the consumer keeps up, and there is nothing to read ahead. Such an answer
fits into the connection's memory for data read ahead, so poll can wait for it and give up in the middle."""
PART_HEADER_BYTES = 128
"""Upper bound of the bytes of an answer for each partition besides the data."""
IDLE_S = 1.0


class FetchTurn:
    """The right to receive the fetches of one consumer. It is guarded by the fetcher's lock, which must be held for
    everything but `is_readable`."""

    def __init__(self, lock: threading.RLock, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._condition = threading.Condition(lock)
        self.idle_s = IDLE_S
        """Time in s without a poll at the socket after which the background thread continues."""
        self._polled_at = -self.idle_s
        self._waker: Waker | None = None
        self.is_sparse = False
        """True if the last answer had at most SPARSE_BYTES."""
        self.is_polling = False
        self.poll_receives = False
        """True while poll receives the answer. If it is still True when the next poll begins, an exception (Ctrl-C) has
        ended the last poll in the middle."""

    def begin_poll(self) -> None:
        """Note that the application waits for data, and no data are ready."""
        self.is_polling = True

    def end_poll(self) -> None:
        """Note that the poll has a batch, or has other work to do."""
        if self.is_polling:
            self._polled_at = self._clock()
        self.is_polling = False

    def is_polls(self, connection: Connection) -> bool:
        """True if the answer on `connection` is left to poll.

        A late answer is not left to poll: the background thread finds the cause, even if poll is not called.
        """
        return self.is_sparse and self._remaining_s(connection) > 0

    def _remaining_s(self, connection: Connection) -> float:
        due = connection.due
        until = due if self.is_polling else min(self._polled_at + self.idle_s, (self._polled_at + due) / 2)
        return until - self._clock()

    def wait_in_background(self, timeout_s: float | None = None) -> None:
        """Wait for `notify` on the background thread."""
        self._condition.wait(timeout_s)

    def leave_to_poll(self, connection: Connection | None) -> None:
        """Wait while the answer on `connection` is left to poll, or until `notify`. `connection` is None if poll is
        receiving the answer."""
        idle_s = self.idle_s
        self._condition.wait(idle_s if connection is None else min(idle_s / 2, max(self._remaining_s(connection), 0)))

    def notify(self) -> None:
        """Wake the background thread and a poll at the socket after a change."""
        self._condition.notify_all()
        if self.poll_receives and self._waker is not None:
            self._waker.wake()

    def go_to_socket(self) -> None:
        """Let poll receive from now on."""
        if self._waker is None:
            self._waker = Waker()
        self.poll_receives = True

    def leave_socket(self) -> None:
        """Note that poll has received the answer, or that none came."""
        self.poll_receives = False

    def is_readable(self, connection: Connection, deadline: float) -> bool:
        """Wait until more of the answer on `connection` comes, until `deadline`, until the answer is late, or until
        `notify`. Returns True if more has come."""
        assert self._waker is not None
        poll = select.poll()
        poll.register(connection, select.POLLIN)
        poll.register(self._waker, select.POLLIN)
        timeout_s = max(0.0, min(deadline, connection.due) - self._clock())
        ready = [descriptor for descriptor, _ in poll.poll(timeout_s * 1000)]
        if self._waker.fileno() in ready:
            self._waker.clear()
        return connection.fileno() in ready

    def close(self) -> None:
        """End the waits for the turn."""
        if self._waker is not None:
            self._waker.close()
        self._waker = None
