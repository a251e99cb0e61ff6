"""The content of the schema pages: subjects, texts of schemas, and the differences between two versions."""

from __future__ import annotations

import contextlib
import difflib
from collections.abc import Collection, Iterator, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import msgspec

from sparklog.client.net.registry_subjects import SubjectVersion
from sparklog.console.views.values import visible
from sparklog.kafka.values.schemas import KEY_SUFFIX, VALUE_SUFFIX, topic_of

TEXT_CHARS_MAX = 64 * 1024
"""Largest part of a schema's text that a page shows."""
LINES_COMPARED_MAX = 1_500
"""Largest number of lines that are compared, beside equal ones at the beginning and at the end."""
CONTEXT_LINES = 3
DEPTH_MAX = 64
FIELDS_MAX = 5_000
CHANGES_SHOWN_MAX = 200
CHANGES_OF_A_ROW_MAX = 5
TYPE_CHARS_MAX = 120
KINDS = ("AVRO", "PROTOBUF", "JSON")


class SubjectRow(NamedTuple):
    """A line of the list of subjects. Values that are not known are None, or empty."""

    name: str
    shown: str
    """The name, with invisible characters made visible."""
    topic: str
    """The topic that the subject belongs to; empty if there is none."""
    part: str
    """"value", "key", or empty for a subject of another kind."""
    versions: int | None = None
    """Number of versions."""
    latest: SubjectVersion | None = None
    level: str = ""
    mode: str = ""


def subjects_matching(names: Sequence[str], search: str) -> list[str]:
    """Return the subjects whose name contains `search`, regardless of case. Names that begin with it come first."""
    needle = search.lower()
    matching = [name for name in names if needle in name.lower()]
    return sorted(matching, key=lambda name: not name.lower().startswith(needle)) if needle else matching


def subject_row(name: str, topics: Collection[str]) -> SubjectRow:
    """Return the line of a subject without details. `topics`: names of the topics that exist."""
    topic = topic_of(name)
    part = "value" if name.endswith(VALUE_SUFFIX) else "key" if name.endswith(KEY_SUFFIX) else ""
    return SubjectRow(name, visible(name), topic if topic in topics else "", part)


class SchemaText(NamedTuple):
    """The text of a schema for a page."""

    text: str
    is_cut: bool


def schema_text(version: SubjectVersion) -> SchemaText:
    """Return the text of a schema with one field a line."""
    text = "\n".join(lines_of(version))
    return SchemaText(text[:TEXT_CHARS_MAX], len(text) > TEXT_CHARS_MAX)


def lines_of(version: SubjectVersion) -> list[str]:
    """Return the lines of a schema. JSON gets indents; no value in it is changed."""
    text = version.schema
    if version.schemaType != "PROTOBUF":
        # the text of another registry can be no JSON
        with contextlib.suppress(msgspec.DecodeError, UnicodeError, RecursionError):
            text = msgspec.json.format(text, indent=2)
    return [visible(line) for line in text.expandtabs(2).split("\n")]


class DiffLine(NamedTuple):
    """A line of a comparison."""

    sign: str
    """"+", "-", " ", or "…" for lines that are left out."""
    text: str


def line_differences(before: SubjectVersion, after: SubjectVersion) -> list[DiffLine] | None:
    """Return the lines that differ, with some equal lines around them; None if there are too many to compare."""
    old, new = lines_of(before), lines_of(after)
    begin = _equal_lines(old, new)
    end = _equal_lines(old[begin:][::-1], new[begin:][::-1])
    first = max(0, begin - CONTEXT_LINES)
    old, new = old[first : len(old) - end + CONTEXT_LINES], new[first : len(new) - end + CONTEXT_LINES]
    if max(len(old), len(new)) > LINES_COMPARED_MAX:
        return None
    lines: list[DiffLine] = []
    for group in difflib.SequenceMatcher(None, old, new, autojunk=False).get_grouped_opcodes(CONTEXT_LINES):
        lines += [DiffLine("…", "")] if lines else []
        for action, old_first, old_end, new_first, new_end in group:
            if action == "equal":
                lines += [DiffLine(" ", line[:TEXT_CHARS_MAX]) for line in old[old_first:old_end]]
            else:
                lines += [DiffLine("-", line[:TEXT_CHARS_MAX]) for line in old[old_first:old_end]]
                lines += [DiffLine("+", line[:TEXT_CHARS_MAX]) for line in new[new_first:new_end]]
    return lines if sum(len(line.text) for line in lines) <= 4 * TEXT_CHARS_MAX else None


def _equal_lines(one: Sequence[str], other: Sequence[str]) -> int:
    """Return the number of lines at the beginning that are equal."""
    count = 0
    for line, counterpart in zip(one, other, strict=False):
        if line != counterpart:
            break
        count += 1
    return count


class FieldChange(NamedTuple):
    """A field that differs between two versions."""

    change: str
    """"added", "removed" or "changed"."""
    path: str
    detail: str
    """Its type, or both types."""


