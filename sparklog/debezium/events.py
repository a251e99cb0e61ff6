"""Reading of change events: which events change a row, and the objects of the rows and keys.

| record | result |
|---|---|
| `op` c, u, r | a changed row: `after` |
| `op` d | a deletion: `before`, else the columns of the record's key |
| null after a deletion of the same key | left out |
| null otherwise, with a key | a deletion of the key: compaction removes the event before its tombstone |
| `op` t | refused, or left out |
| `op` m, BEGIN and END of transactions, heartbeats | left out |
| a field twice in an object, at any depth | refused, as at all doors for JSON |
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from decimal import Decimal
from itertools import count
from typing import Any, NamedTuple

import msgspec

from sparklog.debezium.avro_events import FramedRecords, SchemaOf
from sparklog.debezium.forms import Form, row_forms, struct_forms
from sparklog.errors import DeserializationError
from sparklog.format.decoders import json_decoder
from sparklog.format.json_exact import JsonValueError, has_members, parse_json

OPERATIONS = ("c", "u", "d", "r", "t", "m")
SCHEMAS_KEPT_MAX = 1_000
"""Largest number of different schema parts whose forms a reader keeps."""
DELETED_KEPT_MAX = 100_000
"""Largest number of deleted keys that a reader keeps from one batch to the next."""
_HEARTBEAT_FIELDS = {"ts_ms", "ts_us", "ts_ns"}
_exact = msgspec.json.Decoder(float_hook=Decimal)
_plain = msgspec.json.Decoder()
_TEXTS = (bytes, str, bytearray, memoryview)
Row = Mapping[str, Any]


class _Message(msgspec.Struct):
    """The fields of an event in JSON that tell its form."""

    schema: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    payload: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    op: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


class RowEvent(NamedTuple):
    """One change of a row."""

    number: int
    """Number of the record."""
    operation: str
    row: Row
    """The row's columns in JSON; of a deletion without `before` the key's columns."""
    before: Row | None
    """The row before an update, in JSON."""
    key: Row | None
    """The columns of the record's key, in JSON."""
    forms: Mapping[str, Form] | None
    """The forms of the columns; None without a schema part."""
    key_forms: Mapping[str, Form] | None
    """The forms of the key's columns; None without a schema part."""
    epoch: int
    """Number of truncations before the event."""


class _Part(NamedTuple):
    """The payload of a record's key or value, and the forms of its schema part."""

    payload: Any
    forms: Mapping[str, Form] | None


class _Schema(NamedTuple):
    """A schema part."""

    forms: Mapping[str, Form] | None
    """The forms of the columns; None if it is no struct."""
    members: int
    """Number of its members in JSON, with that of the part itself."""


class _UnsoundJsonError(DeserializationError):
    """JSON that the rules of `format/json_exact.py` refuse: a field twice in an object."""


_NO_PART = _Part(None, None)
_NO_SCHEMA = _Schema(None, 0)


