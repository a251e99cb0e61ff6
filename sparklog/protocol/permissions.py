"""Permissions that each API needs: a table from the API to the resources of a request and the operation on them. The
broker checks the permissions before it executes or reveals anything.

Principles:

- Permissions are checked before existence. A peer without a permission gets the same answer for existing and missing
  resources.
- An internal topic is for the cluster alone: every operation on it needs `ClusterAction` on the cluster.
- Names that are only in the answer, not in the request (a list of all topics, the transactional id of a producer), are
  left out unless the peer may Describe them.

The operations are those of Kafka's APIs of the same purpose. A shared transaction is protected under its application's
name, as a transactional id.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from enum import Enum
from typing import Any, NamedTuple, Protocol

from sparklog.errors import (
    ClusterAuthorizationFailedError,
    GroupAuthorizationFailedError,
    SparklogError,
    TopicAuthorizationFailedError,
    TransactionalIdAuthorizationFailedError,
)
from sparklog.protocol.base import Message
from sparklog.protocol.messages import Api
from sparklog.security.acls import CLUSTER, Operation, Resource, ResourceType
from sparklog.security.authorizer import Peer
from sparklog.types import FENCING_TOKENS_ID, INTERNAL_TOPICS, SHARED_PREFIX

TOPIC, GROUP, TXN_ID = ResourceType.TOPIC, ResourceType.GROUP, ResourceType.TRANSACTIONAL_ID
USER = ResourceType.USER
ANY_TOPIC = "any topic"


class Authorizer(Protocol):
    """Decides about permissions; `sparklog.security.authorizer.AclAuthorizer` implements it."""

    def allowed(self, peer: Peer, operation: Operation, resource: Resource) -> bool: ...

    def allowed_by_type(self, peer: Peer, operation: Operation, resource_type: ResourceType) -> bool: ...


class Denial(Enum):
    """Form of the answer to a peer without the permission."""

    REQUEST = "error of the whole request"
    ITEM = "error of the item; the others are done"


Names = Callable[[Any], Sequence[str]]


class Rule(NamedTuple):
    """A permission that a request needs: `operation` on each of the resources that `names(request)` returns."""

    resource_type: ResourceType
    operation: Operation
    names: Names
    denial: Denial = Denial.REQUEST
    or_else: tuple[Operation, str] | None = None
    """A permission that is sufficient instead: (operation, "cluster") on the cluster, or (operation, ANY_TOPIC) on at
    least one topic. None: there is no alternative."""
    when: str = ""
    """Condition in words, for the documentation, if the rule applies to some requests only; empty: it applies to
    all."""


class Verdict(NamedTuple):
    """The decision about one request. With `error`, the broker does nothing of the request. Otherwise the items at the
    indices `denied_items` of the request's list get the result `item_error`."""

    error: SparklogError | None = None
    denied_items: frozenset[int] = frozenset()
    item_error: SparklogError | None = None
    denied_names: frozenset[str] = frozenset()
    """The names of the denied items' resources."""
    operation: Operation | None = None
    resource: Resource | None = None
    """First denied resource, for the audit log. With it, `operation` is the denied operation."""


def application_resource(transactional_id: str) -> str:
    """Return the name under which ACLs protect a transactional id. For a shared transaction, it is the application's
    name."""
    return transactional_id.removeprefix(SHARED_PREFIX)


def _one(field: str) -> Names:
    return lambda request: (getattr(request, field),)


def _topics_of(field: str) -> Names:
    return lambda request: [item.topic for item in getattr(request, field) or ()]


def _some(field: str) -> Names:
    return lambda request: getattr(request, field) or ()


def _transactional_id(request: Any) -> Sequence[str]:
    return () if request.transactional_id is None else (application_resource(request.transactional_id),)


def _snapshot_topics(request: Any) -> Sequence[str]:
    """Return all topics of the snapshot, because the broker observes all of them, not only the one of this request."""
    return list(dict.fromkeys((*request.topics, request.topic)))


def _cluster(request: Any) -> Sequence[str]:
    return (CLUSTER.name,)


def _cluster_without_transactional_id(request: Any) -> Sequence[str]:
    return (CLUSTER.name,) if request.transactional_id is None else ()


def _altered_users(request: Any) -> Sequence[str]:
    return [one.name for one in (*request.deletions, *request.upsertions)]