def field_changes(before: SubjectVersion, after: SubjectVersion) -> list[FieldChange]:
    """Return the fields that differ, for Avro and JSON Schema; an empty list for Protobuf, and without differences."""
    if before.schemaType != after.schemaType:
        return []
    old, new = fields_of(before), fields_of(after)
    changes = [FieldChange("added", path, kind) for path, kind in new.items() if path not in old]
    changes += [FieldChange("removed", path, kind) for path, kind in old.items() if path not in new]
    changes += [
        FieldChange("changed", path, f"{old[path]} → {kind}")
        for path, kind in new.items()
        if path in old and old[path] != kind
    ]
    return changes[:CHANGES_SHOWN_MAX]


def changes_of(rows: Sequence[tuple[int, SubjectVersion | None]]) -> dict[int, list[FieldChange]]:
    """Return the first fields that differ from the version before, by the number of the version. `rows`: versions with
    their numbers, the newest first; None for one that is not read."""
    changes = {}
    for (number, after), (_, before) in pairwise(rows):
        if before is not None and after is not None and max(len(before.schema), len(after.schema)) <= TEXT_CHARS_MAX:
            changes[number] = field_changes(before, after)[:CHANGES_OF_A_ROW_MAX]
    return changes


def fields_of(version: SubjectVersion) -> dict[str, str]:
    """Return the types of a schema's fields by their paths: of Avro's records, and of objects of JSON Schema."""
    walk = {"AVRO": _avro_fields, "JSON": _json_fields}.get(version.schemaType)
    if walk is None:
        return {}
    try:
        schema = msgspec.json.decode(version.schema)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return {}
    fields: dict[str, str] = {}
    for path, kind in walk(schema, "", 0):
        fields[path] = kind
        if len(fields) >= FIELDS_MAX:
            break
    return fields


def _avro_fields(node: Any, path: str, depth: int) -> Iterator[tuple[str, str]]:
    if depth > DEPTH_MAX:
        return
    if isinstance(node, list):
        for branch in node:
            yield from _avro_fields(branch, path, depth + 1)
    elif isinstance(node, dict):
        for field in _dicts(node.get("fields")):
            name = f"{path}{visible(str(field.get('name'))[:TYPE_CHARS_MAX])}"
            default = f" = {_short(field['default'])}" if "default" in field else ""
            yield name, _avro_type(field.get("type")) + default
            yield from _avro_fields(field.get("type"), f"{name}.", depth + 1)
        for part in ("items", "values", "type"):
            if isinstance(node.get(part), dict | list):
                yield from _avro_fields(node[part], path, depth + 1)


def _avro_type(node: Any) -> str:
    """Return the short name of a type: `string | null`, `decimal(9,2)`, `record Address`."""
    if isinstance(node, str):
        return visible(node[:TYPE_CHARS_MAX])
    if isinstance(node, list):
        return " | ".join(_avro_type(one) for one in node[:20])[:TYPE_CHARS_MAX]
    if not isinstance(node, dict):
        return _short(node)
    kind = node.get("type")
    if isinstance(logical := node.get("logicalType"), str):
        numbers = [_short(node[name]) for name in ("precision", "scale") if name in node]
        return visible(logical[:TYPE_CHARS_MAX]) + (f"({','.join(numbers)})" if numbers else "")
    if kind in ("array", "map"):
        return f"{kind} of {_avro_inner(node.get('items', node.get('values')))}"
    if kind == "enum" and isinstance(node.get("symbols"), list):
        return f"enum of {', '.join(_short(one) for one in node['symbols'][:20])}"[:TYPE_CHARS_MAX]
    name = f" {visible(str(node['name'])[:TYPE_CHARS_MAX])}" if "name" in node else ""
    return f"{_short(kind) if not isinstance(kind, str) else kind[:TYPE_CHARS_MAX]}{name}"


def _avro_inner(node: Any) -> str:
    return str(node.get("name", node.get("type")))[:TYPE_CHARS_MAX] if isinstance(node, dict) else _avro_type(node)


def _json_fields(node: Any, path: str, depth: int) -> Iterator[tuple[str, str]]:
    if depth > DEPTH_MAX or not isinstance(node, dict):
        return
    properties, required = node.get("properties"), node.get("required")
    for name, inner in properties.items() if isinstance(properties, dict) else ():
        field = f"{path}{visible(name[:TYPE_CHARS_MAX])}"
        is_required = isinstance(required, list) and name in required
        yield field, _json_type(inner) + (", required" if is_required else "")
        yield from _json_fields(inner, f"{field}.", depth + 1)
    if isinstance(node.get("items"), dict):
        yield from _json_fields(node["items"], f"{path.removesuffix('.')}[]." if path else "[].", depth + 1)


def _json_type(node: Any) -> str:
    if not isinstance(node, dict):
        return _short(node)
    kind = node.get("type", node.get("$ref", node.get("enum", "any")))
    text = " | ".join(map(_short, kind[:20])) if isinstance(kind, list) else _short(kind)
    form = node.get("format")
    return text[:TYPE_CHARS_MAX] + (f" ({_short(form)})" if isinstance(form, str) else "")


def _short(value: Any) -> str:
    """Return a value of JSON in short; a text without quotation marks."""
    text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
    return visible(text[:TYPE_CHARS_MAX])


def _dicts(value: Any) -> list[dict[str, Any]]:
    return [one for one in value if isinstance(one, dict)] if isinstance(value, list) else []
