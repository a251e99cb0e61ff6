"""Refused records: those that did not fit the columns of a typed topic, in the topic `<topic>.refused`.

`retry` converts them again with the present columns. One transaction has the rows that fit now, the other records as
new rows of the refused topic with their new reasons, and the position up to which the refused topic is done, which is
the offset of the group REFUSED_GROUP. So each record is retried once, also if the command is killed.

A producer that sends its batch again can store its refused records again. Such copies are left out.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from sparklog.client.admin.admin import Admin
from sparklog.client.net.cluster import Cluster
from sparklog.client.net.registry_reader import registry_schemas
from sparklog.client.net.topic_info import TopicInfo
from sparklog.client.producer.producer import Producer
from sparklog.client.reading.consumed import ConsumedBatch
from sparklog.client.reading.mirrored_ends import mirrored_ends
from sparklog.client.reading.range_reader import read_range
from sparklog.errors import InvalidRequestError, PolicyViolationError, UnknownTopicOrPartitionError
from sparklog.format.key_format import REFUSED_SETTING, REFUSED_TO_TOPIC
from sparklog.kafka.values.fitting import FittingRows, fitting_rows, rows_reader
from sparklog.metadata.mirror_settings import NAME
from sparklog.metadata.refused_topics import REASON_CHARS_MAX, REFUSED_SCHEMA, SUFFIX, refused_topic
from sparklog.mirror.readers import header_reader, key_reader, value_reader, with_forms
from sparklog.security.client_security import ClientSecurity, Security
from sparklog.types import READ_COMMITTED, TopicPartition

REFUSED_GROUP = "sparklog-refused"
"""Group whose offsets are the positions up to which refused topics are done."""
PLACE_COLUMNS = ("partition", "offset")
RECORD_COLUMNS = ("key", "value", "headers", "timestamp")
ROWS_PER_TRANSACTION = 10_000
BY_KEY = -1
"""In place of a partition: the key of the row chooses it."""


class Values(NamedTuple):
    """The form in which the values of records are read."""

    format: str = ""
    """One of VALUE_FORMATS; "": that of the topic (`kafka.value.format`)."""
    registry: str | None = None
    """Address of the registry that has their schemas."""
    drops_headers: bool = False
    """True to leave out headers; False to refuse records with headers."""
    security: ClientSecurity | None = None
    """The user at the registry, and the authorities of https; None: no login."""


OWN_FORM = Values()


class _Waiting(NamedTuple):
    """The records of one partition of the refused topic that are not done."""

    start: int
    """First offset that is not done."""
    end: int
    """Log end of the partition."""
    offsets: np.ndarray
    """Offsets of the records, ascending, without the rows that repeat one of them."""

    def position_after(self, offset: int) -> int:
        """Return the position at which the refused topic is done up to a record."""
        at = int(np.searchsorted(self.offsets, offset, side="right"))
        return int(self.offsets[at]) if at < len(self.offsets) else self.end


@dataclass(frozen=True)
class RetryResult:
    """The result of a retry."""

    stored: int
    """Number of records that fit now, and are rows of the topic."""
    refused: int
    """Number of records that do not fit yet, and remain refused."""


def record_rows(rows: pa.RecordBatch) -> list[dict[str, Any]]:
    """Return rows of a refused topic, their timestamps in microseconds: Python's own type ends with the year 9999."""
    at = rows.schema.get_field_index("timestamp")
    numbers = rows.set_column(at, "timestamp", rows.column(at).cast(pa.int64()))
    records: list[dict[str, Any]] = numbers.to_pylist()
    return records


