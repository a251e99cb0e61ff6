"""Targets that need no broker, called in a child: they read, append, open, compact and copy a hostile batch.

Each returns a `Found`: the read rows, by offset, and the refusals with a typed error. The judge is in `oracle.py`.
"""

from __future__ import annotations

import logging
import shutil
import tempfile
from collections.abc import Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa

from sparklog.client.consumer.fetch_answer import headers_of
from sparklog.client.net.topic_info import TopicInfo
from sparklog.client.reading.consumed import ConsumedBatch, Projection, decode_one, records_of
from sparklog.client.reading.isolation import NO_ABORTED
from sparklog.client.reading.remote_reader import read_remote
from sparklog.errors import CorruptBatchError, DeserializationError, SparklogError
from sparklog.format.batch import decode_header, message_of
from sparklog.format.compressed_check import ROWS_MIN
from sparklog.log.compaction.offset_map import OffsetMap
from sparklog.log.housekeeping import tier_run
from sparklog.log.housekeeping.cleaner import compact_log, due_for_compaction
from sparklog.log.model.log_config import LogConfig, LogOwner
from sparklog.log.partition_log import PartitionLog
from sparklog.log.tiering.columns import encode_columns
from sparklog.log.tiering.object_store import ObjectStore
from sparklog.log.tiering.read_cache import ReadCache
from sparklog.log.tiering.remote_segment import RemoteAccess
from sparklog.log.tiering.state import encode_segment
from sparklog.types import Record, TopicPartition
from tests.campaigns.fuzz.cases import ENVELOPE_ID, SCHEMAS
from tests.campaigns.fuzz.planted import Rows, honest, plant
from tests.campaigns.fuzz.values import columns_of
from tests.golden.make_golden import BASE_MS
from tests.support.logs import LimitedFiles, ManualClock

TP = TopicPartition("events", 0)
READ_BYTES = 1 << 20
SETTINGS: dict[str, Any] = {
    "cleanup.policy": "compact",
    "min.cleanable.dirty.ratio": 0,
    "file.delete.delay.ms": 0,
    "index.interval.bytes": 1,
}
TIERED: dict[str, Any] = {
    "index.interval.bytes": 1,
    "retention.ms": -1,
    "remote.storage.enable": True,
    "local.retention.bytes": 0,
    "file.delete.delay.ms": 0,
}


class Reading(NamedTuple):
    """Result of one way of reading. `columns`: the schema's columns that were read, by number."""

    way: str
    columns: tuple[int, ...]
    rows: Rows


class Found(NamedTuple):
    """`refused`: texts of typed errors. `facts`: further observations of a target."""

    readings: list[Reading]
    refused: list[str]
    facts: dict[str, Any]


@cache
def _info(schema_id: int) -> TopicInfo:
    envelope = schema_id == ENVELOPE_ID
    return TopicInfo(
        name="events",
        topic_id="0" * 32,
        kind="envelope" if envelope else "typed",
        partitions=1,
        schema_id=schema_id,
        schemas={schema_id: SCHEMAS[schema_id]},
        key_columns=(),
        timestamp_column=None if envelope else "at",
        configs={},
        created_ms=0,
        partition_states=(),
    )


def _owner(schema_id: int) -> LogOwner:
    if schema_id == ENVELOPE_ID:
        return LogOwner("events", "0" * 32, 0, "timestamp", ("key",), ("value",))
    return LogOwner("events", "0" * 32, 0, "at", ("whole", "text"))


def wanted_columns(schema_id: int) -> list[tuple[int, ...]]:
    """The column selections of successive reads: all, and some that leave others out."""
    everything = tuple(range(len(SCHEMAS[schema_id])))
    return [everything, (1,), (3,)] if schema_id == ENVELOPE_ID else [everything, (4, 8), (14,)]


