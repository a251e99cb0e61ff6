"""Locates and maps the segment files of a broker on the same host.

Files are visible if the broker offers them (same host), and if its `meta.json` can be read here and names the same data
directory. Only whole batches below the high watermark are read. The running broker does not truncate files there. It
replaces or unlinks files instead of writing into them, which leaves a mapping intact.

If another process truncated a mapped file, the reader would die of SIGBUS. Therefore the reader does not trust the path
that the broker names. It maps a file only in the partition's directory or a cache of segments, with a segment's suffix,
and only a regular file that its directory's owner owns and that not everybody can write. `local.read=off` maps nothing.
"""

from __future__ import annotations

import contextlib
import json
import os
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa

from sparklog.client.net.addresses import Endpoint
from sparklog.client.net.cluster import Cluster
from sparklog.errors import CorruptBatchError, LocalReadUnavailableError
from sparklog.format.batch import BatchHeader, decode_header
from sparklog.log.tiering.cache_directory import CACHE_DIRECTORY
from sparklog.protocol.apis import Api
from sparklog.protocol.messages import LocateSegmentsRequest, LocateSegmentsResponse, SegmentRange
from sparklog.types import TopicPartition

LOCAL_RETRY_S = 60.0
"""Time in s for which a broker with unreadable files is not asked for them again."""


META_BYTES_MAX = 64 * 1024
SEGMENT_SUFFIX = ".arrow"
DESCRIPTORS = "/proc/self/fd"


class MappedBatch(NamedTuple):
    """A batch at `position` of the mapped bytes `data`. `view` is a memoryview of the same bytes."""

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
    """Return the leader's answer: ranges of its files with [start_offset, end_offset). Their paths are checked.

    Raises LocalReadUnavailableError and OSError if the files cannot be read here. Then `Cluster.local_reads` of this
    broker is False for LOCAL_RETRY_S. Also raises OffsetOutOfRangeError, and errors of requests.
    """
    request = LocateSegmentsRequest(*tp, start_offset, end_offset, isolation)
    try:
        located = cluster.request(
            Api.LOCATE_SEGMENTS, request, LocateSegmentsResponse, endpoint=leader, timeout_ms=timeout_ms
        )
        _check_same_directory(located)
        _check_names(located, tp)
    except (LocalReadUnavailableError, OSError):
        cluster.local_reads.avoid(leader, LOCAL_RETRY_S)
        raise
    return located


def is_only_remote(cluster: Cluster, tp: TopicPartition, offset: int) -> bool:
    """True if the offset is only in the object store, according to the topic metadata that this process has."""
    states = cluster.topic(tp.topic).partition_states
    start = next((s.local_log_start_offset for s in states if s.partition == tp.partition), -1)
    return offset < start


def mapped_batches(ranges: Iterable[SegmentRange]) -> Iterator[MappedBatch]:
    """Yield the batches of the ranges, in order; each file is mapped when the reader reaches it.

    Raises OSError, and LocalReadUnavailableError if a file does not have the announced batches, because it has been
    replaced or is damaged.
    """
    for segment_range in ranges:
        data = _map(segment_range)
        view = memoryview(data)
        position = 0
        while position < len(view):
            try:
                header = decode_header(view, position)
            except CorruptBatchError as e:
                raise LocalReadUnavailableError(f"{segment_range.path}: {e}") from e
            if not position and header.base_offset != segment_range.first_offset:
                raise LocalReadUnavailableError(f"{segment_range.path} has been replaced (compaction)")
            yield MappedBatch(data, view, position, header)
            position += header.size_bytes


def _check_same_directory(located: LocateSegmentsResponse) -> None:
    """Raise LocalReadUnavailableError unless this process sees the broker's data directory under its path."""
    try:
        with _open_regular(str(Path(located.data_dir, "meta.json"))) as (descriptor, _):
            meta = json.loads(os.read(descriptor, META_BYTES_MAX))
        same = meta["data_dir_id"] == located.data_dir_id
    except (OSError, ValueError, KeyError, TypeError) as e:
        raise LocalReadUnavailableError(f"{located.data_dir}/meta.json cannot be read: {e}") from e
    if not same:
        raise LocalReadUnavailableError(f"{located.data_dir} is not the broker's data directory")


def _check_names(located: LocateSegmentsResponse, tp: TopicPartition) -> None:
    """Raise LocalReadUnavailableError unless the paths are those of the partition's segments, or of their cached
    copies."""
    own = Path(located.data_dir, str(tp))
    for segment_range in located.ranges:
        path = Path(segment_range.path)
        if path.suffix != SEGMENT_SUFFIX or not (path.parent == own or path.parent.name == CACHE_DIRECTORY):
            raise LocalReadUnavailableError(f"{segment_range.path} is no segment file of {tp} in {located.data_dir}")


@contextlib.contextmanager
def _open_regular(path: str) -> Iterator[tuple[int, os.stat_result]]:
    """Yield descriptor and status of an open file. The open never waits, even for a pipe or a device.

    Raises OSError, and LocalReadUnavailableError unless it is a regular file that its directory's owner owns and that
    not everybody can write.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise LocalReadUnavailableError(f"{path} is no regular file")
        if status.st_uid != Path(path).parent.stat().st_uid or status.st_mode & stat.S_IWOTH:
            raise LocalReadUnavailableError(f"{path} is writable for users other than its directory's owner")
        yield descriptor, status
    finally:
        os.close(descriptor)


def _map(segment_range: SegmentRange) -> Any:
    """Map the range of the file, and return the buffer.

    Raises OSError if the file is gone, and LocalReadUnavailableError if it is shorter than the range or fails the
    checks of `_open_regular`.
    """
    with _open_regular(segment_range.path) as (descriptor, status):
        if not 0 <= segment_range.start_position <= segment_range.end_position <= status.st_size:
            raise LocalReadUnavailableError(
                f"{segment_range.path} has {status.st_size} bytes, {segment_range.start_position} to {segment_range.end_position} were "
                "announced"
            )
        opened = f"{DESCRIPTORS}/{descriptor}"  # the checked file, even if the path names another file by now
        with pa.memory_map(opened if Path(opened).exists() else segment_range.path, "r") as mapped:
            mapped.seek(segment_range.start_position)
            return mapped.read_buffer(segment_range.end_position - segment_range.start_position)
