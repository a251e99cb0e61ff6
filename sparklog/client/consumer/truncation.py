"""Whether a new leader has what a consumer has read (KIP-320).

Only an unclean election takes records away that could be read. Without asking, a consumer would go on at its offset,
where there may be other records by then, and never see those before.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Protocol

from sparklog.client.consumer.position import Position
from sparklog.client.net.answers import check_named
from sparklog.client.net.cluster import Cluster
from sparklog.client.net.known_leaders import Leader
from sparklog.errors import LogTruncatedError, SparklogError, UnsupportedApiError, error_from_code
from sparklog.protocol.messages import (
    Api,
    EpochEndOffset,
    EpochPartition,
    OffsetsForLeaderEpochRequest,
    OffsetsForLeaderEpochResponse,
)

_log = logging.getLogger(__name__)


class Positions(Protocol):
    """What becomes of positions (the Fetcher). `reset_to` None: auto.offset.reset is none."""

    reset_to: int | None

    def restart(self, position: Position, offset: int, epoch: int) -> None: ...
    def fail_positions(self, positions: list[Position], error: SparklogError) -> None: ...


def check_positions(
    cluster: Cluster,
    positions: Positions,
    unchecked: Sequence[tuple[Position, Leader]],
    retry: Callable[[Position, SparklogError], None],
    timeout_ms: int,
) -> None:
    """Asks a leader. Positions whose records are still there are checked, others begin where the logs part; those that
    cannot be checked yet are left to `retry`, those that have another leader to the next call. Raises what the request
    does."""
    endpoint = unchecked[0][1].endpoint
    together = [(p, leader) for p, leader in unchecked if leader.endpoint == endpoint]
    asked = [EpochPartition(*p.tp, leader.epoch, p.epoch) for p, leader in together]
    try:
        answer = cluster.request(
            Api.OFFSETS_FOR_LEADER_EPOCH,
            OffsetsForLeaderEpochRequest(asked),
            OffsetsForLeaderEpochResponse,
            endpoint=endpoint,
            timeout_ms=timeout_ms,
        )
    except UnsupportedApiError:  # a broker of an earlier release: nobody can be asked
        for position, leader in together:
            position.checked_epoch = leader.epoch
        return
    check_named(endpoint, asked, answer.results)
    by_name = {(r.topic, r.partition): r for r in answer.results}
    for position, leader in together:
        result = by_name[position.tp]
        if result.error_code:
            retry(position, error_from_code(result.error_code, result.message))
            continue
        position.checked_epoch = leader.epoch
        _compare(positions, position, result)


def _compare(positions: Positions, position: Position, end: EpochEndOffset) -> None:
    """`end`: where the leader's records of the position's epoch, or of the last one before it, end."""
    offset, consumed = position.offset, position.consumed
    if offset is None or consumed is None:
        return
    if end.end_offset < 0:  # the leader has no record of so early an epoch: all there were are deleted by now
        return
    if offset <= end.end_offset:
        return
    if consumed <= end.end_offset:  # only what poll has not returned is gone
        positions.restart(position, consumed, end.epoch)
        return
    what = (
        f"{position.tp}: the records from offset {end.end_offset} to {consumed - 1}, which have been read, are not in the "
        "log of its leader any more: an unclean election has lost them"
    )
    if positions.reset_to is None:
        error = LogTruncatedError(
            f"{what}, and auto.offset.reset is none: seek to offset {end.end_offset} to read what is there now",
            divergent_offset=end.end_offset,
        )
        positions.fail_positions([position], error)
        return
    _log.warning("%s; going on there", what)
    positions.restart(position, end.end_offset, end.epoch)
