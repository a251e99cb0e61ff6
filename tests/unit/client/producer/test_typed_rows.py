"""Rows of typed topics that come one by one."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparklog.client.net.topic_info import TopicInfo
from sparklog.client.producer.open_batch import OpenBatch
from sparklog.client.producer.rows import rows_of
from sparklog.client.producer.typed_rows import TypedTopic, typed_batch
from sparklog.errors import InvalidPartitionsError, SchemaMismatchError
from sparklog.types import TopicPartition

SIMPLE = pa.schema(
    [
        ("s", pa.string()),
        ("b", pa.binary()),
        ("n", pa.int32()),
        ("f", pa.float64()),
        ("at", pa.timestamp("us", "UTC")),
        ("local", pa.timestamp("us")),
        ("d", pa.date32()),
        ("o", pa.bool_()),
    ]
)
AT = dt.datetime(2026, 11, 27, 12, tzinfo=dt.UTC)


def info(schema: pa.Schema = SIMPLE, **other: Any) -> TopicInfo:
    given: dict[str, Any] = {"key_columns": (), "timestamp_column": None, "configs": {}, "partitions": 7} | other
    return TopicInfo("t", "id", "typed", given["partitions"], 5, {5: schema}, given["key_columns"],
                     given["timestamp_column"], given["configs"], 0, ())  # fmt: skip


def sent(topic: TopicInfo, *rows: Any) -> OpenBatch:
    state, batch = TypedTopic(topic, 1 << 20, []), OpenBatch(TopicPartition("t", 0))
    for row in rows:
        batch.values.append(state.checked(row, None, None, None, None)[0])
    return batch


COLUMNS: dict[str, st.SearchStrategy[Any]] = {
    "s": st.none() | st.text(max_size=5) | st.integers(),
    "b": st.none() | st.binary(max_size=5) | st.just(bytearray(b"x")) | st.just("eA=="),
    "n": st.none() | st.integers(-(2**33), 2**33) | st.booleans() | st.just(1.0) | st.just(np.int64(3)),
    "f": st.none() | st.floats() | st.integers(-(2**60), 2**60) | st.booleans() | st.decimals(),
    "at": st.none() | st.datetimes(timezones=st.just(dt.UTC)) | st.just("2026-01-01") | st.just(dt.date(2026, 1, 1)),
    "local": st.none() | st.datetimes() | st.just(AT),
    "d": st.none() | st.dates() | st.just(AT),
    "o": st.none() | st.booleans() | st.integers(0, 1),
}
VALUES = st.fixed_dictionaries({}, optional={**COLUMNS, "x": st.just(1)}) | st.fixed_dictionaries(COLUMNS)
USUAL = st.fixed_dictionaries(
    {
        "s": st.none() | st.text(max_size=5),
        "b": st.none() | st.binary(max_size=5),
        "n": st.none() | st.integers(-(2**31) - 1, 2**31),
        "f": st.none() | st.floats(),
        "at": st.none() | st.datetimes(timezones=st.just(dt.UTC)),
        "local": st.none() | st.datetimes(),
        "d": st.none() | st.dates(),
        "o": st.none() | st.booleans(),
    }
)
"""Rows whose values have the usual classes."""


@given(VALUES | USUAL, st.sampled_from([(), ("s",), ("n",), ("s", "n"), ("at", "b"), ("f",)]))
def test_a_row_is_taken_and_placed_as_send_batch_does_it(row: dict[str, Any], keys: tuple[str, ...]) -> None:
    topic = info(key_columns=keys)
    state = TypedTopic(topic, 1 << 20, [])
    try:
        expected = rows_of([row], topic, None)
    except (SchemaMismatchError, TypeError):
        with pytest.raises((SchemaMismatchError, TypeError)):
            state.checked(row, None, None, None, None)
        return
    for _ in range(2):  # the second time the partition is remembered
        taken, size, partition, rest = state.checked(row, None, None, None, None)
        assert rest is None
        assert partition == (None if expected.partition is None else int(expected.partition[0]))  # type: ignore[index]
        batch = OpenBatch(TopicPartition("t", 0))
        batch.values.append(taken)
        found = typed_batch(batch, topic)
        assert found.schema == SIMPLE
        assert pa.Table.from_batches([found]).equals(expected.table) or str(found.to_pylist()) == str(
            expected.table.to_pylist()
        )
        assert pa.ipc.get_record_batch_size(found) <= size + 256 * (1 + len(SIMPLE))


EIGHTHS = st.integers(-80, 80).map(lambda n: n / 8)
ALONE = pa.schema(
    [
        *(("f", pa.float32()), ("g", pa.float64()), ("price", pa.decimal128(10, 3))),
        *(("fs", pa.list_(pa.field("element", pa.float32()))), ("m", pa.map_(pa.string(), pa.int32()))),
        *(("at", pa.timestamp("us")), ("ats", pa.list_(pa.field("element", pa.timestamp("us"))))),
    ]
)
NUMBER = st.none() | EIGHTHS | EIGHTHS.map(Decimal) | EIGHTHS.map(np.float64) | st.integers(-10, 10)
MIDNIGHT = st.sampled_from([None, pd.NaT, dt.datetime(2026, 1, 1), np.datetime64("2026-01-01", "h"), pd.Timestamp(0)])
LONE_ROWS = st.fixed_dictionaries(
    {},
    optional={
        **dict.fromkeys(["f", "g", "price"], NUMBER),
        "fs": st.none() | st.lists(EIGHTHS, max_size=2) | st.just(np.ma.array([0.5, 1], mask=[False, True])),
        "m": st.sampled_from([None, {"a": 1}, [("b", 2)]]),
        "at": MIDNIGHT,
        "ats": st.none() | st.lists(MIDNIGHT, max_size=1),
    },
).filter(bool)


@given(st.lists(LONE_ROWS, min_size=1, max_size=4))
def test_rows_that_are_taken_alone_fit_into_one_batch(rows: list[dict[str, Any]]) -> None:
    """`send_batch` refuses some of these rows together, because their values are of several kinds."""
    topic = info(ALONE)
    expected = pa.concat_tables([rows_of([row], topic, None).table for row in rows])
    assert typed_batch(sent(topic, *rows), topic).to_pylist() == expected.to_pylist()


def test_a_decimal_that_a_double_cannot_hold_is_refused() -> None:
    state = TypedTopic(info(), 1 << 20, [])
    for text, message in (
        ("9007199254740993", "would become 9007199254740992"),
        ("0.12345678901234567890123", "would become 0.123"),
        ("NaN", "a decimal cannot hold"),
    ):
        with pytest.raises(SchemaMismatchError, match=f"column 'f'.*{message}"):
            state.checked({"f": Decimal(text)}, None, None, None, None)
    batch = sent(info(), {"f": Decimal("0.5")}, {"f": 0.1}, {"f": 3})
    assert typed_batch(batch, info()).column("f").to_pylist() == [0.5, 0.1, 3.0]


def test_rows_are_copies() -> None:
    row: dict[str, Any] = {"s": "a", "n": 1}
    nested = {"tags": ["x"], "price": Decimal("1.50")}
    schema = pa.schema([("tags", pa.list_(pa.string())), ("price", pa.decimal128(8, 2))])
    batch, other = sent(info(), row), sent(info(schema), nested)
    row["s"] = "changed"
    nested["tags"].append("y")  # type: ignore[attr-defined]
    assert batch.is_typed
    assert typed_batch(batch, info()).column("s").to_pylist() == ["a"]
    assert typed_batch(other, info(schema)).to_pylist() == [{"tags": ["x"], "price": Decimal("1.50")}]


def test_values_that_have_no_copy() -> None:
    content, schema = bytearray(b"old"), pa.schema([("b", pa.binary()), ("tags", pa.list_(pa.binary()))])
    batch = sent(info(schema), {"b": memoryview(content), "tags": [memoryview(content)]})
    content[:] = b"new"
    assert typed_batch(batch, info(schema)).to_pylist() == [{"b": b"old", "tags": [b"old"]}]


def test_a_batch_has_rows_of_two_schemas() -> None:
    newer = SIMPLE.append(pa.field("more", pa.int64()))
    batch = sent(info(), {"s": "old"})
    batch.values += sent(info(newer), {"s": "new", "more": 1}).values
    assert [r["more"] for r in typed_batch(batch, info(newer)).to_pylist()] == [None, 1]
    batch = sent(info(), {"s": "old"})
    assert typed_batch(batch, info(newer)).schema == newer


def test_times_of_rows() -> None:
    topic = info(timestamp_column="at")
    batch = sent(topic, {"at": AT}, {"at": None}, {"at": AT + dt.timedelta(seconds=1)})
    typed_batch(batch, topic)
    newest = 1_795_780_801_000_000
    assert list(batch.delivery.timestamps_us) == [newest - 1_000_000, newest, newest]  # type: ignore[arg-type]
    without = sent(topic, {"at": None})
    typed_batch(without, topic)
    assert without.delivery.timestamps_us is None


def test_wrong_calls() -> None:
    state = TypedTopic(info(key_columns=("s",)), 1 << 20, [])
    for value, more, message in (
        (b"x", {}, "typed .columns s, b.*a row is a dict of columns, not bytes; send.'t', .'s': "),
        (None, {}, "not NoneType"),
        ({}, {}, "rows without any column"),
        ({"s": "a"}, {"key": b"k"}, "key belongs to envelope topics; its key columns are s"),
        ({"s": "a"}, {"headers": [("a", b"")]}, "headers belongs"),
        ({"s": "a"}, {"timestamp_ms": 1}, "its timestamp column is none"),
        ({"s": "a", "zz": 1}, {}, "zz"),
        ({"s": "\ud800"}, {}, "surrogate|UTF-8|Unicode"),
    ):
        given = {"key": None, "headers": None, "timestamp_ms": None} | more
        with pytest.raises(SchemaMismatchError, match=message):
            state.checked(value, given["key"], given["headers"], given["timestamp_ms"], None)
    with pytest.raises(InvalidPartitionsError):
        state.checked({"s": "a"}, None, None, None, 9)
    compacted = info(key_columns=("s", "n"), configs={"cleanup.policy": "compact"})
    state = TypedTopic(compacted, 1 << 20, [])
    state.checked({"s": "a"}, None, None, None, None)
    with pytest.raises(SchemaMismatchError, match="has no key"):
        state.checked({"f": 1.0}, None, None, None, None)


def test_names_of_any_characters_are_names_of_columns() -> None:
    names = ['a"b', "a\\b", "tab\there", "line\nend", "nul\0", "\x7f", "{x}", "it's", "c0", "é\u2028"]
    schema = pa.schema([(name, pa.int64()) for name in names])
    row = {name: number for number, name in enumerate(names)}
    few = {names[0]: 1, names[3]: 2.0}
    columns = {"dict": {name: [number] for name, number in row.items()}, "list of dicts": [row]}
    assert typed_batch(sent(info(schema), row, few), info(schema)).to_pylist() == [
        row,
        dict.fromkeys(names) | {names[0]: 1, names[3]: 2},
    ]
    for form, data in columns.items():
        assert rows_of(data, info(schema), 0).table.to_pylist() == [row], form
    with pytest.raises(SchemaMismatchError, match="unknown column"):
        sent(info(schema), {"other\n": 1, **few})


def test_the_two_times_of_a_repeated_hour_are_two_keys() -> None:
    """Python calls the times equal. `send` chooses for each the partition that `send_batch` chooses."""
    topic = info(pa.schema([("at", pa.timestamp("us", "UTC"))]), key_columns=("at",))
    state = TypedTopic(topic, 1 << 20, [])
    for minute in range(5):
        for fold in (0, 1, 0):
            row = {"at": dt.datetime(2024, 10, 27, 2, minute, tzinfo=ZoneInfo("Europe/Berlin"), fold=fold)}
            rows = rows_of([row], topic, None)
            assert isinstance(rows.partition, np.ndarray)
            assert state.checked(row, None, None, None, None)[2] == rows.partition[0]
