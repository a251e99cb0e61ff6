"""The content of the topic pages: the list, and a topic with settings, columns, schema versions and readers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

import pyarrow as pa

from sparklog.client.admin.admin import PartitionDescription, TopicDescription
from sparklog.client.cluster_view import skew
from sparklog.console.views.cluster import problems_of
from sparklog.console.views.watched import GrowthSample, Rate, WatchedGroup
from sparklog.format.key_format import KEY_FORMAT_SETTING, SCHEMA_FORMATS
from sparklog.kafka.values.schemas import KEY_SUFFIX, VALUE_SUFFIX
from sparklog.settings import Scope, settings_of
from sparklog.types import INTERNAL_TOPICS


def names_matching(names: Mapping[str, int], search: str, *, internal: bool) -> list[str]:
    """Return the topics whose name contains `search`, regardless of case. Names that begin with it come first."""
    needle = search.lower()
    matching = [n for n in names if (internal or n not in INTERNAL_TOPICS) and needle in n.lower()]
    if needle:
        matching.sort(key=lambda n: not n.lower().startswith(needle))
    return matching


class TopicRow(NamedTuple):
    """A line of the list."""

    name: str
    kind: str
    partitions: int
    records: int | None
    """Number of offsets from log start to high watermark; None if a partition is offline."""
    size_bytes: int
    remote_size_bytes: int
    """Bytes in the object store."""
    rate: Rate | None
    groups: int
    """Number of groups that read the topic."""
    lag: int | None
    """Largest lag of a group; None if no group has committed offsets of the topic."""
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
    """Return a sample of a topic at the time `now_ms`."""
    details = topic.partition_details
    end = sum(max(0, p.high_watermark) for p in details)
    return GrowthSample(now_ms, end, sum(max(0, p.size_bytes) for p in details))


class SettingRow(NamedTuple):
    """A setting in effect."""

    name: str
    value: str
    origin: str
    """"topic", "broker" or "default"."""
    unit: str
    doc: str


def setting_rows(topic: TopicDescription) -> list[SettingRow]:
    """Return all settings of a topic, in the order of origins: topic, broker, default."""
    rows = []
    for name, setting in settings_of(Scope.TOPIC).items():
        origin = "topic" if name in topic.configs else "broker" if name in topic.broker_defaults else "default"
        rows.append(SettingRow(name, str(topic.setting(name)), origin, setting.unit, setting.doc))
    order = ("topic", "broker", "default")
    return sorted(rows, key=lambda r: (order.index(r.origin), r.name))


class ColumnRow(NamedTuple):
    """A column of a topic."""

    name: str
    type: str
    role: str
    """"key", "timestamp", both with a comma, or empty."""
    since: int
    """Id of the first schema with the column."""


def column_rows(topic: TopicDescription) -> list[ColumnRow]:
    rows = []
    for field in topic.schema:
        roles = ["key"] if field.name in topic.key_columns else []
        roles += ["timestamp"] if field.name == topic.timestamp_column else []
        since = min((i for i, s in topic.schemas.items() if field.name in s.names), default=topic.schema_id)
        rows.append(ColumnRow(field.name, str(field.type), ", ".join(roles), since))
    return rows


def subjects_of(topic: TopicDescription) -> list[str]:
    """Return the subjects of the registry that have the schemas of a topic's values and keys."""
    forms = {VALUE_SUFFIX: topic.setting("kafka.value.format"), KEY_SUFFIX: topic.setting(KEY_FORMAT_SETTING)}
    return [topic.name + suffix for suffix, form in forms.items() if form in SCHEMA_FORMATS]


class SchemaChange(NamedTuple):
    """A version of a topic's schema."""

    schema_id: int
    columns: int
    changes: list[tuple[str, str, str]]
    """Differences to the previous version: "added", "removed" or "changed"; the column; its type, or both types."""


def schema_changes(schemas: Mapping[int, pa.Schema]) -> list[SchemaChange]:
    """Return the versions of a schema, the newest first. `schemas` are by schema id."""
    all_changes: list[SchemaChange] = []
    before: pa.Schema | None = None
    for schema_id in sorted(schemas):
        schema = schemas[schema_id]
        changes = [] if before is None else _differences(before, schema)
        all_changes.append(SchemaChange(schema_id, len(schema), changes))
        before = schema
    return all_changes[::-1]


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
    """A group that reads the topic."""

    group_id: str
    state: str
    lag: int | None
    """None without committed offsets."""


def readers_of(name: str, groups: Mapping[str, WatchedGroup]) -> list[Reader]:
    """Return the groups that read the topic `name`, the largest lag first."""
    readers = [Reader(i, g.listing.state, g.lag_by_topic.get(name)) for i, g in groups.items() if name in g.topics]
    return sorted(readers, key=lambda r: (-(r.lag or 0), r.group_id))


def partition_skew(topic: TopicDescription) -> float:
    """Return the size of the topic's largest partition divided by the mean size."""
    return skew([max(0, p.size_bytes) for p in topic.partition_details])
