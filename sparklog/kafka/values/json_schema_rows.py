"""Rows as JSON objects that are valid for a JSON Schema: consumers check them.

A column is null for a field that a record did not have, and most schemas allow no null there. So a null is left out,
unless the schema requires the field, or names null among its types. Decimals are numbers where the schema has numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from decimal import Decimal
from functools import lru_cache
from typing import Any, NamedTuple

import msgspec
import pyarrow as pa

from sparklog.errors import SchemaMismatchError
from sparklog.format.ddl import ddl_type
from sparklog.format.json_values import base64_text, json_values, row_objects
from sparklog.kafka.schemas.errors import RegistryError
from sparklog.kafka.schemas.json_schema import ALL_TYPES, JsonSchema, Node, resolved, types_of

Fit = Callable[[Any], Any]
"""Function that returns a value, which is not null, in the form that a schema allows."""
DEPTH_MAX = 64
_ENCODER = msgspec.json.Encoder(decimal_format="string")


class _Member(NamedTuple):
    """One field of objects."""

    fit: Fit | None
    """None: values stay as they are."""
    omits_null: bool
    is_described: bool = True
    """False if the schema allows no field of this name."""


def write_json_schema(rows: pa.RecordBatch, schema: JsonSchema) -> Any:
    """Return rows as JSON objects, a binary array."""
    members = _members(schema, rows.schema)
    names = [name for name, member in zip(rows.schema.names, members, strict=True) if member.is_described]
    columns = []
    for column, member in zip(rows.columns, members, strict=True):
        if not member.is_described:
            continue
        values = json_values(column, base64_text)
        if member.fit is not None or (member.omits_null and column.null_count):
            values = [_fitted(value, member) for value in values]
        columns.append(values)
    if not names:
        return pa.array([b"{}"] * rows.num_rows, pa.binary())
    objects = row_objects(names, columns)
    if isinstance(next(iter(objects), None), dict):
        objects = [{name: v for name, v in one.items() if v is not msgspec.UNSET} for one in objects]
    return pa.array(list(map(_ENCODER.encode, objects)), pa.binary())


def _fitted(value: Any, member: _Member) -> Any:
    if value is None:
        return msgspec.UNSET if member.omits_null else None
    return value if member.fit is None else member.fit(value)


@lru_cache(maxsize=256)
def _members(schema: JsonSchema, columns: pa.Schema) -> tuple[_Member, ...]:
    return tuple(_members_of(Node(schema.root, schema), [(f.name, f.type) for f in columns], 0).values())


def _members_of(node: Node, fields: list[tuple[str, Any]], depth: int) -> Mapping[str, _Member]:
    """Return the members of an object, by their names."""
    inner, required, is_closed = _properties(node, set())
    members: dict[str, _Member] = {}
    for name, kind in fields:
        own = inner.get(name)
        omits_null = name not in required and not (own is not None and _has_type(own, "null", set()))
        members[name] = _Member(_fit(own, kind, depth + 1), omits_null, own is not None or not is_closed)
    return members


def _properties(node: Node, seen: set[int]) -> tuple[dict[str, Node], set[str], bool]:
    """Return the properties of objects with their schemas, the names of those that are required, and True if objects
    have no other ones. `seen`: identities of the schemas on the way, each of which counts once."""
    value, home = _follow(node)
    if not isinstance(value, dict) or id(value) in seen:
        return {}, set(), False
    seen.add(id(value))
    inner: dict[str, Node] = {}
    required: set[str] = set()
    for one in value.get("allOf", ()):
        more, names, _ = _properties(Node(one, home), seen)
        inner |= more
        required |= names
    inner |= {name: Node(one, home) for name, one in value.get("properties", {}).items()}
    is_closed = value.get("additionalProperties") is False and not value.get("patternProperties")
    return inner, required | set(value.get("required", ())), is_closed and "allOf" not in value


def _fit(node: Node | None, kind: Any, depth: int) -> Fit | None:
    """Return the function that fits values of a column's type; None if they stay as they are."""
    if depth > DEPTH_MAX:
        return None
    if pa.types.is_struct(kind):
        members = _members_of(node or Node(True, _NO_SCHEMA), [(f.name, f.type) for f in kind], depth)
        return lambda value: _object(value, members)
    if pa.types.is_list(kind):
        return _fit_elements(_fit(_part(node, "items"), kind.value_type, depth + 1))
    if pa.types.is_map(kind):
        return _fit_entries(_fit(_part(node, "additionalProperties"), kind.item_type, depth + 1))
    if pa.types.is_decimal(kind) and node is not None and _has_number(node):
        return _number
    return None


def _fit_elements(fit: Fit | None) -> Fit | None:
    return None if fit is None else lambda value: [None if v is None else fit(v) for v in value]


def _fit_entries(fit: Fit | None) -> Fit | None:
    return None if fit is None else lambda value: {k: None if v is None else fit(v) for k, v in value.items()}


def _object(value: Any, members: Mapping[str, _Member]) -> dict[str, Any]:
    fitted = {name: _fitted(value[name], one) for name, one in members.items() if one.is_described}
    return {name: one for name, one in fitted.items() if one is not msgspec.UNSET}


def _number(value: Decimal) -> msgspec.Raw:
    return msgspec.Raw(format(value, "f").encode())


