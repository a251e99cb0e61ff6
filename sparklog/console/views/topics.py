"""The list of topics, and one topic."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

import pyarrow as pa

from sparklog.client.admin.admin import PartitionDescription, TopicDescription
from sparklog.console.views.cluster import problems_of, skew
from sparklog.console.views.watched import GrowthSample, Rate, WatchedGroup
from sparklog.settings import Scope, settings_of
from sparklog.types import INTERNAL_TOPICS


def names_matching(names: Mapping[str, int], search: str, *, internal: bool) -> list[str]:
    """Return topics whose name has the text in it, in any case; those that begin with it first."""
    wanted = search.lower()
    found = [n for n in names if (internal or n not in INTERNAL_TOPICS) and wanted in n.lower()]
    if wanted:
        found.sort(key=lambda n: not n.lower().startswith(wanted))
    return found


class TopicRow(NamedTuple):
    """A line of the list. `records` are offsets that can be read (compaction leaves gaps), None where a partition is
    offline; `lag` that of the group which is furthest behind, None if no group reads it."""

    name: str
    kind: str
    partitions: int
    records: int | None
    size_bytes: int
    remote_size_bytes: int
    rate: Rate | None
    groups: int
    lag: int | None
    problems: list[str]


def topic_row(topic: TopicDescription, rate: Rate | None, groups: Iterable[WatchedGroup]) -> TopicRow:
    readers = [g for g in groups if topic.name in g.topics]
    lags = [g.lag_by_topic[topic.name] for g in readers if topic.name in g.lag_by_topic]
    sizes = [max(0, p.size_bytes) for p in topic.partition_details]
    return TopicRow(
        name=topic.name,
        kind=topic.kind,
        partitions=topic.partitions,
        records=records_of(topic.partition_details),
        size_bytes=sum(sizes),
        remote_size_bytes=sum(max(0, p.remote_size_bytes) for p in topic.partition_details),
        rate=rate,
        groups=len(readers),
        lag=max(lags, default=None),
        problems=problems_of(topic),
    )


def records_of(partitions: Iterable[PartitionDescription]) -> int | None:
    total = 0
    for p in partitions:
        if p.high_watermark < 0:
            return None
        total += p.high_watermark - p.log_start_offset
    return total


def growth_sample(topic: TopicDescription, now_ms: int) -> GrowthSample:
    """Return the sample of a topic for `TopicRates`."""
    details = topic.partition_details
    end = sum(max(0, p.high_watermark) for p in details)
    return GrowthSample(now_ms, end, sum(max(0, p.size_bytes) for p in details))


class SettingRow(NamedTuple):
    """A setting in effect. `origin`: "topic", "broker" or "default"."""

    name: str
    value: str
    origin: str
    unit: str
    doc: str


def setting_rows(topic: TopicDescription) -> list[SettingRow]:
    """Return all topic settings; those set for the topic first, then the broker's."""
    rows = []
    for name, setting in settings_of(Scope.TOPIC).items():
        origin = "topic" if name in topic.configs else "broker" if name in topic.broker_defaults else "default"
        rows.append(SettingRow(name, str(topic.setting(name)), origin, setting.unit, setting.doc))
    order = ("topic", "broker", "default")
    return sorted(rows, key=lambda r: (order.index(r.origin), r.name))


class ColumnRow(NamedTuple):
    """A column. `role`: "key", "timestamp", both or none; `since` the first version that has it."""

    name: str
    type: str
    role: str
    since: int


def column_rows(topic: TopicDescription) -> list[ColumnRow]:
    rows = []
    for field in topic.schema:
        roles = ["key"] if field.name in topic.key_columns else []
        roles += ["timestamp"] if field.name == topic.timestamp_column else []
        since = min((i for i, s in topic.schemas.items() if field.name in s.names), default=topic.schema_id)
        rows.append(ColumnRow(field.name, str(field.type), ", ".join(roles), since))
    return rows


class SchemaChange(NamedTuple):
    """A version of the schema, and how it differs from the one before: `changes` are ("added" | "removed" | "changed",
    column, in words)."""

    schema_id: int
    columns: int
    changes: list[tuple[str, str, str]]


def schema_changes(schemas: Mapping[int, pa.Schema]) -> list[SchemaChange]:
    """Return all versions of the schema, the newest first."""
    found: list[SchemaChange] = []
    before: pa.Schema | None = None
    for schema_id in sorted(schemas):
        schema = schemas[schema_id]
        changes = [] if before is None else _differences(before, schema)
        found.append(SchemaChange(schema_id, len(schema), changes))
        before = schema
    return found[::-1]


def _differences(before: pa.Schema, after: pa.Schema) -> list[tuple[str, str, str]]:
    changes = [("added", f.name, str(f.type)) for f in after if f.name not in before.names]
    changes += [("removed", f.name, str(f.type)) for f in before if f.name not in after.names]
    for field in after:
        if field.name in before.names:
            old = before.field(field.name)
            if old.type != field.type:
                changes.append(("changed", field.name, f"{old.type} → {field.type}"))
    return changes


class Reader(NamedTuple):
    """A group that reads the topic. `lag` is None without committed offsets."""

    group_id: str
    state: str
    lag: int | None


def readers_of(name: str, groups: Mapping[str, WatchedGroup]) -> list[Reader]:
    """Return the readers, those with the largest lag first."""
    found = [Reader(i, g.listing.state, g.lag_by_topic.get(name)) for i, g in groups.items() if name in g.topics]
    return sorted(found, key=lambda r: (-(r.lag or 0), r.group_id))


def partition_skew(topic: TopicDescription) -> float:
    """Return the largest partition's bytes over the mean one's."""
    return skew([max(0, p.size_bytes) for p in topic.partition_details])
