"""A subject's schema evolves in random steps: each stored row stays readable, and no value comes back changed."""

from __future__ import annotations

import io
from random import Random
from typing import Any

import fastavro
import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from sparklog.errors import InvalidTopicError, SchemaMismatchError
from sparklog.format.schema_evolution import RowAdapter, growth
from sparklog.kafka.records.errors import InvalidRecordError
from sparklog.kafka.values.carrying import check_carries
from sparklog.kafka.values.framed_records import Target, check_columns, columns_of_schema, read_framed
from sparklog.kafka.values.framed_rows import check_forms, write_framed
from tests.unit.gateway.registry_schemas import FixedSchemas, avro

ROOM = 1 << 24
ONE = np.zeros(1, bool)
VALUES: dict[str, list[Any]] = {
    "int": [0, 2**31 - 1],
    "long": [0, 2**53 + 1, -(2**63)],
    "float": [1.5, 2.0**100],
    "double": [0.1, 1e300, 3.0],
    "string": ["", "A", "ü"],
    "bytes": [b"", b"\xff", b"A"],
    "timestamp-millis": [0, 1_700_000_000_001],
    "timestamp-micros": [0, 1_700_000_000_000_001],
    "time-millis": [1],
    "time-micros": [1],
}
DEFAULTS: dict[str, Any] = {"string": "d", "bytes": "d", "float": 0.5, "double": 0.5}
Field = dict[str, Any]


class Evolution:
    """Draws records and their next versions. A type is a name in VALUES, or a list with the kind and inner parts."""

    def __init__(self, random: Random) -> None:
        self.random = random

    def record(self, depth: int = 0) -> list[Field]:
        return [self.field(name, depth) for name in self.random.sample("abc", self.random.randint(1, 3))]

    def field(self, name: str, depth: int) -> Field:
        draw = self.random.random
        aliases = [self.random.choice("abcd")] if draw() < 0.2 else []
        return {"name": name, "type": self.type(depth), "has_default": draw() < 0.5, "aliases": aliases}

    def type(self, depth: int) -> Any:
        drawn = self.random.random()
        if depth < 2 and drawn < 0.15:
            return ["record", self.record(depth + 1)]
        if depth < 2 and drawn < 0.3:
            return [self.random.choice(["array", "map"]), self.type(depth + 1)]
        return ["null", self.leaf()] if drawn < 0.5 else self.leaf()

    def leaf(self) -> Any:
        if self.random.random() < 0.2:
            return ["enum", self.random.choice(["A", "AB", "ABC"]), self.random.random() < 0.3]
        return self.random.choice(list(VALUES))

    def next_version(self, fields: list[Field], depth: int = 0) -> list[Field]:
        changed: dict[str, Field] = {}
        for field in fields:
            drawn, new = self.random.random(), dict(field)
            if drawn < 0.1:
                continue
            if drawn < 0.2:
                new |= {"name": self.random.choice("abcd"), "aliases": [field["name"]]}
            elif drawn < 0.5:
                new |= {"type": self.next_type(field["type"], depth), "has_default": self.random.random() < 0.6}
            changed.setdefault(new["name"], new)
        if not changed or self.random.random() < 0.4:
            new = self.field(self.random.choice("abcd"), depth)
            changed.setdefault(new["name"], new)
        return list(changed.values())

    def next_type(self, kind: Any, depth: int) -> Any:
        if self.random.random() < 0.2:
            return self.type(depth)
        match kind:
            case ["record", fields]:
                return ["record", self.next_version(fields, depth + 1)]
            case ["null", inner]:
                return inner if self.random.random() < 0.5 else ["null", self.leaf()]
            case ["array" | "map" as outer, inner]:
                return [outer, self.next_type(inner, depth + 1)]
            case _:
                return ["null", kind] if self.random.random() < 0.3 else self.leaf()

    def value(self, kind: Any) -> Any:
        match kind:
            case ["record", fields]:
                return {field["name"]: self.value(field["type"]) for field in fields}
            case ["null", inner]:
                return None if self.random.random() < 0.4 else self.value(inner)
            case ["array", inner]:
                return [self.value(inner) for _ in range(self.random.randint(0, 2))]
            case ["map", inner]:
                return {"k": self.value(inner)} if self.random.random() < 0.7 else {}
            case ["enum", symbols, _]:
                return self.random.choice(symbols)
            case _:
                return self.random.choice(VALUES[kind])


