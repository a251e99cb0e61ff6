"""Avro schemas: their parser, their canonical texts, and the rules of schema resolution (Avro 1.12).

The parser names the path of a fault. `fastavro` parses without paths, and accepts duplicate fields and names that are
not valid, so it is not used here.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any

import msgspec
from msgspec import Struct

from sparklog.kafka.schemas.comparison import Comparison
from sparklog.kafka.schemas.errors import RegistryError, invalid_schema

DEPTH_MAX = 64
PRIMITIVES = frozenset({"null", "boolean", "int", "long", "float", "double", "bytes", "string"})
PROMOTIONS = frozenset(
    {
        ("int", "long"),
        ("int", "float"),
        ("int", "double"),
        ("long", "float"),
        ("long", "double"),
        ("float", "double"),
        ("string", "bytes"),
        ("bytes", "string"),
    }
)
"""Pairs of the writer's and the reader's type that a reader converts."""
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_INTEGERS = {"int": 2**31, "long": 2**63}
_LOGICAL = {
    "int": ("date", "time-millis"),
    "long": (
        "time-micros",
        "timestamp-millis",
        "timestamp-micros",
        "local-timestamp-millis",
        "local-timestamp-micros",
    ),
}
"""Logical types of numbers, by their kinds."""
_ATTRIBUTES = ("type", "name", "fields", "symbols", "items", "values", "size")
_MISSING = object()


class AvroField(Struct, eq=False):
    """One field of a record."""

    name: str
    type: AvroType
    aliases: tuple[str, ...] = ()
    has_default: bool = False
    default: Any = None
    """The default as the schema's JSON has it."""


class AvroType(Struct, eq=False):
    """A parsed type. A type that is named several times is one object, so recursive types have circles."""

    kind: str
    """A primitive, or record, enum, fixed, array, map or union."""
    name: str = ""
    """Full name of a record, enum or fixed."""
    aliases: tuple[str, ...] = ()
    fields: tuple[AvroField, ...] = ()
    symbols: dict[str, None] = {}
    """The symbols of an enum, in their order."""
    default: str | None = None
    """The default of an enum."""
    size: int = 0
    decimal: tuple[int, int] | None = None
    """Precision and scale of a decimal."""
    logical: str = ""
    """Logical type of an int or long; "" for none, and for one that Avro does not define for the kind."""
    inner: tuple[AvroType, ...] = ()
    """Type of the items or values; branches of a union."""

    @property
    def short_name(self) -> str:
        """The name without its namespace; the kind of a type without a name."""
        return self.name.rpartition(".")[2] or self.kind


class AvroSchema(Struct):
    """A parsed schema."""

    type: AvroType
    text: str
    """The JSON as registered, without white space, and with `"long"` for `{"type": "long"}`: clients in Java register
    the one, those in Python the other."""
    normal_text: str
    """The JSON with full names and sorted attributes; equal for texts that differ in form only."""
    names: dict[str, AvroType]
    """The named types, for schemas that refer to this one."""
    references: dict[str, AvroSchema] = {}
    """Schemas by the names of the references."""


def parse_avro(text: str, references: Mapping[str, AvroSchema] = {}) -> AvroSchema:
    """Parse a schema. `references`: schemas whose named types can be used, by the names of the references. Raises
    RegistryError."""
    try:
        source = msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError, UnicodeError) as e:
        raise invalid_schema(f"it is no JSON: {e}") from None
    parser = _Parser(references.values())
    parsed = parser.type(source, "", "", 0)
    return AvroSchema(
        parsed,
        msgspec.json.encode(_unwrapped(source)).decode(),
        msgspec.json.encode(_Normalizer().type(source, "")).decode(),
        parser.names,
        dict(references),
    )


