"""What a broker of a cluster asks of the others: markers, partitions of a transaction, owners; where partitions end.

A request that fails leaves nothing half-done: all of them may be repeated, and are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from sparklog.protocol.cluster_messages import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    FindTxnOwnersRequest,
    FindTxnOwnersResponse,
    HoldTransactionsRequest,
    HoldTransactionsResponse,
    TransactionMarker,
    TransactionPartitionName,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from sparklog.protocol.messages import Api, ListOffsetsPartition, ListOffsetsRequest, ListOffsetsResponse
from sparklog.replication.transactions import Marker
from sparklog.types import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP, TopicPartition
from sparklog_broker.cluster.broker_peers import BrokerPeers
from sparklog_broker.partitions.offset_snapshots import Extent

MARKERS_TIMEOUT_S = 35.0
"""More than a leader waits for its followers."""
ASK_TIMEOUT_S = 25.0
MARKERS_PER_REQUEST = PARTITIONS_PER_REQUEST = 10_000


class OtherBrokers:
    """Event-loop thread only."""

    def __init__(self, peers: BrokerPeers, broker_id: int, registered: Callable[[], Iterable[int]]) -> None:
        """`registered`: the ids of all brokers that are there."""
        self._peers = peers
        self.broker_id = broker_id
        self._registered = registered

    def ids(self) -> list[int]:
        """Who is there, but for this broker."""
        return [b for b in self._registered() if b != self.broker_id]

    async def write_markers(
        self, leader: int, markers: Sequence[Marker], coordinator_epoch: int, started_ms: int = -1
    ) -> set[Marker]:
        """Those that are in now. Raises as `BrokerPeers.request`."""
        written: set[Marker] = set()
        for first in range(0, len(markers), MARKERS_PER_REQUEST):
            piece = markers[first : first + MARKERS_PER_REQUEST]
            request = WriteTxnMarkersRequest(
                coordinator_epoch,
                [
                    TransactionMarker(*m.partition, m.producer_id, m.producer_epoch, m.commit, m.keeps_epoch)
                    for m in piece
                ],
                started_ms,
            )
            answer = await self._peers.request(
                leader, Api.WRITE_TXN_MARKERS, request, WriteTxnMarkersResponse, timeout_s=MARKERS_TIMEOUT_S
            )
            failed = set(answer.failed)
            written.update(m for i, m in enumerate(piece) if i not in failed)
        return written

    async def add_partitions(
        self,
        coordinator: int,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        partitions: Iterable[TopicPartition],
    ) -> int:
        """Time at which the transaction began. Raises what the coordinator does, and as `BrokerPeers.request`."""
        request = AddPartitionsToTxnRequest(
            transactional_id, producer_id, producer_epoch, [TransactionPartitionName(*tp) for tp in partitions]
        )
        answer = await self._peers.request(
            coordinator, Api.ADD_PARTITIONS_TO_TXN, request, AddPartitionsToTxnResponse, timeout_s=ASK_TIMEOUT_S
        )
        return answer.started_ms

    async def extents(
        self, leader: int, partitions: Sequence[TopicPartition], isolation: int
    ) -> dict[TopicPartition, Extent]:
        """Where partitions begin and end, at one moment each; without those that their leader cannot tell. Raises as
        `BrokerPeers.request`."""
        found: dict[int, dict[TopicPartition, int]] = {EARLIEST_TIMESTAMP: {}, LATEST_TIMESTAMP: {}}
        for timestamp_ms, offsets in found.items():
            for first in range(0, len(partitions), PARTITIONS_PER_REQUEST):
                piece = partitions[first : first + PARTITIONS_PER_REQUEST]
                request = ListOffsetsRequest([ListOffsetsPartition(*tp, timestamp_ms) for tp in piece], isolation)
                answer = await self._peers.request(
                    leader, Api.LIST_OFFSETS, request, ListOffsetsResponse, timeout_s=ASK_TIMEOUT_S
                )
                offsets |= {TopicPartition(r.topic, r.partition): r.offset for r in answer.results if not r.error_code}
        starts, ends = found.values()
        return {tp: Extent(starts[tp], end) for tp, end in ends.items() if tp in starts}

    async def hold(self, broker_id: int, name: str, hold_s: float, *, release: bool = False) -> dict[int, int]:
        """Holds the transactions that a broker coordinates, or releases them: leader epochs by partition of the state
        topic. Raises as `BrokerPeers.request`."""
        request = HoldTransactionsRequest(name, int(hold_s * 1000), release)
        answer = await self._peers.request(
            broker_id, Api.HOLD_TRANSACTIONS, request, HoldTransactionsResponse, timeout_s=hold_s
        )
        return dict(zip(answer.partitions, answer.leader_epochs, strict=False))

    async def owners(self, broker_id: int, tp: TopicPartition) -> dict[int, str]:
        """Transactional ids by producer id, as far as the broker coordinates them. Raises as `BrokerPeers.request`."""
        answer = await self._peers.request(
            broker_id, Api.FIND_TXN_OWNERS, FindTxnOwnersRequest(*tp), FindTxnOwnersResponse, timeout_s=ASK_TIMEOUT_S
        )
        return {owner.producer_id: owner.transactional_id for owner in answer.owners}
