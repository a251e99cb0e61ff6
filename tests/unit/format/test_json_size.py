"""Rows that are too large as JSON are refused before they are stored; the bounds are never too small."""

from __future__ import annotations

import datetime as dt
import math
from decimal import Decimal
from typing import Any

import msgspec
import pyarrow as pa
import pytest

from sparklog.errors import MessageTooLargeError
from sparklog.export.printable import printable
from sparklog.format import json_size
from sparklog.format import offset_column as oc
from sparklog.format.batch import decode_header, encode_batch, message_of
from sparklog.format.json_values import base64_text, json_values, row_objects
from sparklog.format.offset_column import check_new_rows

LONG_NAME = "a name \x01 " + "n" * 80
FAR_US = pa.scalar(-(2**63), pa.int64())
COLUMNS: dict[str, tuple[Any, list[Any]]] = {
    "o": (pa.bool_(), [False, None]),
    "tiny": (pa.int8(), [-128, None]),
    "small": (pa.int16(), [-(2**15), None]),
    "int": (pa.int32(), [-(2**31), None]),
    "big": (pa.int64(), [-(2**63), None]),
    "float": (pa.float32(), [-1.1754943508222875e-38, math.inf]),
    "double": (pa.float64(), [-2.2250738585072014e-308, -math.inf]),
    "price": (pa.decimal128(38, 37), [Decimal("-9." + "9" * 37), Decimal("-0." + "0" * 36 + "1")]),
    "wide": (pa.decimal128(38, 0), [Decimal(-(10**38 - 1)), None]),
    "day": (pa.date32(), [-(2**31), 2**31 - 1]),
    "at": (pa.timestamp("us", "UTC"), [-(2**63), 2**63 - 1]),
    "local": (pa.timestamp("us"), [-(2**63), 2**63 - 1]),
    "span": (pa.duration("us"), [dt.timedelta(days=-106751991, microseconds=-1), None]),
    "text": (pa.string(), ['\x01\x1f"\\\n\x7fé☃' * 9, ""]),
    "bytes": (pa.binary(), [b"\xff" * 100, b"\x01" * 100]),
    "list": (pa.list_(pa.string()), [["\x02", None, ""], None]),
    "flags": (pa.list_(pa.bool_()), [[False] * 200, []]),
    LONG_NAME: (pa.list_(pa.struct([(LONG_NAME, pa.int8()), ("b", pa.int8())])), [[{}, {}, None], None]),
    "empty": (pa.list_(pa.struct([])), [[{}] * 50, [None]]),
    "map": (pa.map_(pa.string(), pa.int8()), [[("\x03", -1), ("", None)], None]),
    "numbers": (pa.map_(pa.float64(), pa.date32()), [[(-2.2250738585072014e-308, -(2**31))], []]),
    "keys": (pa.map_(pa.struct([("\\", pa.string())]), pa.binary()), [[({"\\": '"\\\x01' * 30}, b"\xfe")], None]),
}


def batch_of(names: list[str]) -> pa.RecordBatch:
    columns = []
    for name in names:
        t, values = COLUMNS[name]
        is_number = pa.types.is_date(t) or pa.types.is_timestamp(t)
        whole = pa.int32() if pa.types.is_date(t) else pa.int64()
        columns.append(pa.array(values, whole).view(t) if is_number else pa.array(values, t))
    return pa.RecordBatch.from_arrays(columns, names=names)


def json_bytes(rows: pa.RecordBatch) -> int:
    """Return the size of the rows as the gateway and `sparklog consume` write them; the larger of the two."""
    names = rows.schema.names
    kafka = row_objects(names, [json_values(column, base64_text) for column in rows.columns])
    consume = row_objects(names, [printable(column) for column in rows.columns])
    encode = msgspec.json.Encoder(decimal_format="string").encode
    return max(sum(len(encode(row)) for row in kafka), sum(len(encode(row)) for row in consume))


def encoded(rows: pa.RecordBatch, compression: str = "none") -> memoryview:
    return encode_batch(rows, schema_id=1, min_timestamp_ms=0, max_timestamp_ms=0, compression=compression)


