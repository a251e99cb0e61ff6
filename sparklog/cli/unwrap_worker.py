"""The worker of `sparklog unwrap`: reads a topic of change events, and writes the changed rows into a keyed topic.

A round reads some batches of the events, and writes their rows and the group's offsets in one transaction. So each
event is in the target exactly once, whenever a worker is killed. Workers of the same group share the partitions.
"""

from __future__ import annotations

import logging
import threading
import time
import uuid
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sparklog import errors
from sparklog.client.admin.admin import Admin, TopicDescription
from sparklog.client.consumer.consumer import Consumer
from sparklog.client.producer.producer import Producer
from sparklog.client.reading.consumed import ConsumedBatch
from sparklog.client.reading.read_table import read_table
from sparklog.debezium.avro_events import SchemaOf
from sparklog.debezium.changes import OPERATION_COLUMN, Changes, Layout, require_available, to_table
from sparklog.debezium.events import EventReader, RowEvent
from sparklog.debezium.forms import Hints
from sparklog.debezium.unwrapping import EventColumns, Unwrapping, columns_of
from sparklog.errors import DeserializationError, InvalidConfigError, SparklogError
from sparklog.format.schema import KIND_ENVELOPE
from sparklog.format.schema_evolution import SchemaChange, growth
from sparklog.security.client_security import ClientSecurity
from sparklog.types import TopicPartition

POLL_MS = 500
SESSION_MS = 15_000
TRANSACTION_MS = 60_000
PAUSE_MAX_S = 10.0
"""Longest pause in s between attempts while brokers do not answer."""
REPORT_S = 10.0
REPEATED = (
    errors.CommitFailedError,
    errors.FencedMemberEpochError,
    errors.InvalidProducerIdMappingError,
    errors.InvalidTxnStateError,
    errors.StaleMemberEpochError,
    errors.TransactionAbortedError,
    errors.UnknownMemberIdError,
)
"""Errors after which a new member of the group repeats the round: partitions have moved, or the transaction has timed
out. None of its rows is visible."""
_log = logging.getLogger(__name__)


class UnwrapPlan(NamedTuple):
    """The topics, and how events become rows."""

    source: str
    target: str
    group: str
    hints: Hints
    schema: pa.Schema | None = None
    """The columns of the rows, without `_op`. None: those of the target, with the columns that events add."""
    key_columns: tuple[str, ...] = ()
    """Key columns of a target that does not exist yet. Empty: those of the records' keys."""
    truncate: str = "error"