class _Parser:
    def __init__(self, references: Iterable[AvroSchema]) -> None:
        self.names: dict[str, AvroType] = {}
        for reference in references:
            self.names |= reference.names

    def type(self, source: Any, namespace: str, path: str, depth: int) -> AvroType:
        if depth > DEPTH_MAX:
            raise _error(path, f"types are nested more than {DEPTH_MAX} deep")
        if isinstance(source, str):
            return self._named(source, namespace, path)
        if isinstance(source, list):
            return self._union(source, namespace, path, depth)
        if not isinstance(source, dict):
            raise _error(path, f"{_short(source)} is no type: use a name, an object or a list")
        kind = source.get("type")
        if kind in ("record", "error"):
            return self._record(source, namespace, path, depth)
        if kind == "enum":
            return self._enum(source, namespace, path)
        if kind == "fixed":
            return self._fixed(source, namespace, path)
        if kind in ("array", "map"):
            key = "items" if kind == "array" else "values"
            if key not in source:
                raise _error(path, f"{kind} without {key}")
            return AvroType(kind, inner=(self.type(source[key], namespace, f"{path}/{key}", depth + 1),))
        parsed = self.type(kind, namespace, f"{path}/type", depth + 1)
        if source.get("logicalType") == "decimal" and parsed.kind == "bytes":
            return AvroType("bytes", decimal=_decimal(source, None))
        if source.get("logicalType") in _LOGICAL.get(parsed.kind, ()):
            return AvroType(parsed.kind, logical=source["logicalType"])
        return parsed

    def _named(self, name: str, namespace: str, path: str) -> AvroType:
        if name in PRIMITIVES:
            return AvroType(name)
        parsed = self.names.get(name if "." in name else _full(name, namespace)) or self.names.get(name)
        if parsed is None:
            raise _error(path, f"unknown type {name[:200]!r}: define it before its use, or add a reference")
        return parsed

    def _union(self, source: list[Any], namespace: str, path: str, depth: int) -> AvroType:
        if not source:
            raise _error(path, "a union needs at least one branch")
        inner = tuple(self.type(one, namespace, f"{path}/{i}", depth + 1) for i, one in enumerate(source))
        kinds = [one.name or one.kind for one in inner]
        if "union" in kinds:
            raise _error(path, "a union directly in a union is not allowed")
        if len(set(kinds)) != len(kinds):
            raise _error(path, "a type is in the union twice: only records, enums and fixed with other names can be")
        return AvroType("union", inner=inner)

    def _define(self, kind: str, source: dict[str, Any], namespace: str, path: str) -> tuple[AvroType, str]:
        """Return a new named type, and the namespace inside of it."""
        name, own = _declared(source, namespace, path)
        if name in self.names or name in PRIMITIVES:
            raise _error(path, f"the name {name!r} is defined twice")
        aliases = tuple(_full(alias, own) for alias in _texts(source.get("aliases", []), f"{path}/aliases"))
        parsed = self.names[name] = AvroType(kind, name, aliases)
        return parsed, own

    def _record(self, source: dict[str, Any], namespace: str, path: str, depth: int) -> AvroType:
        parsed, own = self._define("record", source, namespace, path)
        fields = source.get("fields")
        if not isinstance(fields, list):
            raise _error(path, "a record needs a list of fields")
        parsed.fields = tuple(self._field(one, own, f"{path}/fields/{i}", depth) for i, one in enumerate(fields))
        names = [field.name for field in parsed.fields]
        if len(set(names)) != len(names):
            twice = next(name for name in names if names.count(name) > 1)
            raise _error(path, f"the record has the field {twice!r} twice")
        return parsed

    def _field(self, source: Any, namespace: str, path: str, depth: int) -> AvroField:
        if not isinstance(source, dict) or "type" not in source:
            raise _error(path, "a field is an object with name and type")
        name = _checked(source.get("name"), path)
        parsed = self.type(source["type"], namespace, f"{path}/type", depth + 1)
        default = source.get("default", _MISSING)
        if default is not _MISSING and not _fits(default, parsed, 0):
            raise _error(path, f"the default {_short(default)} is no value of the field's type {parsed.short_name}")
        aliases = tuple(_texts(source.get("aliases", []), f"{path}/aliases"))
        return AvroField(name, parsed, aliases, default is not _MISSING, None if default is _MISSING else default)

    def _enum(self, source: dict[str, Any], namespace: str, path: str) -> AvroType:
        parsed, _ = self._define("enum", source, namespace, path)
        symbols = _texts(source.get("symbols"), f"{path}/symbols")
        for symbol in symbols:
            _checked(symbol, f"{path}/symbols")
        if len(set(symbols)) != len(symbols):
            raise _error(path, "the enum has a symbol twice")
        default = source.get("default")
        if default is not None and default not in symbols:
            raise _error(path, f"the default {_short(default)} is none of the enum's symbols")
        parsed.symbols, parsed.default = dict.fromkeys(symbols), default
        return parsed

    def _fixed(self, source: dict[str, Any], namespace: str, path: str) -> AvroType:
        parsed, _ = self._define("fixed", source, namespace, path)
        size = source.get("size")
        if not isinstance(size, int) or isinstance(size, bool) or size < 0:
            raise _error(path, f"the size {_short(size)} of a fixed is no number of bytes")
        parsed.size = size
        if source.get("logicalType") == "decimal":
            parsed.decimal = _decimal(source, size)
        return parsed


