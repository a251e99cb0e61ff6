"""LOCATE_SEGMENTS: the file ranges of a range of offsets, for a client on the same host that maps the files."""

from __future__ import annotations

import asyncio
import ipaddress
from functools import partial

from sparklog.errors import LocalReadUnavailableError
from sparklog.protocol.messages import (
    ABORTED_RANGES_MAX,
    AbortedRange,
    LocateSegmentsRequest,
    LocateSegmentsResponse,
    SegmentRange,
)
from sparklog.types import READ_COMMITTED, TopicPartition
from sparklog_broker.network.reply import Response
from sparklog_broker.request_context import RequestContext


async def locate_segments(
    request: LocateSegmentsRequest,
    payload: memoryview,
    context: RequestContext,
    *,
    aborted_ranges_max: int = ABORTED_RANGES_MAX,
) -> Response:
    """Answer peers on this host. A peer compares `data_dir_id` to check that it sees the same files. A read_committed
    answer ends after about `aborted_ranges_max` aborted ranges.
    """
    broker = context.broker
    if not broker.config.local_read_enabled:
        raise LocalReadUnavailableError("reading files on the same host is switched off (local.read.enabled)")
    if not is_same_host(context.peer_host, context.local_address[0]):
        raise LocalReadUnavailableError(f"{context.peer_host} is another host")
    if broker.cluster.may_cut_committed(request.topic):
        raise LocalReadUnavailableError(
            f"topic {request.topic!r} has unclean.leader.election.enable: its files may be truncated while a reader "
            "has them mapped"
        )
    if request.isolation == READ_COMMITTED:
        await broker.transactions.settled()
    partition = broker.partitions.get(request.topic, request.partition)
    log = partition.log
    # read before the search: all transactions below are decided, so the aborted ranges are complete
    high_watermark, stable_offset = log.high_watermark, partition.stable_offset
    committed = request.isolation == READ_COMMITTED
    directory, directory_id = broker.storage.logs.table.location_of(TopicPartition(request.topic, request.partition))
    end_offset = min(request.end_offset, stable_offset if committed else high_watermark)
    if committed:
        end_offset = log.reader.end_with_few_aborted(aborted_ranges_max, request.start_offset, end_offset)
    if request.start_offset < log.local_log_start_offset:
        locate = partial(log.reader.locate, request.start_offset, end_offset)
        ranges = await asyncio.get_running_loop().run_in_executor(broker.storage.remote_reads, locate)
    else:
        ranges = log.reader.locate(request.start_offset, end_offset)
    partition.traffic.located_bytes += sum(r.end_position - r.start_position for r in ranges)
    aborted = log.reader.aborted_transactions(ranges[0].first_offset, end_offset) if committed and ranges else []
    return Response(
        LocateSegmentsResponse(
            data_dir=str(directory),
            data_dir_id=directory_id,
            high_watermark=high_watermark,
            log_start_offset=log.log_start_offset,
            ranges=[SegmentRange(*r) for r in ranges],
            last_stable_offset=stable_offset,
            aborted=[AbortedRange(*a) for a in aborted],
        )
    )


def is_same_host(peer_host: str, local_host: str) -> bool:
    """True if the peer's address is this machine's."""
    if not peer_host:
        return False
    if peer_host == local_host:
        return True
    try:
        address = ipaddress.ip_address(peer_host.partition("%")[0])
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return address.is_loopback or (mapped is not None and mapped.is_loopback)
