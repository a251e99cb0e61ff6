"""The consumer's background thread: resolves positions, fetches ahead of `poll`, decodes.

What belongs to a position is one `Position` object; `seek` and `assign` replace it, so that an answer to an older
request is recognised (its object is no longer the current one) and dropped.

The next request goes out before the data of the last are decoded: the broker sends while the client looks at what it has.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import pyarrow as pa

from sparklog.client.addresses import Endpoint
from sparklog.client.cluster import Cluster
from sparklog.client.connection import Connection
from sparklog.client.consumed import ConsumedBatch, Projection, decode_batches
from sparklog.client.isolation import Aborted
from sparklog.client.offsets import list_offsets
from sparklog.errors import (
    InvalidRequestError,
    OffsetOutOfRangeError,
    SparklogError,
    error_from_code,
)
from sparklog.format.batch import decode_header
from sparklog.protocol.messages import Api, FetchPartition, FetchRequest, FetchResponse, FetchResult
from sparklog.types import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP, TopicPartition

_log = logging.getLogger(__name__)

BACKOFF_S, BACKOFF_S_MAX = 0.05, 1.0

RESET_TO = {"earliest": EARLIEST_TIMESTAMP, "latest": LATEST_TIMESTAMP}


class FetcherConfig(NamedTuple):
    """What the fetcher needs of the consumer's settings."""

    min_bytes: int
    max_wait_ms: int
    max_bytes: int
    partition_max_bytes: int
    prefetch_bytes: int
    request_timeout_ms: int
    check_crcs: bool
    reset: str
    isolation: int


class Position:
    """Where one assigned partition is: `offset` is the next one to fetch (None: not known yet, `reset_to` says which),
    `consumed` the next one that poll returns. Nothing is fetched while it is `paused`, or `waiting` to be told where to begin."""

    __slots__ = ("_consumed", "_rowless", "error", "offset", "paused", "projection", "reset_to", "tp", "waiting")

    def __init__(self, tp: TopicPartition, projection: Projection, offset: int | None, reset_to: int | None) -> None:
        self.tp = tp
        self.projection = projection
        self.offset = offset
        self._consumed = offset
        self._rowless: dict[int, int] = {}
        self.reset_to = reset_to
        self.error: SparklogError | None = None
        self.paused = False
        self.waiting = False

    @property
    def consumed(self) -> int | None:
        offset = self._consumed
        return None if offset is None else self._rowless.get(offset, offset)

    @consumed.setter
    def consumed(self, offset: int | None) -> None:
        self._consumed = offset

    def pass_over(self, start: int, end: int) -> None:
        """Offsets [start, end) have been fetched and have no rows: who has consumed all before stands at `end`."""
        here = self.consumed
        gone = [s for s, e in self._rowless.items() if here is not None and e < here]
        for s in gone:
            del self._rowless[s]
        joined = next((s for s, e in self._rowless.items() if e == start), start)
        self._rowless[joined] = end


class Fetched(NamedTuple):
    """A batch that waits for poll. `size_bytes` is what it takes of prefetch.bytes."""

    position: Position
    batch: ConsumedBatch
    size_bytes: int


class _UnderWay(NamedTuple):
    """A request without an answer yet: what it asked for, and on which connection."""

    leader: Endpoint
    connection: Connection
    asked: list[tuple[Position, FetchPartition]]

    @property
    def positions(self) -> list[Position]:
        return [position for position, _ in self.asked]


@dataclass(slots=True)
class _Part:
    """One partition's part of an answer, of which what is below `offset` was not asked for or has been taken."""

    position: Position
    offset: int
    result: FetchResult
    data: pa.Buffer


