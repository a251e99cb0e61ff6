"""Records on their way to the broker: per partition a batch being filled and the batches waiting for the sender.

`buffer.memory` bounds everything that is not acknowledged. Per partition at most one request is under way, and it
carries all that is waiting (up to a limit): a retry can then never overtake, or be overtaken by, its neighbours.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator

from sparklog.client.cluster import TopicInfo
from sparklog.client.encoding import ROW_OVERHEAD_BYTES, EncodedBatch, Headers
from sparklog.client.futures import Delivery
from sparklog.errors import BufferExhaustedError, ClosedError
from sparklog.settings import MIB
from sparklog.types import TopicPartition

PARTITION_REQUEST_BYTES = 8 * MIB
"""How much of one partition goes into one request, unless a single batch is larger."""


class OpenBatch:
    """Records of one partition that are still being collected, as columns of Python objects."""

    __slots__ = ("created", "delivery", "headers", "keys", "size_bytes", "timestamps_us", "values")

    def __init__(self, tp: TopicPartition) -> None:
        self.created = time.monotonic()
        self.delivery = Delivery(tp)
        self.values: list[bytes | None] = []
        self.keys: list[bytes | None] | None = None
        self.headers: list[Headers | None] | None = None
        self.timestamps_us: list[int] = []
        self.size_bytes = 0


class PendingBatch:
    """A complete batch: encoded, or records that the sender encodes. `alone`: to be sent in a request of its own."""

    __slots__ = ("alone", "deadline", "delivery", "encoded", "error", "rows", "size_bytes")

    def __init__(self, delivery: Delivery, size_bytes: int, deadline: float) -> None:
        self.delivery = delivery
        self.size_bytes = size_bytes
        self.deadline = deadline
        self.rows: OpenBatch | None = None
        self.encoded: EncodedBatch | None = None
        self.alone = False
        self.error: BaseException | None = None


class PartitionQueue:
    """One partition's batches in the order of the calls."""

    __slots__ = ("attempts", "batches", "in_flight", "info", "open", "retry_at", "tp")

    def __init__(self, tp: TopicPartition, info: TopicInfo) -> None:
        self.tp = tp
        self.info = info
        self.open: OpenBatch | None = None
        self.batches: deque[PendingBatch] = deque()
        self.in_flight = False
        self.attempts = 0
        self.retry_at = 0.0


