"""One request, tried again while trying again can help."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import NamedTuple, TypeVar

from sparklog.client.net.addresses import Endpoint
from sparklog.client.net.cluster import Cluster
from sparklog.client.net.coordinator_key import CoordinatorKey
from sparklog.errors import SparklogError
from sparklog.protocol.base import Message
from sparklog.protocol.messages import Api
from sparklog.types import TopicPartition

M = TypeVar("M", bound=Message)


class RetryPolicy(NamedTuple):
    """How long in all, how long one attempt, and the pauses between attempts (doubling, with a random fifth)."""

    timeout_ms: int = 60_000
    request_timeout_ms: int = 30_000
    backoff_ms: int = 50
    backoff_max_ms: int = 1_000


def request_until(
    cluster: Cluster,
    api: Api,
    message: Message,
    response: type[M],
    policy: RetryPolicy,
    *,
    coordinator: CoordinatorKey | None = None,
    endpoint: Endpoint | None = None,
    leader_of: TopicPartition | None = None,
    sleep: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> M:
    """Sends a request that may take effect twice, again after every retriable error until `policy.timeout_ms` is over.
    `coordinator`: to the coordinator of this group or transactional id; `endpoint`: to this broker;
    `leader_of`: to whoever leads the partition at that moment.

    Raises the last error; that of a request which may have taken effect is RequestTimedOutError or
    BrokerNotAvailableError.
    """
    deadline = clock() + policy.timeout_ms / 1000
    backoff_s = policy.backoff_ms / 1000
    while True:
        left_ms = max(1, int((deadline - clock()) * 1000))
        attempt_ms = min(policy.request_timeout_ms, left_ms)
        try:
            if coordinator is not None:
                return cluster.coordinator_request(coordinator, api, message, response, timeout_ms=attempt_ms)
            if leader_of is not None:
                endpoint = cluster.leader(leader_of, timeout_ms=attempt_ms)
            return cluster.request(api, message, response, endpoint=endpoint, timeout_ms=attempt_ms)
        except SparklogError as e:
            pause = backoff_s * random.uniform(0.8, 1.2)
            if not e.retriable or clock() + pause >= deadline:
                raise
        if leader_of is not None:
            cluster.expire(leader_of.topic)
            if endpoint is not None:
                cluster.doubt(endpoint)
        sleep(pause)
        backoff_s = min(backoff_s * 2, policy.backoff_max_ms / 1000)
