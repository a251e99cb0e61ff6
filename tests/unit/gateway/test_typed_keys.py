"""The keys of records of typed topics: they fill the key columns, and the partition of a record is its key's."""

from __future__ import annotations

import math
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparklog.client.net.topic_info import TopicInfo
from sparklog.client.producer.partitioner import partition_for_key
from sparklog.client.producer.row_keys import keys_of_rows, partitions_of_rows
from sparklog.format.batch import BatchHeader, decode_batch, decode_header
from sparklog.gateway.records.small import write_small
from sparklog.gateway.records.typed import TypedRows, typed_batch
from sparklog.kafka.records import batch_v2
from sparklog.kafka.records.errors import RECORDS_NAMED_MAX, InvalidRecordError
from tests.support.cases import for_each
from tests.support.clients import info
from tests.unit.gateway.registry_schemas import FixedSchemas

SCHEMA = pa.schema([("id", pa.int64()), ("zone", pa.string()), ("name", pa.string())])
ONE = info(SCHEMA, 1, ("id",), kafka_key_format="json")
COMPACTED = info(SCHEMA, 1, ("id",), kafka_key_format="json", cleanup_policy="compact")
TEXT = info(SCHEMA, 1, ("zone",), kafka_key_format="text")
Record = tuple[bytes | None, bytes | None]


def batch_of(records: Sequence[Record], topic: TopicInfo, partition: int = 0) -> memoryview:
    keys, values = zip(*records, strict=True)
    data = write_small(list(keys), list(values), [0] * len(records))
    head = batch_v2.BatchV2(0, 0, 0, 2, 0, 0, len(keys) - 1, 0, 0, -1, -1, -1, len(keys))
    return typed_batch(head, memoryview(data), topic, 1 << 24, partition, FixedSchemas()).payload


def stored(records: Sequence[Record], topic: TopicInfo, partition: int = 0) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = decode_batch(batch_of(records, topic, partition), topic.schema).to_pylist()
    return rows


def refusals(records: Sequence[Record], topic: TopicInfo, partition: int = 0) -> dict[int, str]:
    with pytest.raises(InvalidRecordError) as refused:
        batch_of(records, topic, partition)
    return dict(refused.value.records)


def row(id: int | None = None, zone: str | None = None, name: str | None = None) -> dict[str, Any]:
    return {"id": id, "zone": zone, "name": name}


def test_a_key_fills_the_key_columns() -> None:
    records: list[Record] = [
        (b'{"id":5}', b'{"name":"x"}'),
        (b'{ "id" : 6 }', b'{"id":null,"name":"y"}'),
        (None, b'{"id":7}'),
        (b'{"id":8}', b'{"id":8,"zone":"z"}'),
    ]
    assert stored(records, ONE) == [row(5, name="x"), row(6, name="y"), row(7), row(8, zone="z")]
    assert stored(records[:1], ONE) == [row(5, name="x")]


def test_several_key_columns_are_filled() -> None:
    topic = info(SCHEMA, 1, ("zone", "id"), kafka_key_format="json")
    records: list[Record] = [(b'{"zone":"a","id":1}', b'{"name":"x"}'), (b'{"id":null,"zone":"b"}', b"{}")]
    assert stored(records, topic) == [row(1, "a", "x"), row(None, "b")]


def test_a_key_of_text_fills_its_column() -> None:
    records: list[Record] = [
        (b"u1", b'{"name":"x"}'),
        ("ü".encode(), None),
        (b"", b'{"id":1}'),
        (None, b'{"zone":"z"}'),
    ]
    assert stored(records, TEXT) == [row(zone="u1", name="x"), row(zone="ü"), row(1, ""), row(zone="z")]


def test_a_null_value_with_a_key_is_a_row_without_values() -> None:
    assert stored([(b'{"id":5}', None)], COMPACTED) == [row(5)]
    assert "record 1 has no value" in refusals([(b'{"id":5}', None), (None, None)], ONE)[1]
    keyless = info(SCHEMA, 1)
    assert "record 0 has no value" in refusals([(b"k", None)], keyless)[0]
    keys_only = info(pa.schema([("id", pa.int64())]), 1, ("id",), kafka_key_format="json")
    assert "key columns only" in refusals([(None, b"{}"), (b'{"id":5}', None)], keys_only)[1]


def test_a_topic_without_key_columns_takes_any_key() -> None:
    assert stored([(b"\xff", b'{"id":1}')], info(SCHEMA, 3), 2) == [row(1)]


