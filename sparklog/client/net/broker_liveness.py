"""The rule for waiting on a silent broker: a client waits as long as the other brokers take the broker for alive.

A broker that is cut off keeps its connections open and sends nothing. If an answer is late, the other brokers are asked
about the silent one. If they answer that it has left, or that they do not reach it either, the client stops waiting.
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
from sparklog.protocol.apis import Api
from sparklog.protocol.base import Message
from sparklog.protocol.topic_messages import MetadataRequest, MetadataResponse

M = TypeVar("M", bound=Message)

LATE_S = 0.5
"""Time in s after which an answer is late. The other brokers are asked then, and again after each further LATE_S."""
ENDPOINTS_MAX = 1_000
ASK_MS = 1_500
"""Time limit in ms for the other brokers' answer, during which the waiting thread does nothing else."""


class BrokerLiveness:
    """Judgement whether a silent broker is still a member of the cluster, for one connection."""

    def __init__(
        self,
        endpoint: Endpoint,
        broker_id: int | None,
        has_departed: Callable[[int, Endpoint], bool],
        clock: Callable[[], float] = time.monotonic,
        *,
        late_s: float = LATE_S,
    ) -> None:
        """Create the judgement of one broker.

        `broker_id`: None until it is known; until then no other broker is asked. `has_departed`: asks the other brokers
        if the broker has left the cluster, or is suspected. `late_s`: as LATE_S.
        """
        self._endpoint = endpoint
        self.broker_id = broker_id
        self._has_departed = has_departed
        self._clock = clock
        self.late_s = late_s
        self._checked_at = -self.late_s

    def late_at(self, expected_at: float, heard_at: float) -> float:
        """Return the time at which the other brokers are to be asked, for an answer expected at `expected_at` from a
        broker last heard at `heard_at`."""
        return max(expected_at, heard_at, self._checked_at) + self.late_s

    def check(self, expected_at: float, heard_at: float) -> None:
        """Ask other brokers about the broker if its answer is late. Raises RequestTimedOutError if it has left."""
        if self._clock() < self.late_at(expected_at, heard_at):
            return
        has_departed = self.broker_id is not None and self._has_departed(self.broker_id, self._endpoint)
        self._checked_at = self._clock()
        if has_departed:
            raise RequestTimedOutError(
                f"the broker at {self._endpoint} does not answer, and other brokers do not reach it either; its "
                "partitions get new leaders"
            )


class Brokers(Protocol):
    """The part of the cluster that this module uses."""

    def candidates(self) -> list[Endpoint]:
        """Return the brokers to ask for information that any broker has."""
        ...

    def broker(self, broker_id: int) -> Endpoint | None:
        """Return the address of a broker."""
        ...

    def ask_any(
        self, candidates: Sequence[Endpoint], api: Api, message: Message, response: type[M], *, timeout_ms: int
    ) -> tuple[M, Endpoint]:
        """Return the first answer, and the broker that gave it."""
        ...


class Membership:
    """The membership of brokers in a cluster. The reference to the cluster is weak, because the cluster keeps the
    connections that use this object."""

    def __init__(self, brokers: Brokers) -> None:
        self._brokers = weakref.ref(brokers)
        self.late_s = LATE_S
        """Time in s after which an answer is late, for connections that are opened from now on."""
        self._lock = threading.Lock()
        self._ids: OrderedDict[Endpoint, int] = OrderedDict()

    def remember(self, broker_id: int, endpoint: Endpoint) -> None:
        """Note the address of a broker."""
        with self._lock:
            self._ids[endpoint] = broker_id
            self._ids.move_to_end(endpoint)
            while len(self._ids) > ENDPOINTS_MAX:
                self._ids.popitem(last=False)

    def liveness_of(self, endpoint: Endpoint) -> BrokerLiveness:
        """Return the judgement for a new connection."""
        with self._lock:
            broker_id = self._ids.get(endpoint)
        return BrokerLiveness(endpoint, broker_id, self.has_departed, late_s=self.late_s)

    def has_departed(self, broker_id: int, endpoint: Endpoint) -> bool:
        """True if another broker reports that the broker `broker_id`, reached at `endpoint`, is no longer in the
        cluster, or is suspected. False if no other broker is known or none answers."""
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
        members = {b.broker_id for b in answer.brokers}
        return bool(members) and broker_id not in members.difference(answer.suspected)