class Accumulator:
    """Queues and memory of one producer. `lock` guards everything; methods with a leading `locked_` are called under it."""

    def __init__(self, *, buffer_bytes: int, linger_s: float, max_block_s: float, delivery_timeout_s: float) -> None:
        self.buffer_bytes = buffer_bytes
        self.linger_s = linger_s
        self.max_block_s = max_block_s
        self.delivery_timeout_s = delivery_timeout_s
        self.lock = threading.Lock()
        self.memory_freed = threading.Condition(self.lock)
        self.used_bytes = 0
        self.waiting = 0
        self.closed = ""
        self.active: dict[TopicPartition, PartitionQueue] = {}
        self.outstanding: dict[Delivery, None] = {}
        self.failed: deque[Delivery] = deque(maxlen=1000)
        self.wake_sender: Callable[[], None] = lambda: None

    def reset_after_fork(self) -> None:
        """In a forked child: the producer belongs to the parent."""
        self.lock = threading.Lock()
        self.memory_freed = threading.Condition(self.lock)
        self.closed = "this producer belongs to the parent process: create one in the child"
        self.active.clear()
        self.outstanding.clear()
        self.failed.clear()

    def check_open(self) -> None:
        if self.closed:
            raise ClosedError(self.closed)

    # -- callers' side

    def locked_reserve(self, size_bytes: int) -> None:
        """Takes memory, waiting for it up to max.block.ms. Raises BufferExhaustedError or ClosedError."""
        deadline = None
        while self.used_bytes and self.used_bytes + size_bytes > self.buffer_bytes:
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

    def locked_open(self, queue: PartitionQueue) -> OpenBatch:
        """A new batch to collect records in."""
        batch = queue.open = OpenBatch(queue.tp)
        self.outstanding[batch.delivery] = None
        self.active[queue.tp] = queue
        self.wake_sender()
        return batch

    def locked_close_open(self, queue: PartitionQueue) -> None:
        """Moves the batch being collected, if there is one, to those that wait for the sender."""
        rows = queue.open
        if rows is None:
            return
        queue.open = None
        pending = PendingBatch(rows.delivery, rows.size_bytes, rows.created + self.delivery_timeout_s)
        pending.rows = rows
        rows.delivery.record_count = len(rows.values)
        rows.delivery.timestamps_us = rows.timestamps_us
        queue.batches.append(pending)

    def enqueue(self, queue: PartitionQueue, encoded: EncodedBatch) -> Delivery:
        """Appends an encoded batch behind what was sent before. Raises BufferExhaustedError or ClosedError."""
        size = len(encoded.payload)
        delivery = Delivery(queue.tp)
        delivery.record_count = encoded.record_count
        delivery.max_timestamp_ms = encoded.max_timestamp_ms
        with self.lock:
            self.check_open()
            self.locked_reserve(size)
            self.locked_close_open(queue)
            pending = PendingBatch(delivery, size, time.monotonic() + self.delivery_timeout_s)
            pending.encoded = encoded
            queue.batches.append(pending)
            self.outstanding[delivery] = None
            self.active[queue.tp] = queue
            if not queue.in_flight:
                self.wake_sender()
        return delivery

    def close_all_open(self) -> list[Delivery]:
        """Makes everything collected ready; returns what is under way."""
        with self.lock:
            for queue in self.active.values():
                self.locked_close_open(queue)
            self.wake_sender()
            return list(self.outstanding)

    def take_failure(self) -> BaseException | None:
        """The first failure that nobody has looked at, forgetting all of them."""
        with self.lock:
            unseen = [d.error for d in self.failed if not d.seen]
            self.failed.clear()
        return unseen[0] if unseen else None

    # -- sender's side

    def locked_ready(self, now: float) -> tuple[list[PartitionQueue], float | None]:
        """Queues with something to send now, and when the next one will have (None: when somebody calls)."""
        ready: list[PartitionQueue] = []
        next_at: float | None = None
        for queue in self.active.values():
            if queue.in_flight:
                continue
            if queue.batches:
                due = queue.retry_at
                if self.closed or not self.linger_s:
                    self.locked_close_open(queue)
            elif queue.open is not None:
                due = max(queue.retry_at, 0.0 if self.waiting or self.closed else queue.open.created + self.linger_s)
            else:
                continue
            if due <= now:
                ready.append(queue)
            else:
                wait_until = min(due, queue.batches[0].deadline) if queue.batches else due
                next_at = wait_until if next_at is None else min(next_at, wait_until)
        return ready, next_at

    def locked_take(self, queue: PartitionQueue) -> list[PendingBatch]:
        """Takes what goes into the partition's next request; the queue is busy until `settle` or `put_back`."""
        if not queue.batches or (queue.open and time.monotonic() >= queue.open.created + self.linger_s):
            self.locked_close_open(queue)
        taken = [queue.batches.popleft()]
        size = taken[0].size_bytes
        while (
            queue.batches
            and not (taken[0].alone or queue.batches[0].alone)
            and size + queue.batches[0].size_bytes <= PARTITION_REQUEST_BYTES
        ):
            size += queue.batches[0].size_bytes
            taken.append(queue.batches.popleft())
        queue.in_flight = True
        return taken

    def locked_expired(self, now: float) -> Iterator[tuple[PartitionQueue, PendingBatch]]:
        """Takes batches out whose delivery.timeout.ms is over and that are not under way."""
        for queue in self.active.values():
            while not queue.in_flight and queue.batches and queue.batches[0].deadline <= now:
                yield queue, queue.batches.popleft()

    def put_back(self, queue: PartitionQueue, batches: list[PendingBatch], *, retry_at: float) -> None:
        """Returns batches that were taken, to the front and in order."""
        with self.lock:
            queue.batches.extendleft(reversed(batches))
            queue.in_flight = False
            queue.retry_at = retry_at

    def settle(
        self, queue: PartitionQueue, batches: list[PendingBatch], *, error: BaseException | None, release: bool = True
    ) -> None:
        """Accounts for batches whose outcome is known (the caller sets it on the deliveries next): frees their memory
        and, with `release`, the queue for its next request."""
        with self.lock:
            for batch in batches:
                self.used_bytes -= batch.size_bytes
                self.outstanding.pop(batch.delivery, None)
                if error is not None:
                    batch.delivery.error = error
                    self.failed.append(batch.delivery)
            if release:
                queue.in_flight = False
                queue.attempts = 0
                queue.retry_at = 0.0
            if not queue.batches and queue.open is None and not queue.in_flight:
                self.active.pop(queue.tp, None)
            if self.waiting:
                self.memory_freed.notify_all()


def row_bytes(value: bytes | None, key: bytes | None, headers: Headers | None) -> int:
    """About how many bytes a record adds to a batch."""
    size = ROW_OVERHEAD_BYTES + (len(value) if value else 0) + (len(key) if key else 0)
    if headers:
        size += sum(16 + len(name) + (len(content) if content else 0) for name, content in headers)
    return size
