"""Changes of topics while brokers cut connections: each change is made once, and only a contradiction raises."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from sparklog.cli.errors import next_step
from sparklog.client.admin import topic_admin
from sparklog.client.admin.admin import Admin
from sparklog.client.net.cluster import forget
from sparklog.errors import (
    BrokerNotAvailableError,
    BrokerShuttingDownError,
    InvalidPartitionsError,
    NotControllerError,
    RequestTimedOutError,
    SparklogError,
    TopicAlreadyExistsError,
    UnknownTopicOrPartitionError,
)
from sparklog.protocol import topic_messages as t
from sparklog.protocol.apis import Api
from sparklog.protocol.base import NO_VERSION
from tests.unit.client.fake_broker import DROP, DROP_AFTER, FakeBroker

VERSION = (3, 77)
CHANGES = (Api.CREATE_TOPIC, Api.DELETE_TOPIC, Api.CREATE_PARTITIONS, Api.ALTER_TOPIC)


class TopicBroker(FakeBroker):
    """Makes, grows and deletes topics."""

    def __init__(self) -> None:
        super().__init__()
        self.made: list[str] = []
        """Request ids, one per topic made."""
        self.deleted: list[str] = []
        self.mishaps: list[str | int] = []
        """Faults of the next changes."""
        self.hook = self._mishap

    def _mishap(self, api: Api, message: Any) -> str | int | None:
        return self.mishaps.pop(0) if self.mishaps and api in CHANGES else None

    def of(self, api: Api) -> list[Any]:
        return [message for a, message in self.requests if a is api]

    def _refusal(self, api: Api, message: Any) -> int:
        there = self.topics.get(message.name) if api in CHANGES else None
        if api is Api.CREATE_TOPIC and there is not None and message.request_id not in self.made:
            return TopicAlreadyExistsError.code
        if api is Api.DELETE_TOPIC and (there is None or message.topic_id not in ("", there.topic_id)):
            return UnknownTopicOrPartitionError.code
        if api is Api.CREATE_PARTITIONS and there is not None and len(there.partitions) >= message.total:
            return InvalidPartitionsError.code
        return super()._refusal(api, message)

    def _answer(self, api: Api, message: Any, payload: bytearray, code: int) -> tuple[Any, bytes]:
        if api is Api.CREATE_TOPIC:
            if message.request_id not in self.made:
                self.add_topic(message.name, message.partitions)
                self.made.append(message.request_id)
            return t.CreateTopicResponse(self.topics[message.name], metadata_version=VERSION), b""
        if api is Api.DELETE_TOPIC:
            self.deleted.append(self.topics.pop(message.name).topic_id)
            return t.DeleteTopicResponse(self.deleted[-1]), b""
        if api is Api.CREATE_PARTITIONS:
            self.add_topic(message.name, message.total)
            return t.CreatePartitionsResponse(self.topics[message.name]), b""
        return super()._answer(api, message, payload, code)


@pytest.fixture
def broker() -> Iterator[TopicBroker]:
    made = TopicBroker()
    yield made
    made.close()
    forget(made.address)


@pytest.mark.parametrize(
    "mishaps",
    [[DROP], [DROP_AFTER], [DROP, DROP_AFTER, DROP], [NotControllerError.code], [BrokerShuttingDownError.code, DROP]],
)
def test_a_topic_is_created_once_and_deleted_once_despite_lost_requests(
    broker: TopicBroker, mishaps: list[str | int]
) -> None:
    admin = Admin(broker.address)
    broker.mishaps = list(mishaps)
    assert admin.create_topic("made", 2).partitions == 2
    assert len(broker.made) == 1
    assert len(broker.of(Api.CREATE_TOPIC)) == (1 + len(mishaps))
    assert len({message.request_id for message in broker.of(Api.CREATE_TOPIC)}) == 1
    broker.mishaps = list(mishaps)
    assert admin.add_partitions("made", 3).partitions == 3
    broker.mishaps = list(mishaps)
    admin.delete_topic("made")
    assert broker.deleted == ["id-made"]
    assert "made" not in broker.topics


def test_another_clients_topic_is_not_taken_for_the_own_one(broker: TopicBroker) -> None:
    admin = Admin(broker.address)
    with pytest.raises(TopicAlreadyExistsError):
        admin.create_topic("events", 1)
    broker.mishaps = [DROP]
    with pytest.raises(TopicAlreadyExistsError):
        admin.create_topic("events", 1)
    assert broker.made == []


def test_another_topic_that_has_got_the_name_is_not_deleted(broker: TopicBroker) -> None:
    admin = Admin(broker.address)

    def made_anew(api: Api, message: Any) -> str | None:
        if api is not Api.DELETE_TOPIC or broker.deleted:
            return None
        broker.deleted.append(broker.topics.pop("events").topic_id)
        broker.topics["events"] = t.TopicState(0, "events", topic_id="new")
        return DROP

    broker.hook = made_anew
    admin.delete_topic("events")
    assert broker.topics["events"].topic_id == "new"
    assert broker.deleted == ["id-events"]


def test_a_topic_without_its_old_id_is_deleted(broker: TopicBroker) -> None:
    """The broker that was asked for the id did not know the newest topic yet."""
    admin = Admin(broker.address)

    def made_anew(api: Api, message: Any) -> None:
        if api is Api.DELETE_TOPIC and message.topic_id == "id-events":
            broker.topics["events"] = t.TopicState(0, "events", topic_id="new")

    broker.hook = made_anew
    admin.delete_topic("events")
    assert broker.deleted == ["new"]


def test_an_immediate_refusal_raises(broker: TopicBroker) -> None:
    admin = Admin(broker.address)
    with pytest.raises(UnknownTopicOrPartitionError):
        admin.delete_topic("nowhere")
    with pytest.raises(InvalidPartitionsError):
        admin.add_partitions("events", 1)
    broker.mishaps = [DROP]
    broker.add_topic("large", 5)
    with pytest.raises(InvalidPartitionsError):  # it has more than were asked for
        admin.add_partitions("large", 4)


def test_another_broker_gets_the_request_when_one_is_gone(broker: TopicBroker) -> None:
    other = TopicBroker()
    other.topics, other.made = broker.topics, broker.made
    addresses = f"{broker.address},{other.address}"
    try:
        admin = Admin(addresses)
        broker.mishaps = [DROP_AFTER]
        admin.create_topic("made", 1)
        assert len(other.of(Api.CREATE_TOPIC)) == 1
        assert len(broker.made) == 1
    finally:
        forget(addresses)
        other.close()


def test_after_a_change_the_client_requests_metadata_with_it(broker: TopicBroker) -> None:
    admin = Admin(broker.address)
    admin.list_topics()
    assert broker.of(Api.METADATA)[-1].at_least == NO_VERSION
    admin.create_topic("made", 1)
    admin.list_topics()
    assert broker.of(Api.METADATA)[-1].at_least == VERSION


@pytest.mark.parametrize("is_cluster", [False, True])
def test_a_change_that_times_out_names_the_controller_of_a_cluster(broker: TopicBroker, is_cluster: bool) -> None:
    servers = f"{broker.address},127.0.0.1:1" if is_cluster else broker.address
    broker.mishaps = [RequestTimedOutError.code] * 1000
    with (
        Admin(servers, request_timeout_ms=300) as admin,
        pytest.raises(RequestTimedOutError, match="controller" if is_cluster else "^(?!.*controller)"),
    ):
        admin.create_topic("made", 2)
    assert broker.made == []


@pytest.mark.parametrize(
    ("state", "text"),
    [
        (UnknownTopicOrPartitionError("no"), "does not exist yet. The broker may still be creating it"),
        (SimpleNamespace(partitions=9_000), "the topic exists now, with 9000 partitions"),
        (BrokerNotAvailableError("gone"), "no answer"),
    ],
)
def test_a_creation_without_an_answer_says_the_state_of_the_topic(state: Any, text: str) -> None:
    def unanswered(*_: Any, **__: Any) -> None:
        raise RequestTimedOutError("no answer")

    def topic(*_: Any, **__: Any) -> Any:
        if isinstance(state, SparklogError):
            raise state
        return state

    cluster = SimpleNamespace(invalidate=lambda name: None, topic=topic)
    call: Any = SimpleNamespace(cluster=cluster, change=unanswered, timeout_ms=30_000)
    with pytest.raises(RequestTimedOutError, match=text) as raised:
        topic_admin.create_topic(call, t.CreateTopicRequest("big", 9_000))
    has_state = text != "no answer"
    assert (next_step(raised.value) == "") == has_state, "the hint of a slow broker would contradict the message"