class RefusedRecords:
    """The refused records of one topic."""

    def __init__(self, cluster: Cluster, admin: Admin, topic: str, *, timeout_ms: int = 30_000) -> None:
        """Raises UnknownTopicOrPartitionError for a topic that does not exist, or can have no refused records."""
        name = refused_topic(topic)
        infos = cluster.topic_infos([topic, name], timeout_ms=timeout_ms)
        if topic not in infos:
            raise UnknownTopicOrPartitionError(f"topic {topic!r} does not exist")
        if name not in infos and not infos[topic].has_refused_topic:
            raise UnknownTopicOrPartitionError(
                f"topic {name!r} does not exist: a typed topic that a mirror has filled, or that has "
                f"{REFUSED_SETTING}={REFUSED_TO_TOPIC}, has a topic with the ending {SUFFIX} from its first refused record on"
            )
        self.info, self.refused_info = infos[topic], infos.get(name)
        if self.refused_info is not None and self.refused_info.schema != REFUSED_SCHEMA:
            raise InvalidRequestError(
                f"topic {name!r} has not the columns of refused records: {self.refused_info.schema}"
            )
        self._name = name
        self._cluster = cluster
        self._admin = admin
        self._timeout_ms = timeout_ms

    def ranges(self) -> dict[TopicPartition, tuple[int, int]]:
        """Return the first offset that is not done, and the log end, of each partition of the refused topic."""
        if self.refused_info is None:  # it is created with the first refused record
            return {}
        tps = [TopicPartition(self._name, p) for p in range(self.refused_info.partitions)]
        done = self._admin.list_group_offsets(REFUSED_GROUP)
        ends = mirrored_ends(self._cluster, tps, self._timeout_ms)
        return {tp: (max(ends[tp].start, done[tp].offset if tp in done else 0), ends[tp].end) for tp in tps}

    def waiting(self) -> Iterator[pa.RecordBatch]:
        """Yield all refused records that are not done."""
        for tp, (start, end) in self.ranges().items():
            for rows, _ in self._records(tp, self._waiting(tp, start, end)):
                yield rows

    def count(self) -> int:
        """Return the number of refused records that are not done."""
        return sum(len(self._waiting(tp, start, end).offsets) for tp, (start, end) in self.ranges().items())

    def _waiting(self, tp: TopicPartition, start: int, end: int) -> _Waiting:
        """Return the records of a range, without copies."""
        none = np.zeros(0, np.int64)
        parts = [(batch.offsets(), batch.data) for batch in self._batches(tp, start, end, columns=PLACE_COLUMNS)]
        offsets = np.concatenate([none, *(own for own, _ in parts)])
        places = [np.concatenate([none, *(np.asarray(rows.column(i)) for _, rows in parts)]) for i in range(2)]
        repeated = offsets[rows_of_equal_places(places[0], places[1])]
        if not len(repeated):
            return _Waiting(start, end, offsets)
        seen: set[bytes] = set()
        copies: list[int] = []
        for batch in self._batches(tp, start, end):
            chosen = np.flatnonzero(np.isin(batch.offsets(), repeated))
            rows = batch.data.select([*PLACE_COLUMNS, *RECORD_COLUMNS]).take(pa.array(chosen))
            for offset, row in zip(batch.offsets()[chosen].tolist(), record_rows(rows), strict=True):
                digest = hashlib.sha256(repr(row).encode()).digest()
                if digest in seen:
                    copies.append(offset)
                seen.add(digest)
        return _Waiting(start, end, offsets[~np.isin(offsets, copies)])

    def _records(self, tp: TopicPartition, waiting: _Waiting) -> Iterator[tuple[pa.RecordBatch, np.ndarray]]:
        """Yield records, with their offsets in the refused topic."""
        for batch in self._batches(tp, waiting.start, waiting.end):
            is_record = np.isin(batch.offsets(), waiting.offsets)
            if is_record.all():
                yield batch.data, batch.offsets()
            elif is_record.any():
                yield batch.data.filter(pa.array(is_record)), batch.offsets()[is_record]

    def _batches(
        self, tp: TopicPartition, start: int, end: int, columns: Sequence[str] | None = None
    ) -> Iterator[ConsumedBatch]:
        """Yield the batches of a range of the refused topic that have rows. `columns` None: all."""
        if start >= end:
            return
        timeout_ms = self._timeout_ms
        for batch in read_range(
            self._cluster, tp, start, end, columns=columns, isolation=READ_COMMITTED, retry_timeout_ms=timeout_ms
        ):
            if batch.data.num_rows:
                yield batch

    def find(self, partition: int, offset: int) -> dict[str, Any]:
        """Return the refused record of a place in the topic, or at the source. Raises InvalidRequestError."""
        for rows in self.waiting():
            for i in np.flatnonzero(np.asarray(rows.column("offset")) == offset):
                if rows.column("partition")[int(i)].as_py() == partition:
                    return record_rows(rows.slice(int(i), 1))[0]
        raise InvalidRequestError(
            f"topic {self.info.name!r} has no refused record of partition {partition} and offset {offset}; 'sparklog "
            f"refused list {self.info.name}' lists them"
        )

    def check(self, values: Values = OWN_FORM) -> RetryResult:
        """Return the numbers of records that fit now, and of the others. Nothing is changed."""
        stored = refused = 0
        for rows in self.waiting():
            for _, fitting in self._converted(rows, values):
                stored += len(fitting.places)
                refused += len(fitting.refused)
        return RetryResult(stored, refused)

    def retry(
        self,
        bootstrap_servers: str | None,
        security: Security,
        values: Values = OWN_FORM,
    ) -> RetryResult:
        """Store the records that fit now. Without one that fits nothing is changed. Raises PolicyViolationError for a
        topic that a mirror fills: only the mirror writes to it."""
        mirror = self.info.configs.get(NAME)
        if mirror:
            raise PolicyViolationError(
                f"topic {self.info.name!r} is read-only, because the mirror {mirror!r} fills it: its refused records can "
                f"be retried after 'sparklog mirror promote {mirror} {self.info.name}'"
            )
        before = self.check(values)
        if not before.stored:
            return before
        stored = refused = 0
        transactional_id = f"{REFUSED_GROUP}-{self.info.name}"
        with Producer(bootstrap_servers, transactional_id=transactional_id, security=security) as producer:
            producer.init_transactions()  # ends the transaction of a retry that was killed, before the offsets are read
            for tp, (start, end) in self.ranges().items():
                waiting = self._waiting(tp, start, end)
                for rows, offsets in self._pieces(tp, waiting):
                    done = 0
                    for part, fitting in self._converted(rows, values):
                        done += part.num_rows
                        position = waiting.position_after(int(offsets[done - 1]))
                        with producer.transaction():
                            self._send(producer, tp, part, fitting)
                            producer.send_offsets_to_transaction({tp: position}, REFUSED_GROUP)
                        stored += len(fitting.places)
                        refused += len(fitting.refused)
        return RetryResult(stored, refused)

    def _pieces(self, tp: TopicPartition, waiting: _Waiting) -> Iterator[tuple[pa.RecordBatch, np.ndarray]]:
        """Yield records in pieces of a limited number, with their offsets in the refused topic."""
        for rows, offsets in self._records(tp, waiting):
            for first in range(0, rows.num_rows, ROWS_PER_TRANSACTION):
                yield rows.slice(first, ROWS_PER_TRANSACTION), offsets[first:]

    def _converted(self, rows: pa.RecordBatch, values: Values) -> Iterator[tuple[pa.RecordBatch, FittingRows]]:
        """Yield parts of the records, of a limited size, with their conversion."""
        while rows.num_rows:
            fitting = self._convert(rows, values)
            yield rows.slice(0, fitting.converted), fitting
            rows = rows.slice(fitting.converted)

    def _convert(self, rows: pa.RecordBatch, values: Values) -> FittingRows:
        info = self.info
        form = values.format or info.value_format
        schemas = None if values.registry is None else registry_schemas(values.registry, values.security)
        read_values = value_reader(form, schemas, info.inflated_bytes_max)
        read = rows_reader(read_values, info, key_reader(info, schemas, info.inflated_bytes_max))
        if schemas is not None and form == info.value_format:
            read = with_forms(read, info, form, schemas, info.inflated_bytes_max)
        return fitting_rows(
            rows.select(list(RECORD_COLUMNS)),
            info,
            read,
            bytes_max=info.inflated_bytes_max,
            drops_headers=values.drops_headers,
            read_headers=header_reader(form, schemas),
        )

    def _send(self, producer: Producer, tp: TopicPartition, rows: pa.RecordBatch, fitting: FittingRows) -> None:
        """Send the rows to the partition of the topic that the records had, and the others to the refused topic. The
        row of a producer's record goes to the partition of its key: it can be refused because it was in another."""
        partitions = np.asarray(rows.column("partition"))
        if self.info.key_columns:
            is_of_producer = np.asarray(rows.column("number").is_null().to_numpy(zero_copy_only=False))
            partitions = np.where(is_of_producer, BY_KEY, partitions)
        for partition in np.unique(partitions[fitting.places]).tolist():
            chosen = fitting.rows.filter(pa.array(partitions[fitting.places] == partition))
            producer.send_batch(self.info.name, chosen, partition=None if partition == BY_KEY else int(partition))
        if fitting.refused:
            producer.send_batch(self._name, with_reasons(rows, fitting.refused), partition=tp.partition)


def with_reasons(rows: pa.RecordBatch, reasons: Mapping[int, str]) -> pa.RecordBatch:
    """Return the refused records with new reasons, by index; the others are left out."""
    chosen = rows.take(pa.array(list(reasons), pa.int64()))
    texts = pa.array([reason[:REASON_CHARS_MAX] for reason in reasons.values()], pa.string())
    at = chosen.schema.get_field_index("reason")
    return chosen.set_column(at, chosen.schema.field(at), texts)


def rows_of_equal_places(partitions: np.ndarray, offsets: np.ndarray) -> np.ndarray:
    """Return the indices of the rows whose place, of partition and offset, another row has, too."""
    order = np.lexsort((offsets, partitions))
    is_same = (np.diff(partitions[order]) == 0) & (np.diff(offsets[order]) == 0)
    is_repeated = np.append(is_same, False) | np.append(False, is_same)
    return np.sort(order[is_repeated[: len(order)]])


def refused_topics(infos: Mapping[str, TopicInfo]) -> list[str]:
    """Return the topics that have a topic of refused records."""
    return [
        name
        for name in sorted(infos)
        if refused_topic(name) in infos and infos[refused_topic(name)].schema == REFUSED_SCHEMA
    ]
