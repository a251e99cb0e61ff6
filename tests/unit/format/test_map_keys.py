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
    ]
    for t, keys in pairs:
        column = pa.MapArray.from_arrays([0, 2], pa.array(keys, t), pa.array([1, 2]))
        nested = pa.StructArray.from_arrays([pa.ListArray.from_arrays([0, 1], column)], ["x"])
        for one in (column, nested, pa.chunked_array([column.slice(1), column])):
            with pytest.raises(pa.ArrowInvalid, match=r"has the key .* twice"):
                require_distinct_keys(one)


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
