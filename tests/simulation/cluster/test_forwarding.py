"""Requests that only the controller answers, asked of other brokers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypeVar

import pytest
from msgspec.structs import replace
from sparklog_broker.cluster.controller_client import ControllerClient
from sparklog_broker.registry import HANDLERS
from sparklog_broker.request_context import RequestContext

from sparklog.errors import (
    BrokerNotAvailableError,
    InvalidPartitionsError,
    InvalidRequestError,
    NotControllerError,
    RequestTimedOutError,
    TopicAlreadyExistsError,
    UnknownTopicOrPartitionError,
    UnsupportedVersionError,
)
from sparklog.protocol import negotiation
from sparklog.protocol import operation_messages as o
from sparklog.protocol import quota_messages as q
from sparklog.protocol import security_messages as s
from sparklog.protocol import topic_messages as t
from sparklog.protocol.apis import APIS, Api
from sparklog.protocol.base import Message
from sparklog.protocol.cluster_messages import ForwardRequest, ForwardResponse
from sparklog.protocol.codec import decode_response, encode
from sparklog.protocol.messages import ApiRange
from sparklog.testing._sim_client import SimClient
from sparklog.testing._sim_node import Node
from tests.simulation.cluster.play import PATIENCE_S, Play

M = TypeVar("M", bound=Message)
USER = s.ScramCredentialUpsertion("ada", "SCRAM-SHA-256", 8_192, b"s" * 32, b"k" * 32, b"v" * 32)


class Peer:
    """A client of one broker that repeats nothing by itself."""

    def __init__(self, play: Play, node: Node) -> None:
        self._play = play
        self.loop = play.simulation.loop("peer")
        self._client = SimClient(self.loop, play.world.net, "peer", node.host)

    def ask(self, api: Api, request: Message, response: type[M]) -> M:
        work = self._client.ask(api, request, response, timeout_s=PATIENCE_S)
        answer: M = self._play.simulation.complete(self.loop, work, limit_s=PATIENCE_S)[0]
        return answer

    def change(self, api: Api, request: Message) -> Any:
        return self.ask(api, request, APIS[api].response)

    def forward(self, api: int, request: bytes, *, version: int = 0, **more: Any) -> ForwardResponse:
        named = {"principal": "User:ada", "request_id": "1"} | more
        return self.ask(Api.FORWARD, ForwardRequest(api, version, request, **named), ForwardResponse)


def controller(play: Play) -> Node:
    found = play.world.controller()
    assert found is not None
    return found


def others(play: Play) -> list[Node]:
    return [node for node in play.world.nodes if node is not controller(play)]


def refused(play: Play, request: ForwardRequest) -> None:
    """Raises the error for which a request disconnects the broker that has sent it."""
    node = controller(play)
    assert node.pipeline is not None and node.broker is not None and node.loop is not None
    context = RequestContext(node.broker, ("", 0), "")
    play.simulation.complete(
        node.loop, node.pipeline._controller.answer_forwarded(request, memoryview(b""), context), limit_s=PATIENCE_S
    )


def test_a_broker_answers_when_its_own_image_has_the_change(play: Play) -> None:
    for n, node in enumerate((*others(play), controller(play))):
        peer = Peer(play, node)
        made = peer.change(Api.CREATE_TOPIC, t.CreateTopicRequest(f"t{n}", 2, replication_factor=3))
        assert (made.topic.name, made.topic.partition_count) == (f"t{n}", 2)
        assert peer.ask(Api.METADATA, t.MetadataRequest([f"t{n}"]), t.MetadataResponse).topics[0].error_code == 0
        quota = q.QuotaAlteration(f"user-{n}", None, {"producer_byte_rate": 1e6})
        peer.change(Api.ALTER_CLIENT_QUOTAS, q.AlterClientQuotasRequest([quota]))
        described = peer.ask(
            Api.DESCRIBE_CLIENT_QUOTAS, q.DescribeClientQuotasRequest(), q.DescribeClientQuotasResponse
        )
        assert f"user-{n}" in [entry.user for entry in described.entries]
        for is_cordoned in (True, False):
            peer.change(Api.CORDON_BROKER, o.CordonBrokerRequest(1, is_cordoned))
            state = peer.ask(Api.DESCRIBE_CLUSTER, o.DescribeClusterRequest(), o.DescribeClusterResponse)
            assert [b.broker_id for b in state.brokers if b.is_cordoned] == [1] * is_cordoned
        with pytest.raises(TopicAlreadyExistsError, match=f"topic 't{n}' already exists"):
            peer.change(Api.CREATE_TOPIC, t.CreateTopicRequest(f"t{n}"))
        assert peer.ask(Api.METADATA, t.MetadataRequest(["auto"]), t.MetadataResponse).topics[0].error_code
    play.come_to_rest()


def test_a_forwarded_request_is_checked_and_goes_no_further(play: Play) -> None:
    at_controller, elsewhere = Peer(play, controller(play)), Peer(play, others(play)[0])
    create = encode(t.CreateTopicRequest("t", 2, replication_factor=3, owner="mallory"))
    with pytest.raises(NotControllerError, match="forwarded only once"):
        elsewhere.forward(Api.CREATE_TOPIC, create)
    fine = ForwardRequest(Api.CREATE_TOPIC, 0, create, "User:ada", "1")
    for change, error in (
        ({"api": int(Api.PRODUCE)}, InvalidRequestError),
        ({"api": int(Api.FORWARD)}, InvalidRequestError),
        ({"api": 9_999}, InvalidRequestError),
        ({"request": b"\xc1"}, InvalidRequestError),
        ({"version": 99}, UnsupportedVersionError),
        ({"principal": "ada"}, InvalidRequestError),
        ({"principal": "User:a\nb"}, InvalidRequestError),
    ):
        with pytest.raises(error):
            refused(play, replace(fine, **change))
    made = at_controller.forward(Api.CREATE_TOPIC, create)
    state = decode_response(Api.CREATE_TOPIC, made.response, t.CreateTopicResponse).topic
    assert (made.error_code, state.name) == (0, "t")
    image = play.world.controller_image()
    assert image is not None and image.topics["t"].owner == "ada", "the client's own claim counts for nothing"
    again = at_controller.forward(Api.CREATE_TOPIC, create, is_repeated=True)
    assert (again.error_code, again.response) == (0, made.response)
    other = at_controller.forward(Api.CREATE_TOPIC, create, request_id="2")
    assert (other.error_code, other.response) == (TopicAlreadyExistsError.code, b"")
    assert (other.controller_epoch, other.zxid) >= (made.controller_epoch, made.zxid)
    for is_repeated, code in ((False, InvalidPartitionsError.code), (True, 0)):
        grow = encode(t.CreatePartitionsRequest("t", 2))
        assert at_controller.forward(Api.CREATE_PARTITIONS, grow, is_repeated=is_repeated).error_code == code
    for is_repeated, code in ((False, 0), (False, UnknownTopicOrPartitionError.code), (True, 0)):
        delete = encode(t.DeleteTopicRequest("t", state.topic_id))
        assert at_controller.forward(Api.DELETE_TOPIC, delete, is_repeated=is_repeated).error_code == code
    play.come_to_rest()


def test_a_change_whose_answer_is_lost_takes_effect_once(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests of clients that name no id, too."""
    forward, seen = ControllerClient.forward, []

    async def losing(self: ControllerClient, asked: ForwardRequest, request: Message) -> Any:
        answer = await forward(self, asked, request)
        seen.append(asked.request_id)
        if seen.count(asked.request_id) == 1:
            raise BrokerNotAvailableError("the answer is lost")
        return answer

    monkeypatch.setattr(ControllerClient, "forward", losing)
    peer = Peer(play, others(play)[0])
    topic = peer.change(Api.CREATE_TOPIC, t.CreateTopicRequest("t", 1, replication_factor=3)).topic
    assert peer.change(Api.CREATE_PARTITIONS, t.CreatePartitionsRequest("t", 3)).topic.partition_count == 3
    assert (
        peer.change(Api.ALTER_TOPIC, t.AlterTopicRequest("t", {"retention.ms": 7})).topic.configs["retention.ms"] == 7
    )
    add = s.AlterUserScramCredentialsRequest([], [USER], only_new=True)
    peer.change(Api.ALTER_USER_SCRAM_CREDENTIALS, add)
    remove = s.AlterUserScramCredentialsRequest([s.ScramCredentialDeletion(USER.name, USER.mechanism)], [])
    peer.change(Api.ALTER_USER_SCRAM_CREDENTIALS, remove)
    assert peer.change(Api.DELETE_TOPIC, t.DeleteTopicRequest("t", topic.topic_id)).topic_id == topic.topic_id
    peer.change(Api.CREATE_TOPIC, t.CreateTopicRequest("t", 1, replication_factor=3))
    with pytest.raises(RequestTimedOutError, match="check, and repeat the request"):
        peer.change(Api.DELETE_TOPIC, t.DeleteTopicRequest("t"))
    assert len(seen) == 2 * len(set(seen)) == 16
    play.come_to_rest()


