"""Sends changes to any broker that can be reached, and sends them again if that broker stops (`repeating`)."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import TypeVar

from sparklog.client.admin.repeating import UNCLEAR, NextStep, RepeatPolicy
from sparklog.client.net.cluster import Cluster
from sparklog.client.net.deadline import Deadline
from sparklog.client.net.retry import Retries, RetryPolicy
from sparklog.errors import BrokerNotAvailableError, RequestTimedOutError, SparklogError
from sparklog.protocol.apis import Api
from sparklog.protocol.base import Message

M = TypeVar("M", bound=Message)


class _UnreachedError(Exception):
    """Raised if no broker could be reached; `error` is the cause."""

    def __init__(self, error: SparklogError) -> None:
        super().__init__(str(error))
        self.error = error


def change(
    cluster: Cluster,
    api: Api,
    message: Message,
    response: type[M],
    timeout_ms: int,
    *,
    repeating: RepeatPolicy | None = None,
    is_made: Callable[[], bool] = lambda: True,
    sleep: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> M | None:
    """Send a change to a broker. After an error send it again, if `repeating` and the time limit allow that.

    Returns the answer; None if an earlier attempt made the change and its answer was lost. `is_made` checks in that
    case that the change has taken effect. Raises the broker's refusal, or the last error.
    """
    attempts = Retries(RetryPolicy.within(timeout_ms), sleep=sleep, clock=clock)
    repeating = RepeatPolicy() if repeating is None else repeating
    cluster.own_changes.name(message)
    while True:
        sent = True
        try:
            answer = _ask_one(cluster, api, message, response, attempts.attempt_ms)
        except _UnreachedError as e:
            error, sent = e.error, False
        except SparklogError as e:
            error = e
        else:
            cluster.own_changes.note(answer)
            return answer
        following = repeating.after(error, sent=sent)
        if following is NextStep.LOOK and is_made():
            return None
        if following is not NextStep.AGAIN:
            raise error
        attempts.pause(_explain(error, cluster))


def _explain(error: SparklogError, cluster: Cluster) -> SparklogError:
    """Return the error; a timeout in a cluster gets a hint at the controller and ZooKeeper as possible causes."""
    if not isinstance(error, RequestTimedOutError) or len(cluster.candidates()) == 1:
        return error
    return RequestTimedOutError(
        f"{error}. In a cluster the controller makes changes, and needs ZooKeeper for that: `sparklog cluster "
        "describe` shows the controller. The change may still be made later"
    )


def _ask_one(cluster: Cluster, api: Api, message: Message, response: type[M], timeout_ms: int) -> M:
    """Return the answer of the first broker that can be reached. Brokers that failed lately are tried last.

    Raises _UnreachedError if no broker can be reached, and the error of the request.
    """
    deadline = Deadline(timeout_ms)
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
                return connection.request(api, message, response, timeout_ms=deadline.left_ms())[0]
            except UNCLEAR:
                cluster.doubt(candidate)
                raise
    is_late = all(isinstance(f, RequestTimedOutError) for f in failures)
    text = "; ".join(map(str, failures))
    error = failures[0] if len(failures) == 1 else (RequestTimedOutError if is_late else BrokerNotAvailableError)(text)
    raise _UnreachedError(error)
