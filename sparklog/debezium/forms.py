"""Forms of the values in change events: how the schema part of an event, or the connector's settings, say that the
JSON of a column is written.

| schema name in the event | value in JSON | column without a target |
|---|---|---|
| none | the literal type of Kafka Connect | the type of the same width; bytes are BINARY |
| `io.debezium.time.Date`, `org.apache.kafka.connect.data.Date` | days | DATE |
| `….Timestamp`, `….MicroTimestamp`, `….NanoTimestamp`, Connect's `….Timestamp` | ms, µs, ns, ms | TIMESTAMP_NTZ |
| `….ZonedTimestamp`, `….IsoTimestamp` | text with a zone | TIMESTAMP |
| `….Time`, `….MicroTime`, `….NanoTime`, Connect's `….Time` | ms, µs, ns, ms | STRING (`10:30:00.5`) |
| `….MicroDuration`, `….NanoDuration` | µs, ns | INTERVAL DAY TO SECOND |
| `….IsoDate` | text | DATE |
| Connect's `….Decimal` | base64 of the unscaled number, or a number | DECIMAL |
| `io.debezium.data.VariableScaleDecimal` | scale and base64 | STRING |
| `io.debezium.data.Bits` | base64, the lowest byte first | BINARY |
| Json, Xml, Uuid, Enum, Interval, IsoTime and others | text | STRING |
| Point, Geometry, Geography and others | an object | STRUCT with the same fields |
"""

from __future__ import annotations

import binascii
from collections.abc import Mapping
from typing import Any, NamedTuple

import pyarrow as pa

from sparklog.errors import DeserializationError, InvalidConfigError

DEPTH_MAX = 32
"""Largest depth of nested types in a schema part."""
PLACEHOLDER = b"__debezium_unavailable_value"
"""Debezium's default of `unavailable.value.placeholder`."""
DECIMAL_DIGITS_MAX = 38


class Form(NamedTuple):
    """The form in which events write a value."""

    kind: str
    """"any" (no schema part), "boolean", "integer", "float", "text", "bytes", "decimal", "variable decimal", "date",
    "iso date", "time", "timestamp", "zoned timestamp", "duration", "list", "map" or "struct"."""
    bits: int = 64
    """Width of an integer or a floating-point number."""
    unit: str = ""
    """"ms", "us" or "ns" of a time; the encoding of binary and decimal values: "base64", "base64-url-safe", "hex",
    "digits"; "bits" for `io.debezium.data.Bits`."""
    precision: int = DECIMAL_DIGITS_MAX
    """Digits of a decimal."""
    scale: int | None = None
    """Digits of a decimal after the point. None: those of the column."""
    children: tuple[tuple[str, Form], ...] = ()
    """Names and forms of a struct's fields, of a list's element, or of a map's key and value."""


