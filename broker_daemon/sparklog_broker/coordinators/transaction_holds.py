"""Coordinators pause while somebody takes a snapshot of several leaders, so that no transaction is half in it.

A hold ends by itself: whoever asked for it may have died. Who releases it is told which partitions were held all the
time; a partition that has got another leader meanwhile was not.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from msgspec import Struct, field

from sparklog.errors import ConcurrentTransactionsError

HOLDS_MAX = 100


class _Hold(Struct):
    timer: asyncio.TimerHandle
    partitions: dict[int, int] = field(default_factory=dict)


class TransactionHolds:
    """Event-loop thread only."""

    def __init__(self, loop: asyncio.AbstractEventLoop, partitions: Callable[[], dict[int, int]]) -> None:
        """`partitions`: those of the state topic that this broker coordinates at the moment, with leader epochs."""
        self._loop = loop
        self._partitions = partitions
        self._holds: dict[str, _Hold] = {}
        self._none = asyncio.Event()
        self._none.set()

    async def passed(self) -> None:
        """Returns when nothing is held; from then until its next await the caller can decide."""
        while self._holds:
            await self._none.wait()

    def begin(self, name: str, hold_s: float) -> None:
        """Raises ConcurrentTransactionsError."""
        if len(self._holds) >= HOLDS_MAX:
            raise ConcurrentTransactionsError(f"{HOLDS_MAX} snapshots are being taken: try again")
        self.end(name)
        self._holds[name] = _Hold(self._loop.call_later(hold_s, self.end, name))
        self._none.clear()

    def took_effect(self, name: str) -> dict[int, int]:
        """What is held now; nothing if the hold has ended already."""
        hold = self._holds.get(name)
        if hold is not None:
            hold.partitions = self._partitions()
        return {} if hold is None else dict(hold.partitions)

    def end(self, name: str) -> dict[int, int]:
        """What has been held all the time."""
        hold = self._holds.pop(name, None)
        if not self._holds:
            self._none.set()
        if hold is None:
            return {}
        hold.timer.cancel()
        now = self._partitions() if hold.partitions else {}
        return {number: epoch for number, epoch in hold.partitions.items() if now.get(number) == epoch}
