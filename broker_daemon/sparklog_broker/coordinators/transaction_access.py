"""Requests to the coordinator of a transaction, on this broker or another."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from itertools import count
from typing import TypeVar

from sparklog.errors import (
    CoordinatorNotAvailableError,
    NotCoordinatorError,
    SparklogError,
    UnknownServerError,
)
from sparklog.types import TopicPartition
from sparklog_broker.coordinators.internal_topics import InternalTopic
from sparklog_broker.coordinators.other_brokers import OtherBrokers
from sparklog_broker.coordinators.transactions import TransactionCoordinator

T = TypeVar("T")

HOLD_S = 3.0
"""Longest hold of a coordinator, in s. A hold ends by itself, because the requesting broker may have died."""
HOLD_ATTEMPTS = 8
HOLD_BACKOFF_S, HOLD_BACKOFF_S_MAX = 0.05, 2.0


class TransactionAccess:
    """Sends requests to the coordinator of a transaction. Event-loop thread only."""

    def __init__(self, here: TransactionCoordinator, topic: InternalTopic, other_brokers: OtherBrokers) -> None:
        self._here = here
        self._topic = topic
        self._other_brokers = other_brokers
        self._names = count(1)

    async def add_partitions(
        self, transactional_id: str, producer_id: int, producer_epoch: int, partitions: Iterable[TopicPartition]
    ) -> int:
        """Add partitions like `TransactionCoordinator.add_partitions`. Raises its errors except NotCoordinatorError,
        CoordinatorNotAvailableError while the coordinator changes, and the errors of `BrokerPeers.request`."""
        added = tuple(partitions)
        try:
            return await self._here.add_partitions(transactional_id, producer_id, producer_epoch, added)
        except NotCoordinatorError:
            return await self._ask(transactional_id, producer_id, producer_epoch, added)

    async def stale(self, transactional_id: str, producer_id: int, producer_epoch: int) -> SparklogError:
        """Return the error for a producer whose batch a partition has refused for its old epoch. The coordinator knows
        the reason; if it cannot be reached, return that error."""
        stale = self._here.stale(transactional_id, producer_id, producer_epoch)
        if not isinstance(stale, NotCoordinatorError):
            return stale
        try:
            await self._ask(transactional_id, producer_id, producer_epoch, ())
        except SparklogError as e:
            return e
        return UnknownServerError(f"the coordinator of {transactional_id!r} has no newer epoch")

    async def owners(self, tp: TopicPartition) -> dict[int, str]:
        """Return, by producer id, the transactional ids of all open transactions that include the partition, from all
        brokers. Raises CoordinatorLoadingError, and the errors of `BrokerPeers.request` if a coordinator cannot be
        reached, because it may have such transactions.
        """
        owners = self._here.owners(tp)
        for broker_id in self._other_brokers.ids():
            owners |= await self._other_brokers.owners(broker_id, tp)
        return owners

    async def with_decisions_on_hold(self, work: Callable[[], Awaitable[T]]) -> T:
        """Run `work` while no transaction is partly visible, and return its result.

        All coordinators are held: they decide nothing during the work, and their earlier decisions are visible in all
        partitions before the work. `work` runs again if a hold was interrupted. Raises the errors of
        `work`, and CoordinatorNotAvailableError if some coordinators cannot be held.
        """
        other_brokers = self._other_brokers
        if not self._topic.exists:
            return await work()
        last = "some transactions could not be held"
        for attempt in range(HOLD_ATTEMPTS):
            name = f"{other_brokers.broker_id}/{next(self._names)}"
            brokers = [other_brokers.broker_id, *other_brokers.ids()]
            outcomes = await asyncio.gather(*(self._hold(b, name) for b in brokers), return_exceptions=True)
            held: dict[int, int] = {}
            for outcome in outcomes:
                held |= outcome if isinstance(outcome, dict) else {}
            try:
                result = await work() if len(held) >= self._topic.partitions else None
            finally:
                ended = await asyncio.gather(
                    *(self._hold(b, name, release=True) for b in brokers), return_exceptions=True
                )
            still: dict[int, int] = {}
            for outcome in ended:
                still |= outcome if isinstance(outcome, dict) else {}
            if result is not None and still == held:
                return result
            last = next((str(o) for o in [*outcomes, *ended] if isinstance(o, BaseException)), last)
            await asyncio.sleep(min(HOLD_BACKOFF_S * 2**attempt, HOLD_BACKOFF_S_MAX))
        raise CoordinatorNotAvailableError(f"the coordinators of transactions are changing: {last}")

    async def _hold(self, broker_id: int, name: str, *, release: bool = False) -> dict[int, int]:
        if broker_id != self._other_brokers.broker_id:
            return await self._other_brokers.hold(broker_id, name, HOLD_S, release=release)
        return self._here.release(name) if release else await self._here.hold(name, HOLD_S)

    async def _ask(
        self, transactional_id: str, producer_id: int, producer_epoch: int, partitions: tuple[TopicPartition, ...]
    ) -> int:
        leader = self._topic.leader_of(self._topic.partition_for(transactional_id))
        if leader not in self._other_brokers.ids():
            raise CoordinatorNotAvailableError(
                f"transactional id {transactional_id!r} has no coordinator now: try again"
            )
        try:
            return await self._other_brokers.add_partitions(
                leader, transactional_id, producer_id, producer_epoch, partitions
            )
        except NotCoordinatorError as e:
            raise CoordinatorNotAvailableError(f"the coordinator of {transactional_id!r} is moving: {e}") from e