_O, _ITEM = Operation, Denial.ITEM
_BROKERS_ONLY = Rule(ResourceType.CLUSTER, _O.CLUSTER_ACTION, _cluster)
_OPERATORS = Rule(ResourceType.CLUSTER, _O.ALTER, _cluster, or_else=(_O.CLUSTER_ACTION, "cluster"))
"""Requests of operators. ClusterAction is sufficient, too, because brokers of earlier releases send these requests to
the controller as their own."""
_TRANSACTIONAL = Rule(TXN_ID, _O.WRITE, _transactional_id)

PERMISSIONS: dict[Api, tuple[Rule, ...]] = {
    Api.HANDSHAKE: (),
    Api.METADATA: (Rule(TOPIC, _O.DESCRIBE, _some("topics"), _ITEM, when="named topics"),),
    Api.CREATE_TOPIC: (Rule(TOPIC, _O.CREATE, _one("name"), or_else=(_O.CREATE, "cluster")),),
    Api.CREATE_PARTITIONS: (Rule(TOPIC, _O.ALTER, _one("name")),),
    Api.DELETE_TOPIC: (Rule(TOPIC, _O.DELETE, _one("name")),),
    Api.ALTER_TOPIC: (Rule(TOPIC, _O.ALTER_CONFIGS, _one("name")),),
    Api.ALTER_SCHEMA: (Rule(TOPIC, _O.ALTER, _one("name")),),
    Api.FIND_COORDINATOR: (
        Rule(GROUP, _O.DESCRIBE, lambda r: (r.key,) if r.key_type == 0 else (), when="of a group"),
        Rule(
            TXN_ID,
            _O.DESCRIBE,
            lambda r: (application_resource(r.key),) if r.key_type and r.key != FENCING_TOKENS_ID else (),
            when="of a transactional id but the fencing tokens'",
        ),
    ),
    Api.REPLICA_FETCH: (_BROKERS_ONLY,),
    Api.METADATA_FETCH: (_BROKERS_ONLY,),
    Api.ALTER_PARTITION: (_BROKERS_ONLY,),
    Api.CONTROLLED_SHUTDOWN: (_BROKERS_ONLY,),
    Api.DIRECTORY_FAILED: (_BROKERS_ONLY,),
    Api.WRITE_TXN_MARKERS: (_BROKERS_ONLY,),
    Api.ADD_PARTITIONS_TO_TXN: (_BROKERS_ONLY,),
    Api.FIND_TXN_OWNERS: (_BROKERS_ONLY,),
    Api.HOLD_TRANSACTIONS: (_BROKERS_ONLY,),
    Api.LIST_COMMITS: (_BROKERS_ONLY,),
    Api.FORWARD: (_BROKERS_ONLY,),
    Api.ALTER_PARTITION_REASSIGNMENTS: (_OPERATORS,),
    Api.LIST_PARTITION_REASSIGNMENTS: (Rule(ResourceType.CLUSTER, _O.DESCRIBE, _cluster),),
    Api.ELECT_LEADERS: (_OPERATORS,),
    Api.CORDON_BROKER: (_OPERATORS,),
    Api.DESCRIBE_CLUSTER: (Rule(ResourceType.CLUSTER, _O.DESCRIBE, _cluster),),
    Api.ALTER_BROKER_CONFIGS: (Rule(ResourceType.CLUSTER, _O.ALTER_CONFIGS, _cluster),),
    Api.DESCRIBE_BROKER_CONFIGS: (Rule(ResourceType.CLUSTER, _O.DESCRIBE_CONFIGS, _cluster),),
    Api.DESCRIBE_LOG_DIRS: (Rule(ResourceType.CLUSTER, _O.DESCRIBE, _cluster),),
    Api.ALTER_SECURITY_RECORDS: (_BROKERS_ONLY,),
    Api.SASL_HANDSHAKE: (),
    Api.SASL_AUTHENTICATE: (),
    Api.ALTER_USER_SCRAM_CREDENTIALS: (Rule(USER, _O.ALTER, _altered_users, or_else=(_O.ALTER, "cluster")),),
    Api.DESCRIBE_USER_SCRAM_CREDENTIALS: (
        Rule(USER, _O.DESCRIBE, _some("names"), or_else=(_O.DESCRIBE, "cluster"), when="named users"),
        Rule(
            ResourceType.CLUSTER,
            _O.DESCRIBE,
            lambda r: (CLUSTER.name,) if r.names is None else (),
            when="all users",
        ),
    ),
    Api.CREATE_ACLS: (Rule(ResourceType.CLUSTER, _O.ALTER, _cluster),),
    Api.DELETE_ACLS: (Rule(ResourceType.CLUSTER, _O.ALTER, _cluster),),
    Api.DESCRIBE_ACLS: (Rule(ResourceType.CLUSTER, _O.DESCRIBE, _cluster),),
    Api.DESCRIBE_CLIENT_QUOTAS: (Rule(ResourceType.CLUSTER, _O.DESCRIBE_CONFIGS, _cluster),),
    Api.ALTER_CLIENT_QUOTAS: (Rule(ResourceType.CLUSTER, _O.ALTER_CONFIGS, _cluster),),
    Api.PRODUCE: (
        _TRANSACTIONAL._replace(when="with a transactional id"),
        Rule(TOPIC, _O.WRITE, _topics_of("partitions"), _ITEM),
    ),
    Api.FETCH: (Rule(TOPIC, _O.READ, _topics_of("partitions"), _ITEM),),
    Api.LIST_OFFSETS: (Rule(TOPIC, _O.DESCRIBE, _topics_of("partitions"), _ITEM),),
    Api.OFFSETS_FOR_LEADER_EPOCH: (Rule(TOPIC, _O.DESCRIBE, _topics_of("partitions"), _ITEM),),
    Api.LOCATE_SEGMENTS: (Rule(TOPIC, _O.READ, _one("topic")),),
    Api.LOCATE_REMOTE: (Rule(TOPIC, _O.READ, _one("topic")),),
    Api.DELETE_RECORDS: (Rule(TOPIC, _O.DELETE, _topics_of("partitions"), _ITEM),),
    Api.INIT_PRODUCER_ID: (
        _TRANSACTIONAL._replace(when="with a transactional id"),
        Rule(
            ResourceType.CLUSTER,
            _O.IDEMPOTENT_WRITE,
            _cluster_without_transactional_id,
            or_else=(_O.WRITE, ANY_TOPIC),
            when="without a transactional id",
        ),
    ),
    Api.END_TXN: (_TRANSACTIONAL,),
    Api.TXN_OFFSET_COMMIT: (
        _TRANSACTIONAL,
        Rule(GROUP, _O.READ, _one("group_id")),
        Rule(TOPIC, _O.READ, _topics_of("offsets"), _ITEM),
    ),
    Api.JOIN_SHARED_TXN: (Rule(TXN_ID, _O.WRITE, _one("app_id")),),
    Api.END_SHARED_TXN: (Rule(TXN_ID, _O.WRITE, _one("app_id")),),
    Api.RENEW_SHARED_TXN: (Rule(TXN_ID, _O.WRITE, _one("app_id")),),
    Api.SNAPSHOT_OFFSETS: (Rule(TOPIC, _O.DESCRIBE, _snapshot_topics),),
    Api.LIST_TRANSACTIONS: (),
    Api.DESCRIBE_TRANSACTIONS: (
        Rule(TXN_ID, _O.DESCRIBE, lambda r: [application_resource(i) for i in r.transactional_ids], _ITEM),
    ),
    Api.ABORT_TRANSACTION: (Rule(ResourceType.CLUSTER, _O.ALTER, _cluster, or_else=(_O.CLUSTER_ACTION, "cluster")),),
    Api.DESCRIBE_PRODUCERS: (Rule(TOPIC, _O.READ, _one("topic")),),
    Api.GROUP_HEARTBEAT: (
        Rule(GROUP, _O.READ, _one("group_id")),
        Rule(TOPIC, _O.DESCRIBE, _some("topics"), when="with a subscription"),
    ),
    Api.OFFSET_COMMIT: (
        Rule(GROUP, _O.READ, _one("group_id")),
        Rule(TOPIC, _O.READ, _topics_of("offsets"), _ITEM),
    ),
    Api.OFFSET_FETCH: (
        Rule(GROUP, _O.DESCRIBE, _one("group_id")),
        Rule(TOPIC, _O.DESCRIBE, _topics_of("partitions"), _ITEM, when="named partitions"),
    ),
    Api.LIST_GROUPS: (),
    Api.DESCRIBE_GROUPS: (Rule(GROUP, _O.DESCRIBE, _some("group_ids"), _ITEM),),
    Api.DELETE_GROUP: (Rule(GROUP, _O.DELETE, _one("group_id")),),
    Api.REPORT_LAKE: (Rule(TOPIC, _O.ALTER_CONFIGS, _one("topic")),),
    Api.DESCRIBE_LAKES: (Rule(TOPIC, _O.DESCRIBE, _some("topics")),),
}

