"""Reads [start, end) of one partition: by mapping the segment files if they are visible, else by fetching.

Offsets that are only in the broker's object store are read from the store if this process has access, and only the
byte ranges of the needed columns. Otherwise the broker reads them for the client.

After any error of the files or the store the reader continues through the socket; the call does not raise that error.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import pyarrow as pa

from sparklog.client.net.addresses import Endpoint
from sparklog.client.net.cluster import Cluster
from sparklog.client.net.connection import Connection
from sparklog.client.net.deadline import Deadline
from sparklog.client.reading.consumed import ConsumedBatch, Projection, decode_one
from sparklog.client.reading.isolation import AbortedOffsets
from sparklog.client.reading.segment_files import LOCAL_RETRY_S, is_only_remote, locate, mapped_batches
from sparklog.errors import (
    CorruptBatchError,
    DataLossError,
    InvalidConfigError,
    InvalidRequestError,
    LocalReadUnavailableError,
    OffsetOutOfRangeError,
    RemoteStorageError,
    RequestTimedOutError,
    SparklogError,
    error_from_code,
)
from sparklog.format.batch import BatchHeader, decode_header
from sparklog.protocol.apis import Api
from sparklog.protocol.messages import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    LocateRemoteRequest,
    LocateRemoteResponse,
)
from sparklog.settings import MIB
from sparklog.types import READ_COMMITTED, READ_UNCOMMITTED, TopicPartition

_log = logging.getLogger(__name__)

FETCH_BYTES = 4 * MIB
FETCH_WAIT_MS = 500
REQUEST_TIMEOUT_MS = 30_000
BACKOFF_S, BACKOFF_S_MAX = 0.05, 1.0


class Fetching(NamedTuple):
    """Limits of fetches through the socket: largest size, longest wait of the broker for records, time limit of an
    answer. `rack` is the reader's rack, whose in-sync replica can serve the fetches (KIP-392); empty: the leader."""

    max_bytes: int = FETCH_BYTES
    max_wait_ms: int = FETCH_WAIT_MS
    request_timeout_ms: int = REQUEST_TIMEOUT_MS
    rack: str = ""


class _OtherReplica(Exception):  # noqa: N818 - it is none
    """Raised if the leader has named a nearer replica to fetch from."""


def read_range(
    cluster: Cluster,
    tp: TopicPartition,
    start_offset: int,
    end_offset: int,
    *,
    columns: Sequence[str] | None = None,
    layout: pa.Schema | None = None,
    local: str = "auto",
    check_crcs: bool = True,
    isolation: int = READ_UNCOMMITTED,
    retry_timeout_ms: int = 30_000,
    fetching: Fetching = Fetching(),  # noqa: B008 - immutable
    is_needed: Callable[[BatchHeader], bool] | None = None,
    floor: int | None = None,
) -> Iterator[ConsumedBatch]:
    """Yield the rows of [start_offset, end_offset), every offset once and in order.

    Some offsets have no row: compaction has removed the row, the offset holds a marker, or (READ_COMMITTED) its
    transaction was aborted. All batches have the same schema. Without progress the call waits no longer than the larger
    of `retry_timeout_ms` and `fetching.request_timeout_ms`.

    `columns`: names of the columns to decode, in this order. None: all. `layout`: columns with a fixed type; other
    columns have their newest type at the start. None: all have their newest type. `local`: "auto" maps the files if
    possible, and reads old segments in the object store; "off" uses the socket. `check_crcs`: False saves the check of
    the batches' checksums. `retry_timeout_ms`: the longest wait in ms for a broker that is away, counted from the last
    progress. `is_needed`: function of a batch's header; it returns False for batches to skip without decoding.
    None: all are decoded. `floor`: first offset to return from the batch that contains `start_offset`; it can be lower
    than `start_offset`. None: `start_offset`. Raises DataLossError; CorruptBatchError; SchemaMismatchError: A column is
    unknown, or has become wider than in `layout`; RequestTimedOutError: No broker answers, or with READ_COMMITTED a
    transaction in the range stays open, for `retry_timeout_ms`; BrokerNotAvailableError; UnknownTopicOrPartitionError;
    InvalidConfigError; InvalidRequestError: The range is negative or ends before it starts."""
    if local not in ("auto", "off"):
        raise InvalidConfigError(f"local read {local!r}: use auto or off")
    if not 0 <= start_offset <= end_offset:
        raise InvalidRequestError(f"{tp}: cannot read offsets {start_offset} to {end_offset}")
    if start_offset == end_offset:
        return
    expected = start_offset if floor is None else min(floor, start_offset)
    rows = _Rows(start_offset, expected, end_offset, is_needed)
    reader = _RangeReader(cluster, tp, rows, columns, layout, check_crcs, isolation, retry_timeout_ms / 1000, fetching)
    for batch in reader.batches(start_offset, local == "auto"):
        if batch.base_offset < expected:
            raise CorruptBatchError(f"{tp}: offset {batch.base_offset} where offset {expected} or more is expected")
        expected = batch.next_offset
        yield batch


