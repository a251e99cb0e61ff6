"""Requests of a coordinator to other brokers, for markers, partitions of transactions, owners and offsets.

All of these requests but SCHEMA_RECORDS and STORE_REFUSED are idempotent, and are repeated after a failure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from sparklog.log.producers.whole_transactions import Commit
from sparklog.protocol.apis import Api
from sparklog.protocol.cluster_messages import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    CommitsFrom,
    FindTxnOwnersRequest,
    FindTxnOwnersResponse,
    HoldTransactionsRequest,
    HoldTransactionsResponse,
    ListCommitsRequest,
    ListCommitsResponse,
    TransactionMarker,
    TransactionPartitionName,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from sparklog.protocol.messages import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsResponse
from sparklog.protocol.refused_messages import StoreRefusedRequest, StoreRefusedResponse
from sparklog.protocol.schema_messages import SchemaRecordsRequest, SchemaRecordsResponse
from sparklog.replication.transactions import Marker
from sparklog.types import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP, TopicPartition
from sparklog_broker.cluster.broker_peers import BrokerPeers
from sparklog_broker.partitions.offset_snapshots import Extent

MARKERS_TIMEOUT_S = 35.0
"""Timeout of a request to write markers, in s. It is longer than a leader waits for its followers."""
ASK_TIMEOUT_S = 25.0
MARKERS_PER_REQUEST = PARTITIONS_PER_REQUEST = 10_000


class OtherBrokers:
    """Sends the requests. Event-loop thread only."""

    def __init__(self, peers: BrokerPeers, broker_id: int, registered: Callable[[], Iterable[int]]) -> None:
        """`registered`: returns the ids of all registered brokers."""
        self._peers = peers
        self.broker_id = broker_id
        self._registered = registered

    def ids(self) -> list[int]:
        """Return the ids of the other registered brokers."""
        return [b for b in self._registered() if b != self.broker_id]

    async def write_markers(
        self, leader: int, markers: Sequence[Marker], coordinator_epoch: int, started_ms: int = -1
    ) -> set[Marker]:
        """Write markers on the leader of their partitions, and return the written markers. `coordinator_epoch` and
        `started_ms` are as in WriteTxnMarkersRequest. Raises the errors of `BrokerPeers.request`."""
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
        """Add partitions to a transaction, and return the time at which it began. Raises the coordinator's error, and
        the errors of `BrokerPeers.request`."""
        request = AddPartitionsToTxnRequest(
            transactional_id, producer_id, producer_epoch, [TransactionPartitionName(*tp) for tp in partitions]
        )
        answer = await self._peers.request(
            coordinator, Api.ADD_PARTITIONS_TO_TXN, request, AddPartitionsToTxnResponse, timeout_s=ASK_TIMEOUT_S
        )
        return answer.started_ms

    async def extents(
        self, leader: int, partitions: Sequence[TopicPartition], isolation: int
    ) -> tuple[dict[TopicPartition, Extent], set[TopicPartition]]:
        """Return the first and end offsets of partitions, and the set of partitions with commits above their ends.
        Partitions for which the leader reports an error are left out. All first offsets are requested before the first
        end offset. Raises the errors of `BrokerPeers.request`."""
        behind: set[TopicPartition] = set()
        by_time: dict[int, dict[TopicPartition, int]] = {EARLIEST_TIMESTAMP: {}, LATEST_TIMESTAMP: {}}
        for timestamp_ms, offsets in by_time.items():
            for first in range(0, len(partitions), PARTITIONS_PER_REQUEST):
                piece = partitions[first : first + PARTITIONS_PER_REQUEST]
                request = ListOffsetsRequest([ListOffsetsPartition(*tp, timestamp_ms) for tp in piece], isolation)
                answer = await self._peers.request(
                    leader, Api.LIST_OFFSETS, request, ListOffsetsResponse, timeout_s=ASK_TIMEOUT_S
                )
                offsets |= {TopicPartition(r.topic, r.partition): r.offset for r in answer.results if not r.error_code}
                behind.update(TopicPartition(r.topic, r.partition) for r in answer.results if r.has_commits_behind)
        starts, ends = by_time.values()
        return {tp: Extent(starts[tp], end) for tp, end in ends.items() if tp in starts}, behind

    async def commits(
        self, leader: int, offsets: Mapping[TopicPartition, int], since_ms: int
    ) -> dict[TopicPartition, list[Commit]]:
        """Return the transactions committed above the offsets, or since `since_ms`; see `LogReader.commits`. Raises the
        leader's error, and the errors of `BrokerPeers.request`."""
        commits: dict[TopicPartition, list[Commit]] = {}
        entries = list(offsets.items())
        for first in range(0, len(entries), PARTITIONS_PER_REQUEST):
            piece = entries[first : first + PARTITIONS_PER_REQUEST]
            request = ListCommitsRequest(since_ms, [CommitsFrom(*tp, offset) for tp, offset in piece])
            answer = await self._peers.request(
                leader, Api.LIST_COMMITS, request, ListCommitsResponse, timeout_s=ASK_TIMEOUT_S
            )
            for part in answer.parts:
                if part.number < len(piece):
                    commit = Commit(
                        (part.producer_id, part.epoch), part.first_offset, part.last_offset, part.started_ms
                    )
                    commits.setdefault(piece[part.number][0], []).append(commit)
        return commits

    async def hold(self, broker_id: int, name: str, hold_s: float, *, release: bool = False) -> dict[int, int]:
        """Begin the hold `name` of the transactions that a broker coordinates, for at most `hold_s`, or end it
        (`release`). Returns the leader epochs by partition of the state topic. Raises the errors of
        `BrokerPeers.request`.
        """
        request = HoldTransactionsRequest(name, int(hold_s * 1000), release)
        answer = await self._peers.request(
            broker_id, Api.HOLD_TRANSACTIONS, request, HoldTransactionsResponse, timeout_s=hold_s
        )
        return dict(zip(answer.partitions, answer.leader_epochs, strict=False))

    async def schema_records(self, leader: int, request: SchemaRecordsRequest) -> SchemaRecordsResponse:
        """Exchange records with the schema registry's log at its leader. Raises the leader's error, and the errors of
        `BrokerPeers.request`."""
        return await self._peers.request(
            leader, Api.SCHEMA_RECORDS, request, SchemaRecordsResponse, timeout_s=MARKERS_TIMEOUT_S
        )

    async def store_refused(self, leader: int, request: StoreRefusedRequest) -> StoreRefusedResponse:
        """Append refused records at the leader of their partition. Raises the leader's error, and the errors of
        `BrokerPeers.request`."""
        return await self._peers.request(
            leader, Api.STORE_REFUSED, request, StoreRefusedResponse, timeout_s=MARKERS_TIMEOUT_S
        )

    async def owners(self, broker_id: int, tp: TopicPartition) -> dict[int, str]:
        """Return, by producer id, the transactional ids that a broker coordinates and whose open transactions include
        the partition. Raises the errors of `BrokerPeers.request`."""
        answer = await self._peers.request(
            broker_id, Api.FIND_TXN_OWNERS, FindTxnOwnersRequest(*tp), FindTxnOwnersResponse, timeout_s=ASK_TIMEOUT_S
        )
        return {owner.producer_id: owner.transactional_id for owner in answer.owners}
