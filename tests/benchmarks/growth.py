"""The time of one request as the log or the number of clients grows: raw requests, one after the other."""

from __future__ import annotations

import random
import resource
import statistics
import time
from collections.abc import Callable

from sparklog.protocol.messages import (
    Api,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    HandshakeRequest,
    HandshakeResponse,
)

from .broker_raw import RawClient

WARM_UP = 200


def _timed(request: Callable[[int], None], warm_up: int, count: int) -> dict[str, float]:
    times = []
    for i in range(warm_up + count):
        begun = time.perf_counter()
        request(i)
        times.append(time.perf_counter() - begun)
    counted = sorted(times[warm_up:])
    return {"median_us": statistics.median(counted) * 1e6, "p99_us": counted[int(len(counted) * 0.99)] * 1e6}


def random_fetches(bootstrap: str, topic: str, end_offset: int, count: int, max_bytes: int) -> dict[str, float]:
    """Send `count` fetches of partition 0 at random offsets below `end_offset`."""
    chosen = random.Random(3)
    with _connect(bootstrap) as client:

        def fetch(_: int) -> None:
            offset = chosen.randrange(end_offset)
            client.send(Api.FETCH, FetchRequest(0, 1, max_bytes, 0, [FetchPartition(topic, 0, offset, max_bytes)]))
            if not len(client.receive(Api.FETCH, FetchResponse)[1]):
                raise RuntimeError(f"no records came for offset {offset}")

        return _timed(fetch, WARM_UP, count)


def many_connections(bootstrap: str, connections: int, count: int) -> dict[str, float]:
    """Send `count` tiny requests, each on the next of `connections` open connections."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    clients = [_connect(bootstrap) for _ in range(connections)]

    def handshake(i: int) -> None:
        clients[i % connections].request(Api.HANDSHAKE, HandshakeRequest(), HandshakeResponse)

    found = _timed(handshake, max(connections, WARM_UP), count)
    for client in clients:
        client.close()
    return found


def _connect(bootstrap: str) -> RawClient:
    host, _, port = bootstrap.rpartition(":")
    return RawClient(host.strip("[]"), int(port), buffer_bytes=4096)


PROGRAMS: tuple[Callable[..., dict[str, float]], ...] = (random_fetches, many_connections)
