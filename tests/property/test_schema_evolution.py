"""Random histories of a schema: rows written with any version, read in the layout of any later one."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparklog.errors import InvalidTopicError, SchemaMismatchError
from sparklog.format.batch import decode_batch, encode_batch
from sparklog.format.schema_evolution import RowAdapter, SchemaChange, can_widen, is_evolution
from tests.golden.make_golden import TYPED_SCHEMA

INTEGERS = [pa.int8(), pa.int16(), pa.int32(), pa.int64()]
FLOATS = [pa.float32(), pa.float64()]
TYPES = sorted({*INTEGERS, *FLOATS, *(f.type for f in TYPED_SCHEMA)}, key=str)
NARROW = st.sampled_from([pa.int8(), pa.int16(), pa.int32(), pa.float32(), pa.string()])


@st.composite
def histories(draw: st.DrawFn) -> list[pa.Schema]:
    """The versions of one topic's schema, each the last with columns added and widened."""
    versions = [pa.schema([(f"c{i}", t) for i, t in enumerate(draw(st.lists(NARROW, min_size=1, max_size=4)))])]
    for _ in range(draw(st.integers(1, 5))):
        newest = versions[-1]
        wider = [(f.name, [t for t in TYPES if can_widen(f.type, t)]) for f in newest]
        widen = [(n, draw(st.sampled_from(ts))) for n, ts in wider if ts and draw(st.booleans())]  # type: ignore[arg-type]
        added = draw(st.lists(NARROW | st.sampled_from(TYPES), max_size=3))
        change = SchemaChange(
            add=pa.schema([(f"c{len(newest) + i}", t) for i, t in enumerate(added)]), widen=pa.schema(widen)
        )
        versions.append(change.applied_to(newest, [], None))
    return versions


def value_of(t: Any) -> st.SearchStrategy[Any]:
    if t in INTEGERS:
        return st.integers(-(2 ** (t.bit_width - 1)), 2 ** (t.bit_width - 1) - 1)
    if t in FLOATS:
        return st.floats(width=t.bit_width, allow_nan=False)
    if t == pa.string():
        return st.text(max_size=5)
    return st.none()


@given(st.data(), histories(), st.sampled_from(["none", "lz4", "zstd"]))
def test_old_rows_in_any_later_layout(data: st.DataObject, versions: list[pa.Schema], compression: str) -> None:
    written = data.draw(st.sampled_from(versions))
    later = data.draw(st.sampled_from(versions[versions.index(written) :]))
    wanted = data.draw(st.lists(st.sampled_from(later.names), unique=True))
    layout = pa.schema([later.field(n) for n in wanted])
    count = data.draw(st.integers(1, 5))
    rows = {f.name: data.draw(st.lists(st.none() | value_of(f.type), min_size=count, max_size=count)) for f in written}
    batch = pa.record_batch([pa.array(rows[f.name], f.type) for f in written], schema=written)
    stored = encode_batch(batch, schema_id=1, min_timestamp_ms=0, max_timestamp_ms=0, compression=compression)
    adapter = RowAdapter(written, layout, "t")
    found = adapter.adapt(decode_batch(stored, written, adapter.indexes))
    found.validate(full=True)
    assert (found.schema, found.num_rows) == (layout, count)
    for name in wanted:
        assert found.column(name).to_pylist() == rows.get(name, [None] * count)


@given(histories())
def test_versions_follow_each_other_and_never_go_back(versions: list[pa.Schema]) -> None:
    for i, earlier in enumerate(versions):
        for later in versions[i:]:
            assert is_evolution(earlier, later)
            assert SchemaChange(whole=later).applied_to(earlier, [], None) == later
            if later.equals(earlier):
                continue
            assert not is_evolution(later, earlier)
            with pytest.raises(InvalidTopicError):
                SchemaChange(whole=earlier).applied_to(later, [], None)
            # a reader that is behind gets what it knows, unless a column has become wider
            grown = [f.name for f in earlier if later.field(f.name).type != f.type]
            if grown:
                with pytest.raises(SchemaMismatchError, match=repr(grown[0])):
                    RowAdapter(later, earlier, "t")
            else:
                empty = pa.record_batch([pa.array([], f.type) for f in later], schema=later)
                assert RowAdapter(later, earlier, "t").adapt(empty).schema == earlier


@given(histories(), st.randoms(use_true_random=False))
def test_a_changed_key_is_always_refused(versions: list[pa.Schema], random: Any) -> None:
    first, last = versions[0], versions[-1]
    key = random.choice(first.names)
    change = SchemaChange(whole=last)
    if first.field(key).type == last.field(key).type:
        assert change.applied_to(first, [key], None) == last
    else:
        with pytest.raises(InvalidTopicError, match=f"'{key}' is a key column"):
            change.applied_to(first, [key], None)
