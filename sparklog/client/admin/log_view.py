"""Descriptions of a partition's stored form: its segments and the headers of its batches."""

from __future__ import annotations

from typing import NamedTuple

from sparklog.client.admin.call import Call
from sparklog.client.net.addresses import Endpoint
from sparklog.client.net.answers import single
from sparklog.client.net.leader_questions import LedGroup, until_led
from sparklog.client.net.topic_info import topic_error
from sparklog.client.reading.single_fetch import fetch_once
from sparklog.errors import CorruptBatchError, NotLeaderError
from sparklog.format.batch import (
    ATTRIBUTE_COMMIT,
    ATTRIBUTE_CONTROL,
    ATTRIBUTE_LOG_APPEND_TIME,
    ATTRIBUTE_OFFSET_COLUMN,
    ATTRIBUTE_TRANSACTIONAL,
    decode_header,
    verify_checksum,
)
from sparklog.log.tiering.state import decode_segment
from sparklog.protocol.messages import (
    LocateRemoteRequest,
    LocateRemoteResponse,
    LocateSegmentsRequest,
    LocateSegmentsResponse,
)
from sparklog.protocol.topic_messages import MetadataRequest, MetadataResponse, PartitionState
from sparklog.settings import MIB
from sparklog.types import READ_UNCOMMITTED, TopicPartition

OFFSET_MAX = 2**63 - 1
FETCH_BYTES = 4 * MIB
"""Largest size of one fetch in bytes; a larger batch is fetched alone."""
SEGMENTS_MAX = 10_000


class SegmentDescription(NamedTuple):
    """A segment file of a partition."""

    base_offset: int
    """First offset of the segment."""
    next_offset: int
    """Offset after the segment's last readable record."""
    schema_id: int
    """Id of the schema of its rows."""
    size_bytes: int
    """Size of its readable batches in bytes."""
    is_remote: bool
    """True if only the object store has the segment."""
    path: str
    """Path on the broker's host, or below the object store's URL."""


class BatchDescription(NamedTuple):
    """The header of a batch."""

    base_offset: int
    """First offset of the batch."""
    last_offset: int
    """Last offset of the batch."""
    records: int
    """Number of records; 0 for a marker."""
    size_bytes: int
    """Size of the batch in bytes."""
    schema_id: int
    """Id of the schema of its rows."""
    kind: str
    """"data", or the marker "commit" or "abort"."""
    is_transactional: bool
    """True for a batch of a transaction."""
    is_compacted: bool
    """True if compaction has removed offsets of the batch."""
    timestamp_type: str
    """"CreateTime" or "LogAppendTime"."""
    min_timestamp_ms: int
    """Smallest timestamp in ms since 1970."""
    max_timestamp_ms: int
    """Largest timestamp in ms since 1970."""
    append_time_ms: int
    """Time of the append in ms since 1970."""
    producer_id: int
    """Id of the producer; -1: not idempotent."""
    producer_epoch: int
    """Epoch of the producer."""
    base_sequence: int
    """Sequence number of the first record."""
    leader_epoch: int
    """Epoch of the leader that appended the batch."""
    checksum: int
    """Checksum in the header."""
    checksum_is_right: bool
    """True if the checksum matches the bytes."""


def describe_segments(call: Call, tp: TopicPartition) -> list[SegmentDescription]:
    """Describe a partition's segments, at most SEGMENTS_MAX; see `Admin.describe_segments`."""
    call.topic(tp.topic)

    def ask(group: LedGroup) -> dict[TopicPartition, list[SegmentDescription]]:
        return {tp: _segments_at(call, group.leader, tp)}

    return until_led(call.cluster, [tp], ask, call.attempts)[tp]


