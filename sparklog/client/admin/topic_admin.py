"""Changes of topics. Each change is made once, even if the broker stops before it has answered."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Iterator

from msgspec.structs import replace

from sparklog.client.admin.changes import change
from sparklog.client.admin.repeating import RepeatPolicy
from sparklog.client.net.cluster import Cluster
from sparklog.client.net.deadline import Deadline
from sparklog.client.net.retry import Retries, RetryPolicy, until_answered
from sparklog.client.net.topic_info import TopicInfo, topic_info
from sparklog.errors import (
    BrokerNotAvailableError,
    InvalidPartitionsError,
    RequestTimedOutError,
    SparklogError,
    TopicAuthorizationFailedError,
    UnknownTopicOrPartitionError,
)
from sparklog.protocol.apis import Api
from sparklog.protocol.topic_messages import (
    AlterSchemaRequest,
    AlterSchemaResponse,
    AlterTopicRequest,
    AlterTopicResponse,
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreateTopicRequest,
    CreateTopicResponse,
    DeleteTopicRequest,
    DeleteTopicResponse,
    TopicState,
)

CREATION_LOOK_MS = 5_000
"""Longest wait for the state of a topic whose creation was not answered, in ms."""


@contextlib.contextmanager
def _naming_nearest(cluster: Cluster, name: str, timeout_ms: int) -> Iterator[None]:
    """Add the nearest topic's name to the error of a topic that does not exist. The client finds that name, because the
    controller must not reveal topics that the client is not allowed to see."""
    try:
        yield
    except UnknownTopicOrPartitionError as e:
        hint = cluster.nearest_topic(name, timeout_ms)
        raise UnknownTopicOrPartitionError(f"{e}{hint}") from e


def create_topic(cluster: Cluster, request: CreateTopicRequest, timeout_ms: int) -> TopicInfo:
    """Create a topic, which stores the request's id; see `Admin`.

    A repeated request is answered with the topic that the first request has created. If another client has created the
    topic of this name, the call raises TopicAlreadyExistsError.
    """
    request = replace(request, request_id=uuid.uuid4().hex)
    cluster.invalidate(request.name)
    try:
        answer = change(cluster, Api.CREATE_TOPIC, request, CreateTopicResponse, timeout_ms)
    except RequestTimedOutError as e:
        raise _unanswered_creation(cluster, request.name, timeout_ms, e) from e
    assert answer is not None
    return _keep_state(cluster, answer.topic)


def _unanswered_creation(
    cluster: Cluster, name: str, timeout_ms: int, error: RequestTimedOutError
) -> RequestTimedOutError:
    """Return the error for a creation without an answer, with the state of the topic, as far as a broker knows it. A
    topic of thousands of partitions takes longer than a client waits."""
    try:
        partitions = cluster.topic(name, refresh=True, timeout_ms=CREATION_LOOK_MS).partitions
    except UnknownTopicOrPartitionError:
        state = (
            "the topic does not exist yet. The broker may still be creating it, which takes long for thousands of "
            f"partitions: `sparklog topic describe {name}` shows it when it is complete"
        )
    except SparklogError:
        return error
    else:
        state = (
            f"the topic exists now, with {partitions} partitions: `sparklog topic describe {name}` shows if it is the "
            "one of this request"
        )
    return RequestTimedOutError(
        f"topic {name!r} was not created within {timeout_ms} ms, but {state}; a longer `default.api.timeout.ms` waits "
        f"for it ({error})"
    )


def alter_schema(cluster: Cluster, request: AlterSchemaRequest, timeout_ms: int) -> TopicInfo:
    """Change a topic's columns; see `Admin`. Columns that the topic already has in this form change nothing."""
    cluster.invalidate(request.name)
    with _naming_nearest(cluster, request.name, timeout_ms):
        answer = change(cluster, Api.ALTER_SCHEMA, request, AlterSchemaResponse, timeout_ms)
    assert answer is not None
    return _keep_state(cluster, answer.topic)


def alter_topic(cluster: Cluster, request: AlterTopicRequest, timeout_ms: int) -> TopicInfo:
    """Change a topic's settings; see `Admin`."""
    cluster.invalidate(request.name)
    with _naming_nearest(cluster, request.name, timeout_ms):
        answer = change(cluster, Api.ALTER_TOPIC, request, AlterTopicResponse, timeout_ms)
    assert answer is not None
    return _keep_state(cluster, answer.topic)


def add_partitions(cluster: Cluster, name: str, total: int, timeout_ms: int) -> TopicInfo:
    """Increase the number of partitions; see `Admin`."""
    deadline = Deadline(timeout_ms)

    def has_grown() -> bool:
        return _grown(cluster, name, total, deadline.left_ms()).partitions == total

    cluster.invalidate(name)
    with _naming_nearest(cluster, name, timeout_ms):
        answer = change(
            cluster,
            Api.CREATE_PARTITIONS,
            CreatePartitionsRequest(name, total),
            CreatePartitionsResponse,
            timeout_ms,
            repeating=RepeatPolicy((InvalidPartitionsError,)),
            is_made=has_grown,
        )
    if answer is None:
        return cluster.topic(name, timeout_ms=deadline.left_ms())
    return _keep_state(cluster, answer.topic)


def _grown(cluster: Cluster, name: str, total: int, timeout_ms: int) -> TopicInfo:
    """Wait until the queried broker reports `total` partitions or more, and return the topic. The controller has added
    the partitions, and the other brokers learn of them later."""
    attempts = Retries(RetryPolicy.within(timeout_ms))
    while True:
        found = until_answered(lambda left_ms: cluster.topic(name, refresh=True, timeout_ms=left_ms), attempts)
        if found.partitions >= total:
            return found
        attempts.pause(
            BrokerNotAvailableError(f"topic {name!r}: the broker's metadata do not have its new partitions yet")
        )


def delete_topic(cluster: Cluster, name: str, timeout_ms: int) -> None:
    """Delete a topic; see `Admin`.

    The request names the topic's id, so that it can be repeated without deleting a newer topic of the name. Without the
    id (the client cannot describe the topic, or the topic was created again) an unclear outcome is an error.
    """
    deadline = Deadline(timeout_ms)
    attempts, topic_id = Retries(RetryPolicy.within(timeout_ms)), ""
    with contextlib.suppress(
        UnknownTopicOrPartitionError, TopicAuthorizationFailedError
    ):  # the controller decides if the topic exists, and if the client is allowed to delete it
        topic_id = until_answered(lambda ms: cluster.topic(name, refresh=True, timeout_ms=ms), attempts).topic_id

    def delete(topic_id: str) -> None:
        change(
            cluster,
            Api.DELETE_TOPIC,
            DeleteTopicRequest(name, topic_id),
            DeleteTopicResponse,
            deadline.left_ms(),
            repeating=RepeatPolicy((UnknownTopicOrPartitionError,), once=not topic_id),
        )

    try:
        try:
            delete(topic_id)
        except UnknownTopicOrPartitionError:
            if not topic_id:
                with _naming_nearest(cluster, name, timeout_ms):
                    raise
            delete("")  # the topic was created again, and the broker that named the id did not know that yet
    finally:
        cluster.invalidate(name)


def _keep_state(cluster: Cluster, state: TopicState) -> TopicInfo:
    info = topic_info(state)
    cluster.remember(info)
    return info
