"""A request with some denied items: the remaining request, and the places of the denied items in the answer.

For the APIs with one result per item of the request, in its order. The other APIs whose rules are for items build
their answers name by name, and put the error there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from msgspec import structs

from sparklog.errors import InvalidRequestError, SparklogError
from sparklog.protocol import group_messages as groups
from sparklog.protocol import messages as m
from sparklog.protocol.base import Message
from sparklog.protocol.messages import Api


class _Items(NamedTuple):
    """The path of the items in a request, and the function that makes the result of a denied item."""

    field: str
    response: Callable[[list[Any]], Message]
    denied: Callable[[Any, SparklogError], Message]


def _text(item: Any, error: SparklogError) -> str:
    """Return the message for one denied item: the common error with the item's topic."""
    return f"{error}: {item.topic!r}"


def _offset_result(item: Any, error: SparklogError) -> Message:
    return groups.OffsetResult(item.topic, item.partition, error.code, _text(item, error))


_ITEMS: Mapping[Api, _Items] = {
    Api.PRODUCE: _Items(
        "partitions", m.ProduceResponse, lambda p, e: m.ProduceResult(p.topic, p.partition, e.code, message=_text(p, e))
    ),
    Api.FETCH: _Items(
        "partitions", m.FetchResponse, lambda p, e: m.FetchResult(p.topic, p.partition, e.code, message=_text(p, e))
    ),
    Api.LIST_OFFSETS: _Items(
        "partitions",
        m.ListOffsetsResponse,
        lambda p, e: m.ListOffsetsResult(p.topic, p.partition, e.code, message=_text(p, e)),
    ),
    Api.OFFSETS_FOR_LEADER_EPOCH: _Items(
        "partitions",
        m.OffsetsForLeaderEpochResponse,
        lambda p, e: m.EpochEndOffset(p.topic, p.partition, e.code, message=_text(p, e)),
    ),
    Api.DELETE_RECORDS: _Items(
        "partitions",
        m.DeleteRecordsResponse,
        lambda p, e: m.DeleteRecordsResult(p.topic, p.partition, e.code, message=_text(p, e)),
    ),
    Api.OFFSET_COMMIT: _Items("offsets", groups.OffsetCommitResponse, _offset_result),
    Api.TXN_OFFSET_COMMIT: _Items("offsets", groups.TxnOffsetCommitResponse, _offset_result),
}


def has_results_per_item(api: Api) -> bool:
    """Return True if the API has one result per item, and so belongs to this module."""
    return api in _ITEMS


def without(
    api: Api, request: Message, payload: memoryview, denied: frozenset[int]
) -> tuple[Message | None, memoryview]:
    """Return the request and its payload without the denied items; None if nothing remains. A fetch then does not wait,
    because it has errors to report. Raises InvalidRequestError for a payload that does not fit the items."""
    field = _ITEMS[api].field
    items = getattr(request, field)
    kept = [item for place, item in enumerate(items) if place not in denied]
    if api is Api.PRODUCE:
        payload = _payload_without(items, payload, denied)
    if not kept:
        return None, payload
    changes: dict[str, Any] = {field: kept}
    if api is Api.FETCH:
        changes["max_wait_ms"] = 0
    return structs.replace(request, **changes), payload


def _payload_without(items: list[m.ProducePartition], payload: memoryview, denied: frozenset[int]) -> memoryview:
    if sum(item.length_bytes for item in items) != len(payload):
        raise InvalidRequestError(
            f"the lengths of the partitions do not add up to the {len(payload)} bytes of the payload"
        )
    kept, position = bytearray(), 0
    for place, item in enumerate(items):
        if place not in denied:
            kept += payload[position : position + item.length_bytes]
        position += item.length_bytes
    return memoryview(kept)


def with_denials(
    api: Api, request: Message, answer: Message | None, denied: frozenset[int], error: SparklogError
) -> Message:
    """Return the answer to the whole request: the results of the executed items (None: there were none), and `error` in
    the other places."""
    spec = _ITEMS[api]
    done = iter(() if answer is None else answer.results)  # type: ignore[attr-defined]
    items = getattr(request, spec.field)
    return spec.response([spec.denied(item, error) if i in denied else next(done) for i, item in enumerate(items)])
