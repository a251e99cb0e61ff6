"""Filters of answers. An item that the request did not name, and that the peer may not Describe, is left out.

`permissions` judges the names in a request; this module judges the names that are only in the answer. Long answers are
built piece by piece, so a filter handles one piece, before it is encoded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple, TypeVar

from msgspec import structs

from sparklog.protocol.messages import Api
from sparklog.protocol.permissions import GROUP, TOPIC, TXN_ID, application_resource
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


def _group(group: Any, sees: Sees) -> Any | None:
    return group if sees(ResourceType.CLUSTER, CLUSTER.name) or sees(GROUP, group.group_id) else None


def _member(member: Any, sees: Sees) -> Any:
    return structs.replace(
        member,
        topics=[t for t in member.topics if sees(TOPIC, t)],
        owned=[t for t in member.owned if sees(TOPIC, t.topic)],
        target=[t for t in member.target if sees(TOPIC, t.topic)],
    )


def _transaction(summary: Any, sees: Sees) -> Any | None:
    return summary if sees(TXN_ID, application_resource(summary.transactional_id)) else None


def _producer(producer: Any, sees: Sees) -> Any:
    name = producer.transactional_id
    if name is None or sees(TXN_ID, application_resource(name)):
        return producer
    return structs.replace(producer, transactional_id=None)


FILTERS: dict[Api, Filter] = {
    Api.METADATA: Filter(
        lambda name, sees: name if sees(TOPIC, name) else None,
        "names of topics, if all are asked for",
        "topics that were not named and cannot be described",
    ),
    Api.OFFSET_FETCH: Filter(
        lambda offset, sees: offset if sees(TOPIC, offset.topic) else None,
        "FetchedOffset, if all are asked for",
        "offsets of topics that were not named and cannot be described",
    ),
    Api.LIST_GROUPS: Filter(_group, "GroupSummary", "groups that cannot be described, unless the cluster can"),
    Api.DESCRIBE_GROUPS: Filter(_member, "GroupMember", "topics of members that cannot be described"),
    Api.LIST_TRANSACTIONS: Filter(_transaction, "TransactionSummary", "transactional ids that cannot be described"),
    Api.DESCRIBE_TRANSACTIONS: Filter(
        lambda partition, sees: partition if sees(TOPIC, partition.topic) else None,
        "TransactionPartition",
        "partitions of topics that cannot be described",
    ),
    Api.DESCRIBE_PRODUCERS: Filter(
        _producer, "ProducerState", "the transactional id of a producer, if it cannot be described"
    ),
}


def shown(api: Api, pieces: Iterable[T], sees: Sees) -> Iterator[T]:
    """Return the pieces of an answer that the peer may see, each as the peer may see it."""
    look = FILTERS[api].shown
    return (piece for found in pieces if (piece := look(found, sees)) is not None)
