"""Requests of which some items are denied: the request without them, and the answer with their errors.

This module is for the APIs with one result per item of the request, in its order. The other APIs with rules for items
look up denied names while they build the answer, and put the error there.
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
    """The request's list of items, the type of its response, and the function that creates the result of a denied
    item."""

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
    """Return True if the API has one result per item, so that `without` and `with_denials` can be used."""
    return api in _ITEMS


def without(
    api: Api, request: Message, payload: memoryview, denied: frozenset[int]
) -> tuple[Message | None, memoryview]:
    """Return the request and its payload without the denied items. The request is None if all items are denied. A fetch
    with denied items does not wait for records, because its answer has errors. Raises InvalidRequestError if the
    payload of a PRODUCE request does not have the length of its items."""
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
    """Return the answer to the whole request: `error` for each denied item, and the results of `answer` for the others.
    `answer` is None if all items are denied."""
    spec = _ITEMS[api]
    done = iter(() if answer is None else answer.results)  # type: ignore[attr-defined]
    items = getattr(request, spec.field)
    return spec.response([spec.denied(item, error) if i in denied else next(done) for i, item in enumerate(items)])
