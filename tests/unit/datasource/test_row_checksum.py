"""The checksum of rows: the same in any order and division, another one for other rows."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st
from pyspark_sparklog.sink import row_checksum as module
from pyspark_sparklog.sink.row_checksum import row_checksum

HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
SCHEMA = pa.schema(
    [
        ("value", pa.binary()),
        ("text", pa.string()),
        ("number", pa.int32()),
        ("yes", pa.bool_()),
        ("amount", pa.decimal128(20, 2)),
        ("headers", HEADERS),
        ("map", pa.map_(pa.string(), pa.int64())),
    ]
)
HEADER = st.fixed_dictionaries({"key": st.text(max_size=3), "value": st.none() | st.binary(max_size=3)})
ROWS = st.lists(
    st.fixed_dictionaries(
        {
            "value": st.none() | st.binary(max_size=20),
            "text": st.none() | st.text(max_size=5),
            "number": st.none() | st.integers(-5, 5),
            "yes": st.none() | st.booleans(),
            "amount": st.none() | st.decimals(-9, 9, places=2),
            "headers": st.none() | st.lists(HEADER, max_size=3),
            "map": st.none() | st.lists(st.tuples(st.text(max_size=2), st.none() | st.integers(0, 3)), max_size=2),
        }
    ),
    max_size=20,
)


def batch_of(rows: list[Any]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(rows, schema=SCHEMA)


@given(ROWS, st.randoms(use_true_random=False), st.integers(0, 20))
def test_order_and_division_do_not_matter(rows: list[Any], rng: random.Random, cut: int) -> None:
    shuffled = rows.copy()
    rng.shuffle(shuffled)
    batch = batch_of(shuffled)
    parts = row_checksum(batch.slice(0, cut)) + row_checksum(batch.slice(cut))
    assert row_checksum(batch_of(rows)) == parts % (1 << 64)


@given(ROWS, ROWS)
def test_other_rows_have_another_one(rows: list[Any], others: list[Any]) -> None:
    def bag(batch: pa.RecordBatch) -> list[str]:
        return sorted(map(repr, batch.to_pylist()))

    a, b = batch_of(rows), batch_of(others)
    assert (row_checksum(a) == row_checksum(b)) == (bag(a) == bag(b))


def test_values_longer_than_a_step_are_one_value() -> None:
    """As the polynomial in one step says."""
    step = module._BYTES_PER_STEP
    values = [b"short", random.Random(3).randbytes(3 * step + 7), b"", b"x" * step, b"last"]
    ends = np.cumsum([0, *map(len, values)])
    powers = np.full(max(map(len, values)), module._PLACE, np.uint64)
    powers[0] = 1
    powers = np.cumprod(powers, dtype=np.uint64)
    sums = [
        int(((np.frombuffer(v, np.uint8).astype(np.uint64) + np.uint64(1)) * powers[: len(v)]).sum(dtype=np.uint64))
        for v in values
    ]
    expected = module._mix(np.array([s ^ len(v) for s, v in zip(sums, values, strict=True)], np.uint64))
    data = np.frombuffer(b"".join(values), np.uint8)
    assert module._of_ranges(data, ends).tolist() == expected.tolist()
    assert module._of_ranges(data, ends[1:]).tolist() == expected[1:].tolist()
