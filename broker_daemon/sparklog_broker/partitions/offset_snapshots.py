"""Where partitions began and ended when somebody first asked under a name, so that all who ask under it get the same
answer.

Spark fixes the tasks of a batch DataFrame once, and runs them again for each action on it. The tasks of one action,
which know of each other nothing but the action's id, agree in this way on where it ends. Only in memory: after a
restart the next who asks fixes the answer anew.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, NamedTuple

from sparklog.types import TopicPartition

PARTITIONS_MAX = 1_000_000
"""Of all snapshots together; those that were asked for longest ago go first."""


class Extent(NamedTuple):
    """Offsets [start, end)."""

    start: int
    end: int


Snapshot = dict[TopicPartition, Extent]


class OffsetSnapshots:
    """See the module. Event-loop thread only."""

    def __init__(self, partitions_max: int = PARTITIONS_MAX) -> None:
        self._partitions_max = partitions_max
        self._partitions = 0
        self._by_name: OrderedDict[str, Snapshot] = OrderedDict()
        self._under_way: dict[str, asyncio.Task[Snapshot]] = {}

    async def of(self, name: str, take: Callable[[], Coroutine[Any, Any, Snapshot]]) -> Snapshot:
        """The snapshot of that name; the first one to ask has it taken, who asks meanwhile waits for it. Raises what
        `take` does; then the next one has it taken."""
        found = self._by_name.get(name)
        if found is not None:
            self._by_name.move_to_end(name)
            return found
        task = self._under_way.get(name)
        if task is None:
            task = self._under_way[name] = asyncio.get_running_loop().create_task(take())
            task.add_done_callback(partial(self._taken, name))
        return await asyncio.shield(task)  # not cancelled with the first who asked: others wait for it

    def _taken(self, name: str, task: asyncio.Task[Snapshot]) -> None:
        del self._under_way[name]
        if task.cancelled() or task.exception() is not None:
            return
        found = self._by_name[name] = task.result()
        self._partitions += max(1, len(found))
        while self._partitions > self._partitions_max and len(self._by_name) > 1:
            self._partitions -= max(1, len(self._by_name.popitem(last=False)[1]))
