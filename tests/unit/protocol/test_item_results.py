"""Requests of which some items are denied: the rest of the request, and the results of all items in their order."""

from __future__ import annotations

import pytest

from sparklog.errors import InvalidRequestError, TopicAuthorizationFailedError
from sparklog.protocol.item_results import ItemResults
from sparklog.protocol.messages import (
    FetchPartition,
    FetchRequest,
    FetchResult,
    ProducePartition,
    ProduceRequest,
    ProduceResponse,
    ProduceResult,
)

PRODUCE = ItemResults("partitions", ProduceResult)
FETCH = ItemResults("partitions", FetchResult)
WRITTEN = ProduceRequest(
    -1, 30_000, [ProducePartition("a", 0, 1), ProducePartition("b", 1, 2), ProducePartition("c", 2, 3)]
)
PAYLOAD = memoryview(b"abbccc")
DENIED = TopicAuthorizationFailedError("Write is not allowed")


def test_denied_items_have_no_payload() -> None:
    for denied, partitions, payload in (
        ({1}, ["a", "c"], b"accc"),
        ({0, 2}, ["b"], b"bb"),
        (set[int](), ["a", "b", "c"], b"abbccc"),
    ):
        rest, kept = PRODUCE.without(WRITTEN, PAYLOAD, frozenset(denied))
        assert isinstance(rest, ProduceRequest)
        assert [p.topic for p in rest.partitions] == partitions and bytes(kept) == payload
    assert PRODUCE.without(WRITTEN, PAYLOAD, frozenset({0, 1, 2})) == (None, memoryview(b""))


@pytest.mark.parametrize("payload", [b"abbcc", b"abbcccd", b""])
def test_a_payload_of_another_length_than_its_items_is_refused(payload: bytes) -> None:
    with pytest.raises(InvalidRequestError, match=f"the {len(payload)} bytes of the payload"):
        PRODUCE.without(WRITTEN, memoryview(payload), frozenset({1}))


def test_a_fetch_with_denied_items_does_not_wait() -> None:
    request = FetchRequest(5_000, 1, 1_000, 0, [FetchPartition("a", 0, 7, 100), FetchPartition("b", 1, 8, 100)])
    rest, _ = FETCH.without(request, memoryview(b""), frozenset({0}))
    assert isinstance(rest, FetchRequest)
    assert rest.max_wait_ms == 0 and [p.topic for p in rest.partitions] == ["b"]
    assert request.max_wait_ms == 5_000


def test_results_are_in_the_order_of_the_items() -> None:
    answer = ProduceResponse([ProduceResult("a", 0, 0, 10), ProduceResult("c", 2, 0, 30)])
    results = PRODUCE.with_denials(WRITTEN, answer, frozenset({1}), DENIED)
    assert [(r.topic, r.partition, r.error_code) for r in results] == [("a", 0, 0), ("b", 1, DENIED.code), ("c", 2, 0)]
    assert results[1].message == "Write is not allowed: 'b'"
    everything = PRODUCE.with_denials(WRITTEN, None, frozenset({0, 1, 2}), DENIED)
    assert [r.error_code for r in everything] == [DENIED.code] * 3
