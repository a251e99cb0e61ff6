"""The futures of `send` and `send_batch`: they are `concurrent.futures.Future`s, but cannot be cancelled.

All records of a stored batch share one `Delivery`; a record's future holds only the delivery and the record's index.
The attributes that `concurrent.futures.wait` and `as_completed` use (`_condition`, `_state`, `_waiters`) are created on
demand; `asyncio.wrap_future` needs only the class. All futures share one condition, so two threads that take the
conditions of many futures in different orders cannot block each other.
"""

from __future__ import annotations

import itertools
import logging
import os
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from concurrent.futures import InvalidStateError as FutureStateError
from typing import TYPE_CHECKING, Any, Generic, NoReturn, TypeVar

import numpy as np

from sparklog.types import RecordMetadata, TopicPartition

T = TypeVar("T")

_log = logging.getLogger(__name__)
_condition = threading.Condition(threading.RLock())
"""Guards the outcomes of all deliveries. No thread waits on it, because a notification would wake every waiter."""


class BatchMetadata(RecordMetadata):
    """The place of a stored batch: `offset` is the offset of its first row, `timestamp_ms` its largest timestamp."""

    record_count: int
    """Number of rows in the batch."""

    @property
    def last_offset(self) -> int:
        """Offset of the last row; -1 if the offsets are not known (acks=0)."""
        return self.offset + self.record_count - 1 if self.offset >= 0 else -1


class Delivery:
    """The outcome of one batch."""

    __slots__ = (
        "_callbacks",
        "_event",
        "append_time_ms",
        "base_offset",
        "done",
        "error",
        "max_timestamp_ms",
        "record_count",
        "seen",
        "timestamps_us",
        "tp",
    )

    def __init__(self, tp: TopicPartition) -> None:
        self.tp = tp
        self.record_count = 0
        self.base_offset = -1
        self.append_time_ms = -1
        self.max_timestamp_ms = -1
        self.timestamps_us: Sequence[int] | np.ndarray | None = None
        self.error: BaseException | None = None
        self.seen = False
        self.done = False
        self._event: threading.Event | None = None
        self._callbacks: list[Callable[[], None]] = []

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait up to `timeout_s` for the outcome (None: without a limit). Returns False if it is still not known."""
        with _condition:  # most are never waited for: an event of their own would cost as much as the rest
            if self.done:
                return True
            event = self._event = self._event or threading.Event()
        return event.wait(timeout_s)

    def complete(self, base_offset: int, append_time_ms: int) -> None:
        """Set the offsets of the stored batch. `append_time_ms`: the broker's time, which replaces the timestamps of
        all records; -1: the records keep their timestamps."""
        self.base_offset = base_offset
        self.append_time_ms = append_time_ms
        self._finish()

    def fail(self, error: BaseException) -> None:
        """Set the error of the batch."""
        self.error = error
        self._finish()

    def abandon(self, error: BaseException) -> None:
        """Fail a delivery whose outcome this process will never learn. Its callbacks, which belong to the application,
        are not called."""
        self._callbacks.clear()
        self.fail(error)

    def _finish(self) -> None:
        with _condition:
            self.done = True
            callbacks, self._callbacks = self._callbacks, []
            event = self._event
        if event is not None:
            event.set()
        for callback in callbacks:
            callback()

    def when_done(self, callback: Callable[[], None]) -> None:
        """Call `callback` once: at completion on the sender's thread, or now if the outcome is known."""
        with _condition:
            if not self.done:
                self._callbacks.append(callback)
                return
        callback()

    def raise_error(self) -> None:
        if self.error is not None:
            self.seen = True
            raise self.error

    def timestamp_ms(self, index: int) -> int:
        if self.append_time_ms >= 0:
            return self.append_time_ms
        return int(self.timestamps_us[index]) // 1000 if self.timestamps_us is not None else self.max_timestamp_ms

    def metadata(self) -> BatchMetadata:
        stamp = self.append_time_ms if self.append_time_ms >= 0 else self.max_timestamp_ms
        batch_metadata = BatchMetadata(self.tp.topic, self.tp.partition, self.base_offset, stamp)
        batch_metadata.record_count = self.record_count
        return batch_metadata


