"""Requests that have come by half, while others wait for memory: who does not get on loses what it holds.

What of a request is there keeps its memory (`MemoryBudget`) until the rest comes, and `request.read.timeout.ms` is
long: a client may have a slow network. While nobody waits for memory that costs nothing. While somebody does,

- a client that gets on by less than PROGRESS_BYTES in `request.read.stall.ms` is disconnected;
- and when the first of those who wait has done so for as long, the slowest of the clients that have had that much time
  is: one at each look, so that dripping a little all the time does not keep others out.

Who waits for memory itself is left alone. Who is muted by its quota is not, also with a whole request that waits: it
may be for an hour, and nothing of the request has been done.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import NamedTuple, Protocol

from sparklog_broker.network.memory import MemoryBudget

log = logging.getLogger(__name__)

LOG_S = 10.0
"""There is at most one line in this time."""


class HalfRequest(NamedTuple):
    """What has come of a request, and since when it gets on no more."""

    received_bytes: int
    held_bytes: int
    begun_s: float
    progress_s: float


class Sender(Protocol):
    """A connection."""

    @property
    def half_request(self) -> HalfRequest | None:
        """None: there is none that holds memory and could get on."""
        ...

    @property
    def peer_name(self) -> str: ...
    def close(self) -> None: ...


class HalfRequests:
    """Event-loop thread only. `cut_count`: how many connections have been closed."""

    def __init__(self, budget: MemoryBudget, stall_s: float) -> None:
        self.cut_count = 0
        self._budget = budget
        self._stall_s = stall_s
        self._first: object | None = None
        self._first_since = 0.0
        self._told_at: float | None = None
        self._untold = 0

    def look(self, senders: Iterable[Sender], now_s: float) -> None:
        """To be called a few times per `stall_s`, with all connections."""
        first = self._budget.first_waiting
        if first is not self._first:
            self._first, self._first_since = first, now_s
        if first is None:
            return
        holding = [(half, sender) for sender in senders if (half := sender.half_request) is not None]
        stalled = [one for one in holding if now_s - one[0].progress_s > self._stall_s]
        if not stalled and now_s - self._first_since > self._stall_s:
            slow = [one for one in holding if now_s - one[0].begun_s > self._stall_s]
            stalled = sorted(slow, key=lambda one: one[0].received_bytes / (now_s - one[0].begun_s))[:1]
        for half, sender in stalled:
            self._cut(half, sender, now_s)

    def _cut(self, half: HalfRequest, sender: Sender, now_s: float) -> None:
        self.cut_count += 1
        if self._told_at is None or now_s - self._told_at >= LOG_S:
            log.info(
                "%s: disconnected: others wait for memory (queued.max.request.bytes), and it holds %d bytes of a request "
                "that it does not finish: %d bytes in %.1f s; so were %d others",
                sender.peer_name,
                half.held_bytes,
                half.received_bytes,
                now_s - half.begun_s,
                self._untold,
            )
            self._told_at, self._untold = now_s, 0
        else:
            self._untold += 1
        sender.close()