def bound(rows: pa.RecordBatch, *, is_exact: bool) -> int:
    return json_size._fixed_of_row(rows.schema) + json_size._content_of_rows(rows, is_exact=is_exact)


@pytest.mark.parametrize("compression", ["none", "zstd"])
def test_the_bounds_are_never_below_the_size(compression: str) -> None:
    for names in (*([name] for name in COLUMNS), list(COLUMNS)):
        rows = batch_of(names)
        data = encoded(rows, compression)
        stated = json_size.bound_of(message_of(data, 0, decode_header(data)), rows.schema, rows.nbytes)
        for start in (0, 1):
            part = rows.slice(start, 1)
            assert json_bytes(part) <= bound(part, is_exact=True) <= bound(part, is_exact=False) <= stated, names


def test_the_size_of_text_and_bytes_is_nearly_exact() -> None:
    for rows in (pa.record_batch({"s": ["é" * 50_000 + '\n"\x01']}), pa.record_batch({"b": [b"\xff" * 100_000]})):
        assert 0 <= bound(rows, is_exact=True) - json_bytes(rows) < 100


LARGE: dict[str, Any] = {
    "control characters": pa.array(["ok", "\x01" * 2_000]),
    "bytes": pa.array([b"", b"x" * 9_000]),
    "bytes in a list": pa.array([[], [b"x" * 30] * 250], pa.list_(pa.binary())),
    "long names": pa.array([[], [{}] * 100], pa.list_(pa.struct([("n" * 110, pa.int8())]))),
    "keys of a map": pa.array([[], [("\x01" * 2_000, 1)]], pa.map_(pa.string(), pa.int8())),
    "nested keys": pa.array([[], [([""] * 1_500, 1)]], pa.map_(pa.list_(pa.string()), pa.int8())),
    "many flags": pa.array([[], [True] * 3_000], pa.list_(pa.bool_())),
}


@pytest.mark.parametrize("compression", ["none", "lz4"])
@pytest.mark.parametrize("kind", LARGE)
def test_a_row_without_a_form_in_json_is_refused_by_name(
    monkeypatch: pytest.MonkeyPatch, kind: str, compression: str
) -> None:
    rows = pa.record_batch({"v": pa.concat_arrays([LARGE[kind][:1]] * 300 + [LARGE[kind][1:]])})
    data = encoded(rows, compression)
    check_new_rows(data, 0, decode_header(data), rows.schema, 1 << 30)
    for module in (json_size, oc):
        monkeypatch.setattr(module, "ROW_JSON_BYTES_MAX", 10_000)
    with pytest.raises(MessageTooLargeError, match=r"row 300 takes \d+ bytes as JSON, at most 10000"):
        check_new_rows(data, 0, decode_header(data), rows.schema, 1 << 30)


def test_rows_below_the_limit_are_taken_however_large_their_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (json_size, oc):
        monkeypatch.setattr(module, "ROW_JSON_BYTES_MAX", 10_000)
    monkeypatch.setattr(json_size, "_BATCH_RATIO_MAX", 10_000)
    for column in (pa.array(["x" * 9_900] * 300), pa.array([b"x" * 7_000] * 300), pa.array([[1] * 400] * 300)):
        rows = pa.record_batch({"v": column})
        data = encoded(rows)
        check_new_rows(data, 0, decode_header(data), rows.schema, 1 << 30)


def test_a_batch_whose_check_would_take_long_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Empty objects take no bytes, but the names of their fields do."""
    for module in (json_size, oc):
        monkeypatch.setattr(module, "ROW_JSON_BYTES_MAX", 10_000)
    elements = pa.list_(pa.struct([("n" * 3_000, pa.struct([]))]))
    rows = pa.record_batch({"v": pa.array([[{}]] * 1_000, elements)})
    data = encoded(rows)
    with pytest.raises(MessageTooLargeError, match="send smaller batches"):
        check_new_rows(data, 0, decode_header(data), rows.schema, 1 << 30)
