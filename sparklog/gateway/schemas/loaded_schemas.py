"""The schemas that the conversion of records uses, loaded from the registry before they are used.

Conversions run on threads, and the registry is behind a connection. So a conversion that lacks a schema ends with
SchemasNotLoadedError; the handler loads the schema, and converts again.
"""

from __future__ import annotations

import logging
from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping
from threading import Lock
from typing import NamedTuple
from uuid import UUID

from sparklog.errors import SparklogError
from sparklog.gateway.backend.connection import BrokerConnection
from sparklog.gateway.schemas.own_registry import Registry
from sparklog.kafka.schemas.schema_types import Parsed
from sparklog.kafka.values.schemas import SchemasNotLoadedError

log = logging.getLogger(__name__)

SCHEMAS_KEPT_MAX = 500
SUBJECTS_KEPT_MAX = 10_000
NEWEST_S = 5.0
"""Age in s after which the newest schema of a subject is looked up again."""
MISSING_S = 0.2
"""Age in s after which an id without a schema is looked up again."""
FIELDS_LOGGED_MAX = 1_000


class _Newest(NamedTuple):
    """The newest schema of a subject at a time."""

    loaded_s: float
    schema_id: int | None


class LoadedSchemas:
    """Schemas by their ids, and the newest ids of subjects; a `Schemas` of `sparklog.kafka.values`. Threads read, and
    the event-loop thread loads."""

    def __init__(self, registry: Registry, clock_s: Callable[[], float]) -> None:
        self._registry = registry
        self._clock_s = clock_s
        self._schemas: OrderedDict[int, Parsed] = OrderedDict()
        self._guids: OrderedDict[UUID, int] = OrderedDict()
        self._missing: dict[int | UUID, float] = {}
        """Times of the look-ups of ids and GUIDs without a schema."""
        self._subjects: OrderedDict[str, _Newest] = OrderedDict()
        self._dropped: Counter[tuple[str, str]] = Counter()
        self.dropped = 0
        """Number of dropped fields of records since the start of the gateway."""
        self._counting = Lock()

    def schema_of(self, schema_id: int) -> Parsed | None:
        """Return the schema of an id; None if the registry has none. Raises SchemasNotLoadedError."""
        schema = self._schemas.get(schema_id)
        if schema is None and self._clock_s() - self._missing.get(schema_id, -MISSING_S) >= MISSING_S:
            raise SchemasNotLoadedError([schema_id])
        return schema

    def id_of(self, guid: UUID) -> int | None:
        """Return the id of the schema that has a GUID; None if the registry has none. Raises SchemasNotLoadedError."""
        schema_id = self._guids.get(guid)
        if schema_id is None and self._clock_s() - self._missing.get(guid, -MISSING_S) >= MISSING_S:
            raise SchemasNotLoadedError(guids=[guid])
        return schema_id

    def newest(self, subject: str) -> tuple[int, Parsed] | None:
        """Return the newest schema of a subject with its id; None without one. Raises SchemasNotLoadedError."""
        newest = self._subjects.get(subject)
        if newest is None or self._clock_s() - newest.loaded_s >= NEWEST_S:
            raise SchemasNotLoadedError(subjects=[subject])
        if newest.schema_id is None:
            return None
        schema = self._schemas.get(newest.schema_id)
        if schema is None:
            raise SchemasNotLoadedError([newest.schema_id], [subject])
        return newest.schema_id, schema

    def note_dropped(self, topic: str, records: Mapping[str, int]) -> None:
        """Count records with fields that the newest schema does not have, and log the first of each field. `records`:
        their numbers by the field's path."""
        for path, count in records.items():
            with self._counting:
                self.dropped += count
                is_first = (topic, path) not in self._dropped and len(self._dropped) < FIELDS_LOGGED_MAX
                if is_first or (topic, path) in self._dropped:
                    self._dropped[topic, path] += count
            if is_first:
                log.warning(
                    "topic %s: records have the field %.200s, which the newest schema of the topic's subject does not "
                    "have: it is dropped",
                    topic,
                    path,
                )

    def dropped_records(self, topic: str) -> dict[str, int]:
        """Return the numbers of records with dropped fields, by the field's path."""
        with self._counting:
            return {path: count for (name, path), count in self._dropped.items() if name == topic}

    async def load(self, broker: BrokerConnection, missing: SchemasNotLoadedError) -> None:
        """Load schemas. While the registry does not answer, schemas in memory stay in use. Raises
        BrokerNotAvailableError if others are needed, and the broker's errors."""
        unread, guids = missing.ids - self._schemas.keys(), missing.guids - self._guids.keys()
        if unread or guids:  # an id that is not in memory can be that of a subject's newer schema
            self._subjects = OrderedDict(
                (name, one._replace(loaded_s=-NEWEST_S)) for name, one in self._subjects.items()
            )
        try:
            schemas, newest, of_guids = await self._registry.read(
                broker, unread, missing.subjects, self._schemas.keys(), guids
            )
        except SparklogError:
            if unread or guids or not all(map(self._is_usable, missing.subjects)):
                raise
            newest = {subject: self._subjects[subject].schema_id for subject in missing.subjects}
            schemas, of_guids = {}, {}
        now_s = self._clock_s()
        self._missing = {i: at_s for i, at_s in self._missing.items() if now_s - at_s < MISSING_S}
        self._missing |= dict.fromkeys(unread - schemas.keys(), now_s) | dict.fromkeys(guids - of_guids.keys(), now_s)
        self._schemas |= schemas
        self._guids |= of_guids
        while len(self._guids) > SCHEMAS_KEPT_MAX:
            self._guids.popitem(last=False)
        self._subjects |= {subject: _Newest(now_s, schema_id) for subject, schema_id in newest.items()}
        while len(self._schemas) > SCHEMAS_KEPT_MAX:
            self._schemas.popitem(last=False)
        while len(self._subjects) > SUBJECTS_KEPT_MAX:
            self._subjects.popitem(last=False)

    def _is_usable(self, subject: str) -> bool:
        """Return True if the subject's newest schema is in memory, as of its last look-up."""
        newest = self._subjects.get(subject)
        return newest is not None and (newest.schema_id is None or newest.schema_id in self._schemas)

    async def has_changed(self, broker: BrokerConnection, subject: str) -> bool:
        """Return True if a subject has another newest schema than at its last look-up. Raises as `load`."""
        former = self._subjects.get(subject)
        if former is not None and self._clock_s() - former.loaded_s < MISSING_S:
            return False
        await self.load(broker, SchemasNotLoadedError(subjects=[subject]))
        return former is None or self._subjects[subject].schema_id != former.schema_id
