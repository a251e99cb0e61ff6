"""The segment files of a broker on the same host: where they are, and their batches, mapped.

Files are visible when the broker offers them (same host) and its `meta.json` can be read and shows the same data
directory. Only whole batches below the high watermark are ever looked at: the broker cuts no file there while it runs,
and replaces or unlinks files instead of writing into them, which leaves a mapping as it is.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa

from sparklog.client.addresses import Endpoint
from sparklog.client.cluster import Cluster
from sparklog.errors import CorruptBatchError, LocalReadUnavailableError
from sparklog.format.batch import BatchHeader, decode_header
from sparklog.protocol.messages import Api, LocateSegmentsRequest, LocateSegmentsResponse, SegmentRange
from sparklog.types import TopicPartition

LOCAL_RETRY_S = 60.0
"""How long a broker whose files cannot be read here is not asked for them again."""


class MappedBatch(NamedTuple):
    """A batch at `position` of the mapped range `data`, which `view` shows, too."""

    data: pa.Buffer
    view: memoryview
    position: int
    header: BatchHeader


def locate(
    cluster: Cluster,
    leader: Endpoint,
    tp: TopicPartition,
    start_offset: int,
    end_offset: int,
    isolation: int,
    *,
    timeout_ms: int = 30_000,
) -> LocateSegmentsResponse:
    """Where [start_offset, end_offset) lies in files that are visible here.

    Raises LocalReadUnavailableError and OSError (the broker is not asked again for a while then), OffsetOutOfRangeError,
    and what a request may raise.
    """
    request = LocateSegmentsRequest(*tp, start_offset, end_offset, isolation)
    try:
        located = cluster.request(
            Api.LOCATE_SEGMENTS, request, LocateSegmentsResponse, endpoint=leader, timeout_ms=timeout_ms
        )
        _check_same_directory(located)
    except (LocalReadUnavailableError, OSError):
        cluster.no_local_reads(leader, LOCAL_RETRY_S)
        raise
    return located


def is_only_remote(cluster: Cluster, tp: TopicPartition, offset: int) -> bool:
    """Whether the offset is only in the object store, as far as the metadata here tells."""
    states = cluster.topic(tp.topic).partition_states
    start = next((s.local_log_start_offset for s in states if s.partition == tp.partition), -1)
    return offset < start


def mapped_batches(ranges: Iterable[SegmentRange]) -> Iterator[MappedBatch]:
    """The batches of the ranges, in order; each file is mapped when it is reached.

    Raises LocalReadUnavailableError when a file does not hold what was announced (it has been replaced, or is damaged:
    which of both, the broker knows), OSError.
    """
    for found in ranges:
        data = _map(found)
        view = memoryview(data)
        position = 0
        while position < len(view):
            try:
                header = decode_header(view, position)
            except CorruptBatchError as e:
                raise LocalReadUnavailableError(f"{found.path}: {e}") from e
            if not position and header.base_offset != found.first_offset:
                raise LocalReadUnavailableError(f"{found.path} has been replaced (compaction)")
            yield MappedBatch(data, view, position, header)
            position += header.size_bytes


def _check_same_directory(located: LocateSegmentsResponse) -> None:
    """Raises LocalReadUnavailableError unless the broker's data directory is the one seen here under its path."""
    try:
        meta = json.loads(Path(located.data_dir, "meta.json").read_bytes())
        same = meta["data_dir_id"] == located.data_dir_id
    except (OSError, ValueError, KeyError, TypeError) as e:
        raise LocalReadUnavailableError(f"{located.data_dir}/meta.json cannot be read: {e}") from e
    if not same:
        raise LocalReadUnavailableError(f"{located.data_dir} is not the broker's data directory")


def _map(found: SegmentRange) -> Any:
    """The range's bytes, mapped. Raises OSError (the file is gone), LocalReadUnavailableError (it is shorter)."""
    with pa.memory_map(found.path, "r") as mapped:
        if mapped.size() < found.end_position:
            raise LocalReadUnavailableError(
                f"{found.path} has {mapped.size()} bytes, {found.end_position} were announced"
            )
        mapped.seek(found.start_position)
        return mapped.read_buffer(found.end_position - found.start_position)
