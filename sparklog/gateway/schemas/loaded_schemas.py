"""The schemas that the conversion of records uses, loaded from the registry before they are used.

Conversions run on threads, and the registry is behind a connection. So a conversion that lacks a schema ends with
SchemasNotLoadedError; the handler loads the schema, and converts again.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, OrderedDict
from collections.abc import Callable, Collection, Mapping, Set
from contextlib import suppress
from threading import Lock
from typing import NamedTuple, TypeVar
from uuid import UUID

from sparklog.client.net.registry_reader import RegistryAnswer, missing_newest
from sparklog.errors import SchemaMismatchError, SparklogError
from sparklog.gateway.backend.connection import BrokerConnection
from sparklog.gateway.limited_lines import REASON_CHARS_MAX, LimitedLines
from sparklog.gateway.schemas.own_registry import Registry
from sparklog.kafka.schemas.schema_types import Parsed
from sparklog.kafka.values.schemas import SchemasNotLoadedError, value_subject

log = logging.getLogger(__name__)
K = TypeVar("K")
V = TypeVar("V")

SCHEMAS_KEPT_MAX = 500
SUBJECTS_KEPT_MAX = 10_000
NEWEST_S = 5.0
"""Age in s after which the newest schema of a subject is looked up again."""
MISSING_S = 0.2
"""Time in s after which an id without a schema is looked up again. If its schema cannot be read, this is NEWEST_S."""
RENEWAL_S = 0.5
"""Longest wait in s for the newest schemas of subjects whose former ones are in memory, and stay in use meanwhile."""
VAIN_LOADS_MAX = 3
"""Largest number of look-ups of one request with ids that the registry does not have."""
TOO_MANY_IDS = (
    "its schema was not looked up, because the request has too many ids that the registry does not have: send it again"
)
FIELDS_LOGGED_MAX = 1_000


class _Newest(NamedTuple):
    """The newest schema of a subject at a time."""

    loaded_s: float
    schema_id: int | None
    is_expired: bool = False
    """True if an id that was not in memory before can be that of a newer schema."""


class LoadedSchemas:
    """Schemas by their ids, and the newest ids of subjects; a `Schemas` of `sparklog.kafka.values`. Threads read, and
    the event-loop thread loads."""

    def __init__(self, registry: Registry, clock_s: Callable[[], float]) -> None:
        self._registry = registry
        self._clock_s = clock_s
        self._schemas: OrderedDict[int, Parsed] = OrderedDict()
        self._guids: OrderedDict[UUID, int] = OrderedDict()
        self._missing: dict[int | UUID, float] = {}
        """Times from which ids and GUIDs without a schema that can be used are looked up again."""
        self._unreadable: dict[int, str] = {}
        """Reasons why schemas cannot be used, of ids in `_missing`."""
        self._subjects: OrderedDict[str, _Newest] = OrderedDict()
        self._renewals: dict[str, asyncio.Task[None]] = {}
        """Look-ups of newest schemas of subjects, while the former ones are in use."""
        self._unread_lines = LimitedLines(log, clock_s, "look-ups failed")
        self._dropped: Counter[tuple[str, str]] = Counter()
        self.dropped = 0
        """Number of dropped fields of records since the start of the gateway."""
        self._counting = Lock()

    def schema_of(self, schema_id: int) -> Parsed | None:
        """Return the schema of an id; None if the registry has none. Raises SchemasNotLoadedError; SchemaMismatchError
        for a schema that sparklog cannot read."""
        schema = self._schemas.get(schema_id)
        if schema is None and self._is_due(schema_id):
            raise SchemasNotLoadedError([schema_id])
        reason = self._unreadable.get(schema_id)
        if schema is None and reason is not None:
            raise SchemaMismatchError(reason)
        return schema

    def _is_due(self, missing: int | UUID) -> bool:
        """Return True if an id without a schema that can be used is to be looked up."""
        return self._clock_s() >= self._missing.get(missing, 0.0)

    def id_of(self, guid: UUID) -> int | None:
        """Return the id of the schema that has a GUID; None if the registry has none. Raises SchemasNotLoadedError."""
        schema_id = self._guids.get(guid)
        if self._is_due(guid) if schema_id is None else schema_id not in self._schemas and self._is_due(schema_id):
            raise SchemasNotLoadedError(guids=[guid])  # an id can be a number that the registry does not know
        return schema_id

    def newest(self, subject: str) -> tuple[int, Parsed] | None:
        """Return the newest schema of a subject with its id; None without one. Raises SchemasNotLoadedError;
        SchemaMismatchError for a schema that sparklog cannot read."""
        newest = self._subjects.get(subject)
        if newest is None or newest.is_expired or self._clock_s() - newest.loaded_s >= NEWEST_S:
            raise SchemasNotLoadedError(subjects=[subject])
        if newest.schema_id is None:
            return None
        try:
            schema = self.schema_of(newest.schema_id)
        except SchemasNotLoadedError as e:
            raise SchemasNotLoadedError(e.ids, [subject]) from None
        if schema is None:
            raise SchemaMismatchError(missing_newest(newest.schema_id, subject))
        return newest.schema_id, schema

    def of_request(self) -> RequestSchemas:
        """Return the schemas for the records of a request that has just arrived."""
        return RequestSchemas(self, self._clock_s())

    def require_newest(self, subject: str, since_s: float) -> None:
        """Raise SchemasNotLoadedError unless the newest schema of a subject was looked up at a time, or later."""
        newest = self._subjects.get(subject)
        if newest is None or newest.loaded_s < since_s:
            raise SchemasNotLoadedError(subjects=[subject])

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
        """Load schemas. While the registry does not answer, or is slow, schemas in memory stay in use. Raises
        BrokerNotAvailableError if others are needed, and the broker's errors."""
        unread, subjects, guids = missing.ids - self._schemas.keys(), missing.subjects, missing.guids
        if unread or guids or not all(map(self._is_usable, subjects)):
            self._apply(await self._read(broker, unread, subjects, guids), unread, guids)
            return
        if any(self._subjects[subject].is_expired for subject in subjects):
            with suppress(SparklogError):
                self._apply(await self._read(broker, frozenset(), subjects, frozenset()))
        elif subjects:
            await asyncio.wait([self._renewal(broker, subject) for subject in subjects], timeout=RENEWAL_S)
        now_s = self._clock_s()
        for subject in subjects & self._subjects.keys():
            self._subjects[subject] = self._subjects[subject]._replace(loaded_s=now_s, is_expired=False)

    def _renewal(self, broker: BrokerConnection, subject: str) -> asyncio.Task[None]:
        """Return the look-up of a subject's newest schema, which begins unless it has begun before."""
        if subject not in self._renewals:
            self._renewals[subject] = asyncio.create_task(self._renew(broker, subject))
        return self._renewals[subject]

    async def _renew(self, broker: BrokerConnection, subject: str) -> None:
        """Look up a newest schema. After an error, or if a newer id was loaded meanwhile, nothing changes."""
        own = asyncio.current_task()
        try:
            answer = await self._read(broker, frozenset(), [subject], frozenset())
            if self._renewals.get(subject) is own:
                self._apply(answer)
        except SparklogError:
            pass
        finally:
            if self._renewals.get(subject) is own:
                del self._renewals[subject]

    async def _read(
        self, broker: BrokerConnection, ids: Set[int], subjects: Collection[str], guids: Set[UUID]
    ) -> RegistryAnswer:
        """Read schemas from the registry. Raises as `load`."""
        try:
            return await self._registry.read(broker, ids, subjects, self._schemas.keys(), guids)
        except SparklogError as e:
            reason = str(e)[:REASON_CHARS_MAX]
            self._unread_lines.write(
                f"schemas cannot be read: {reason}; records with schemas that are not in memory wait"
            )
            raise

    def _apply(self, answer: RegistryAnswer, unread: Set[int] = frozenset(), guids: Set[UUID] = frozenset()) -> None:
        """Take over an answer of the registry. `unread`, `guids`: the ids and GUIDs that it was asked for."""
        now_s = self._clock_s()
        if unread & answer.schemas.keys() or answer.guids:
            self._subjects = OrderedDict((name, one._replace(is_expired=True)) for name, one in self._subjects.items())
            self._renewals.clear()  # they can have begun before the newer schema was registered
        self._missing = {i: due_s for i, due_s in self._missing.items() if now_s < due_s}
        self._unreadable = {i: reason for i, reason in self._unreadable.items() if i in self._missing}
        self._unreadable |= answer.unreadable
        ids = unread | {one for one in answer.newest.values() if one is not None}
        self._missing |= dict.fromkeys(ids - answer.schemas.keys() - self._schemas.keys(), now_s + MISSING_S)
        self._missing |= dict.fromkeys(guids - answer.guids.keys(), now_s + MISSING_S)
        self._missing |= dict.fromkeys(answer.unreadable, now_s + NEWEST_S)
        self._schemas |= answer.schemas
        self._guids |= answer.guids
        while len(self._guids) > SCHEMAS_KEPT_MAX:
            self._guids.popitem(last=False)
        self._subjects |= {subject: _Newest(now_s, schema_id) for subject, schema_id in answer.newest.items()}
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