class Reader:
    """Decodes batches like a consumer, and notes refusals."""

    def __init__(self, schema_id: int, way: str) -> None:
        self._schema_id = schema_id
        self._way = way
        self._rows: dict[tuple[int, ...], Rows] = {c: {} for c in wanted_columns(schema_id)}
        self.refused: list[str] = []

    @property
    def readings(self) -> list[Reading]:
        return [Reading(self._way, columns, rows) for columns, rows in self._rows.items()]

    def projection(self, columns: tuple[int, ...]) -> Projection:
        names = [SCHEMAS[self._schema_id].names[c] for c in columns]
        return Projection(_info(self._schema_id), None if len(columns) > 2 else names)

    def take(self, data: bytes) -> None:
        """Decodes the batches that fill `data`, in every way."""
        buffer = pa.py_buffer(data)
        view = memoryview(buffer)
        headers, damage = headers_of(buffer)
        if damage is not None:
            self.refused.append(str(damage))
        for columns, rows in self._rows.items():
            projection = self.projection(columns)
            for position, header in headers:
                try:
                    batch = decode_one(
                        buffer,
                        view,
                        position,
                        header,
                        TP,
                        projection,
                        0,
                        None,
                        check_crcs=True,
                        aborted=NO_ABORTED,
                    )
                    if batch is not None:
                        self.note(rows, batch)
                except SparklogError as e:
                    self.refused.append(f"{type(e).__name__}: {e}")

    @staticmethod
    def records(batch: ConsumedBatch) -> list[Record]:
        """Those of all rows but the ones of a typed topic that hold a value which Python has no object for."""
        found: list[Record] = []
        while True:
            try:
                return found + records_of(batch)
            except DeserializationError as e:
                assert not batch.is_envelope
                row = batch.rows_below(e.offset)
                assert batch.offset_at(row) == e.offset
                found += records_of(batch.slice(0, row))
                batch = batch.slice(row + 1, batch.num_rows)

    def note(self, rows: Rows, batch: ConsumedBatch) -> None:
        """Looks at a batch in every way there is; they must not differ."""
        found = list(zip(*columns_of(batch.data), strict=True))
        offsets = batch.offsets().tolist()
        records = self.records(batch)
        assert len(found) == len(offsets) == len(batch.timestamps_ms())
        if batch.is_envelope:
            assert [r.offset for r in records] == offsets
        else:
            assert {r.offset for r in records} <= set(offsets)
        if batch.is_envelope and batch.data.num_columns == 4:
            assert [(r.key, r.value) for r in records] == [row[:2] for row in found]
        middle = len(offsets) // 2
        assert list(zip(*columns_of(batch.slice(middle, len(offsets)).data), strict=True)) == found[middle:]
        rows.update(zip(offsets, found, strict=True))


def decode(schema_id: int, hostile: bytes, sealed: bool) -> Found:
    """Handle an answer's payload like a consumer."""
    reader = Reader(schema_id, "decode")
    reader.take(honest(schema_id, 0, 0)[0] + hostile)
    reader.take(hostile + honest(schema_id, 1, 1 << 40)[0])
    return Found(reader.readings, reader.refused, {})


# --- logs ---


class _Directory:
    """A temporary directory of a case."""

    def __init__(self) -> None:
        self.path = Path(tempfile.mkdtemp(dir=Path.cwd()))

    def __enter__(self) -> Path:
        return self.path

    def __exit__(self, *_: object) -> None:
        shutil.rmtree(self.path)


def _open(
    root: Path, schema_id: int, settings: dict[str, Any], *, clean: bool, remote: RemoteAccess | None = None
) -> PartitionLog:
    owner = _owner(schema_id)
    more: dict[str, Any] = {} if remote is None else {"remote": remote}
    log = PartitionLog.open(
        root / owner.directory_name,
        owner,
        LogConfig.from_settings(settings),
        SCHEMAS.__getitem__,
        files=LimitedFiles(),
        clock=ManualClock(BASE_MS + 10_000),
        clean=clean,
        newest_schema_id=schema_id,
        **more,
    )
    log.raise_high_watermark(log.log_end_offset)
    return log


def _read_log(log: PartitionLog, schema_id: int, way: str) -> Reader:
    """All of a log, batch by batch, as a fetch gives them."""
    reader = Reader(schema_id, way)
    offset = log.log_start_offset
    try:
        while (piece := log.reader.read(offset, READ_BYTES)) is not None:
            try:
                reader.take(piece.read())
                assert piece.next_offset > offset
                offset = piece.next_offset
            finally:
                piece.release()
    except SparklogError as e:  # where one batch ends and the next begins cannot be told
        reader.refused.append(f"{type(e).__name__}: {e}")
    return reader


def is_sampled(stored: bytes) -> bool:
    """True for a compressed batch of which the append decompresses the necessary buffers only: Arrow refuses the others
    at the readers (`compressed_check`)."""
    header = decode_header(stored, 0)
    return header.record_count >= ROWS_MIN and message_of(stored, 0, header).compression != "none"


_appending: dict[int, tuple[PartitionLog, int]] = {}
_LOG_CASES = 200


