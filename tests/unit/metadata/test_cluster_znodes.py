"""Reading the cluster's image while others change it."""

from __future__ import annotations

from typing import Any

import pytest

from sparklog.metadata.cluster_znodes import CLUSTER, READS_MAX, TERMS, TOPICS, encode, load_image
from sparklog.metadata.coordination import Node, NoNodeError
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