def _part(node: Node | None, keyword: str) -> Node | None:
    """Return the schema of the elements of lists or maps."""
    if node is None:
        return None
    value, home = _follow(node)
    inner = value.get(keyword) if isinstance(value, dict) else None
    return Node(inner, home) if isinstance(inner, dict) else None


def _has_number(node: Node) -> bool:
    """Return True if the schema allows numbers, and no text."""
    is_number = _has_type(node, "number", set()) or _has_type(node, "integer", set())
    return is_number and not _has_type(node, "string", set())


def _has_type(node: Node, name: str, seen: set[int]) -> bool:
    """Return True if a schema, or one of its alternatives, names a type of JSON. `seen`: as for `_properties`."""
    value, home = _follow(node)
    if not isinstance(value, dict) or id(value) in seen:
        return False
    seen.add(id(value))
    kinds = value.get("type", ())
    if name == kinds or (isinstance(kinds, list) and name in kinds):
        return True
    if name == "null" and (None in value.get("enum", ()) or ("const" in value and value["const"] is None)):
        return True
    branches = [*value.get("anyOf", ()), *value.get("oneOf", ())]
    return any(_has_type(Node(one, home), name, seen) for one in branches)


def _accepted(node: Node, seen: set[int]) -> frozenset[str]:
    """Return the types that a schema accepts. `seen`: as for `_properties`."""
    value, home = _follow(node)
    if not isinstance(value, dict):
        return ALL_TYPES if value else frozenset()
    if id(value) in seen:
        return ALL_TYPES
    seen.add(id(value))
    accepted = types_of(value)
    for one in value.get("allOf", ()):
        accepted &= _accepted(Node(one, home), seen)
    for keyword in ("anyOf", "oneOf"):
        if value.get(keyword):
            accepted &= frozenset[str]().union(*(_accepted(Node(one, home), set(seen)) for one in value[keyword]))
    return accepted


def check_types(schema: JsonSchema, columns: pa.Schema) -> None:
    """Raise SchemaMismatchError, with the path, if a schema does not accept the type that the values of a column have
    in JSON."""
    node = Node(schema.root, schema)
    if "object" not in _accepted(node, set()):
        raise SchemaMismatchError("rows are objects, which the schema does not accept")
    _check_members(node, list(columns), "", 0)


def check_key_types(schema: JsonSchema, columns: pa.Schema, *, is_value: bool) -> None:
    """Raise SchemaMismatchError if a schema does not accept the canonical keys of rows. `is_value`: True if a key is
    the value of the only column, and no object."""
    keys = pa.schema(
        [f.with_type(pa.string()) if pa.types.is_decimal(f.type) else f for f in columns]
    )  # as their texts
    node = Node(schema.root, schema)
    if is_value:
        _check_type(node, keys.field(0).type, keys.names[0], 0)
    elif "object" not in _accepted(node, set()):
        raise SchemaMismatchError(f"the keys of {len(keys)} columns are objects, which the schema does not accept")
    else:
        _check_members(node, list(keys), "", 0)


def _check_members(node: Node, fields: list[pa.Field], path: str, depth: int) -> None:
    inner, _, _ = _properties(node, set())
    value, _ = _follow(node)
    has_rest = isinstance(value, dict) and not value.get("patternProperties") and "allOf" not in value
    rest = _part(node, "additionalProperties") if has_rest else None
    for field in fields:
        _check_type(inner.get(field.name, rest), field.type, path + field.name, depth + 1)


def _check_type(node: Node | None, kind: Any, path: str, depth: int) -> None:
    if node is None or depth > DEPTH_MAX:
        return
    accepted, form = _accepted(node, set()), _form_of(node, kind)
    if form not in accepted:
        allowed = ", ".join(sorted(accepted - {"null"})) or "no value"
        raise SchemaMismatchError(
            f"field {path!r} is {allowed}, and the values of its column ({ddl_type(kind)}) are {form} in JSON: consumers "
            "would get records that are not valid; allow this type"
        )
    if pa.types.is_struct(kind):
        _check_members(node, list(kind), f"{path}.", depth)
    elif pa.types.is_list(kind):
        _check_type(_part(node, "items"), kind.value_type, f"{path}[]", depth + 1)
    elif pa.types.is_map(kind):
        _check_type(_part(node, "additionalProperties"), kind.item_type, f"{path}[]", depth + 1)


def _form_of(node: Node, kind: Any) -> str:
    """Return the type in JSON of a column's values, of which a whole number is an integer, too."""
    if pa.types.is_decimal(kind):
        return "string" if not _has_number(node) else "number" if kind.scale else "integer"
    if pa.types.is_list(kind):
        return "array"
    if pa.types.is_nested(kind):
        return "object"
    if pa.types.is_boolean(kind):
        return "boolean"
    if pa.types.is_integer(kind):
        return "integer"
    return "number" if pa.types.is_floating(kind) else "string"


def _follow(node: Node) -> tuple[Any, JsonSchema]:
    """Return a schema to which `$ref` leads, and the one in which it stands."""
    try:
        followed = resolved(node.value, node.home)
    except RegistryError:  # registration has refused a `$ref` that leads nowhere
        return True, node.home
    return followed.value, followed.home


_NO_SCHEMA = JsonSchema(True, "true", "true", {})