class UnwrapWorker:
    """One member of the group that unwraps the topic."""

    def __init__(
        self,
        plan: UnwrapPlan,
        bootstrap_servers: str,
        security: ClientSecurity | None,
        schema_of: SchemaOf | None,
        parameters: Mapping[str, Mapping[str, Any]],
    ) -> None:
        """`parameters`: settings of "producer" and "consumer" by their Python names."""
        self._plan = plan
        self._bootstrap = bootstrap_servers
        self._security = security
        self._schema_of = schema_of
        self._parameters = parameters
        self._admin = Admin(bootstrap_servers, security=security)
        self._is_stopped = threading.Event()
        self._target: TopicDescription | None = None
        self._unwrappings: dict[TopicPartition, Unwrapping] = {}
        self._positions: dict[TopicPartition, int] = {}
        """The group's offsets of this member's partitions."""
        self._records = self._rows = 0
        self._reported_at = time.monotonic()

    def stop(self) -> None:
        """Let the worker end after its round."""
        self._is_stopped.set()

    def close(self) -> None:
        """Close the connections."""
        self._admin.close()

    def run(self) -> None:
        """Work until `stop`. Raises SparklogError: An event cannot become a row, or a topic does not fit."""
        self._work(None)

    def run_once(self, names: Sequence[str] | None = None) -> Mapping[str, str]:
        """Work until the events that exist now are unwrapped. Raises SparklogError as `run`."""
        partitions = range(self._admin.describe_topic(self._plan.source).partitions)
        with Consumer(self._bootstrap, security=self._security, **self._parameters["consumer"]) as consumer:
            ends = consumer.end_offsets([TopicPartition(self._plan.source, p) for p in partitions])
        self._work({tp: end for tp, end in ends.items() if end})
        return {}

    def _work(self, ends: Mapping[TopicPartition, int] | None) -> None:
        """Work until `stop`, or until the group's offsets reach `ends`; begin again after errors that pass."""
        self._check_topics()
        attempts = 0
        while not self._is_stopped.is_set():
            try:
                with self._consumer() as consumer, self._producer() as producer:
                    consumer.subscribe([self._plan.source], on_assign=lambda added: self._begin(consumer, added))
                    while not self._is_stopped.is_set():
                        if ends is not None and self._has_reached(consumer, ends):
                            self._report()
                            return
                        self._round(consumer, producer)
                        attempts = 0
            except SparklogError as e:
                if not e.retriable and not isinstance(e, REPEATED):
                    raise
                attempts += 1
                _log.warning("the round is repeated: %s", e)
                self._is_stopped.wait(min(0.1 * 2**attempts, PAUSE_MAX_S))
        self._report()

    def _consumer(self) -> Consumer:
        return Consumer(
            self._bootstrap,
            security=self._security,
            group_id=self._plan.group,
            auto_offset_reset="none",
            enable_auto_commit=False,
            isolation_level="read_committed",
            session_timeout_ms=SESSION_MS,
            **self._parameters["consumer"],
        )

    def _producer(self) -> Producer:
        return Producer(
            self._bootstrap,
            security=self._security,
            transactional_id=f"{self._plan.group}-{uuid.uuid4()}",
            transaction_timeout_ms=TRANSACTION_MS,
            **self._parameters["producer"],
        )

    def _begin(self, consumer: Consumer, added: Sequence[TopicPartition]) -> None:
        """Begin with new partitions: at the group's offsets, else at the first event."""
        for tp in added:
            self._unwrappings.pop(tp, None)
            self._positions.pop(tp, None)
        committed = consumer.committed(added)
        new = [tp for tp, offset in committed.items() if offset is None]
        for tp, offset in consumer.beginning_offsets(new).items() if new else ():
            consumer.seek(tp, offset)
        self._positions |= {tp: offset.offset for tp, offset in committed.items() if offset is not None}

    def _has_reached(self, consumer: Consumer, ends: Mapping[TopicPartition, int]) -> bool:
        """True if the group's offsets are at `ends` or behind them."""
        others = [tp for tp in ends if tp not in self._positions]
        offsets = dict(self._positions)
        if others:
            offsets |= {tp: 0 if offset is None else offset.offset for tp, offset in consumer.committed(others).items()}
        return all(offsets[tp] >= end for tp, end in ends.items())

    def _round(self, consumer: Consumer, producer: Producer) -> None:
        """Unwrap the next batches in one transaction. Raises SparklogError."""
        batches = consumer.poll_batches(POLL_MS)
        positions = {tp: consumer.position(tp) for tp in consumer.assignment()}
        moved = {tp: offset for tp, offset in positions.items() if self._positions.get(tp) != offset}
        if not moved:
            return
        by_partition: dict[TopicPartition, list[ConsumedBatch]] = {}
        for batch in batches:
            by_partition.setdefault(batch.tp, []).append(batch)
        tables, refusals = [], []
        for tp, part in by_partition.items():
            table, refusal = self._sound_rows(tp, part)
            tables.append(table)
            if refusal is not None:
                refusals.append(refusal)
                moved[tp] = refusal.offset
        with producer.transaction():
            for table in tables:
                if table is not None:
                    producer.send_batch(self._plan.target, table)
            producer.send_offsets_to_transaction(moved, consumer.group_metadata())
        self._positions |= moved
        self._rows += sum(table.num_rows for table in tables if table is not None)
        self._records += sum(batch.data.num_rows for batch in batches)
        if refusals:
            raise refusals[0]
        if time.monotonic() - self._reported_at >= REPORT_S:
            self._report()

    def _report(self) -> None:
        self._reported_at = time.monotonic()
        _log.info("%s: %s records, %s changed rows", self._plan.target, f"{self._records:,}", f"{self._rows:,}")

    def _sound_rows(
        self, tp: TopicPartition, batches: Sequence[ConsumedBatch]
    ) -> tuple[pa.Table | None, DeserializationError | None]:
        """Return the changed rows of a partition's batches, up to the first event that cannot become a row, and the
        error of this event. Raises SparklogError."""
        refusal: DeserializationError | None = None
        while True:
            try:
                return self._rows_of(tp, batches, refusal.offset if refusal is not None else None), refusal
            except DeserializationError as e:
                self._unwrappings.pop(tp, None)  # it has read events that are not committed
                if e.offset < 0 or (refusal is not None and e.offset >= refusal.offset):
                    raise
                refusal = DeserializationError(
                    f"partition {tp.partition} of {tp.topic}, where an event's number is its offset: {e}",
                    partition=(tp.topic, tp.partition),
                    offset=e.offset,
                )

    def _rows_of(self, tp: TopicPartition, batches: Sequence[ConsumedBatch], end: int | None) -> pa.Table | None:
        """Return the changed rows of a partition's batches before the offset `end` (None: all); None if there is none.
        Raises SparklogError: A DeserializationError has the offset."""
        if tp not in self._unwrappings:
            reader = EventReader(truncate=self._plan.truncate, schema_of=self._schema_of)
            self._unwrappings[tp] = Unwrapping(reader)
        unwrapping = self._unwrappings[tp]
        offsets = [offset for batch in batches for offset in batch.offsets().tolist()]
        records = ((k, v) for b in batches for k, v in zip(_texts(b, "key"), _texts(b, "value"), strict=True))
        count = len(offsets) if end is None else bisect_left(offsets, end)
        events = unwrapping.read(islice(records, count), offsets)
        if not events:
            return None
        changes = unwrapping.changes(events, self._layout(events), self._newest)
        require_available(changes)
        return to_table(changes)

    def _check_topics(self) -> None:
        """Refuse topics that do not fit. Raises InvalidConfigError and other SparklogErrors."""
        source = self._admin.describe_topic(self._plan.source)
        if source.kind != KIND_ENVELOPE:
            raise InvalidConfigError(
                f"{source.name} is a typed topic: let the connector write its events into a topic of keys and values "
                "(`sparklog topic create` without --schema)"
            )
        try:
            target = self._admin.describe_topic(self._plan.target)
        except errors.UnknownTopicOrPartitionError:
            return  # it is created with the columns of the first events
        self._check_target(target)
        self._target = target

    def _check_target(self, target: TopicDescription) -> None:
        """Refuse a target that has no place for changed rows. Raises InvalidConfigError."""
        operation = target.schema.get_field_index(OPERATION_COLUMN)
        if not target.key_columns or operation < 0 or target.schema.field(operation).type != pa.string():
            raise InvalidConfigError(
                f"{target.name} cannot take changed rows: use a topic with key columns and a column {OPERATION_COLUMN} "
                "STRING, or the name of a topic that does not exist, which is created"
            )
        lacking = [n for n in (self._plan.schema or pa.schema([])).names if target.schema.get_field_index(n) < 0]
        if lacking:
            raise InvalidConfigError(
                f"{target.name} lacks the columns {', '.join(lacking)}: add them with `sparklog topic alter "
                f"{target.name} --add-column`"
            )

    def _layout(self, events: Sequence[RowEvent]) -> Layout:
        """Return the layout of the rows. The target is created, or gets the columns that the events add. Raises
        SparklogError: The types of columns are not known, or the target cannot have them."""
        found = columns_of(events)
        if self._target is None:
            self._target = self._create(found)
        if self._plan.schema is not None:
            return Layout(self._plan.schema, self._plan.hints, self._target.key_columns)
        columns = rows_schema(self._target.schema)
        for name, number in found.untyped.items():
            if columns.get_field_index(name) < 0:
                raise DeserializationError(
                    f"Debezium event {number} has no schema part, and {self._target.name} no column {name!r}: add it "
                    "with `sparklog topic alter`, or name the columns to take with --schema",
                    offset=number,
                )
        change = growth(columns, found.schema)
        if change != SchemaChange():
            self._target = self._admin.alter_schema(
                self._plan.target, add_columns=change.add, widen_columns=change.widen
            )
            names = [f.name for part in (change.add, change.widen) for f in part or ()]
            _log.info("%s: new or wider columns: %s", self._plan.target, ", ".join(names))
            for unwrapping in self._unwrappings.values():
                unwrapping.forget()
        return Layout(rows_schema(self._target.schema), self._plan.hints, self._target.key_columns)

    def _create(self, found: EventColumns) -> TopicDescription:
        """Create the target, or take the one that another worker has created. Raises SparklogError."""
        schema = self._plan.schema or found.schema
        keys = self._plan.key_columns or found.key_columns
        if self._plan.schema is None and found.untyped:
            number = min(found.untyped.values())
            raise DeserializationError(
                f"Debezium event {number} has no schema part with the types of its columns: name them with --schema",
                offset=number,
            )
        if not keys:
            raise DeserializationError(
                "the records have no keys with columns: name the key columns of the rows with --key-columns"
            )
        partitions = self._admin.describe_topic(self._plan.source).partitions
        try:
            target = self._admin.create_topic(
                self._plan.target,
                partitions,
                schema.append(pa.field(OPERATION_COLUMN, pa.string())),
                keys,
                configs={"cleanup.policy": "compact"},
            )
        except errors.TopicAlreadyExistsError:
            target = self._admin.describe_topic(self._plan.target)
            self._check_target(target)
            return target
        _log.info("created the topic %s: keys %s, columns %s", target.name, ", ".join(keys), ", ".join(schema.names))
        return target

    def _newest(self, changes: Changes) -> pa.Table:
        """Return the newest rows of the changes that lack a value. Raises SparklogError."""
        lacks = np.logical_or.reduce(list(changes.unavailable.values()))
        key = changes.key_columns[0]
        self._wait_for_transactions()
        rows = read_table(
            self._bootstrap,
            self._plan.target,
            list(changes.columns),
            filter=pc.field(key).isin(changes.columns[key].filter(pa.array(lacks))),
            latest=True,
            security=self._security,
        )
        assert isinstance(rows, pa.Table)
        return rows

    def _wait_for_transactions(self) -> None:
        """Wait until the rows of the target that exist now are committed or aborted. Raises RequestTimedOutError: A
        transaction stays open."""
        assert self._target is not None
        tps = [TopicPartition(self._plan.target, p) for p in range(self._target.partitions)]
        parameters = {"security": self._security, **self._parameters["consumer"]}
        with (
            Consumer(self._bootstrap, isolation_level="read_uncommitted", **parameters) as all_rows,
            Consumer(self._bootstrap, isolation_level="read_committed", **parameters) as committed,
        ):
            ends = all_rows.end_offsets(tps)
            deadline = time.monotonic() + 2 * TRANSACTION_MS / 1_000
            while time.monotonic() < deadline and not self._is_stopped.is_set():
                stable = committed.end_offsets(tps)
                if all(stable[tp] >= end for tp, end in ends.items()):
                    return
                self._is_stopped.wait(0.1)
        raise errors.RequestTimedOutError(
            f"a transaction in {self._plan.target} stays open: its rows are not known yet"
        )


def rows_schema(schema: pa.Schema) -> pa.Schema:
    """Return the columns of a keyed topic without that of the operation."""
    return schema.remove(schema.get_field_index(OPERATION_COLUMN))


def _texts(batch: ConsumedBatch, name: str) -> list[Any]:
    values: list[Any] = batch.data.column(batch.data.schema.get_field_index(name)).to_pylist()
    return values
