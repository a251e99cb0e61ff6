"""The check of a mirror: keys, values, headers and timestamps here are compared with the source, offset by offset.

In a typed topic the rows are compared with the source's values as columns that the topic had at their append, and
refused records with the rows of the refused topic. A refused record that fits by now, because columns were added, is no
difference.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from sparklog.client.admin.mirror_description import mirrored_topics
from sparklog.client.admin.mirror_plan import open_source
from sparklog.client.admin.mirror_rights import hidden_topics
from sparklog.client.admin.mirror_targets import typed_target
from sparklog.client.net.cluster import Cluster
from sparklog.client.net.registry_reader import registry_schemas
from sparklog.client.net.topic_info import TopicInfo
from sparklog.client.reading.mirrored_ends import mirrored_ends
from sparklog.client.reading.range_reader import read_range
from sparklog.errors import (
    LeaderNotAvailableError,
    SparklogError,
    TopicAuthorizationFailedError,
    UnknownTopicOrPartitionError,
)
from sparklog.format.batch import decode_header
from sparklog.format.offset_column import decode_rows, row_offsets
from sparklog.format.schema import ENVELOPE_SCHEMA
from sparklog.metadata.refused_topics import refused_topic
from sparklog.metadata.store import ENVELOPE_SCHEMA_ID
from sparklog.mirror.refused import RefusedLog
from sparklog.mirror.rules import NO_EPOCH, NO_SCHEMA, SourceBounds
from sparklog.mirror.source import ConversionTarget, FetchedPartition, MirrorSource, SourceTopic
from sparklog.mirror.typed import NO_LIMIT, TypedConversion, TypedTarget
from sparklog.types import READ_COMMITTED, TopicPartition

logger = logging.getLogger(__name__)

NAMED_MAX = 20
ATTEMPTS = 20
RETRY_S = 1.0
"""Pause before another attempt after an error of the source that a repetition mends."""
COLUMNS = ("key", "value", "headers", "timestamp")


@dataclass
class MirrorVerification:
    """The result of a check."""

    mirror: str
    """Name of the mirror."""
    partitions: int = 0
    """Number of compared partitions."""
    records: int = 0
    """Number of compared records."""
    refused: int = 0
    """Number of compared records that did not fit the columns of a typed topic."""
    held: int = 0
    """Number of offsets at the source that wait for the end of an open transaction, and are not compared."""
    differences: int = 0
    """Number of offsets that differ."""
    problems: list[str] = field(default_factory=list)
    """The first differences, with topic, partition and offset."""
    refusals: dict[str, str] = field(default_factory=dict)
    """The topics that were not compared whole because the mirror's user lacks a right, with the right."""

    def add(self, text: str) -> None:
        """Count a difference, and note its text."""
        self.differences += 1
        if len(self.problems) < NAMED_MAX:
            self.problems.append(text)


def verify_mirror(cluster: Cluster, name: str, *, share: float = 1.0, timeout_ms: int = 30_000) -> MirrorVerification:
    """Compare a mirror's topics with its source, up to the log ends here. `share`: part of the offsets that is
    compared, 0 to 1; the others are passed over in pieces. A topic that the mirror's user must not read is named in the
    report. Raises InvalidConfigError for an unknown mirror, and other errors of the source."""
    infos = cluster.topic_infos(timeout_ms=timeout_ms)
    topics = mirrored_topics(infos, name)[name]
    report = MirrorVerification(name)
    source = open_source(topics[0].definition, timeout_ms)
    try:
        source_topics = source.topics([topic.topic for topic in topics])
        report.refusals |= hidden_topics(source, [one.topic for one in topics if one.topic not in source_topics])
        for topic in topics:
            if topic.topic in report.refusals:
                continue
            info, refused = infos[topic.topic], infos.get(refused_topic(topic.topic))
            registry = topic.definition.registry
            schemas = registry_schemas(registry) if registry else None
            is_typed = topic.definition.is_typed
            typed = typed_target(topic, info, refused, schemas) if is_typed and refused is not None else None
            check = _TopicCheck(cluster, source, source_topics, info, typed, timeout_ms, report)
            try:
                for number in range(info.partitions):
                    check.run(TopicPartition(topic.topic, number), share)
            except TopicAuthorizationFailedError as e:
                report.refusals[topic.topic] = str(e)
    finally:
        source.close()
    return report


