"""Parsed schemas of a state, with their references, and a limited memory of them. One thread at a time uses it."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable

from sparklog.client.net.registry_reader import REFERENCES_MAX
from sparklog.gateway.schemas.state import Reference, RegistryState, StoredSchema
from sparklog.kafka.schemas.errors import invalid_schema
from sparklog.kafka.schemas.schema_types import Parsed, SchemaType, parse

REFERENCED_BYTES_MAX = 2 * 1024 * 1024
"""Largest size in bytes of the texts that one schema uses, with its own."""
KEPT_BYTES = 8 * 1024 * 1024
"""Size in bytes of the texts whose parsed schemas are kept. A parsed schema takes about 20 times its text."""


class ParsedSchemas:
    """Parses schemas, and remembers those with ids."""

    def __init__(self) -> None:
        self._kept: OrderedDict[tuple[int, bytes], Parsed] = OrderedDict()
        self._kept_bytes = 0

    def parse(self, state: RegistryState, kind: SchemaType, text: str, references: Iterable[Reference]) -> Parsed:
        """Parse a new schema. Raises RegistryError; InvalidConfigError if a library is missing."""
        references = tuple(references)
        self._check_references(state, references, len(text))
        return parse(kind, text, {one.name: self.stored(state, _schema_id(state, one)) for one in references})

    def stored(self, state: RegistryState, schema_id: int) -> Parsed:
        """Return the parsed schema of an id. Raises as `parse`."""
        schema = state.schemas[schema_id]
        key = schema_id, schema.content
        if key not in self._kept:
            references = {one.name: self.stored(state, _schema_id(state, one)) for one in schema.references}
            self._kept[key] = parse(schema.kind, schema.text, references, schema.compiled)
            self._kept_bytes += len(schema.text)
            while self._kept_bytes > KEPT_BYTES and len(self._kept) > 1:
                self._kept_bytes -= len(self._kept.popitem(last=False)[1].text)
        self._kept.move_to_end(key)
        return self._kept[key]

    def _check_references(self, state: RegistryState, references: tuple[Reference, ...], text_bytes: int) -> None:
        """Raise RegistryError for references that do not exist, or that lead to too many schemas."""
        names = [one.name for one in references]
        if len(set(names)) != len(names):
            raise invalid_schema("two references have one name")
        waiting, reached = list(references), set[int]()
        while waiting:
            schema_id = _schema_id(state, waiting.pop())
            if schema_id not in reached:
                reached.add(schema_id)
                schema: StoredSchema = state.schemas[schema_id]
                text_bytes += len(schema.text)
                waiting += schema.references
            if len(reached) > REFERENCES_MAX or text_bytes > REFERENCED_BYTES_MAX:
                limits = f"{REFERENCES_MAX} schemas and {REFERENCED_BYTES_MAX} bytes"
                raise invalid_schema(f"its references lead to more than {limits}")


def _schema_id(state: RegistryState, reference: Reference) -> int:
    versions = state.subjects.get(reference.subject, {})
    version = versions.get(reference.version)
    if version is None:
        place = f"subject {reference.subject[:200]!r}, version {reference.version}"
        raise invalid_schema(f"no schema reference for {reference.name[:200]!r}: {place} does not exist")
    return version.schema_id
