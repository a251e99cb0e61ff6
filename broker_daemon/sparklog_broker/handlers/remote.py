"""LOCATE_REMOTE: the copies of a range of offsets in the object store, for clients that read them there."""

from __future__ import annotations

from urllib.parse import urlsplit

from sparklog.errors import LocalReadUnavailableError, OffsetOutOfRangeError
from sparklog.log.tiering.remote_segment import RemoteLogSegment
from sparklog.log.tiering.state import encode_segment
from sparklog.protocol.messages import (
    ABORTED_RANGES_MAX,
    REMOTE_SEGMENTS_MAX,
    AbortedRange,
    LocateRemoteRequest,
    LocateRemoteResponse,
)
from sparklog.types import READ_COMMITTED
from sparklog_broker.network.reply import Response
from sparklog_broker.request_context import RequestContext


async def locate_remote(request: LocateRemoteRequest, payload: memoryview, context: RequestContext) -> Response:
    """Answer with the copies of segments that are not on the broker's disk. The client needs its own credentials and
    endpoint of the store.
    """
    broker = context.broker
    url = broker.config.remote_log_storage_url
    if not url or "@" in urlsplit(url).netloc:  # do not send a password to clients
        raise LocalReadUnavailableError("this broker does not offer its object store to readers")
    if request.isolation == READ_COMMITTED:
        await broker.transactions.settled()
    partition = broker.partitions.get(request.topic, request.partition)
    log = partition.log
    # read before the search: all transactions below are decided, so the aborted ranges are complete
    stable_offset = partition.stable_offset
    if request.start_offset < log.log_start_offset:
        raise OffsetOutOfRangeError(f"the log starts at offset {log.log_start_offset}")
    segments = [
        s
        for s in log.segments
        if isinstance(s, RemoteLogSegment)
        and s.next_offset > request.start_offset
        and s.base_offset < request.end_offset
    ][:REMOTE_SEGMENTS_MAX]
    aborted = []
    if segments and request.isolation == READ_COMMITTED:
        stable_offset = log.reader.end_with_few_aborted(ABORTED_RANGES_MAX, request.start_offset, stable_offset)
        aborted = log.reader.aborted_transactions(request.start_offset, min(segments[-1].next_offset, stable_offset))
    return Response(
        LocateRemoteResponse(
            url,
            log.log_start_offset,
            [encode_segment(s.metadata) for s in segments],
            last_stable_offset=stable_offset,
            aborted=[AbortedRange(*a) for a in aborted],
        )
    )
