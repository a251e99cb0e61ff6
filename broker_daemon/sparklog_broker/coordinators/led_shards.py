"""The shards of one internal topic. A shard works while this broker leads its partition. Event-loop thread only."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from sparklog_broker.coordinators.shard import Shard

BEGIN_S = 5.0
"""Longest wait, in s, of a topic's first request until the new topic's shards are loaded."""

S = TypeVar("S", bound=Shard[Any, Any])


class LedShards(Generic[S]):
    """All shards of a topic. `make` creates the shard of a partition."""

    def __init__(self, make: Callable[[int], S]) -> None:
        self._make = make
        self.all: list[S] = []
        """The shards by partition number; empty before the start."""
        self._led: set[int] = set()

    @property
    def led(self) -> list[S]:
        """The shards of the partitions that this broker leads now."""
        return [shard for shard in self.all if self.leads(shard.number)]

    def leads(self, number: int) -> bool:
        return number in self._led

    async def until_loaded(self, timeout_s: float) -> None:
        """Wait until the shards of led partitions have loaded once, for at most `timeout_s`."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await asyncio.gather(*(shard.loaded() for shard in self.led))

    def start(self, count: int) -> None:
        """Create the shards of partitions 0 to `count` - 1, and up to the highest led partition. Load no shard yet."""
        self.all = [self._make(number) for number in range(count)]
        for number in self._led:
            self._at(number)

    def follow(self, number: int, *, leads: bool) -> None:
        """Note that this broker leads a partition (`leads`), or no longer does. After `start`, load or park the
        partition's shard if this is new."""
        if leads == (number in self._led):
            return
        (self._led.add if leads else self._led.discard)(number)
        if not self.all:
            return  # before the start
        if leads:
            self._at(number).load()
        else:
            self._at(number).park()

    def _at(self, number: int) -> S:
        while number >= len(self.all):  # the topic's creator had a larger number in its configuration
            self.all.append(self._make(len(self.all)))
        return self.all[number]
