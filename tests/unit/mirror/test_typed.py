"""The conversion of records into rows of a typed topic, and of the others into refused rows."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any

import pyarrow as pa
import pytest

from sparklog.errors import LeaderNotAvailableError, MessageTooLargeError
from sparklog.format.batch import iterate_batches
from sparklog.format.offset_column import decode_rows
from sparklog.kafka.values.fitting import read_json
from sparklog.kafka.values.json_records import parse_rows
from sparklog.metadata.refused_topics import REFUSED_SCHEMA
from sparklog.mirror import typed
from sparklog.mirror.placing import Placed, place
from sparklog.mirror.refused import RefusedLog
from sparklog.mirror.rules import NO_SCHEMA
from sparklog.mirror.typed import NO_LIMIT, RefusedTarget, TypedConversion, TypedTarget
from tests.support.kafka_batches import kafka_batch

SCHEMA = pa.schema([("n", pa.int32()), ("t", pa.string())])
STABLE = 2**63 - 1
SCHEMA_ID, REFUSED_ID = 11, 9


def target(**changes: Any) -> TypedTarget:
    limits = RefusedTarget(REFUSED_ID, 1 << 20, 1 << 24)
    plain = TypedTarget(
        "t",
        SCHEMA,
        SCHEMA_ID,
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
    return plain._replace(**changes)


def converted(
    values: Sequence[bytes | None],
    *,
    position: int = 0,
    log: RefusedLog = RefusedLog(),  # noqa: B008 - immutable
    others: int = 0,
    schema_id: int = SCHEMA_ID,
    headers: Any = None,
    **changes: Any,
) -> Placed:
    conversion = TypedConversion(target(**changes), 3, log, others, position=position, schema_id=schema_id)
    data = kafka_batch(list(range(len(values))), values=values, headers=headers)
    return place(memoryview(data), position, STABLE, (), 1 << 24, 77, conversion)


def rows(batches: Sequence[memoryview], schema: pa.Schema = SCHEMA) -> dict[int, dict[str, Any]]:
    result: dict[int, dict[str, Any]] = {}
    end = None
    for data in batches:
        ((_, header),) = iterate_batches(data)
        assert end in (None, header.base_offset)
        end = header.last_offset + 1
        part, offsets = decode_rows(data, schema, header)
        assert offsets is not None
        result |= zip(offsets.tolist(), part.to_pylist(), strict=True)
    return result


def test_rows_and_refused_rows_stand_at_the_offsets_of_their_records() -> None:
    placed = converted([b'{"n":1}', b"x", b'{"n":"2"}', b'{"n":3,"t":"a"}', None])
    assert rows(placed.batches) == {0: {"n": 1, "t": None}, 3: {"n": 3, "t": "a"}}
    refused = rows(placed.refused.batches, REFUSED_SCHEMA)
    assert list(refused) == [1, 2, 4]
    assert [(row["partition"], row["offset"], row["number"]) for row in refused.values()] == [
        (3, 1, 1),
        (3, 2, 2),
        (3, 4, 3),
    ]
    assert refused[2]["value"] == b'{"n":"2"}' and refused[2]["key"] == b"k2"
    assert refused[2]["reason"].startswith("column 'n' is int32")
    assert (placed.next_offset, placed.records, placed.refused.log.end, placed.refused.log.count) == (5, 2, 5, 3)


def test_stored_refused_rows_decide_and_are_not_stored_again() -> None:
    log = RefusedLog(0, 3, 5, 8, frozenset({1, 2}))
    placed = converted([b'{"n":1}', b"x", b'{"n":2}', b"y"], log=log)
    assert rows(placed.batches) == {0: {"n": 1, "t": None}}
    assert (placed.next_offset, placed.refused.batches) == (3, ())  # the rest is another conversion's
    placed = converted([b'{"n":1}', b"x", b'{"n":2}', b"y"], log=log, position=3)
    (row,) = rows(placed.refused.batches, REFUSED_SCHEMA).values()
    assert (row["offset"], row["number"], placed.next_offset) == (3, 9, 4)


def test_a_record_that_another_worker_has_accepted_is_not_dropped() -> None:
    with pytest.raises(LeaderNotAvailableError, match="offset 1 of partition 3"):
        converted([b"{}", b"x", b"y"], log=RefusedLog(0, 3, 5, 1, frozenset({2})))
    placed = converted([b"{}", b"x", b"y"], log=RefusedLog(2, 3, 5, 1, frozenset({2})))  # its row has expired
    assert list(rows(placed.batches)) == [0]


def test_newer_columns_are_waited_for_and_other_columns_are_fenced() -> None:
    with pytest.raises(LeaderNotAvailableError, match="columns 12"):
        converted([b"{}"], schema_id=SCHEMA_ID + 1)
    for schema_id in (NO_SCHEMA, SCHEMA_ID - 1):
        placed = converted([b"{}", b"x", b"{}"], schema_id=schema_id)
        assert (list(rows(placed.refused.batches, REFUSED_SCHEMA)), placed.refused.log.end) == ([1], 3)
        placed = converted([b"{}", b"{}"], schema_id=schema_id)
        assert (rows(placed.refused.batches, REFUSED_SCHEMA), placed.refused.log.end) == ({}, 2)
    assert converted([b"{}", b"{}"]).refused.batches == ()


def test_the_limit_stops_before_the_next_record() -> None:
    values = [b"{}", b"x", b"{}", b"y", b"{}"]
    placed = converted(values, refused_max=5, others=3, log=RefusedLog(count=1))
    assert (list(rows(placed.batches)), placed.next_offset) == ([0, 2], 3)
    assert list(rows(placed.refused.batches, REFUSED_SCHEMA)) == [1]
    assert "offset 3 of partition 3" in placed.refused.stop
    placed = converted(values, refused_max=5, others=5)
    assert (placed.next_offset, list(rows(placed.batches))) == (1, [0]) and placed.refused.stop
    placed = converted(values[1:], refused_max=0)
    assert (placed.batches, placed.refused.batches, placed.next_offset) == ((), (), 0) and placed.refused.stop


def test_a_row_that_is_too_large_is_refused() -> None:
    text = "".join(map(chr, range(48, 90))) * 100
    values = [b'{"t":"%s"}' % text[:size].encode() for size in (10, 4_000, 20)]
    placed = converted(values, batch_bytes_max=3_000)
    assert list(rows(placed.batches)) == [0, 2]
    (row,) = rows(placed.refused.batches, REFUSED_SCHEMA).values()
    assert row["offset"] == 1 and "max.message.bytes" in row["reason"]
    small = RefusedTarget(REFUSED_ID, 3_000, 1 << 24)
    with pytest.raises(MessageTooLargeError, match=r"offset 0 .*raise max.message.bytes of 't\.refused'"):
        converted([Random(1).randbytes(9_000)], refused=small)


def test_batches_are_split_at_the_topics_limits() -> None:
    placed = converted([b'{"t":"%0800d"}' % i for i in range(40)], batch_bytes_max=5_000)
    assert len(placed.batches) > 4 and list(rows(placed.batches)) == list(range(40))
    assert all(len(data) <= 5_000 for data in placed.batches)


def test_a_conversion_that_takes_much_memory_leaves_the_rest_to_the_next_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    values = [b'{"n":1}', b"x"] * 2_000
    placed = converted(values, inflated_bytes_max=10_000)
    assert placed.next_offset == 1_000 == 2 * placed.records == 2 * placed.refused.new
    rest = converted(values, position=1_000, log=placed.refused.log, inflated_bytes_max=10_000)
    assert (rest.next_offset, rest.refused.log.count) == (2_000, 1_000)
    monkeypatch.setattr(typed, "CONVERTED_BYTES_MAX", 10_000)
    data = b"".join(kafka_batch(range(o, o + 100), values=[b"x" * 50] * 100) for o in range(0, 1_000, 100))
    conversion = TypedConversion(target(), 3, RefusedLog(), 0, schema_id=SCHEMA_ID)
    placed = place(memoryview(data), 0, STABLE, (), 1 << 24, 77, conversion)
    assert (placed.next_offset, placed.refused.new) == (100, 100)


def test_headers_are_refused_or_dropped() -> None:
    headers = [{"key": "trace", "value": b"x"}]
    placed = converted([b"{}"], headers=headers)
    (row,) = rows(placed.refused.batches, REFUSED_SCHEMA).values()
    assert row["headers"] == headers and "no place" in row["reason"]
    assert list(rows(converted([b"{}"], headers=headers, drops_headers=True).batches)) == [0]


def test_keys_fill_key_columns() -> None:
    keyed: dict[str, Any] = {"key_columns": ("t",), "key_format": "text"}
    placed = converted([b'{"n":1}', None, b'{"t":"other"}'], **keyed)
    assert rows(placed.batches) == {0: {"n": 1, "t": "k0"}, 1: {"n": None, "t": "k1"}}
    (row,) = rows(placed.refused.batches, REFUSED_SCHEMA).values()
    assert row["offset"] == 2 and "key" in row["reason"]


def test_large_batches_name_all_refused_records() -> None:
    values = [b"x" if i % 3 else b'{"n":1}' for i in range(4_000)]
    placed = converted(values)
    assert list(rows(placed.batches)) == list(range(0, 4_000, 3))
    assert placed.refused.new == len(values) - len(range(0, 4_000, 3))
