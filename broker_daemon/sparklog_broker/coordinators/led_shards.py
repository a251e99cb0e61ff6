"""The shards of one internal topic, and which of them work: those whose partitions this broker leads. Event-loop thread
only.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar

from sparklog_broker.coordinators.shard import Shard

S = TypeVar("S", bound=Shard[Any, Any])


class LedShards(Generic[S]):
    """`make` makes the shard of a partition."""

    def __init__(self, make: Callable[[int], S]) -> None:
        self._make = make
        self.all: list[S] = []
        """By the partitions' numbers; empty before the start."""
        self._led: set[int] | None = None
        """None: all; there is no other broker."""

    @property
    def are_shared(self) -> bool:
        """Whether other brokers may lead some."""
        return self._led is not None

    @property
    def led(self) -> list[S]:
        """Those whose partitions this broker leads."""
        return [shard for shard in self.all if self.leads(shard.number)]

    def leads(self, number: int) -> bool:
        return self._led is None or number in self._led

    def start(self, count: int, *, shared: bool) -> None:
        """Makes as many, which do not work yet. `shared`: this broker leads those only that `follow` has said."""
        self.all = [self._make(number) for number in range(count)]
        self._led = set(self._led or ()) if shared else None
        for number in self._led or ():
            self._at(number)

    def follow(self, number: int, *, leads: bool) -> None:
        """This broker leads the partition, or no more: its shard begins to work, or ends."""
        self._led = self._led if self._led is not None else set()
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
        while number >= len(self.all):  # made by a broker with another number in its configuration
            self.all.append(self._make(len(self.all)))
        return self.all[number]