if TYPE_CHECKING:
    _Base = Future
else:

    class _Base(Generic[T]):
        """The base of the futures; `isinstance` takes it for a `Future`.

        A real subclass of `Future` would have a dict per record, which costs a tenth of a `send`. The class overrides
        `__class__` instead, as `unittest.mock` does for a spec.
        """

        __slots__ = ()

        @property
        def __class__(self) -> type:
            return Future


class _DeliveryFuture(_Base[T]):
    """The common part of record and batch futures: a `Future` that is done when its deliveries are."""

    __slots__ = ("_waiting",)

    _waiting: list[Any]

    def cancel(self) -> bool:
        """Return False always: an accepted record is sent.

        Returns:
            False.
        """
        return False

    def cancelled(self) -> bool:
        """Return False always: a delivery cannot be cancelled.

        Returns:
            False.
        """
        return False

    def done(self) -> bool:
        """Report if the outcome is known.

        Returns:
            True after success or failure.
        """
        raise NotImplementedError

    def running(self) -> bool:
        """Report if the outcome is still open.

        Returns:
            True until `done` is True.
        """
        return not self.done()

    def get(self, timeout: float | None = None) -> T:
        """Return `result(timeout)`, under the name that kafka-python has for it.

        Args:
            timeout: The longest wait in seconds. None: without a limit.

        Returns:
            The outcome, as from `result`.

        Raises:
            TimeoutError: The outcome is not known within `timeout`.
            SparklogError: The delivery has failed.
        """
        return self.result(timeout)

    def set_running_or_notify_cancel(self) -> NoReturn:
        """Refuse: the producer alone sets the state and the outcome.

        Raises:
            concurrent.futures.InvalidStateError: Always.
        """
        raise FutureStateError("only the producer sets the outcome of a delivery")

    def set_result(self, result: T) -> NoReturn:
        """Refuse: the producer alone sets the outcome.

        Args:
            result: Ignored.

        Raises:
            concurrent.futures.InvalidStateError: Always.
        """
        self.set_running_or_notify_cancel()

    def set_exception(self, exception: BaseException | None) -> NoReturn:
        """Refuse: the producer alone sets the outcome.

        Args:
            exception: Ignored.

        Raises:
            concurrent.futures.InvalidStateError: Always.
        """
        self.set_running_or_notify_cancel()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {'done' if self.done() else 'under way'}>"

    # -- attributes that concurrent.futures.wait and as_completed read

    @property
    def _condition(self) -> threading.Condition:  # type: ignore[override]
        return _condition

    @property
    def _state(self) -> str:  # type: ignore[override]
        return "FINISHED" if self.done() else "RUNNING"

    @property
    def _waiters(self) -> list[Any]:  # type: ignore[override]
        """The waiters of `concurrent.futures` that get the outcome. The caller holds the condition."""
        if not hasattr(self, "_waiting"):
            self._waiting = []
            if not self.done():
                self.add_done_callback(lambda _: self._notify_waiters())
        return self._waiting

    def _notify_waiters(self) -> None:
        error = self._outcome()
        with _condition:
            for waiter in self._waiting:
                if error is None:
                    waiter.add_result(self)
                else:
                    waiter.add_exception(self)

    def _outcome(self) -> BaseException | None:
        """Return the error of a finished delivery; None after success. The error still counts as unseen, so `flush`
        raises it."""
        raise NotImplementedError

    def _call(self, callback: Callable[[Any], object]) -> None:
        try:
            callback(self)
        except Exception:  # noqa: BLE001  a user's callback must not end the sender's thread
            _log.exception("a producer callback failed")


