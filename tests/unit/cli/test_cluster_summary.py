"""The summary of `sparklog cluster describe` from the brokers' answers."""

from __future__ import annotations

import pytest
import typer

from sparklog.cli.cluster_summary import summarize
from sparklog.cli.sizes import parse_size_bytes
from sparklog.client.admin.cluster_admin import BrokerDescription, ClusterDescription
from tests.support.cases import for_each
from tests.unit.cli.descriptions import partition, topic

BROKERS = (BrokerDescription(1, "a", 1, "r1"), BrokerDescription(2, "b", 2, "r2", is_cordoned=True))


def test_all_is_well() -> None:
    found = summarize(
        ClusterDescription("c", 1, BROKERS), [topic(partition(0, 1, (1, 2), (1, 2)), partition(1, 2, (2, 1), (1, 2)))]
    )
    assert found["problems"] == []
    assert [(b["broker_id"], b["state"], b["leads"], b["replicas"]) for b in found["brokers"]] == [
        (1, "up", 1, 2),
        (2, "cordoned", 1, 2),
    ]
    assert (found["leader_skew"], found["replica_skew"]) == (1.0, 1.0)


def test_problems_are_named() -> None:
    cluster = ClusterDescription("c", -1, BROKERS, missing=(3, 4))
    found = summarize(
        cluster,
        [
            topic(
                partition(0, -1, (3,), ()),
                partition(1, 1, (2, 1, 3), (1,), elr=(2,)),
                partition(2, 1, (1, 2), (1,), adding=(2,)),
                configs={"min.insync.replicas": 2},
            )
        ],
    )
    assert found["offline"] == ["t-0"]
    assert found["under_min_insync"] == ["t-1"]
    assert found["under_replicated"] == ["t-0", "t-1"]
    assert found["not_preferred"] == ["t-1"]
    assert found["reassigning"] == ["t-2"]
    assert [(b["broker_id"], b["state"]) for b in found["brokers"]][2:] == [(3, "missing"), (4, "gone")]
    assert len(found["problems"]) == 5


@pytest.mark.parametrize(
    ("text", "size_bytes"),
    [
        ("50MB", 50_000_000),
        ("50MiB", 50 << 20),
        ("1g", 10**9),
        ("512", 512),
        ("10 kb/s", 10_000),
        ("0", 0),
        ("1.5MB", 1_500_000),
    ],
)
def test_sizes(text: str, size_bytes: int) -> None:
    assert parse_size_bytes(text, "--throttle") == size_bytes


@for_each("text", ["", "MB", "-1", "1.5B", "5 pounds"])
def test_no_sizes(text: str) -> None:
    with pytest.raises(typer.BadParameter, match="--throttle"):
        parse_size_bytes(text, "--throttle")
