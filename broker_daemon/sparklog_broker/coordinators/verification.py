"""Verification, before the append of a transactional batch, that it belongs to an open transaction (KIP-890).

Before a producer's first batch in a partition, the log sets a guard, and the coordinator durably adds the partition to
the transaction. A marker that arrives in between voids the guard, and the log then refuses the batch.
"""

from __future__ import annotations

from collections.abc import Sequence

from sparklog.errors import InvalidProducerEpochError, SparklogError
from sparklog.format.batch import ATTRIBUTE_TRANSACTIONAL, BatchHeader, decode_header
from sparklog.log.producers.states import Guard
from sparklog.metadata.mirror_settings import check_writable
from sparklog.types import TopicPartition
from sparklog_broker.coordinators.internal_topics import check_not_internal
from sparklog_broker.coordinators.transaction_access import TransactionAccess
from sparklog_broker.partitions.partitions import Partitions

Verified = Guard | SparklogError
"""The guard for a partition's batches, or the error that refuses them. `verify` returns no entry for batches that need
no check."""


class Verification:
    """Verifies the batches of requests. Event-loop thread only."""

    def __init__(self, partitions: Partitions, transactions: TransactionAccess) -> None:
        self._partitions = partitions
        self._transactions = transactions

    async def verify(
        self, transactional_id: str, pieces: Sequence[tuple[TopicPartition, memoryview]]
    ) -> dict[int, Verified]:
        """Verify `pieces`, the partitions and batches of one producer. Returns guards and errors by position in
        `pieces`."""
        verified: dict[int, Verified] = {}
        by_producer: dict[tuple[int, int], list[int]] = {}
        for i, (tp, piece) in enumerate(pieces):
            try:
                check_not_internal(tp.topic, "written to")
                topic = self._partitions.topics.get(tp.topic)
                if topic is not None:
                    check_writable(topic.name, topic.configs, by_mirror=False)
                header = decode_header(piece)
                if header.attributes & ATTRIBUTE_TRANSACTIONAL:
                    guard = self._partitions.get(*tp).log.appender.begin_verification(
                        header.producer_id, header.producer_epoch
                    )
                    if guard is not None:
                        verified[i] = guard
                        by_producer.setdefault((header.producer_id, header.producer_epoch), []).append(i)
            except InvalidProducerEpochError:
                verified[i] = await self._transactions.stale(
                    transactional_id, header.producer_id, header.producer_epoch
                )
            except SparklogError as e:
                verified[i] = e
        for (producer_id, producer_epoch), positions in by_producer.items():
            partitions = [pieces[i][0] for i in positions]
            try:
                started_ms = await self._transactions.add_partitions(
                    transactional_id, producer_id, producer_epoch, partitions
                )
            except SparklogError as e:
                verified.update(dict.fromkeys(positions, e))
            else:
                for i in positions:
                    begun = verified[i]
                    if isinstance(begun, Guard):
                        begun.started_ms = started_ms
        return verified

    async def refusal(self, transactional_id: str, piece: memoryview) -> SparklogError:
        """Return the error for a batch that the log has refused for its old epoch."""
        header: BatchHeader = decode_header(piece)
        return await self._transactions.stale(transactional_id, header.producer_id, header.producer_epoch)
