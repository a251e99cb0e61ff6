"""A topic's lake settings as values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Self

from msgspec import Struct

from sparklog.settings import Scope, resolve, settings_of

LAKE_PREFIX = "lake."
MODE_APPEND = "append"
MODE_UPSERT = "upsert"


class LakeSettings(Struct, frozen=True):
    """The settings of one topic; see `sparklog.settings` for their meaning."""

    location: str
    mode: str
    commit_interval_ms: int
    file_size_bytes: int
    partition_by: tuple[str, ...]
    hold_retention: bool
    paused: str
    table_id: str

    @classmethod
    def of(cls, configs: Mapping[str, object], broker_defaults: Mapping[str, object] = {}) -> Self:
        """Return the settings in effect.

        Args:
            configs: Settings of the topic.
            broker_defaults: Topic settings that the broker sets for all topics.

        Returns:
            The settings.

        Raises:
            InvalidConfigError: A setting is out of bounds.
        """
        names = [n for n in settings_of(Scope.TOPIC) if n.startswith(LAKE_PREFIX)]
        given = {n: v for n, v in ({**broker_defaults, **configs}).items() if n in names}
        all_settings = resolve(Scope.TOPIC, given)
        return cls(
            location=str(all_settings["lake.location"]),
            mode=str(all_settings["lake.mode"]),
            commit_interval_ms=int(all_settings["lake.commit.interval.ms"]),
            file_size_bytes=int(all_settings["lake.file.size.bytes"]),
            partition_by=tuple(c.strip() for c in str(all_settings["lake.partition.by"]).split(",") if c.strip()),
            hold_retention=bool(all_settings["lake.hold.retention"]),
            paused=str(all_settings["lake.paused"]),
            table_id=str(all_settings["lake.table.id"]),
        )

    @property
    def is_upsert(self) -> bool:
        """True if the table holds the newest row of each key."""
        return self.mode == MODE_UPSERT

    @property
    def table_partitions(self) -> tuple[str, ...]:
        """Columns that partition the table. The partitions of the topic partition an upserted table, so that
        a change looks for its key in one of them."""
        return ("_partition", *self.partition_by) if self.is_upsert else self.partition_by