@for_each(
    "topic, key, value, reason",
    [
        (ONE, b'{"id":5}', b'{"id":6}', '{"id":5} in its key, but {"id":6} in its value'),
        (ONE, b'{"id":null}', b'{"id":6}', '{"id":null} in its key, but {"id":6} in its value'),
        (ONE, b"{}", b'{"id":6}', '{"id":null} in its key'),
        (ONE, b"5", b"{}", "its key does not fit"),
        (ONE, b'{"id":"5"}', b"{}", "column 'id' is int64"),
        (ONE, b'{"id":5,"name":"x"}', b"{}", "name"),
        (ONE, b"", b"{}", "its key does not fit"),
        (TEXT, b"a", b'{"zone":"b"}', '{"zone":"a"} in its key, but {"zone":"b"} in its value'),
        (TEXT, b"\xff", b"{}", "no text in UTF-8"),
    ],
)
def test_a_wrong_key_is_refused_by_name(topic: TopicInfo, key: bytes, value: bytes, reason: str) -> None:
    found = refusals([(None, b"{}"), (key, value), (None, b"{}")], topic)
    assert list(found) == [1] and "record 1" in found[1] and reason in found[1], found


def test_equal_numbers_do_not_contradict() -> None:
    topic = info(pa.schema([("x", pa.float64()), ("n", pa.int32())]), 1, ("x",), kafka_key_format="json")
    (found,) = stored([(b'{"x":0}', b'{"x":-0.0,"n":1}')], topic)
    assert math.copysign(1, found["x"]) == -1, "the value's number is stored"


def test_rows_without_a_key_are_refused_by_a_compacted_topic() -> None:
    found = refusals([(b'{"id":1}', b"{}"), (None, b'{"name":"x"}'), (b'{"id":null}', b'{"name":"x"}')], COMPACTED)
    assert {i: f"record {i} has no key" in message for i, message in found.items()} == {1: True, 2: True}


def test_all_refused_records_are_named() -> None:
    found = refusals([(b'{"id":1}', b'{"id":2}')] * (RECORDS_NAMED_MAX + 5), ONE)
    assert list(found) == list(range(RECORDS_NAMED_MAX))


@given(st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=20), st.integers(2, 9), st.integers(0, 8))
def test_a_partition_that_is_not_the_keys_is_refused_with_both(ids: list[int], partitions: int, at: int) -> None:
    topic = info(SCHEMA, partitions, ("id",), kafka_key_format="json")
    keys = [b'{"id":%d}' % i for i in ids]
    owned = [partition_for_key(key, partitions) for key in keys]
    wrong = [i for i, own in enumerate(owned) if own != at]
    records: list[Record] = [(key if i % 2 else None, b'{"id":%d}' % ids[i]) for i, key in enumerate(keys)]
    if not wrong:
        assert [one["id"] for one in stored(records, topic, at)] == ids
        return
    found = refusals(records, topic, at)
    assert list(found) == wrong
    for i in wrong:
        message = (
            f"record {i} is in partition {at} of 't', but its key {keys[i].decode()} belongs to partition {owned[i]}"
        )
        assert message in found[i]


def test_a_key_that_is_written_otherwise_is_refused_with_its_canonical_form() -> None:
    topic = info(SCHEMA, 4, ("zone", "id"), kafka_key_format="json")
    own = partition_for_key(b'{"zone":"a","id":1}', 4)
    found = refusals([(b'{ "id": 1, "zone": "\\u0061" }', b"{}")], topic, (own + 1) % 4)
    assert f'its key {{"zone":"a","id":1}} belongs to partition {own} of 4' in found[0] and "murmur2" in found[0]


def test_a_null_key_of_text_belongs_to_the_first_partition() -> None:
    topic = info(SCHEMA, 4, ("zone",), kafka_key_format="text")
    assert stored([(None, b'{"id":1}')], topic, 0) == [row(1)]
    assert "its key null belongs to partition 0 of 4; send the key" in refusals([(None, b'{"id":1}')], topic, 3)[0]


def test_a_topic_without_the_setting_keeps_its_rule() -> None:
    topic = info(SCHEMA, 97, ("id",))
    own = int(partitions_of_rows([pa.array([5], pa.int64())], topic)[0])
    assert own != partition_for_key(b'{"id":5}', 97)
    records: list[Record] = [(b'{"id":5}', b'{"name":"x"}'), (None, b'{"id":5}'), (b"any key", b'{"id":5}')]
    assert [one["id"] for one in stored(records, topic, own)] == [5, 5, 5]
    found = refusals(records, topic, (own + 1) % 97)
    assert list(found) == [0, 1, 2]
    assert f"belongs to partition {own} of 97" in found[0] and "no kafka.key.format" in found[0]
    assert '{"id":5} in its key' in refusals([(b'{"id":5}', b'{"id":6}')], topic, own)[0]


