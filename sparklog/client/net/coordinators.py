"""Requests to the coordinators of groups and transactional ids. A coordinator is looked up once, and again after an
error."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

from sparklog.client.net.addresses import Endpoint
from sparklog.client.net.coordinator_key import CoordinatorKey
from sparklog.client.net.deadline import Deadline
from sparklog.client.net.remembered_coordinators import CoordinatorAnswer, RememberedCoordinators
from sparklog.errors import (
    BrokerNotAvailableError,
    BrokerShuttingDownError,
    CoordinatorLoadingError,
    CoordinatorNotAvailableError,
    NotCoordinatorError,
    NotEnoughReplicasAfterAppendError,
    NotEnoughReplicasError,
    RequestTimedOutError,
    SparklogError,
)
from sparklog.protocol.apis import Api
from sparklog.protocol.base import Message
from sparklog.protocol.group_messages import FindCoordinatorRequest, FindCoordinatorResponse

M = TypeVar("M", bound=Message)

GONE = (BrokerNotAvailableError, RequestTimedOutError)
UNREADY = (
    *GONE,
    BrokerShuttingDownError,
    CoordinatorLoadingError,
    CoordinatorNotAvailableError,
    NotEnoughReplicasError,
    NotEnoughReplicasAfterAppendError,
)
"""Errors of a coordinator that is away or cannot work; it has perhaps been replaced without its knowledge."""


class Brokers(Protocol):
    """The part of the cluster that this module uses."""

    def candidates(self) -> list[Endpoint]:
        """Return the brokers to ask for information that any broker has."""
        ...

    def ask_any(
        self,
        candidates: Sequence[Endpoint],
        api: Api,
        message: Message,
        response: type[M],
        *,
        timeout_ms: int,
        refused: Callable[[Endpoint, SparklogError], None],
    ) -> tuple[M, Endpoint]:
        """Ask the candidates in turn. Return the first answer, and the broker that gave it. A broker that cannot be
        reached, is too slow or is shutting down is passed over. Any other error ends the search: it is raised after
        `refused` was called with the broker and the error."""
        ...

    def request(
        self, api: Api, message: Message, response: type[M], *, endpoint: Endpoint | None, timeout_ms: int
    ) -> M: ...

    def doubt(self, endpoint: Endpoint) -> None:
        """Ask this broker last for information that any broker has."""
        ...


class Coordinators:
    """The known coordinators of one cluster; thread-safe. It does not refer to the cluster, so the cluster is collected
    when no client uses it."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._remembered = RememberedCoordinators()

    def clear(self) -> None:
        """Forget all."""
        with self._lock:
            self._remembered = RememberedCoordinators()

    def find(self, brokers: Brokers, key: CoordinatorKey, *, timeout_ms: int) -> CoordinatorAnswer:
        """Return the coordinator, known or looked up. Raises CoordinatorNotAvailableError, BrokerNotAvailableError."""
        with self._lock:
            remembered = self._remembered.get(key)
        if remembered is not None:
            return remembered
        candidates = brokers.candidates()
        with self._lock:
            candidates = self._remembered.order(candidates, self._clock())
        response, informant = brokers.ask_any(
            candidates,
            Api.FIND_COORDINATOR,
            FindCoordinatorRequest(*key),
            FindCoordinatorResponse,
            timeout_ms=timeout_ms,
            refused=self._doubt,
        )
        answer = CoordinatorAnswer(Endpoint(response.host, response.port) if response.host else None, informant)
        with self._lock:
            self._remembered.remember(key, answer)
        return answer

    def _doubt(self, informant: Endpoint, error: SparklogError) -> None:
        """Put a broker last in the order for SUSPECT_FOR_S, because it has answered the look-up of a coordinator with
        an error."""
        with self._lock:
            self._remembered.doubt(informant, self._clock())

    def request(
        self, brokers: Brokers, key: CoordinatorKey, api: Api, message: Message, response: type[M], *, timeout_ms: int
    ) -> M:
        """Send one request to the coordinator.

        After an error that can come from a change of coordinators, the next call looks the coordinator up again, and
        asks the brokers with wrong answers last. Raises as `find`, and the coordinator's error.
        """
        deadline = Deadline(timeout_ms)
        answer = self.find(brokers, key, timeout_ms=timeout_ms)
        remaining_ms = deadline.left_ms()
        try:
            return brokers.request(api, message, response, endpoint=answer.endpoint, timeout_ms=remaining_ms)
        except (NotCoordinatorError, *UNREADY) as e:
            with self._lock:
                self._remembered.forget(key, answer, self._clock(), unready=not isinstance(e, NotCoordinatorError))
            if answer.endpoint is not None and isinstance(e, GONE):
                brokers.doubt(answer.endpoint)
            raise
