"""Operations, keys, and values that the database did not send."""

from __future__ import annotations

import json
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pytest

import sparklog
from sparklog.debezium.changes import Changes, EarlierRows, Layout, changes_of, fill
from sparklog.debezium.events import EventReader
from sparklog.debezium.forms import hints_of
from sparklog.debezium.frame import _prefix_of_no
from sparklog.errors import DeserializationError
from tests.support.cases import for_each
from tests.unit.debezium.envelopes import PLACEHOLDER, event, field, in_base64, key

FIELDS = [
    field("id", "int64"),
    field("n", "int32"),
    field("doc", "string"),
    field("raw", "bytes"),
    {"field": "tags", "type": "array", "items": {"type": "string"}},
    {"field": "ids", "type": "array", "items": {"type": "int64"}},
    {"field": "h", "type": "map", "keys": {"type": "string"}, "values": {"type": "string"}},
]
FULL = {"id": 1, "n": 1, "doc": "text", "raw": in_base64(b"raw"), "tags": ["a"], "ids": [1], "h": {"k": "v"}}
ABSENT = {
    "doc": PLACEHOLDER,
    "raw": in_base64(PLACEHOLDER.encode()),
    "tags": [PLACEHOLDER],
    "ids": list(PLACEHOLDER.encode()),
    "h": {PLACEHOLDER: PLACEHOLDER},
}
LARGE = ("doc", "raw", "tags", "ids", "h")
OLD = {"doc": "text", "raw": b"raw", "tags": ["a"], "ids": [1], "h": [("k", "v")]}


def large(row: dict[str, Any]) -> dict[str, Any]:
    return {name: row[name] for name in LARGE}


def updated(**changed: Any) -> dict[str, Any]:
    """Return a row whose large values are unavailable, but for those of `changed`."""
    return {**FULL, "n": 2, **ABSENT, **changed}


@pytest.mark.parametrize("has_schema", [True, False])
def test_before_has_the_unavailable_values(has_schema: bool) -> None:
    fields = FIELDS if has_schema else None
    ddl = "id BIGINT, n INT, doc STRING, raw BINARY, tags ARRAY<STRING>, ids ARRAY<BIGINT>, h MAP<STRING, STRING>"
    [row] = sparklog.unwrap_debezium([event("u", FULL, updated(), fields)], ddl)
    assert (row["n"], large(row)) == (2, OLD)


def test_an_earlier_event_has_the_unavailable_values() -> None:
    other = {**FULL, "id": 2, "doc": "other"}
    events = [
        event("c", None, FULL, FIELDS),
        event("c", None, other, FIELDS),
        event("u", None, updated(doc="new"), FIELDS),
        event("u", None, updated(), FIELDS),
        event("u", None, updated(id=2), FIELDS),
    ]
    keys = [key({"id": i}) for i in (1, 2, 1, 1, 2)]
    for found in (
        sparklog.unwrap_debezium(events, keys=keys),
        sparklog.unwrap_debezium(events, key_columns=["id"]),
        sparklog.unwrap_debezium(pa.table({"key": keys, "value": events})).to_pylist(),
    ):
        assert [row["doc"] for row in found] == ["text", "other", "new", "new", "other"]
        assert [large(row) for row in found[2:4]] == [{**OLD, "doc": "new"}] * 2


def test_the_newest_rows_have_the_unavailable_values() -> None:
    latest = sparklog.unwrap_debezium(pa.table({"value": [event("r", None, FULL, FIELDS)]})).drop_columns(["_op"])
    events = [event("u", None, updated(), FIELDS), event("u", None, updated(raw=in_base64(b"new")), FIELDS)]
    found = sparklog.unwrap_debezium(events, key_columns=["id"], latest=latest)
    assert [large(row) for row in found] == [OLD, {**OLD, "raw": b"new"}]
    with pytest.raises(DeserializationError, match="lack the columns doc, raw"):
        sparklog.unwrap_debezium(events, key_columns=["id"], latest=latest.select(["id", "n", "tags", "ids", "h"]))


@for_each(
    "events, keys",
    [
        ([event("u", None, updated(), FIELDS)], None),
        ([event("u", None, updated(), FIELDS)], [key({"id": 1})]),
        ([event("u", {**FULL, **ABSENT}, updated(), FIELDS)], None),
        ([event("u", {"id": 1, "doc": None}, updated(), FIELDS)], None),
        ([event("c", None, {**FULL, "id": 2}, FIELDS), event("u", None, updated(), FIELDS)], None),
        # a row that was deleted and made again has no old value
        (
            [event("c", None, FULL, FIELDS), event("d", FULL, None, FIELDS), event("u", None, updated(), FIELDS)],
            [key({"id": 1})] * 3,
        ),
        (
            [event("c", None, FULL, FIELDS), event("t"), event("u", None, updated(), FIELDS)],
            [key({"id": 1}), None, key({"id": 1})],
        ),
    ],
)
def test_a_value_without_a_source_is_refused_by_name(events: list[bytes], keys: Any) -> None:
    with pytest.raises(DeserializationError, match=rf"event {len(events) - 1}: the value of column 'doc' is unavail"):
        sparklog.unwrap_debezium(events, keys=keys, truncate="skip")