class RecordFuture(_DeliveryFuture[RecordMetadata]):
    """The outcome of one `send`: a RecordMetadata, or an error."""

    __slots__ = ("delivery", "index")

    delivery: Delivery
    """Outcome of the record's batch."""
    index: int
    """Index of the record in its batch."""
    # set by `send`: an __init__ would cost as much as a third of it

    def done(self) -> bool:
        """Report if the record has its outcome.

        Returns:
            True after success or failure.
        """
        return self.delivery.done

    def result(self, timeout: float | None = None) -> RecordMetadata:
        """Wait for the outcome of the record.

        Args:
            timeout: The longest wait in seconds. None: without a limit.

        Returns:
            The place of the stored record.

        Raises:
            TimeoutError: The record is not acknowledged within `timeout`.
            SparklogError: The delivery has failed.
        """
        delivery = self.delivery
        if not delivery.wait(timeout):
            raise TimeoutError("the record is not acknowledged yet")
        delivery.raise_error()
        offset = delivery.base_offset + self.index if delivery.base_offset >= 0 else -1
        return RecordMetadata(*delivery.tp, offset, delivery.timestamp_ms(self.index))

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Wait for the outcome and return the error. `flush` then does not raise it again.

        Args:
            timeout: The longest wait in seconds. None: without a limit.

        Returns:
            The delivery's error; None if the record is stored.

        Raises:
            TimeoutError: The record is not acknowledged within `timeout`.
        """
        if not self.delivery.wait(timeout):
            raise TimeoutError("the record is not acknowledged yet")
        self.delivery.seen = True
        return self.delivery.error

    def _outcome(self) -> BaseException | None:
        return self.delivery.error

    def add_done_callback(self, fn: Callable[[RecordFuture], object]) -> None:
        """Call `fn(self)` as soon as the outcome is known; at once if it is known already.

        Args:
            fn: The callback. It runs on the producer's thread, so it must not block; or on the calling thread if the
                outcome is known already. An exception that it raises is logged.
        """
        self.delivery.when_done(lambda: self._call(fn))


class BatchFuture(_DeliveryFuture[list[RecordMetadata]]):
    """The outcome of one `send_batch`: one BatchMetadata per stored batch, in partition order; or the error of a
    batch."""

    __slots__ = ("_deliveries",)

    def __init__(self, deliveries: list[Delivery]) -> None:
        """Create the future of these deliveries.

        Args:
            deliveries: The deliveries of the stored batches.
        """
        self._deliveries = sorted(deliveries, key=lambda d: d.tp.partition)

    def done(self) -> bool:
        """Report if all batches have their outcomes.

        Returns:
            True after the last outcome.
        """
        return all(d.done for d in self._deliveries)

    def result(self, timeout: float | None = None) -> list[RecordMetadata]:
        """Wait for the outcomes of all batches.

        Args:
            timeout: The longest wait for all of them in seconds. None: without a limit.

        Returns:
            One BatchMetadata per stored batch, in partition order.

        Raises:
            TimeoutError: Not all batches are acknowledged within `timeout`.
            SparklogError: A batch has failed. If several have, this is the error of the lowest partition.
        """
        error = self.exception(timeout)
        if error is not None:
            raise error
        return [d.metadata() for d in self._deliveries]

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Wait for the outcomes and return the error. `flush` then does not raise it again.

        Args:
            timeout: The longest wait for all of them in seconds. None: without a limit.

        Returns:
            The error of the failed batch with the lowest partition; None if all batches are stored.

        Raises:
            TimeoutError: Not all batches are acknowledged within `timeout`.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        for delivery in self._deliveries:
            if not delivery.wait(None if deadline is None else max(0.0, deadline - time.monotonic())):
                raise TimeoutError("not all batches are acknowledged yet")
        for delivery in self._deliveries:
            delivery.seen = True
        return self._outcome()

    def _outcome(self) -> BaseException | None:
        return next((d.error for d in self._deliveries if d.error is not None), None)

    def add_done_callback(self, fn: Callable[[BatchFuture], object]) -> None:
        """Call `fn(self)` as soon as all outcomes are known; at once if they are known already.

        Args:
            fn: The callback. It runs on the producer's thread, so it must not block; or on the calling thread if the
                outcomes are known already. An exception that it raises is logged.
        """
        if not self._deliveries:
            self._call(fn)
            return
        counter = itertools.count(1)  # its step is atomic: deliveries end on the sender's thread or here

        def one_done() -> None:
            if next(counter) == len(self._deliveries):
                self._call(fn)

        for delivery in self._deliveries:
            delivery.when_done(one_done)


def _renew_after_fork() -> None:
    """Replace the lock in a forked child, because a thread of the parent perhaps held it."""
    global _condition
    _condition = threading.Condition(threading.RLock())


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_after_fork)
