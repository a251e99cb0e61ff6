"""The consumer's methods for its group: they add, position and remove partitions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from sparklog.client.consumer.fetcher import RESET_TO, Fetcher
from sparklog.client.consumer.position import Position
from sparklog.errors import SparklogError
from sparklog.types import OffsetAndMetadata, TopicPartition


class GroupReader:
    """The consumer as `group_consumer.Reader`. It refers to the consumer only weakly, because the thread that sends
    heartbeats refers to this object. `new` creates a position without an offset, `replace` sets all positions."""

    def __init__(
        self,
        fetcher: Fetcher,
        reset: str,
        new: Callable[[TopicPartition], Position],
        replace: Callable[[dict[TopicPartition, Position]], None],
    ) -> None:
        self._fetcher = fetcher
        self._reset = reset
        self._new = new
        self._replace = replace

    def add_partitions(self, partitions: Iterable[TopicPartition]) -> None:
        positions = dict(self._fetcher.positions)
        for tp in partitions:
            new = positions[tp] = self._new(tp)
            new.waiting = True
        self._replace(positions)

    def start_at(self, offsets: Mapping[TopicPartition, OffsetAndMetadata | None]) -> None:
        with self._fetcher.changed:
            for tp, offset in offsets.items():
                position = self._fetcher.positions.get(tp)
                if position is not None and position.waiting:
                    position.begin_at(*((None, -1) if offset is None else (offset.offset, offset.leader_epoch)))
                    position.reset_to = RESET_TO.get(self._reset)
                    position.waiting = False
            self._fetcher.wake()

    def start_again(self, after: type[SparklogError]) -> None:
        """Let partitions that have failed with an error of the class `after` wait for `start_at` again."""
        with self._fetcher.changed:
            for position in self._fetcher.positions.values():
                if isinstance(position.error, after):
                    position.error, position.waiting = None, True

    def drop_partitions(self, partitions: Iterable[TopicPartition]) -> None:
        gone = set(partitions)
        with self._fetcher.changed:
            remaining = {tp: p for tp, p in self._fetcher.positions.items() if tp not in gone}
        self._replace(remaining)

    def consumed(self) -> dict[TopicPartition, OffsetAndMetadata]:
        with self._fetcher.changed:
            return {
                tp: OffsetAndMetadata(c, leader_epoch=p.consumed_epoch)
                for tp, p in self._fetcher.positions.items()
                if p.is_polled and (c := p.consumed) is not None
            }

    def unstarted(self) -> list[TopicPartition]:
        with self._fetcher.changed:
            return [tp for tp, p in self._fetcher.positions.items() if p.waiting]

    def wake(self) -> None:
        self._fetcher.wake()