ANY = Form("any")
_LITERALS: dict[str, Form] = {
    "boolean": Form("boolean"),
    "int8": Form("integer", 8),
    "int16": Form("integer", 16),
    "int32": Form("integer", 32),
    "int64": Form("integer", 64),
    "float": Form("float", 32),
    "float32": Form("float", 32),
    "double": Form("float", 64),
    "float64": Form("float", 64),
    "string": Form("text"),
    "bytes": Form("bytes", unit="base64"),
}
_TIME, _CONNECT = "io.debezium.time.", "org.apache.kafka.connect.data."
_NAMED: dict[str, tuple[tuple[str, ...], Form]] = {
    _TIME + "Date": (("int32",), Form("date", 32)),
    _CONNECT + "Date": (("int32",), Form("date", 32)),
    _TIME + "Time": (("int32",), Form("time", 32, "ms")),
    _CONNECT + "Time": (("int32",), Form("time", 32, "ms")),
    _TIME + "MicroTime": (("int64",), Form("time", unit="us")),
    _TIME + "NanoTime": (("int64",), Form("time", unit="ns")),
    _TIME + "Timestamp": (("int64",), Form("timestamp", unit="ms")),
    _CONNECT + "Timestamp": (("int64",), Form("timestamp", unit="ms")),
    _TIME + "MicroTimestamp": (("int64",), Form("timestamp", unit="us")),
    _TIME + "NanoTimestamp": (("int64",), Form("timestamp", unit="ns")),
    _TIME + "ZonedTimestamp": (("string",), Form("zoned timestamp")),
    _TIME + "IsoTimestamp": (("string",), Form("zoned timestamp")),
    _TIME + "IsoDate": (("string",), Form("iso date")),
    _TIME + "MicroDuration": (("int64",), Form("duration", unit="us")),
    _TIME + "NanoDuration": (("int64",), Form("duration", unit="ns")),
    _CONNECT + "Decimal": (("bytes",), Form("decimal", unit="base64")),
    "io.debezium.data.VariableScaleDecimal": (("struct",), Form("variable decimal")),
    "io.debezium.data.Bits": (("bytes",), Form("bytes", unit="bits")),
}
"""The literal types and the form of each schema name whose value is more than its literal type."""
_HINTS: dict[str, Form] = {
    **{name: form for name, (_, form) in _NAMED.items()},
    **_LITERALS,
    "base64": Form("bytes", unit="base64"),
    "base64-url-safe": Form("bytes", unit="base64-url-safe"),
    "hex": Form("bytes", unit="hex"),
    "digits": Form("decimal", unit="digits"),
}
_DECIMAL_MODES = {"precise": "base64", "string": "digits", "double": "digits"}
_BINARY_MODES = {"bytes": "base64", "base64": "base64", "base64-url-safe": "base64-url-safe", "hex": "hex"}
_TIMESTAMP_UNITS = {"connect": "ms", "microseconds": "us", "nanoseconds": "ns"}
_TIME_MODES = ("adaptive", "adaptive_time_microseconds", "isostring", *_TIMESTAMP_UNITS)


class Hints(NamedTuple):
    """The forms of values in events without a schema part, and the placeholder for unavailable values."""

    types: Mapping[str, Form]
    """Forms by column."""
    decimals: str = ""
    """Encoding of decimals written as text: "base64" or "digits"; "" if the connector's mode is not known."""
    binary: str = ""
    """Encoding of binary values: "base64", "base64-url-safe" or "hex"; "" if the connector's mode is not known."""
    timestamps: str = ""
    """Unit of timestamps written as numbers: "ms", "us" or "ns"; "" if the connector's mode does not tell."""
    placeholder: bytes = PLACEHOLDER
    """The value of `unavailable.value.placeholder`."""


def hints_of(connector: Mapping[str, Any] | None, types: Mapping[str, str] | None) -> Hints:
    """Return the hints of a connector's configuration and of the names of types by column. Raises InvalidConfigError: A
    mode or a name is none of Debezium's."""
    settings = {str(k): str(v) for k, v in (connector or {}).items()}
    forms = {}
    for column, name in (types or {}).items():
        if name not in _HINTS and not name.startswith("io.debezium."):
            raise InvalidConfigError(
                f"types: column {column!r} has {name!r}: use a schema name of Debezium or Kafka Connect, such as "
                f"io.debezium.time.MicroTimestamp, or one of {', '.join(n for n in _HINTS if '.' not in n)}"
            )
        forms[column] = _HINTS.get(name, Form("text"))
    placeholder = settings.get("unavailable.value.placeholder")
    time_mode = _mode(settings, "time.precision.mode", _TIME_MODES)
    return Hints(
        forms,
        _DECIMAL_MODES.get(_mode(settings, "decimal.handling.mode", _DECIMAL_MODES), ""),
        _BINARY_MODES.get(_mode(settings, "binary.handling.mode", _BINARY_MODES), ""),
        _TIMESTAMP_UNITS.get(time_mode, ""),
        PLACEHOLDER if placeholder is None else _placeholder_bytes(placeholder),
    )


def _mode(settings: Mapping[str, str], name: str, allowed: Any) -> str:
    value = settings.get(name, "")
    if value and value not in allowed:
        raise InvalidConfigError(f"connector: {name} = {value!r}: use {', '.join(allowed)}")
    return value


def _placeholder_bytes(text: str) -> bytes:
    """Return the placeholder's bytes. Debezium takes `hex:` before hexadecimal digits."""
    if not text.startswith("hex:"):
        return text.encode()
    try:
        return binascii.unhexlify(text[len("hex:") :])
    except ValueError as e:
        raise InvalidConfigError(f"connector: unavailable.value.placeholder = {text!r}: use hex: and digits") from e