@for_each(
    "placeholder, written",
    [
        ("gone", "gone"),
        ("hex:00ff", in_base64(b"\x00\xff")),
        ("gone", b"gone".hex()),
        ("???>>>", "Pz8_Pj4-"),
        ("gone", json.dumps({"gone": "gone"}, separators=(",", ":"))),
    ],
)
def test_the_connectors_placeholder(placeholder: str, written: str) -> None:
    events = [event("c", None, {"id": 1, "v": "old"}), event("u", None, {"id": 1, "v": written})]
    found = sparklog.unwrap_debezium(
        events, key_columns=["id"], connector={"unavailable.value.placeholder": placeholder, "name": "inventory"}
    )
    assert [row["v"] for row in found] == ["old", "old"]


def test_a_geometry_has_a_placeholder_of_its_own() -> None:
    absent = in_base64(bytes.fromhex("0101000020E6100000000000FC83D797C1000000FC83D797C1"))
    events = [event("u", {"g": {"wkb": "AA==", "srid": 1}}, {"g": {"wkb": absent, "srid": 1}})]
    [row] = sparklog.unwrap_debezium(events, "g STRUCT<wkb: BINARY, srid: INT>")
    assert row["g"] == {"wkb": b"\0", "srid": 1}


def test_deletions_take_their_key_from_the_record() -> None:
    fields = [field("id", "int64")]
    events = [
        event("d", {"id": 1, "doc": "old"}, None),
        None,  # the tombstone of the deletion
        event("d"),
        event("c", None, {"id": 3, "doc": "new"}),
        None,  # compaction has removed the deletion
    ]
    for form in (None, fields):
        keys = [key({"id": i}, form) for i in (1, 1, 2, 3, 3)]
        found = sparklog.unwrap_debezium(events, "id BIGINT, doc STRING, _op STRING", keys=keys)
        assert [(row["id"], row["doc"], row["_op"]) for row in found] == [
            (1, "old", "d"),
            (2, None, "d"),
            (3, "new", "c"),
            (3, None, "d"),
        ]
    assert sparklog.unwrap_debezium([None, b""]) == []
    for odd in (None, b"7", b"no json"):
        with pytest.raises(DeserializationError, match=r"event 0: .*deletes a row without 'before'"):
            sparklog.unwrap_debezium([event("d")], keys=[odd])


def test_a_deletion_whose_row_lacks_the_key_takes_it_from_the_record() -> None:
    found = sparklog.unwrap_debezium([event("d", {"id": None, "n": 2})], keys=[key({"id": 5})])
    assert found == [{"id": 5, "n": 2, "_op": "d"}]


def test_columns_of_another_table_are_refused() -> None:
    rows = [event("c", None, {"id": 1, "Name": "x"}, [field("id", "int64"), field("Name", "string")])]
    assert sparklog.unwrap_debezium(rows, "id BIGINT, later INT")[0] == {"id": 1, "later": None, "_op": "c"}
    for ddl, reason in (
        ("id BIGINT, name STRING", "'name', but 'Name'"),
        ("a INT, b INT", r"none of .*a, b.* id, Name"),
    ):
        with pytest.raises(DeserializationError, match=f"event 0: the row has .*{reason}"):
            sparklog.unwrap_debezium(rows, ddl)


def test_truncations_are_named_or_skipped() -> None:
    truncation = event("t", source={"db": "shop", "schema": "public", "table": "orders"})
    with pytest.raises(DeserializationError, match=r"event 1: TRUNCATE of table 'shop\.public\.orders'"):
        sparklog.unwrap_debezium([event("c", None, {"id": 1}), truncation])
    assert sparklog.unwrap_debezium([truncation, event("c", None, {"id": 1})], truncate="skip") == [
        {"id": 1, "_op": "c"}
    ]


def test_records_that_change_no_row_are_skipped() -> None:
    left_out = [
        event("m", message={"prefix": "p", "content": "AA=="}),
        b'{"status": "BEGIN", "id": "571", "event_count": null, "data_collections": null}',
        b'{"schema": {}, "payload": {"status": "END", "id": "571", "event_count": 2}}',
        b'{"ts_ms": 1}',
        b'{"schema": null, "payload": null}',
        None,
    ]
    block = {"id": "571", "total_order": 1, "data_collection_order": 1}
    rows = [event(op, None, {"id": i}, transaction=block) for i, op in enumerate("rcu")]
    found = sparklog.unwrap_debezium([*left_out, *rows])
    assert [(row["id"], row["_op"]) for row in found] == [(0, "r"), (1, "c"), (2, "u")]


