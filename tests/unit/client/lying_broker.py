"""A broker with wrong answers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sparklog.protocol.apis import Api
from tests.unit.client.fake_broker import FakeBroker


class LyingBroker(FakeBroker):
    """A broker that sends `lies[api](answer)` instead of the answer."""

    def __init__(self) -> None:
        self.lies: dict[Api, Callable[[Any], Any]] = {}
        super().__init__(1)

    def _answer(self, api: Api, message: Any, payload: bytearray, code: int) -> tuple[Any, bytes]:
        answer, body = super()._answer(api, message, payload, code)
        return self.lies.get(api, lambda a: a)(answer), body


def other_partition(answer: Any) -> Any:
    """Return the answer about other partitions than the requested ones."""
    results = answer.partitions if hasattr(answer, "partitions") else answer.results
    for result in results:
        result.partition += 7
    return answer
