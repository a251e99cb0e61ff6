"""A topic's lake settings, parsed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Self

from msgspec import Struct

from sparklog.settings import LAKE_PREFIX, Scope, resolve, settings_of

MODE_APPEND = "append"
MODE_UPSERT = "upsert"


class LakeSettings(Struct, frozen=True):
    """The lake settings of one topic; `sparklog.settings` describes them."""

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
        """Return the settings in effect. Raises InvalidConfigError."""
        names = [n for n in settings_of(Scope.TOPIC) if n.startswith(LAKE_PREFIX)]
        texts = {n: v for n, v in ({**broker_defaults, **configs}).items() if n in names}
        all_settings = resolve(Scope.TOPIC, texts)
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
        """True if the table has only the newest row of each key."""
        return self.mode == MODE_UPSERT

    @property
    def table_partitions(self) -> tuple[str, ...]:
        """Columns that partition the table. An upserted table is also partitioned by `_partition`, so that a change
        searches its key in one partition only."""
        return ("_partition", *self.partition_by) if self.is_upsert else self.partition_by
