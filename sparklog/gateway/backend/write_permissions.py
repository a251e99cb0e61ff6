"""A client's permissions to write, as the broker has stated them.

The gateway converts records with the columns of a cached topic, and its refusals name them. So it asks the broker
before the conversion if the client may write to the topic. The broker decides about each batch again.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable

from sparklog.errors import (
    SparklogError,
    TopicAuthorizationFailedError,
    UnknownTopicOrPartitionError,
    error_from_code,
)
from sparklog.gateway.backend.connection import BrokerConnection
from sparklog.gateway.backend.recent_checks import RecentChecks
from sparklog.gateway.backend.topics import read_metadata
from sparklog.protocol.base import TOPICS_PER_REQUEST_MAX
from sparklog.protocol.topic_messages import MetadataRequest

KEPT_S = 10.0
"""Age in s after which a permission is asked for again."""


class WritePermissions:
    """The topics that one client is allowed to write to."""

    def __init__(self, checks: RecentChecks, session: Hashable) -> None:
        """`session`: the client's session in `checks`."""
        self._checks = checks
        self._session = session

    async def refusals(self, connection: BrokerConnection, names: Iterable[str]) -> dict[str, SparklogError]:
        """Return the errors of the topics that do not exist or that the client may not write to. The text of a denial
        is the same for existing and missing topics. Raises the broker's errors."""
        unknown = [name for name in dict.fromkeys(names) if not self._checks.is_recent(self._key(name), KEPT_S)]
        refused: dict[str, SparklogError] = {}
        answered: set[str] = set()
        for start in range(0, len(unknown), TOPICS_PER_REQUEST_MAX):
            request = MetadataRequest(
                unknown[start : start + TOPICS_PER_REQUEST_MAX],
                paged=True,
                with_schemas=False,
                with_partitions=False,
                to_write=True,
            )
            for state in (await read_metadata(connection, request)).topics:
                if state.error_code:
                    self._checks.forget(self._key(state.name))
                    refused[state.name] = _refusal(state.name, state.error_code)
                else:
                    self._checks.record(self._key(state.name))
                    answered.add(state.name)
        for name in unknown:
            if name not in answered and name not in refused:
                refused[name] = _refusal(name, UnknownTopicOrPartitionError.code)
        return refused

    def _key(self, name: str) -> Hashable:
        return self._session, "write", name


def _refusal(name: str, code: int) -> SparklogError:
    if code == TopicAuthorizationFailedError.code:
        return TopicAuthorizationFailedError(f"Write on the topic {name!r} is not allowed")
    return error_from_code(code, f"topic {name!r} cannot be written to: the broker answered error {code}")
