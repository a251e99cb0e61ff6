"""A topic in memory for the rounds of a real table: rows by partition, without a broker."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from sparklog.client.net.topic_info import TopicInfo
from sparklog.format.schema import TIMESTAMP_TYPE
from sparklog.lake.rules import PartitionEnds, Span
from sparklog.lake.settings import LakeSettings
from sparklog.lake.worker.sync import LakeSync, RoundResult

TOPIC_ID = "topic-id"


class ModelLog:
    """The log of a typed topic."""

    def __init__(self, schema: pa.Schema, *, partitions: int = 1, keys: Sequence[str] = ()) -> None:
        self.schema = schema
        self.partitions = partitions
        self.keys = tuple(keys)
        self.rows: dict[int, list[dict[str, Any]]] = {p: [] for p in range(partitions)}

    def newest(self, name: str = "topic") -> TopicInfo:
        return TopicInfo(name, TOPIC_ID, "typed", self.partitions, 0, {0: self.schema}, self.keys, None, {}, 0, ())

    def ends_and_topic(self, info: TopicInfo) -> tuple[dict[int, PartitionEnds], TopicInfo]:
        return self.ends(info), self.newest(info.name)

    def ends(self, info: TopicInfo) -> dict[int, PartitionEnds]:
        return {p: PartitionEnds(0, len(rows), len(rows)) for p, rows in self.rows.items()}

    def read(
        self,
        info: TopicInfo,
        partition: int,
        span: Span,
        columns: Sequence[str],
        schema: pa.Schema,
        write: Callable[[pa.Table], object],
    ) -> bool:
        rows = self.rows[partition][span.start : span.end]
        offsets = np.arange(span.start, span.end)
        own = [pa.array([r.get(c) for r in rows], schema.field(c).type) for c in columns]
        position = [
            pa.array(np.full(len(rows), partition, np.int32)),
            pa.array(offsets),
            pa.array([r.get("at", 0) for r in rows], pa.int64()).view(TIMESTAMP_TYPE),
        ]
        write(pa.table([*own, *position], schema=schema))
        return False


def settings_at(path: Path, **others: object) -> LakeSettings:
    """Return the settings of a table at `path`; `others` are settings with underscores for dots."""
    given: Mapping[str, object] = {f"lake.{name.replace('_', '.')}": value for name, value in others.items()}
    return LakeSettings.of({"lake.location": str(path), **given})


def sync_of(log: ModelLog) -> LakeSync:
    """Return the rounds of a new worker."""
    return LakeSync(log, now_ms=lambda: 0, pause_s=lambda _: None)  # type: ignore[arg-type]


def run_round(log: ModelLog, settings: LakeSettings) -> RoundResult:
    """Run one round of a new worker."""
    return sync_of(log).round(log.newest(), settings, lambda _: None)
