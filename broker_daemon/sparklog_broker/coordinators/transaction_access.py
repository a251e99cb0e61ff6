"""Asking the coordinator of a transaction, wherever it is: on this broker, or on another one."""

from __future__ import annotations

from collections.abc import Iterable

from sparklog.errors import CoordinatorNotAvailableError, NotCoordinatorError, SparklogError, UnknownServerError
from sparklog.types import TopicPartition
from sparklog_broker.coordinators.elsewhere import OtherBrokers
from sparklog_broker.coordinators.internal_topics import InternalTopic
from sparklog_broker.coordinators.transactions import TransactionCoordinator


class TransactionAccess:
    """Event-loop thread only."""

    def __init__(self, here: TransactionCoordinator, topic: InternalTopic, elsewhere: OtherBrokers | None) -> None:
        """`elsewhere` None: this broker is alone."""
        self._here = here
        self._topic = topic
        self._elsewhere = elsewhere

    async def add_partitions(
        self, transactional_id: str, producer_id: int, producer_epoch: int, partitions: Iterable[TopicPartition]
    ) -> None:
        """As `TransactionCoordinator.add_partitions`. Raises what it does, and CoordinatorNotAvailableError while
        nobody else can be asked."""
        wanted = tuple(partitions)
        try:
            await self._here.add_partitions(transactional_id, producer_id, producer_epoch, wanted)
        except NotCoordinatorError:
            await self._ask(transactional_id, producer_id, producer_epoch, wanted)

    async def stale(self, transactional_id: str, producer_id: int, producer_epoch: int) -> SparklogError:
        """What to tell a producer whose batch a partition has refused for its old epoch."""
        found = self._here.stale(transactional_id, producer_id, producer_epoch)
        if not isinstance(found, NotCoordinatorError):
            return found
        try:
            await self._ask(transactional_id, producer_id, producer_epoch, ())
        except SparklogError as e:
            return e
        return UnknownServerError(f"the coordinator of {transactional_id!r} knows of no newer epoch")

    async def owners(self, tp: TopicPartition) -> dict[int, str]:
        """Transactional ids, by producer id, whose open transactions include the partition, on all brokers. Raises
        CoordinatorLoadingError, CoordinatorNotAvailableError: who is not asked may have one."""
        found = self._here.owners(tp)
        if self._elsewhere is not None:
            for broker_id in self._elsewhere.ids():
                found |= await self._elsewhere.owners(broker_id, tp)
        return found

    async def _ask(
        self, transactional_id: str, producer_id: int, producer_epoch: int, partitions: tuple[TopicPartition, ...]
    ) -> None:
        assert self._elsewhere is not None, "a broker that is alone coordinates everything"
        leader = self._topic.leader_of(self._topic.partition_for(transactional_id))
        if leader not in self._elsewhere.ids():
            raise CoordinatorNotAvailableError(f"nobody coordinates {transactional_id!r} at the moment")
        try:
            await self._elsewhere.add_partitions(leader, transactional_id, producer_id, producer_epoch, partitions)
        except NotCoordinatorError as e:
            raise CoordinatorNotAvailableError(f"the coordinator of {transactional_id!r} is moving: {e}") from e