def _unwrapped(source: Any) -> Any:
    """Return a source that the parser has accepted without objects that only have a type."""
    if isinstance(source, list):
        return [_unwrapped(one) for one in source]
    if not isinstance(source, dict):
        return source
    if source.keys() == {"type"}:
        return _unwrapped(source["type"])
    inner = {name: _unwrapped(source[name]) for name in ("items", "values") if name in source}
    if source["type"] in ("record", "error"):
        inner["fields"] = [field | {"type": _unwrapped(field["type"])} for field in source["fields"]]
    return source | inner


class _Normalizer:
    """Returns the normal form of a source that the parser has accepted."""

    def type(self, source: Any, namespace: str) -> Any:
        if isinstance(source, str):
            return source if source in PRIMITIVES else _full(source, namespace)
        if isinstance(source, list):
            return [self.type(one, namespace) for one in source]
        kind, normal = source["type"], dict(source)
        if kind in ("record", "error", "enum", "fixed"):
            normal["name"], namespace = _declared(source, namespace, "")
            normal.pop("namespace", None)
            if "aliases" in source:
                normal["aliases"] = sorted(_full(alias, namespace) for alias in source["aliases"])
        if kind in ("record", "error"):
            normal["fields"] = [
                _sorted(field | {"type": self.type(field["type"], namespace)}) for field in source["fields"]
            ]
        elif kind == "array":
            normal["items"] = self.type(source["items"], namespace)
        elif kind == "map":
            normal["values"] = self.type(source["values"], namespace)
        elif kind not in ("enum", "fixed"):
            normal["type"] = self.type(kind, namespace)
            if len(normal) == 1:
                return normal["type"]
        return _sorted(normal)


def _sorted(attributes: dict[str, Any]) -> dict[str, Any]:
    first = {name: attributes[name] for name in _ATTRIBUTES if name in attributes}
    return first | {name: attributes[name] for name in sorted(attributes) if name not in first}


def _declared(source: Mapping[str, Any], namespace: str, path: str) -> tuple[str, str]:
    """Return the full name of a definition, and its namespace."""
    name, own = source.get("name"), source.get("namespace")
    if not isinstance(name, str):
        raise _error(path, "a record, enum or fixed needs a name")
    if own is not None and not isinstance(own, str):
        raise _error(path, f"the namespace {_short(own)} is no text")
    full = name if "." in name else _full(name, namespace if own is None else own)
    for part in full.split("."):
        _checked(part, path)
    return full, full.rpartition(".")[0]


def _full(name: str, namespace: str) -> str:
    return f"{namespace}.{name}" if namespace and "." not in name else name


def _checked(name: Any, path: str) -> str:
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise _error(path, f"{_short(name)} is no name: use letters, digits and _, not a digit first")
    return name


def _texts(value: Any, path: str) -> list[str]:
    if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
        raise _error(path, "a list of texts is needed")
    return value


def _decimal(source: Mapping[str, Any], size: int | None) -> tuple[int, int] | None:
    """Return precision and scale; None for a decimal that is not valid, which readers treat as its bytes."""
    precision, scale = source.get("precision"), source.get("scale", 0)
    if not (isinstance(precision, int) and isinstance(scale, int) and 0 <= scale <= precision and precision > 0):
        return None
    digits_max = precision if size is None else len(str(2 ** max(8 * min(size, 1024) - 1, 0))) - 1
    return (precision, scale) if precision <= digits_max else None