class EventReader:
    """Reader of events. It keeps the forms of each schema part, because nearly all events have the same one."""

    def __init__(self, *, truncate: str = "error", is_exact: bool = True, schema_of: SchemaOf | None = None) -> None:
        """Create a reader. `is_exact`: True reads fractions as Decimal, so that no digit is lost. Events with a schema
        part are always read in this way. `schema_of`: the schemas of a registry; None refuses records with ids of
        schemas."""
        self._truncate = truncate
        self._framed = None if schema_of is None else FramedRecords(schema_of)
        self._is_exact = is_exact
        self._schemas: dict[tuple[bytes, bool], _Schema] = {}
        self.truncations = 0
        """Number of truncations in the records of the last `read`."""
        self._deleted: set[str] = set()
        """Keys whose last event is a deletion. They stay for the next `read`, because the tombstone of a deletion can
        be the first record of the next batch."""

    def read(self, records: Iterable[tuple[Any, Any]], numbers: Iterable[int] | None = None) -> list[RowEvent]:
        """Return the changes of rows in records. `records`: key and value of each record: JSON as text or bytes, Avro
        in Confluent's framing, a dict, or None. `numbers`: the records' numbers; None counts from 0. Raises
        DeserializationError: A record is no event, or its change cannot be a row. The message names the record."""
        events: list[RowEvent] = []
        self.truncations = 0
        if len(self._deleted) > DELETED_KEPT_MAX:
            self._deleted.clear()
        for (key, value), number in zip(records, count() if numbers is None else numbers, strict=False):
            try:
                event = self._event(number, key, value, self._deleted)
            except DeserializationError as e:
                raise DeserializationError(f"Debezium event {number}: {e}", offset=number) from e
            if event is not None:
                events.append(event)
        return events

    def _event(self, number: int, key: Any, value: Any, deleted: set[str]) -> RowEvent | None:
        part = self._part(value, is_key=False)
        event = part.payload
        key_part = _NO_PART if key is None else self._key_part(key)
        key_row: Row | None = key_part.payload
        identity = "" if key_row is None else repr(key_row)
        if event is None:
            if key_row is None or identity in deleted:
                return None
            return RowEvent(number, "d", key_row, None, key_row, None, key_part.forms, self.truncations)
        if not (type(event) is dict or isinstance(event, Mapping)) or event.get("op") not in OPERATIONS:
            if _is_skipped(event):
                return None
            raise DeserializationError(f"{value!r:.200} is no Debezium event: use an object with op, before and after")
        operation = str(event["op"])
        if operation == "m":
            return None
        if operation == "t":
            self._note_truncation(event)
            return None
        (deleted.add if operation == "d" and key_row is not None else deleted.discard)(identity)
        row = _row(event.get("before" if operation == "d" else "after"), value)
        if row is None:
            if operation != "d":
                raise DeserializationError(f"{value!r:.200} has no 'after': an event with op {operation!r} has one")
            if key_row is None:
                raise DeserializationError(
                    f"{value!r:.200} deletes a row without 'before', and no key of the record has its columns: pass the "
                    "records' keys as JSON objects with keys=, or set REPLICA IDENTITY FULL in the database"
                )
            return RowEvent(number, "d", key_row, None, key_row, None, key_part.forms, self.truncations)
        if operation == "d" and key_row is not None:
            # a table's replica identity can leave the key out of `before`
            row = {**row, **{name: value for name, value in key_row.items() if row.get(name) is None}}
        before = event.get("before") if operation == "u" else None
        return RowEvent(number, operation, row, before, key_row, part.forms, key_part.forms, self.truncations)

    def _note_truncation(self, event: Mapping[str, Any]) -> None:
        source = event.get("source")
        names = [source.get(n) for n in ("db", "schema", "table")] if isinstance(source, Mapping) else []
        if self._truncate == "error":
            raise DeserializationError(
                f"TRUNCATE of table {'.'.join(str(n) for n in names if n) or 'unknown'!r}: no row of the event says "
                "which keys are gone. Delete the rows of the topic, then pass truncate='skip'; or set "
                "skipped.operations=t in the connector"
            )
        self.truncations += 1

    def _part(self, record: Any, *, is_key: bool) -> _Part:
        """Return the payload and the forms of a key or value. Raises DeserializationError: _UnsoundJsonError for a
        field twice in an object."""
        if record is None:
            return _NO_PART
        if not isinstance(record, _TEXTS):
            if isinstance(record, Mapping):
                return self._object_part(record, is_key)
            raise DeserializationError(f"{record!r:.200} is no JSON: use text, bytes or a dict")
        if not len(record):
            return _NO_PART
        if not isinstance(record, str) and record[0] == 0:
            record, forms = self._framed_part(bytes(record), is_key)
            if not isinstance(record, _TEXTS):
                return _Part(record, forms)
        try:
            text = record.encode() if isinstance(record, str) else bytes(record)
            message = json_decoder(_Message).decode(text)
        except (msgspec.DecodeError, UnicodeError, RecursionError):
            # not an object, or no JSON at all
            message = _Message()
        if message.payload is msgspec.UNSET or message.op is not msgspec.UNSET:
            payload, schema = self._decoded(record), _NO_SCHEMA
            members = _members_in(payload)
        else:
            schema = self._schema(message.schema, is_key)
            payload = self._decoded(message.payload, is_exact=schema.forms is not None)
            members = 1 + schema.members + _members_in(payload)
        _require_sound(text, members)
        return _Part(payload, schema.forms)

    def _framed_part(self, record: bytes, is_key: bool) -> tuple[Any, Mapping[str, Form] | None]:
        """Return the payload and the forms of a record that begins with the id of a schema. Raises
        DeserializationError."""
        if self._framed is None:
            raise DeserializationError(
                f"{record!r:.80} begins with the id of a schema, as Confluent's converters write it: name the registry "
                "that has the schema"
            )
        return self._framed.payload(record, is_key=is_key)

    def _key_part(self, key: Any) -> _Part:
        """Return the payload and the forms of a key. A key in another form than an object has no columns."""
        try:
            part = self._part(key, is_key=True)
        except _UnsoundJsonError:
            raise
        except DeserializationError:
            if self._framed is not None and isinstance(key, _TEXTS) and key[0] == 0:
                raise
            return _NO_PART
        return part if isinstance(part.payload, Mapping) else _Part(None, None)

    def _object_part(self, record: Any, is_key: bool) -> _Part:
        if "payload" not in record or "op" in record:
            return _Part(record, None)
        schema = record.get("schema")
        return _Part(record["payload"], None if schema is None else self._schema(_encoded(schema), is_key).forms)

    def _decoded(self, data: Any, *, is_exact: bool = False) -> Any:
        """Return the object of a JSON text. Raises DeserializationError."""
        decoder = _exact if is_exact or self._is_exact else _plain
        try:
            return decoder.decode(data)
        except (msgspec.DecodeError, UnicodeError, RecursionError) as e:
            shown = data if isinstance(data, str) else bytes(data)
            raise DeserializationError(f"{shown!r:.200} is no JSON: {e}") from e

    def _schema(self, schema: Any, is_key: bool) -> _Schema:
        """Return the forms of a schema part. Raises DeserializationError."""
        if schema is msgspec.UNSET:
            return _NO_SCHEMA
        data = bytes(schema)
        if (data, is_key) not in self._schemas:
            read: Callable[[Any], Mapping[str, Form] | None] = struct_forms if is_key else row_forms
            decoded = self._decoded(data)
            is_struct = isinstance(decoded, Mapping) and decoded.get("type") == "struct"
            if len(self._schemas) >= SCHEMAS_KEPT_MAX:
                self._schemas.clear()
            self._schemas[data, is_key] = _Schema(read(decoded) if is_struct else None, 1 + _members_in(decoded))
        return self._schemas[data, is_key]