def row_forms(schema: Any) -> dict[str, Form] | None:
    """Return the forms of a row's columns by the schema part of an event; None if the part names no row. Raises
    DeserializationError: The schema part is not a schema of Kafka Connect."""
    fields = {f.get("field"): f for f in _fields(schema)}
    for name in ("after", "before"):
        if name in fields and fields[name].get("type") == "struct":
            return struct_forms(fields[name])
    return None


def struct_forms(schema: Any) -> dict[str, Form]:
    """Return the forms of a struct's fields by its schema. Raises DeserializationError as `row_forms`."""
    return {str(f.get("field")): _form(f, 1) for f in _fields(schema)}


def _fields(schema: Any) -> list[Any]:
    fields = schema.get("fields") if isinstance(schema, Mapping) else None
    if not isinstance(fields, list) or not all(isinstance(f, Mapping) for f in fields):
        raise _bad(schema, "use a struct with a list of fields")
    return fields


def _bad(schema: Any, advice: str) -> DeserializationError:
    return DeserializationError(f"the schema part of a Debezium event has {schema!r:.200}: {advice}")


def _form(schema: Any, depth: int) -> Form:
    if not isinstance(schema, Mapping) or depth > DEPTH_MAX:
        raise _bad(schema, f"use types of Kafka Connect, at most {DEPTH_MAX} levels deep")
    literal, name = schema.get("type"), schema.get("name")
    if name in _NAMED:
        literals, form = _NAMED[name]
        if literal not in literals:
            raise _bad(schema, f"{name} has the type {literals[0]}")
        return form if form.kind != "decimal" else _decimal(schema, form)
    if literal in _LITERALS:
        return _LITERALS[literal]
    if literal == "array":
        return Form("list", children=(("element", _form(schema.get("items"), depth + 1)),))
    if literal == "map":
        key, value = (_form(schema.get(part), depth + 1) for part in ("keys", "values"))
        return Form("map", children=(("key", key), ("value", value)))
    if literal == "struct":
        return Form("struct", children=tuple((str(f.get("field")), _form(f, depth + 1)) for f in _fields(schema)))
    raise _bad(schema, f"use the types {', '.join(_LITERALS)}, array, map, struct")


def _decimal(schema: Mapping[str, Any], form: Form) -> Form:
    parameters = schema.get("parameters")
    parameters = parameters if isinstance(parameters, Mapping) else {}
    try:
        scale = int(parameters["scale"])
        precision = int(parameters.get("connect.decimal.precision", DECIMAL_DIGITS_MAX))
    except (KeyError, TypeError, ValueError) as e:
        raise _bad(schema, "a Decimal has the parameter scale") from e
    return form._replace(scale=scale, precision=precision)


def default_type(form: Form) -> pa.DataType:
    """Return the type of a column whose form is known and whose type the caller does not name."""
    if form.kind in _DEFAULTS:
        return _DEFAULTS[form.kind]
    if form.kind == "integer":
        return {8: pa.int8(), 16: pa.int16(), 32: pa.int32(), 64: pa.int64()}[form.bits]
    if form.kind == "float":
        return pa.float32() if form.bits == 32 else pa.float64()
    if form.kind == "decimal":
        scale = form.scale or 0
        if 0 <= scale <= form.precision <= DECIMAL_DIGITS_MAX:
            return pa.decimal128(max(form.precision, 1), scale)
        return pa.string()
    types = [(name, default_type(child)) for name, child in form.children]
    if form.kind == "list":
        return pa.list_(pa.field("element", types[0][1]))
    if form.kind == "map":
        return pa.map_(types[0][1], types[1][1])
    return pa.struct(types)


_DEFAULTS: dict[str, Any] = {
    "boolean": pa.bool_(),
    "text": pa.string(),
    "bytes": pa.binary(),
    "variable decimal": pa.string(),
    "date": pa.date32(),
    "iso date": pa.date32(),
    "time": pa.string(),
    "timestamp": pa.timestamp("us"),
    "zoned timestamp": pa.timestamp("us", tz="UTC"),
    "duration": pa.duration("us"),
}
