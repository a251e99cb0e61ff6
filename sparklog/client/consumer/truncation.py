"""The check that a new leader has the records that a consumer has read (KIP-320). Only an unclean election removes
readable records. Without the check a consumer would continue at its offset, where other records can be now, and never
see the earlier ones."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from sparklog.client.consumer.position import Divergence, Position
from sparklog.client.net.answers import check_named
from sparklog.client.net.cluster import Cluster
from sparklog.client.net.newest_leaders import Leader
from sparklog.errors import LogTruncatedError, SparklogError, error_from_code
from sparklog.protocol.apis import Api
from sparklog.protocol.messages import EpochPartition, OffsetsForLeaderEpochRequest, OffsetsForLeaderEpochResponse

_log = logging.getLogger(__name__)


def check_positions(
    cluster: Cluster,
    unchecked: Sequence[tuple[Position, Leader]],
    retry: Callable[[Position, SparklogError], None],
    timeout_ms: int,
) -> list[tuple[Position, Divergence]]:
    """Ask the leader of the first position about all positions that it leads. Confirmed positions are marked as
    checked, diverged ones are returned.

    Positions that cannot be checked yet go to `retry`; positions with another leader are left to the next call. Raises
    the errors of the request.
    """
    endpoint = unchecked[0][1].endpoint
    together = [(p, leader) for p, leader in unchecked if leader.endpoint == endpoint]
    epochs = [EpochPartition(*p.tp, leader.epoch, p.epoch) for p, leader in together]
    answer = cluster.request(
        Api.OFFSETS_FOR_LEADER_EPOCH,
        OffsetsForLeaderEpochRequest(epochs),
        OffsetsForLeaderEpochResponse,
        endpoint=endpoint,
        timeout_ms=timeout_ms,
    )
    check_named(endpoint, epochs, answer.results)
    diverged = []
    by_name = {(r.topic, r.partition): r for r in answer.results}
    for position, leader in together:
        result = by_name[position.tp]
        if result.error_code:
            retry(position, error_from_code(result.error_code, result.message))
            continue
        position.checked_epoch = leader.epoch
        # an end that the leader does not know: all records of so early an epoch have been deleted by now
        if position.offset is not None and 0 <= result.end_offset < position.offset:
            diverged.append((position, Divergence(result.end_offset, result.epoch)))
    return diverged


def go_on_at(position: Position, divergence: Divergence, *, resets: bool) -> tuple[int, int]:
    """Return the offset and the leader epoch to continue with. Call it on the polling thread, so that no record is
    returned meanwhile. `resets`: True unless auto.offset.reset is none. Raises LogTruncatedError if there is no reset
    and poll has returned lost records."""
    end_offset, consumed = divergence.end_offset, position.consumed
    if consumed is None or consumed <= end_offset:  # only records that poll has not returned are gone
        return (end_offset if consumed is None else consumed), divergence.epoch
    event = (
        f"{position.tp}: an unclean leader election has lost the records from offset {end_offset} to {consumed - 1}, "
        "which this consumer has read"
    )
    if not resets:
        raise LogTruncatedError(
            f"{event}, and auto.offset.reset is none: seek to offset {end_offset} to read the records of the new leader",
            divergent_offset=end_offset,
        )
    _log.warning("%s; going on there", event)
    return end_offset, divergence.epoch
