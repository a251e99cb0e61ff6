"""The independent computation: what must come out, from the package's own data with PyArrow alone.

Nothing here uses sparklog or Spark: partitions are recomputed with a hash written out below, aggregates with Arrow's
group-by. The demo compares these figures with what it reads back.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json

RESULT_SCHEMA = pa.schema(
    [
        ("origin", pa.string()),
        ("time_hour", pa.timestamp("us", tz="UTC")),
        ("flights", pa.int64()),
        ("departed", pa.int64()),
        ("total_delay_min", pa.int64()),
        ("mean_delay_min", pa.float64()),
        ("max_delay_min", pa.int32()),
    ]
)
"""One row per origin and hour: flights scheduled, flights that left (the others were cancelled), departure delay in
minutes. The three delays are null for an hour in which every flight was cancelled."""


@dataclass(frozen=True)
class Check:
    """One line of the closing table: two figures that must be the same."""

    what: str
    expected: str
    found: str
    ok: bool


def check(what: str, expected: object, found: object) -> Check:
    """A check that holds when both figures are equal."""
    return Check(what, figure(expected), figure(found), expected == found)


def figure(value: object) -> str:
    """A figure as people read it: thousands separated, lists with blanks between."""
    if isinstance(value, bool) or value is None:
        return str(value)
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:,.2f}"
    if isinstance(value, list | tuple):
        return "  ".join(figure(v) for v in value)
    return str(value)


# --- partitions ---------------------------------------------------------------------------------------------------


def murmur2(data: bytes) -> int:
    """Kafka's murmur2 of `data` (seed 0x9747b28c), as an unsigned 32-bit number."""
    mask, m = 0xFFFFFFFF, 0x5BD1E995
    h = 0x9747B28C ^ len(data)
    whole = len(data) & ~3
    for i in range(0, whole, 4):
        k = int.from_bytes(data[i : i + 4], "little") * m & mask
        k = (k ^ k >> 24) * m & mask
        h = (h * m & mask) ^ k
    rest = data[whole:]
    if rest:
        h = (h ^ int.from_bytes(rest, "little")) * m & mask
    h = (h ^ h >> 13) * m & mask
    return h ^ h >> 15


def partition_of(key: bytes, partitions: int) -> int:
    """The partition that Kafka's default partitioner gives a key."""
    return (murmur2(key) & 0x7FFFFFFF) % partitions


def partitions_of(keys: pa.ChunkedArray, partitions: int) -> np.ndarray[tuple[int], np.dtype[np.int32]]:
    """The partition of every row by its key (string or binary, no nulls): int32, one per row. Hashes each distinct key
    once."""
    encoded = keys.combine_chunks().dictionary_encode()
    if isinstance(encoded, pa.ChunkedArray):
        encoded = encoded.combine_chunks()
    distinct = encoded.dictionary.cast(pa.binary()).to_pylist()
    by_key = np.array([partition_of(k, partitions) for k in distinct], dtype=np.int32)
    result: np.ndarray[tuple[int], np.dtype[np.int32]] = by_key[encoded.indices.to_numpy()]
    return result


def split_by_partition(table: pa.Table, key_column: str, partitions: int) -> list[pa.Table]:
    """`table` as each partition must hold it: its rows by the key's hash, in their order."""
    numbers = pa.array(partitions_of(table[key_column], partitions))
    return [table.filter(pc.equal(numbers, p)) for p in range(partitions)]


# --- the aggregate ------------------------------------------------------------------------------------------------


def delay_by_origin_hour(flights: pa.Table) -> pa.Table:
    """The expected result of the streaming query, RESULT_SCHEMA, ordered by hour and origin."""
    groups = flights.group_by(["origin", "time_hour"], use_threads=False).aggregate(
        [
            ([], "count_all"),
            ("dep_delay", "count"),
            ("dep_delay", "sum"),
            ("dep_delay", "mean"),
            ("dep_delay", "max"),
        ]
    )
    columns = [
        "origin",
        "time_hour",
        "count_all",
        "dep_delay_count",
        "dep_delay_sum",
        "dep_delay_mean",
        "dep_delay_max",
    ]
    table = groups.select(columns).rename_columns(RESULT_SCHEMA.names).cast(RESULT_SCHEMA)
    return table.sort_by([("time_hour", "ascending"), ("origin", "ascending")])


