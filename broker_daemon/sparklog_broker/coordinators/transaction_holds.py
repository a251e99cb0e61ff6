"""Holds of a transaction coordinator. They prevent decisions while a broker takes a snapshot of several leaders. The
snapshot then has each transaction as a whole or not at all.

A hold ends after its time, because the requesting broker may have died. The release returns the partitions that were
held without interruption: the partitions whose leader has not changed.
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
    """The holds by name. Event-loop thread only."""

    def __init__(self, loop: asyncio.AbstractEventLoop, partitions: Callable[[], dict[int, int]]) -> None:
        """`partitions`: returns the partitions of the state topic that this broker coordinates now, with their leader
        epochs."""
        self._loop = loop
        self._partitions = partitions
        self._holds: dict[str, _Hold] = {}
        self._none = asyncio.Event()
        self._none.set()

    async def passed(self) -> None:
        """Wait until there is no hold. The caller is then allowed to decide transactions until its next await."""
        while self._holds:
            await self._none.wait()

    def begin(self, name: str, hold_s: float) -> None:
        """Begin a hold, which ends by itself after `hold_s`. It replaces a hold of the same name. Raises
        ConcurrentTransactionsError if there are HOLDS_MAX holds."""
        if len(self._holds) >= HOLDS_MAX:
            raise ConcurrentTransactionsError(f"{HOLDS_MAX} snapshots are being taken: try again")
        self.end(name)
        self._holds[name] = _Hold(self._loop.call_later(hold_s, self.end, name))
        self._none.clear()

    def took_effect(self, name: str) -> dict[int, int]:
        """Record the partitions that are held now, and return them; empty if the hold has ended already."""
        hold = self._holds.get(name)
        if hold is not None:
            hold.partitions = self._partitions()
        return {} if hold is None else dict(hold.partitions)

    def end(self, name: str) -> dict[int, int]:
        """End a hold. Returns the leader epochs of the partitions that were held without interruption; empty if the
        hold has ended already."""
        hold = self._holds.pop(name, None)
        if not self._holds:
            self._none.set()
        if hold is None:
            return {}
        hold.timer.cancel()
        now = self._partitions() if hold.partitions else {}
        return {number: epoch for number, epoch in hold.partitions.items() if now.get(number) == epoch}
