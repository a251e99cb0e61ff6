"""The pseudonyms of recorded cases."""

from __future__ import annotations

import datetime as dt
import json
from decimal import Decimal

import pyarrow as pa
import pytest

from sparklog.errors import InvalidRequestError
from sparklog.testing._masks import masked as mask
from sparklog.testing._masks import masked_json
from tests.support.cases import for_each

KEY, OTHER = b"k" * 32, b"o" * 32
TIMES = [dt.datetime(2026, 1, 1, h, tzinfo=dt.UTC) for h in (1, 5, 2)]
TABLE = pa.table(
    {
        "email": ["ann@x", "bob@x", "ann@x", None],
        "number": pa.array([7, 8, 7, None], pa.int32()),
        "at": pa.array([*TIMES, None], pa.timestamp("us", "UTC")),
        "day": pa.array([t.date() for t in TIMES] + [None], pa.date32()),
        "amount": [1.5, 2.5, 3.5, None],
    }
)


def masked(names: list[str], key: bytes = KEY) -> pa.Table:
    return mask(TABLE, names, key, is_typed=True)


def test_equal_values_have_equal_pseudonyms() -> None:
    table = masked(["email", "number"])
    assert table.schema == TABLE.schema
    for name in ("email", "number"):
        one, other, again, none = table[name].to_pylist()
        assert one == again != other
        assert none is None
        assert not {one, other} & set(TABLE[name].to_pylist())
    assert table["amount"] == TABLE["amount"]


def test_the_key_decides_the_pseudonyms() -> None:
    assert masked(["email"]) == masked(["email"])
    assert masked(["email"])["email"] != masked(["email"], OTHER)["email"]


def test_times_keep_their_order_and_distances() -> None:
    table = masked(["at", "day"])
    moved = table["at"].to_pylist()[:3]
    assert [b - a for a, b in zip(TIMES, moved, strict=True)] == [moved[0] - TIMES[0]] * 3
    assert moved[0] < TIMES[0]
    assert [t.date() for t in moved] == table["day"].to_pylist()[:3]


def test_fields_of_json_values() -> None:
    values = [b'{"email":"ann@x","n":1}', b'{"n":2}', None]
    table = mask(pa.table({"key": [None] * 3, "value": pa.array(values, pa.binary())}), ["email"], KEY, is_typed=False)
    first, *rest = table["value"].to_pylist()
    assert b"ann" not in first
    assert first.endswith(b',"n":1}')
    assert rest == values[1:]


@for_each("value", [b"no json", b'["ann@x"]', b"\xff"])
def test_a_value_whose_fields_cannot_be_masked_is_refused(value: bytes) -> None:
    table = pa.table({"value": pa.array([value], pa.binary())})
    with pytest.raises(InvalidRequestError, match="no JSON object"):
        mask(table, ["email"], KEY, is_typed=False)


def test_columns_that_cannot_be_masked_are_refused() -> None:
    with pytest.raises(InvalidRequestError, match="mask 'phone': the columns are"):
        masked(["phone"])
    with pytest.raises(InvalidRequestError, match=r"duration.* has no pseudonyms"):
        mask(pa.table({"age": pa.array([1], pa.duration("us"))}), ["age"], KEY, is_typed=True)


COLUMNS = {
    "BOOLEAN": pa.array([True, False, None]),
    "FLOAT": pa.array([1.5, 1e30, None], pa.float32()),
    "DOUBLE": pa.array([1.5, float("nan"), None]),
    "DECIMAL(5,2)": pa.array([Decimal("999.99"), Decimal(0), None], pa.decimal128(5, 2)),
    "DECIMAL(38,10)": pa.array([Decimal("-1.5"), Decimal(0), None], pa.decimal128(38, 10)),
    "ARRAY<STRING>": pa.array([["ann", None, "ann"], [], None]),
    "ARRAY<ARRAY<INT>>": pa.array([[[1, 2], None], [[1]], None], pa.list_(pa.list_(pa.int32()))),
    "MAP<STRING,STRUCT>": pa.array(
        [[("ann", {"age": 3})], [], None], pa.map_(pa.string(), pa.struct([("age", pa.int64())]))
    ),
    "STRUCT": pa.array([{"name": "ann", "tags": ["ann"]}, {"name": None, "tags": None}, None]),
}


@for_each("kind", list(COLUMNS))
def test_columns_of_each_type_are_masked(kind: str) -> None:
    column = COLUMNS[kind]
    table = pa.table({"n": [7, 8, 9], "x": pa.concat_arrays([column, column]).slice(2, 3)})
    again = mask(table, ["x"], KEY, is_typed=True)
    assert again.schema == table.schema
    again.validate(full=True)
    values = again["x"].to_pylist()
    assert values[0] is None
    assert "ann" not in repr(values)
    assert kind == "BOOLEAN" or values[1] != table["x"][1].as_py()
    assert again == mask(table, ["x", "x"], KEY, is_typed=True), "a name that is repeated masks once"