def test_the_audit_log_has_one_line_at_the_broker_of_the_client(play: Play) -> None:
    acts: list[tuple[Any, ...]] = []

    class Audit:
        def __init__(self, broker_id: int) -> None:
            self._broker_id = broker_id

        def act(
            self, api: Api, principal: object, host: str, listener: str, resources: Any, code: int, *_: str
        ) -> None:
            acts.append((self._broker_id, api, str(principal), host, list(resources), code))

    for node in play.world.nodes:
        node.broker.audit = Audit(node.id)  # type: ignore[union-attr]
    node = others(play)[0]
    peer = Peer(play, node)
    peer.change(Api.CREATE_TOPIC, t.CreateTopicRequest("t", 1, replication_factor=3))
    with pytest.raises(TopicAlreadyExistsError):
        peer.change(Api.CREATE_TOPIC, t.CreateTopicRequest("t", 1, replication_factor=3))
    assert acts == [
        (node.id, Api.CREATE_TOPIC, "User:ANONYMOUS", "peer", ["topic:t"], code)
        for code in (0, TopicAlreadyExistsError.code)
    ]


@pytest.fixture
def newer_table(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """CREATE_TOPIC with a version that the controller of the test does not announce."""
    negotiation._agree.cache_clear()
    monkeypatch.setitem(APIS, Api.CREATE_TOPIC, APIS[Api.CREATE_TOPIC]._replace(version_max=1))
    yield
    negotiation._agree.cache_clear()


def test_a_controller_of_an_earlier_release_gets_requests_in_its_version(
    play: Play, monkeypatch: pytest.MonkeyPatch, newer_table: None
) -> None:
    versions: list[int | None] = []
    handshake: Any = HANDLERS[Api.HANDSHAKE]
    create = HANDLERS[Api.CREATE_TOPIC]
    node = others(play)[0]

    async def announce(request: Any, payload: memoryview, context: Any) -> Any:
        response = await handshake(request, payload, context)
        response.message.apis = [ApiRange(a.api, 0, 0) for a in response.message.apis]
        return response

    async def note_version(request: Any, payload: memoryview, context: Any) -> Any:
        versions.append(context.older_version)
        return await create(request, payload, context)

    handlers = controller(play).pipeline._handlers  # type: ignore[union-attr]
    monkeypatch.setitem(handlers, int(Api.HANDSHAKE), announce)
    monkeypatch.setitem(handlers, int(Api.CREATE_TOPIC), note_version)
    assert node.cluster is not None
    node.cluster.controller.close()
    peer = Peer(play, node)
    peer.change(Api.CREATE_TOPIC, t.CreateTopicRequest("older", 2, replication_factor=3))
    assert peer.ask(Api.METADATA, t.MetadataRequest(["older"]), t.MetadataResponse).topics[0].error_code == 0
    assert versions == [0]
    play.come_to_rest()
