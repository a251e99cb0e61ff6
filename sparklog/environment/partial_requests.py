"""Disconnection of clients that send a request slowly while other connections wait for memory.

The received part of a request keeps its memory (`MemoryBudget`) until the rest arrives. `request.read.timeout.ms` is
long, because a client can have a slow network. This is harmless while no connection waits for memory. While one waits,

- a client that sends less than PROGRESS_BYTES in `request.read.stall.ms` is disconnected;
- once the first waiting connection has waited for `request.read.stall.ms`, each check disconnects the slowest client
  among those whose requests began at least this time ago. A steady trickle of bytes thus cannot keep the memory.

A connection that waits for memory itself is exempt. A client that its quota has muted is not exempt, even with a
complete request: the mute can last an hour, and the request has cost no work yet.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import NamedTuple, Protocol

from sparklog.environment.memory_budget import MemoryBudget

log = logging.getLogger(__name__)

LOG_S = 10.0
"""Shortest interval of log lines about disconnections, in s."""


class PartialRequest(NamedTuple):
    """The received part of a request, and the times of its begin and its last progress."""

    received_bytes: int
    held_bytes: int
    begun_s: float
    progress_s: float


class Sender(Protocol):
    """The methods of a connection that this module uses."""

    @property
    def partial_request(self) -> PartialRequest | None:
        """The connection's incomplete request. None if it holds no memory, or if the peer cannot continue it now."""
        ...

    @property
    def peer_name(self) -> str: ...
    def close(self) -> None: ...


class PartialRequests:
    """Disconnects slow senders. `cut_count`: number of connections closed so far. Event-loop thread only."""

    def __init__(
        self,
        budget: MemoryBudget,
        stall_s: float,
        budget_name: str = "queued.max.request.bytes",
        *,
        short_from_bytes: int | None = None,
    ) -> None:
        """`budget_name`: name of the budget in the log. `short_from_bytes`: used memory in bytes beyond which clients
        without progress are disconnected though no connection waits; None: they are not."""
        self.cut_count = 0
        self._budget_name = budget_name
        self._budget = budget
        self._short_from_bytes = short_from_bytes
        self._stall_s = stall_s
        self._first: object | None = None
        self._first_since = 0.0
        self._logged_at_s: float | None = None
        self._unlogged = 0

    @property
    def is_short(self) -> bool:
        """True if a connection waits for memory, or more than `short_from_bytes` are used."""
        is_beyond = self._short_from_bytes is not None and self._budget.used_bytes > self._short_from_bytes
        return is_beyond or self._budget.first_waiting is not None

    def check(self, senders: Iterable[Sender], now_s: float) -> None:
        """Disconnect slow senders, if memory is short. Called with all connections a few times per `stall_s`."""
        first = self._budget.first_waiting
        if first is not self._first:
            self._first, self._first_since = first, now_s
        if not self.is_short:
            return
        holding = [(part, sender) for sender in senders if (part := sender.partial_request) is not None]
        stalled = [one for one in holding if now_s - one[0].progress_s > self._stall_s]
        if not stalled and first is not None and now_s - self._first_since > self._stall_s:
            slow = [one for one in holding if now_s - one[0].begun_s > self._stall_s]
            stalled = sorted(slow, key=lambda one: one[0].received_bytes / (now_s - one[0].begun_s))[:1]
        for part, sender in stalled:
            self._cut(part, sender, now_s)

    def _cut(self, part: PartialRequest, sender: Sender, now_s: float) -> None:
        self.cut_count += 1
        if self._logged_at_s is None or now_s - self._logged_at_s >= LOG_S:
            log.info(
                "%s: disconnected: memory is short (%s), and this client holds "
                "%d bytes for an incomplete request, of which it sent %d bytes in %.1f s; %d other clients were "
                "disconnected for the same reason",
                sender.peer_name,
                self._budget_name,
                part.held_bytes,
                part.received_bytes,
                now_s - part.begun_s,
                self._unlogged,
            )
            self._logged_at_s, self._unlogged = now_s, 0
        else:
            self._unlogged += 1
        sender.close()