def _fits(value: Any, kind: AvroType, depth: int) -> bool:
    """Return True if a JSON value can be the default of a type. A union takes a value of any branch, as Avro 1.12."""
    if depth > DEPTH_MAX:
        return False
    match kind.kind:
        case "union":
            return any(_fits(value, branch, depth + 1) for branch in kind.inner)
        case "null":
            return value is None
        case "boolean":
            return isinstance(value, bool)
        case "int" | "long":
            bound = _INTEGERS[kind.kind]
            is_whole = isinstance(value, int) and not isinstance(value, bool)
            return is_whole and -bound <= value < bound
        case "float" | "double":
            is_number = isinstance(value, int | float) and not isinstance(value, bool)
            return is_number or value in ("NaN", "Infinity", "-Infinity", "INF", "-INF")
        case "bytes" | "fixed":
            is_bytes = isinstance(value, str) and all(ord(char) < 256 for char in value)
            return is_bytes and (kind.kind == "bytes" or len(value) == kind.size)
        case "string":
            return isinstance(value, str)
        case "enum":
            return isinstance(value, str) and value in kind.symbols
        case "array":
            return isinstance(value, list) and all(_fits(one, kind.inner[0], depth + 1) for one in value)
        case "map":
            return isinstance(value, dict) and all(_fits(one, kind.inner[0], depth + 1) for one in value.values())
        case _:
            return isinstance(value, dict) and all(
                _fits(value[f.name], f.type, depth + 1) if f.name in value else f.has_default for f in kind.fields
            )


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _error(path: str, reason: str) -> RegistryError:
    return invalid_schema(f"at {path or '/'}: {reason}")


# -- schema resolution


def compare_avro(reader: AvroSchema, writer: AvroSchema, comparison: Comparison) -> None:
    """Report the differences for which the reader cannot read values of the writer."""
    _compare(reader.type, writer.type, "", comparison)


def _compare(reader: AvroType, writer: AvroType, path: str, to: Comparison) -> None:
    if not to.enter(id(reader), id(writer)):
        return
    if writer.kind == "union":
        for i, branch in enumerate(writer.inner):
            if not to.holds(partial(_compare, reader, branch, path, to)):
                to.report("MISSING_UNION_BRANCH", path, f"the reader has no branch for {branch.short_name} ({i})")
    elif reader.kind == "union":
        if not any(to.holds(partial(_compare, one, writer, path, to)) for one in reader.inner):
            to.report("MISSING_UNION_BRANCH", path, f"the reader's union has no branch for {writer.short_name}")
    elif reader.kind != writer.kind:
        if (writer.kind, reader.kind) not in PROMOTIONS:
            to.report("TYPE_MISMATCH", path, f"the reader's {reader.short_name} cannot read {writer.short_name}")
    elif reader.decimal != writer.decimal and None not in (reader.decimal, writer.decimal):
        to.report("DECIMAL_MISMATCH", path, f"precision and scale {reader.decimal} are not {writer.decimal}")
    elif reader.kind in ("array", "map"):
        _compare(reader.inner[0], writer.inner[0], f"{path}/{'items' if reader.kind == 'array' else 'values'}", to)
    elif reader.name:
        _compare_named(reader, writer, path, to)


def _compare_named(reader: AvroType, writer: AvroType, path: str, to: Comparison) -> None:
    if reader.short_name != writer.short_name and writer.name not in reader.aliases:
        to.report("NAME_MISMATCH", f"{path}/name", f"the reader's {reader.name} is not {writer.name}")
    elif reader.kind == "fixed":
        if reader.size != writer.size:
            to.report("FIXED_SIZE_MISMATCH", f"{path}/size", f"the reader's {reader.size} is not {writer.size}")
    elif reader.kind == "enum":
        missing = [symbol for symbol in writer.symbols if symbol not in reader.symbols]
        if missing and reader.default is None:
            names = ", ".join(missing[:10])
            to.report("MISSING_ENUM_SYMBOLS", f"{path}/symbols", f"the reader has no default, and not {names}")
    else:
        written = {field.name: field for field in writer.fields}
        for i, field in enumerate(reader.fields):
            place = f"{path}/fields/{i}"
            source = next((written[name] for name in (field.name, *field.aliases) if name in written), None)
            if source is not None:
                _compare(field.type, source.type, f"{place}/type", to)
            elif not field.has_default:
                to.report("READER_FIELD_MISSING_DEFAULT_VALUE", place, f"the new field {field.name!r} has no default")
