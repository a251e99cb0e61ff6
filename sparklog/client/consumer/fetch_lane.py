"""Fetching from one broker: a thread with a connection that looks up positions, fetches ahead of `poll`, and decodes.

The next request is sent before the last answer is decoded, so the broker sends while the client decodes. A failing
partition delays no other partition: it is left out until its next attempt. The next attempt is immediate if the answer
names the leader (KIP-951).
"""

from __future__ import annotations

import contextlib
import logging
import random
import threading
import time
from collections.abc import Iterable
from typing import Protocol

from sparklog.client.consumer.fetch_answer import InFlightFetch, Part
from sparklog.client.consumer.fetch_connection import FetchConnection
from sparklog.client.consumer.fetch_request import FetcherConfig, fetch_request
from sparklog.client.consumer.fetch_turn import PART_HEADER_BYTES, SPARSE_BYTES, FetchTurn
from sparklog.client.consumer.file_fetcher import FileFetcher, Piece
from sparklog.client.consumer.position import Divergence, Position, ReadyBatches
from sparklog.client.consumer.serving import BrokerChoice
from sparklog.client.consumer.truncation import check_positions
from sparklog.client.net.addresses import Endpoint
from sparklog.client.net.background import daemon_thread
from sparklog.client.net.cluster import METADATA_MAX_AGE_S, Cluster
from sparklog.client.net.retry import Retries, RetryPolicy
from sparklog.client.reading.consumed import ConsumedBatch
from sparklog.client.reading.offset_lookup import find_offsets
from sparklog.errors import (
    BrokerNotAvailableError,
    OffsetOutOfRangeError,
    SparklogError,
    UnknownTopicOrPartitionError,
    error_from_code,
)
from sparklog.protocol.apis import Api
from sparklog.protocol.messages import FetchResult
from sparklog.types import READ_COMMITTED, TopicPartition

_log = logging.getLogger(__name__)

PIECE_BYTES = 1024 * 1024
"""Memory that decoding takes beside an answer before the batches are handed to poll. Batches that stay in the answer's
memory are handed over together: each wake-up of poll costs more than they do."""
BACKOFF_S, BACKOFF_S_MAX = 0.05, 1.0
REPLICA_SHUN_S = 30.0
"""Time in s for which only the leader serves a partition after another replica has failed to serve it."""
UNKNOWN_TRIES = 4
"""Number of failed attempts after which a topic that its leader does not know counts as deleted."""


class Shared(Protocol):
    """The state that all lanes of a consumer share (the Fetcher). `changed` is the lock and the condition of this
    state; methods that need it held say so."""

    lock: threading.RLock
    changed: threading.Condition
    positions: dict[TopicPartition, Position]
    ready: ReadyBatches
    closed: bool
    files: FileFetcher | None
    reset_to: int | None
    lane_idle_s: float

    def notify(self) -> None: ...
    def hand_over(self, positions: Iterable[Position], broker: Endpoint) -> None: ...
    def has_lane(self, broker: Endpoint) -> bool: ...
    def retire(self, lane: FetchLane) -> None: ...
    def share_of_room(self) -> int: ...
    def rotate(self, served: list[Position]) -> None: ...
    def has_room(self) -> bool: ...
    def wait_for_room(self, position: Position) -> bool: ...
    def are_needed(self, positions: list[Position]) -> bool: ...
    def deliver(self, position: Position, piece: Piece, *, by_first: bool = False) -> None: ...
    def fail_positions(self, positions: list[Position], error: SparklogError) -> None: ...
    def diverge(self, divergences: Iterable[tuple[Position, Divergence]]) -> None: ...
    def fail(self, error: BaseException) -> None: ...


