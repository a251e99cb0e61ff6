"""A partition holds a table's rows in the table's order: every way in, every partitioner, every size of a piece."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pandas as pd
import polars as pl
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark_sparklog.options.options import parse_sink_options
from pyspark_sparklog.sink.sink_task import SinkTask

from sparklog.cli.input import InputOptions, open_input
from sparklog.client.net.topic_info import TopicInfo
from sparklog.client.producer.encoding import BatchEncoder
from sparklog.client.producer.partitioner import StickyPartition, partition_for_key
from sparklog.client.producer.pieces import pieces_of
from sparklog.client.producer.rows import rows_of
from sparklog.format.batch import decode_batch
from tests.support.clients import info
from tests.support.small_reads import SmallReads

TYPED = pa.schema([("key", pa.string()), ("value", pa.binary())])
Row = tuple[bytes | None, int | None, bytes]
KEYS = st.none() | st.sampled_from([b"a", b"b", b"long key " * 200])
Door = Callable[[pa.Table, list[int]], Iterable[Any]]


def _chunks(table: pa.Table, cuts: list[int]) -> Iterator[pa.Table]:
    edges = [0, *sorted(c % (table.num_rows + 1) for c in cuts), table.num_rows]
    yield from (table.slice(a, b - a) for a, b in pairwise(edges))


def _by_spark(table: pa.Table, cuts: list[int]) -> Iterator[Any]:
    """The tables that a task of the sink hands to its producer, of the batches that Spark gives it."""
    options = parse_sink_options({"topic": "t", "sparklog.bootstrap.servers": "none:1"}, streaming=False)
    options = replace(options, producer={"batch.size.bytes": 300})
    typed = table.schema.equals(TYPED)
    task = SinkTask(options, envelope=not typed, keyed=typed, publisher=None)  # type: ignore[arg-type]
    batches = (b for chunk in _chunks(table, cuts) for b in chunk.to_batches())
    yield from (piece.data for piece in task._gather_by_topic(batches, spread_bytes=700))


def _by_command(table: pa.Table, cuts: list[int]) -> Iterator[Any]:
    """The tables that `sparklog produce` sends, of a CSV file that is read in small blocks."""
    text = "".join(
        ",".join("" if v is None else v.decode() if isinstance(v, bytes) else str(v) for v in row.values()) + "\n"
        for row in table.to_pylist()
    )
    data = ",".join(table.column_names) + "\n" + text
    schema = TYPED if table.schema.equals(TYPED) else None
    file = SmallReads(data.encode(), max(2048, len(data) // 3))
    yield from (c.table for c in open_input(None, file, "csv", InputOptions(schema)).chunks)


DOORS: dict[str, Door] = {
    "table": lambda t, cuts: [t],
    "chunked table": lambda t, cuts: [pa.concat_tables(_chunks(t, cuts))],
    "calls": _chunks,
    "batches": lambda t, cuts: t.to_batches(),
    "columns": lambda t, cuts: [t.to_pydict()],
    "rows": lambda t, cuts: [t.to_pylist()],
    "pandas": lambda t, cuts: [pd.DataFrame({n: pd.Series(v, dtype=object) for n, v in t.to_pydict().items()})],
    "polars": lambda t, cuts: [pl.from_arrow(t)],
    "spark": _by_spark,
    "command": _by_command,
}


def _stored(sent: Iterable[Any], topic: TopicInfo, piece_bytes: int, partition: int | None) -> dict[int, pa.Table]:
    """The rows of each partition after `sent` was sent."""
    encoder, sticky = BatchEncoder(), StickyPartition(topic.partitions, start=0)
    logs: dict[int, list[pa.RecordBatch]] = {p: [] for p in range(topic.partitions)}
    for data in sent:
        rows = rows_of(data, topic, partition)
        if rows.table.num_rows:
            for chosen, piece in pieces_of(rows, topic, sticky, piece_bytes, spread_bytes=(500, 2000)):
                for encoded in encoder.encode_within(piece, topic):
                    logs[chosen].append(decode_batch(encoded.payload, topic.schema))
    return {p: pa.Table.from_batches(batches, topic.schema) for p, batches in logs.items()}


@st.composite
def tables(draw: st.DrawFn, *, typed: bool, partitions: int) -> pa.Table:
    named = st.none() | st.integers(0, partitions - 1)
    rows = draw(st.lists(st.tuples(KEYS, named, st.integers(0, 60)), min_size=1, max_size=60))
    values = [b"%d " % i + b"x" * size for i, (_, _, size) in enumerate(rows)]
    columns: dict[str, Any] = {"key": pa.array([k for k, _, _ in rows], pa.string() if typed else pa.binary())}
    columns["value"] = pa.array(values, pa.binary())
    if not typed and draw(st.booleans()):
        columns["partition"] = pa.array([p for _, p, _ in rows], pa.int32())
    return pa.table(columns)


def _numbers(table: pa.Table) -> list[int]:
    return [int(v.split()[0]) for v in table.column("value").to_pylist()]


@given(st.data(), st.booleans())
@settings(max_examples=40)
def test_a_partition_keeps_the_order_of_its_rows(data: st.DataObject, typed: bool) -> None:
    partitions = data.draw(st.integers(1, 5))
    table = data.draw(tables(typed=typed, partitions=partitions))
    cuts = data.draw(st.lists(st.integers(0, 60), max_size=4))
    piece_bytes = data.draw(st.sampled_from([1, 100, 1000, 1 << 20]))
    partition = data.draw(st.none() | st.integers(0, partitions - 1))
    keys = ("key",) if typed and data.draw(st.booleans()) else ()
    topic = info(TYPED, partitions, keys) if typed else info(partitions=partitions)
    given_rows = table.to_pylist()
    for name, door in DOORS.items():
        logs = _stored(door(table, cuts), topic, piece_bytes, partition)
        numbers = {p: _numbers(t) for p, t in logs.items()}
        assert all(found == sorted(found) for found in numbers.values()), (name, numbers)
        assert sorted(n for found in numbers.values() for n in found) == list(range(table.num_rows)), name
        for p, found in numbers.items():
            for row in (given_rows[n] for n in found):
                explicit = row.get("partition") if partition is None else partition
                if explicit is not None:
                    assert p == explicit, name
                elif row["key"] is not None and (keys or not typed):
                    key = row["key"].encode() if typed else row["key"]
                    assert p == partition_for_key(key, partitions), name


def test_rows_with_and_without_a_key_share_one_partition() -> None:
    data = pa.table({"key": [b"a", None, b"a", None], "value": [b"0", b"1", b"2", b"3"]})
    assert _numbers(_stored([data], info(partitions=1), 1 << 20, None)[0]) == [0, 1, 2, 3]


def test_keyless_rows_between_keyed_ones_are_spread() -> None:
    """A partition for a batch at a time, as of rows that all have no key."""
    keys = [b"a" if i % 2 else None for i in range(20_000)]
    data = pa.table({"key": pa.array(keys, pa.binary()), "value": [b"%d" % i + b" " * 100 for i in range(20_000)]})
    logs = _stored([data, data], info(partitions=3), 100_000, None)
    keyless = [sum(k is None for k in t.column("key").to_pylist()) for t in logs.values()]
    assert sum(keyless) == 20_000
    assert max(keyless) - min(keyless) < 3000
    assert StickyPartition(3, start=2).take_rows(5, 10, 30).tolist() == [2, 2, 2, 0, 0]
