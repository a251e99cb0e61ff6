"""Schemas without a registry."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any
from uuid import UUID

from sparklog.kafka.schemas.avro import parse_avro
from sparklog.kafka.schemas.schema_types import Parsed
from sparklog.kafka.values.schemas import SchemasNotLoadedError


class FixedSchemas:
    """Loaded schemas that do not change. The newest one of each subject is that with the highest id."""

    def __init__(self, schemas: dict[int, Parsed] | None = None) -> None:
        self.schemas = dict(schemas or {})
        self.guids: dict[UUID, int] = {}
        self.dropped: list[tuple[str, dict[str, int]]] = []

    def of_request(self) -> FixedSchemas:
        return self

    def schema_of(self, schema_id: int) -> Parsed | None:
        if schema_id < 0:
            raise SchemasNotLoadedError([schema_id])
        return self.schemas.get(schema_id)

    def id_of(self, guid: UUID) -> int | None:
        return self.guids.get(guid)

    def newest(self, subject: str) -> tuple[int, Parsed] | None:
        return max(self.schemas.items(), default=None, key=lambda one: one[0])

    def note_dropped(self, topic: str, records: Mapping[str, int]) -> None:
        self.dropped.append((topic, dict(records)))


def avro(source: Any) -> Any:
    """The parsed schema of a source."""
    return parse_avro(json.dumps(source))