def _segments_at(call: Call, leader: Endpoint, tp: TopicPartition) -> list[SegmentDescription]:
    """Return the segments that the leader reports. Raises NotLeaderError and errors of requests."""
    state = _state_at(call, leader, tp)
    offset = max(0, state.log_start_offset)
    found: list[SegmentDescription] = []
    while offset < state.local_log_start_offset and len(found) < SEGMENTS_MAX:
        request = LocateRemoteRequest(*tp, offset, state.local_log_start_offset)
        remote = call.ask_broker(leader, request, LocateRemoteResponse)
        copies = [c for c in map(decode_segment, remote.segments) if c.next_offset > offset]
        if not copies:
            break
        for copy in copies:
            facts = (copy.base_offset, copy.next_offset, copy.schema_id, copy.data_bytes)
            found.append(SegmentDescription(*facts, True, f"{remote.url}/{copy.prefix}"))
        offset = copies[-1].next_offset
    start = max(offset, state.local_log_start_offset)
    local = call.ask_broker(leader, LocateSegmentsRequest(*tp, start, OFFSET_MAX), LocateSegmentsResponse)
    files = local.ranges[: SEGMENTS_MAX - len(found)]
    ends = [*(r.first_offset for r in files[1:]), local.high_watermark]
    found += [
        SegmentDescription(r.base_offset, end, r.schema_id, r.end_position - r.start_position, False, r.path)
        for r, end in zip(files, ends, strict=False)
    ]
    return found


def _state_at(call: Call, leader: Endpoint, tp: TopicPartition) -> PartitionState:
    """Return the partition's state at its leader; another broker can have no replica, or a replica that lags."""
    answer = call.ask_broker(leader, MetadataRequest([tp.topic], with_schemas=False), MetadataResponse)
    topic = single(answer.topics, "topic")
    if topic.error_code:
        raise topic_error(topic.error_code, tp.topic)
    state = next((p for p in topic.partitions if p.partition == tp.partition), None)
    if state is None:
        raise NotLeaderError(f"the broker at {leader} does not know {tp}")
    return state


def describe_batches(call: Call, tp: TopicPartition, offset: int, batches_max: int) -> list[BatchDescription]:
    """Describe batches of a partition; see `Admin.describe_batches`."""
    found: list[BatchDescription] = []
    while len(found) < batches_max:
        result, payload = fetch_once(call.cluster, tp, offset, FETCH_BYTES, READ_UNCOMMITTED, call.attempts)
        if not result.length_bytes:
            return found
        before = offset
        view, position = memoryview(payload), 0
        while position < len(view) and len(found) < batches_max:
            batch, size_bytes = _describe(view, position)
            found.append(batch)
            position += size_bytes
            offset = max(offset, batch.last_offset + 1)
        if offset == before:
            return found
    return found


def _describe(view: memoryview, position: int) -> tuple[BatchDescription, int]:
    header = decode_header(view, position)
    try:
        verify_checksum(view, position, header)
        is_right = True
    except CorruptBatchError:
        is_right = False
    has = header.attributes
    kind = "data" if not has & ATTRIBUTE_CONTROL else "commit" if has & ATTRIBUTE_COMMIT else "abort"
    described = BatchDescription(
        base_offset=header.base_offset,
        last_offset=header.last_offset,
        records=0 if kind != "data" else header.record_count,
        size_bytes=header.size_bytes,
        schema_id=header.schema_id,
        kind=kind,
        is_transactional=bool(has & ATTRIBUTE_TRANSACTIONAL),
        is_compacted=bool(has & ATTRIBUTE_OFFSET_COLUMN),
        timestamp_type="LogAppendTime" if has & ATTRIBUTE_LOG_APPEND_TIME else "CreateTime",
        min_timestamp_ms=header.min_timestamp_ms,
        max_timestamp_ms=header.max_timestamp_ms,
        append_time_ms=header.append_time_ms,
        producer_id=header.producer_id,
        producer_epoch=header.producer_epoch,
        base_sequence=header.base_sequence,
        leader_epoch=header.leader_epoch,
        checksum=header.crc,
        checksum_is_right=is_right,
    )
    return described, header.size_bytes
