"""The pseudonyms of recorded cases."""

from __future__ import annotations

import datetime as dt

import pyarrow as pa
import pytest

from sparklog.errors import InvalidRequestError
from sparklog.testing._cases import _masked, _masked_json
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
    row = _masked_json(b'{"email":"ann@x","n":0.12345678901234567890,"gone":null}', ["email", "gone"], KEY)
    assert row is not None
    assert row.endswith(b'"n":0.12345678901234567890,"gone":null}')
    assert b"ann" not in row


@for_each(
    "value",
    [b'{"email": "\xff"}', b'{"email": ' + b"[" * 100_000, b'{"email": ' + b"9" * 10_000 + b"}", b"\xff", b"[]"],
)
def test_hostile_values_are_refused(value: bytes) -> None:
    with pytest.raises(InvalidRequestError, match="mask `value` itself"):
        _masked_json(value, ["email"], KEY)
