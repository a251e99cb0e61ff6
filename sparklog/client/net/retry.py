"""Repetition of requests while it can help: until a broker answers, a leader is found, or the time limit is reached."""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable, Iterable
from typing import NamedTuple, Protocol, TypeVar

from sparklog.client.net.addresses import Endpoint
from sparklog.client.net.cluster import Cluster
from sparklog.client.net.coordinator_key import CoordinatorKey
from sparklog.errors import BrokerNotAvailableError, RequestTimedOutError, SparklogError
from sparklog.protocol.apis import Api
from sparklog.protocol.base import Message
from sparklog.types import TopicPartition

M = TypeVar("M", bound=Message)
T = TypeVar("T")

_log = logging.getLogger(__name__)

WARN_AFTER_S = 1.0
"""Time in s after which a call logs the cause of its retries, once."""

UNCLEAR = (RequestTimedOutError, BrokerNotAvailableError)
"""Errors after which the request has perhaps taken effect; after any other error it has not."""


class RetryPolicy(NamedTuple):
    """Limits of a call in ms: `timeout_ms` for all attempts, `request_timeout_ms` for one, and the pauses between
    attempts, which double up to `backoff_max_ms` and vary at random by a fifth. `limit`: the setting of `timeout_ms`,
    which errors name; empty if there is none. `repeats`: False allows one attempt only."""

    timeout_ms: int = 60_000
    request_timeout_ms: int = 30_000
    backoff_ms: int = 50
    backoff_max_ms: int = 1_000
    limit: str = ""
    repeats: bool = True

    @classmethod
    def one_attempt(cls, timeout_ms: int) -> RetryPolicy:
        """Return the policy of a single attempt of at most `timeout_ms`, for a caller that tries again itself."""
        return cls(timeout_ms, timeout_ms, repeats=False)

    @classmethod
    def within(cls, timeout_ms: int) -> RetryPolicy:
        """Return the policy of calls with a `request_timeout_ms`. `timeout_ms` limits all attempts together, and one
        attempt can take all of it."""
        return cls(timeout_ms, timeout_ms, limit="request_timeout_ms")


class Attempts(Protocol):
    """The attempts of one call."""

    @property
    def attempt_ms(self) -> int:
        """Time limit of the next request in ms, at least 1."""
        ...

    def pause(self, error: SparklogError) -> None:
        """Wait before the next attempt. Raises `error` if another attempt cannot help, or the time is over."""
        ...


class Retries:
    """Attempts within the limits of a policy; the time begins at the creation."""

    def __init__(
        self,
        policy: RetryPolicy,
        *,
        sleep: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._policy = policy
        self._sleep = sleep
        self._clock = clock
        self._started_at = clock()
        self._until = self._started_at + policy.timeout_ms / 1000
        self._backoff_s = policy.backoff_ms / 1000
        self._is_warned = False

    @property
    def attempt_ms(self) -> int:
        return min(self._policy.request_timeout_ms, max(1, int((self._until - self._clock()) * 1000)))

    def pause(self, error: SparklogError) -> None:
        now = self._clock()
        remaining_s = self._until - now
        if not error.retriable or not self._policy.repeats:
            raise error
        if remaining_s * 1000 <= self._policy.backoff_ms:
            raise self._last(error)
        # the pauses near the end are shorter, so that the attempts go on until the limit
        pause_s = min(self._backoff_s * random.uniform(0.8, 1.2), remaining_s / 2)
        if not self._is_warned and now - self._started_at >= WARN_AFTER_S:
            self._is_warned = True
            _log.warning("%s; trying again for up to %.0f s", error, remaining_s)
        self._sleep(pause_s)
        self._backoff_s = min(self._backoff_s * 2, self._policy.backoff_max_ms / 1000)

    def _last(self, error: SparklogError) -> SparklogError:
        """Return `error`, with the limit that has ended the attempts."""
        policy = self._policy
        if not policy.limit:
            return error
        last = type(error)(f"{error}; gave up after {policy.timeout_ms / 1000:g} s ({policy.limit})")
        last.__cause__ = error
        return last


def until_answered(ask: Callable[[int], T], attempts: Attempts) -> T:
    """Return the answer of `ask(timeout_ms)`, which is called again after every retriable error while `attempts`
    continue. So a call made before the broker starts, or while it restarts, waits for it. `ask` must be harmless to
    repeat. Raises the last error."""
    while True:
        try:
            return ask(attempts.attempt_ms)
        except SparklogError as e:
            attempts.pause(e)


def of_all_brokers(cluster: Cluster, ask: Callable[[Endpoint | None, int], Iterable[T]], attempts: Attempts) -> list[T]:
    """Return the results of `ask` from all brokers, in one list. If one fails, all brokers that the cluster then has
    are asked again, because the failed broker's partitions have moved. Raises the error of the last attempt."""

    def ask_all(attempt_ms: int) -> list[T]:
        brokers = cluster.brokers(timeout_ms=attempt_ms)
        return [item for broker in brokers for item in ask(broker, attempts.attempt_ms)]

    return until_answered(ask_all, attempts)


def request_until(
    cluster: Cluster,
    api: Api,
    message: Message,
    response: type[M],
    attempts: Attempts,
    *,
    coordinator: CoordinatorKey | None = None,
    endpoint: Endpoint | None = None,
    leader_of: TopicPartition | None = None,
    once: bool = False,
) -> M:
    """Send a request, and repeat it after retriable errors while `attempts` continue. Unless `once` is True,
    the request must be harmless to repeat.

    `coordinator`: the receiver is the coordinator of this group or transactional id. `endpoint`: the receiver is this
    broker. `leader_of`: the receiver is the partition's leader at that moment. `once`: the request must not take effect
    twice, so it is not repeated after an error that leaves its outcome open.

    Raises the last error. If the request has perhaps taken effect, that is RequestTimedOutError or
    BrokerNotAvailableError.
    """
    if once:  # an unsent request can be tried again
        until_answered(lambda remaining_ms: cluster.reach(timeout_ms=remaining_ms), attempts)
    while True:
        has_endpoint = leader_of is None
        try:
            if coordinator is not None:
                return cluster.coordinator_request(coordinator, api, message, response, timeout_ms=attempts.attempt_ms)
            if leader_of is not None:
                endpoint = cluster.leader(leader_of, timeout_ms=attempts.attempt_ms)
                has_endpoint = True
            return cluster.request(api, message, response, endpoint=endpoint, timeout_ms=attempts.attempt_ms)
        except SparklogError as e:
            if leader_of is not None and e.retriable:
                cluster.look_again([leader_of.topic], endpoint)
            if once and has_endpoint and isinstance(e, UNCLEAR):
                raise
            attempts.pause(e)
