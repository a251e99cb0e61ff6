"""The cluster in ZooKeeper: its nodes, the registration of a broker, the connection."""

from __future__ import annotations

from typing import Any

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import ConnectionLoss

from sparklog.metadata.broker_registration import BrokerRegistration
from sparklog.metadata.cluster_znodes import CLUSTER, READS_MAX, TERMS, TOPICS, Registration, encode, load_image
from sparklog.metadata.coordination import Check, ConnectionLossError, Create, Delete, Node, NoNodeError, SetData
from sparklog.metadata.znode_tree import Znodes
from sparklog.metadata.zookeeper import ZooKeeper
from sparklog.replication.cluster_image import NO_EPOCH
from sparklog.testing._sim_zookeeper import SimZooKeeper
from tests.support.cases import for_each

DEFINITION: dict[str, Any] = {
    "topic_id": "id",
    "kind": "envelope",
    "key_columns": [],
    "timestamp_column": None,
    "created_ms": 7,
    "owner": "somebody",
    "request_id": "r",
}


class Nodes:
    """Two topics; of the second one `going` nodes are read until it is gone."""

    def __init__(self, going: int, deleted_again: int = 1) -> None:
        self.going, self.deleted_again, self.reads = going, deleted_again, 0
        self.names = ["goes", "stays"]

    def get(self, path: str) -> Node | None:
        if path in (CLUSTER, TERMS):
            return None
        if path.endswith("/config"):
            data: bytes = b"{}"
        else:
            data = encode(DEFINITION)
        return Node(path, data, 0, 0, 0, 0) if self._is_there(path) else None

    def children(self, path: str) -> list[str] | NoNodeError:
        if path == TOPICS:
            self.reads += 1
            return list(self.names)
        if not path.startswith(f"{TOPICS}/"):
            return []
        return [] if self._is_there(path) else NoNodeError()

    def _is_there(self, path: str) -> bool:
        if not path.startswith(f"{TOPICS}/goes"):
            return True
        self.going -= 1
        if self.going < 0:
            self.deleted_again -= 1
            if self.deleted_again <= 0:
                self.names = ["stays"]
        return self.going >= 0


def load(nodes: Nodes) -> Any:
    """As `cluster.perform` does it."""
    steps = load_image(nodes, 3, 5)
    waiting: Any = next(steps)
    try:
        while True:
            failed = next((result for result in waiting if isinstance(result, NoNodeError)), None)
            waiting = steps.send(waiting) if failed is None else steps.throw(failed)
    except StopIteration as e:
        return e.value


@for_each("going", range(4))
def test_a_topic_that_is_deleted_meanwhile_is_absent(going: int) -> None:
    nodes = Nodes(going)
    image = load(nodes)
    assert list(image.topics) == ["stays"]
    assert image.topics["stays"].request_id == "r"
    assert image.version == (3, 5)
    assert nodes.reads == 2


def test_nodes_that_are_missing_for_good_are_an_error() -> None:
    nodes = Nodes(0, deleted_again=1_000_000)
    with pytest.raises(NoNodeError):
        load(nodes)
    assert nodes.reads == READS_MAX


# The registration of a broker in a simulated store


# A tree of nodes


def test_each_operation_on_a_missing_node_says_so_and_changes_no_node() -> None:
    tree = Znodes()
    tree.commit([Create("/a", b"1")], 0, in_transaction=False)
    assert tree.find("/b") is None
    for call in (lambda: tree.read("/b"), lambda: tree.children("/b")):
        with pytest.raises(NoNodeError):
            call()
    for op in (Create("/b/c", b""), SetData("/b", b""), Delete("/b"), Check("/b", 0)):
        with pytest.raises(NoNodeError) as caught:
            tree.commit([SetData("/a", b"2"), op], 0, in_transaction=True)
        assert caught.value.index == 1
    assert tree.read("/a").data == b"1"


# The registration of a broker


SESSION_MS = 6_000


def test_a_broker_is_certain_of_its_registration_only_within_its_session() -> None:
    store = SimZooKeeper(1, session_timeout_ms=SESSION_MS)
    client = store.client()
    registration = BrokerRegistration(client, 1, lambda: store.now_ms, lambda epoch: None)
    assert not registration.is_certain()
    registration.start(Registration("1.1", None, (), (), ()))
    store.advance(1_000)
    assert registration.is_certain()
    first_epoch = registration.broker_epoch
    assert first_epoch != NO_EPOCH
    store.cut(client)
    store.advance(1_000 + SESSION_MS - 1)
    was_certain = registration.is_certain()
    store.advance(1_000 + 4 * SESSION_MS)
    assert was_certain
    assert not registration.is_certain(), "the session can have ended"
    store.heal(client)
    store.advance(1_000 + 8 * SESSION_MS)
    assert registration.is_certain()
    assert registration.broker_epoch != first_epoch


# The first connection to ZooKeeper


@pytest.mark.parametrize(("losses", "timeout_ms"), [(2, 60_000), (1_000_000, 300)])
def test_a_connection_that_breaks_at_once_is_repeated_until_the_limit(
    losses: int, timeout_ms: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost: list[str] = []

    def ensure_path(self: KazooClient, path: str) -> bool:
        lost.append(path)
        if len(lost) <= losses:
            raise ConnectionLoss
        return True

    monkeypatch.setattr(KazooClient, "start", lambda self, timeout: None)
    monkeypatch.setattr(KazooClient, "ensure_path", ensure_path)
    if losses > 2:
        with pytest.raises(ConnectionLossError, match="within 300 ms"):
            ZooKeeper.connect("localhost:1/sparklog", timeout_ms=timeout_ms)
    else:
        ZooKeeper.connect("localhost:1/sparklog", timeout_ms=timeout_ms).close()
        assert lost == ["/sparklog"] * 3
