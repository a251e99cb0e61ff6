"""FETCH: file ranges of whole batches, up to the high watermark or, for read_committed, to the last stable offset. The
answer waits for `min_bytes`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from operator import attrgetter
from typing import NamedTuple, TypeVar

from sparklog.environment.time_slices import ITEMS_PER_LOOK
from sparklog.errors import InvalidRequestError, OffsetNotAvailableError, SparklogError, StorageError
from sparklog.log.partition_log import PartitionLog
from sparklog.log.segments.slices import FileSlice, RemoteReadRequired
from sparklog.protocol.messages import AbortedRange, FetchPartition, FetchRequest, FetchResponse, FetchResult
from sparklog.types import READ_COMMITTED, TopicPartition
from sparklog_broker.broker import Broker
from sparklog_broker.counters.requests import RequestTimes
from sparklog_broker.handlers.leader_hints import endpoints, leader_hint, preferred_replica
from sparklog_broker.handlers.named_once import check_each_once
from sparklog_broker.network.reply import Response
from sparklog_broker.partitions import page_cache
from sparklog_broker.partitions.column_pruner import Part, PrunedSlices, Room
from sparklog_broker.partitions.partition import Partition
from sparklog_broker.request_context import RequestContext

SLICES_PER_PARTITION_MAX = 32
"""Largest number of slices of one partition in an answer. Only tiny segments need more slices, which take too long."""
SLICES_PER_ANSWER_MAX = 1_000
"""Largest number of slices in an answer; each can keep a segment file open. The next fetch continues."""
COLUMNS_READ_FACTOR = 4
"""Number of bytes that are looked at for each byte of room, if all partitions of a request name columns. What then
does not fit is left out of the answer."""
T = TypeVar("T")
WAITING_PARTITIONS_MAX = 2_000
"""Largest number of partitions whose appends wake a fetch. A fetch of more partitions waits for its full
`max_wait_ms`.
"""


async def fetch(request: FetchRequest, payload: memoryview, context: RequestContext) -> Response:
    """Answer at once if there are `min_bytes`, an error, or no reason to wait; otherwise wait in the purgatory."""
    if len(payload):
        raise InvalidRequestError("a FETCH request has no payload")
    if request.isolation == READ_COMMITTED:
        await context.broker.transactions.settled()
    await check_each_once(
        context.broker.time_slices, request.partitions, lambda p: (p.topic, p.partition, p.fetch_offset, p.leader_epoch)
    )
    reading = _FetchReader(context.broker, request)
    await reading.read()
    await reading.read_remote()
    fresh = False
    if not reading.complete:
        # the end of a transaction may make old, cold records readable
        fresh = not reading.slices and request.isolation != READ_COMMITTED
        reading.release()
        await reading.wait(context.times)
        await reading.read()
        await reading.read_remote()
    if not fresh:  # fresh slices are in the page cache
        try:
            reading.drop(await page_cache.warm(reading.slices, context.broker.io))
        except BaseException:
            reading.release()
            raise
    parts = await reading.payload()
    named = [i for r in reading.results if r.error_code or r.preferred_replica >= 0 for i in _brokers_named(r)]
    brokers = endpoints(context.broker, named, context.listener) if named else []
    return Response(FetchResponse(reading.results, brokers), parts)


class _Offsets(NamedTuple):
    """A log's offsets, read before its records. All transactions below the stable end are decided at that time, so that
    the list of aborted ranges is complete.
    """

    high_watermark: int = -1
    stable: int = -1
    log_start: int = -1

    @classmethod
    def from_partition(cls, partition: Partition) -> _Offsets:
        log = partition.log
        return cls(log.high_watermark, partition.stable_offset, log.log_start_offset)


class _FetchReader:
    """The reading for one fetch request: once at its arrival, and again after the wait if there was too little."""

    def __init__(self, broker: Broker, request: FetchRequest) -> None:
        self._broker = broker
        self._request = request
        self._max_bytes = min(request.max_bytes, broker.config.fetch_max_bytes)
        # The answer can contain no more than this, so do not wait for more.
        room = min(self._max_bytes, sum(p.max_bytes for p in request.partitions))
        self._min_bytes = min(request.min_bytes, room) if request.max_bytes else request.min_bytes
        self._available = [0] * len(request.partitions)
        self.results: list[FetchResult] = []
        self._by_partition: list[list[FileSlice]] = []
        self._read_factor = COLUMNS_READ_FACTOR if all(p.columns is not None for p in request.partitions) else 1
        self._remaining_bytes = self._max_bytes
        """Room in the answer beside the slices."""
        self._remote: list[int] = []
        """Indexes of the partitions whose records are in the object store. `read` skips them."""
        self._positions: dict[Hashable, list[int]] = {}
        self._failed = False
        """True if the answer must be sent without waiting."""
        self._committed = request.isolation == READ_COMMITTED
        self._from_followers = bool(request.rack) and bool(broker.config.replica_selector_class)

    @property
    def slices(self) -> list[FileSlice]:
        """All slices that have been read."""
        return [file_slice for slices in self._by_partition for file_slice in slices]

    @property
    def complete(self) -> bool:
        """True if the result of the last `read` should be sent without waiting."""
        return (
            self._failed
            or self._request.max_wait_ms == 0
            or sum(s.length_bytes for s in self.slices) >= self._min_bytes
        )

    def release(self) -> None:
        Response(None, self.slices).release()
        self._by_partition = []

    def drop(self, failed: Mapping[FileSlice, SparklogError]) -> None:
        """Replace the results of partitions whose slices cannot be read by errors, and release their slices."""
        for i, slices in enumerate(self._by_partition):
            error = next((failed[s] for s in slices if s in failed), None)
            if error is None:
                continue
            Response(None, slices).release()
            self._by_partition[i] = []
            requested = self._request.partitions[i]
            self.results[i] = self._failure(requested, _Offsets(), error)

    async def wait(self, times: RequestTimes) -> None:
        """Wait until another `read` could return more, or the request's `max_wait_ms` has passed."""
        clock = self._broker.environment.clock
        began_s = clock.monotonic_s()
        try:
            await self._wait()
        finally:
            times.wait_s += clock.monotonic_s() - began_s

    async def payload(self) -> list[Part]:
        """Return the answer's parts: the slices, with some columns for readers that want no others. Then the results
        have other lengths. Adds the answer to the counters of topics. If cancelled, releases the parts."""
        find, time_slices = self._broker.partitions.find, self._broker.time_slices
        parts: list[Part] = []
        room = Room(self._max_bytes)
        try:
            for i, (result, slices) in enumerate(zip(self.results, self._by_partition, strict=True)):
                if i % ITEMS_PER_LOOK == 0 and time_slices.due():
                    await time_slices.pause()
                partition, requested = find(TopicPartition(result.topic, result.partition)), self._request.partitions[i]
                added: Sequence[Part] = slices
                next_offset = slices[-1].next_offset if slices else 0
                if slices and partition is not None and requested.columns is not None:
                    try:
                        added, next_offset = await self._pruned(partition, requested, slices, room)
                        result.length_bytes = Response(None, added).payload_bytes
                    except StorageError as e:
                        added, next_offset = [], slices[0].base_offset
                        self.results[i] = result = self._failure(requested, _Offsets(), e)
                    Response(None, slices).release()
                else:
                    room.take(result.length_bytes)
                parts += added
                if partition is not None:
                    traffic = partition.traffic
                    traffic.fetches += 1
                    traffic.failed_fetches += result.error_code != 0
                    if slices:
                        traffic.bytes_out += result.length_bytes
                        traffic.records_out += next_offset - slices[0].base_offset
        except BaseException:
            self.release()
            Response(None, parts).release()
            raise
        return parts

    async def _pruned(
        self, partition: Partition, requested: FetchPartition, slices: Sequence[FileSlice], room: Room
    ) -> PrunedSlices:
        """Return the requested columns of the slices."""
        held = [file_slice.duplicate() for file_slice in slices]
        prune = partial(
            self._broker.column_pruner.prune,
            (requested.topic, partition.topic_id, requested.partition),
            held,
            requested.columns or (),
            partition.log.reader.schema_of,
            requested.max_bytes,
            room,
        )
        io = self._broker.io
        running = io.run(io.idlest(), partial(_then_release, prune, held))
        try:
            return await asyncio.shield(running)
        except asyncio.CancelledError:
            running.add_done_callback(partial(_release_result, attrgetter("parts")))
            raise

    async def _wait(self) -> None:
        wait_s, fetches = self._request.max_wait_ms / 1000, self._broker.partitions.fetches
        if len(self._available) > WAITING_PARTITIONS_MAX:
            await fetches.wait((self,), lambda _: False, wait_s)
        else:
            for i, p in enumerate(self._request.partitions):
                self._positions.setdefault(TopicPartition(p.topic, p.partition), []).append(i)
            await fetches.wait(self._positions, self._satisfied, wait_s)

    async def read(self) -> None:
        """Fill `results` and `slices` with the present records."""
        self.results, self._by_partition, self._remote, self._failed = [], [], [], False
        remaining, count = self._max_bytes, 0
        time_slices = self._broker.time_slices
        try:
            for i, requested in enumerate(self._request.partitions, 1):
                if i % ITEMS_PER_LOOK == 0 and time_slices.due():
                    await time_slices.pause()
                if count >= SLICES_PER_ANSWER_MAX:
                    remaining = 0
                result, slices = self._read_partition(requested, remaining, first=not count)
                self.results.append(result)
                self._by_partition.append(slices)
                count += len(slices)
                remaining -= result.length_bytes // self._read_factor
                self._failed = self._failed or result.error_code != 0 or result.preferred_replica >= 0
        except BaseException:
            self.release()
            raise
        self._remaining_bytes = remaining

    async def read_remote(self) -> None:
        """Read the partitions that `read` has skipped, on threads that are allowed to wait for the object store. Each
        gets at least one batch, even a batch that is larger than the room in the answer, so that no reader is stuck.
        When no room is left, the remaining partitions get nothing.
        """
        remaining = self._remaining_bytes
        try:
            for i in self._remote:
                requested = self._request.partitions[i]
                room = min(requested.max_bytes, remaining)
                if room <= 0 and self.slices:
                    break
                try:
                    partition = self._partition(requested)
                    log, offsets = partition.log, _Offsets.from_partition(partition)
                    end = self._end(offsets)
                    job = partial(_read_waiting, log, requested.fetch_offset, max(room, 0), end)
                    slices = await _run_remote(self._broker, job)
                except SparklogError as e:
                    self.results[i] = self._failure(requested, _Offsets(), e)
                    self._failed = True
                    continue
                self.results[i], self._by_partition[i] = self._answer(log, requested, offsets, slices)
                remaining -= self.results[i].length_bytes
        except BaseException:
            self.release()
            raise

    def _read_partition(
        self, requested: FetchPartition, remaining: int, *, first: bool
    ) -> tuple[FetchResult, list[FileSlice]]:
        offsets = _Offsets()
        slices: list[FileSlice] = []
        room = min(requested.max_bytes, remaining) * self._read_factor
        try:
            partition = self._partition(requested)
            log, offsets = partition.log, _Offsets.from_partition(partition)
            rack = "" if requested.leader_only else self._request.rack
            replica = preferred_replica(self._broker, partition, rack, requested.fetch_offset)
            if replica >= 0:
                return FetchResult(
                    requested.topic,
                    requested.partition,
                    0,
                    *offsets,
                    leader_epoch=requested.leader_epoch,
                    preferred_replica=replica,
                ), []
            if self._from_followers and not self._is_caught_up(partition, requested.fetch_offset):
                return FetchResult(requested.topic, requested.partition, 0, *offsets), []
            end = self._end(offsets)
            # Send the first batch of an answer even if it is too large; otherwise no reader could pass it.
            one = first and remaining > 0 and requested.max_bytes > 0
            _read_into(slices, log, requested.fetch_offset, room, end, min_one_batch=one, may_wait=False)
        except RemoteReadRequired:
            if room > 0:
                self._remote.append(len(self.results))
        except SparklogError as e:
            if not slices:
                return self._failure(requested, offsets, e), []
            # send the batches read so far; the next fetch gets the error
        return self._answer(log, requested, offsets, slices)

    def _end(self, offsets: _Offsets) -> int:
        return offsets.stable if self._committed else offsets.high_watermark

    def _answer(
        self, log: PartitionLog, requested: FetchPartition, offsets: _Offsets, slices: list[FileSlice]
    ) -> tuple[FetchResult, list[FileSlice]]:
        aborted: list[AbortedRange] = []
        try:
            if slices and self._committed:
                ranges = log.reader.aborted_transactions(slices[0].base_offset, slices[-1].next_offset)
                aborted = [AbortedRange(*r) for r in ranges]
        except SparklogError as e:
            for file_slice in slices:
                file_slice.release()
            return self._failure(requested, offsets, e), []
        length = sum(s.length_bytes for s in slices)
        return FetchResult(requested.topic, requested.partition, 0, *offsets, length, "", aborted), slices

    def _partition(self, requested: FetchPartition) -> Partition:
        partitions = self._broker.partitions
        find = partitions.readable if self._from_followers and not requested.leader_only else partitions.get
        partition = find(requested.topic, requested.partition)
        partition.check_topic_id(requested.topic_id)
        partition.check_leader_epoch(requested.leader_epoch)
        return partition

    def _is_caught_up(self, partition: Partition, offset: int) -> bool:
        """True if this broker leads the partition, or knows that all records below `offset` are committed. A follower
        learns of commits later than the leader; until then its reader waits. Raises OffsetNotAvailableError if the
        follower lacks the records.
        """
        if partition.replicas.leader == self._broker.config.broker_id:
            return True
        log = partition.log
        if offset > log.log_end_offset:
            raise OffsetNotAvailableError(
                f"this follower of {partition.key} ends at offset {log.log_end_offset}, before {offset}: ask its leader"
            )
        return offset <= log.high_watermark

    def _failure(self, requested: FetchPartition, offsets: _Offsets, error: SparklogError) -> FetchResult:
        result = FetchResult(requested.topic, requested.partition, error.code, *offsets, 0, str(error))
        result.leader_id, result.leader_epoch = leader_hint(self._broker, requested.topic, requested.partition, error)
        return result

    def _satisfied(self, key: Hashable | None) -> bool:
        """True if `read` would now return enough bytes, or an error. Checks only the partition `key`; None for all."""
        for i in range(len(self._available)) if key is None else self._positions[key]:
            requested = self._request.partitions[i]
            try:
                partition = self._partition(requested)
                log, end = partition.log, partition.stable_offset if self._committed else None
                if self._from_followers and not self._is_caught_up(partition, requested.fetch_offset):
                    continue
                available = log.reader.bytes_available(requested.fetch_offset, end=end)
            except SparklogError:
                return True
            if requested.fetch_offset < log.log_start_offset:
                return True
            self._available[i] = min(available, requested.max_bytes) if self._request.max_bytes else available
        return sum(self._available) >= max(self._min_bytes, 1)


