"""Automatic creation of missing topics at their first write (`auto.create.topics.enable`)."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from msgspec import structs

from sparklog.errors import (
    InvalidRequestError,
    InvalidTopicError,
    SparklogError,
    TopicAlreadyExistsError,
    TopicAuthorizationFailedError,
    UnknownServerError,
)
from sparklog.protocol.apis import Api
from sparklog.protocol.topic_messages import AUTO_CREATED_MAX, CreateTopicRequest
from sparklog.security.acls import CLUSTER, Operation, Resource, ResourceType
from sparklog.types import INTERNAL_PREFIX, check_topic_name
from sparklog_broker.request_context import RequestContext

log = logging.getLogger(__name__)

AUTO_CREATED = "auto.create.topics.enable"
"""The reason that the audit log names for the creation."""


async def create_missing(context: RequestContext, topics: Sequence[str] | None) -> RequestContext:
    """Create the missing topics of `topics`, as envelope topics: the columns of a typed topic are unknown.

    In the returned context, topics that the peer is not allowed to create are denied. Raises InvalidRequestError if
    `topics` is None or too long, and the errors of CREATE_TOPIC.
    """
    broker = context.broker
    if topics is None or len(topics) > AUTO_CREATED_MAX:
        raise InvalidRequestError(f"create_missing needs 1 to {AUTO_CREATED_MAX} topics by name")
    if not broker.config.auto_create_topics_enable:
        return context
    denied: dict[str, SparklogError] = {}
    for name in topics:
        if name not in broker.partitions.topics and name not in context.denied and _may_be_created(name):
            if not _may_make(context, name):
                error = TopicAuthorizationFailedError(f"Create on the topic {name!r} is not allowed")
                denied[name] = error
                context.note_denial(Api.METADATA, error, Operation.CREATE, Resource(ResourceType.TOPIC, name))
                continue
            if not await _make(context, name):
                continue
            log.info("created topic %s for a producer (auto.create.topics.enable)", name)
    return structs.replace(context, denied={**context.denied, **denied}) if denied else context


async def _make(context: RequestContext, name: str) -> bool:
    """Create a topic. Returns False if another request has just created it. Each attempt is a line in the audit log, as
    for CREATE_TOPIC."""
    code = UnknownServerError.code
    try:
        assert context.ask_controller is not None
        await context.ask_controller(Api.CREATE_TOPIC, CreateTopicRequest(name), context)
        code = 0
    except SparklogError as e:
        code = e.code
        if isinstance(e, TopicAlreadyExistsError):
            return False
        raise
    finally:
        if code != TopicAlreadyExistsError.code:
            context.note_act(Api.CREATE_TOPIC, [str(Resource(ResourceType.TOPIC, name))], code, AUTO_CREATED)
    return True


def _may_make(context: RequestContext, name: str) -> bool:
    may = context.may
    return may(Operation.CREATE, ResourceType.TOPIC, name) or may(Operation.CREATE, *CLUSTER)


def _may_be_created(name: str) -> bool:
    """True for a valid topic name without the prefix of internal topics."""
    try:
        check_topic_name(name)
    except InvalidTopicError:
        return False
    return not name.startswith(INTERNAL_PREFIX)
