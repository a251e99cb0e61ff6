"""The queues between `send` and the sender: for each partition an open batch, and the batches that wait for the sender.

`buffer.memory` bounds the bytes of all records that are not acknowledged. Without idempotence a partition has at most
one request in flight, so a retry cannot change the order of its records. That request carries all waiting batches, up
to PARTITION_REQUEST_BYTES. With idempotence (`session` is set) a partition can have several requests in flight, and
`sequences` keeps them in order.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable

from sparklog.client.net.topic_info import TopicInfo
from sparklog.client.producer.encoding import EncodedBatch
from sparklog.client.producer.futures import Delivery
from sparklog.client.producer.open_batch import OpenBatch
from sparklog.client.producer.parallel_encoding import Encoding
from sparklog.client.producer.sequences import (
    BATCHES_IN_FLIGHT_MAX,
    PartitionSequences,
    Progress,
    SequencedBatch,
    WriteSession,
)
from sparklog.errors import BufferExhaustedError, ClosedError, SparklogError
from sparklog.settings import MIB
from sparklog.types import ProducerIdAndEpoch, TopicPartition

PARTITION_REQUEST_BYTES = 2 * MIB
"""Largest size in bytes of one partition in one request, unless a single batch is larger. Among sizes from 1 to 8 MiB
this one costs the broker least per byte: there are few requests, and each is checked and written soon after its
receipt."""
PIPELINED_BYTES_MIN = 128 * 1024
"""Smallest size in bytes of the complete batches that a partition sends while an earlier request is in flight. Smaller
ones wait for its answer, so that more records can join them."""
ROOM_BYTES = 16 * 1024
"""Bytes of memory that an open batch reserves at a time."""
TIMER_S = 0.001
"""Resolution of the sender's timer in s. The timer rounds up, so a batch is due this much (at most half of linger.ms)
before its linger is over."""
BATCHES_MAX = 100_000
"""Largest number of batches of one partition in one request without idempotence."""


class PendingBatch(SequencedBatch):
    """A complete batch that waits for the sender. It is encoded (`encoded`), being encoded (`encoding`), or still
    consists of records (`rows`), which the sender encodes. `alone`: True if it must be its partition's only batch in a
    request. `written_as`: the identity and sequence that the encoded bytes hold."""

    __slots__ = ("alone", "deadline", "delivery", "encoded", "encoding", "error", "rows", "size_bytes", "written_as")

    def __init__(self, delivery: Delivery, size_bytes: int, deadline: float) -> None:
        super().__init__(delivery.record_count)
        self.delivery = delivery
        self.size_bytes = size_bytes
        self.deadline = deadline
        self.rows: OpenBatch | None = None
        self.encoded: EncodedBatch | None = None
        self.encoding: Encoding | None = None
        self.alone = False
        self.error: BaseException | None = None
        self.written_as: tuple[ProducerIdAndEpoch | None, int] = (None, -1)


class PartitionQueue:
    """The waiting batches of one partition: first those to be sent again, then new batches in the order of the calls.
    `under_way` is the number of requests without an answer."""

    __slots__ = ("attempts", "batches", "info", "open", "retry_at", "sequences", "session", "tp", "under_way")

    def __init__(self, tp: TopicPartition, info: TopicInfo) -> None:
        self.tp = tp
        self.info = info
        self.open: OpenBatch | None = None
        self.batches: deque[PendingBatch] = deque()
        self.under_way = 0
        self.attempts = 0
        self.retry_at = 0.0
        self.session: WriteSession | None = None
        self.sequences: PartitionSequences | None = None


class Accumulator:
    """Queues and memory of one producer. `lock` guards everything. The caller of a method whose name begins with
    `locked_` holds it."""

    def __init__(self, *, buffer_bytes: int, linger_s: float, max_block_s: float, delivery_timeout_s: float) -> None:
        self.buffer_bytes = buffer_bytes
        self.linger_s = linger_s
        self._due_s = linger_s - min(TIMER_S, linger_s / 2)
        self.max_block_s = max_block_s
        self.delivery_timeout_s = delivery_timeout_s
        self.lock = threading.RLock()
        self.memory_freed = threading.Condition(self.lock)
        self.used_bytes = 0
        self.waiting = 0
        self.closing = False
        self.refusal: SparklogError | None = None
        self.session: WriteSession | None = None
        self.active: dict[TopicPartition, PartitionQueue] = {}
        self.outstanding: dict[Delivery, None] = {}
        self.failed: deque[Delivery] = deque(maxlen=1000)
        self.wake_sender: Callable[[], None] = lambda: None

    def reset_after_fork(self) -> None:
        """Drop the records in a forked child and fail their futures with ClosedError, because the producer belongs to
        the parent."""
        self.lock = threading.RLock()
        self.memory_freed = threading.Condition(self.lock)
        self.refusal = ClosedError("this producer belongs to the parent process: create one in the child")
        self.closing = True
        self.active.clear()
        for delivery in self.outstanding:
            delivery.abandon(self.refusal)
        self.outstanding.clear()
        self.failed.clear()

    def check_open(self) -> None:
        """Raise a copy of `refusal` if it is set: ClosedError, or the reason why a transactional producer cannot send
        now."""
        if self.refusal is not None:
            if self.session is not None and self.refusal is self.session.error:
                self.session.is_error_raised = True
            raise type(self.refusal)(str(self.refusal)) from self.refusal.__cause__

    def close(self, reason: str) -> None:
        """Accept no more records, and make the accepted ones due at once. Later calls raise ClosedError with
        `reason`."""
        with self.lock:
            self.closing = True
            self.locked_refuse(ClosedError(reason))

    def locked_refuse(self, refusal: SparklogError | None) -> None:
        """Set the error that `send` raises from now on; None allows sending again. A closed producer stays closed."""
        if not self.closing or isinstance(refusal, ClosedError):
            self.refusal = refusal
        self.memory_freed.notify_all()

    def refuse(self, refusal: SparklogError | None) -> None:
        """Call `locked_refuse` for callers that do not hold the lock."""
        with self.lock:
            self.locked_refuse(refusal)

    def begin_session(self, session: WriteSession) -> None:
        """Let all later records belong to `session`. The caller ensures that no record of another session is
        outstanding."""
        with self.lock:
            self.session = session
            self.locked_refuse(None)

    def fail_session(self, error: SparklogError) -> None:
        """Fail the current session with `error`, unless it has failed before. Later calls of `send` raise the error,
        and the sender fails all batches that are not in flight."""
        with self.lock:
            if self.session is not None and self.session.error is None:
                self.session.error = error
                self.locked_refuse(error)
        self.wake_sender()

    # -- callers' side

    def release_if_held(self) -> None:
        """Release `lock` for a caller that acquired it without `with`, and was perhaps interrupted before it had the
        lock."""
        with contextlib.suppress(RuntimeError):
            self.lock.release()

    def locked_reserve(self, size_bytes: int) -> None:
        """Reserve memory, and wait for it up to max.block.ms. If no memory is in use, any size is granted. Raises
        BufferExhaustedError, or `refusal` if it is set during the wait."""
        deadline = None
        while self.used_bytes and self.used_bytes + size_bytes > self.buffer_bytes:
            if self._locked_take_room_back():
                continue
            if deadline is None:
                deadline = time.monotonic() + self.max_block_s
            remaining = deadline - time.monotonic()
            if remaining <= 0:
                raise BufferExhaustedError(
                    f"the producer's buffer.memory of {self.buffer_bytes} bytes stayed full for max.block.ms "
                    f"({int(self.max_block_s * 1000)} ms): the broker takes records more slowly than they are sent"
                )
            self.waiting += 1
            self.wake_sender()
            try:
                self.memory_freed.wait(remaining)
            finally:
                self.waiting -= 1
            self.check_open()
        self.used_bytes += size_bytes

    def _locked_take_room_back(self) -> bool:
        """Release the reserved memory that open batches have not used. Returns False if there was none."""
        before = self.used_bytes
        for queue in self.active.values():
            if queue.open is not None:
                self.used_bytes -= queue.open.room_bytes
                queue.open.reserved_bytes -= queue.open.room_bytes
                queue.open.room_bytes = 0
        return self.used_bytes < before

    def locked_give_room(self, batch: OpenBatch, size_bytes: int, target_bytes: int) -> None:
        """Give the batch the `size_bytes` that the caller has reserved for the next record, and up to ROOM_BYTES more
        if there is memory. The following records use this room, so that not every `send` has to reserve memory. The
        batch stays within `target_bytes`, unless the record alone is larger."""
        self.used_bytes -= batch.room_bytes
        more = min(ROOM_BYTES, target_bytes - batch.size_bytes - size_bytes, self.buffer_bytes - self.used_bytes)
        more = max(0, more)
        self.used_bytes += more
        batch.reserved_bytes = batch.size_bytes + size_bytes + more
        batch.room_bytes = size_bytes + more

    def locked_open(self, queue: PartitionQueue) -> OpenBatch:
        """Open a new batch in the queue. Wakes the sender, unless the batch has to wait for an answer first."""
        self.active[queue.tp] = queue  # first: a batch that a signal leaves behind is to be found
        batch = queue.open = OpenBatch(queue.tp)
        self.outstanding[batch.delivery] = None
        if not self._waits_for_answer(queue):
            self.wake_sender()
        return batch

    def locked_drop_unfinished(self, queue: PartitionQueue) -> None:
        """Remove the unfinished row of a `send` that an exception (Ctrl-C) has ended, and the open batch if it has no
        rows."""
        batch = queue.open
        if batch is None:
            return
        batch.drop_unfinished()
        if not batch.values:
            queue.open = None
            self.used_bytes -= batch.room_bytes
            self.outstanding.pop(batch.delivery, None)

    def locked_close_open(self, queue: PartitionQueue) -> None:
        """Move the queue's open batch, if there is one, to the batches that wait for the sender."""
        rows = queue.open
        if rows is None:
            return
        queue.open = None
        self.used_bytes -= rows.room_bytes
        rows.delivery.record_count = len(rows.values)
        pending = PendingBatch(rows.delivery, rows.size_bytes, rows.created + self.delivery_timeout_s)
        pending.rows = rows
        queue.batches.append(pending)

    def enqueue(self, queue: PartitionQueue, encoded: EncodedBatch) -> Delivery:
        """Append an encoded batch after all earlier ones. Raises BufferExhaustedError, or as `check_open`."""
        delivery = Delivery(queue.tp)
        delivery.record_count = encoded.record_count
        delivery.max_timestamp_ms = encoded.max_timestamp_ms
        with self.lock:
            self._locked_admit(len(encoded.payload))
            self._locked_append(queue, delivery, len(encoded.payload)).encoded = encoded
        return delivery

    def enqueue_encoding(self, queue: PartitionQueue, encoding: Encoding) -> Delivery:
        """Reserve memory for the uncompressed batch, start its encoding, and append it as `enqueue` does. Raises as
        `enqueue`."""
        delivery = Delivery(queue.tp)
        delivery.record_count = encoding.record_count
        with self.lock:
            self._locked_admit(encoding.size_bytes)
            encoding.start()
            self._locked_append(queue, delivery, encoding.size_bytes).encoding = encoding
        return delivery

    def _locked_admit(self, size_bytes: int) -> None:
        self.check_open()
        self.locked_reserve(size_bytes)

    def _locked_append(self, queue: PartitionQueue, delivery: Delivery, size_bytes: int) -> PendingBatch:
        self.locked_close_open(queue)
        pending = PendingBatch(delivery, size_bytes, time.monotonic() + self.delivery_timeout_s)
        queue.batches.append(pending)
        self.outstanding[delivery] = None
        self.active[queue.tp] = queue
        if self.locked_room(queue, time.monotonic()) and not self._better_wait(queue):
            self.wake_sender()
        return pending

    def close_all_open(self) -> list[Delivery]:
        """Close all open batches, so that they can be sent now. Returns the deliveries without an outcome."""
        with self.lock:
            for queue in self.active.values():
                self.locked_close_open(queue)
            self.wake_sender()
            return list(self.outstanding)

    def take_failure(self) -> BaseException | None:
        """Return the first failure whose future the application has not looked at, or None. All failures are
        forgotten."""
        with self.lock:
            unseen = [d.error for d in self.failed if not d.seen]
            self.failed.clear()
        return unseen[0] if unseen else None

    @property
    def is_failure_raised(self) -> bool:
        """True if the session has failed, and a call of the application has raised the failure."""
        return self.session is not None and self.session.is_error_raised

    # -- sender's side

    def locked_sequences(self, queue: PartitionQueue) -> PartitionSequences | None:
        """Return the partition's sequences in this session; None before its first batch, and without idempotence."""
        if queue.session is not self.session:
            queue.session, queue.sequences = self.session, None
        return queue.sequences

    def locked_room(self, queue: PartitionQueue, now: float) -> int:
        """Return the number of batches that the partition's next request can take now; 0 if an answer has to arrive
        first."""
        sequences = self.locked_sequences(queue)
        if sequences is None:
            return 0 if queue.under_way else BATCHES_MAX if self.session is None else BATCHES_IN_FLIGHT_MAX
        return sequences.room(queue.batches[0] if queue.batches else None, now)

    def locked_ready(self, now: float) -> tuple[list[PartitionQueue], float | None]:
        """Return the queues with batches to send now, and the time of the next check. The time is None if no queue
        becomes due by time alone: then a call of the application or an answer of a broker makes the next one due."""
        ready: list[PartitionQueue] = []
        next_at: float | None = None
        for queue in self.active.values():
            if not self.locked_room(queue, now) or self._better_wait(queue):
                continue
            if queue.batches:
                due = queue.retry_at
                if self.closing or not (self.linger_s or queue.under_way):
                    self.locked_close_open(queue)
            elif queue.open is not None:
                if self._waits_for_answer(queue):
                    continue
                due = max(queue.retry_at, 0.0 if self.waiting or self.closing else queue.open.created + self._due_s)
            else:
                continue
            if due <= now:
                ready.append(queue)
            else:
                wait_until = min(due, queue.batches[0].deadline) if queue.batches else due
                next_at = wait_until if next_at is None else min(next_at, wait_until)
        return ready, next_at

    def _waits_for_answer(self, queue: PartitionQueue) -> bool:
        """True if new records wait for the answer to a request in flight, so that they travel together. That is so only
        without linger.ms, and not while callers wait for memory or the producer is closing."""
        return not self.linger_s and bool(queue.under_way) and not (self.waiting or self.closing)

    @staticmethod
    def _better_wait(queue: PartitionQueue) -> bool:
        """True if a request is in flight and the waiting batches are too small for another one
        (PIPELINED_BYTES_MIN)."""
        if not queue.under_way or not queue.batches:
            return False
        return sum(b.size_bytes for b in queue.batches) < PIPELINED_BYTES_MIN

    def locked_take(self, queue: PartitionQueue, now: float) -> list[PendingBatch]:
        """Take the batches of the partition's next request. The caller reports their outcome to `complete` or
        `put_back`."""
        session = self.session
        if session is not None:
            session.is_used = True
            if self.locked_sequences(queue) is None:
                assert session.identity is not None
                queue.sequences = PartitionSequences(session.identity)
        if not queue.batches or (queue.open and now >= queue.open.created + self._due_s):
            self.locked_close_open(queue)
        room = self.locked_room(queue, now)
        taken = [queue.batches.popleft()]
        size = taken[0].size_bytes
        while (
            queue.batches
            and len(taken) < room
            and not (taken[0].alone or queue.batches[0].alone)
            and queue.batches[0].progress is taken[0].progress
            and size + queue.batches[0].size_bytes <= PARTITION_REQUEST_BYTES
        ):
            size += queue.batches[0].size_bytes
            taken.append(queue.batches.popleft())
        if queue.sequences is not None:
            queue.sequences.take(taken)
        queue.under_way += 1
        return taken

    def locked_take_all(self) -> list[tuple[PartitionQueue, list[PendingBatch]]]:
        """Remove and return all batches that are not in flight: open, waiting and held ones. They will not be sent."""
        taken = []
        for queue in self.active.values():
            self.locked_close_open(queue)
            held = queue.sequences.held if queue.sequences is not None else []
            taken.append((queue, [b for b in held if isinstance(b, PendingBatch)] + list(queue.batches)))
            held.clear()
            queue.batches.clear()
        return taken

    def locked_expired(self, now: float) -> list[tuple[PartitionQueue, PendingBatch]]:
        """Remove and return waiting batches beyond their delivery.timeout.ms. Without idempotence, a partition with a
        request in flight keeps its batches."""
        expired = []
        for queue in self.active.values():
            if self.session is None and queue.under_way:
                continue
            while queue.batches and queue.batches[0].deadline <= now:
                batch = queue.batches.popleft()
                if queue.sequences is not None:
                    queue.sequences.expired(batch)
                expired.append((queue, batch))
        return expired

    def locked_next_deadline(self) -> float:
        """Return the time at which the next waiting batch reaches `delivery.timeout.ms`; infinity if none waits."""
        first = float("inf")
        for queue in self.active.values():
            if queue.batches:
                first = min(first, queue.batches[0].deadline)
            elif queue.open is not None:
                first = min(first, queue.open.created + self.delivery_timeout_s)
        return first

    def locked_begin_anew(self, queue: PartitionQueue) -> bool:
        """Start the partition's next epoch if its sequences have a gap and no outcome is open. Returns False if nothing
        was done; in a transaction nothing is ever done."""
        sequences, session = self.locked_sequences(queue), self.session
        if sequences is None or session is None or session.transactional_id is not None or not sequences.may_reset:
            return False
        again = [b for b in sequences.reset() if isinstance(b, PendingBatch)]
        queue.batches.extendleft(reversed(again))
        if sequences.is_used_up:
            queue.sequences = None
            if session.identity is not None and session.identity.producer_id == sequences.identity.producer_id:
                session.identity = None
        return True

    def put_back(self, queue: PartitionQueue, batches: list[PendingBatch], *, retry_at: float) -> None:
        """Put batches that `locked_take` has returned back to the front, in the order in which they were taken the
        first time. The queue is not sent again before `retry_at`."""
        with self.lock:
            first: list[PendingBatch] = []
            while queue.batches and queue.batches[0].progress is not Progress.NEW:
                first.append(queue.batches.popleft())
            first = sorted(batches + first, key=lambda b: b.order) if first else batches
            queue.batches.extendleft(reversed(first))
            queue.under_way -= 1
            queue.retry_at = max(queue.retry_at, retry_at)

    def complete(
        self, queue: PartitionQueue, batches: list[PendingBatch], *, error: BaseException | None, release: bool = True
    ) -> None:
        """Account for batches with a known outcome: free their memory, and set `error` on their deliveries.

        The caller then completes or fails the deliveries. `release`: True if the batches were in flight; the queue then
        has one request less under way.
        """
        with self.lock:
            for batch in batches:
                self.used_bytes -= batch.size_bytes
                self.outstanding.pop(batch.delivery, None)
                if error is not None:
                    batch.delivery.error = error
                    self.failed.append(batch.delivery)
            if release:
                queue.under_way -= 1
                queue.attempts = 0
                queue.retry_at = 0.0
                if queue.open is not None:
                    self.wake_sender()  # it was not told when that was opened
            if not queue.batches and queue.open is None and not queue.under_way and not _holds(queue):
                self.active.pop(queue.tp, None)
            if self.waiting:
                self.memory_freed.notify_all()


def _holds(queue: PartitionQueue) -> bool:
    return queue.sequences is not None and bool(queue.sequences.held)
