"""Counters of requests: number, errors, times by phase, and slow requests.

A request has these phases: `queue` from its last byte to its handler; `handle` in the handler, including its disk;
`wait` for other events (records of a fetch, replicas of an append); `send` until the kernel has the last byte of the
reply.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator

from msgspec import Struct

from sparklog.errors import NAMES
from sparklog.histogram import Histogram
from sparklog.protocol.apis import Api

log = logging.getLogger(__name__)

UNKNOWN_API = "UNKNOWN"
SLOW_LINES_MAX = 10
SLOW_LINES_S = 10.0
"""Interval, in s, with at most SLOW_LINES_MAX lines about slow requests. The next line counts the omitted lines."""


_LONG_POLLS = frozenset({Api.FETCH, Api.REPLICA_FETCH, Api.METADATA_FETCH})
"""APIs whose wait for records or metadata does not make a request slow."""


class RequestTimes(Struct):
    """The times of one request, in s of the loop's clock."""

    received_s: float = 0.0
    begun_s: float = 0.0
    answered_s: float = 0.0
    wait_s: float = 0.0
    """A duration, unlike the other fields, to which handlers add."""


class ApiCounters:
    """Counters of one API. `errors`: number of errors by code, both of whole requests and of single partitions."""

    __slots__ = ("errors", "handle", "queue", "request_bytes", "requests", "response_bytes", "send", "total", "wait")

    def __init__(self) -> None:
        self.requests = 0
        self.errors: dict[int, int] = {}
        self.request_bytes = 0
        self.response_bytes = 0
        self.queue = Histogram()
        self.handle = Histogram()
        self.wait = Histogram()
        self.send = Histogram()
        self.total = Histogram()


class RequestCounters:
    """Counters of all APIs. Event-loop thread only, except for `items` and `slow_count`.

    `slow_s`: duration above which a request gets a line in the log; negative for never. Times that depend on the client
    are excluded: the wait of a fetch for records, and the time in which the client does not read the reply.
    """

    def __init__(self, slow_s: float = -1.0) -> None:
        self.slow_count = 0
        self._slow_s = _limit_s(slow_s)
        self._by_api = {int(api): ApiCounters() for api in Api}
        self._unknown = ApiCounters()
        self._remaining_lines = SLOW_LINES_MAX
        self._lines_until_s = 0.0
        self._without_line = 0

    def set_slow(self, slow_s: float) -> None:
        """Set the duration, in s, above which a request is slow; negative for never."""
        self._slow_s = _limit_s(slow_s)

    def items(self) -> Iterator[tuple[str, ApiCounters]]:
        """Yield the names and counters of APIs that have had requests. Callable on any thread."""
        for api in Api:
            if self._by_api[api].requests or self._by_api[api].errors:
                yield api.name, self._by_api[api]
        if self._unknown.requests or self._unknown.errors:
            yield UNKNOWN_API, self._unknown

    def begin(self, api: int, size_bytes: int) -> None:
        """Count a request, and the `size_bytes` after its prefix."""
        counters = self._by_api.get(api, self._unknown)
        counters.requests += 1
        counters.request_bytes += size_bytes

    def failed(self, api: int, codes: Iterable[int]) -> None:
        """Count the error codes of a request, or of partitions in it."""
        errors = self._by_api.get(api, self._unknown).errors
        for code in codes:
            errors[code] = errors.get(code, 0) + 1

    def done(self, api: int, times: RequestTimes, now_s: float, sent_bytes: int, peer: str) -> None:
        """Count a reply that the kernel has taken, or a request without a reply."""
        counters = self._by_api.get(api, self._unknown)
        counters.response_bytes += sent_bytes
        queue_s = times.begun_s - times.received_s
        handle_s = times.answered_s - times.begun_s - times.wait_s
        send_s = now_s - times.answered_s
        counters.queue.observe(queue_s)
        counters.handle.observe(handle_s)
        counters.wait.observe(times.wait_s)
        counters.send.observe(send_s)
        counters.total.observe(now_s - times.received_s)
        slow_s = queue_s + handle_s if api in _LONG_POLLS else now_s - times.received_s
        if slow_s > self._slow_s:
            self.slow_count += 1
            phases = {"queue_ms": queue_s, "handle_ms": handle_s, "wait_ms": times.wait_s, "send_ms": send_s}
            self._log_slow(now_s, api_name(api), peer, slow_s, phases, sent_bytes)

    def _log_slow(
        self, now_s: float, api: str, peer: str, slow_s: float, phases: dict[str, float], sent_bytes: int
    ) -> None:
        if now_s >= self._lines_until_s:
            self._remaining_lines, self._lines_until_s = SLOW_LINES_MAX, now_s + SLOW_LINES_S
        if not self._remaining_lines:
            self._without_line += 1
            return
        self._remaining_lines -= 1
        without_line, self._without_line = self._without_line, 0
        phases_ms = {name: round(s * 1000, 3) for name, s in phases.items()}
        log.warning(
            "slow request: %s of %s took %.0f ms (%s)%s",
            api,
            peer,
            slow_s * 1000,
            ", ".join(f"{name.removesuffix('_ms')} {ms:.1f}" for name, ms in phases_ms.items()),
            f"; {without_line} more since the last line" if without_line else "",
            extra={
                "fields": {
                    "event": "slow_request",
                    "api": api,
                    "peer": peer,
                    "slow_ms": round(slow_s * 1000, 3),
                    **phases_ms,
                    "response_bytes": sent_bytes,
                    "without_line": without_line,
                }
            },
        )


def _limit_s(slow_s: float) -> float:
    return slow_s if slow_s >= 0 else float("inf")


def api_name(api: int) -> str:
    """Return the name of an API's number; UNKNOWN_API for a number without an API."""
    return Api(api).name if api in Api._value2member_map_ else UNKNOWN_API


def error_name(code: int) -> str:
    """Return the name of an error's code."""
    return NAMES.get(code, str(code))