def append(schema_id: int, hostile: bytes, sealed: bool) -> Found:
    """Handle a batch like the broker; accepted batches are read."""
    log, cases = _appending.get(schema_id, (None, 0))
    if log is None or cases >= _LOG_CASES:
        log, cases = (
            _open(Path(tempfile.mkdtemp(dir=Path.cwd())), schema_id, {"index.interval.bytes": 1}, clean=True),
            0,
        )
    _appending[schema_id] = log, cases + 1
    start = log.log_end_offset
    refused: list[str] = []
    stored = b""
    try:
        info = log.appender.append(bytearray(hostile))
    except SparklogError as e:
        refused.append(f"{type(e).__name__}: {e}")
        assert log.log_end_offset == start
    else:
        log.raise_high_watermark(log.log_end_offset)
        piece = log.reader.read(info.base_offset, READ_BYTES)
        assert piece is not None
        stored = piece.read()
        piece.release()
    reader = Reader(schema_id, "append")
    reader.take(stored)
    if stored and not is_sampled(stored):
        assert not reader.refused, f"taken, and then refused: {reader.refused}"
    log.appender.append(bytearray(honest(schema_id, 1, 0)[0]))  # the log still takes what is right
    log.raise_high_watermark(log.log_end_offset)
    return Found(reader.readings, refused, {"stored": stored})


def recovery(schema_id: int, hostile: bytes, sealed: bool) -> Found:
    """A start on files from elsewhere, after a crash and after a clean stop."""
    readings, refused = [], []
    facts = {}
    for clean in (False, True):
        with _Directory() as root:
            plant(root / "events-0", schema_id, hostile, sealed=sealed)
            try:
                log = _open(root, schema_id, {"index.interval.bytes": 1}, clean=clean)
                reader = _read_log(log, schema_id, f"recovery, clean={clean}")
                log.appender.append(bytearray(honest(schema_id, 1, 0)[0]))
                log.close()
            except SparklogError as e:
                refused.append(f"{type(e).__name__}: {e}")
                facts["offline"] = True
                continue
            readings += reader.readings
            refused += reader.refused
    return Found(readings, refused, facts)


def compaction(schema_id: int, hostile: bytes, sealed: bool) -> Found:
    """Compact a log with the batch in it; the result is read."""
    logging.disable(logging.CRITICAL)
    with _Directory() as root:
        plant(root / "events-0", schema_id, hostile, sealed=sealed)
        try:
            log = _open(root, schema_id, SETTINGS, clean=True)
        except SparklogError as e:
            return Found([], [f"{type(e).__name__}: {e}"], {"offline": True})
        facts = {}
        try:
            due = due_for_compaction(log)
            if due is not None:
                compact_log(due, OffsetMap(1 << 20))
        except SparklogError as e:
            facts["compaction"] = f"{type(e).__name__}: {e}"
        reader = _read_log(log, schema_id, "compaction")
        log.close()
        return Found(reader.readings, reader.refused, facts)


def tiering(schema_id: int, hostile: bytes, sealed: bool) -> Found:
    """The segment is copied to an object store, dropped here, and read there: by columns and through the broker's
    cache."""
    logging.disable(logging.CRITICAL)
    tier_run.encode_columns = partial(encode_columns, share_max=0)  # type: ignore[attr-defined]  # small as they are here
    with _Directory() as root:
        plant(root / "events-0", schema_id, hostile, sealed=True)
        store = ObjectStore(f"file://{root}/store")
        remote = RemoteAccess(store, ReadCache(root / "cache", 1 << 30))
        try:
            log = _open(root, schema_id, TIERED, clean=True, remote=remote)
        except SparklogError as e:
            return Found([], [f"{type(e).__name__}: {e}"], {"offline": True})
        facts: dict[str, Any] = {}
        try:
            log.flusher.flush()
            tier_run.tier_log(log, store, ManualClock(BASE_MS + 20_000), tier_run.Role.LEADER)
            log.retention.remove_dropped()
        except SparklogError as e:
            facts["tiering"] = f"{type(e).__name__}: {e}"
        segments = [encode_segment(s) for s in log.tier.state.finished]
        facts["copied"] = len(segments)
        reader = _read_log(log, schema_id, "tiering, through the broker")
        by_columns = _read_by_columns(store.url, segments, schema_id)
        log.close()
        return Found(reader.readings + by_columns.readings, reader.refused + by_columns.refused, facts)


def _read_by_columns(url: str, segments: Sequence[bytes], schema_id: int) -> Reader:
    reader = Reader(schema_id, "tiering, by columns")
    for columns, rows in reader._rows.items():
        projection = reader.projection(columns)
        try:
            for header, data in read_remote(url, segments, projection, 0, 1 << 62):
                batch = decode_one(
                    data,
                    memoryview(data),
                    0,
                    header,
                    TP,
                    projection,
                    0,
                    None,
                    check_crcs=False,
                    aborted=NO_ABORTED,
                )
                if batch is not None:
                    reader.note(rows, batch)
        except SparklogError as e:
            if not isinstance(e, CorruptBatchError):
                reader.refused.append(f"not damage: {e}")
            reader.refused.append(f"{type(e).__name__}: {e}")
    return reader
