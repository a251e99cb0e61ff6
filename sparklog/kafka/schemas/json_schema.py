"""JSON Schemas: their check against the metaschema, their canonical texts, and the rules of compatibility.

A reader's schema is compatible if every document that is valid for the writer's schema is valid for it, too. Keywords
whose effect the rules do not know (`not`, `if`, `unevaluatedProperties`) have to be equal, or missing in the reader.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import msgspec
import regex
from msgspec import Struct

from sparklog.kafka.schemas.comparison import Comparison
from sparklog.kafka.schemas.errors import invalid_schema
from sparklog.security.optional import require

DEPTH_MAX = 64
REFS_MAX = 64
"""Largest number of `$ref` that lead from one to the next."""
MATCH_S = 0.1
"""Longest time in s for one match of a property's name with a pattern."""
ALL_TYPES = frozenset({"null", "boolean", "integer", "number", "string", "array", "object"})
"""The types of JSON; a number includes the integers."""
_UPPER = {"maximum", "exclusiveMaximum", "maxLength", "maxItems", "maxProperties", "maxContains"}
_LOWER = {"minimum", "exclusiveMinimum", "minLength", "minItems", "minProperties", "minContains"}
_ANNOTATIONS = frozenset(
    {"$schema", "$id", "$comment", "$defs", "definitions", "title", "description", "default", "examples", "deprecated"}
) | {"readOnly", "writeOnly", "format"}
"""Keywords that exclude no value."""
_EQUAL = (
    "pattern",
    "not",
    "if",
    "then",
    "else",
    "contains",
    "propertyNames",
    "dependencies",
    "dependentRequired",
    "dependentSchemas",
    "unevaluatedProperties",
    "unevaluatedItems",
)
"""Keywords of which the reader has none, or the same value as the writer."""
_GROUPS = (
    frozenset({"properties", "patternProperties", "additionalProperties"}),
    frozenset({"items", "prefixItems", "additionalItems"}),
)
"""Keywords whose effect depends on the others of their group."""
_DEFINITIONS = ("$defs", "definitions")
_SCHEMAS_BY_NAME = frozenset({*_DEFINITIONS, "properties", "patternProperties"})
_SCHEMA_LISTS = frozenset({"allOf", "anyOf", "oneOf", "prefixItems"})
_SINGLE_SCHEMAS = frozenset({"additionalProperties", "additionalItems", "items"})


class JsonSchema(Struct, eq=False):
    """A parsed schema."""

    root: Any
    """The decoded JSON: an object or a boolean."""
    text: str
    """The JSON without white space, as registered."""
    normal_text: str
    """The JSON with sorted keys."""
    references: dict[str, JsonSchema]
    """Schemas by the names under which `$ref` has them."""


def parse_json_schema(text: str, references: Mapping[str, JsonSchema]) -> JsonSchema:
    """Parse a schema. Raises RegistryError; InvalidConfigError if the library is missing."""
    try:
        root = msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError, UnicodeError) as e:
        raise invalid_schema(f"it is no JSON: {e}") from None
    if not isinstance(root, dict | bool):
        raise invalid_schema("a JSON Schema is an object or a boolean")
    if _is_deeper(root, DEPTH_MAX):
        raise invalid_schema(f"it is nested more than {DEPTH_MAX} deep")
    schema = JsonSchema(root, msgspec.json.encode(root).decode(), _sorted_text(root), dict(references))
    _check_metaschema(root)
    for ref in _refs(root):
        resolved({"$ref": ref}, schema)
    return schema


def _check_metaschema(root: Any) -> None:
    require("jsonschema", "a JSON Schema", "schemas")
    from jsonschema import SchemaError
    from jsonschema.validators import Draft7Validator, validator_for

    validator = validator_for(root, default=Draft7Validator)
    try:
        validator.check_schema(root)
        if isinstance(root, dict) and "$defs" in root:  # a name that draft 7 does not know, but many schemas have
            validator.check_schema({"definitions": root["$defs"]})
    except SchemaError as e:
        path = "/".join(str(part) for part in e.absolute_path)
        raise invalid_schema(f"at /{path}: {e.message[:500]}") from None
    except RecursionError:
        raise invalid_schema("it is nested too deep") from None


def _is_deeper(value: Any, depth: int) -> bool:
    if not isinstance(value, dict | list):
        return False
    inner = value.values() if isinstance(value, dict) else value
    return depth == 0 or any(_is_deeper(one, depth - 1) for one in inner)