def _members_in(value: Any) -> int:
    """Return the number of members of a JSON value, at any depth."""
    if value.__class__ is dict:
        members = len(value)
        value = value.values()
    elif value.__class__ is list:
        members = 0
    else:
        return 0
    for inner in value:
        if inner.__class__ is dict or inner.__class__ is list:
            members += _members_in(inner)
    return members


def _require_sound(text: bytes, members: int) -> None:
    """Raise _UnsoundJsonError for a field twice in an object. `text`: JSON; `members`: the members of its value, of
    which the last one with its name counts."""
    if has_members(text, members):
        return
    try:
        parse_json(text.decode())
    except JsonValueError as e:
        raise _UnsoundJsonError(f"{text!r:.200}: {e}") from e


def _row(row: Any, shown: Any) -> Row | None:
    """Return the row as an object. Raises DeserializationError."""
    if row is not None and type(row) is not dict and not isinstance(row, Mapping):
        raise DeserializationError(
            f"{shown!r:.200} has a {type(row).__name__} as its row, not an object; for MongoDB use the connector's "
            "ExtractNewDocumentState"
        )
    return row


def _encoded(schema: Any) -> bytes:
    try:
        return msgspec.json.encode(schema)
    except (TypeError, ValueError, RecursionError) as e:
        raise DeserializationError(f"the schema part {schema!r:.200} has no form in JSON: {e}") from e


def _is_skipped(event: Any) -> bool:
    """True for the beginning and end of a transaction, and for a heartbeat."""
    if not isinstance(event, Mapping):
        return False
    if event.get("status") in ("BEGIN", "END") and "id" in event:
        return True
    return bool(event) and set(event) <= _HEARTBEAT_FIELDS