def _answer(look_up: Callable[[K], V], name: K) -> V | SchemaMismatchError:
    """Return the answer of a look-up, or its error. Raises SchemasNotLoadedError."""
    try:
        return look_up(name)
    except SchemaMismatchError as e:
        return SchemaMismatchError(str(e))


def _answered(answer: V | SchemaMismatchError) -> V:
    if isinstance(answer, SchemaMismatchError):
        raise SchemaMismatchError(str(answer))
    return answer


class RequestSchemas:
    """The schemas for the records of one request; a `Schemas` of `sparklog.kafka.values`.

    An answer holds for the whole request: a large batch is converted in many parts, and would begin again whenever an
    answer is too old. But no field is dropped by a newest schema that was looked up before the request: a newer one can
    have the field."""

    def __init__(self, loaded: LoadedSchemas, arrived_s: float) -> None:
        self._loaded = loaded
        self._arrived_s = arrived_s
        self._schemas: dict[int, Parsed | SchemaMismatchError | None] = {}
        self._guids: dict[UUID, int | None] = {}
        self._vain_loads = 0
        """Number of look-ups with ids that the registry does not have. They stay unknown to the next requests, which
        would have to look them up again."""
        self._newest: dict[str, tuple[int, Parsed] | SchemaMismatchError | None] = {}

    def schema_of(self, schema_id: int) -> Parsed | None:
        """Return the schema of an id, as `LoadedSchemas`."""
        if schema_id not in self._schemas:
            try:
                self._schemas[schema_id] = _answer(self._loaded.schema_of, schema_id)
            except SchemasNotLoadedError:
                if self._vain_loads < VAIN_LOADS_MAX:
                    raise
                self._schemas[schema_id] = SchemaMismatchError(TOO_MANY_IDS)
        return _answered(self._schemas[schema_id])

    def id_of(self, guid: UUID) -> int | None:
        """Return the id of the schema that has a GUID, as `LoadedSchemas`."""
        if guid not in self._guids:
            try:
                self._guids[guid] = self._loaded.id_of(guid)
            except SchemasNotLoadedError:
                if self._vain_loads < VAIN_LOADS_MAX:
                    raise
                self._guids[guid] = None
        return self._guids[guid]

    def newest(self, subject: str) -> tuple[int, Parsed] | None:
        """Return the newest schema of a subject, as `LoadedSchemas`."""
        if subject not in self._newest:
            self._newest[subject] = _answer(self._loaded.newest, subject)
        return _answered(self._newest[subject])

    def note_dropped(self, topic: str, records: Mapping[str, int]) -> None:
        """Count records with dropped fields, as `LoadedSchemas`. Raises SchemasNotLoadedError."""
        self._loaded.require_newest(value_subject(topic), self._arrived_s)
        self._loaded.note_dropped(topic, records)

    async def load(self, broker: BrokerConnection, missing: SchemasNotLoadedError) -> None:
        """Load schemas, as `LoadedSchemas`, and take over the answers."""
        await self._loaded.load(broker, missing)
        if missing.ids or missing.guids:  # they can be those of newer schemas
            self._newest.clear()
        for subject in missing.subjects:
            self._newest.pop(subject, None)
        for schema_id in missing.ids:
            with suppress(SchemasNotLoadedError, SchemaMismatchError):
                self.schema_of(schema_id)
        for guid in missing.guids:
            with suppress(SchemasNotLoadedError):
                self.id_of(guid)
        answers = [*map(self._schemas.get, missing.ids), *map(self._guids.get, missing.guids)]
        self._vain_loads += any(answer is None for answer in answers)
