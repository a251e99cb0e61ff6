"""A schema registry with Confluent's REST interface, read over HTTP."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import lru_cache
from threading import RLock
from typing import Any, NamedTuple
from uuid import UUID

from sparklog.client.net.registry_client import RegistryClient
from sparklog.errors import BrokerNotAvailableError, SchemaMismatchError, SparklogError
from sparklog.kafka.schemas.errors import RegistryError, invalid_schema
from sparklog.kafka.schemas.schema_types import Parsed, SchemaType, parse
from sparklog.kafka.values.schemas import SchemasNotLoadedError, value_subject
from sparklog.security.client_security import ClientSecurity

REFERENCES_MAX = 100
"""Largest number of schemas that one schema uses, directly or through others."""
ANSWER_S = 5.0
"""Longest wait for an answer in s."""
ANSWER_BYTES_MAX = 4 * 1024 * 1024
NEWEST_S = 60.0
"""Time for which the newest schema of a subject is not asked for again."""
MISSING_S = 10.0
"""The same for an id that the registry does not have."""
SCHEMAS_KEPT_MAX = 1_000
GUID_IDS = 2**31
"""First number in place of an id. A registry's ids are below it, and a frame has room for it."""
REGISTRIES_MAX = 16
"""Largest number of registries whose schemas a process keeps."""


class RegistryAnswer(NamedTuple):
    """The answer of a registry."""

    schemas: Mapping[int, Parsed]
    """Schemas by their ids; ids that the registry does not have are left out."""
    newest: Mapping[str, int | None]
    """Id of the newest schema of each subject; None for a subject without one."""
    guids: Mapping[UUID, int] = {}
    """Ids of schemas by their GUIDs; GUIDs that the registry does not have are left out."""
    unreadable: Mapping[int, str] = {}
    """Reasons why schemas cannot be used, by their ids."""


def unreadable_schema(schema_id: int, error: RegistryError) -> str:
    """Return the reason why a schema cannot be used."""
    return f"the registry has a schema {schema_id} that sparklog cannot read: {error!s:.300}"


def missing_newest(schema_id: int, subject: str) -> str:
    """Return the reason why a subject's newest schema cannot be used if its id has no schema."""
    return f"the registry has no schema {schema_id}, which is the newest one of the subject {subject!r}"


class RegistryReader:
    """Reads schemas; for one thread at a time."""

    def __init__(self, url: str, security: ClientSecurity | None = None) -> None:
        """`url`: http:// or https:// with host and port. `security`: the user and the authorities; None: no login.
        Raises InvalidConfigError."""
        self._client = RegistryClient(url, security, timeout_s=ANSWER_S, answer_bytes_max=ANSWER_BYTES_MAX)
        self._ids_of_guids: dict[UUID, int] = {}
        """Numbers in place of the ids that the registry does not tell with its GUIDs."""

    def read(
        self, ids: Collection[int], subjects: Iterable[str], kept: Collection[int], guids: Iterable[UUID] = ()
    ) -> RegistryAnswer:
        """Return schemas by their ids and GUIDs, and the newest ids of subjects. `kept`: ids that are in memory. Raises
        BrokerNotAvailableError if the registry does not answer."""
        newest: dict[str, int | None] = {}
        for subject in subjects:
            answer = self._get("subjects", subject, "versions", "latest")
            newest[subject] = None if answer is None else answer.get("id")
        schemas: dict[int, Parsed] = {}
        unreadable: dict[int, str] = {}
        for schema_id in ({*ids} | {one for one in newest.values() if one is not None}) - {*kept}:
            answer = self._get("schemas", "ids", str(schema_id))
            if answer is not None:
                try:
                    schemas[schema_id] = self._parse(answer, set())
                except RegistryError as e:
                    unreadable[schema_id] = unreadable_schema(schema_id, e)
        own: dict[UUID, int] = {}
        for guid in guids:
            answer = self._get("schemas", "guids", str(guid))
            if answer is not None:
                own[guid] = schema_id = self._id_of(guid, answer.get("id"))
                try:
                    schemas[schema_id] = self._parse(answer, set())
                except RegistryError as e:
                    unreadable[schema_id] = unreadable_schema(schema_id, e)
        return RegistryAnswer(schemas, newest, own, unreadable)

    def _id_of(self, guid: UUID, told: object) -> int:
        if isinstance(told, int) and 0 <= told < GUID_IDS:
            return told
        return self._ids_of_guids.setdefault(guid, GUID_IDS + len(self._ids_of_guids))

    def _parse(self, answer: dict[str, Any], reached: set[tuple[str, int]]) -> Parsed:
        """Return the schema of an answer, with those that it refers to. Raises RegistryError."""
        references: dict[str, Parsed] = {}
        try:
            kind = SchemaType(answer.get("schemaType") or SchemaType.AVRO)
            for one in answer.get("references") or ():
                place = str(one["subject"]), int(one["version"])
                if place in reached or len(reached) >= REFERENCES_MAX:
                    raise invalid_schema("its references lead to too many schemas, or in a circle")
                inner = self._get("subjects", place[0], "versions", str(place[1]))
                if inner is None:
                    raise invalid_schema(f"subject {place[0]!r} has no version {place[1]}")
                references[str(one["name"])] = self._parse(inner, reached | {place})
            return parse(kind, str(answer["schema"]), references)
        except (KeyError, TypeError, ValueError) as e:
            raise invalid_schema(f"the registry's answer cannot be read: {e!r:.200}") from None

    def _get(self, *path: str) -> dict[str, Any] | None:
        """Return an answer; None if the registry does not have what the path names. Raises BrokerNotAvailableError,
        also for a refusal, because another answer can come later."""
        where = f"the schema registry at {self._client.url}"
        try:
            value = self._client.find(path)
        except BrokerNotAvailableError:
            raise
        except SparklogError as e:
            raise BrokerNotAvailableError(f"{where} refuses /{'/'.join(path)}: {e}") from None
        if value is not None and not isinstance(value, dict):
            raise BrokerNotAvailableError(f"{where} answers /{'/'.join(path)} with no JSON object")
        return value


