"""The registry's state, and its records in the internal topic `__schemas`.

A state is a value: `replay` returns the next one, and a thread can work with the present one meanwhile. Records are
compacted by key. Keys and values are MessagePack; a key begins with the version of the records:

| key after the version | value |
|---|---|
| `["next"]` | lowest id that was never issued; never deleted, so that no id is issued twice |
| `["schema", id]` | `StoredSchema`; deleted with the last version that has it |
| `["version", subject, number]` | `[id, is_deleted]`; deleted permanently |
| `["level", subject]`, `["mode", subject]` | name; the subject "" is that of the defaults |
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple
from uuid import UUID

import msgspec
from msgspec import Struct, structs

from sparklog.format.decoders import convert
from sparklog.kafka.schemas.errors import STORE_FAILED, RegistryError
from sparklog.kafka.schemas.schema_types import SchemaType

Record = tuple[bytes, bytes | None]
"""Key and value; a value of None deletes the key."""
VERSION = 0
_UUID_FIXED = (0xF << 76) | (0b11 << 62)
"""Bits of a UUID that have its version and variant."""
_UUID_8 = (8 << 76) | (0b10 << 62)
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder().decode


class Reference(Struct, frozen=True, array_like=True):
    """A schema that another one uses, under a name."""

    name: str
    subject: str
    version: int


class StoredSchema(Struct, frozen=True, array_like=True):
    """A schema with its id."""

    kind: SchemaType
    text: str
    references: tuple[Reference, ...] = ()
    compiled: bytes = b""
    """Descriptor of a Protobuf schema."""

    @property
    def content(self) -> bytes:
        """A digest, equal for schemas that have one id."""
        text = self.compiled or self.text.encode()
        return hashlib.sha256(_encode([self.kind, text, sorted(structs.astuple(r) for r in self.references)])).digest()

    @property
    def guid(self) -> UUID:
        """The same name of the schema in all registries of sparklog, made of the content (a UUID of version 8)."""
        return UUID(int=int.from_bytes(self.content[:16]) & ~_UUID_FIXED | _UUID_8)


class Version(NamedTuple):
    """One version of a subject."""

    schema_id: int
    is_deleted: bool = False
    """True after a soft deletion."""


class RegistryState(Struct, frozen=True):
    """All schemas and subjects at one offset of the topic."""

    offset: int = 0
    """Offset of the next record."""
    next_id: int = 1
    schemas: Mapping[int, StoredSchema] = {}
    ids: Mapping[bytes, int] = {}
    """Ids of the schemas by their content."""
    guids: Mapping[UUID, int] = {}
    """Ids of the schemas by their GUID."""
    subjects: Mapping[str, Mapping[int, Version]] = {}
    """Versions by number, in ascending order, by subject. A subject has at least one."""
    levels: Mapping[str, str] = {}
    modes: Mapping[str, str] = {}
    text_bytes: int = 0
    """Size of all texts in bytes."""

    def replay(self, records: Iterable[Record], offset: int) -> RegistryState:
        """Return the state after more records. `offset`: that of the record after them."""
        builder = _Builder(self)
        for key, value in records:
            builder.apply(_decode(key), None if value is None else _decode(value))
        return builder.finish(offset)

    def active(self, subject: str) -> dict[int, Version]:
        """Return the versions that are not deleted."""
        return {number: one for number, one in self.subjects.get(subject, {}).items() if not one.is_deleted}

    def users(self, schema_id: int) -> list[tuple[str, int, Version]]:
        """Return the versions that have a schema: subject, number and version."""
        return [
            (subject, number, version)
            for subject, versions in self.subjects.items()
            for number, version in versions.items()
            if version.schema_id == schema_id
        ]


class _Builder:
    """Applies records. Tables are copied before their first change."""

    def __init__(self, state: RegistryState) -> None:
        self._state = state
        self._changes: dict[str, Any] = {"next_id": state.next_id, "text_bytes": state.text_bytes}
        self._copied: set[str] = set()

    def _table(self, name: str) -> dict[Any, Any]:
        if name not in self._changes:
            self._changes[name] = dict(getattr(self._state, name))
        table: dict[Any, Any] = self._changes[name]
        return table

    def apply(self, key: list[Any], value: Any) -> None:
        match key[1:] if key[0] == VERSION else []:
            case ["next"]:
                self._changes["next_id"] = value
            case ["schema", schema_id]:
                self._schema(schema_id, None if value is None else convert(value, StoredSchema))
            case ["version", subject, number]:
                self._version(subject, number, None if value is None else Version(*value))
            case ["level" | "mode" as table, subject]:
                _set(self._table(f"{table}s"), subject, value)
            case _:
                raise RegistryError(STORE_FAILED, f"the registry's log has a record of a later version: {key!r:.200}")

    def _schema(self, schema_id: int, schema: StoredSchema | None) -> None:
        schemas, ids, guids = self._table("schemas"), self._table("ids"), self._table("guids")
        former = schemas.pop(schema_id, None)
        if former is not None:
            ids.pop(former.content, None)
            guids.pop(former.guid, None)
            self._changes["text_bytes"] -= len(former.text)
        if schema is not None:
            schemas[schema_id], ids[schema.content], guids[schema.guid] = schema, schema_id, schema_id
            self._changes["text_bytes"] += len(schema.text)

    def _version(self, subject: str, number: int, version: Version | None) -> None:
        subjects = self._table("subjects")
        if subject not in self._copied:
            self._copied.add(subject)
            subjects[subject] = dict(subjects.get(subject, {}))
        _set(subjects.setdefault(subject, {}), number, version)
        if version is not None and number < max(subjects[subject]):
            subjects[subject] = dict(sorted(subjects[subject].items()))
        if not subjects[subject]:
            del subjects[subject]

    def finish(self, offset: int) -> RegistryState:
        return structs.replace(self._state, offset=offset, **self._changes)


def _set(table: dict[Any, Any], key: Any, value: Any) -> None:
    if value is None:
        table.pop(key, None)
    else:
        table[key] = value


# -- records


def next_record(next_id: int) -> Record:
    """Return the record of the lowest id that was never issued."""
    return _encode([VERSION, "next"]), _encode(next_id)


def schema_record(schema_id: int, schema: StoredSchema | None) -> Record:
    """Return the record of a schema; None deletes it."""
    return _encode([VERSION, "schema", schema_id]), None if schema is None else _encode(schema)


def version_record(subject: str, number: int, version: Version | None) -> Record:
    """Return the record of a version; None deletes it permanently."""
    return _encode([VERSION, "version", subject, number]), None if version is None else _encode(version)


def level_record(subject: str, level: str | None) -> Record:
    """Return the record of a subject's level of compatibility; None deletes it."""
    return _encode([VERSION, "level", subject]), None if level is None else _encode(level)


def mode_record(subject: str, mode: str | None) -> Record:
    """Return the record of a subject's mode; None deletes it."""
    return _encode([VERSION, "mode", subject]), None if mode is None else _encode(mode)
