"""What of an answer a peer may see: what the request did not name, and the peer may not Describe, is left out.

The other half of `permissions`: that one judges what a request names. Each filter takes a finished answer and gives one
without the rest; an answer of which nothing has to go is given back as it is.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from msgspec import structs

from sparklog.errors import TopicAuthorizationFailedError
from sparklog.protocol.base import Message
from sparklog.protocol.messages import Api
from sparklog.protocol.permissions import GROUP, TOPIC, TXN_ID, Authorizer, application_resource, may
from sparklog.security.acls import CLUSTER, Operation, Resource, ResourceType
from sparklog.security.authorizer import Peer

_DENIED = TopicAuthorizationFailedError.code
"""Who has named a topic is told this of it; a list has no such entry."""
Sees = Callable[[ResourceType, str], bool]
"""Whether the peer may Describe the resource."""


class Filter(NamedTuple):
    """`apply(answer, sees)`; `doc` says what is left out."""

    apply: Callable[[Any, Sees], Message]
    doc: str


def _kept(answer: Any, field: str, keep: Callable[[Any], bool]) -> Any:
    items = getattr(answer, field)
    kept = [item for item in items if keep(item)]
    return answer if len(kept) == len(items) else structs.replace(answer, **{field: kept})


def _metadata(answer: Any, sees: Sees) -> Any:
    return _kept(answer, "topics", lambda t: t.error_code == _DENIED or sees(TOPIC, t.name))


def _offsets(answer: Any, sees: Sees) -> Any:
    return _kept(answer, "offsets", lambda o: o.error_code == _DENIED or sees(TOPIC, o.topic))


def _groups(answer: Any, sees: Sees) -> Any:
    if sees(ResourceType.CLUSTER, CLUSTER.name):
        return answer
    return _kept(answer, "groups", lambda g: sees(GROUP, g.group_id))


def _group_details(answer: Any, sees: Sees) -> Any:
    def member(of: Any) -> Any:
        return structs.replace(
            of,
            topics=[t for t in of.topics if sees(TOPIC, t)],
            owned=[t for t in of.owned if sees(TOPIC, t.topic)],
            target=[t for t in of.target if sees(TOPIC, t.topic)],
        )

    groups = [structs.replace(group, members=[member(m) for m in group.members]) for group in answer.groups]
    return structs.replace(answer, groups=groups)


def _transactions(answer: Any, sees: Sees) -> Any:
    return _kept(answer, "transactions", lambda t: sees(TXN_ID, application_resource(t.transactional_id)))


def _transaction_details(answer: Any, sees: Sees) -> Any:
    transactions = [_kept(t, "partitions", lambda p: sees(TOPIC, p.topic)) for t in answer.transactions]
    return structs.replace(answer, transactions=transactions)


def _producers(answer: Any, sees: Sees) -> Any:
    def hidden(producer: Any) -> bool:
        name = producer.transactional_id
        return name is not None and not sees(TXN_ID, application_resource(name))

    if not any(map(hidden, answer.producers)):
        return answer
    producers = [structs.replace(p, transactional_id=None) if hidden(p) else p for p in answer.producers]
    return structs.replace(answer, producers=producers)


FILTERS: dict[Api, Filter] = {
    Api.METADATA: Filter(_metadata, "topics that were not named and cannot be described"),
    Api.OFFSET_FETCH: Filter(_offsets, "offsets of topics that were not named and cannot be described"),
    Api.LIST_GROUPS: Filter(_groups, "groups that cannot be described, unless the cluster can"),
    Api.DESCRIBE_GROUPS: Filter(_group_details, "topics of members that cannot be described"),
    Api.LIST_TRANSACTIONS: Filter(_transactions, "transactional ids that cannot be described"),
    Api.DESCRIBE_TRANSACTIONS: Filter(_transaction_details, "partitions of topics that cannot be described"),
    Api.DESCRIBE_PRODUCERS: Filter(_producers, "the transactional id of a producer, if it cannot be described"),
}


def visible(api: Api, answer: Message, peer: Peer, authorizer: Authorizer) -> Message:
    """The answer without what the peer may not see."""
    found = FILTERS.get(api)
    if found is None:
        return answer

    def sees(resource_type: ResourceType, name: str) -> bool:
        return may(authorizer, peer, Operation.DESCRIBE, Resource(resource_type, name))

    return found.apply(answer, sees)
