"""The part of a producer that lives until its records have their outcomes, even if the `Producer` is gone.

The sender's thread refers to this part, never to the `Producer`, so a producer that is dropped without `close` is
collected. Its thread then sends the accepted records (each for at most its `delivery.timeout.ms`), aborts an open
transaction, and ends. Undeliverable records are logged. The garbage collector can run on any thread, with any lock
held, so `abandon` takes no lock.
"""

from __future__ import annotations

import atexit
import concurrent.futures.thread  # noqa: F401  PyArrow imports it late, which fails in an exit handler
import logging
import os
import time
import warnings

from sparklog.client.producer.accumulator import Accumulator
from sparklog.client.producer.parallel_encoding import ParallelEncoder
from sparklog.client.producer.sender import Sender
from sparklog.client.producer.transaction_requests import Transactions
from sparklog.errors import ClosedError, RequestTimedOutError, SparklogError, TransactionAbortedError

_log = logging.getLogger(__name__)

EXIT_FLUSH_S = 10.0
_STOP_S, _STOP_S_MIN = 5.0, 0.1
"""Longest and shortest time in s for which `close` waits for the sender's thread, which can be waiting for an
answer."""
_DROPPED = "the producer was dropped without close"

_cores: set[ProducerCore] = set()
"""Producers of this process, until their threads have been stopped."""


class ProducerCore:
    """Queues, threads and transactions of one producer. A `Producer` with a `transactional_id` sets `transactions`."""

    def __init__(self, accumulator: Accumulator, sender: Sender, parallel: ParallelEncoder | None) -> None:
        self.accumulator = accumulator
        self.sender = sender
        self.transactions: Transactions | None = None
        self._parallel = parallel
        sender.on_abandoned = self._begin_to_leave
        sender.on_stopped = self._end
        _cores.add(self)

    @property
    def is_open(self) -> bool:
        """True if the producer is neither closed nor dropped."""
        return not (self.accumulator.closing or self.sender.is_abandoned)

    def check_open(self) -> None:
        """Check that the producer is open. Raises ClosedError."""
        if self.accumulator.closing:
            raise ClosedError(str(self.accumulator.refusal or "the producer is closed"))

    def flush(self, timeout_s: float | None = None) -> None:
        """Wait until all accepted records have an outcome. Raises RequestTimedOutError, or the first failure whose
        future the application has not looked at."""
        if not self._wait(timeout_s):
            raise RequestTimedOutError(f"some records were not acknowledged within {timeout_s} s")
        error = self.accumulator.take_failure()
        if error is not None:
            raise error

    def wait_for_outcomes(self, timeout_s: float | None = None) -> None:
        """Wait until all accepted records have an outcome, and forget their failures. Raises RequestTimedOutError."""
        if not self._wait(timeout_s):
            raise RequestTimedOutError(f"some records had no outcome within {timeout_s} s")
        self.accumulator.take_failure()

    def _wait(self, timeout_s: float | None) -> bool:
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        return all(
            delivery.wait(None if deadline is None else max(0.0, deadline - time.monotonic()))
            for delivery in self.accumulator.close_all_open()
        )

    def close(self, timeout_s: float | None = None) -> None:
        """Send the waiting records and close; see `Producer.close`."""
        if self.accumulator.closing:
            return
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        is_failure_raised = self.accumulator.is_failure_raised

        def remaining_s() -> float | None:
            return None if deadline is None else max(0.0, deadline - time.monotonic())

        try:
            self._abort_open(remaining_s())
            self.accumulator.close("the producer is closed")
            if is_failure_raised:
                self.wait_for_outcomes(remaining_s())
            else:
                self.flush(remaining_s())
        finally:
            self.accumulator.close("the producer is closed")
            remaining = remaining_s()
            self.sender.stop(_STOP_S if remaining is None else min(_STOP_S, max(remaining, _STOP_S_MIN)))
            self._forget()

    def _abort_open(self, timeout_s: float | None = None) -> None:
        if self.transactions is not None and self.transactions.is_open:
            try:
                self.transactions.abort(timeout_s)
            except SparklogError as e:
                _log.warning("the open transaction could not be aborted; its timeout aborts it: %s", e)

    def _forget(self) -> None:
        if self._parallel is not None:
            self._parallel.close()
        _cores.discard(self)

    # -- dropped without close

    def abandon(self) -> None:
        """Let the sender's thread end the producer, because no reference to the producer is left. Any thread can call
        this; it waits for nothing."""
        self.sender.abandon()

    def _begin_to_leave(self) -> None:
        """Close a dropped producer and fail its open transaction, on the sender's thread. The accepted records are
        still sent."""
        self.accumulator.close(_DROPPED)
        if self.transactions is not None and self.transactions.is_open:
            self.accumulator.fail_session(TransactionAbortedError(_DROPPED))
        self.accumulator.close_all_open()

    def _end(self) -> None:
        """End a dropped producer on the sender's thread, when everything has its outcome."""
        self._abort_open()
        error = self.accumulator.take_failure()
        if error is not None:
            _log.error("records of a producer that was dropped without close are lost: %s", error)
        self._forget()

    # -- the process ends, or is forked

    def at_exit(self) -> None:
        """Close the producer at the end of the process. The accepted records have EXIT_FLUSH_S to be sent; lost ones
        are logged."""
        if self.sender.is_abandoned:
            self.sender.join(EXIT_FLUSH_S)
            if self.accumulator.outstanding:
                _log.error("records of a producer that was dropped without close are lost at exit")
            return
        with self.accumulator.lock:
            records = bool(self.accumulator.outstanding)
        if records:
            warnings.warn("a sparklog Producer was not closed: flushing it at exit", RuntimeWarning, stacklevel=1)
        try:
            self.close(EXIT_FLUSH_S)
        except SparklogError as e:
            _log.error("records were lost at exit: %s", e)

    def forked(self) -> None:
        """Reset a producer in a forked child: it belongs to the parent."""
        self.accumulator.reset_after_fork()
        self.sender.drop_after_fork()


def _flush_at_exit() -> None:
    for core in list(_cores):
        core.at_exit()


def _drop_after_fork() -> None:
    for core in list(_cores):
        core.forked()
    _cores.clear()


atexit.register(_flush_at_exit)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_drop_after_fork)
