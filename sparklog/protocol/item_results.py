"""Requests of which some items are denied: the request without them, and the answer with their errors.

This module is for the APIs with one result per item of the request, in its order. The other APIs with rules for items
look up denied names while they build the answer, and put the error there.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from msgspec import structs

from sparklog.errors import InvalidRequestError, SparklogError
from sparklog.protocol.base import Message
from sparklog.protocol.messages import FetchRequest, ProducePartition, ProduceRequest


class ItemResults(NamedTuple):
    """The list of items in the requests of one API, and the type of their results."""

    field: str
    """The request's list of items. Each item has a topic and a partition."""
    result: type[Message]
    """Type of a result, with the fields topic, partition, error_code and message. The response has them in the list
    `results`."""

    def without(
        self, request: Message, payload: memoryview, denied: frozenset[int]
    ) -> tuple[Message | None, memoryview]:
        """Return the request and its payload without the denied items. The request is None if all items are denied. A
        fetch with denied items does not wait for records, because its answer has errors. Raises InvalidRequestError if
        the payload of a PRODUCE request does not have the length of its items."""
        items = getattr(request, self.field)
        kept = [item for place, item in enumerate(items) if place not in denied]
        if isinstance(request, ProduceRequest):
            payload = _payload_without(items, payload, denied)
        if not kept:
            return None, payload
        changes: dict[str, Any] = {self.field: kept}
        if isinstance(request, FetchRequest):
            changes["max_wait_ms"] = 0
        return structs.replace(request, **changes), payload

    def with_denials(
        self, request: Message, answer: Message | None, denied: frozenset[int], error: SparklogError
    ) -> list[Any]:
        """Return the results of the whole request: `error` for each denied item, and the results of `answer` for the
        others. `answer` is None if all items are denied."""
        done = iter(() if answer is None else answer.results)  # type: ignore[attr-defined]
        items = getattr(request, self.field)
        return [self._denial(item, error) if i in denied else next(done) for i, item in enumerate(items)]

    def _denial(self, item: Any, error: SparklogError) -> Message:
        """Return the result of one denied item. Its message is the common error with the item's topic."""
        text = f"{error}: {item.topic!r}"
        return self.result(topic=item.topic, partition=item.partition, error_code=error.code, message=text)


def _payload_without(items: list[ProducePartition], payload: memoryview, denied: frozenset[int]) -> memoryview:
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
