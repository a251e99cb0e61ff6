"""The registered schemas of the cluster's own registry, for the topics of their subjects."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple, TypeVar

from sparklog.gateway.schemas.own_registry import newest_id
from sparklog.gateway.schemas.registry_log import RegistryLog
from sparklog.kafka.schemas.schema_types import Parsed

T = TypeVar("T")


class RegisteredVersion(NamedTuple):
    """A version of a subject."""

    number: int
    schema: Parsed
    is_deleted: bool = False
    """True after a soft deletion: rows can have values of the version nevertheless."""

    @property
    def name(self) -> str:
        """The version in an error."""
        return f"version {self.number}{', deleted' if self.is_deleted else ''}"


class RegisteredSchemas:
    """Reads the schemas of the log's present state. Event-loop thread only."""

    def __init__(self, log: RegistryLog) -> None:
        self._log = log

    async def newest(self, subject: str) -> tuple[int, Parsed] | None:
        """Return the newest schema of a subject with its id; None without one. Raises RegistryError."""
        state = self._log.state
        schema_id = newest_id(state, subject)
        if schema_id is None:
            return None
        return schema_id, await self._log.run(partial(self._log.schemas.stored, state, schema_id))

    def versions(self, subject: str) -> Callable[[], list[RegisteredVersion]]:
        """Return a function for `run` that returns the versions of a subject, ascending, also those that are deleted
        softly. It raises RegistryError."""
        state, schemas = self._log.state, self._log.schemas
        versions = state.subjects.get(subject, {})
        return lambda: [
            RegisteredVersion(number, schemas.stored(state, one.schema_id), one.is_deleted)
            for number, one in versions.items()
        ]

    async def run(self, work: Callable[[], T]) -> T:
        """Call `work` on the thread for schemas. Raises its errors."""
        return await self._log.run(work)
