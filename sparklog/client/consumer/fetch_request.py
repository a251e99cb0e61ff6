"""The content of a fetch request: its positions, and the number of bytes of each."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from sparklog.client.consumer.file_fetcher import PROBE_BYTES
from sparklog.client.consumer.position import Position
from sparklog.client.reading.isolation import isolation_of
from sparklog.protocol.messages import FetchPartition, FetchRequest


class FetcherConfig(NamedTuple):
    """The consumer's settings that the fetcher needs."""

    min_bytes: int
    max_wait_ms: int
    max_bytes: int
    partition_max_bytes: int
    prefetch_bytes: int
    request_timeout_ms: int
    check_crcs: bool
    reset: str
    isolation: int
    local_read: bool = True
    rack: str = ""

    @classmethod
    def from_settings(cls, settings: Mapping[str, Any]) -> FetcherConfig:
        """Return the fetcher's settings from a consumer's settings. Raises InvalidConfigError."""
        return cls(
            min_bytes=settings["fetch.min.bytes"],
            max_wait_ms=settings["fetch.max.wait.ms"],
            max_bytes=settings["fetch.max.bytes"],
            partition_max_bytes=settings["max.partition.fetch.bytes"],
            prefetch_bytes=settings["prefetch.bytes"],
            request_timeout_ms=settings["request.timeout.ms"],
            check_crcs=settings["check.crcs"],
            reset=settings["auto.offset.reset"],
            isolation=isolation_of(settings["isolation.level"]),
            local_read=settings["local.read"] == "auto",
            rack=settings["client.rack"],
        )


def fetch_request(
    config: FetcherConfig,
    positions: list[Position],
    *,
    room_bytes: int,
    wait_ms: int,
    is_probe: Callable[[Position], bool],
    epoch_of: Callable[[Position], int] = lambda position: -1,
    now: float = 0.0,
) -> tuple[FetchRequest, list[tuple[Position, FetchPartition]]]:
    """Return the request for all positions with a known offset, and each of these positions with its part of the
    request.

    The answer fits into `room_bytes`, except for a first batch that is larger. The broker waits up to `wait_ms` for
    data. A position for which `is_probe` is True gets at most PROBE_BYTES (256 KiB), because the broker's files can
    perhaps bring the rest. `epoch_of` returns the leader epoch that the request names. With a rack, positions whose
    `leader_until` is later than `now` are read from their leader only.
    """
    max_bytes = max(min(config.max_bytes, room_bytes), 1)
    part_bytes = min(config.partition_max_bytes, max_bytes)
    requested: list[tuple[Position, FetchPartition]] = []
    for position in positions:
        if position.offset is not None:
            max_part = min(part_bytes, PROBE_BYTES) if is_probe(position) else part_bytes
            leader_only = bool(config.rack) and now < position.leader_until
            columns = position.projection.fetched_columns
            part = FetchPartition(
                *position.tp, position.offset, max_part, epoch_of(position), leader_only, columns=columns
            )
            requested.append((position, part))
    parts = [part for _, part in requested]
    return FetchRequest(wait_ms, config.min_bytes, max_bytes, config.isolation, parts, config.rack), requested