def _sorted_text(value: Any) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def _refs(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        if isinstance(ref := value.get("$ref"), str):
            yield ref
        value = [one for key, one in value.items() if key not in ("const", "enum", "default", "examples")]
    if isinstance(value, list):
        for one in value:
            yield from _refs(one)


class Node(Struct, frozen=True):
    """A subschema, and the schema in which its `$ref` are looked up."""

    value: Any
    home: JsonSchema


def resolved(value: Any, home: JsonSchema) -> Node:
    """Follow `$ref`. Keywords beside a `$ref` are ignored, as up to draft 7. Raises RegistryError."""
    for _ in range(REFS_MAX):
        if not isinstance(value, dict) or not isinstance(value.get("$ref"), str):
            return Node(value, home)
        name, _, pointer = value["$ref"].partition("#")
        own_id = home.root.get("$id", "") if isinstance(home.root, dict) else ""
        if name and name != own_id:
            if name not in home.references:
                raise invalid_schema(f"$ref {name[:200]!r} is none of the references: add a reference with this name")
            home = home.references[name]
        value = _pointed(home.root, pointer)
    raise invalid_schema(f"more than {REFS_MAX} $ref lead from one to the next")


def _pointed(root: Any, pointer: str) -> Any:
    """Return the part of a schema to which a JSON pointer, or an anchor, leads. Raises RegistryError."""
    if pointer and not pointer.startswith("/"):
        pools = [root.get(key, {}) for key in _DEFINITIONS] if isinstance(root, dict) else []
        for one in (definition for pool in pools for definition in pool.values()):
            if isinstance(one, dict) and pointer in (one.get("$anchor"), str(one.get("$id", "")).removeprefix("#")):
                return one
        raise invalid_schema(f"$ref '#{pointer[:200]}' leads to no part of the schema")
    value, container = root, ""
    for i, part in enumerate(pointer.split("/")[1:]):
        key: Any = part.replace("~1", "/").replace("~0", "~")
        if isinstance(value, list):
            key = int(key) if key.isascii() and key.isdigit() and len(key) < 7 else -1
            exists = 0 <= key < len(value)
        else:
            exists = isinstance(value, dict) and key in value
        if not exists or (not container and not _is_place(key, i)):
            raise invalid_schema(f"$ref '#{pointer[:200]}' leads to no part of the schema that is a schema")
        value = value[key]
        is_list = key == "items" and isinstance(value, list)
        container = "" if container else str(key) if is_list or key not in _SINGLE_SCHEMAS else ""
    if container or not isinstance(value, dict | bool):
        raise invalid_schema(f"$ref '#{pointer[:200]}' leads to no schema")
    return value


def _is_place(key: str, depth: int) -> bool:
    """Return True if the keyword has schemas, which the metaschema has checked. `$defs` is checked at the root only."""
    if key == "$defs":
        return depth == 0
    return key in _SCHEMAS_BY_NAME | _SCHEMA_LISTS | _SINGLE_SCHEMAS


# -- compatibility


def compare_json(reader: JsonSchema, writer: JsonSchema, comparison: Comparison) -> None:
    """Report the differences for which the reader refuses documents of the writer."""
    _Rules(comparison).compare(Node(reader.root, reader), Node(writer.root, writer), "")


class _Rules:
    """The rules in one comparison."""

    def __init__(self, to: Comparison) -> None:
        self._to = to
        self._merges: dict[tuple[int, int], tuple[Any, Any, Any]] = {}
        """Merged schemas by the identities of their two parts, which stay alive with them. So a recursive schema meets
        the same objects again."""

    def _merged(self, outer: Any, key: str, branch: Any, home: JsonSchema) -> Node:
        """Return a branch of `key` with the keywords beside it. Where both have a keyword, the branch decides: the
        result accepts at least the values of both."""
        node = resolved(branch, home)
        place = id(outer), id(node.value)
        if place not in self._merges:
            rest = {name: one for name, one in outer.items() if name != key}
            self._merges[place] = outer, node.value, _merge(rest, node.value)
        return Node(self._merges[place][2], node.home)

    def compare(self, reader: Node, writer: Node, path: str) -> None:
        """Compare two subschemas."""
        reader, writer = resolved(reader.value, reader.home), resolved(writer.value, writer.home)
        if _is_open(reader.value) or writer.value is False:
            return
        if not self._to.enter(id(reader.value), id(writer.value)):
            return
        if reader.value is False:
            self._to.report("SCHEMA_CLOSED", path, "the reader accepts no value here")
            return
        if isinstance(writer.value, dict) and self._branches(reader, writer, path):
            return
        if self._alternatives(reader, writer, path):
            self._keywords(reader, writer if isinstance(writer.value, dict) else Node({}, writer.home), path)

    def _branches(self, reader: Node, writer: Node, path: str) -> bool:
        """Compare each branch of the writer's `anyOf` or `oneOf`; True if the branches decide."""
        for key in ("anyOf", "oneOf"):
            branches = writer.value.get(key)
            if branches:
                for i, branch in enumerate(branches):
                    merged = self._merged(writer.value, key, branch, writer.home)
                    if not self._to.holds(partial(self.compare, reader, merged, path)):
                        self._to.report("COMBINED_TYPE_SUBSCHEMAS_CHANGED", path, f"the writer's {key} {i} is refused")
                return True
        return False

    def _alternatives(self, reader: Node, writer: Node, path: str) -> bool:
        """Compare the reader's `allOf`, `anyOf` and `oneOf`; False if its other keywords need no comparison."""
        for i, branch in enumerate(reader.value.get("allOf", ())):
            self.compare(Node(branch, reader.home), writer, f"{path}/allOf/{i}")
        parts = writer.value.get("allOf", ()) if isinstance(writer.value, dict) else ()
        for part in parts:  # one part of the writer that is narrow enough suffices
            merged = self._merged(writer.value, "allOf", part, writer.home)
            if self._to.holds(partial(self.compare, reader, merged, path)):
                return False
        for key in ("anyOf", "oneOf"):
            branches, place = reader.value.get(key, ()), f"{path}/{key}"
            if branches and not any(
                self._to.holds(partial(self.compare, Node(one, reader.home), writer, place)) for one in branches
            ):
                self._to.report("COMBINED_TYPE_SUBSCHEMAS_CHANGED", place, "no branch of the reader accepts the values")
        return True

    def _keywords(self, reader: Node, writer: Node, path: str) -> None:
        new, old = reader.value, writer.value
        lost = types_of(old) - types_of(new)
        if lost:
            self._to.report("TYPE_NARROWED", f"{path}/type", f"the reader does not accept {', '.join(sorted(lost))}")
            return
        self._values(new, old, path)
        for name in new:
            if name in _UPPER | _LOWER:
                self._bound(name, new, old, path)
        step, former = new.get("multipleOf"), old.get("multipleOf")
        if step and step != former and (not former or (former / step) % 1):
            self._to.report(
                "MULTIPLE_OF_CHANGED", f"{path}/multipleOf", f"{former} is no multiple of the reader's {step}"
            )
        if new.get("uniqueItems") and not old.get("uniqueItems"):
            self._to.report("UNIQUE_ITEMS_ADDED", f"{path}/uniqueItems", "the writer's items may be equal")
        for name in _EQUAL:
            if name in new and _sorted_text(new[name]) != _sorted_text(old.get(name)):
                self._to.report("KEYWORD_CHANGED", f"{path}/{name}", f"the reader's {name} is not the writer's")
        if "array" in types_of(old):
            self._items(reader, writer, path)
        if "object" in types_of(old):
            self._object(reader, writer, path)

    def _values(self, new: dict[str, Any], old: dict[str, Any], path: str) -> None:
        accepted, written = _constants(new), _constants(old)
        if accepted is None:
            return
        if written is None:
            self._to.report("ENUM_ARRAY_CHANGED", f"{path}/enum", "the writer's values are not limited")
        elif missing := written - accepted:
            self._to.report(
                "ENUM_ARRAY_NARROWED", f"{path}/enum", f"the reader lacks {', '.join(sorted(missing))[:200]}"
            )

    def _bound(self, name: str, new: dict[str, Any], old: dict[str, Any], path: str) -> None:
        bound, former = new[name], old.get(name)
        if name.startswith("min") and bound == 0 and name != "minimum":
            return
        is_within = bound == former
        if not is_within and _is_number(bound) and _is_number(former):
            is_within = former <= bound if name in _UPPER else former >= bound
        if not is_within:
            self._to.report(f"{_snake(name)}_CHANGED", f"{path}/{name}", f"the reader's {bound} excludes values")

    # -- arrays

    def _items(self, reader: Node, writer: Node, path: str) -> None:
        new, old = _tuple(reader.value), _tuple(writer.value)
        for i in range(max(len(new[0]), len(old[0]))):
            first = new[0][i] if i < len(new[0]) else new[1]
            second = old[0][i] if i < len(old[0]) else old[1]
            self.compare(Node(first, reader.home), Node(second, writer.home), f"{path}/items/{i}")
        self.compare(Node(new[1], reader.home), Node(old[1], writer.home), f"{path}/items")

    # -- objects

    def _object(self, reader: Node, writer: Node, path: str) -> None:
        new, old = reader.value, writer.value
        required = set(old.get("required", ()))
        for name in new.get("required", ()):
            own = new.get("properties", {}).get(name, {})
            if name not in required and not (isinstance(own, dict) and "default" in own):
                self._to.report("REQUIRED_ATTRIBUTE_ADDED", f"{path}/required", f"{name!r} may be missing")
        properties, former = new.get("properties", {}), old.get("properties", {})
        for name in {**properties, **former}:
            second = _property(old, name)
            if name not in former and second is True and not _is_open(properties[name]):
                kind, reason = "PROPERTY_ADDED_TO_OPEN_CONTENT_MODEL", "the writer's objects can have any value here"
                self._to.report(kind, f"{path}/properties/{name}", reason)
            else:
                place = f"{path}/properties/{name}"
                self.compare(Node(_property(new, name), reader.home), Node(second, writer.home), place)
        patterns = {**new.get("patternProperties", {}), **old.get("patternProperties", {})}
        for pattern in patterns:
            first, second = (one.get("patternProperties", {}).get(pattern, _rest(one)) for one in (new, old))
            place = f"{path}/patternProperties/{pattern}"
            self.compare(Node(first, reader.home), Node(second, writer.home), place)
        place = f"{path}/additionalProperties"
        self.compare(Node(_rest(new), reader.home), Node(_rest(old), writer.home), place)


def _is_open(value: Any) -> bool:
    """Return True if the schema accepts every value."""
    return value is True or (isinstance(value, dict) and value.keys() <= _ANNOTATIONS)


def _merge(rest: dict[str, Any], branch: Any) -> Any:
    if not isinstance(branch, dict):
        return rest if branch else False
    kept = dict(rest)
    for group in _GROUPS:
        if group & branch.keys():
            kept = {name: one for name, one in kept.items() if name not in group}
    required = [*kept.get("required", ()), *branch.get("required", ())]
    return kept | branch | ({"required": required} if required else {})


def types_of(value: dict[str, Any]) -> frozenset[str]:
    """Return the types that a schema accepts. A number includes the integers."""
    names = value.get("type", ())
    types = frozenset([names] if isinstance(names, str) else names) or ALL_TYPES
    if (constants := _constants(value)) is not None and "type" not in value:
        types = frozenset(_type_of(json.loads(text)) for text in constants)
    return types | {"integer"} if "number" in types else types


def _type_of(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return "null" if value is None else "boolean"
    if isinstance(value, int | float):
        return "integer" if value == int(value) else "number"
    return "string" if isinstance(value, str) else "array" if isinstance(value, list) else "object"


def _constants(value: dict[str, Any]) -> set[str] | None:
    """Return the only values that a schema accepts, as JSON; None without `enum` and `const`."""
    if "const" in value:
        return {_sorted_text(value["const"])}
    return {_sorted_text(one) for one in value["enum"]} if "enum" in value else None


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _tuple(value: dict[str, Any]) -> tuple[list[Any], Any]:
    """Return the schemas of the first items, and that of the others."""
    items = value.get("items", True)
    if isinstance(items, list):
        return items, value.get("additionalItems", True)
    return value.get("prefixItems", []), items


def _property(value: dict[str, Any], name: str) -> Any:
    """Return the schema of a property."""
    if name in value.get("properties", {}):
        return value["properties"][name]
    for pattern, schema in value.get("patternProperties", {}).items():
        if _matches(pattern, name):
            return schema
    return _rest(value)


def _rest(value: dict[str, Any]) -> Any:
    """Return the schema of the properties without one of their own."""
    return value.get("additionalProperties", True)


def _matches(pattern: str, name: str) -> bool:
    """Return True if a part of a property's name matches. Raises RegistryError for a pattern that is not valid, or that
    takes long."""
    try:
        return regex.search(pattern, name, timeout=MATCH_S) is not None
    except (regex.error, TimeoutError, MemoryError, RecursionError):
        raise invalid_schema(f"the pattern {pattern[:200]!r} is not valid, or takes too long") from None


def _snake(name: str) -> str:
    return re.sub(r"([A-Z])", r"_\1", name).upper()
