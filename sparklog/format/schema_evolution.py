"""Allowed changes of a typed topic's schema, and the conversion of rows from one schema's layout into another's.

A topic keeps every schema it ever had, each under an id; a batch names the schema it was written with, and no stored
byte is ever rewritten. So a change is allowed only if old rows can still be expressed in the new schema:

=====================================  ==========================================================================
allowed                                older rows at a reader
=====================================  ==========================================================================
a new column, at the end               null
int8 → int16 → int32 → int64           a cast, every value kept
float32 → float64                      a cast, every value kept
=====================================  ==========================================================================

Everything else is refused: dropping, renaming, reordering, any other change of type (also inside a list, map or
struct), any change of a key column (equal keys would go to other partitions) and of the timestamp column.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeVar

import pyarrow as pa
from msgspec import Struct

from sparklog.errors import InvalidTopicError, SchemaMismatchError
from sparklog.format.schema import canonical_schema, canonical_type, null_column
from sparklog.settings import did_you_mean

Rows = TypeVar("Rows", pa.RecordBatch, pa.Table)

SCHEMA_VERSIONS_MAX = 1000
SCHEMA_VERSIONS_BYTES_MAX = 8 * 1024 * 1024
"""All versions of a topic, serialised: metadata carry them all."""

_WIDTHS = (
    (pa.int8(), pa.int16(), pa.int32(), pa.int64()),
    (pa.float32(), pa.float64()),
)
_WIDENINGS = "; ".join(" → ".join(map(str, family)) for family in _WIDTHS)


def can_widen(source: Any, target: Any) -> bool:
    """Return True if every value of `source` is a value of the wider type `target`, and the change is allowed."""
    return any(source in f and target in f and f.index(source) < f.index(target) for f in _WIDTHS)


class SchemaChange(Struct, frozen=True):
    """A requested change: columns to append and columns to widen (with their new type), or the whole new schema.

    A request for the present state changes nothing, so a request can be repeated after a lost answer.
    """

    add: pa.Schema | None = None
    widen: pa.Schema | None = None
    whole: pa.Schema | None = None

    def applied_to(self, schema: pa.Schema, key_columns: Sequence[str], timestamp_column: str | None) -> pa.Schema:
        """Return the canonical schema after the change; `schema` itself if nothing changes.

        Raises InvalidTopicError that names every column in the way, with its types.
        """
        problems: list[str] = []
        if self.whole is not None:
            wanted = canonical_schema(self.whole)
        else:
            wanted = canonical_schema(self._edit(schema, problems))
        problems += _refusals(schema, wanted, key_columns, timestamp_column)
        if problems:
            raise InvalidTopicError("the schema cannot be changed like this: " + "; ".join(problems))
        return schema if wanted.equals(schema) else wanted

    def _edit(self, schema: pa.Schema, problems: list[str]) -> pa.Schema:
        fields = list(schema)
        names = {f.name.lower(): i for i, f in enumerate(fields)}
        for f in self.add or ():
            at = names.get(f.name.lower())
            if at is None:
                names[f.name.lower()] = len(fields)
                fields.append(f)
            elif at >= len(schema):
                problems.append(f"column {f.name!r} is to be added twice")
            elif fields[at].name != f.name or canonical_type(f.type, f.name) != fields[at].type:
                problems.append(
                    f"column {f.name!r} cannot be added: column {fields[at].name!r} ({fields[at].type}) exists"
                )
        for f in self.widen or ():
            at = schema.get_field_index(f.name)
            if at < 0:
                problems.append(f"unknown column {f.name!r} to widen{did_you_mean(f.name, schema.names)}")
            else:
                fields[at] = pa.field(f.name, f.type)
        return pa.schema(fields)


def _refusals(
    schema: pa.Schema, wanted: pa.Schema, key_columns: Sequence[str], timestamp_column: str | None
) -> Iterator[str]:
    """Yield the reasons why `wanted` may not follow `schema`, both canonical."""
    kept = [n for n in wanted.names if schema.get_field_index(n) >= 0]
    for f in schema:
        at = wanted.get_field_index(f.name)
        if at < 0:
            role = "the timestamp column " if f.name == timestamp_column else "column "
            yield f"{role}{f.name!r} ({f.type}) is missing: columns cannot be dropped or renamed"
        elif wanted.field(at).type != f.type:
            yield from _type_refusals(f.name, f.type, wanted.field(at).type, key_columns, timestamp_column)
    if kept != [n for n in schema.names if n in kept]:
        yield f"the columns' order cannot change (it is {', '.join(schema.names)})"
    elif wanted.names[: len(kept)] != kept:
        first = next(n for n in wanted.names if schema.get_field_index(n) < 0)
        yield f"column {first!r} ({wanted.field(first).type}) is new and must stand at the end"


def _type_refusals(
    name: str, source: Any, target: Any, key_columns: Sequence[str], timestamp_column: str | None
) -> Iterator[str]:
    if name in key_columns:
        yield (
            f"column {name!r} is a key column and must stay {source}: as {target}, equal keys would go to other "
            "partitions"
        )
    elif name == timestamp_column:
        yield f"column {name!r} is the timestamp column and must stay {source}, not {target}"
    elif not can_widen(source, target):
        yield f"column {name!r} is {source} and cannot become {target} (possible: {_WIDENINGS})"


def is_evolution(schema: pa.Schema, later: pa.Schema) -> bool:
    """Return True if allowed changes lead from `schema` to `later`, or they are equal."""
    return next(_refusals(schema, later, (), None), None) is None


def check_versions(topic: str, schemas: Mapping[int, pa.Schema]) -> None:
    """Raise InvalidTopicError if a topic would have more schemas than its metadata can carry."""
    size = sum(s.serialize().size for s in schemas.values())
    if len(schemas) > SCHEMA_VERSIONS_MAX or size > SCHEMA_VERSIONS_BYTES_MAX:
        raise InvalidTopicError(
            f"topic {topic!r} would have {len(schemas)} schemas of {size} bytes together; at most "
            f"{SCHEMA_VERSIONS_MAX} "
            f"and {SCHEMA_VERSIONS_BYTES_MAX} are allowed: create a new topic"
        )


class RowAdapter:
    """Converter of batches from the schema `written` into the layout `wanted`: columns chosen by name, missing ones
    null, narrower ones cast. It works on whole columns and does not copy unchanged ones.

    `indexes`: the needed columns of `written`, ascending.
    """

    __slots__ = ("_sources", "_unchanged", "indexes", "wanted")

    def __init__(self, written: pa.Schema, wanted: pa.Schema, topic: str) -> None:
        """Adapt rows of `written` to `wanted`. Raises SchemaMismatchError if a column of `written` is wider than in
        `wanted`."""
        self.wanted = wanted
        self._sources = [written.get_field_index(f.name) for f in wanted]
        self.indexes = sorted(i for i in self._sources if i >= 0)
        for f, at in zip(wanted, self._sources, strict=True):
            if at >= 0 and written.field(at).type != f.type and not can_widen(written.field(at).type, f.type):
                raise SchemaMismatchError(
                    f"topic {topic!r}: column {f.name!r} is {written.field(at).type} now, it was {f.type} when this "
                    "read started: restart the read (or the streaming query) to continue with the new type"
                )
        self._unchanged = [f.name for f in wanted] == written.names and wanted.types == written.types

    def adapt(self, batch: Rows) -> Rows:
        """Return `batch` in the newest schema. It has the columns of `written`, or only those of `indexes`, by name."""
        if self._unchanged:
            return batch
        if not len(self.wanted):
            return batch.select([])
        columns = []
        for f, at in zip(self.wanted, self._sources, strict=True):
            if at < 0:
                columns.append(null_column(batch.num_rows, f.type))
            else:
                column = batch.column(batch.schema.get_field_index(f.name))
                columns.append(column if column.type == f.type else column.cast(f.type))
        return type(batch).from_arrays(columns, schema=self.wanted)
