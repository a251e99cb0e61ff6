"""Decisions about permissions: a request is judged by the rules of its API in the table of APIs. The broker checks the
permissions before it executes or reveals anything.

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

from collections.abc import Iterable
from typing import NamedTuple, Protocol

from sparklog.errors import (
    ClusterAuthorizationFailedError,
    GroupAuthorizationFailedError,
    SparklogError,
    TopicAuthorizationFailedError,
    TransactionalIdAuthorizationFailedError,
)
from sparklog.protocol.apis import APIS, Api
from sparklog.protocol.base import Message
from sparklog.protocol.permission_rules import ANY_TOPIC, TOPIC, Denial, Rule
from sparklog.security.acls import CLUSTER, Operation, Resource, ResourceType
from sparklog.security.authorizer import Peer
from sparklog.types import INTERNAL_TOPICS


class Authorizer(Protocol):
    """Decides about permissions; `sparklog.security.authorizer.AclAuthorizer` implements it."""

    def allowed(self, peer: Peer, operation: Operation, resource: Resource) -> bool: ...

    def allowed_by_type(self, peer: Peer, operation: Operation, resource_type: ResourceType) -> bool: ...


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
    for rule in APIS[api].permissions:
        names = rule.names(request)
        decided = {name: _fulfils(rule, name, peer, authorizer) for name in dict.fromkeys(names)}
        if all(decided.values()):
            continue
        denied_names = frozenset(name for name, may_do in decided.items() if not may_do)
        first = next(name for name in decided if name in denied_names)
        about = (denied_names, rule.operation, Resource(rule.resource_type, first))
        if rule.denial is Denial.REQUEST:
            return Verdict(_error(rule, first), frozenset(), None, *about)
        # rules for items come last, one for each request at most (a test holds that)
        denied = frozenset(place for place, name in enumerate(names) if name in denied_names)
        return Verdict(None, denied, _error(rule, ""), *about)
    return Verdict()


def _fulfils(rule: Rule, name: str, peer: Peer, authorizer: Authorizer) -> bool:
    resource = Resource(rule.resource_type, name)
    if may(authorizer, peer, rule.operation, resource):
        return True
    if rule.or_else is None or (rule.resource_type is TOPIC and name in INTERNAL_TOPICS):
        return False
    operation, alternative = rule.or_else
    if alternative == ANY_TOPIC:
        return authorizer.allowed_by_type(peer, operation, TOPIC)
    return authorizer.allowed(peer, operation, CLUSTER)


def _error(rule: Rule, name: str) -> SparklogError:
    """Return the error of a denied resource. Its text does not reveal if the resource exists."""
    target = f"the {rule.resource_type} {name!r}" if name else f"this {rule.resource_type}"
    target = "the cluster" if rule.resource_type is ResourceType.CLUSTER else target
    if rule.or_else is not None and rule.or_else[1] == ANY_TOPIC:  # most producers have the alternative: name both
        other = rule.or_else[0]
        return _ERRORS[rule.resource_type](
            f"neither {other} on {ANY_TOPIC} nor {rule.operation} on {target} is allowed: one of them is required"
        )
    return _ERRORS[rule.resource_type](f"{rule.operation} on {target} is not allowed")


def resources_of(api: Api, request: Message) -> list[str]:
    """Return the resources that the request names, for the audit log."""
    return [str(Resource(rule.resource_type, name)) for rule in APIS[api].permissions for name in rule.names(request)]


def required_operations(api: Api) -> Iterable[tuple[ResourceType, Operation]]:
    """Return all permissions that requests of the API can need, without the alternatives, for authors of ACLs."""
    return dict.fromkeys((rule.resource_type, rule.operation) for rule in APIS[api].permissions)
