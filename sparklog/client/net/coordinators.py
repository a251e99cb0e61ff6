"""Requests to the coordinators of groups and transactional ids: looked up, kept, and looked up anew."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

from sparklog.client.net.addresses import Endpoint
from sparklog.client.net.coordinator_key import CoordinatorKey
from sparklog.client.net.deadline import Deadline
from sparklog.client.net.known_coordinators import KnownCoordinators, Told
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
    UnsupportedApiError,
)
from sparklog.protocol.base import Message
from sparklog.protocol.group_messages import FindCoordinatorRequest, FindCoordinatorResponse
from sparklog.protocol.messages import Api

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
"""What a coordinator says, or does not say, that may have been replaced without knowing it."""


class Brokers(Protocol):
    """The cluster, as far as it is needed here."""

    def candidates(self) -> list[Endpoint]:
        """Who can be asked for what any broker knows."""
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
        """The answer, and whose it is. `refused` hears of each error that ends the asking."""
        ...

    def request(
        self, api: Api, message: Message, response: type[M], *, endpoint: Endpoint | None, timeout_ms: int
    ) -> M: ...

    def doubt(self, endpoint: Endpoint) -> None:
        """It is the last to be asked for what any broker knows."""
        ...


class Coordinators:
    """Where the coordinators of one cluster are; thread-safe. It refers to no cluster, so that one ends with its last
    user."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._known = KnownCoordinators()

    def clear(self) -> None:
        """Forgets all."""
        with self._lock:
            self._known = KnownCoordinators()

    def find(self, brokers: Brokers, key: CoordinatorKey, *, timeout_ms: int) -> Told:
        """Where the coordinator is, from what is known or asked. Raises CoordinatorNotAvailableError,
        BrokerNotAvailableError."""
        with self._lock:
            known = self._known.get(key)
        if known is not None:
            return known
        candidates = brokers.candidates()
        with self._lock:
            candidates = self._known.order(candidates, self._clock())
        try:
            found, informant = brokers.ask_any(
                candidates,
                Api.FIND_COORDINATOR,
                FindCoordinatorRequest(*key),
                FindCoordinatorResponse,
                timeout_ms=timeout_ms,
                refused=self._doubt,
            )
        except UnsupportedApiError:  # a broker of an earlier release, which is alone
            told = Told(None, None)
        else:
            told = Told(Endpoint(found.host, found.port) if found.host else None, informant)
        with self._lock:
            self._known.note(key, told)
        return told

    def _doubt(self, informant: Endpoint, error: SparklogError) -> None:
        """It does not know where a coordinator is."""
        with self._lock:
            self._known.doubt(informant, self._clock())

    def request(
        self, brokers: Brokers, key: CoordinatorKey, api: Api, message: Message, response: type[M], *, timeout_ms: int
    ) -> M:
        """One request to the coordinator. After an error that may come of another one having taken over, the next call
        looks for it again, and asks others before those who were wrong. Raises as `find`, and the coordinator's
        error."""
        deadline = Deadline(timeout_ms)
        told = self.find(brokers, key, timeout_ms=timeout_ms)
        left_ms = deadline.left_ms()
        try:
            return brokers.request(api, message, response, endpoint=told.endpoint, timeout_ms=left_ms)
        except (NotCoordinatorError, *UNREADY) as e:
            with self._lock:
                self._known.forget(key, told, self._clock(), unready=not isinstance(e, NotCoordinatorError))
            if told.endpoint is not None and isinstance(e, GONE):
                brokers.doubt(told.endpoint)
            raise
