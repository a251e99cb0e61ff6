"""A key is in a map once, in whatever way the map comes."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from sparklog.client.net.topic_info import TopicInfo
from sparklog.client.producer.rows import rows_of
from sparklog.client.producer.typed_rows import TypedTopic
from sparklog.errors import CorruptBatchError, SchemaMismatchError
from sparklog.format.batch import decode_header, encode_batch
from sparklog.format.map_keys import require_distinct_keys
from sparklog.format.offset_column import check_new_rows

TEXTS = pa.map_(pa.string(), pa.int32())
TWICE = pa.MapArray.from_arrays([0, 1, 3], pa.array(["a", "b", "b"]), pa.array([1, 2, 3], pa.int32()))
TOPIC = TopicInfo("t", "id", "typed", 1, 5, {5: pa.schema([("m", TEXTS)])}, (), None, {}, 0, ())


def test_a_key_twice_is_refused_at_any_depth() -> None:
    nan = float("nan")
    pairs: list[tuple[Any, list[Any]]] = [
        (pa.string(), ["a", "a"]),
        (pa.float64(), [0.0, -0.0]),
        (pa.float32(), [nan, nan]),
        (pa.binary(), [b"", b""]),
        (pa.decimal128(4, 2), [Decimal("1.50"), Decimal("1.5")]),
        (pa.struct([("x", pa.int8())]), [{"x": 1}, {"x": 1}]),
        (pa.struct([("x", pa.float64()), ("y", pa.string())]), [{"x": 0.0, "y": None}, {"x": -0.0, "y": None}]),
        (pa.struct([]), [{}, {}]),
        (pa.list_(pa.struct([("x", pa.int8())])), [[{"x": 1}, None], [{"x": 1}, None]]),
        (pa.list_(pa.int8(), 2), [[1, 2], [1, 2]]),
        (pa.map_(pa.string(), pa.int8()), [[("a", 1)], [("a", 1)]]),
    ]
    for t, keys in pairs:
        column = pa.MapArray.from_arrays([0, 2], pa.array(keys, t), pa.array([1, 2]))
        nested = pa.StructArray.from_arrays([pa.ListArray.from_arrays([0, 1], column)], ["x"])
        for one in (column, nested, pa.chunked_array([column.slice(1), column])):
            with pytest.raises(pa.ArrowInvalid, match=r"has the key .* twice"):
                require_distinct_keys(one)


def test_other_keys_that_look_alike_are_distinct() -> None:
    pairs: list[tuple[Any, list[Any]]] = [
        (pa.struct([("x", pa.float64())]), [{"x": 0.0}, {"x": None}]),
        (pa.struct([("x", pa.int8()), ("y", pa.int8())]), [{"x": 1, "y": 2}, {"x": 2, "y": 1}]),
        (pa.list_(pa.list_(pa.int8())), [[[1], [2]], [[1, 2]]]),
        (pa.list_(pa.int8()), [[1, None], [1]]),
        (pa.map_(pa.string(), pa.int8()), [[("a", 1)], [("a", 2)]]),
    ]
    for t, keys in pairs:
        require_distinct_keys(pa.MapArray.from_arrays([0, 2], pa.array(keys, t), pa.array([1, 2])))


def test_keys_without_an_object_in_python() -> None:
    far = pa.array([2**31 - 1, -(2**31), 2**31 - 1], pa.int32()).view(pa.date32())
    for keys in (far, pa.StructArray.from_arrays([far], ["day"])):
        require_distinct_keys(pa.MapArray.from_arrays([0, 2], keys.slice(0, 2), pa.array([1, 2])))
        with pytest.raises(pa.ArrowInvalid, match=r"has the key .*date32.* twice"):
            require_distinct_keys(pa.MapArray.from_arrays([0, 3], keys, pa.array([1, 2, 3])))


def test_values_that_no_row_has_do_not_count() -> None:
    require_distinct_keys(TWICE.slice(0, 1))
    hidden = pa.MapArray.from_arrays(
        pa.array([0, 2, 3], pa.int32()), pa.array(["a", "a", "a"]), pa.array([1, 2, 3]), mask=pa.array([True, False])
    )
    require_distinct_keys(hidden)


def test_no_door_takes_a_key_twice() -> None:
    pairs = [("b", 2), ("b", 3)]
    for data in (pa.table({"m": TWICE}), {"m": [[("a", 1)], pairs]}, [{"m": pairs}]):
        with pytest.raises(SchemaMismatchError, match=r"column 'm'.* has the key 'b' twice"):
            rows_of(data, TOPIC, 0)
    with pytest.raises(SchemaMismatchError, match=r"column 'm'.* has the key 'b' twice"):
        TypedTopic(TOPIC, 1 << 20, []).checked({"m": pairs}, None, None, None, None)
    for compression in ("none", "lz4"):
        batch = pa.record_batch({"m": TWICE.cast(TEXTS)})
        payload = memoryview(
            encode_batch(batch, schema_id=5, min_timestamp_ms=0, max_timestamp_ms=0, compression=compression)
        )
        with pytest.raises(CorruptBatchError, match=r"column 'm'.* has the key 'b' twice"):
            check_new_rows(payload, 0, decode_header(payload), batch.schema, 1 << 20)
