"""What one request costs as the log or the number of clients grows: raw requests, timed one after the other."""

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


def random_fetches(bootstrap: str, topic: str, end_offset: int, count: int, max_bytes: int) -> dict[str, float]:
    """`count` fetches of partition 0 at random offsets below `end_offset`: the median in µs."""
    chosen, times = random.Random(3), []
    with _connect(bootstrap) as client:
        for i in range(count + WARM_UP):
            offset = chosen.randrange(end_offset)
            begun = time.perf_counter()
            client.send(Api.FETCH, FetchRequest(0, 1, max_bytes, 0, [FetchPartition(topic, 0, offset, max_bytes)]))
            _, payload = client.receive(Api.FETCH, FetchResponse)
            if i >= WARM_UP:
                times.append(time.perf_counter() - begun)
            if not len(payload):
                raise RuntimeError(f"nothing came for offset {offset}")
    return {"median_us": statistics.median(times) * 1e6, "p99_us": sorted(times)[int(len(times) * 0.99)] * 1e6}


def many_connections(bootstrap: str, connections: int, count: int) -> dict[str, float]:
    """`count` tiny requests, each on the next of `connections` open connections: the median in µs."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    clients = [_connect(bootstrap) for _ in range(connections)]
    times = []
    for i in range(max(connections, WARM_UP) + count):
        client = clients[i % connections]
        begun = time.perf_counter()
        client.request(Api.HANDSHAKE, HandshakeRequest(), HandshakeResponse)
        if i >= max(connections, WARM_UP):
            times.append(time.perf_counter() - begun)
    for client in clients:
        client.close()
    return {"median_us": statistics.median(times) * 1e6, "p99_us": sorted(times)[int(len(times) * 0.99)] * 1e6}


def _connect(bootstrap: str) -> RawClient:
    host, _, port = bootstrap.rpartition(":")
    return RawClient(host.strip("[]"), int(port), buffer_bytes=4096)


PROGRAMS: tuple[Callable[..., dict[str, float]], ...] = (random_fetches, many_connections)
