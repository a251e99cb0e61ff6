"""The topics that are tables of a session's connection. A statement reads their state at its beginning."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa

from sparklog.client.net.cluster import Cluster
from sparklog.client.reading.latest_rows import latest_view
from sparklog.query.names import quoted
from sparklog.query.ranges import Filter, OffsetRange
from sparklog.query.rewrite import TopicPart
from sparklog.query.scan import (
    Control,
    ReadOptions,
    TopicScan,
    TopicSnapshot,
    offsets_from,
    table_schema,
    take_snapshot,
)
from sparklog.query.topic_table import OpenScan, TopicTable
from sparklog.types import TopicPartition

if TYPE_CHECKING:
    import duckdb

LATEST_SCHEMA = "latest"
"""SQL schema of the views `latest.TOPIC`, which have the newest row of each key of a topic with keys."""
_LATEST = re.compile(r"\blatest\b\"?\s*\.", re.IGNORECASE)


class _Registration(NamedTuple):
    """A topic, and the table that is registered for it in DuckDB."""

    topic: str
    table: TopicTable


class RegisteredTopics:
    """The topics that are tables of one connection. Only the session's thread is allowed to call the methods; DuckDB's
    threads open the scans."""

    def __init__(self, connection: duckdb.DuckDBPyConnection, cluster: Cluster, options: ReadOptions) -> None:
        self._connection = connection
        self._cluster = cluster
        self._options = options
        self._control = Control()
        self._registered: dict[str, _Registration] = {}
        """The registered topics, by name in lower case."""
        self._snapshots: dict[str, TopicSnapshot] = {}

    def begin_statement(self, control: Control) -> None:
        """Forget the snapshots of the last statement. The scans of the next one share `control`."""
        self._control = control
        self._snapshots.clear()

    def close(self) -> None:
        """Drop the tables and the connection, before the session closes the connection."""
        self._registered.clear()
        del self._connection

    def columns_of(self, topics: Sequence[str]) -> dict[str, Sequence[str]]:
        """Return the names of the columns of those of `topics` that are registered."""
        return {
            topic: self._registered[topic.lower()].table.schema.names
            for topic in topics
            if topic.lower() in self._registered
        }

    def register(self, topic: str) -> None:
        """Take a snapshot of a topic, and register the topic's table unless it is registered with this schema."""
        snapshot = self._snapshots[topic] = take_snapshot(self._cluster, topic, self._options)
        schema = table_schema(snapshot.info)
        registration = self._registered.get(topic.lower())
        if registration is None or registration.topic != topic or not registration.table.schema.equals(schema):
            table = self._table(topic, schema, lambda: self.snapshot(topic).logs)
            self._connection.register(topic, table)
            self._registered[topic.lower()] = _Registration(topic, table)

    def register_latest(self, query: str, named: Sequence[str]) -> None:
        """Create the views `latest.TOPIC` of the topics with keys, if the statement uses the schema `latest`."""
        if not _LATEST.search(query):
            return
        self._connection.execute(f"CREATE SCHEMA IF NOT EXISTS {LATEST_SCHEMA}")
        for topic in named:
            info = self.snapshot(topic).info
            if not info.is_envelope and not info.key_columns:
                continue
            hidden = f"all rows of {topic}"
            snapshot = take_snapshot(self._cluster, topic, self._options, newest=True)
            schema = table_schema(snapshot.info)

            def open_scan(
                columns: Sequence[str] | None,
                expression: Any,
                snapshot: TopicSnapshot = snapshot,
                schema: pa.Schema = schema,
            ) -> TopicScan:
                row_filter = Filter(expression, schema)
                return TopicScan(self._cluster, snapshot, schema, columns, row_filter, self._options, self._control)

            self._connection.register(hidden, TopicTable(schema, self._keeping_failures(open_scan)))
            view = latest_view(snapshot.info, quoted(hidden), schema.names)
            self._connection.execute(f"CREATE OR REPLACE VIEW {LATEST_SCHEMA}.{quoted(topic)} AS {view}")

    def snapshot(self, topic: str) -> TopicSnapshot:
        """Return the topic's snapshot of this statement. If only a view refers to the topic, take the snapshot now."""
        snapshot = self._snapshots.get(topic)
        if snapshot is None:
            snapshot = self._snapshots[topic] = take_snapshot(self._cluster, topic, self._options)
        return snapshot

    def _table(self, topic: str, schema: pa.Schema, logs: Callable[[], Sequence[OffsetRange]]) -> TopicTable:
        def open_scan(columns: Sequence[str] | None, expression: Any) -> TopicScan:
            snapshot = self.snapshot(topic)._replace(logs=logs())
            row_filter = Filter(expression, schema)
            return TopicScan(self._cluster, snapshot, schema, columns, row_filter, self._options, self._control)

        return TopicTable(schema, self._keeping_failures(open_scan))

    def _keeping_failures(self, open_scan: OpenScan) -> OpenScan:
        """Return a function that calls `open_scan` and keeps its exception in the statement's Control, because DuckDB's
        own error has only the exception's text."""

        def open_kept(columns: Sequence[str] | None, expression: Any) -> Any:
            try:
                return open_scan(columns, expression)
            except BaseException as e:
                self._control.failure = self._control.failure or e
                raise

        return open_kept

    def part(self, topic: str) -> TopicPart:
        """Return a table of some of the topic's offsets, at first of all."""
        snapshot = self.snapshot(topic)

        def make(logs: Callable[[], Sequence[OffsetRange]]) -> TopicTable:
            return self._table(topic, table_schema(snapshot.info), logs)

        def offsets_from_ms(time_ms: int) -> Mapping[int, int]:
            times_ms = {TopicPartition(topic, log.partition): time_ms for log in snapshot.logs}
            return offsets_from(self._cluster, times_ms, self._options)

        return TopicPart(snapshot.logs, make, offsets_from_ms)