def _brokers_named(result: FetchResult) -> tuple[int, int]:
    """Return the ids of the brokers that the result refers the reader to."""
    return result.leader_id, result.preferred_replica


def _read_into(
    slices: list[FileSlice],
    log: PartitionLog,
    offset: int,
    max_bytes: int,
    end: int,
    *,
    min_one_batch: bool,
    may_wait: bool,
) -> None:
    """Append to the empty list `slices` the records from `offset` to below `end`, up to `max_bytes`; with
    `min_one_batch` at least one batch. `may_wait`: as for `LogReader.read`. Raises the errors of `LogReader.read`;
    earlier slices then stay in the list.
    """
    # Read at least once, even without room, to report an offset out of range.
    while len(slices) < SLICES_PER_PARTITION_MAX:
        one = min_one_batch and not slices
        chunk = log.reader.read(offset, max(max_bytes, 0), min_one_batch=one, may_wait=may_wait, end=end)
        if chunk is None:
            break
        slices.append(chunk)
        max_bytes -= chunk.length_bytes
        offset = chunk.next_offset
        if max_bytes <= 0 or offset >= end:
            break


def _read_waiting(log: PartitionLog, offset: int, max_bytes: int, end: int) -> list[FileSlice]:
    """Return slices from `offset` to `end`: at most `max_bytes`, but at least one batch. Waits for the object store.
    Raises an error only if no slice was read before it.
    """
    slices: list[FileSlice] = []
    try:
        _read_into(slices, log, offset, max_bytes, end, min_one_batch=True, may_wait=True)
    except SparklogError:
        if not slices:
            raise
    return slices


def _then_release(job: Callable[[], T], held: list[FileSlice]) -> T:
    """Run `job`, which reads the slices `held`, and release them."""
    try:
        return job()
    finally:
        Response(None, held).release()


async def _run_remote(broker: Broker, job: Callable[[], list[FileSlice]]) -> list[FileSlice]:
    """Run `job` on a thread that is allowed to wait for the object store. If the caller is cancelled, the job's slices
    are released."""
    running = broker.storage.remote_reads.submit(job)
    try:
        return await asyncio.wrap_future(running)
    except asyncio.CancelledError:
        running.add_done_callback(partial(_release_result, list))
        raise


def _release_result(parts_of: Callable[[T], Sequence[Part]], done: Future[T] | asyncio.Future[T]) -> None:
    """Release the parts of a result that nobody receives."""
    if not done.cancelled() and done.exception() is None:
        Response(None, parts_of(done.result())).release()
