"""A schema registry outside of the cluster (`schema.registry.url`), read over HTTP."""

from __future__ import annotations

import asyncio
import urllib.error
import urllib.request
from collections.abc import Collection, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.parse import quote

import msgspec

from sparklog.errors import BrokerNotAvailableError
from sparklog.gateway.backend.connection import BrokerConnection
from sparklog.gateway.schemas.own_registry import RegistryAnswer
from sparklog.gateway.schemas.parsed_schemas import REFERENCES_MAX
from sparklog.kafka.schemas.errors import RegistryError, invalid_schema
from sparklog.kafka.schemas.schema_types import Parsed, SchemaType, parse

ANSWER_S = 5.0
"""Longest wait for an answer in s."""
ANSWER_BYTES_MAX = 4 * 1024 * 1024


class OutsideRegistry:
    """Reads schemas. Event-loop thread only; requests are sent on a thread, one at a time."""

    def __init__(self, url: str) -> None:
        """`url`: http:// or https:// with host and port."""
        self._url = url.rstrip("/")
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="schema-registry")

    async def read(
        self, broker: BrokerConnection, ids: Collection[int], subjects: Iterable[str], kept: Collection[int]
    ) -> RegistryAnswer:
        """Return schemas by their ids, and the newest ids of subjects. `kept`: ids that are in memory. Raises
        BrokerNotAvailableError if the registry does not answer."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._thread, self._read, frozenset(ids), list(subjects), frozenset(kept))

    def _read(self, ids: frozenset[int], subjects: list[str], kept: frozenset[int]) -> RegistryAnswer:
        newest: dict[str, int | None] = {}
        for subject in subjects:
            answer = self._get(f"/subjects/{quote(subject, safe='')}/versions/latest")
            newest[subject] = None if answer is None else answer.get("id")
        schemas = {}
        for schema_id in (ids | {one for one in newest.values() if one is not None}) - kept:
            answer = self._get(f"/schemas/ids/{schema_id}")
            if answer is not None:
                try:
                    schemas[schema_id] = self._parse(answer, set())
                except RegistryError:
                    continue  # it counts as missing
        return RegistryAnswer(schemas, newest)

    def _parse(self, answer: dict[str, Any], reached: set[tuple[str, int]]) -> Parsed:
        """Return the schema of an answer, with those that it refers to. Raises RegistryError."""
        references: dict[str, Parsed] = {}
        try:
            kind = SchemaType(answer.get("schemaType") or SchemaType.AVRO)
            for one in answer.get("references") or ():
                place = str(one["subject"]), int(one["version"])
                if place in reached or len(reached) >= REFERENCES_MAX:
                    raise invalid_schema("its references lead to too many schemas, or in a circle")
                inner = self._get(f"/subjects/{quote(place[0], safe='')}/versions/{place[1]}")
                if inner is None:
                    raise invalid_schema(f"subject {place[0]!r} has no version {place[1]}")
                references[str(one["name"])] = self._parse(inner, reached | {place})
            return parse(kind, str(answer["schema"]), references)
        except (KeyError, TypeError, ValueError) as e:
            raise invalid_schema(f"the registry's answer cannot be read: {e!r:.200}") from None

    def _get(self, path: str) -> dict[str, Any] | None:
        """Return an answer; None if the registry does not have what the path names. Raises BrokerNotAvailableError."""
        try:
            with urllib.request.urlopen(self._url + path, timeout=ANSWER_S) as answer:
                body = answer.read(ANSWER_BYTES_MAX + 1)
        except urllib.error.HTTPError as e:
            with e:
                if e.code == 404:
                    return None
            raise BrokerNotAvailableError(f"the schema registry at {self._url} answered {e.code} to {path}") from None
        except OSError as e:
            raise BrokerNotAvailableError(f"the schema registry at {self._url} does not answer: {e}") from None
        try:
            value = msgspec.json.decode(body)
        except (msgspec.DecodeError, UnicodeError, RecursionError):
            value = None
        if not isinstance(value, dict):
            raise BrokerNotAvailableError(f"the schema registry at {self._url} answers {path} with no JSON object")
        return value

    def close(self) -> None:
        """Stop the thread after its present request."""
        self._thread.shutdown(wait=False, cancel_futures=True)
