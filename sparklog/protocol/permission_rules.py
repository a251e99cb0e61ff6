"""Rules about permissions: the resources that a request names, and the operation on them that its peer needs.

The table of APIs has the rules of each API, and `permissions` judges requests by them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum
from typing import Any, NamedTuple

from sparklog.format.key_format import KEY_SCHEMA_SETTING
from sparklog.security.acls import CLUSTER, Operation, ResourceType
from sparklog.settings import MIRROR_PREFIX
from sparklog.types import FENCING_TOKENS_ID, SHARED_PREFIX

TOPIC, GROUP, TXN_ID = ResourceType.TOPIC, ResourceType.GROUP, ResourceType.TRANSACTIONAL_ID
USER, CLUSTER_TYPE = ResourceType.USER, ResourceType.CLUSTER
ANY_TOPIC = "any topic"


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


def application_resource(transactional_id: str) -> str:
    """Return the name under which ACLs protect a transactional id. For a shared transaction, it is the application's
    name."""
    return transactional_id.removeprefix(SHARED_PREFIX)


def single(field: str) -> Names:
    """Return the function that gives the one name in a field of the request."""
    return lambda request: (getattr(request, field),)


def topics_of(field: str) -> Names:
    """Return the function that gives the topics of the items in a field of the request."""
    return lambda request: [item.topic for item in getattr(request, field) or ()]


def listed(field: str) -> Names:
    """Return the function that gives the names in a field of the request; none if the field is None."""
    return lambda request: getattr(request, field) or ()


def transactional_id_of(request: Any) -> Sequence[str]:
    """Return the protected name of the request's transactional id; none without an id."""
    return () if request.transactional_id is None else (application_resource(request.transactional_id),)


def snapshot_topics(request: Any) -> Sequence[str]:
    """Return all topics of the snapshot, because the broker observes all of them, not only the one of this request."""
    return list(dict.fromkeys((*request.topics, request.topic)))


def cluster_name(request: Any) -> Sequence[str]:
    """Return the name of the cluster's resource."""
    return (CLUSTER.name,)


def cluster_without_transactional_id(request: Any) -> Sequence[str]:
    """Return the name of the cluster's resource for a request without a transactional id."""
    return (CLUSTER.name,) if request.transactional_id is None else ()


def cluster_at_offsets(request: Any) -> Sequence[str]:
    """Return the name of the cluster's resource for batches with offsets of their own."""
    return (CLUSTER.name,) if request.expected_offsets else ()


def cluster_of_mirror(request: Any) -> Sequence[str]:
    """Return the name of the cluster's resource for a request with settings of a mirror. They name a file with secrets
    and a host that gets them."""
    return (CLUSTER.name,) if any(name.startswith(MIRROR_PREFIX) for name in request.configs) else ()


def is_key_schema(request: Any) -> bool:
    """Return True for a change of settings that names the key schema of a topic, and nothing else. The broker sets it
    once; producers need it for their keys, so that Write is sufficient."""
    return bool(request.configs.keys() == {KEY_SCHEMA_SETTING})


def altered_users(request: Any) -> Sequence[str]:
    """Return the users whose passwords the request sets or removes."""
    return [one.name for one in (*request.deletions, *request.upsertions)]


BROKERS_ONLY = Rule(CLUSTER_TYPE, Operation.CLUSTER_ACTION, cluster_name)
OPERATORS = Rule(CLUSTER_TYPE, Operation.ALTER, cluster_name, or_else=(Operation.CLUSTER_ACTION, "cluster"))
"""Requests of operators. ClusterAction is sufficient, too: brokers are allowed to make every change of operators."""
MIRRORS = Rule(CLUSTER_TYPE, Operation.ALTER, cluster_of_mirror, when="with settings of a mirror")

METADATA_RULES = (
    Rule(TOPIC, Operation.DESCRIBE, lambda r: () if r.to_write else r.topics or (), Denial.ITEM, when="named topics"),
    Rule(
        TOPIC, Operation.WRITE, lambda r: r.topics or () if r.to_write else (), Denial.ITEM, when="of topics to write"
    ),
)
"""The rules of METADATA."""

SETTINGS_RULES = (
    Rule(TOPIC, Operation.ALTER_CONFIGS, lambda r: () if is_key_schema(r) else (r.name,), when="but kafka.key.schema"),
    Rule(TOPIC, Operation.WRITE, lambda r: (r.name,) if is_key_schema(r) else (), when="of kafka.key.schema alone"),
    MIRRORS,
)
"""The rules of ALTER_TOPIC."""

COORDINATOR_RULES = (
    Rule(GROUP, Operation.DESCRIBE, lambda r: (r.key,) if r.key_type == 0 else (), when="of a group"),
    Rule(
        CLUSTER_TYPE,
        Operation.CLUSTER_ACTION,
        lambda r: (CLUSTER.name,) if r.key_type == 2 else (),
        when="of the schema registry's log",
    ),
    Rule(
        TXN_ID,
        Operation.DESCRIBE,
        lambda r: (application_resource(r.key),) if r.key_type == 1 and r.key != FENCING_TOKENS_ID else (),
        when="of a transactional id but the fencing tokens'",
    ),
)
"""The rules of FIND_COORDINATOR, by the type of the key."""


def _subject_rule(operation: Operation) -> Rule:
    return Rule(
        TOPIC,
        operation,
        lambda request: request.topics if request.operation == operation else (),
        Denial.ITEM,
        when=f"to {operation} a subject",
    )


def _registry_rule(operation: Operation) -> Rule:
    return Rule(
        CLUSTER_TYPE,
        operation,
        lambda request: (CLUSTER.name,) if request.is_on_cluster and request.operation == operation else (),
        when=f"to {operation} of the whole schema registry",
    )


def settings_rules(operation: Operation) -> tuple[Rule, ...]:
    """Return the rules of requests about the settings of brokers, or of a group if the request names one."""
    return (
        Rule(CLUSTER_TYPE, operation, lambda r: () if r.group_id else cluster_name(r), when="of brokers"),
        Rule(GROUP, operation, lambda r: (r.group_id,) if r.group_id else (), when="of a group"),
    )


_SUBJECT_OPERATIONS = (Operation.DESCRIBE, Operation.WRITE, Operation.DELETE)
_REGISTRY_OPERATIONS = (Operation.DESCRIBE_CONFIGS, Operation.ALTER_CONFIGS)
SCHEMA_RULES = (
    *map(_registry_rule, _REGISTRY_OPERATIONS),
    *map(_subject_rule, (*_SUBJECT_OPERATIONS, *_REGISTRY_OPERATIONS)),
)
"""The rules of the schema registry. A subject has the permissions of the topic that it names."""
TRANSACTIONAL = Rule(TXN_ID, Operation.WRITE, transactional_id_of)
