"""Which changes of a schema are allowed, and rows of old schemas in the layout of new ones."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from sparklog.errors import InvalidTopicError, SchemaMismatchError
from sparklog.format.schema_evolution import (
    SCHEMA_VERSIONS_BYTES_MAX,
    SCHEMA_VERSIONS_MAX,
    RowAdapter,
    SchemaChange,
    can_widen,
    check_versions,
    is_evolution,
)
from tests.golden.make_golden import TYPED_SCHEMA, typed_rows

SCHEMA = pa.schema([("id", pa.int32()), ("n", pa.int16()), ("ratio", pa.float32()), ("at", pa.timestamp("us", "UTC"))])
KEYS, TIME = ["id"], "at"


def apply(change: SchemaChange) -> pa.Schema:
    return change.applied_to(SCHEMA, KEYS, TIME)


def refusal(change: SchemaChange) -> str:
    with pytest.raises(InvalidTopicError) as caught:
        apply(change)
    return str(caught.value)


def whole(**changes: Any) -> SchemaChange:
    """The schema with columns of other types (None: dropped), new ones at the end."""
    types = {f.name: f.type for f in SCHEMA} | changes
    return SchemaChange(whole=pa.schema([(n, t) for n, t in types.items() if t is not None]))


def test_new_columns_come_last_and_in_the_stored_layout() -> None:
    change = SchemaChange(add=pa.schema([("a", pa.uint16()), ("b", pa.large_string())]))
    assert apply(change) == pa.schema([*SCHEMA, ("a", pa.int32()), ("b", pa.string())])


def test_a_new_column_may_have_any_type_and_is_nullable() -> None:
    added = TYPED_SCHEMA
    made = SchemaChange(add=added).applied_to(pa.schema([("first", pa.int8())]), [], None)
    assert made == pa.schema([("first", pa.int8()), *TYPED_SCHEMA])
    strict = SchemaChange(add=pa.schema([pa.field("a", pa.int32(), nullable=False)]))
    assert apply(strict).field("a").nullable


@pytest.mark.parametrize(
    ("source", "targets"),
    [
        (pa.int8(), [pa.int16(), pa.int32(), pa.int64()]),
        (pa.int16(), [pa.int32(), pa.int64()]),
        (pa.int32(), [pa.int64()]),
        (pa.int64(), []),
        (pa.float32(), [pa.float64()]),
        (pa.float64(), []),
    ],
)
def test_exactly_these_widenings_are_allowed(source: Any, targets: list[Any]) -> None:
    types = {f.type for f in TYPED_SCHEMA} | {pa.decimal128(12, 2), pa.list_(pa.field("element", pa.int64()))}
    assert {t for t in types if can_widen(source, t)} == set(targets)
    old = pa.schema([("n", source)])
    for target in types - {source}:
        change = SchemaChange(widen=pa.schema([("n", target)]))
        if target in targets:
            assert change.applied_to(old, [], None) == pa.schema([("n", target)])
            assert is_evolution(old, pa.schema([("n", target)]))
        else:
            assert not is_evolution(old, pa.schema([("n", target)]))
            with pytest.raises(InvalidTopicError, match="cannot become"):
                change.applied_to(old, [], None)


def test_both_at_once_and_as_a_whole_are_the_same() -> None:
    parts = SchemaChange(add=pa.schema([("c", pa.string())]), widen=pa.schema([("n", pa.int64())]))
    assert apply(parts) == apply(whole(n=pa.int64(), c=pa.string()))


def test_existing_columns_are_no_change() -> None:
    assert apply(SchemaChange(add=pa.schema([("n", pa.int16())]))) is SCHEMA
    assert apply(SchemaChange(add=pa.schema([("n", pa.uint8())]))) is SCHEMA  # the stored type is int16, too
    assert apply(SchemaChange(widen=pa.schema([("n", pa.int16())]))) is SCHEMA
    assert apply(SchemaChange(whole=SCHEMA)) is SCHEMA
    assert apply(SchemaChange()) is SCHEMA


@pytest.mark.parametrize(
    ("change", "reasons"),
    [
        (whole(n=None), ["'n' (int16) is missing", "cannot be dropped or renamed"]),
        (whole(n=None, m=pa.int16()), ["'n' (int16) is missing"]),
        (whole(at=None), ["timestamp column 'at'", "missing"]),
        (whole(n=pa.string()), ["'n' is int16 and cannot become string"]),
        (whole(n=pa.int8()), ["'n' is int16 and cannot become int8"]),
        (whole(ratio=pa.int64()), ["'ratio' is float and cannot become int64"]),
        (whole(id=pa.int64()), ["'id' is a key column and must stay int32", "as int64"]),
        (whole(at=pa.timestamp("us")), ["'at' is the timestamp column"]),
        (whole(n=pa.string(), ratio=pa.string()), ["'n' is int16", "'ratio' is float"]),
        (SchemaChange(whole=pa.schema(list(SCHEMA)[::-1])), ["order cannot change (it is id, n, ratio, at)"]),
        (
            SchemaChange(whole=pa.schema([("new", pa.int8()), *SCHEMA])),
            ["'new' (int8) is new and must stand at the end"],
        ),
        (SchemaChange(add=pa.schema([("n", pa.int64())])), ["'n' cannot be added: column 'n' (int16) exists"]),
        (SchemaChange(add=pa.schema([("N", pa.int16())])), ["'N' cannot be added: column 'n'"]),
        (SchemaChange(add=pa.schema([("x", pa.int8()), ("X", pa.int8())])), ["'X' is to be added twice"]),
        (SchemaChange(add=pa.schema([("_offset", pa.int8())])), ["'_offset' is reserved"]),
        (SchemaChange(add=pa.schema([("u", pa.uint64())])), ["uint64"]),
        (SchemaChange(widen=pa.schema([("nn", pa.int64())])), ["unknown column 'nn' to widen"]),
    ],
)
def test_everything_else_is_refused_with_column_and_types(change: SchemaChange, reasons: list[str]) -> None:
    message = refusal(change)
    for reason in reasons:
        assert reason in message


def test_nested_columns_cannot_change() -> None:
    old = pa.schema([("s", pa.struct([("a", pa.int32())])), ("l", pa.list_(pa.field("element", pa.int32())))])
    for name, t in (("s", pa.struct([("a", pa.int64())])), ("l", pa.list_(pa.field("element", pa.int64())))):
        with pytest.raises(InvalidTopicError, match=f"column '{name}' is .* and cannot become"):
            SchemaChange(widen=pa.schema([(name, t)])).applied_to(old, [], None)


def test_versions_are_limited() -> None:
    schemas = dict.fromkeys(range(1, SCHEMA_VERSIONS_MAX + 1), SCHEMA)
    check_versions("t", schemas)
    with pytest.raises(InvalidTopicError, match=f"'t' would have {SCHEMA_VERSIONS_MAX + 1} schemas"):
        check_versions("t", schemas | {SCHEMA_VERSIONS_MAX + 1: SCHEMA})
    large = pa.schema([("a" * (SCHEMA_VERSIONS_BYTES_MAX // 4), pa.int32())])
    check_versions("t", dict.fromkeys(range(1, 4), large))
    with pytest.raises(InvalidTopicError, match="create a new topic"):
        check_versions("t", dict.fromkeys(range(1, 5), large))


# --- rows ---


def buffers(batch: pa.RecordBatch) -> list[int]:
    return [b.address for c in batch.columns for b in c.buffers() if b is not None and b.size]


def test_rows_of_the_same_layout_are_handed_through() -> None:
    rows = typed_rows(0, 7)
    adapter = RowAdapter(TYPED_SCHEMA, TYPED_SCHEMA, "t")
    assert adapter.adapt(rows) is rows
    assert adapter.indexes == list(range(len(TYPED_SCHEMA)))


def test_missing_columns_are_null_and_the_others_not_copied() -> None:
    rows = typed_rows(0, 7)
    wanted = pa.schema([*TYPED_SCHEMA, *[pa.field(f"new_{f.name}", f.type) for f in TYPED_SCHEMA]])
    found = RowAdapter(TYPED_SCHEMA, wanted, "t").adapt(rows)
    found.validate(full=True)
    assert found.schema == wanted
    assert found.select(TYPED_SCHEMA.names).equals(rows)
    assert all(found.column(f"new_{n}").null_count == 7 for n in TYPED_SCHEMA.names)
    assert buffers(found.select(TYPED_SCHEMA.names)) == buffers(rows)


def test_widened_columns_keep_every_value_and_null() -> None:
    old = pa.schema([("a", pa.int8()), ("b", pa.int32()), ("c", pa.float32()), ("keep", pa.string())])
    rows = pa.record_batch(
        [[-128, None, 127], [-(2**31), 2**31 - 1, None], [None, 0.1, float("-inf")], ["x", None, "y"]], schema=old
    )
    new = pa.schema([("a", pa.int64()), ("b", pa.int64()), ("c", pa.float64()), ("keep", pa.string())])
    found = RowAdapter(old, new, "t").adapt(rows)
    assert found.schema == new
    assert found.column("a").to_pylist() == [-128, None, 127]
    assert found.column("b").to_pylist() == [-(2**31), 2**31 - 1, None]
    assert found.column("c").to_pylist() == [None, rows.column("c")[1].as_py(), float("-inf")]
    assert buffers(found.select(["keep"])) == buffers(rows.select(["keep"]))


def test_a_projection_needs_only_its_own_columns() -> None:
    old = pa.schema([("a", pa.int8()), ("b", pa.int32()), ("c", pa.string())])
    rows = pa.record_batch([[1, 2], [3, 4], ["x", "y"]], schema=old)
    adapter = RowAdapter(old, pa.schema([("c", pa.string()), ("z", pa.int8()), ("a", pa.int16())]), "t")
    assert adapter.indexes == [0, 2]
    for given in (rows, rows.select([0, 2])):
        assert adapter.adapt(given).to_pydict() == {"c": ["x", "y"], "z": [None, None], "a": [1, 2]}
    none = RowAdapter(old, pa.schema([]), "t").adapt(rows)
    assert (none.num_columns, none.num_rows) == (0, 2)


def test_newer_columns_are_skipped_but_wider_ones_are_an_error() -> None:
    new = pa.schema([("a", pa.int64()), ("b", pa.string())])
    rows = pa.record_batch([[1], ["x"]], schema=new)
    assert RowAdapter(new, pa.schema([("a", pa.int64())]), "t").adapt(rows).to_pydict() == {"a": [1]}
    with pytest.raises(SchemaMismatchError, match=r"'a' is int64 now, it was int32 .*restart"):
        RowAdapter(new, pa.schema([("a", pa.int32())]), "t")
