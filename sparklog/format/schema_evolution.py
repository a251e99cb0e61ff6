"""Allowed changes of a typed topic's schema, and the conversion of rows of one schema into the layout of another.

A topic keeps every schema that it ever had, each under an id. A batch names the schema with which it was written, and a
change of the schema rewrites no stored batch. So a change is allowed only if old rows can be read in the new schema:

=====================================  ==========================================================================
allowed                                older rows at a reader
=====================================  ==========================================================================
a new column, at the end               null
int8 → int16 → int32 → int64           a cast that keeps every value
float32 → float64                      a cast that keeps every value
=====================================  ==========================================================================

All other changes are refused: to drop, rename or reorder columns, any other change of a type (also inside a list, map
or struct), any change of the type of a key column (equal keys would go to other partitions) or the timestamp column.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeVar

import pyarrow as pa
from msgspec import Struct

from sparklog.errors import InvalidTopicError, SchemaMismatchError
from sparklog.format.column_names import shown_names
from sparklog.format.schema import canonical_schema, canonical_type, null_column
from sparklog.settings import did_you_mean

Rows = TypeVar("Rows", pa.RecordBatch, pa.Table)

SCHEMA_VERSIONS_MAX = 1000
SCHEMA_VERSIONS_BYTES_MAX = 8 * 1024 * 1024
"""Largest size of all serialised schemas of a topic together: the topic's metadata contain all of them."""

_WIDTHS = (
    (pa.int8(), pa.int16(), pa.int32(), pa.int64()),
    (pa.float32(), pa.float64()),
)
_WIDENINGS = "; ".join(" → ".join(map(str, family)) for family in _WIDTHS)


def can_widen(source: Any, target: Any) -> bool:
    """Return True if a column of type `source` is allowed to become the wider type `target`; False for equal types."""
    return any(source in f and target in f and f.index(source) < f.index(target) for f in _WIDTHS)


class SchemaChange(Struct, frozen=True):
    """A requested change of a schema.

    A request for the present state changes nothing, so a request can be repeated after a lost answer.
    """

    add: pa.Schema | None = None
    """Columns to append."""
    widen: pa.Schema | None = None
    """Columns to widen, with their new types."""
    whole: pa.Schema | None = None
    """The whole new schema; if it is given, `add` and `widen` are ignored."""

    def applied_to(self, schema: pa.Schema, key_columns: Sequence[str], timestamp_column: str | None) -> pa.Schema:
        """Return the canonical schema after the change; `schema` itself if nothing changes.

        Raises InvalidTopicError that names every column whose change is not allowed, with its types.
        """
        problems: list[str] = []
        if self.whole is not None:
            target = canonical_schema(self.whole)
        else:
            target = canonical_schema(self._edit(schema, problems))
        problems += _refusals(schema, target, key_columns, timestamp_column)
        if problems:
            raise InvalidTopicError("the schema cannot be changed like this: " + "; ".join(problems))
        return schema if target.equals(schema) else target

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


def growth(schema: pa.Schema, columns: pa.Schema) -> SchemaChange:
    """Return the change by which a schema gets the columns that it lacks, and wider types. Other differences change
    nothing."""
    present = {f.name: f.type for f in schema}
    added = [f for f in columns if f.name not in present]
    wider = [f for f in columns if f.name in present and can_widen(present[f.name], f.type)]
    return SchemaChange(pa.schema(added) if added else None, pa.schema(wider) if wider else None)


def _refusals(
    schema: pa.Schema, target: pa.Schema, key_columns: Sequence[str], timestamp_column: str | None
) -> Iterator[str]:
    """Yield the reasons why the schema `target` is not allowed after `schema`. Both schemas are canonical."""
    kept = [n for n in target.names if schema.get_field_index(n) >= 0]
    for f in schema:
        at = target.get_field_index(f.name)
        if at < 0:
            role = "the timestamp column " if f.name == timestamp_column else "column "
            yield f"{role}{f.name!r} ({f.type}) is missing: columns cannot be dropped or renamed"
        elif target.field(at).type != f.type:
            yield from _type_refusals(f.name, f.type, target.field(at).type, key_columns, timestamp_column)
    if kept != [n for n in schema.names if n in kept]:
        yield f"the columns' order cannot change (it is {shown_names(schema.names)})"
    elif target.names[: len(kept)] != kept:
        first = next(n for n in target.names if schema.get_field_index(n) < 0)
        yield f"column {first!r} ({target.field(first).type}) is new and must stand at the end"


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
    """Return True if allowed changes lead from `schema` to `later`, or the schemas are equal. Key and timestamp columns
    are treated like other columns."""
    return next(_refusals(schema, later, (), None), None) is None


def check_versions(topic: str, schemas: Mapping[int, pa.Schema]) -> None:
    """Raise InvalidTopicError if `schemas` are more than SCHEMA_VERSIONS_MAX, or larger than SCHEMA_VERSIONS_BYTES_MAX
    together."""
    size = sum(s.serialize().size for s in schemas.values())
    if len(schemas) > SCHEMA_VERSIONS_MAX or size > SCHEMA_VERSIONS_BYTES_MAX:
        raise InvalidTopicError(
            f"topic {topic!r} would have {len(schemas)} schemas of {size} bytes together; at most "
            f"{SCHEMA_VERSIONS_MAX} and {SCHEMA_VERSIONS_BYTES_MAX} are allowed: create a new topic"
        )


class RowAdapter:
    """Converter of batches from the schema `written` into the layout `target`. Columns are chosen by name. Missing
    columns become null, narrower columns are cast, and other columns are not copied.

    `indexes`: the columns of `written` that `target` needs, ascending.
    """

    __slots__ = ("_sources", "_unchanged", "indexes", "target")

    def __init__(self, written: pa.Schema, target: pa.Schema, topic: str) -> None:
        """Plan the conversion. `topic`: name for the error message. Raises SchemaMismatchError if a column of `written`
        has a type that cannot be widened to its type in `target`."""
        self.target = target
        self._sources = [written.get_field_index(f.name) for f in target]
        self.indexes = sorted(i for i in self._sources if i >= 0)
        for f, at in zip(target, self._sources, strict=True):
            if at >= 0 and written.field(at).type != f.type and not can_widen(written.field(at).type, f.type):
                raise SchemaMismatchError(
                    f"topic {topic!r}: column {f.name!r} is {written.field(at).type} now, it was {f.type} when this "
                    "read started: restart the read (or the streaming query) to continue with the new type"
                )
        self._unchanged = [f.name for f in target] == written.names and target.types == written.types

    def adapt(self, batch: Rows) -> Rows:
        """Return `batch` in the layout `target`. `batch` has the columns of `written`, or only those of `indexes`."""
        if self._unchanged:
            return batch
        if not len(self.target):
            return batch.select([])
        columns = []
        for f, at in zip(self.target, self._sources, strict=True):
            if at < 0:
                columns.append(null_column(batch.num_rows, f.type))
            else:
                column = batch.column(batch.schema.get_field_index(f.name))
                columns.append(column if column.type == f.type else column.cast(f.type))
        return type(batch).from_arrays(columns, schema=self.target)