@for_each(
    "record, reason",
    [
        (b"{", "is no JSON"),
        (b"[1]", "is no Debezium event"),
        (b"5", "is no Debezium event"),
        (b'{"op": "x", "after": {"id": 1}}', "is no Debezium event"),
        (b'{"after": {"id": 1}}', "is no Debezium event"),
        (b'{"op": "c", "before": null, "after": null}', "has no 'after'"),
        (b'{"op": "c", "after": [1]}', "list as its row"),
        (b'{"op": "c", "after": "{\\"_id\\": 1}"}', "ExtractNewDocumentState"),
        (b"[" * 100_000, "is no JSON"),
        (b'{"op": "c", "after": ' + b'{"a":' * 100_000, "is no JSON"),
        (b"\xff", "is no JSON"),
        (5, "use text, bytes or a dict"),
    ],
    ids=lambda v: str(v)[:40],
)
def test_other_records_are_refused(record: Any, reason: str) -> None:
    with pytest.raises(DeserializationError, match=f"event 1: .*{reason}"):
        sparklog.unwrap_debezium([None, record])


class Record(NamedTuple):
    key: bytes | None
    value: bytes | None


def test_every_form_of_input_has_the_same_rows(tmp_path: Path) -> None:
    events = [event("c", None, FULL, FIELDS), event("u", None, updated(), FIELDS), event("d", None, None, FIELDS)]
    keys = [key({"id": 1})] * 3
    expected = sparklog.unwrap_debezium(events, keys=keys)
    assert [row["_op"] for row in expected] == ["c", "u", "d"]
    assert expected[1] == {**expected[0], "n": 2, "_op": "u"}
    records = [Record(k, v) for k, v in zip(keys, events, strict=True)]
    table = pa.table({"key": keys, "value": events})
    (tmp_path / "events.jsonl").write_bytes(b"\n".join(events[:1]) + b"\n\n")
    assert sparklog.unwrap_debezium(records) == expected
    assert sparklog.unwrap_debezium([json.loads(v) for v in events], keys=keys) == expected
    assert sparklog.unwrap_debezium(table).to_pylist() == expected
    texts = table.cast(pa.schema([("key", pa.string()), ("value", pa.string())]))
    assert sparklog.unwrap_debezium(texts.combine_chunks().to_batches()[0]).to_pylist() == expected
    for path in (tmp_path / "events.jsonl", str(tmp_path / "events.jsonl")):
        assert sparklog.unwrap_debezium(path) == expected[:1]
    with pytest.raises(TypeError, match="list of events"):
        sparklog.unwrap_debezium(events[0].decode())


def test_rows_without_a_schema_stay_as_json_has_them() -> None:
    row = {"id": 1, "price": 12.5, "s": {"a": [1, "x"]}, "doc": PLACEHOLDER}
    events = [event("c", None, {"id": 1, "doc": "old"}), event("u", None, row)]
    assert sparklog.unwrap_debezium(events, key_columns=["id"]) == [
        {"id": 1, "doc": "old", "_op": "c"},
        {**row, "doc": "old", "_op": "u"},
    ]
    with pytest.raises(DeserializationError, match="column 's' has no type"):
        sparklog.unwrap_debezium(pa.table({"value": events}), key_columns=["id"])


def batch(first: int, *records: tuple[bytes, bytes], earlier: EarlierRows) -> tuple[Changes, EarlierRows]:
    """Unwrap a batch of records as a task of Spark does."""
    reader = EventReader(truncate="skip")
    layout = Layout(pa.schema([("id", pa.int64()), ("n", pa.int32()), ("doc", pa.string())]), hints_of(None, None))
    changes = fill(changes_of(reader.read(records, count(first)), layout), earlier.rows())
    if reader.truncations:
        earlier.clear()
    earlier.add(changes)
    return changes, earlier


def test_the_tombstone_of_a_deletion_can_begin_the_next_batch() -> None:
    reader, one = EventReader(), key({"id": 1})
    assert len(reader.read([(one, event("d", {"id": 1}, None))])) == 1
    assert reader.read([(one, None)], count(1)) == []
    assert len(reader.read([(one, event("c", None, {"id": 1})), (one, None)], count(2))) == 2