ADMINISTRATIVE = frozenset(
    {
        Api.CREATE_TOPIC,
        Api.CREATE_PARTITIONS,
        Api.DELETE_TOPIC,
        Api.ALTER_TOPIC,
        Api.ALTER_SCHEMA,
        Api.DELETE_RECORDS,
        Api.ABORT_TRANSACTION,
        Api.DELETE_GROUP,
        Api.ALTER_USER_SCRAM_CREDENTIALS,
        Api.CREATE_ACLS,
        Api.DELETE_ACLS,
        Api.ALTER_CLIENT_QUOTAS,
        Api.ALTER_PARTITION_REASSIGNMENTS,
        Api.ELECT_LEADERS,
        Api.CORDON_BROKER,
        Api.ALTER_BROKER_CONFIGS,
    }
)
"""APIs whose executed requests are all written to the audit log, successful or not. Of the other APIs, only denials
are."""

_ERRORS: dict[ResourceType, type[SparklogError]] = {
    ResourceType.TOPIC: TopicAuthorizationFailedError,
    ResourceType.GROUP: GroupAuthorizationFailedError,
    ResourceType.TRANSACTIONAL_ID: TransactionalIdAuthorizationFailedError,
    ResourceType.CLUSTER: ClusterAuthorizationFailedError,
    ResourceType.USER: ClusterAuthorizationFailedError,
}


