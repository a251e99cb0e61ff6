"""`Call`: sends the requests of one call of `Admin`, repeats them, and reads long answers page by page."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from typing import Any, TypeVar

from sparklog.client.admin.repeating import UNCLEAR, NextStep, RepeatPolicy
from sparklog.client.net.addresses import Endpoint
from sparklog.client.net.cluster import Cluster
from sparklog.client.net.coordinator_key import CoordinatorKey
from sparklog.client.net.deadline import Deadline
from sparklog.client.net.paging import Page, pages
from sparklog.client.net.retry import Retries, RetryPolicy, of_all_brokers, request_until, until_answered
from sparklog.client.net.topic_info import TopicInfo
from sparklog.errors import BrokerNotAvailableError, RequestTimedOutError, SparklogError
from sparklog.protocol.apis import APIS
from sparklog.protocol.base import Message
from sparklog.types import TopicPartition

M = TypeVar("M", bound=Message)
P = TypeVar("P", bound=Page)
T = TypeVar("T")

API_OF = {spec.request: api for api, spec in APIS.items()}
"""The API of each kind of request."""
BROKER_MS = 5_000
"""Time limit in ms for one answer, if a call asks all brokers and leaves out those that do not answer."""


class _UnreachedError(Exception):
    """Raised if no broker could be reached; `error` is the cause."""

    def __init__(self, error: SparklogError) -> None:
        super().__init__(str(error))
        self.error = error


class Call:
    """One call of `Admin`. All its requests share one time limit, which begins at the creation."""

    def __init__(
        self,
        cluster: Cluster,
        timeout_ms: int,
        *,
        sleep: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.cluster = cluster
        self.timeout_ms = timeout_ms
        self.attempts = Retries(RetryPolicy.within(timeout_ms), sleep=sleep, clock=clock)

    @property
    def left_ms(self) -> int:
        """Rest of the time limit in ms, at least 1."""
        return self.attempts.attempt_ms

    def answer(self, ask: Callable[[int], T]) -> T:
        """Return the answer of `ask(timeout_ms)`, which must change nothing; see `until_answered`."""
        return until_answered(ask, self.attempts)

    def topic(self, name: str) -> TopicInfo:
        """Return the topic's newest metadata. Raises UnknownTopicOrPartitionError."""
        return self.answer(lambda left_ms: self.cluster.topic(name, refresh=True, timeout_ms=left_ms))

    def ask(
        self,
        request: Message,
        response: type[M],
        *,
        coordinator: CoordinatorKey | None = None,
        leader_of: TopicPartition | None = None,
        once: bool = False,
    ) -> M:
        """Return the answer to a request that is repeated after retriable errors; see `request_until`."""
        api, attempts = API_OF[type(request)], self.attempts
        return request_until(
            self.cluster, api, request, response, attempts, coordinator=coordinator, leader_of=leader_of, once=once
        )

    def ask_broker(self, broker: Endpoint | None, request: Message, response: type[M], limit_ms: int = 2**31) -> M:
        """Return the answer of one broker (None: any), without a repetition, within `limit_ms`."""
        left_ms = min(limit_ms, self.left_ms)
        return self.cluster.request(API_OF[type(request)], request, response, endpoint=broker, timeout_ms=left_ms)

    def pages(
        self,
        request: Message,
        response: type[P],
        following: Callable[[P], Mapping[str, object]],
        *,
        coordinator: CoordinatorKey | None = None,
        leader_of: TopicPartition | None = None,
    ) -> Iterator[P]:
        """Yield the pages of a long answer; `following` is described at `net.paging.pages`."""
        kind: Any = response

        def ask(page: Message) -> P:
            answer: P = self.ask(page, kind, coordinator=coordinator, leader_of=leader_of)
            return answer

        return pages(ask, request, following)

    def pages_of_all_brokers(
        self, request: Message, response: type[P], following: Callable[[P], Mapping[str, object]]
    ) -> list[P]:
        """Return the pages of all brokers, for a list of which each broker has a part."""
        kind: Any = response

        def ask_all(broker: Endpoint | None, timeout_ms: int) -> Iterator[P]:
            return pages(lambda page: self.ask_broker(broker, page, kind, timeout_ms), request, following)

        return of_all_brokers(self.cluster, ask_all, self.attempts)

    def change(self, request: Message, response: type[M]) -> M:
        """Send a change that is harmless to repeat; see `change_once`."""
        answer = self.change_once(request, response, RepeatPolicy())
        assert answer is not None
        return answer

    def change_once(
        self,
        request: Message,
        response: type[M],
        repeating: RepeatPolicy,
        is_in_effect: Callable[[], bool] = lambda: True,
    ) -> M | None:
        """Send a change to a broker. After an error send it again, if `repeating` and the time limit allow that.

        Returns the answer; None if an earlier attempt made the change and its answer was lost. `is_in_effect` checks in
        that case that the change has taken effect. Raises the broker's refusal, or the last error.
        """
        self.cluster.own_changes.name(request)
        while True:
            is_sent = True
            try:
                answer = self._ask_first(request, response)
            except _UnreachedError as e:
                error, is_sent = e.error, False
            except SparklogError as e:
                error = e
            else:
                self.cluster.own_changes.note(answer)
                return answer
            following = repeating.after(error, sent=is_sent)
            if following is NextStep.LOOK and is_in_effect():
                return None
            if following is not NextStep.AGAIN:
                raise error
            self.attempts.pause(_explain(error, self.cluster))

    def _ask_first(self, request: Message, response: type[M]) -> M:
        """Return the answer of the first broker that can be reached. Brokers that failed lately are tried last.

        Raises _UnreachedError if no broker can be reached, and the error of the request.
        """
        deadline, cluster = Deadline(self.left_ms), self.cluster
        failures: list[SparklogError] = []
        candidates = cluster.candidates()
        for number, candidate in enumerate(candidates):
            share_ms = max(1, deadline.left_ms() // (len(candidates) - number))
            with ExitStack() as stack:
                try:
                    connection = stack.enter_context(cluster.connection(candidate, timeout_ms=share_ms))
                except (BrokerNotAvailableError, RequestTimedOutError) as e:
                    cluster.doubt(candidate)
                    failures.append(e)
                    continue
                try:
                    api, left_ms = API_OF[type(request)], deadline.left_ms()
                    return connection.request(api, request, response, timeout_ms=left_ms)[0]
                except UNCLEAR:
                    cluster.doubt(candidate)
                    raise
        is_late = all(isinstance(f, RequestTimedOutError) for f in failures)
        text = "; ".join(map(str, failures))
        kind = RequestTimedOutError if is_late else BrokerNotAvailableError
        raise _UnreachedError(failures[0] if len(failures) == 1 else kind(text))


def _explain(error: SparklogError, cluster: Cluster) -> SparklogError:
    """Return the error; a timeout in a cluster gets a hint at the controller and ZooKeeper as possible causes."""
    if not isinstance(error, RequestTimedOutError) or len(cluster.candidates()) == 1:
        return error
    return RequestTimedOutError(
        f"{error}. In a cluster the controller makes changes, and needs ZooKeeper for that: `sparklog cluster "
        "describe` shows the controller. The change may still be made later"
    )
