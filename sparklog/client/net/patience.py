"""How long a broker that is silent is waited for: as long as it is a member of its cluster.

A broker that is cut off keeps its connections open and says nothing. When an answer is late, the others are asked
whether it is still one of them. If they say that it has left, nobody waits for its answer any longer.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

from sparklog.client.net.addresses import Endpoint
from sparklog.errors import RequestTimedOutError, SparklogError
from sparklog.protocol.base import Message
from sparklog.protocol.messages import Api
from sparklog.protocol.topic_messages import MetadataRequest, MetadataResponse

M = TypeVar("M", bound=Message)

LATE_S = 3.0
"""An answer is late after so long, and the others are asked again after so long."""
ENDPOINTS_MAX = 1_000
ASK_MS = 1_500
"""The others have so long to tell; who waits for the late answer can do nothing else meanwhile."""


class Patience:
    """With the answers of one broker on one connection."""

    def __init__(
        self,
        endpoint: Endpoint,
        broker_id: int | None,
        has_left: Callable[[int, Endpoint], bool],
        clock: Callable[[], float] = time.monotonic,
        *,
        late_s: float = LATE_S,
    ) -> None:
        """`broker_id`: None as long as it is not known, and nobody can be asked. `has_left`: whether others say that
        the broker is no member of the cluster. `late_s`: as LATE_S."""
        self._endpoint = endpoint
        self.broker_id = broker_id
        self._has_left = has_left
        self._clock = clock
        self.late_s = late_s
        self._asked_at = -self.late_s

    def late_at(self, expected_at: float, heard_at: float) -> float:
        """When the others are to be asked, about an answer that was expected at a moment, of a broker that was last
        heard at another one."""
        return max(expected_at, heard_at, self._asked_at) + self.late_s

    def check(self, expected_at: float, heard_at: float) -> None:
        """Asks them, if the answer is late. Raises RequestTimedOutError if the broker has left."""
        if self._clock() < self.late_at(expected_at, heard_at):
            return
        has_left = self.broker_id is not None and self._has_left(self.broker_id, self._endpoint)
        self._asked_at = self._clock()
        if has_left:
            raise RequestTimedOutError(
                f"the broker at {self._endpoint} does not answer, and the others say that it has left the cluster; its "
                "partitions get other leaders"
            )


class Brokers(Protocol):
    """The cluster, as far as it is needed here."""

    def candidates(self) -> list[Endpoint]:
        """Who can be asked for what any broker knows."""
        ...

    def broker(self, broker_id: int) -> Endpoint | None:
        """Where a broker is."""
        ...

    def ask_any(
        self, candidates: Sequence[Endpoint], api: Api, message: Message, response: type[M], *, timeout_ms: int
    ) -> tuple[M, Endpoint]:
        """The answer, and whose it is."""
        ...


class Membership:
    """Who belongs to a cluster. Refers to it weakly: connections, which ask, are kept by the cluster."""

    def __init__(self, brokers: Brokers) -> None:
        self._brokers = weakref.ref(brokers)
        self.late_s = LATE_S
        """For the connections that are made from now on."""
        self._lock = threading.Lock()
        self._ids: OrderedDict[Endpoint, int] = OrderedDict()

    def note(self, broker_id: int, endpoint: Endpoint) -> None:
        """A broker is, or was, to be reached there."""
        with self._lock:
            self._ids[endpoint] = broker_id
            self._ids.move_to_end(endpoint)
            while len(self._ids) > ENDPOINTS_MAX:
                self._ids.popitem(last=False)

    def patience_with(self, endpoint: Endpoint) -> Patience:
        """For a connection that is about to be made."""
        with self._lock:
            broker_id = self._ids.get(endpoint)
        return Patience(endpoint, broker_id, self.has_left, late_s=self.late_s)

    def has_left(self, broker_id: int, endpoint: Endpoint) -> bool:
        """Whether another broker says that this one, reached at `endpoint`, is none of them. False, too, if there is no
        other one, or none answers."""
        brokers = self._brokers()
        if brokers is None:
            return False
        others = [e for e in brokers.candidates() if e not in (endpoint, brokers.broker(broker_id))]
        if not others:
            return False
        request = MetadataRequest([], with_schemas=False, with_partitions=False)
        try:
            answer, _ = brokers.ask_any(others, Api.METADATA, request, MetadataResponse, timeout_ms=ASK_MS)
        except SparklogError:
            return False
        return bool(answer.brokers) and all(b.broker_id != broker_id for b in answer.brokers)
