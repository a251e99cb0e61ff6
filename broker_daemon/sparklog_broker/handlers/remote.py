"""LOCATE_REMOTE: which copies in the object store hold a range of offsets, for readers that go there themselves."""

from __future__ import annotations

from urllib.parse import urlsplit

from sparklog.errors import LocalReadUnavailableError, OffsetOutOfRangeError
from sparklog.log.tiering.remote_segment import RemoteLogSegment
from sparklog.log.tiering.state import encode_segment
from sparklog.protocol.messages import REMOTE_SEGMENTS_MAX, LocateRemoteRequest, LocateRemoteResponse
from sparklog_broker.dispatcher import RequestContext
from sparklog_broker.reply import Response


async def locate_remote(request: LocateRemoteRequest, payload: memoryview, context: RequestContext) -> Response:
    """What is still on the broker's disk is not named. The way there (credentials, endpoint) is the reader's own."""
    broker = context.broker
    url = broker.config.remote_log_storage_url
    if not url or "@" in urlsplit(url).netloc:  # a password is not passed on
        raise LocalReadUnavailableError("this broker's object store is not offered to readers")
    log = broker.partition(request.topic, request.partition).log
    if request.start_offset < log.log_start_offset:
        raise OffsetOutOfRangeError(f"the log starts at offset {log.log_start_offset}")
    found = [
        encode_segment(s.metadata)
        for s in log.segments
        if isinstance(s, RemoteLogSegment)
        and s.next_offset > request.start_offset
        and s.base_offset < request.end_offset
    ]
    return Response(LocateRemoteResponse(url, log.log_start_offset, found[:REMOTE_SEGMENTS_MAX]))
