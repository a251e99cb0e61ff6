"""The registry as the decoders and encoders of records need it: schemas by their ids and subjects."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Protocol
from uuid import UUID

from sparklog.errors import BrokerNotAvailableError

if TYPE_CHECKING:  # the parsers of schemas take long to load
    from sparklog.kafka.schemas.schema_types import Parsed

VALUE_SUFFIX, KEY_SUFFIX = "-value", "-key"
"""Ends of the names of a topic's subjects."""


def topic_of(subject: str) -> str:
    """Return the topic that a subject belongs to: `trips-value` and `trips-key` name the topic `trips`, another subject
    names the topic that is called like it."""
    for suffix in (VALUE_SUFFIX, KEY_SUFFIX):
        if subject.endswith(suffix) and subject != suffix:
            return subject.removesuffix(suffix)
    return subject


class SchemasNotLoadedError(BrokerNotAvailableError):
    """Schemas are not in memory. The caller loads them from the registry, and decodes again."""

    def __init__(self, ids: Collection[int] = (), subjects: Collection[str] = (), guids: Collection[UUID] = ()) -> None:
        names = [*map(str, sorted(ids)), *sorted(subjects), *map(str, guids)]
        super().__init__(f"schemas are not loaded: {', '.join(names):.200}")
        self.ids = frozenset(ids)
        self.subjects = frozenset(subjects)
        self.guids = frozenset(guids)

    @classmethod
    def of(cls, errors: Iterable[SchemasNotLoadedError]) -> SchemasNotLoadedError:
        """Return one error for the schemas of several."""
        several = list(errors)
        return cls(
            frozenset[int]().union(*(one.ids for one in several)),
            frozenset[str]().union(*(one.subjects for one in several)),
            frozenset[UUID]().union(*(one.guids for one in several)),
        )


class KeySchemaMissingError(BrokerNotAvailableError):
    """A topic has no key schema yet. The caller sets it to that of the topic's subject, and decodes again."""

    def __init__(self, topic: str) -> None:
        super().__init__(f"topic {topic!r} has no key schema yet: register one for the subject {key_subject(topic)!r}")
        self.topic = topic


class Schemas(Protocol):
    """The loaded schemas of a registry. Any thread can call the methods."""

    def schema_of(self, schema_id: int) -> Parsed | None:
        """Return the schema of an id; None if the registry has none. Raises SchemasNotLoadedError; SchemaMismatchError
        for a schema that sparklog cannot read."""

    def id_of(self, guid: UUID) -> int | None:
        """Return the id of the schema that has a GUID; None if the registry has none. Raises SchemasNotLoadedError."""

    def newest(self, subject: str) -> tuple[int, Parsed] | None:
        """Return the newest schema of a subject with its id; None without one. Raises SchemasNotLoadedError;
        SchemaMismatchError for a schema that sparklog cannot read."""

    def note_dropped(self, topic: str, records: Mapping[str, int]) -> None:
        """Count records of a topic with fields that the newest schema does not have, by the field's path. Raises
        SchemasNotLoadedError if the newest schema can be another one meanwhile."""


def value_subject(topic: str) -> str:
    """Return the subject of the schemas of a topic's values."""
    return topic + VALUE_SUFFIX


def key_subject(topic: str) -> str:
    """Return the subject of the schemas of a topic's keys."""
    return topic + KEY_SUFFIX