def may(authorizer: Authorizer, peer: Peer, operation: Operation, resource: Resource) -> bool:
    """Return True if the peer may do the operation. For an internal topic, the peer needs ClusterAction on the cluster
    instead."""
    if resource.resource_type is TOPIC and resource.name in INTERNAL_TOPICS:
        return authorizer.allowed(peer, Operation.CLUSTER_ACTION, CLUSTER)
    return authorizer.allowed(peer, operation, resource)


def judge(api: Api, request: Message, peer: Peer, authorizer: Authorizer) -> Verdict:
    """Return the decision about the request: the denied parts, with their errors. The broker calls it before it looks
    anything up."""
    for rule in PERMISSIONS[api]:
        names = rule.names(request)
        decided = {name: _fulfils(rule, name, peer, authorizer) for name in dict.fromkeys(names)}
        if all(decided.values()):
            continue
        denied_names = frozenset(name for name, may_do in decided.items() if not may_do)
        first = next(name for name in decided if name in denied_names)
        about = (denied_names, rule.operation, Resource(rule.resource_type, first))
        if rule.denial is Denial.REQUEST:
            return Verdict(_error(rule, first), frozenset(), None, *about)
        # rules for items come last, one for each API at most (a test holds that)
        denied = frozenset(place for place, name in enumerate(names) if name in denied_names)
        return Verdict(None, denied, _error(rule, ""), *about)
    return Verdict()


def _fulfils(rule: Rule, name: str, peer: Peer, authorizer: Authorizer) -> bool:
    resource = Resource(rule.resource_type, name)
    if may(authorizer, peer, rule.operation, resource):
        return True
    if rule.or_else is None or (rule.resource_type is TOPIC and name in INTERNAL_TOPICS):
        return False
    operation, what = rule.or_else
    if what == ANY_TOPIC:
        return authorizer.allowed_by_type(peer, operation, TOPIC)
    return authorizer.allowed(peer, operation, CLUSTER)


def _error(rule: Rule, name: str) -> SparklogError:
    """Return the error of a denied resource. Its text does not reveal if the resource exists."""
    what = f"the {rule.resource_type} {name!r}" if name else f"this {rule.resource_type}"
    what = "the cluster" if rule.resource_type is ResourceType.CLUSTER else what
    if rule.or_else is not None and rule.or_else[1] == ANY_TOPIC:  # most producers have the alternative: name both
        other = rule.or_else[0]
        return _ERRORS[rule.resource_type](
            f"neither {other} on {ANY_TOPIC} nor {rule.operation} on {what} is allowed: one of them is required"
        )
    return _ERRORS[rule.resource_type](f"{rule.operation} on {what} is not allowed")


def resources_of(api: Api, request: Message) -> list[str]:
    """Return the resources that the request names, for the audit log."""
    return [str(Resource(rule.resource_type, name)) for rule in PERMISSIONS[api] for name in rule.names(request)]


def required_operations(api: Api) -> Iterable[tuple[ResourceType, Operation]]:
    """Return all permissions that requests of the API can need, without the alternatives, for authors of ACLs."""
    return dict.fromkeys((rule.resource_type, rule.operation) for rule in PERMISSIONS[api])