class FetchLane:
    """One lane: the fetches from one broker. `broker` is that broker; the first lane has none until it knows the
    leaders. The shared lock guards `turn`."""

    def __init__(
        self,
        cluster: Cluster,
        config: FetcherConfig,
        shared: Shared,
        *,
        broker: Endpoint | None = None,
        is_first: bool = False,
    ) -> None:
        self.broker = broker
        self.turn = FetchTurn(shared.lock)
        self._is_first = is_first
        self._cluster = cluster
        self._broker_choice = BrokerChoice(cluster)
        self._config = config
        self._shared = shared
        self._connection = FetchConnection(cluster, shared.lock, config.request_timeout_ms)
        self.in_flight: InFlightFetch | None = None
        """The request that was sent ahead; it belongs to the thread with the turn."""
        self._in_background = False
        """True while the background thread handles a request or an answer."""
        self._backoff_s = BACKOFF_S
        self._resume_at = 0.0
        self._logged = ""
        self._thread: threading.Thread | None = None

    # -- from other threads, with the lock held

    def start(self) -> None:
        """Start the thread, once."""
        if self._thread is None:
            self._thread = daemon_thread(self._run, "sparklog-consumer")
            self._thread.start()

    def join(self, timeout_s: float) -> None:
        """Wait for the thread's end; without the lock."""
        if self._thread is not None:
            self._thread.join(timeout_s)

    def abort(self) -> None:
        """End the present request, which can wait for data for long."""
        self._connection.abort()

    def begin_again(self) -> None:
        """End the present request and its wait, because the positions have changed."""
        self._resume_at = 0.0
        self._connection.abort()

    def make_way(self) -> None:
        """End the present request, so that the next one includes a partition that comes back from files. Nothing
        happens if this lane fetches no partition."""
        if any(self._is_mine(p) and p.is_fetchable for p in self._shared.positions.values()):
            self._connection.abort()

    def forget_request(self) -> None:
        """Drop the request in flight, because the poll that was about to receive its answer was interrupted."""
        self.in_flight = None
        self.turn.leave_socket()

    def fetch_for_poll(self) -> InFlightFetch | None:
        """Return the request whose answer poll receives; None if it is not poll's turn."""
        in_flight = self.in_flight
        if not self._is_first or in_flight is None or self._in_background:
            return None
        if self._connection.has_aborted or self._shared.closed:
            return None
        return in_flight if self.turn.is_polls(in_flight.connection) else None

    def receive_here(self, deadline: float) -> None:
        """Wait on the polling thread for the answer, until `deadline`, and handle it if it is complete and needs no
        look-up of leaders. Otherwise what has come is left to the background thread. Call it without the lock."""
        in_flight = self.in_flight
        if in_flight is not None:
            connection, positions = in_flight.connection, in_flight.positions
            is_complete = connection.read_ahead()
            while not (is_complete or connection.is_answer_large) and self.turn.is_readable(connection, deadline):
                is_complete = connection.read_ahead()
            if is_complete and self._broker_choice.knows(positions):
                self.in_flight = None
                self._step(positions, in_flight)
            elif is_complete or connection.has_read_ahead:
                self.turn.is_sparse = False
        with self._shared.changed:
            self.turn.leave_socket()
            if self.fetch_for_poll() is None:
                self._shared.notify()

    # -- the thread

    def _run(self) -> None:
        try:
            while (positions := self._wait_for_work()) is not None:
                ahead, self.in_flight = self.in_flight, None
                self._step(positions, ahead)
        except BaseException as e:  # noqa: BLE001  poll raises it
            _log.exception("the consumer's fetch thread failed")
            self._shared.fail(e)
        finally:
            self._connection.drop()

    def _is_mine(self, position: Position) -> bool:
        return position.lane is self or (self._is_first and position.lane is None)

    def _needed_positions(self, now: float) -> list[Position]:
        """Return the positions to fetch for, least recently served first."""
        return [
            p for p in self._shared.positions.values() if self._is_mine(p) and p.is_fetchable and p.resume_at <= now
        ]

    def _wait_for_work(self) -> list[Position] | None:
        """Return the positions of the request under way, or those to fetch for when there is memory for more; None at
        the end."""
        shared, idle_until = self._shared, time.monotonic() + self._shared.lane_idle_s
        with shared.changed:
            self._in_background = False
            if self.turn.is_polling:
                shared.changed.notify_all()  # it may be poll's turn
            while not shared.closed:
                now = time.monotonic()
                ready = self.fetch_for_poll()
                if self.turn.poll_receives or ready is not None:
                    self.turn.leave_to_poll(None if ready is None else ready.connection)
                    continue
                needed = self._needed_positions(now)
                if self.in_flight is not None:
                    needed = self.in_flight.positions
                elif now < self._resume_at:
                    self.turn.wait_in_background(self._resume_at - now)
                    continue
                if self.in_flight is not None or (needed and shared.has_room()):
                    self._in_background = True
                    return needed
                mine = [p for p in shared.positions.values() if self._is_mine(p)]
                if mine or self._is_first:
                    idle_until = now + shared.lane_idle_s
                elif now >= idle_until:
                    shared.retire(self)
                    return None
                due = [p.resume_at for p in mine if p.is_fetchable and p.resume_at > now]
                until = min(due, default=None if mine or self._is_first else idle_until)
                self.turn.wait_in_background(None if until is None else until - now)
        return None

    def _step(self, positions: list[Position], ahead: InFlightFetch | None) -> None:
        """Receive the answer to `ahead`, or request the `positions` positions, and handle the errors."""
        try:
            if ahead is None:
                self._fetch_once(positions)
            else:
                self._take_answer(ahead)
            self._backoff_s, self._logged = BACKOFF_S, ""
        except SparklogError as e:
            self.in_flight = None
            if self._connection.drop() or not self._shared.are_needed(positions):
                return
            if not e.retriable:
                self._shared.fail_positions(positions, e)
                return
            _note(str(e), is_new=str(e) != self._logged)
            self._logged = str(e)
            with self._shared.changed:
                if self._shared.are_needed(positions):
                    self._resume_at = time.monotonic() + self._backoff_s
                for position in positions:
                    self._doubt(position, 0.0)
            self._backoff_s = min(2 * self._backoff_s, BACKOFF_S_MAX)

    def _doubt(self, position: Position, resume_at: float) -> None:
        if position.replica >= 0:
            position.leave_replica(time.monotonic() + REPLICA_SHUN_S)
            return
        position.retry_at(resume_at)
        self._cluster.expire(position.tp.topic)

    def _retry(self, position: Position, error: SparklogError, *, at_once: bool = False) -> None:
        """Schedule another attempt for this partition alone. `at_once`: the answer has named the next broker, so the
        attempt follows without a pause."""
        pause_s = min(BACKOFF_S * 2.0 ** min(position.attempts, 10), BACKOFF_S_MAX) * random.uniform(0.8, 1.2)
        _note(f"{position.tp}: {error}", is_new=position.attempts == 0)
        with self._shared.changed:
            if not at_once:
                self._doubt(position, time.monotonic() + pause_s)

    def _fetch_once(self, positions: list[Position]) -> None:
        mine = self._mine_by_leader(positions)
        unresolved = [p for p in mine if p.offset is None]
        if unresolved:
            self._resolve(unresolved)
        self._check_epochs([p for p in mine if p.offset is not None and p.error is None])
        ready = [p for p in mine if p.offset is not None and p.is_fetchable]
        if ready and self.broker is not None:
            in_flight = self._ask(ready)
            if in_flight is not None:
                self._take_answer(in_flight)

    def _mine_by_leader(self, candidates: list[Position]) -> list[Position]:
        """Return the positions that this lane's leader serves; other positions go to the lanes of their leaders."""
        by_broker: dict[Endpoint, list[Position]] = {}
        topics = {p.tp.topic for p in candidates if p.in_doubt or self._cluster.last_leader(p.tp) is None}
        failed: dict[str, SparklogError] = {}
        for topic in topics:
            try:
                self._cluster.topic(topic, timeout_ms=self._config.request_timeout_ms)
            except SparklogError as e:
                failed[topic] = e
        for position in candidates:
            try:
                if position.tp.topic in failed:
                    raise failed[position.tp.topic]
                by_broker.setdefault(self._broker_choice.broker_of(position), []).append(position)
            except SparklogError as e:
                if e.retriable:
                    self._retry(position, e)
                else:
                    self._shared.fail_positions([position], e)
        if self._is_first and by_broker and self.broker not in by_broker:
            # the first lane changes to a broker that no other lane fetches from; None: all have a lane
            self.broker = next((b for b in by_broker if not self._shared.has_lane(b)), None)
        mine: list[Position] = []
        for broker, positions in by_broker.items():
            if broker == self.broker:
                mine = positions
            else:
                self._shared.hand_over(positions, broker)
        return mine

    def _resolve(self, positions: list[Position]) -> None:
        """Find the offsets of positions that have only `reset_to`: earliest or latest."""
        for position in positions:
            if position.reset_to is None:
                error = OffsetOutOfRangeError(
                    f"{position.tp} has no position and auto.offset.reset is none: seek to an offset first"
                )
                self._shared.fail_positions([position], error)
        times = {p.tp: p.reset_to for p in positions if p.reset_to is not None}
        if not times:
            return
        config = self._config
        # the lane itself tries again: those that have no leader hold up no others
        once = Retries(RetryPolicy.one_attempt(config.request_timeout_ms))
        offsets = find_offsets(self._cluster, times, once, isolation=config.isolation)
        with self._shared.changed:
            for position in positions:
                if position.tp in offsets and position.offset is None:  # `position()` may have asked, too
                    position.begin_at(offsets[position.tp].offset, offsets[position.tp].leader_epoch)
            self._shared.notify()

    def _check_epochs(self, positions: list[Position]) -> None:
        """Ask new leaders if they have the records that were read (KIP-320). No leader has records of a topic that was
        deleted and created again: poll is told so."""
        earlier = self._broker_choice.of_earlier_topics(positions)
        for position in earlier:
            position.projection.is_of_an_earlier_topic = True
        if earlier:
            self._shared.diverge((p, Divergence(0, -1)) for p in earlier)
        unchecked = self._broker_choice.unchecked([p for p in positions if p.divergence is None])
        if unchecked:
            divergences = check_positions(self._cluster, unchecked, self._retry, self._config.request_timeout_ms)
            self._shared.diverge(divergences)

    def _ask(self, positions: list[Position], *, taken_bytes: int = 0) -> InFlightFetch | None:
        """Send a fetch request for the positions. Returns None if one of them is no longer current. `taken_bytes` of
        prefetch.bytes are reserved for an answer that is not delivered yet."""
        config, broker = self._config, self.broker
        assert broker is not None
        with self._shared.changed:
            room_bytes = config.prefetch_bytes - self._shared.ready.size_bytes - taken_bytes
            room_bytes //= self._shared.share_of_room()
        request, requested = fetch_request(
            config,
            positions,
            room_bytes=room_bytes,
            wait_ms=config.max_wait_ms,
            is_probe=self._is_probe,
            epoch_of=self._broker_choice.epoch_of,
            now=time.monotonic(),
        )
        connection = self._connection.to(broker)
        if not self._shared.are_needed(positions):
            return None
        timeout_ms = config.request_timeout_ms + config.max_wait_ms
        connection.send(Api.FETCH, request, timeout_ms=timeout_ms, wait_ms=config.max_wait_ms)
        return InFlightFetch(broker, connection, requested, [p.epoch for p, _ in requested])

    def _take_answer(self, in_flight: InFlightFetch) -> None:
        """Receive and decode an answer. The next request is sent before the decoding, if the answer has no error and
        the partitions are still the same."""
        parts, size_bytes = in_flight.receive()
        self._shared.rotate([p.position for p in parts if p.result.length_bytes])
        behind = self._leave_to_files(parts)
        self.turn.is_sparse = size_bytes + len(parts) * PART_HEADER_BYTES <= SPARSE_BYTES
        if all(p.result.error_code == 0 and p.result.preferred_replica < 0 for p in parts) and self._advance(parts):
            self._go_ahead(in_flight, size_bytes)
        for part in parts:
            position = part.position
            try:
                self._take_part(part)
            except SparklogError as e:
                behind.pop(position, None)
                position.from_files = False
                if e.retriable:
                    self._step_back(part)
                    if self.in_flight is not None:  # it asks for the records after
                        self.in_flight = None
                        self._connection.drop()
                    self._retry(position, e, at_once=self._is_named_leader(part))
                else:
                    self._shared.fail_positions([position], e)
            else:
                position.on_answer()
        with self._shared.changed:
            for position, bytes_per_offset in behind.items():  # the received records have been delivered
                assert self._shared.files is not None
                self._shared.files.take_over(position, bytes_per_offset)

    def _is_named_leader(self, part: Part) -> bool:
        """True if the answer names a leader that was not known."""
        result = part.result
        return result.leader_id >= 0 and self._cluster.note_leader(
            part.position.tp, result.leader_id, result.leader_epoch, part.brokers
        )

    def _advance(self, parts: list[Part]) -> bool:
        """Move the positions past the received data. Returns False if the next offset is unknown until all batches
        are checked."""
        if any(p.next_offset is None for p in parts):
            return False
        with self._shared.changed:
            for part in parts:
                part.position.offset, part.position.epoch = part.next_offset, part.end_epoch
        return True

    def _step_back(self, part: Part) -> None:
        """Set the position back to the first offset that was received but not delivered. The records from there on are
        fetched again."""
        with self._shared.changed:
            part.position.offset, part.position.epoch = part.offset, part.epoch

    def _go_ahead(self, last: InFlightFetch, taken_bytes: int) -> None:
        """Send the request that follows `last`, for the partitions that stay with the socket, if there will be room
        for its answer."""
        with self._shared.changed:
            needed = self._needed_positions(time.monotonic())
            is_room = self._shared.ready.size_bytes + taken_bytes < self._config.prefetch_bytes
        if not is_room or not needed or not last.is_for(needed):
            return
        with contextlib.suppress(SparklogError):  # the next request meets it again, when the received records are safe
            if all(self._broker_choice.stays(p, last.broker) for p in needed):
                self.in_flight = self._ask(needed, taken_bytes=taken_bytes)

    def _take_part(self, part: Part) -> None:
        position, result = part.position, part.result
        if position.error is not None:
            return
        if result.preferred_replica >= 0:
            self._read_from(position, part)
            return
        if result.error_code == OffsetOutOfRangeError.code and position.replica < 0:
            self._out_of_range(position, result)
            return
        if result.error_code:
            error = error_from_code(result.error_code, result.message)
            # A leader can have records that a follower lacks; brokers hear of a new topic at different times.
            is_new = isinstance(error, UnknownTopicOrPartitionError) and position.attempts < UNKNOWN_TRIES
            raise BrokerNotAvailableError(str(error)) if position.replica >= 0 or is_new else error
        if not result.length_bytes:
            return
        end, epoch = part.end_offset, part.end_epoch
        batches: list[ConsumedBatch] = []
        size_bytes = decoded_bytes = 0
        decoded = part.decode(check_crcs=self._config.check_crcs)
        while True:
            try:
                batch = next(decoded, None)
            except SparklogError:  # the records before it are intact
                self._deliver(part, batches, size_bytes)
                raise
            if batch is None:
                self._deliver(part, batches, size_bytes, end, epoch)
                return
            batches.append(batch)
            size_bytes += batch.memory_bytes
            decoded_bytes += batch.decoded_bytes
            if decoded_bytes >= PIECE_BYTES:
                self._deliver(part, batches, size_bytes)
                batches, size_bytes, decoded_bytes = [], 0, 0
                if not self.turn.poll_receives and not self._shared.wait_for_room(position):
                    return

    def _deliver(
        self,
        part: Part,
        batches: list[ConsumedBatch],
        size_bytes: int,
        end: int | None = None,
        epoch: int | None = None,
    ) -> None:
        """Hand the next batches of a part to poll. `end` and `epoch`: the end of the part; None: the end of the
        batches."""
        if end is None or epoch is None:
            end = batches[-1].next_offset if batches else part.offset
            epoch = batches[-1].leader_epoch if batches else part.epoch
        piece = Piece(batches, part.offset, end, size_bytes, epoch)
        self._shared.deliver(part.position, piece, by_first=self._is_first)
        part.offset, part.epoch = end, epoch

    def _read_from(self, position: Position, part: Part) -> None:
        """Read from the nearer replica that the leader has named (KIP-392), for a limited time; then from the leader
        again."""
        replica = part.result.preferred_replica
        self._cluster.note_broker(replica, part.brokers)
        with self._shared.changed:
            position.replica, position.replica_until = replica, time.monotonic() + METADATA_MAX_AGE_S

    def _out_of_range(self, position: Position, result: FetchResult) -> None:
        where = f"offset {position.offset} of {position.tp} is out of range: the log has offsets {result.log_start_offset} to {result.high_watermark}"
        reset_to = self._shared.reset_to
        if reset_to is None:
            error = OffsetOutOfRangeError(f"{where}, and auto.offset.reset is none: seek to a valid offset")
            self._shared.fail_positions([position], error)
            return
        _log.warning("%s: continuing at the %s", where, self._config.reset)
        with self._shared.changed:
            position.reset_to = reset_to
            position.offset = None

    # -- files

    def _is_probe(self, position: Position) -> bool:
        files = self._shared.files
        return files is not None and position.is_new and files.may_read(position.tp)

    def _leave_to_files(self, parts: list[Part]) -> dict[Position, float]:
        """Return the partitions that are still behind after this answer and whose files are on this host, each with its
        bytes per offset. From now on they are not fetched."""
        behind: dict[Position, float] = {}
        files = self._shared.files
        for part in parts if files is not None else ():
            result, end = part.result, part.next_offset
            bound = result.last_stable_offset if self._config.isolation == READ_COMMITTED else result.high_watermark
            if end is None or not part.offset < end < bound:
                continue
            with contextlib.suppress(SparklogError):
                if files is not None and files.is_here(part.position.tp, end):
                    behind[part.position] = result.length_bytes / (end - part.offset)
        with self._shared.changed:
            for position in behind:
                position.from_files = True
        return behind


def _note(text: str, *, is_new: bool) -> None:
    _log.log(logging.WARNING if is_new else logging.INFO, "%s; trying again", text)
