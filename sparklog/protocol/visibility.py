"""Filters of answers. An item that the request did not name, and that the peer may not Describe, is left out.

`permissions` judges the names in a request; this module judges the names that are only in the answer. The table of
APIs has the filter of each API. Long answers are
built piece by piece, so a filter handles one piece, before it is encoded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple, TypeVar

from msgspec import structs

from sparklog.protocol.permission_rules import GROUP, TOPIC, TXN_ID, application_resource
from sparklog.security.acls import CLUSTER, ResourceType

T = TypeVar("T")

Sees = Callable[[ResourceType, str], bool]
"""Function that returns True if the peer may Describe the resource."""


class Filter(NamedTuple):
    """Filter of an API's answers. `shown(piece, sees)` returns the piece as the peer may see it; None: the piece is
    hidden. The documentation uses `pieces`, the kind of the pieces, and `doc`, the part that is left out."""

    shown: Callable[[Any, Sees], Any | None]
    pieces: str
    doc: str

    def visible(self, pieces: Iterable[T], sees: Sees) -> Iterator[T]:
        """Return the pieces of an answer that the peer may see, each as the peer may see it."""
        return (visible for piece in pieces if (visible := self.shown(piece, sees)) is not None)


def see_group(group: Any, sees: Sees) -> Any | None:
    """Return a group that the peer may see: all with Describe on the cluster, otherwise those that it may Describe."""
    return group if sees(ResourceType.CLUSTER, CLUSTER.name) or sees(GROUP, group.group_id) else None


def see_member(member: Any, sees: Sees) -> Any:
    """Return a member of a group without the topics that the peer may not Describe."""
    return structs.replace(
        member,
        topics=[t for t in member.topics if sees(TOPIC, t)],
        owned=[t for t in member.owned if sees(TOPIC, t.topic)],
        target=[t for t in member.target if sees(TOPIC, t.topic)],
    )


def see_transaction(summary: Any, sees: Sees) -> Any | None:
    """Return a transaction whose transactional id the peer may Describe."""
    return summary if sees(TXN_ID, application_resource(summary.transactional_id)) else None


def see_producer(producer: Any, sees: Sees) -> Any:
    """Return a producer, without a transactional id that the peer may not Describe."""
    name = producer.transactional_id
    if name is None or sees(TXN_ID, application_resource(name)):
        return producer
    return structs.replace(producer, transactional_id=None)