def test_a_key_of_text_may_have_both_forms_without_the_setting() -> None:
    topic = info(SCHEMA, 7, ("zone",))
    own = partition_for_key(b"u1", 7)
    records: list[Record] = [(b"u1", None), (b'{"zone":"u1"}', b'{"name":"x"}'), (None, b'{"zone":"u1"}')]
    assert [one["zone"] for one in stored(records, topic, own)] == ["u1", "u1", "u1"]


ROWS = pa.RecordBatch.from_pylist([row(5, "a", "x"), row(6, "b"), row(None, None, "z")], SCHEMA)


def sent(topic: TopicInfo) -> tuple[list[Any], list[Any]]:
    header: BatchHeader = decode_header(batch_of([(None, b'{"id":1,"zone":"z"}')], info(SCHEMA, 1)), 0)
    rows = TypedRows(topic, FixedSchemas())(ROWS, header)
    return rows.column("key").to_pylist(), rows.column("value").to_pylist()


def test_consumers_get_the_bytes_that_choose_the_partition() -> None:
    for form, columns in (("json", ("id",)), ("json", ("zone", "id")), ("text", ("zone",)), ("", ("zone",))):
        topic = info(SCHEMA, 9, columns, kafka_key_format=form)
        keys, _ = sent(topic)
        of_rows = [ROWS.column(name) for name in columns]
        assert keys == keys_of_rows(of_rows, topic).to_pylist()
        if form:
            chosen = partitions_of_rows(of_rows, topic).tolist()
            assert [0 if key is None else partition_for_key(key, 9) for key in keys] == chosen
    assert sent(TEXT)[0] == [b"a", b"b", None]
    assert sent(ONE)[0] == [b'{"id":5}', b'{"id":6}', b'{"id":null}']


KEY_COLUMNS = [
    pa.array([True, False]),
    pa.array([-128, 127], pa.int8()),
    pa.array([0.1, 1e21, 1e-7, 1e300, 123456789012.5, 0.0]),
    pa.array([0.1, 3.4e38, 1e-45, 16777216.0, 123456789.0], pa.float32()),
    pa.array([Decimal("12.50"), Decimal("-0.01")], pa.decimal128(10, 2)),
    pa.array([Decimal("0.000000001")], pa.decimal128(38, 9)),
    pa.array(['"\\\x00é\u2028', ""]),
    pa.array([b"", b"a", b"\xff\x00"]),
    pa.array([0, -719_162, 2_932_896], pa.int32()).cast(pa.date32()),
    pa.array([0, 1, -1, 1_500_000, 253_402_300_799_999_999]).cast(pa.timestamp("us", "UTC")),
    pa.array([0, 1, -1, 1_500_000, -62_135_596_800_000_000]).cast(pa.timestamp("us")),
    pa.array([0, 1, -1, 86_400_000_000, -86_400_000_001], pa.int64()).view(pa.duration("us")),
    pa.array([math.nan, math.inf, -math.inf]),
    pa.array([-719_528, 2_932_897, 10**7, -(10**7)], pa.int32()).cast(pa.date32()),
    pa.array([2**62, -(2**62)], pa.int64()).cast(pa.timestamp("us", "UTC")),
]


@for_each("column", KEY_COLUMNS)
def test_a_consumers_key_can_be_sent_again(column: Any) -> None:
    schema = pa.schema([("k", column.type), ("n", pa.int32())])
    topic = info(schema, 3, ("k",), kafka_key_format="json")
    for key, partition in zip(
        keys_of_rows([column], topic).to_pylist(), partitions_of_rows([column], topic).tolist(), strict=True
    ):
        again = decode_batch(batch_of([(key, b'{"n":1}')], topic, partition), schema).column("k")
        assert keys_of_rows([again], topic).to_pylist() == [key]


def test_a_row_that_deletes_its_key_is_a_tombstone_in_a_compacted_topic() -> None:
    compacted = info(SCHEMA, 1, ("zone", "id"), kafka_key_format="json", cleanup_policy="compact,delete")
    assert sent(compacted)[1] == [b'{"id":5,"zone":"a","name":"x"}', None, b'{"id":null,"zone":null,"name":"z"}']
    assert None not in sent(info(SCHEMA, 1, ("zone", "id"), kafka_key_format="json"))[1]