def test_equal_elements_have_equal_pseudonyms() -> None:
    table = pa.table({"name": ["ann"], "names": [["ann", "bob", "ann"]], "people": [[{"name": "ann", "age": 3}]]})
    (row,) = mask(table, ["name", "names", "people.name"], KEY, is_typed=True).to_pylist()
    assert row["names"][0] == row["names"][2] == row["name"] == row["people"][0]["name"] != row["names"][1]
    assert row["people"][0]["age"] == 3


@for_each("names", [["who", "who.name"], ["who.name", "who"]])
def test_a_part_of_a_masked_field_is_not_named_again(names: list[str]) -> None:
    table = pa.table({"who": [{"name": "ann"}]})
    with pytest.raises(InvalidRequestError, match=r"mask 'who\.name': it is a part of 'who'"):
        mask(table, names, KEY, is_typed=True)
    with pytest.raises(InvalidRequestError, match=r"mask 'who\.name': it is a part of 'who'"):
        mask(pa.table({"value": [b'{"who": {"name": "ann"}}']}), names, KEY, is_typed=False)


def test_pseudonyms_of_json_have_the_types_of_their_values() -> None:
    value = {"who": {"name": "ann", "ids": [7, None], "ok": True, "m": 1.5}, "list": [{"name": "ann", "n": 1}, None]}
    (row,) = masked_json([json.dumps(value).encode()], ["who", "list.name"], KEY)
    assert row is not None
    changed = json.loads(row)
    names = [changed["who"]["name"], changed["list"][0]["name"]]
    assert names[0] == names[1] != "ann"
    assert [type(item) for item in changed["who"]["ids"]] == [int, type(None)]
    assert changed["who"]["ids"] == [masked_number(7), None]
    assert (type(changed["who"]["ok"]), type(changed["who"]["m"])) == (bool, float)
    assert changed["list"][1] is None
    assert changed["list"][0]["n"] == 1


def masked_number(value: int) -> int:
    (number,) = mask(pa.table({"n": pa.array([value], pa.int64())}), ["n"], KEY, is_typed=True)["n"].to_pylist()
    assert isinstance(number, int)
    return number


def test_fields_of_json_beside_the_masked_ones_keep_their_text() -> None:
    value = b'{"email":"ann@x","n":0.12345678901234567890,"gone":null}'
    (row,) = masked_json([value], ["email", "gone"], KEY)
    assert row is not None
    assert row.endswith(b'"n":0.12345678901234567890,"gone":null}')
    assert b"ann" not in row


@for_each(
    "value",
    [b'{"email": "\xff"}', b'{"email": ' + b"[" * 100_000, b'{"email": ' + b"9" * 10_000 + b"}", b"\xff", b"[]"],
)
def test_hostile_values_are_refused(value: bytes) -> None:
    with pytest.raises(InvalidRequestError, match="mask `value` itself"):
        masked_json([value], ["email"], KEY)


def test_a_field_of_a_struct_ismask() -> None:
    people = [{"name": "ann", "home": {"city": "ulm", "zip": 7}}, None, {"name": None, "home": None}]
    table = mask(pa.table({"n": [1, 2, 3], "person": people}), ["person.home.city"], KEY, is_typed=True)
    first, *rest = table["person"].to_pylist()
    assert first["home"].pop("city") not in ("ulm", None)
    assert first == {"name": "ann", "home": {"zip": 7}}
    assert rest == people[1:]
    for name in ("person.age", "person.name.first", "n.x", "person."):
        with pytest.raises(InvalidRequestError, match=f"mask '{name}'"):
            mask(table, [name], KEY, is_typed=True)


def test_a_field_of_an_inner_json_object_ismask() -> None:
    values = [b'{"who":{"email":"ann@x","n":1},"n":2}', b'{"who":null}', b'{"n":3}', None]
    first, *rest = masked_json(values, ["who.email"], KEY)
    assert first is not None
    assert b"ann" not in first
    assert first.endswith(b',"n":1},"n":2}')
    assert rest == values[1:]
    with pytest.raises(InvalidRequestError, match="no JSON object"):
        masked_json([b'{"who":"ann@x"}'], ["who.email"], KEY)


def test_a_field_that_no_value_has_is_refused() -> None:
    """A wrong name would leave the field as it is, in a file that its reader believes to be masked."""
    values = [b'{"email":"ann@x"}', b'{"email":"bob@x","who":{"name":"bob"}}']
    for name in ("emial", "name", "who.email"):
        with pytest.raises(InvalidRequestError, match=f"mask {name}: no value has the field"):
            masked_json(values, ["email", name], KEY)
    assert masked_json([None], ["email"], KEY) == [None]


def test_the_partition_of_a_record_is_notmask() -> None:
    table = pa.table({"n": [1], "_partition": pa.array([0], pa.int32())})
    with pytest.raises(InvalidRequestError, match=r"mask '_partition': the columns are n$"):
        mask(table, ["_partition"], KEY, is_typed=True)