class _Rows(NamedTuple):
    """The needed rows: [start, end), and rows from `floor` on in the batch that contains `start`. Batches for whose
    header `is_needed` returns False are left out; None: all batches are needed."""

    start: int
    floor: int
    end: int
    is_needed: Callable[[BatchHeader], bool] | None


def _lost(tp: TopicPartition, start: int, end: int, why: str) -> DataLossError:
    return DataLossError(f"offsets {start} to {end - 1} of {tp} cannot be read: {why}")


class _RangeReader:
    def __init__(
        self,
        cluster: Cluster,
        tp: TopicPartition,
        rows: _Rows,
        columns: Sequence[str] | None,
        layout: pa.Schema | None,
        check_crcs: bool,
        isolation: int,
        retry_s: float,
        fetching: Fetching,
    ) -> None:
        self._cluster = cluster
        self._tp = tp
        self._rows = rows
        self._end = rows.end
        self._columns = columns
        self._layout = layout
        self._projection: Projection | None = None
        self._check_crcs = check_crcs
        self._isolation = isolation
        self._retry_s = retry_s
        self._fetching = fetching
        self._replica: Endpoint | None = None
        self._leader_only = not fetching.rack
        self._retry_until, self._answer_until = self._deadlines()
        self._offset = 0
        """Offset of the next read, also after batches without a matching row."""

    def batches(self, start: int, local: bool) -> Iterator[ConsumedBatch]:
        self._offset = start
        may_read_files = local
        self._note_progress()
        backoff = BACKOFF_S
        while self._offset < self._end:
            offset = self._offset
            try:
                leader = self._cluster.leader(self._tp, timeout_ms=self._remaining_ms)
                projection = self._projection = self._projection or self._project()
                source = self._fetch(self._replica or leader, offset, projection)
                direct = may_read_files and self._is_remote(leader, offset)
                if direct:
                    source = self._remote(leader, offset, projection)
                elif local and self._cluster.local_reads.is_worth_trying(leader):
                    source = self._local(leader, offset, projection)
                for batch in source:
                    yield batch
                    self._offset = batch.next_offset
                    self._note_progress()
                    backoff = BACKOFF_S
            except (LocalReadUnavailableError, OSError) as e:
                _log.debug("reading %s through the socket: %s", self._tp, e)
                local = False
            except _OtherReplica:
                continue
            except SparklogError as e:
                if self._replica is not None:  # the leader can have records that the replica lacks
                    _log.debug("reading %s from its leader: %s", self._tp, e)
                    self._replica, self._leader_only = None, True
                    continue
                if not e.retriable or self._retry_until.left_s <= backoff:
                    raise
                self._cluster.expire(self._tp.topic)
                time.sleep(backoff)
                backoff = min(2 * backoff, BACKOFF_S_MAX)
            else:
                if direct and self._offset == offset:
                    may_read_files = False  # the store has no readable batch here
                local = local and (direct or self._offset > offset)  # records that the files lack are fetched

    def _note_progress(self) -> None:
        self._retry_until, self._answer_until = self._deadlines()

    def _deadlines(self) -> tuple[Deadline, Deadline]:
        """Return the end of retries and the end of waits for answers, if there is no progress from now on."""
        retry_ms = self._retry_s * 1000
        return Deadline(retry_ms), Deadline(max(retry_ms, self._fetching.request_timeout_ms))

    @property
    def _remaining_ms(self) -> int:
        """Time for the next request in ms."""
        return self._answer_until.left_ms(self._fetching.request_timeout_ms)

    def _project(self) -> Projection:
        name = self._tp.topic
        newest = partial(self._cluster.topic, name, refresh=True, timeout_ms=self._fetching.request_timeout_ms)
        info = self._cluster.topic(name, timeout_ms=self._remaining_ms)
        return Projection(info, self._columns, layout=self._layout, newest=newest)

    # -- object store

    def _is_remote(self, leader: Endpoint, offset: int) -> bool:
        """True if, by this process's metadata, only the object store has the offset, and the store has not failed
        lately."""
        return is_only_remote(self._cluster, self._tp, offset) and self._cluster.remote_reads.is_worth_trying(leader)

    def _remote(self, leader: Endpoint, offset: int, projection: Projection) -> Iterator[ConsumedBatch]:
        """Yield rows from the object store. After an error of the store stop, so that the broker is asked, and leave
        the store out for LOCAL_RETRY_S."""
        from sparklog.client.reading.remote_reader import read_remote

        request = LocateRemoteRequest(*self._tp, offset, self._end, self._isolation)
        try:
            located = self._cluster.request(
                Api.LOCATE_REMOTE, request, LocateRemoteResponse, endpoint=leader, timeout_ms=self._remaining_ms
            )
            end = min(self._end, located.last_stable_offset) if self._isolation == READ_COMMITTED else self._end
            aborted = AbortedOffsets(located.aborted)
            for header, data in read_remote(located.url, located.segments, projection, offset, end):
                batch = self._decode(data, memoryview(data), 0, header, projection, offset, aborted, checked=True)
                if batch is not None:
                    yield batch
                offset = self._offset = max(offset, min(header.next_offset, self._end))
        except OffsetOutOfRangeError:
            return  # the fetch finds the exact loss
        except (LocalReadUnavailableError, RemoteStorageError, CorruptBatchError, InvalidConfigError, OSError) as e:
            _log.debug("not reading %s from the object store: %s", self._tp, e)
            self._cluster.remote_reads.avoid(leader, LOCAL_RETRY_S)

    # -- files

    def _local(self, leader: Endpoint, offset: int, projection: Projection) -> Iterator[ConsumedBatch]:
        try:
            located = locate(
                self._cluster, leader, self._tp, offset, self._end, self._isolation, timeout_ms=self._remaining_ms
            )
        except OffsetOutOfRangeError:
            return  # the fetch finds the exact loss
        aborted = AbortedOffsets(located.aborted)
        for data, view, position, header in mapped_batches(located.ranges):
            if offset >= self._end:
                return
            try:
                batch = self._decode(data, view, position, header, projection, offset, aborted)
            except CorruptBatchError as e:  # perhaps compaction has replaced the file after it was located
                raise LocalReadUnavailableError(str(e)) from e
            if batch is not None:
                yield batch
            offset = self._offset = max(offset, min(header.next_offset, self._end))

    def _decode(
        self,
        data: Any,
        view: memoryview,
        position: int,
        header: BatchHeader,
        projection: Projection,
        offset: int,
        aborted: AbortedOffsets,
        *,
        checked: bool = False,
    ) -> ConsumedBatch | None:
        rows = self._rows
        if rows.is_needed is not None and not rows.is_needed(header):
            self._note_progress()
            return None
        if offset == rows.start:
            offset = rows.floor
        return decode_one(
            data,
            view,
            position,
            header,
            self._tp,
            projection,
            offset,
            self._end,
            check_crcs=self._check_crcs and not checked,
            aborted=aborted,
        )

    # -- socket

    def _fetch(self, leader: Endpoint, offset: int, projection: Projection) -> Iterator[ConsumedBatch]:
        """Yield rows that are fetched from the broker, up to the end. The next request is sent before the rows of the
        last answer are yielded."""
        stalled_until = time.monotonic() + self._retry_s
        with self._cluster.connection(leader, purpose="range", timeout_ms=self._remaining_ms) as connection:
            self._request(connection, offset, projection)
            while offset < self._end:
                payload, aborted = self._receive(connection, offset, stalled_until)
                view = memoryview(payload)
                headers: list[tuple[int, BatchHeader]] = []
                position, next_offset = 0, offset
                while position < len(view):
                    header = decode_header(view, position)
                    headers.append((position, header))
                    position += header.size_bytes
                    next_offset = max(next_offset, header.next_offset)
                if headers and next_offset <= offset:  # fetched again, the answer would be the same
                    raise CorruptBatchError(
                        f"{self._tp}: the answer to a fetch from offset {offset} only has batches before it"
                    )
                if next_offset > offset:
                    stalled_until = time.monotonic() + self._retry_s
                if next_offset < self._end:
                    self._request(connection, next_offset, projection)
                for position, header in headers:
                    batch = self._decode(payload, view, position, header, projection, offset, aborted)
                    if batch is not None:
                        yield batch
                offset = self._offset = next_offset

    def _request(self, connection: Connection, offset: int, projection: Projection) -> None:
        most, wait_ms, timeout_ms, rack = self._fetching
        leader_only = bool(rack) and self._leader_only
        columns = projection.fetched_columns
        partition = FetchPartition(*self._tp, offset, most, leader_only=leader_only, columns=columns)
        wait_ms = min(wait_ms, timeout_ms // 2)  # the broker must answer before the time limit
        request = FetchRequest(wait_ms, 1, most, self._isolation, [partition], rack)
        connection.send(Api.FETCH, request, timeout_ms=timeout_ms, wait_ms=wait_ms)

    def _receive(self, connection: Connection, offset: int, stalled_until: float) -> tuple[Any, AbortedOffsets]:
        response, payload = connection.receive(FetchResponse)
        if len(response.results) != 1 or response.results[0].length_bytes != payload.size:
            connection.close()
            raise InvalidRequestError(f"the answer to a fetch of {self._tp} does not have the announced length")
        result = response.results[0]
        if result.preferred_replica >= 0:
            self._cluster.note_broker(result.preferred_replica, response.brokers)
            self._replica = self._cluster.broker(result.preferred_replica)
            self._leader_only = self._replica is None
            raise _OtherReplica
        if result.error_code == OffsetOutOfRangeError.code:
            if offset < result.log_start_offset:
                end = min(result.log_start_offset, self._end)
                raise _lost(self._tp, offset, end, f"the log starts at offset {result.log_start_offset} now")
            raise _lost(self._tp, offset, self._end, f"the log ends at offset {result.high_watermark} now")
        if result.error_code:
            raise error_from_code(result.error_code, result.message)
        if payload.size == 0 and time.monotonic() >= stalled_until:
            if self._isolation == READ_COMMITTED and offset < result.high_watermark:
                raise RequestTimedOutError(
                    f"{self._tp}: a transaction that began at offset {result.last_stable_offset} or before is still "
                    f"open, so offsets {offset} to {self._end - 1} cannot be read with read_committed yet; `sparklog "
                    "transaction list` shows the transaction, and its timeout ends it"
                )
            raise _lost(self._tp, offset, self._end, f"the log ends at offset {result.high_watermark}")
        return payload, AbortedOffsets(result.aborted)