class _TopicCheck:
    """The comparison of a topic's partitions, one after the other."""

    def __init__(
        self,
        cluster: Cluster,
        source: MirrorSource,
        source_topics: dict[str, SourceTopic],
        info: TopicInfo,
        typed: TypedTarget | None,
        timeout_ms: int,
        report: MirrorVerification,
    ) -> None:
        self._cluster = cluster
        self._source = source
        self._source_topics = source_topics
        self._info = info
        self._typed = typed
        self._columns = tuple(info.schema.names)
        self._timeout_ms = timeout_ms
        self._report = report

    def run(self, tp: TopicPartition, share: float) -> None:
        refused = TopicPartition(refused_topic(tp.topic), tp.partition)
        tps = [tp] if self._typed is None else [tp, refused]
        ends = mirrored_ends(self._cluster, tps, self._timeout_ms)  # first: the source can get records meanwhile
        bounds = self._bounds(tp)
        if isinstance(bounds, UnknownTopicOrPartitionError):
            self._report.partitions += 1
            self._report.add(f"{tp}: {bounds}")
            return
        if isinstance(bounds, Exception):
            raise bounds
        position, end = max(bounds.start, ends[tp].start), ends[tp].end
        refused_end = ends[refused].end if self._typed is not None else 0
        self._report.held += bounds.end - bounds.stable
        if end > bounds.end:
            self._report.add(f"{tp}: ends at {end} here, at {bounds.end} at the source")
        while position < min(end, bounds.stable):
            following, records, source_rows = self._at_source(tp, position)
            following = min(following, end)
            here_rows = self._rows_here(tp, position, following, self._columns)
            if self._typed is not None:
                refused_rows = self._rows_here(refused, position, min(following, refused_end), COLUMNS)
                source_rows = self._without_refused(tp, following, records, source_rows, refused_rows)
            self._compare(tp, source_rows, here_rows, following)
            skipped = int((following - position) * (1 / share - 1)) if share < 1 else 0
            position = following + skipped
        self._report.partitions += 1

    def _without_refused(
        self, tp: TopicPartition, end: int, records: dict[int, Any], rows: dict[int, Any], refused: dict[int, Any]
    ) -> dict[int, Any]:
        """Compare the `refused` records, and return the rows of the other ones; None for a record without a row."""
        before = self._report.records
        self._compare(tp, {offset: row for offset, row in records.items() if offset in refused}, refused, end)
        self._report.refused += self._report.records - before
        return {offset: rows.get(offset) for offset in records if offset not in refused}

    def _bounds(self, tp: TopicPartition) -> SourceBounds | SparklogError:
        for _ in range(ATTEMPTS):
            bounds = self._source.bounds(self._source_topics, [tp])[tp]
            if isinstance(bounds, SourceBounds | UnknownTopicOrPartitionError) or not bounds.retriable:
                break
            self._look_again(tp, bounds)
        return bounds

    def _look_again(self, tp: TopicPartition, error: SparklogError) -> None:
        """Read the leaders of the source's topic again, after an error that a repetition mends."""
        logger.info("%s: %s", tp, error)
        time.sleep(RETRY_S)
        self._source_topics |= self._source.topics([tp.topic])

    def _at_source(self, tp: TopicPartition, position: int) -> tuple[int, dict[int, Any], dict[int, Any]]:
        """Return the offset after the next fetched records, these by offset, and for a typed topic their rows. Raises
        the source's errors."""
        for attempt in range(ATTEMPTS):
            try:
                part = self._fetched(tp, position)
            except SparklogError as e:
                if not e.retriable or attempt == ATTEMPTS - 1:
                    raise
                self._look_again(tp, e)
                continue
            if part is None:
                continue
            schemas = {ENVELOPE_SCHEMA_ID: ENVELOPE_SCHEMA} if self._typed is not None else self._info.schemas
            target = ConversionTarget(self._info.inflated_bytes_max, int(time.time() * 1000), schemas=schemas)
            placed = part.records.place(position, target)
            if placed.next_offset > position:
                records = dict(_rows_of(placed.batches, schemas))
                if self._typed is None:
                    return placed.next_offset, records, records
                typed = TypedConversion(
                    self._typed._replace(refused_max=NO_LIMIT), tp.partition, RefusedLog(), 0, schema_id=NO_SCHEMA
                )
                rows = part.records.place(position, target._replace(typed=typed))
                # a conversion ends earlier if its rows take much memory
                return rows.next_offset, records, dict(_rows_of(rows.batches, self._info.schemas))
        raise LeaderNotAvailableError(f"the source sends no records of {tp} from offset {position} on")

    def _fetched(self, tp: TopicPartition, position: int) -> FetchedPartition | None:
        """Return the answer of a partition's leader. Raises the source's errors."""
        leader = self._source.leader(self._source_topics, tp)
        if leader is None:
            raise LeaderNotAvailableError(f"{tp} has no leader at the source")
        epoch = self._source_topics[tp.topic].partitions[tp.partition].leader_epoch
        part = self._source.fetch(leader, {tp: (position, epoch, NO_EPOCH)}, wait_ms=500).get(tp)
        if part is not None and part.error is not None:
            raise part.error
        return part

    def _rows_here(self, tp: TopicPartition, start: int, end: int, columns: Sequence[str]) -> dict[int, Any]:
        rows: dict[int, Any] = {}
        if start >= end:
            return rows
        for batch in read_range(
            self._cluster, tp, start, end, columns=columns, isolation=READ_COMMITTED, retry_timeout_ms=self._timeout_ms
        ):
            data = batch.data
            if tp.topic == self._info.name:  # a column that was added later can have a default at the source
                stored = self._info.schemas[batch.schema_id].names
                data = data.select([name for name in data.schema.names if name in stored])
            rows |= zip(batch.offsets().tolist(), comparable_rows(pa.table(data)), strict=True)
        return rows

    def _compare(self, tp: TopicPartition, source: dict[int, Any], here: dict[int, Any], end: int) -> None:
        source = {offset: row for offset, row in source.items() if offset < end}
        for offset in sorted(source.keys() & here.keys()):
            self._report.records += 1
            row, own = source[offset], here[offset]
            names = ["value"] if row is None else [name for name in own if _differ(row.get(name), own[name])]
            if names:
                self._report.add(f"{tp}, offset {offset}: another {', '.join(names)} than at the source")
        if self._info.is_compacted:
            return  # each side removes records at its own times
        for offset in sorted(source.keys() - here.keys()):
            self._report.add(f"{tp}, offset {offset}: the record is missing here")
        for offset in sorted(here.keys() - source.keys()):
            self._report.add(f"{tp}, offset {offset}: the record is missing at the source")


