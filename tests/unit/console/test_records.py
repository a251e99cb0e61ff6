"""Records of forms."""

from __future__ import annotations

import json

import pyarrow as pa
import pytest

from sparklog.console.records import EnvelopeRecord, envelope_record, partition_of, row_example, typed_row
from sparklog.errors import InvalidRequestError
from tests.support.cases import for_each

SCHEMA = pa.schema(
    [("zone", pa.string()), ("n", pa.int32()), ("at", pa.timestamp("us", tz="UTC")), ("tags", pa.list_(pa.string()))]
)


@for_each(
    "fields, record",
    [
        ({"value": "v"}, EnvelopeRecord(None, b"v", [])),
        ({"key": "k", "value": "a\r\nb"}, EnvelopeRecord(b"k", b"a\nb", [])),
        ({"key": "", "key_form": "hex", "value_form": "null"}, EnvelopeRecord(b"", None, [])),
        ({"key": "k", "value": "C0 ff\n ee", "value_form": "hex"}, EnvelopeRecord(b"k", b"\xc0\xff\xee", [])),
        ({"headers": "a: b: c\n\nempty:\n"}, EnvelopeRecord(None, b"", [("a", b"b: c"), ("empty", b"")])),
    ],
)
def test_an_envelope_record(fields: dict[str, str], record: EnvelopeRecord) -> None:
    assert envelope_record(fields) == record


@for_each(
    "fields, words",
    [
        ({"value": "xyz", "value_form": "hex"}, "value = 'xyz': write hex"),
        ({"value": "x", "value_form": "null"}, "null has no content"),
        ({"key_form": "base64"}, "use one of text, hex, null"),
        ({"headers": "no colon"}, "write NAME: VALUE"),
    ],
)
def test_fields_that_make_no_record(fields: dict[str, str], words: str) -> None:
    with pytest.raises(InvalidRequestError, match=words):
        envelope_record(fields)


def test_a_row_of_json() -> None:
    text = '{"zone": "Mitte",\n "n": 3, "at": "2026-03-01T08:00:00Z", "tags": ["a"]}'
    [row] = typed_row(text, SCHEMA).to_pylist()
    assert (row["zone"], row["n"], row["at"].isoformat(), row["tags"]) == (
        "Mitte",
        3,
        "2026-03-01T08:00:00+00:00",
        ["a"],
    )
    assert json.loads(row_example(SCHEMA)) == dict.fromkeys(SCHEMA.names)
    assert typed_row(row_example(SCHEMA), SCHEMA).to_pylist() == [dict.fromkeys(SCHEMA.names)]


@for_each("text", ["", "[]", "{", '{"zon": 1}', '{"n": 1.5}', '{"n": "x"}', '{"at": "soon"}', "[" * 100_000])
def test_a_row_that_does_not_fit(text: str) -> None:
    with pytest.raises(InvalidRequestError, match="cannot be read as a JSON object"):
        typed_row(text, SCHEMA)


def test_the_partition_exists() -> None:
    assert (partition_of({}, 3), partition_of({"partition": " 2 "}, 3)) == (None, 2)
    for wrong in ("3", "-1", "x", "²", "9" * 5_000):
        with pytest.raises(InvalidRequestError, match="partitions 0 to 2"):
            partition_of({"partition": wrong}, 3)
