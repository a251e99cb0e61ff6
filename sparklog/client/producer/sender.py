"""The producer's sender thread: takes ready batches, sends produce requests, reads the answers, retries.

There is one thread, one connection per broker, and several requests in flight per connection. `sequences` decides which
batches of a partition can be in flight together, and the next step after a failed attempt. Without idempotence a
partition has one request in flight.
"""

from __future__ import annotations

import contextlib
import logging
import math
import select
import selectors
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import NamedTuple

from sparklog.client.net.addresses import Endpoint
from sparklog.client.net.answers import identity_of
from sparklog.client.net.cluster import Cluster
from sparklog.client.net.connection import Connection
from sparklog.client.net.waker import Waker
from sparklog.client.producer.accumulator import Accumulator, PartitionQueue
from sparklog.client.producer.delivery_errors import CUT_OFF, NOT_STORED, TOPIC_CHANGED
from sparklog.client.producer.encoding import BatchEncoder
from sparklog.client.producer.outcomes import Entry, Outcomes
from sparklog.client.producer.sequences import WriteSession
from sparklog.client.producer.typed_rows import typed_batch
from sparklog.environment.fault_points import reach
from sparklog.errors import (
    BrokerNotAvailableError,
    ClusterAuthorizationFailedError,
    RequestTimedOutError,
    SparklogError,
    TopicAuthorizationFailedError,
)
from sparklog.format.batch import assign_producer
from sparklog.protocol.apis import Api
from sparklog.protocol.messages import ProducePartition, ProduceRequest, ProduceResponse, ProduceResult
from sparklog.protocol.transaction_messages import InitProducerIdRequest, InitProducerIdResponse
from sparklog.settings import MIB
from sparklog.types import ProducerIdAndEpoch

_log = logging.getLogger(__name__)

REQUEST_BYTES = 8 * MIB
"""Size in bytes from which on a request takes no further partition. A few such requests fit into the broker's kept
receive buffers, so none of them costs fresh memory."""
REQUEST_HEADER_BYTES = MIB
_SEND_S_MIN = 0.01
"""Shortest time limit in s of a request, even if `delivery.timeout.ms` of its batches is over."""
SHORT_TIMEOUT_S = 0.1
"""Timeouts below this value in s are not rounded up to a millisecond."""
FD_SETSIZE = 1024
"""`select` takes only descriptors below this number."""


class SenderConfig(NamedTuple):
    """The producer's settings that the sender needs. `acks`: -1, 0 or 1."""

    acks: int
    request_timeout_ms: int
    max_in_flight: int
    backoff_s: float
    backoff_max_s: float


class _Channel:
    """The connection to one broker and its requests in flight."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.in_flight: deque[tuple[list[Entry], float]] = deque()
        """Entries, and the time by which their batches have to be delivered."""

    @property
    def due(self) -> float:
        """Time from which the oldest request in flight counts as failed; infinity without one. A pause that a quota
        imposes extends it, but not beyond the batches' delivery.timeout.ms."""
        return min(self.connection.answer_due, self.in_flight[0][1]) if self.in_flight else math.inf

    @property
    def look_at(self) -> float:
        """Time of the next action for the oldest request in flight, if it gets no answer."""
        return min(self.due, self.connection.late_at)


