"""Named snapshots of partitions' offsets: all requests with the same name get the same reply.

Spark plans the tasks of a batch DataFrame once, and runs them again for each action on it. The tasks of one action
share only the action's id. They use it as the snapshot's name, to agree on the end of their input. Snapshots are in
memory only; after a restart the next request takes a new one.
"""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict
from collections.abc import Callable, Coroutine, Hashable
from functools import partial
from operator import itemgetter
from typing import Any, NamedTuple

from sparklog.types import TopicPartition

PARTITIONS_MAX = 1_000_000
"""Largest number of partitions in all snapshots together."""


class Extent(NamedTuple):
    """Offsets [start, end)."""

    start: int
    end: int


Snapshot = dict[TopicPartition, Extent]


class OffsetSnapshots:
    """Snapshots by owner and name.

    An owner cannot see the snapshots of other owners. If there are too many partitions, the owner with the most loses
    its least recently used snapshots. Event-loop thread only.
    """

    def __init__(self, partitions_max: int = PARTITIONS_MAX) -> None:
        self._partitions_max = partitions_max
        self._partitions: Counter[Hashable] = Counter()
        """Number of partitions by owner; each snapshot counts as at least one."""
        self._by_owner: dict[Hashable, OrderedDict[str, Snapshot]] = {}
        self._under_way: dict[tuple[Hashable, str], asyncio.Task[Snapshot]] = {}

    async def of(self, owner: Hashable, name: str, take: Callable[[], Coroutine[Any, Any, Snapshot]]) -> Snapshot:
        """Return the owner's snapshot with this name. The first request runs `take`; concurrent requests wait for it.
        Raises the error of `take`, after which the next request runs it again.
        """
        own = self._by_owner.get(owner)
        if own is not None and name in own:
            own.move_to_end(name)
            return own[name]
        task = self._under_way.get((owner, name))
        if task is None:
            task = self._under_way[owner, name] = asyncio.get_running_loop().create_task(take())
            task.add_done_callback(partial(self._on_taken, owner, name))
        return await asyncio.shield(task)  # shielded: other requests may wait for it

    def _on_taken(self, owner: Hashable, name: str, task: asyncio.Task[Snapshot]) -> None:
        del self._under_way[owner, name]
        if task.cancelled() or task.exception() is not None:
            return
        own = self._by_owner.setdefault(owner, OrderedDict())
        snapshot = own[name] = task.result()
        self._partitions[owner] += max(1, len(snapshot))
        while self._partitions.total() > self._partitions_max and self._forget_one(but_for=own):
            pass

    def _forget_one(self, *, but_for: OrderedDict[str, Snapshot]) -> bool:
        """Remove the least recently used snapshot of the owner with the most partitions. The newest snapshot of
        `but_for` stays. Returns False if no other snapshot is left.
        """
        sizes = ((n, o) for o, n in self._partitions.items() if self._by_owner[o] is not but_for or len(but_for) > 1)
        _, owner = max(sizes, key=itemgetter(0), default=(0, None))
        if owner is None:
            return False
        own = self._by_owner[owner]
        _, snapshot = own.popitem(last=False)
        self._partitions[owner] -= max(1, len(snapshot))
        if not own:
            del self._by_owner[owner], self._partitions[owner]
        return True
