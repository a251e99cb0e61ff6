"""A simulated Kafka topic, a simulated log here, and lives of mirrors between them, without sockets and clocks.

The source does all that a real one can do under a mirror: transactions with aborts, compaction, retention, unclean
elections, a topic that is made again, answers that are damaged on their way. The log checks at each append that the
mirror's records are those that the source has committed.

A life with a typed topic has records that do not fit its columns, and columns that are added later: each committed
record is then either a row of the topic or a refused record, once.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from random import Random
from typing import Any, NamedTuple

import pyarrow as pa

from sparklog.client.kafka.source import NO_RECORDS, KafkaRecords, source_error
from sparklog.client.net.addresses import Endpoint
from sparklog.client.reading.mirrored_ends import MirroredEnd
from sparklog.environment.fault_points import InjectedFault
from sparklog.errors import OffsetOutOfRangeError, RequestTimedOutError, SparklogError
from sparklog.format.batch import (
    ATTRIBUTE_OFFSET_COLUMN,
    ATTRIBUTE_TRANSACTIONAL,
    COMPRESSIONS,
    STAMP_CHARS,
    decode_header,
    encode_batch,
    encode_marker,
    stamp_batch,
)
from sparklog.format.offset_column import decode_rows, row_offsets, with_offset_column
from sparklog.format.schema import ENVELOPE_SCHEMA
from sparklog.kafka.records.batch_v2 import TRANSACTIONAL
from sparklog.kafka.values.fitting import read_json
from sparklog.kafka.values.json_records import parse_rows
from sparklog.kafka.wire.errors import Kafka
from sparklog.metadata.refused_topics import REFUSED_SCHEMA
from sparklog.metadata.store import ENVELOPE_SCHEMA_ID
from sparklog.mirror.copying import AbortedBatches, SourceBatches
from sparklog.mirror.definition import MirrorDefinition, MirroredTopic
from sparklog.mirror.placing import AbortedTransaction
from sparklog.mirror.refused import RefusedLog
from sparklog.mirror.rules import NO_EPOCH, NO_SCHEMA, EpochAnswer, SourceBounds
from sparklog.mirror.source import FetchedPartition, SourcePartition, SourceTopic
from sparklog.mirror.typed import NO_LIMIT, RefusedTarget, TypedTarget
from sparklog.mirror.worker.log_side import PlacedAppend
from sparklog.mirror.worker.sync import Decisions, Mirrored, MirrorSync
from sparklog.types import TopicPartition
from tests.support.kafka_batches import ABORT, COMMIT, kafka_batch, marker

TOPIC = "t"
TP = TopicPartition(TOPIC, 0)
BROKER = Endpoint("source", 9092)
INFLATED_BYTES_MAX = 1 << 20
ANSWER_BYTES = 2_000
COLUMNS = {11: pa.schema([("a", pa.string())]), 12: pa.schema([("a", pa.string()), ("b", pa.int32())])}
"""Columns of the typed topic, by the id of their schema."""
REFUSED_SCHEMA_ID = 9
ENVELOPE = {ENVELOPE_SCHEMA_ID: ENVELOPE_SCHEMA}
FAULTS = ("before", "after", "before-refused", "after-refused")


class Violation(Exception):  # noqa: N818 - a finding, no error of the program
    """A promise of the mirror is broken."""


class StoredBatch(NamedTuple):
    """A batch of the simulated source."""

    base: int
    last: int
    epoch: int
    producer_id: int
    values: dict[int, bytes]
    """Values by offset; empty for a marker."""
    marker: bytes
    """COMMIT or ABORT for a marker; empty for records."""
    codec: int

    def encoded(self) -> bytes:
        if self.marker:
            return marker(self.base, self.producer_id, self.marker, self.epoch)
        return kafka_batch(
            list(self.values),
            base=self.base,
            last=self.last,
            codec=self.codec if self.values else 0,
            attributes=TRANSACTIONAL if self.producer_id >= 0 else 0,
            producer_id=self.producer_id,
            epoch=self.epoch,
            values=list(self.values.values()),
        )

    def stored(self) -> bytes:
        """The batch as a sparklog cluster stores it."""
        if self.marker:
            data = encode_marker(
                ENVELOPE_SCHEMA,
                schema_id=ENVELOPE_SCHEMA_ID,
                producer_id=self.producer_id,
                producer_epoch=0,
                coordinator_epoch=0,
                commit=self.marker == COMMIT,
                timestamp_ms=1,
            )
        else:
            is_whole = len(self.values) == self.last - self.base + 1
            rows = [{"key": None, "value": value, "headers": None, "timestamp": 1} for value in self.values.values()]
            batch = pa.RecordBatch.from_pylist(rows, schema=ENVELOPE_SCHEMA)
            if not is_whole:
                offsets = pa.array(list(self.values), pa.int64())
                batch = pa.RecordBatch.from_arrays(
                    [*batch.columns, offsets], schema=with_offset_column(ENVELOPE_SCHEMA)
                )
            data = encode_batch(
                batch,
                schema_id=ENVELOPE_SCHEMA_ID,
                min_timestamp_ms=0,
                max_timestamp_ms=0,
                compression=COMPRESSIONS[self.codec % len(COMPRESSIONS)],
                attributes=(ATTRIBUTE_TRANSACTIONAL if self.producer_id >= 0 else 0)
                | (0 if is_whole else ATTRIBUTE_OFFSET_COLUMN),
                producer_id=self.producer_id,
                producer_epoch=0 if self.producer_id >= 0 else -1,
                base_sequence=0 if self.producer_id >= 0 else -1,
                last_offset_delta=self.last - self.base,
            )
        header = decode_header(data)
        stamp_batch(data, 0, header, base_offset=self.base, leader_epoch=self.epoch, append_time_ms=1)
        return bytes(data)


class SimulatedSource:
    """A topic with one partition at the source; in the place of `KafkaSource` or `SparklogSource`."""

    def __init__(self, choose: Random, *, is_typed: bool = False, is_of_sparklog: bool = False) -> None:
        self._choose = choose
        self._is_typed = is_typed
        self._is_of_sparklog = is_of_sparklog
        self._lineage = 0
        self.topic_number = 0
        self.batches: list[StoredBatch] = []
        self.epochs: list[tuple[int, int]] = [(0, 0)]
        """Leader epochs with their first offsets, as Kafka keeps them beside the log."""
        self.start = self.end = self.epoch = 0
        self.open: dict[int, int] = {}
        """First offset of each open transaction, by producer."""
        self.aborted: list[tuple[int, int, int]] = []
        """Producer, first offset and offset of the marker of aborted transactions."""
        self.is_damaged = False
        """True: the next answer is damaged on its way."""
        self.is_silent = False
        """True: the next fetch is not answered."""

    def hidden_topics(self, names: Sequence[str]) -> set[str]:
        return set()

    # -- its life

    def produce(self, count: int, producer_id: int = -1) -> None:
        self._lineage += 1
        self.put([self._value(i) for i in range(count)], producer_id)

    def put(self, records: Sequence[bytes], producer_id: int = -1) -> None:
        """Append a batch of records with these values."""
        values = dict(enumerate(records, self.end))
        if producer_id >= 0:
            self.open.setdefault(producer_id, self.end)
        codec = self._choose.randrange(5)
        last = self.end + len(records) - 1
        self.batches.append(StoredBatch(self.end, last, self.epoch, producer_id, values, b"", codec))
        self.end += len(records)

    def _value(self, number: int) -> bytes:
        value = b"%d-%d" % (self._lineage, number)
        forms = (b'{"a":"%s"}', b'{"a":"%s"}', b'{"a":"%s","b":1}', b'{"a":"%s","a":0}') if self._is_typed else (b"%s",)
        return self._choose.choice(forms) % value

    def finish(self, producer_id: int, commits: bool) -> None:
        first = self.open.pop(producer_id)
        if not commits:
            self.aborted.append((producer_id, first, self.end))
        key = COMMIT if commits else ABORT
        self.batches.append(StoredBatch(self.end, self.end, self.epoch, producer_id, {}, key, 0))
        self.end += 1

    def compact(self) -> None:
        """Remove some records below the last stable offset, and batches without records. The last batch is not
        compacted, as those of the active segment."""
        kept = []
        for batch in self.batches:
            if batch.last >= self.stable or batch.marker or batch is self.batches[-1]:
                kept.append(batch)
                continue
            values = {offset: value for offset, value in batch.values.items() if self._choose.random() < 0.7}
            if values or self._choose.random() < 0.5:  # a producer's last batch stays without records
                kept.append(batch._replace(values=values))
        self.batches = kept

    def retain(self) -> None:
        """Delete records at the beginning, at most up to the last stable offset."""
        self.start = self._choose.randrange(self.start, self.stable + 1)
        self.batches = [batch for batch in self.batches if batch.last >= self.start]
        earlier = [epoch for epoch, first in self.epochs if first <= self.start]
        self.epochs = [(earlier[-1], self.start), *((e, first) for e, first in self.epochs if first > self.start)]

    def elect(self, *, is_clean: bool) -> None:
        """Elect another leader, which may lack records."""
        if not is_clean:
            self._truncate(self._choose.randrange(self.start, self.end + 1))
        self.epoch += 1
        self.epochs = [(epoch, first) for epoch, first in self.epochs if first < self.end]
        self.epochs.append((self.epoch, self.end))

    def elect_shorter(self, end: int) -> None:
        """Elect a leader whose log ends at `end`, in another epoch."""
        self._truncate(end)
        self.elect(is_clean=True)

    def make_again(self) -> None:
        """Delete the topic, and create it again."""
        self.topic_number += 1
        self.start = self.end = self.epoch = 0
        self.batches, self.aborted, self.epochs = [], [], [(0, 0)]
        self.open.clear()

    def _truncate(self, end: int) -> None:
        cut = [batch for batch in self.batches if batch.base < end]
        if cut and cut[-1].last >= end:
            cut.pop()  # whole batches alone
        self.batches = cut
        self.end = max(self.start, cut[-1].last + 1 if cut else self.start)
        self.aborted = [one for one in self.aborted if one[2] < self.end]
        self.open = {}
        for batch in self.batches:
            if batch.marker:
                self.open.pop(batch.producer_id, None)
            elif batch.producer_id >= 0:
                self.open.setdefault(batch.producer_id, batch.base)

    @property
    def stable(self) -> int:
        return max(self.start, min([self.end, *self.open.values()]))

    def committed(self) -> dict[int, bytes]:
        """Values of the committed records, by offset."""
        return {
            offset: value
            for batch in self.batches
            for offset, value in batch.values.items()
            if self.start <= offset < self.stable
            and not any(p == batch.producer_id and first <= batch.base < end for p, first, end in self.aborted)
        }

    # -- its answers

    def topics(self, names: object = None) -> dict[str, SourceTopic]:
        return {TOPIC: SourceTopic(TOPIC, f"id{self.topic_number}", (SourcePartition(1, self.epoch),), False)}

    def leader(self, topics: Mapping[str, SourceTopic], tp: TopicPartition) -> Endpoint | None:
        return BROKER if tp.topic in topics else None

    def bounds(self, topics: object, tps: Iterable[TopicPartition]) -> dict[TopicPartition, SourceBounds]:
        return {tp: SourceBounds(self.start, self.end, self.stable) for tp in tps}

    def epoch_ends(self, topics: object, epochs: Mapping[TopicPartition, int]) -> dict[TopicPartition, EpochAnswer]:
        return {tp: self._epoch_end(epoch) for tp, epoch in epochs.items()}

    def _epoch_end(self, epoch: int) -> EpochAnswer:
        if epoch > self.epochs[-1][0]:
            return EpochAnswer(-1, -1)
        later = [first for e, first in self.epochs if e > epoch]
        earlier = [e for e, _ in self.epochs if e <= epoch]
        return EpochAnswer(earlier[-1] if earlier else epoch, min(later, default=self.end))

    def fetch(
        self, broker: Endpoint, positions: Mapping[TopicPartition, tuple[int, int, int]], *, wait_ms: int
    ) -> dict[TopicPartition, FetchedPartition]:
        if self.is_silent:
            self.is_silent = False
            raise RequestTimedOutError("the source does not answer")
        position, leader_epoch, _ = positions[TP]
        code = 0
        if leader_epoch != self.epoch:
            code = Kafka.FENCED_LEADER_EPOCH if leader_epoch < self.epoch else Kafka.UNKNOWN_LEADER_EPOCH
        elif not self.start <= position <= self.end:
            code = Kafka.OFFSET_OUT_OF_RANGE
        if code:
            out_of_range = code == Kafka.OFFSET_OUT_OF_RANGE
            return {TP: FetchedPartition(source_error(code, "t-0"), out_of_range, -1, -1, None, NO_RECORDS)}
        if self._is_of_sparklog:
            return {TP: self._stored_batches(position)}
        data = b"".join(b.encoded() for b in self.batches if b.last >= position and b.base < self.stable)
        data = data[: max(ANSWER_BYTES, self._choose.randrange(2 * ANSWER_BYTES))]
        if self.is_damaged and data:
            self.is_damaged = False
            at = self._choose.randrange(len(data))
            data = data[:at] + bytes([data[at] ^ (1 << self._choose.randrange(8))]) + data[at + 1 :]
        aborted = tuple(AbortedTransaction(p, first) for p, first, end in self.aborted if end >= position)
        return {
            TP: FetchedPartition(
                None, False, self.end, self.stable, None, KafkaRecords(memoryview(data), self.stable, aborted)
            )
        }

    def _stored_batches(self, position: int) -> FetchedPartition:
        """Whole batches, of which the last one can be damaged behind its stamp, which the checksum does not cover."""
        data, limit = b"", self._choose.randrange(2 * ANSWER_BYTES)
        for batch in self.batches:
            if batch.last >= position and batch.last < self.stable and (not data or len(data) < limit):
                stored = batch.stored()
                data += stored
        if self.is_damaged and data:
            self.is_damaged = False
            behind = decode_header(stored).stamp_position + STAMP_CHARS
            at = len(data) - self._choose.randrange(1, len(stored) - behind)
            data = data[:at] + bytes([data[at] ^ (1 << self._choose.randrange(8))]) + data[at + 1 :]
        aborted = tuple(AbortedBatches(p, first, end) for p, first, end in self.aborted if end >= position)
        batches = SourceBatches(memoryview(data), self.stable, aborted, ENVELOPE, None)
        return FetchedPartition(None, False, self.end, self.stable, None, batches)


class SimulatedLog:
    """The partition here; in the place of `LogSide`. It checks each append against the source."""

    def __init__(self, source: SimulatedSource, *, checks_end: bool, checks_refused_end: bool = True) -> None:
        self._source = source
        self._checks_end = checks_end
        self._checks_refused_end = checks_refused_end
        self.start = self.end = 0
        self.epoch, self.schema_id = NO_EPOCH, NO_SCHEMA
        self.values: dict[int, bytes] = {}
        """Values by offset; of a typed topic those of the source, of which the rows are."""
        self.refused: dict[int, bytes] = {}
        self.refused_end, self.refused_epoch = 0, NO_EPOCH
        self.topic_number = source.topic_number
        self.fault = ""
        """Step at which the next append kills the worker."""

    def ends(self, tps: Iterable[TopicPartition]) -> dict[TopicPartition, MirroredEnd]:
        return {tp: MirroredEnd(self.start, self.end, self.epoch, -1, self.schema_id) for tp in tps}

    def refused_logs(self, ends: Mapping[TopicPartition, int]) -> dict[TopicPartition, RefusedLog]:
        ahead = frozenset(offset for offset in self.refused if offset >= ends[TP])
        return {TP: RefusedLog(0, self.refused_end, self.refused_epoch, len(self.refused), ahead)}

    def append_refused(
        self, appends: Mapping[TopicPartition, PlacedAppend]
    ) -> dict[TopicPartition, SparklogError | None]:
        self._die("before-refused")
        one = appends[TP]
        if self._checks_refused_end and one.offset != self.refused_end:
            return {TP: OffsetOutOfRangeError("the log of refused records ends elsewhere")}
        for data in one.batches:
            header = decode_header(data)
            rows, offsets = decode_rows(data, REFUSED_SCHEMA, header)
            assert offsets is not None
            if rows.column("offset").to_pylist() != offsets.tolist():
                raise Violation("a refused record stands at another offset than at the source")
            numbers = rows.column("number").to_pylist()
            if numbers != list(range(len(self.refused) + 1, len(self.refused) + 1 + len(numbers))):
                raise Violation(f"the refused records have the numbers {numbers} after {len(self.refused)}")
            self._keep(self.refused, offsets.tolist(), rows.column("value").to_pylist())
            self.refused_end, self.refused_epoch = header.last_offset + 1, header.base_sequence
        self._die("after-refused")
        return {TP: None}

    def _die(self, step: str) -> None:
        if self.fault == step:
            self.fault = ""
            raise InjectedFault

    def append(self, appends: Mapping[TopicPartition, PlacedAppend]) -> dict[TopicPartition, SparklogError | None]:
        self._die("before")
        if TP not in appends:
            return {}
        one = appends[TP]
        if self._checks_end and one.offset != self.end:
            return {TP: OffsetOutOfRangeError("the log ends elsewhere")}
        for data in one.batches:
            self._store(data)
        self._die("after")
        return {TP: None}

    def _store(self, data: memoryview) -> None:
        header = decode_header(data)
        rows, offsets = decode_rows(data, COLUMNS.get(header.schema_id, ENVELOPE_SCHEMA), header)
        if header.schema_id in COLUMNS:
            texts = [{name: v for name, v in row.items() if v is not None} for row in rows.to_pylist()]
            values = [json.dumps(text, separators=(",", ":")).encode() for text in texts]
        else:
            values = rows.column("value").to_pylist()
        self._keep(self.values, row_offsets(header, offsets).tolist(), values)
        self.end, self.epoch, self.schema_id = header.last_offset + 1, header.base_sequence, header.schema_id

    def _keep(self, values: dict[int, bytes], offsets: list[int], new: list[bytes]) -> None:
        """Store values, after a check of all promises. Raises Violation."""
        truth = self._source.committed()
        if self.topic_number != self._source.topic_number:
            raise Violation("records of another topic")
        for offset, value in zip(offsets, new, strict=True):
            if offset in self.values or offset in self.refused:
                raise Violation(f"offset {offset} is stored twice")
            if truth.get(offset) != value:
                raise Violation(f"offset {offset} has {value!r}, the source {truth.get(offset)!r}")
            values[offset] = value
        for offset, value in [*self.values.items(), *self.refused.items()]:
            if truth.get(offset, value) != value:
                raise Violation(f"the source has other records below {self.end}, at {offset}")


class Life:
    """Mirrors of one topic, from a seed. Two workers share the topic, and die at times."""

    def __init__(self, seed: int, *, is_typed: bool = False, is_of_sparklog: bool = False, **checks: bool) -> None:
        """`checks`: safeguards of the log (`checks_end`, `checks_refused_end`)."""
        self._choose = Random(seed)
        self.source = SimulatedSource(self._choose, is_typed=is_typed, is_of_sparklog=is_of_sparklog)
        self.log = SimulatedLog(self.source, **{"checks_end": True, **checks})
        self._is_typed = is_typed
        self._newest_columns = min(COLUMNS)
        self.now_s = 0.0
        self.paused = ""
        self.lost: list[tuple[int, int]] = []
        self._idle_steps = 0
        """Number of steps in which no worker runs."""
        self._workers = [self.worker(), self.worker()]

    def worker(self, bytes_per_second: int = 0) -> MirrorSync:
        decisions = Decisions(
            self._pause,
            self._note_lost,
            self._begin_at,
            lambda name, count: None,
            lambda name, schema: {},
            lambda name, key_schema: None,
        )
        source: Any = self.source
        log: Any = self.log
        return MirrorSync(source, log, decisions, bytes_per_second=bytes_per_second, clock_s=lambda: self.now_s)

    def _pause(self, name: str, reason: str) -> None:
        self.paused = reason

    def _note_lost(self, name: str, partition: int, first: int, end: int) -> None:
        self.lost.append((first, end))

    def _begin_at(self, tp: TopicPartition, offset: int) -> None:
        self.log.start = offset

    def round(self, number: int, columns: int = 0) -> None:
        """Let a worker do one round; it may die in it. `columns`: version of the columns that it knows; 0: any that
        exists."""
        try:
            self.round_of(self._workers[number], columns)
        except InjectedFault:
            self._workers[number] = self.worker()

    def round_of(self, worker: MirrorSync, columns: int = 0) -> None:
        """Let a worker do one round; see `round`. Raises InjectedFault."""
        settings = MirroredTopic(TOPIC, MirrorDefinition("m", "kafka://s:1"), "id0", self.paused, ())
        known = columns or self._choose.randint(min(COLUMNS), self._newest_columns)
        typed = typed_target(known) if self._is_typed else None
        worker.use({TOPIC: Mirrored(settings, "id", 1, INFLATED_BYTES_MAX, typed, ENVELOPE)})
        worker.round(0)

    def step(self) -> None:
        """Let something happen."""
        choose, source = self._choose, self.source
        self.now_s += choose.random() * 10
        action = choose.random()
        if action < 0.35:
            source.produce(choose.randrange(1, 9))
        elif action < 0.5:
            source.produce(choose.randrange(1, 5), producer_id=choose.randrange(3))
        elif action < 0.65 and source.open:
            source.finish(choose.choice(sorted(source.open)), commits=choose.random() < 0.5)
        elif action < 0.72:
            source.compact()
        elif action < 0.77:
            source.retain()
        elif action < 0.79:
            source.elect(is_clean=True)
        elif action < 0.81:
            source.elect(is_clean=False)
            source.produce(choose.randrange(1, 20))
        elif action < 0.815:
            source.make_again()
        elif action < 0.85:
            source.is_damaged = True
        elif action < 0.90:
            self.log.fault = choose.choice(FAULTS if self._is_typed else FAULTS[:2])
        elif action < 0.91:
            self._newest_columns = max(COLUMNS)
        if choose.random() < 0.05:
            self._idle_steps = 10
        self._idle_steps -= 1
        for _ in range(choose.randrange(4) if self._idle_steps < 0 else 0):
            self.round(choose.randrange(2))

    def wait(self) -> None:
        """Let the pause after an error pass."""
        self.now_s += 20

    def settle(self, columns: int = 0) -> None:
        """Let the mirror reach the source's end, and compare. `columns`: see `round`."""
        self.source.is_damaged, self.log.fault = False, ""
        for producer_id in sorted(self.source.open):
            self.source.finish(producer_id, commits=True)
        for _ in range(60):
            if self.paused or self.log.end == self.source.stable:
                break
            self.wait()
            self.round(self._choose.randrange(2), columns)
        if self.paused:
            return
        if self.log.end != self.source.stable:
            raise Violation(f"the log ends at {self.log.end}, the source at {self.source.stable}")
        missing = {
            offset
            for offset in self.source.committed()
            if offset not in self.log.values
            and offset not in self.log.refused
            and not any(first <= offset < end for first, end in self.lost)
        }
        if missing:
            raise Violation(f"the records at {sorted(missing)} are missing")


def typed_target(columns: int) -> TypedTarget:
    """The typed topic with the columns of a version, as one worker knows it."""
    limits = RefusedTarget(REFUSED_SCHEMA_ID, 1 << 20, 1 << 24)
    return TypedTarget(
        TOPIC,
        COLUMNS[columns],
        columns,
        (),
        "",
        "",
        False,
        None,
        read_json,
        parse_rows,
        None,
        False,
        1 << 20,
        1 << 24,
        limits,
        NO_LIMIT,
    )


def live(seed: int, steps: int, **options: bool) -> Life:
    """Run a life. `options`: those of `Life`. Raises Violation."""
    life = Life(seed, **options)
    for _ in range(steps):
        life.step()
    life.settle()
    return life