class Fetcher:
    """Starts its thread with the first assignment; `changed` guards and announces all shared state."""

    def __init__(self, cluster: Cluster, config: FetcherConfig) -> None:
        self._cluster = cluster
        self._config = config
        self.changed = threading.Condition()
        self.positions: dict[TopicPartition, Position] = {}
        self.ready: deque[Fetched] = deque()
        self.ready_bytes = 0
        self.polling = 0
        self.failure: BaseException | None = None
        self._closed = False
        self._connection: Connection | None = None
        self._aborted: list[Connection] = []
        self._under_way: _UnderWay | None = None
        """The thread's own: the request that went ahead."""
        self._thread: threading.Thread | None = None

    # -- the consumer's side

    def replace(self, positions: dict[TopicPartition, Position]) -> None:
        """Sets the assignment; partitions that are not in it, or whose Position is another object, start afresh."""
        with self.changed:
            self.positions = positions
            kept = [f for f in self.ready if positions.get(f.position.tp) is f.position]
            self.ready = deque(kept)
            self.ready_bytes = sum(f.size_bytes for f in kept)
            if self._thread is None and positions:
                self._thread = threading.Thread(target=self._run, name="sparklog-consumer", daemon=True)
                self._thread.start()
            self._abort_fetch()
            self.changed.notify_all()

    def close(self) -> None:
        with self.changed:
            self._closed = True
            self.ready.clear()
            self._abort_fetch()
            self.changed.notify_all()
        if self._thread is not None:
            self._thread.join(5.0)

    def _abort_fetch(self) -> None:
        """Ends a request that may be waiting for data of positions that are gone. Its thread closes the connection."""
        if self._connection is not None:
            self._connection.abort()
            self._aborted.append(self._connection)
            self._connection = None

    def take(self, timeout_s: float, interrupted: Callable[[], bool] = lambda: False) -> Fetched | None:
        """The next batch, waiting for one up to `timeout_s`, or until `interrupted` says so after a `wake`. Raises what a
        partition failed with."""
        deadline = time.monotonic() + timeout_s
        with self.changed:
            self.polling += 1
            try:
                while True:
                    if self.ready:
                        fetched = self.ready.popleft()
                        self.ready_bytes -= fetched.size_bytes
                        self.changed.notify_all()
                        return fetched
                    self._raise_failure()
                    remaining = deadline - time.monotonic()
                    if remaining <= 0 or interrupted():
                        return None
                    self.changed.notify_all()
                    self.changed.wait(remaining)
            finally:
                self.polling -= 1

    def wake(self) -> None:
        """Lets a `take` that waits, and the thread, look again."""
        with self.changed:
            self.changed.notify_all()

    def _raise_failure(self) -> None:
        if self.failure is not None:
            raise SparklogError(f"the consumer's fetch thread failed: {self.failure!r}") from self.failure
        for position in self.positions.values():
            if position.error is not None:
                raise position.error

    # -- the thread

    def _run(self) -> None:
        backoff = BACKOFF_S
        told = ""
        try:
            while True:
                ahead, self._under_way = self._under_way, None
                wanted = self._wait_for_work() if ahead is None else ahead.positions
                if wanted is None:
                    return
                try:
                    if ahead is None:
                        self._fetch_once(wanted)
                    else:
                        self._take_answer(ahead)
                    backoff, told = BACKOFF_S, ""
                except SparklogError as e:
                    self._under_way = None
                    if not self._drop_connection() and self._is_current(wanted):
                        if not e.retriable:
                            self._fail(wanted, e)
                            continue
                        _log.log(logging.INFO if str(e) == told else logging.WARNING, "%s; trying again", e)
                        told = str(e)
                        for topic in {p.tp.topic for p in wanted}:
                            self._cluster.expire(topic)
                        with self.changed:
                            if not self._closed:
                                self.changed.wait(backoff)
                        backoff = min(2 * backoff, BACKOFF_S_MAX)
        except BaseException as e:  # noqa: BLE001  poll raises it
            _log.exception("the consumer's fetch thread failed")
            with self.changed:
                self.failure = e
                self.changed.notify_all()
        finally:
            self._drop_connection()

    def _wait_for_work(self) -> list[Position] | None:
        """The positions to fetch for, least recently served first, when there is memory for more; None at the end."""
        with self.changed:
            while not self._closed:
                wanted = [p for p in self.positions.values() if not (p.error or p.paused or p.waiting)]
                room = self.ready_bytes < self._config.prefetch_bytes or (self.polling and not self.ready)
                if wanted and room:
                    return wanted
                self.changed.wait()
        return None

    def _is_current(self, positions: list[Position]) -> bool:
        with self.changed:
            return not self._closed and all(self.positions.get(p.tp) is p for p in positions)

    def _fail(self, positions: list[Position], error: SparklogError) -> None:
        with self.changed:
            for position in positions:
                position.error = error
            self.changed.notify_all()

    def _drop_connection(self) -> bool:
        """Whether it had been broken by `replace`: nothing is wrong then."""
        with self.changed:
            dropped, self._aborted = self._aborted, []
            aborted = bool(dropped)
            if self._connection is not None:
                dropped.append(self._connection)
                self._connection = None
        for connection in dropped:
            connection.close()
        return aborted

    def _connect(self, leader: Endpoint) -> Connection:
        connection = self._connection
        if connection is None or connection.closed or connection.endpoint != leader:
            self._drop_connection()
            connection = self._cluster.connect(leader, timeout_ms=self._config.request_timeout_ms, for_data=True)
            with self.changed:
                self._connection = connection
        return connection

    def _fetch_once(self, wanted: list[Position]) -> None:
        unresolved = [p for p in wanted if p.offset is None]
        if unresolved:
            self._resolve(unresolved)
        by_leader: dict[Endpoint, list[Position]] = {}
        for position in wanted:
            if position.error is None and position.offset is not None:
                by_leader.setdefault(self._cluster.leader(position.tp), []).append(position)
        for leader, positions in by_leader.items():
            self._fetch_from(leader, positions, wait=len(by_leader) == 1)

    def _resolve(self, positions: list[Position]) -> None:
        """Finds the offsets of positions that say only earliest or latest."""
        for position in positions:
            if position.reset_to is None:
                error = OffsetOutOfRangeError(
                    f"{position.tp} has no position and auto.offset.reset is none: seek to an offset first"
                )
                self._fail([position], error)
        asked = {p.tp: p.reset_to for p in positions if p.reset_to is not None}
        if not asked:
            return
        config = self._config
        found = list_offsets(self._cluster, asked, isolation=config.isolation, timeout_ms=config.request_timeout_ms)
        with self.changed:
            for position in positions:
                if position.tp in found and position.offset is None:  # `position()` may have asked, too
                    position.offset = position.consumed = found[position.tp].offset
            self.changed.notify_all()

    def _fetch_from(self, leader: Endpoint, positions: list[Position], *, wait: bool) -> None:
        under_way = self._ask(leader, positions, self._config.max_wait_ms if wait else 0)
        if under_way is not None:
            self._take_answer(under_way, go_ahead=wait)

    def _ask(
        self, leader: Endpoint, positions: list[Position], wait_ms: int, *, taken_bytes: int = 0
    ) -> _UnderWay | None:
        """Sends a request; None when the positions are gone. `taken_bytes` of prefetch.bytes are spoken for."""
        config = self._config
        with self.changed:
            room = max(config.prefetch_bytes - self.ready_bytes - taken_bytes, 1)
        max_bytes = max(min(config.max_bytes, room), 1)
        asked = [
            (p, FetchPartition(*p.tp, p.offset, min(config.partition_max_bytes, max_bytes)))
            for p in positions
            if p.offset is not None
        ]
        request = FetchRequest(wait_ms, config.min_bytes, max_bytes, config.isolation, [a[1] for a in asked])
        connection = self._connect(leader)
        if not self._is_current(positions):
            return None
        connection.send(Api.FETCH, request, timeout_ms=config.request_timeout_ms + config.max_wait_ms)
        return _UnderWay(leader, connection, asked)

    def _take_answer(self, under_way: _UnderWay, *, go_ahead: bool = True) -> None:
        """Receives and decodes; with `go_ahead` the next request is sent in between, if nothing is wrong or has changed."""
        connection = under_way.connection
        response, payload = connection.receive(FetchResponse)
        results = response.results
        if len(results) != len(under_way.asked) or sum(r.length_bytes for r in results) != payload.size:
            connection.close()
            raise InvalidRequestError("the answer to a fetch does not have the announced parts")
        again: SparklogError | None = None
        parts, start = [], 0
        for (position, wanted), result in zip(under_way.asked, results, strict=True):
            parts.append(_Part(position, wanted.fetch_offset, result, payload.slice(start, result.length_bytes)))
            start += result.length_bytes
        self._rotate([p.position for p in parts if p.result.length_bytes])
        if go_ahead and payload.size and all(r.error_code == 0 for r in results) and self._advance(parts):
            self._go_ahead(under_way, payload.size)
        for part in parts:
            try:
                self._take_part(part)
            except SparklogError as e:
                if e.retriable:
                    self._step_back(part)
                    again = again or e  # the others have their answer all the same
                else:
                    self._fail([part.position], e)
        if again is not None:
            raise again

    def _advance(self, parts: list[_Part]) -> bool:
        """Moves the positions behind what has come; False when that cannot be told before everything is checked."""
        try:
            ends = [max(p.offset, _next_offset(p.data)) for p in parts]
        except SparklogError:
            return False
        with self.changed:
            for part, end in zip(parts, ends, strict=True):
                part.position.offset = end
        return True

    def _step_back(self, part: _Part) -> None:
        """What has come has not been taken, or not all of it: the rest is fetched again."""
        with self.changed:
            part.position.offset = part.offset

    def _go_ahead(self, last: _UnderWay, taken_bytes: int) -> None:
        """Sends the request that follows `last`, for the same partitions, if there will be room for its answer."""
        with self.changed:
            wanted = [p for p in self.positions.values() if not (p.error or p.paused or p.waiting)]
            is_room = self.ready_bytes + taken_bytes < self._config.prefetch_bytes
        if not is_room or {id(p) for p in wanted} != {id(p) for p in last.positions}:
            return
        with contextlib.suppress(SparklogError):  # the next request meets it again, when what has come is safe
            if all(self._cluster.leader(p.tp) == last.leader for p in wanted):
                self._under_way = self._ask(last.leader, wanted, self._config.max_wait_ms, taken_bytes=taken_bytes)

    def _take_part(self, part: _Part) -> None:
        position, offset, result = part.position, part.offset, part.result
        if position.error is not None:
            return
        if result.error_code == OffsetOutOfRangeError.code:
            self._out_of_range(position, result)
            return
        if result.error_code:
            raise error_from_code(result.error_code, result.message)
        if not result.length_bytes:
            return
        batches: list[ConsumedBatch] = []
        failure: SparklogError | None = None
        try:
            for batch in self._decoded(part):
                batches.append(batch)
            end = max(offset, _next_offset(part.data))
        except SparklogError as e:  # what is before is intact
            failure, end = e, batches[-1].next_offset if batches else offset
        with self.changed:
            if self.positions.get(position.tp) is not position or self._closed:
                return
            if batches:
                batches[-1].next_offset = max(batches[-1].next_offset, end)  # also behind batches without rows
            elif end > offset:
                position.pass_over(offset, end)
            position.offset = part.offset = end
            size = result.length_bytes // len(batches) if batches else 0
            self.ready.extend(Fetched(position, b, size) for b in batches)
            self.ready_bytes += size * len(batches)
            self.changed.notify_all()
        if failure is not None:
            raise failure

    def _decoded(self, part: _Part) -> Iterator[ConsumedBatch]:
        return decode_batches(
            part.data,
            part.position.tp,
            part.position.projection,
            part.offset,
            check_crcs=self._config.check_crcs,
            aborted=Aborted(part.result.aborted),
        )

    def _rotate(self, served: list[Position]) -> None:
        """Puts partitions that got data behind those that did not, so that none starves."""
        with self.changed:
            for position in served:
                if self.positions.get(position.tp) is position:
                    self.positions[position.tp] = self.positions.pop(position.tp)

    def _out_of_range(self, position: Position, result: FetchResult) -> None:
        where = f"offset {position.offset} of {position.tp} is outside of {result.log_start_offset} to {result.high_watermark}"
        if self._config.reset not in RESET_TO:
            self._fail(
                [position], OffsetOutOfRangeError(f"{where}, and auto.offset.reset is none: seek to a valid offset")
            )
            return
        _log.warning("%s: going on at the %s", where, self._config.reset)
        with self.changed:
            position.reset_to = RESET_TO[self._config.reset]
            position.offset = None


def _next_offset(data: pa.Buffer) -> int:
    """The offset after the last of the batches in `data`."""
    view = memoryview(data)
    position = next_offset = 0
    while position < len(view):
        header = decode_header(view, position)
        next_offset = header.next_offset
        position += header.size_bytes
    return next_offset
