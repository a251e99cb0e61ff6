"""The cluster's own schema registry as a source of schemas for the conversion of records."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable
from functools import partial
from typing import Protocol
from uuid import UUID

from sparklog.client.net.registry_reader import RegistryAnswer, unreadable_schema
from sparklog.errors import BrokerNotAvailableError
from sparklog.gateway.backend.connection import BrokerConnection
from sparklog.gateway.schemas.parsed_schemas import ParsedSchemas
from sparklog.gateway.schemas.registry_log import RegistryLog
from sparklog.gateway.schemas.state import RegistryState
from sparklog.kafka.schemas.errors import RegistryError
from sparklog.kafka.schemas.schema_types import Parsed

READ_S = 10.0
"""Longest wait for the registry's log in s; a client sends its records again after its error."""


class Registry(Protocol):
    """A source of schemas."""

    async def read(
        self,
        broker: BrokerConnection,
        ids: Collection[int],
        subjects: Iterable[str],
        kept: Collection[int],
        guids: Collection[UUID] = (),
    ) -> RegistryAnswer:
        """Return schemas by their ids and GUIDs, and the newest ids of subjects, with their schemas. `kept`: ids that
        are in memory, and left out. Raises BrokerNotAvailableError if the registry does not answer, and the broker's
        errors."""


class OwnRegistry:
    """Reads schemas from the registry's log. Event-loop thread only."""

    def __init__(self, log: RegistryLog) -> None:
        self._log = log

    async def read(
        self,
        broker: BrokerConnection,
        ids: Collection[int],
        subjects: Iterable[str],
        kept: Collection[int],
        guids: Collection[UUID] = (),
    ) -> RegistryAnswer:
        """Return schemas and newest ids, as `Registry.read`."""
        try:
            async with asyncio.timeout(READ_S):
                state = await self._log.refresh(broker)
        except TimeoutError:
            raise BrokerNotAvailableError(f"the log of the schema registry has not answered in {READ_S:g} s") from None
        newest = {subject: served_id(state, subject) for subject in subjects}
        of_guids = {guid: state.guids[guid] for guid in guids if guid in state.guids}
        unread = {*ids, *of_guids.values(), *(one for one in newest.values() if one is not None)} - set(kept)
        if not unread:
            return RegistryAnswer({}, newest, of_guids)
        schemas, unreadable = await self._log.run(partial(_parse, self._log.schemas, state, unread))
        return RegistryAnswer(schemas, newest, of_guids, unreadable)


def newest_id(state: RegistryState, subject: str) -> int | None:
    """Return the id of the newest schema of a subject; None without one."""
    versions = state.active(subject)
    return versions[max(versions)].schema_id if versions else None


def served_id(state: RegistryState, subject: str) -> int | None:
    """Return the id of the schema in which consumers get records: the newest one, also after its soft deletion if no
    other is there, as Kafka's consumers go on with the ids of such schemas."""
    versions = state.subjects.get(subject)
    return newest_id(state, subject) or (versions[max(versions)].schema_id if versions else None)


def _parse(
    schemas: ParsedSchemas, state: RegistryState, ids: Iterable[int]
) -> tuple[dict[int, Parsed], dict[int, str]]:
    """Return the parsed schemas of those ids that the registry has, and reasons for those that cannot be parsed."""
    parsed: dict[int, Parsed] = {}
    unreadable: dict[int, str] = {}
    for schema_id in ids:
        if schema_id in state.schemas:
            try:
                parsed[schema_id] = schemas.stored(state, schema_id)
            except RegistryError as e:
                unreadable[schema_id] = unreadable_schema(schema_id, e)
    return parsed, unreadable
