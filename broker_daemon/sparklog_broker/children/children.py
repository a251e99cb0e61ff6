"""All child processes of the broker."""

from __future__ import annotations

import asyncio

from sparklog_broker.children.child import Child

CHILDREN_MAX = 16


class Children:
    """The children of one broker. Event-loop thread only."""

    def __init__(self) -> None:
        self._children: list[Child] = []

    def add(self, child: Child) -> None:
        """Add a child, which `start` will start."""
        assert len(self._children) < CHILDREN_MAX
        self._children.append(child)

    def start(self) -> None:
        """Start all children. The broker must serve already, because children are its clients."""
        for child in self._children:
            child.start()

    async def stop(self) -> None:
        """Stop all children at the same time. The broker must still serve, so that they can finish their requests."""
        await asyncio.gather(*(child.stop() for child in self._children))

    def count(self, name: str) -> int:
        """Return the number that the children have counted under a name."""
        return sum(child.counts.get(name, 0) for child in self._children)

    def restarts(self) -> dict[str, int]:
        """Return the number of restarts of each child by its name."""
        return {child.spec.name: child.restarts.count for child in self._children}