def test_values_of_earlier_batches() -> None:
    earlier = EarlierRows()
    one, two = key({"id": 1}), key({"id": 2})
    batch(
        0,
        (one, event("c", None, {"id": 1, "n": 1, "doc": "a"})),
        (two, event("u", None, {"id": 2, "doc": PLACEHOLDER})),
        earlier=earlier,
    )
    changes, _ = batch(
        2,
        (one, event("u", None, {"id": 1, "n": 2, "doc": PLACEHOLDER})),
        (two, event("u", None, {"id": 2, "n": 3, "doc": PLACEHOLDER})),
        earlier=earlier,
    )
    assert changes.columns["doc"].to_pylist() == ["a", None]
    assert changes.unavailable["doc"].tolist() == [False, True]
    batch(4, (one, event("d", None, None)), (two, event("u", None, {"id": 2, "doc": "b"})), earlier=earlier)
    changes, _ = batch(
        6,
        (one, event("u", None, {"id": 1, "doc": PLACEHOLDER})),
        (two, event("u", None, {"id": 2, "doc": PLACEHOLDER})),
        earlier=earlier,
    )
    assert changes.columns["doc"].to_pylist() == [None, "b"]
    batch(8, (b"{}", event("t")), earlier=earlier)
    assert earlier.rows() is None


def test_earlier_rows_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sparklog.debezium.changes.FOLD_ROWS", 50)
    earlier = EarlierRows(bytes_max=4_000)
    for start in range(0, 2_000, 100):
        records = [
            (key({"id": n % 150}), event("c", None, {"id": n % 150, "n": n, "doc": "x" * 20}))
            for n in range(start, start + 100)
        ]
        batch(start, *records, earlier=earlier)
    kept = earlier.rows()
    assert kept is not None
    assert kept.rows.num_rows < 300
    changes, _ = batch(
        2_000, (key({"id": 1_999 % 150}), event("u", None, {"id": 1_999 % 150, "doc": PLACEHOLDER})), earlier=earlier
    )
    assert changes.columns["doc"].to_pylist() == ["x" * 20]


TWICE = [
    (b'{"op":"c","after":{"id":1,"id":2}}', None),
    (b'{"op":"c","op":"d","after":{"id":1}}', None),
    (b'{"op":"c","after":{"id":1,"tags":{"a":[{"b":1,"b":1}]}}}', None),
    ('{"op":"c","after":{"id":1,"i\\u0064":2}}', None),
    (b'{"op" : "c", "after" : {"id" : 1,\n"id" :2, "t" : "a \\" : b"}}', None),
    (b'{"payload":{"op":"c","after":{"id":1}},"payload":{"op":"c","after":{"id":2}}}', None),
    (b'{"schema":{"type":"struct","type":"struct","fields":[]},"payload":{"op":"c","after":{"id":1}}}', None),
    (b'{"op":"d","before":null}', b'{"id":1,"id":2}'),
    (b'{"op":"c","after":{"id":1}}', b'{"payload":{"id":1,"id":1}}'),
]


@pytest.mark.parametrize(("value", "key"), TWICE)
def test_a_field_twice_is_refused_by_name(value: Any, key: Any, tmp_path: Path) -> None:
    """Other readers of JSON would take the last one."""
    forms: list[Any] = [[value], [value.encode() if isinstance(value, str) else value.decode()]]
    table = pa.table({"value": pa.array(forms[0] if isinstance(value, bytes) else [value.encode()], pa.binary())})
    if key is not None:
        table = table.append_column("key", pa.array([key], pa.binary()))
    elif not isinstance(value, str) and b"\n" not in value:
        path = tmp_path / "events.jsonl"
        path.write_bytes(value + b"\n")
        forms.append(path)
    for events in forms:
        with pytest.raises(DeserializationError, match=r"Debezium event 0: .*the field '\w+' is there twice"):
            sparklog.unwrap_debezium(events, "id BIGINT", keys=None if key is None else [key])
    with pytest.raises(DeserializationError, match="is there twice"):
        sparklog.unwrap_debezium(table, "id BIGINT")


def test_colons_inside_of_text_are_no_fields() -> None:
    texts = ['":', " :", '\\":\\"a\\":', "a:b", '{"id":1,"id":2}']
    for text in texts:
        value = json.dumps({"op": "c", "after": {"id": 1, "t": text}}, ensure_ascii=False).encode()
        assert sparklog.unwrap_debezium([value], "id BIGINT, t STRING")[0]["t"] == text
    unknown = b'{"payload":{"op":"c","after":{"id":1}},"more":{"a":1}}'
    assert sparklog.unwrap_debezium([unknown], "id BIGINT")[0]["id"] == 1


def test_further_columns_of_a_frame_have_names_of_no_column() -> None:
    assert [_prefix_of_no(names) for names in (["id"], ["id", "__Old_0"], ["____x"])] == ["__", "___", "_____"]