def _rows_of(batches: tuple[memoryview, ...], schemas: Mapping[int, pa.Schema]) -> Iterator[tuple[int, Any]]:
    for data in batches:
        header = decode_header(data)
        rows, offsets = decode_rows(data, schemas[header.schema_id], header)
        yield from zip(
            row_offsets(header, offsets).tolist(), comparable_rows(pa.Table.from_batches([rows])), strict=True
        )


def comparable_rows(table: pa.Table) -> list[dict[str, Any]]:
    """Return the rows with times and dates as whole numbers, because Python's types end with the year 9999."""
    schema = pa.schema([field.with_type(_whole_numbers(field.type)) for field in table.schema])
    rows: list[dict[str, Any]] = table.cast(schema).to_pylist()
    return rows


def _whole_numbers(t: pa.DataType) -> pa.DataType:
    """Return the type with integers in the place of times and dates, also within lists, maps and structs."""
    if pa.types.is_temporal(t):
        return pa.int32() if t.bit_width == 32 else pa.int64()
    if pa.types.is_map(t):
        key, item = t.key_field, t.item_field
        return pa.map_(key.with_type(_whole_numbers(key.type)), item.with_type(_whole_numbers(item.type)))
    if pa.types.is_list(t):
        return pa.list_(t.value_field.with_type(_whole_numbers(t.value_type)))
    if pa.types.is_struct(t):
        return pa.struct([field.with_type(_whole_numbers(field.type)) for field in t])
    return t


def _differ(first: object, second: object) -> bool:
    """Return True unless both values are the same. Texts are compared if values are not equal: NaN equals nothing."""
    return first != second and repr(first) != repr(second)