@dataclass(frozen=True)
class Difference:
    """How two tables differ as multisets of rows. `equal` rows are in both; a changed row is missing and unexpected."""

    equal: int
    missing: int
    unexpected: int

    def __str__(self) -> str:
        if not self.missing and not self.unexpected:
            return f"{self.equal:,} rows equal"
        return f"{self.equal:,} rows equal, {self.missing:,} missing, {self.unexpected:,} unexpected"


def compare_rows(expected: pa.Table, found: pa.Table) -> Difference:
    """Compares two tables row by row over all columns, in any order; duplicates count, null equals null.

    `found` must have `expected`'s columns (any order, castable types); ValueError names what is missing.
    """
    absent = [n for n in expected.column_names if n not in found.column_names]
    if absent:
        raise ValueError(f"no column {', '.join(absent)} among {', '.join(found.column_names)}")
    found = found.select(expected.column_names).cast(expected.schema)
    side = "_side_"
    both = pa.concat_tables(
        [
            expected.append_column(side, pa.array(np.ones(expected.num_rows, dtype=np.int64))),
            found.append_column(side, pa.array(-np.ones(found.num_rows, dtype=np.int64))),
        ]
    )
    groups = both.group_by(expected.column_names).aggregate([(side, "sum")])
    balance = groups[f"{side}_sum"].to_numpy()
    missing, unexpected = int(balance[balance > 0].sum()), int(-balance[balance < 0].sum())
    return Difference(expected.num_rows - missing, missing, unexpected)


def rows_check(what: str, expected: pa.Table, found: pa.Table) -> Check:
    """A check that two tables hold the same rows."""
    wanted = str(Difference(expected.num_rows, 0, 0))
    try:
        difference = compare_rows(expected, found)
    except (ValueError, pa.ArrowException) as e:
        return Check(what, wanted, f"cannot be compared: {e}", ok=False)
    return Check(what, wanted, str(difference), str(difference) == wanted)


# --- what a topic must hold ---------------------------------------------------------------------------------------


def topic_checks(
    topic: str,
    expected: Sequence[pa.Table],
    found: Sequence[pa.Table],
    end_offsets: Sequence[int],
) -> list[Check]:
    """Checks of one topic, given what each partition must hold and what was read back (with `_offset`).

    Rows per partition as the broker counts them and as they were read; offsets without a gap; every column of every
    row, in the order in which they were sent.
    """
    rows = [t.num_rows for t in expected]
    checks = [
        check(f"{topic}: end offset per partition", rows, list(end_offsets)),
        check(f"{topic}: rows read per partition", rows, [t.num_rows for t in found]),
    ]
    dense = all(np.array_equal(t["_offset"].to_numpy(), np.arange(t.num_rows)) for t in found)
    checks.append(check(f"{topic}: offsets without a gap", "yes", "yes" if dense else "no"))
    wanted = f"{sum(rows):,} rows × {expected[0].num_columns} columns"
    difference = first_difference(expected, found)
    checks.append(Check(f"{topic}: every value, in order", wanted, difference or wanted, difference is None))
    return checks


def first_difference(expected: Sequence[pa.Table], found: Sequence[pa.Table]) -> str | None:
    """Where the partitions' rows first differ from what is expected, or None."""
    for p, (want, have) in enumerate(zip(expected, found, strict=True)):
        absent = [n for n in want.column_names if n not in have.column_names]
        if absent:
            return f"partition {p} has no column {absent[0]}"
        have = have.select(want.column_names)
        if want.num_rows != have.num_rows:
            return f"partition {p} has {have.num_rows:,} rows"
        if want.schema.types != have.schema.types:
            return f"partition {p}: types differ"
        for name in want.column_names:
            if not want[name].equals(have[name]):
                return f"partition {p}, column {name} differs"
    return None


def column_sum(table: pa.Table, column: str) -> int:
    """Exact sum of an integer column (nulls skipped; 0 for none)."""
    return int(pc.sum(table[column]).as_py() or 0)


def sum_checks(topic: str, columns: Sequence[str], expected: pa.Table, found: pa.Table) -> list[Check]:
    """Sum and number of nulls of integer columns, both sides."""
    return [
        check(
            f"{topic}: sum({c}), nulls",
            [column_sum(expected, c), expected[c].null_count],
            [column_sum(found, c), found[c].null_count],
        )
        for c in columns
    ]


def parsed_events(values: pa.ChunkedArray) -> pa.Table:
    """The events' JSON objects as columns, for a look inside the bytes that came back."""
    lines = b"\n".join(values.to_pylist())
    return pa.json.read_json(io.BytesIO(lines))
