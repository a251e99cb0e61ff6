"""Tiering: the choice of segments to copy, and of local copies to release. Pure functions of state and time.

A segment is copied when it is sealed, can no longer change, and continues the copied part. Its local files are released
when all of it is copied and `local.retention.ms` or `local.retention.bytes` demands it, oldest first. The rules for
both parts together (`retention.ms`, `retention.bytes`, the log start) are in `sparklog.log.model.retention_policy`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, TypeVar

from msgspec import Struct

from sparklog.errors import InvalidConfigError
from sparklog.log.model.retention_policy import POLICY_COMPACT, UNLIMITED, RetentionPolicy, RetentionSegment, expired
from sparklog.settings import Scope, settings_of

TIERING_SETTING = "remote.storage.enable"
AS_RETENTION = -2
"""Value of `local.retention.*` that stands for the value of `retention.*`."""


class TieringPolicy(Struct, frozen=True):
    """The tiering settings of a topic. `enabled`: sealed segments are copied. `local`: retention of the copied part on
    the local disk."""

    enabled: bool
    local: RetentionPolicy

    @classmethod
    def of(cls, settings: Mapping[str, object], retention: RetentionPolicy) -> TieringPolicy:
        """Create from all topic settings (Kafka's names). A compacted topic is never tiered, regardless of the broker's
        defaults."""
        compacts = POLICY_COMPACT in str(settings["cleanup.policy"]).split(",")
        local_ms, local_bytes = int(str(settings["local.retention.ms"])), int(str(settings["local.retention.bytes"]))
        local = RetentionPolicy(
            deletes=True,
            retention_ms=retention.retention_ms if local_ms == AS_RETENTION else local_ms,
            retention_bytes=retention.retention_bytes if local_bytes == AS_RETENTION else local_bytes,
        )
        return cls(bool(settings[TIERING_SETTING]) and not compacts, local)


def check_tiering(name: str, configs: Mapping[str, object]) -> None:
    """Raise InvalidConfigError for topic settings (parsed; only those that are set) that contradict each other."""
    table = settings_of(Scope.TOPIC)

    def setting(key: str) -> object:
        return configs.get(key, table[key].default)

    policy = str(setting("cleanup.policy"))
    if setting(TIERING_SETTING) and POLICY_COMPACT in policy.split(","):
        raise InvalidConfigError(
            f"topic {name!r}: remote.storage.enable=true and cleanup.policy={policy} exclude each other: compaction "
            "rewrites segments, but tiered segments cannot be changed; use cleanup.policy=delete"
        )
    for local, total in (("local.retention.ms", "retention.ms"), ("local.retention.bytes", "retention.bytes")):
        if local not in configs or total not in configs:  # the broker can have another default
            continue
        kept, kept_at_all = int(str(setting(local))), int(str(setting(total)))
        if kept != AS_RETENTION and kept_at_all != UNLIMITED and (kept == UNLIMITED or kept > kept_at_all):
            raise InvalidConfigError(
                f"topic {name!r}: {local} = {kept} is more than {total} = {kept_at_all}: local retention cannot "
                f"exceed the retention of the log; use a smaller value, or {AS_RETENTION} for the same"
            )


class TieringSegment(RetentionSegment, Protocol):
    """Properties of a segment that tiering uses."""

    @property
    def is_sealed(self) -> bool: ...


S = TypeVar("S", bound=TieringSegment)


def to_copy(local: Sequence[S], *, copied_to: int, log_start_offset: int, tierable_end: int) -> list[S]:
    """Return the local segments (ascending, the last one active) that are to be copied now, in their order.

    `copied_to`: the offset after the last copied record, or -1. The copied part must have no holes, so the list ends
    before the first segment that cannot be copied now.
    """
    chosen: list[S] = []
    for segment in local[:-1]:
        if segment.next_offset <= max(copied_to, log_start_offset):
            continue
        if not segment.is_sealed or not segment.data_bytes or segment.next_offset > tierable_end:
            break
        if segment.base_offset < copied_to:  # a part of the segment is copied: the log was cut since
            break
        chosen.append(segment)
    return chosen


def to_release(
    local: Sequence[S],
    policy: RetentionPolicy,
    *,
    copied_to: int,
    now_ms: int,
    largest_timestamp_of: Callable[[S], int | None],
) -> int:
    """Return the number of oldest local segments that can leave the local disk. The last one always stays."""
    if len(local) < 2:
        return 0
    count = expired(
        local,
        policy,
        log_start_offset=0,
        high_watermark=min(copied_to, local[-1].base_offset),
        now_ms=now_ms,
        largest_timestamp_of=largest_timestamp_of,
    ).count
    return min(count, len(local) - 1)