def source_of(fields: list[Field], *, has_logical: bool) -> Any:
    """The JSON of a record. `has_logical`: False for fastavro, which gets values before logical types."""
    numbers = iter(range(1_000))

    def of(kind: Any) -> Any:
        match kind:
            case ["record", inner]:
                return {"type": "record", "name": f"R{next(numbers)}", "fields": list(map(field_of, inner))}
            case ["null", inner]:
                return ["null", of(inner)]
            case ["array", inner]:
                return {"type": "array", "items": of(inner)}
            case ["map", inner]:
                return {"type": "map", "values": of(inner)}
            case ["enum", symbols, has_default]:
                enum = {"type": "enum", "name": f"E{next(numbers)}", "symbols": list(symbols)}
                return enum | ({"default": "A"} if has_default else {})
            case _ if "-" in kind:
                own = {"type": "int" if kind == "time-millis" else "long"}
                return own | ({"logicalType": kind} if has_logical else {})
            case _:
                return kind

    def default_of(kind: Any) -> Any:
        match kind:
            case ["record", inner]:
                return {field["name"]: default_of(field["type"]) for field in inner}
            case ["null", _]:
                return None
            case ["array" | "map" as outer, _]:
                return [] if outer == "array" else {}
            case ["enum", _, _]:
                return "A"
            case _:
                return DEFAULTS.get(kind, 1)

    def field_of(field: Field) -> Any:
        own = {"name": field["name"], "type": of(field["type"]), "aliases": field["aliases"]}
        return own | ({"default": default_of(field["type"])} if field["has_default"] else {})

    return of(["record", fields])


def payload_of(fields: list[Field], value: Any) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(source_of(fields, has_logical=False)), value)
    return out.getvalue()


def is_kept(kind: Any, before: Any, after: Any) -> bool:
    """True if a value came back from the newest version. Null can be a default, and so can a symbol of an enum."""
    match kind:
        case ["null", inner]:
            return after is None if before is None else is_kept(inner, before, after)
        case _ if before is None:
            return True
        case ["record", fields]:
            own = {field["name"]: field["type"] for field in fields}
            return all(is_kept(own[name], value, after[name]) for name, value in before.items() if name in own)
        case ["array", inner]:
            return len(before) == len(after) and all(map(is_kept, [inner] * len(before), before, after))
        case ["map", inner]:
            values = [[value for _, value in entries] for entries in (before, after)]
            return len(before) == len(after) and all(map(is_kept, [inner] * len(before), *values))
        case ["enum", symbols, has_default]:
            return before == after or (has_default and before not in symbols)
        case _:
            return repr(before) == repr(after)


def row_of(values: Any, target: Target, schemas: FixedSchemas) -> pa.RecordBatch | None:
    """The row of a record; None if the record is refused."""
    try:
        row = read_framed(values, ONE, target, schemas, ROOM).batch
        check_forms(row, values, target, schemas, ROOM)
    except InvalidRecordError:
        return None
    return row


@given(st.integers(0, 2**32))
def test_rows_stay_readable_in_each_version_that_is_registered(seed: int) -> None:
    random = Random(seed)
    evolution = Evolution(random)
    fields, columns = evolution.record(), pa.schema([])
    versions: list[list[Field]] = []
    schemas = FixedSchemas()
    rows: list[pa.RecordBatch] = []
    for _ in range(random.randint(2, 4)):
        try:
            new = avro(source_of(fields, has_logical=True))
            own = columns_of_schema(new, columns.names)
            after = growth(columns, own).applied_to(columns, (), None) if versions else own
            check_columns(new, after)
            check_carries(new, [(f"version {i}", one) for i, one in schemas.schemas.items()], after, columns.names)
        except (SchemaMismatchError, InvalidTopicError):
            fields = evolution.next_version(versions[-1]) if versions else evolution.record()
            continue
        columns = after
        versions.append(fields)
        schemas.schemas[len(versions)] = new
        target = Target("t", "avro", columns, "t-value")
        for _ in range(5):
            number = random.randint(1, len(versions))
            record = evolution.value(["record", versions[number - 1]])
            values = pa.array([bytes([0, 0, 0, 0, number]) + payload_of(versions[number - 1], record)])
            row = row_of(values, target, schemas)
            rows += [row] if row is not None else []
        for stored in rows:
            whole = RowAdapter(stored.schema, columns, "t").adapt(stored)
            records = write_framed(whole, ONE, target, schemas, ROOM)  # an error would close the partition
            again = row_of(records, target, schemas)
            if again is not None:  # a default of bytes can be no text
                assert is_kept(["record", fields], whole.to_pylist()[0], again.to_pylist()[0])
        fields = evolution.next_version(fields)