class _Newest(NamedTuple):
    """The newest schema of a subject at a time."""

    read_s: float
    schema_id: int | None


class RegistrySchemas:
    """The schemas of a registry, read when they are needed; a `Schemas` of `sparklog.kafka.values`. Any thread may use
    it."""

    def __init__(self, reader: RegistryReader, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._reader = reader
        self._clock_s = clock_s
        self._schemas: OrderedDict[int, Parsed] = OrderedDict()
        self._missing: dict[int, float] = {}
        self._unreadable: dict[int, str] = {}
        """Reasons why schemas cannot be used, of ids in `_missing`."""
        self._newest: dict[str, _Newest] = {}
        self._guids: dict[UUID, int] = {}
        self._missing_guids: dict[UUID, float] = {}
        self._lock = RLock()
        self.dropped: dict[tuple[str, str], int] = {}
        """Numbers of records with a field that the newest schema does not have, by topic and path."""

    def schema_of(self, schema_id: int) -> Parsed | None:
        """Return the schema of an id; None if the registry has none. Raises BrokerNotAvailableError;
        SchemaMismatchError for a schema that sparklog cannot read."""
        with self._lock:
            return self._schema_of(schema_id)

    def _schema_of(self, schema_id: int) -> Parsed | None:
        if schema_id not in self._schemas and self._clock_s() - self._missing.get(schema_id, -MISSING_S) >= MISSING_S:
            self._read([schema_id], [])
            if schema_id not in self._schemas:
                self._missing = {i: s for i, s in self._missing.items() if self._clock_s() - s < MISSING_S}
                self._missing[schema_id] = self._clock_s()
            else:  # it can be that of a subject's newer version
                self._newest.clear()
        schema = self._schemas.get(schema_id)
        if schema is None and schema_id in self._unreadable:
            raise SchemaMismatchError(self._unreadable[schema_id])
        return schema

    def id_of(self, guid: UUID) -> int | None:
        """Return the id of the schema of a GUID; None if the registry has none. Raises BrokerNotAvailableError."""
        with self._lock:
            is_new = self._clock_s() - self._missing_guids.get(guid, -MISSING_S) >= MISSING_S
            if guid not in self._guids and is_new:
                self._read([], [], [guid])
                if guid not in self._guids:
                    now_s = self._clock_s()
                    self._missing_guids = {g: s for g, s in self._missing_guids.items() if now_s - s < MISSING_S}
                    self._missing_guids[guid] = now_s
            return self._guids.get(guid)

    def newest(self, subject: str) -> tuple[int, Parsed] | None:
        """Return the newest schema of a subject with its id; None without one. Raises BrokerNotAvailableError;
        SchemaMismatchError for a schema that sparklog cannot read."""
        with self._lock:
            newest = self._newest.get(subject)
            if newest is None or self._clock_s() - newest.read_s >= NEWEST_S:
                self._read([], [subject])
                newest = self._newest[subject]
            if newest.schema_id is None:
                return None
            schema = self._schema_of(newest.schema_id)
            if schema is None:
                raise SchemaMismatchError(missing_newest(newest.schema_id, subject))
            return newest.schema_id, schema

    def note_dropped(self, topic: str, records: Mapping[str, int]) -> None:
        """Count records of a topic with fields that the newest schema does not have, by the field's path. Raises
        SchemasNotLoadedError if the subject has got a newer schema, which can have the fields; the caller decodes
        again. Raises BrokerNotAvailableError."""
        with self._lock:
            subject = value_subject(topic)
            former = self._newest.get(subject)
            self._read([], [subject])
            if former is None or self._newest[subject].schema_id != former.schema_id:
                raise SchemasNotLoadedError(subjects=[subject])
            for path, count in records.items():
                self.dropped[topic, path] = self.dropped.get((topic, path), 0) + count

    def _read(self, ids: list[int], subjects: list[str], guids: Iterable[UUID] = ()) -> None:
        answer = self._reader.read(ids, subjects, self._schemas.keys(), guids)
        self._schemas |= answer.schemas
        self._guids |= answer.guids
        self._unreadable = {i: reason for i, reason in self._unreadable.items() if i in self._missing}
        self._unreadable |= answer.unreadable
        self._missing |= dict.fromkeys(answer.unreadable, self._clock_s())
        self._newest |= {name: _Newest(self._clock_s(), schema_id) for name, schema_id in answer.newest.items()}
        while len(self._schemas) > SCHEMAS_KEPT_MAX:
            self._schemas.popitem(last=False)


@lru_cache(maxsize=REGISTRIES_MAX)
def registry_schemas(url: str, security: ClientSecurity | None = None) -> RegistrySchemas:
    """Return the process's schemas of a registry, which a user reads. Raises InvalidConfigError for a wrong address."""
    return RegistrySchemas(RegistryReader(url, security))
