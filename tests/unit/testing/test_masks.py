"""The pseudonyms of recorded cases."""

from __future__ import annotations

import datetime as dt

import pyarrow as pa
import pytest

from sparklog.errors import InvalidRequestError
from sparklog.testing._cases import _masked, _masked_values
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
    return _masked(TABLE, names, key, is_typed=True)


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
    table = _masked(
        pa.table({"key": [None] * 3, "value": pa.array(values, pa.binary())}), ["email"], KEY, is_typed=False
    )
    first, *rest = table["value"].to_pylist()
    assert b"ann" not in first
    assert first.endswith(b',"n":1}')
    assert rest == values[1:]


@for_each("value", [b"no json", b'["ann@x"]', b"\xff"])
def test_a_value_whose_fields_cannot_be_masked_is_refused(value: bytes) -> None:
    table = pa.table({"value": pa.array([value], pa.binary())})
    with pytest.raises(InvalidRequestError, match="no JSON object"):
        _masked(table, ["email"], KEY, is_typed=False)


def test_columns_that_cannot_be_masked_are_refused() -> None:
    with pytest.raises(InvalidRequestError, match="mask 'phone': the columns are"):
        masked(["phone"])
    with pytest.raises(InvalidRequestError, match="double has no pseudonyms"):
        masked(["amount"])


def test_fields_of_json_beside_the_masked_ones_keep_their_text() -> None:
    value = b'{"email":"ann@x","n":0.12345678901234567890,"gone":null}'
    (row,) = _masked_values([value], ["email", "gone"], KEY)
    assert row is not None
    assert row.endswith(b'"n":0.12345678901234567890,"gone":null}')
    assert b"ann" not in row


@for_each(
    "value",
    [b'{"email": "\xff"}', b'{"email": ' + b"[" * 100_000, b'{"email": ' + b"9" * 10_000 + b"}", b"\xff", b"[]"],
)
def test_hostile_values_are_refused(value: bytes) -> None:
    with pytest.raises(InvalidRequestError, match="mask `value` itself"):
        _masked_values([value], ["email"], KEY)


def test_a_field_of_a_struct_is_masked() -> None:
    people = [{"name": "ann", "home": {"city": "ulm", "zip": 7}}, None, {"name": None, "home": None}]
    table = _masked(pa.table({"n": [1, 2, 3], "person": people}), ["person.home.city"], KEY, is_typed=True)
    first, *rest = table["person"].to_pylist()
    assert first["home"].pop("city") not in ("ulm", None)
    assert first == {"name": "ann", "home": {"zip": 7}}
    assert rest == people[1:]
    for name in ("person.age", "person.name.first", "n.x", "person."):
        with pytest.raises(InvalidRequestError, match=f"mask '{name}'"):
            _masked(table, [name], KEY, is_typed=True)


def test_a_field_of_an_inner_json_object_is_masked() -> None:
    values = [b'{"who":{"email":"ann@x","n":1},"n":2}', b'{"who":null}', b'{"n":3}', None]
    first, *rest = _masked_values(values, ["who.email"], KEY)
    assert first is not None
    assert b"ann" not in first
    assert first.endswith(b',"n":1},"n":2}')
    assert rest == values[1:]
    with pytest.raises(InvalidRequestError, match="no JSON object"):
        _masked_values([b'{"who":"ann@x"}'], ["who.email"], KEY)


def test_a_field_that_no_value_has_is_refused() -> None:
    """A wrong name would leave the field as it is, in a file that its reader believes to be masked."""
    values = [b'{"email":"ann@x"}', b'{"email":"bob@x","who":{"name":"bob"}}']
    for name in ("emial", "name", "who.email"):
        with pytest.raises(InvalidRequestError, match=f"mask {name}: no value has the field"):
            _masked_values(values, ["email", name], KEY)
    assert _masked_values([None], ["email"], KEY) == [None]


def test_the_partition_of_a_record_is_not_masked() -> None:
    table = pa.table({"n": [1], "_partition": pa.array([0], pa.int32())})
    with pytest.raises(InvalidRequestError, match=r"mask '_partition': the columns are n$"):
        _masked(table, ["_partition"], KEY, is_typed=True)
