"""Where partitions began and ended when somebody first asked under a name, so that all who ask under it get the same
answer.

Spark fixes the tasks of a batch DataFrame once, and runs them again for each action on it. The tasks of one action,
which know of each other nothing but the action's id, agree in this way on where it ends. Only in memory: after a
restart the next who asks fixes the answer anew.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import NamedTuple

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

    def of(self, name: str, take: Callable[[], Iterable[tuple[TopicPartition, Extent]]]) -> Snapshot:
        """The snapshot of that name; the first one to ask has it taken, all partitions at one moment."""
        found = self._by_name.get(name)
        if found is None:
            found = self._by_name[name] = dict(take())
            self._partitions += max(1, len(found))
        self._by_name.move_to_end(name)
        while self._partitions > self._partitions_max and len(self._by_name) > 1:
            self._partitions -= max(1, len(self._by_name.popitem(last=False)[1]))
        return found