class Sender:
    """The thread that sends a producer's batches, until `stop`. All methods except `wake`, `stop`, `abandon` and `join`
    belong to this thread."""

    def __init__(
        self,
        cluster: Cluster,
        accumulator: Accumulator,
        encoder: BatchEncoder,
        config: SenderConfig,
        forget_topic: Callable[[str], object],
    ) -> None:
        """`forget_topic(name)` is called after an error which proves that the topic's metadata are wrong."""
        self._cluster = cluster
        self._forget_topic = forget_topic
        self._accumulator = accumulator
        self._encoder = encoder
        self._config = config
        self._outcomes = Outcomes(
            accumulator,
            backoff_s=config.backoff_s,
            backoff_max_s=config.backoff_max_s,
            doubt_metadata=self._doubt_metadata,
        )
        self._channels: dict[Endpoint, _Channel] = {}
        self._selector = selectors.DefaultSelector()
        fileno = getattr(self._selector, "fileno", None)  # of epoll and kqueue
        self._selector_fd: int = fileno() if fileno is not None else FD_SETSIZE
        self._waker = Waker()
        self._selector.register(self._waker, selectors.EVENT_READ)
        self._woken = False
        self._stopping = False
        self.is_abandoned = False
        self.on_abandoned: Callable[[], None] = lambda: None
        """Called on the thread when it has been abandoned, before it continues."""
        self.on_stopped: Callable[[], None] = lambda: None
        """Called on the thread at its end, when it has been abandoned."""
        self._thread = threading.Thread(target=self._run, name="sparklog-producer", daemon=True)
        self._thread.start()

    def wake(self) -> None:
        """Make the thread check the accumulator. The call is cheap if the thread is about to check anyway."""
        if not self._woken:
            self._woken = True
            self._waker.wake()

    def stop(self, timeout_s: float) -> None:
        """End the thread, and wait for its end up to `timeout_s`. Batches without an outcome fail."""
        self._stopping = True
        self._woken = False
        self.wake()
        self._thread.join(timeout_s)

    def abandon(self) -> None:
        """End the thread when everything accepted has an outcome. Takes no lock."""
        self.is_abandoned = True
        self._waker.wake()

    def join(self, timeout_s: float) -> None:
        """Wait for the thread's end."""
        self._thread.join(timeout_s)

    def drop_after_fork(self) -> None:
        """Close a forked child's copies of the descriptors."""
        self._waker.close()
        self._selector.close()

    # -- the thread

    def _run(self) -> None:
        try:
            is_leaving = False
            while not self._stopping and not (is_leaving and not self._accumulator.outstanding):
                if self.is_abandoned and not is_leaving:
                    is_leaving = True
                    self.on_abandoned()
                self._step()
            self._fail_all(SparklogError("the producer was closed before these records were acknowledged"))
        except BaseException as e:
            _log.exception("the producer's sender thread failed")
            self._accumulator.close(f"the producer's sender thread failed: {e!r}")
            error = SparklogError(f"the producer's sender thread failed: {e!r}")
            error.__cause__ = e
            self._fail_all(error)
            if not isinstance(e, Exception):
                raise
        finally:
            for channel in self._channels.values():
                channel.connection.close()
            self._selector.close()
            self._waker.close()
            if self.is_abandoned:
                self.on_stopped()

    def _step(self) -> None:
        self._woken = False  # before the check: later changes have to wake this thread
        self._outcomes.expire()
        with self._accumulator.lock:
            ready, next_at = self._accumulator.locked_ready(time.monotonic())
        if ready:
            self._send_ready(ready)
        if not (self.is_abandoned and not self._accumulator.outstanding):
            self._wait(next_at)

    def _wait(self, next_at: float | None) -> None:
        """Sleep until an answer, a wake-up or the time `next_at`, and read the answers."""
        deadlines = [c.look_at for c in self._channels.values() if c.in_flight]
        if next_at is not None:
            deadlines.append(next_at)
        timeout = max(0.0, min(deadlines) - time.monotonic()) if deadlines else None
        events = self._select(timeout)
        self._woken = True
        for key, _ in events:
            if key.data is None:
                self._waker.clear()
            else:
                self._read_answers(key.data)
        now = time.monotonic()
        for endpoint, channel in list(self._channels.items()):
            if channel.due <= now:
                late = RequestTimedOutError(f"the broker at {endpoint} did not answer within request.timeout.ms")
                self._drop_channel(endpoint, late)
            elif channel.look_at <= now:
                try:
                    channel.connection.check_late()
                except RequestTimedOutError as e:
                    self._drop_channel(endpoint, e)

    def _select(self, timeout_s: float | None) -> list[tuple[selectors.SelectorKey, int]]:
        """Wait for the sockets. The selector's own `select` rounds a timeout up to the next millisecond, a large part
        of a short `linger.ms`. A short timeout is therefore waited for by `select.select` on the selector's descriptor,
        which counts microseconds."""
        if timeout_s is not None and 0 < timeout_s < SHORT_TIMEOUT_S and self._selector_fd < FD_SETSIZE:
            select.select([self._selector_fd], [], [], timeout_s)
            timeout_s = 0
        return self._selector.select(timeout_s)

    # -- sending

    def _send_ready(self, ready: list[PartitionQueue]) -> None:
        session = self._accumulator.session
        if session is not None and session.identity is None:
            try:
                session.identity = self._new_identity()
            except SparklogError as e:
                for queue in ready:
                    self._outcomes.not_sendable(queue, _about_topic(e, queue.tp.topic))
                return
        by_leader: dict[Endpoint, list[PartitionQueue]] = {}
        for queue in ready:
            try:
                leader = self._cluster.leader(queue.tp, timeout_ms=self._request_ms())
            except SparklogError as e:
                self._outcomes.not_sendable(queue, e)
                continue
            by_leader.setdefault(leader, []).append(queue)
        for leader, queues in by_leader.items():
            self._send_to(leader, deque(queues), session)

    def _new_identity(self) -> ProducerIdAndEpoch:
        answer = self._cluster.request(
            Api.INIT_PRODUCER_ID,
            InitProducerIdRequest(),
            InitProducerIdResponse,
            timeout_ms=self._request_ms(),
        )
        return identity_of(answer)

    def _send_to(self, leader: Endpoint, queues: deque[PartitionQueue], session: WriteSession | None) -> None:
        """Send requests to one broker until no batch is ready or enough requests are in flight."""
        while queues:
            channel = self._channels.get(leader)
            if channel is not None and (
                len(channel.in_flight) >= self._config.max_in_flight
                or (channel.in_flight and channel.connection.wants_rest)
            ):
                return
            entries: list[Entry] = []
            size = 0
            while queues and (not entries or size < REQUEST_BYTES):
                queue = queues.popleft()
                with self._accumulator.lock:
                    entry = Entry(queue, self._accumulator.locked_take(queue, time.monotonic()))
                if self._encode(entry, session):
                    entries.append(entry)
                    size += entry.size_bytes
            if not entries or not self._send_entries(leader, channel, entries, session):
                return

    def _send_entries(
        self, leader: Endpoint, channel: _Channel | None, entries: list[Entry], session: WriteSession | None
    ) -> bool:
        """Send one request with as many of the entries as the broker accepts in one; the others are put back. Returns
        False after a failure; the entries then have their outcome."""
        sent = False
        try:
            channel = channel or self._open_channel(leader, entries)
            limit = channel.connection.broker.request_bytes_max - REQUEST_HEADER_BYTES
            while len(entries) > 1 and sum(e.size_bytes for e in entries) > limit:
                self._outcomes.not_sent(entries.pop())
            sent = True
            self._send(channel, entries, session)
        except SparklogError as e:
            if channel is not None and leader in self._channels and channel.connection.closed:
                self._drop_channel(leader, e)
            for entry in entries:
                self._outcomes.failed(entry, e, definite=not sent or isinstance(e, NOT_STORED))
            return False
        return True

    def _encode(self, entry: Entry, session: WriteSession | None) -> bool:
        """Encode the records of `send`, wait for encodings of other threads, and write the producer's fields. Returns
        False after a failure; the entry then has its outcome."""
        transactional = session is not None and session.transactional_id is not None
        try:
            for batch in entry.batches:
                if batch.encoding is not None:
                    batch.encoded, batch.encoding = batch.encoding.result(), None
                    batch.delivery.max_timestamp_ms = batch.encoded.max_timestamp_ms
                written_as = (batch.identity, batch.base_sequence)
                if batch.encoded is None and batch.rows is not None:
                    small = None if self._encoder.compresses else batch.rows.small_rows()
                    if small is None:
                        rows, info = batch.rows, entry.queue.info
                        data = typed_batch(rows, info) if rows.is_typed else rows.to_arrow()
                        batch.encoded = self._encoder.encode(data, info)
                        if batch.delivery.timestamps_us is None:
                            batch.delivery.max_timestamp_ms = batch.encoded.max_timestamp_ms
                    else:
                        batch.encoded = self._encoder.encode_small(
                            small, entry.queue.info, *written_as, transactional=transactional
                        )
                        batch.written_as = written_as
                    batch.rows = None
                if batch.identity is not None and batch.encoded is not None and batch.written_as != written_as:
                    assign_producer(
                        batch.encoded.payload,
                        producer_id=batch.identity.producer_id,
                        producer_epoch=batch.identity.producer_epoch,
                        base_sequence=batch.base_sequence,
                        transactional=transactional,
                    )
                    batch.written_as = written_as
        except SparklogError as e:
            self._outcomes.failed(entry, e, definite=True)
            return False
        return True

    def _request_ms(self, entries: Iterable[Entry] = ()) -> int:
        """Return the time limit in ms for a request that blocks the thread. It ends when the first waiting batch, or
        the last batch of `entries`, reaches `delivery.timeout.ms`."""
        with self._accumulator.lock:
            deadline = self._accumulator.locked_next_deadline()
        deadline = min(deadline, max((b.deadline for e in entries for b in e.batches), default=deadline))
        remaining_s = min(self._config.request_timeout_ms / 1000, deadline - time.monotonic())
        return max(1, int(remaining_s * 1000))

    def _open_channel(self, leader: Endpoint, entries: list[Entry]) -> _Channel:
        connection = self._cluster.connect(leader, timeout_ms=self._request_ms(entries), for_data=True)
        channel = self._channels[leader] = _Channel(connection)
        self._selector.register(connection, selectors.EVENT_READ, leader)
        return channel

    def _send(self, channel: _Channel, entries: list[Entry], session: WriteSession | None) -> None:
        config = self._config
        parts = [b.encoded.payload for e in entries for b in e.batches if b.encoded is not None]
        partitions = [ProducePartition(*e.queue.tp, e.size_bytes) for e in entries]
        transactional_id = session.transactional_id if session is not None else None
        request = ProduceRequest(config.acks, config.request_timeout_ms, partitions, transactional_id)
        now = time.monotonic()
        last = max(b.deadline for e in entries for b in e.batches)
        delivered_by = max(last, now + _SEND_S_MIN)
        deadline = min(now + config.request_timeout_ms / 1000, delivered_by)
        reach("producer.before-send")
        channel.connection.send(
            Api.PRODUCE, request, parts, timeout_ms=int((deadline - now) * 1000), answered=config.acks != 0
        )
        reach("producer.after-send")
        if config.acks != 0:
            channel.in_flight.append((entries, delivered_by))
            return
        for entry in entries:
            self._outcomes.stored(entry, ProduceResult(*entry.queue.tp, 0))

    # -- answers

    def _read_answers(self, leader: Endpoint) -> None:
        """Read all received answers now: the selector does not report answers that were read from the socket with
        another one."""
        self._read_answer(leader)
        while leader in self._channels and self._channels[leader].connection.has_read_ahead:
            self._read_answer(leader)

    def _read_answer(self, leader: Endpoint) -> None:
        channel = self._channels.get(leader)
        if channel is None:
            return
        try:
            if not channel.in_flight:
                raise BrokerNotAvailableError(f"the broker at {leader} closed the connection")
            response, _ = channel.connection.receive(ProduceResponse)
        except SparklogError as e:
            if channel.connection.closed or not channel.in_flight:
                self._drop_channel(leader, e)
                return
            entries, _ = channel.in_flight.popleft()
            for entry in entries:
                self._outcomes.failed(entry, e, definite=isinstance(e, NOT_STORED))
            return
        entries, _ = channel.in_flight.popleft()
        if [(r.topic, r.partition) for r in response.results] != [e.queue.tp for e in entries]:
            error = BrokerNotAvailableError(
                f"the broker at {leader} has not answered for the partitions of the request"
            )
            self._drop_channel(leader, error)
            for entry in entries:
                self._outcomes.failed(entry, error)
            return
        for entry, result in zip(entries, response.results, strict=True):
            if result.error_code == 0:
                self._cluster.note_schema(entry.queue.tp.topic, result.newest_schema_id)
            moved = result.leader_id >= 0 and self._cluster.note_leader(
                entry.queue.tp, result.leader_id, result.leader_epoch, response.brokers
            )
            if result.error_code in CUT_OFF:
                self._cluster.doubt(leader)
            self._outcomes.answered(entry, result, moved=moved)

    # -- failures

    def _drop_channel(self, leader: Endpoint, error: SparklogError) -> None:
        """Close a lost connection, and report its requests as failed in their order. The broker is asked last for a
        while."""
        channel = self._channels.pop(leader)
        self._cluster.doubt(leader)
        with contextlib.suppress(KeyError, ValueError):
            self._selector.unregister(channel.connection)
        channel.connection.close()
        for entries, _ in channel.in_flight:
            for entry in entries:
                self._outcomes.failed(entry, error)

    def _doubt_metadata(self, topic: str, error: SparklogError) -> None:
        if isinstance(error, TOPIC_CHANGED):
            self._cluster.invalidate(topic)
            self._forget_topic(topic)
        else:
            self._cluster.expire(topic)

    def _fail_all(self, error: SparklogError) -> None:
        accumulator = self._accumulator
        for channel in self._channels.values():
            for entries, _ in channel.in_flight:
                for entry in entries:
                    self._outcomes.give_up(entry, error)
            channel.in_flight.clear()
        with accumulator.lock:
            unsent = accumulator.locked_take_all()
        for queue, batches in unsent:
            self._outcomes.give_up(Entry(queue, batches), error, release=False)
        with accumulator.lock:
            rest = list(accumulator.outstanding)
            accumulator.outstanding.clear()
        for delivery in rest:
            delivery.fail(error)


def _about_topic(error: SparklogError, topic: str) -> SparklogError:
    """Return the broker's refusal of a producer identity as an error of the topic. The broker gives identities to all
    principals that are allowed to write to any topic, so this principal is not allowed to write to this topic
    either."""
    if not isinstance(error, ClusterAuthorizationFailedError):
        return error
    return TopicAuthorizationFailedError(f"Write is not allowed on topic {topic!r}, nor on any other topic")
