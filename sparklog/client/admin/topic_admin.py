"""Changes of topics. Each change is made once, even if the broker stops before it has answered."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Iterator

from msgspec.structs import replace

from sparklog.client.admin.call import Call
from sparklog.client.admin.repeating import RepeatPolicy
from sparklog.client.net.cluster import Cluster
from sparklog.client.net.topic_info import TopicInfo, topic_info
from sparklog.errors import (
    BrokerNotAvailableError,
    InvalidPartitionsError,
    RequestTimedOutError,
    SparklogError,
    TopicAuthorizationFailedError,
    UnknownTopicOrPartitionError,
)
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
def _naming_nearest(call: Call, name: str) -> Iterator[None]:
    """Add the nearest topic's name to the error of a topic that does not exist. The client finds that name, because the
    controller must not reveal topics that the client is not allowed to see."""
    try:
        yield
    except UnknownTopicOrPartitionError as e:
        raise UnknownTopicOrPartitionError(f"{e}{call.cluster.nearest_topic(name, call.timeout_ms)}") from e


def create_topic(call: Call, request: CreateTopicRequest) -> TopicInfo:
    """Create a topic, which stores the request's id; see `Admin`.

    A repeated request is answered with the topic that the first request has created. If another client has created the
    topic of this name, the call raises TopicAlreadyExistsError.
    """
    request = replace(request, request_id=uuid.uuid4().hex)
    call.cluster.invalidate(request.name)
    try:
        return _keep_state(call, call.change(request, CreateTopicResponse).topic)
    except RequestTimedOutError as e:
        raise _unanswered_creation(call.cluster, request.name, call.timeout_ms, e) from e


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


def alter_topic(
    call: Call,
    request: AlterTopicRequest | AlterSchemaRequest,
    response: type[AlterTopicResponse] | type[AlterSchemaResponse],
) -> TopicInfo:
    """Change a topic's settings or columns; see `Admin`."""
    call.cluster.invalidate(request.name)
    with _naming_nearest(call, request.name):
        return _keep_state(call, call.change(request, response).topic)


def add_partitions(call: Call, name: str, total: int) -> TopicInfo:
    """Increase the number of partitions; see `Admin`."""
    call.cluster.invalidate(name)
    with _naming_nearest(call, name):
        answer = call.change_once(
            CreatePartitionsRequest(name, total),
            CreatePartitionsResponse,
            RepeatPolicy((InvalidPartitionsError,)),
            lambda: _grown(call, name, total).partitions == total,
        )
    if answer is None:
        return call.cluster.topic(name, timeout_ms=call.left_ms)
    return _keep_state(call, answer.topic)


def _grown(call: Call, name: str, total: int) -> TopicInfo:
    """Wait until the queried broker reports `total` partitions or more, and return the topic. The controller has added
    the partitions, and the other brokers learn of them later."""
    while True:
        info = call.topic(name)
        if info.partitions >= total:
            return info
        call.attempts.pause(
            BrokerNotAvailableError(f"topic {name!r}: the broker's metadata do not have its new partitions yet")
        )


def delete_topic(call: Call, name: str, *, mirror: str = "") -> None:
    """Delete a topic; see `Admin`. `mirror`: the mirror that must fill the topic; "": any topic.

    The request names the topic's id, so that it can be repeated without deleting a newer topic of the name. Without the
    id (the client cannot describe the topic, or the topic was created again) an unclear outcome is an error.
    """
    topic_id = ""
    with contextlib.suppress(
        UnknownTopicOrPartitionError, TopicAuthorizationFailedError
    ):  # the controller decides if the topic exists, and if the client is allowed to delete it
        topic_id = call.topic(name).topic_id

    def delete(topic_id: str) -> None:
        repeating = RepeatPolicy((UnknownTopicOrPartitionError,), once=not topic_id)
        call.change_once(DeleteTopicRequest(name, topic_id, mirror), DeleteTopicResponse, repeating)

    try:
        try:
            delete(topic_id)
        except UnknownTopicOrPartitionError:
            if not topic_id:
                with _naming_nearest(call, name):
                    raise
            delete("")  # the topic was created again, and the broker that named the id did not know that yet
    finally:
        call.cluster.invalidate(name)


def _keep_state(call: Call, state: TopicState) -> TopicInfo:
    info = topic_info(state)
    call.cluster.remember(info)
    return info
