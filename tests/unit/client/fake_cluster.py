"""Several fake brokers that share topics and logs; each leads some partitions, and names the leaders of the others."""

from __future__ import annotations

from typing import Any

from sparklog.client.net.cluster import forget
from sparklog.errors import FencedLeaderEpochError, NotLeaderError, OffsetNotAvailableError, UnknownLeaderEpochError
from sparklog.protocol import group_messages as groups
from sparklog.protocol import messages as m
from sparklog.protocol import topic_messages as topics
from sparklog.protocol.apis import Api
from tests.unit.client.fake_broker import FakeBroker


class FakeCluster:
    """Partition p of `events` is led by broker p % brokers, in epoch 0, until `move`. `tells_leaders`: answers name the
    leader (KIP-951). `preferred`: the replica that leaders send readers with a rack to, by partition."""

    def __init__(self, brokers: int, partitions: int) -> None:
        self.leaders = {p: (p % brokers, 0) for p in range(partitions)}
        self.tells_leaders = True
        self.preferred: dict[int, int] = {}
        self.replicas_fail = False
        self.epoch_ends: dict[int, int] = {}
        """The ends of past epochs, by partition."""
        self.gone: set[int] = set()
        """Brokers that have left, as the others say."""
        self.coordinators: dict[int, int] = {}
        """Whom each broker takes for the coordinator of everything."""
        self.brokers = [ClusterBroker(self, i, partitions) for i in range(brokers)]
        for broker in self.brokers[1:]:
            first = self.brokers[0]
            broker.logs, broker._appended, broker.topics = first.logs, first._appended, first.topics
            broker.log_start, broker.producers = first.log_start, first.producers

    @property
    def address(self) -> str:
        return ",".join(b.address for b in self.brokers)

    def move(self, partition: int, to: int) -> None:
        """Another broker leads the partition from now on, in the next epoch."""
        self.leaders[partition] = (to, self.leaders[partition][1] + 1)
        with self.brokers[0]._appended:
            self.brokers[0]._appended.notify_all()

    def endpoints(self) -> list[topics.BrokerEndpoint]:
        there = (b for b in self.brokers if b.broker_id not in self.gone)
        return [topics.BrokerEndpoint(b.broker_id, "127.0.0.1", b.port) for b in there]

    def count(self, api: Api) -> int:
        return sum(a is api for b in self.brokers for a, _ in b.requests)

    def close(self) -> None:
        forget(self.address)
        for broker in self.brokers:
            broker.close()


class ClusterBroker(FakeBroker):
    """One of them."""

    def __init__(self, cluster: FakeCluster, broker_id: int, partitions: int) -> None:
        self.cluster = cluster
        self.broker_id = broker_id
        super().__init__(partitions)

    def _answer(self, api: Api, message: Any, payload: bytearray, code: int) -> tuple[Any, bytes]:
        if api is Api.OFFSETS_FOR_LEADER_EPOCH:
            found = [self._epoch_end(p) for p in message.partitions]
            return m.OffsetsForLeaderEpochResponse(found), b""
        if api is Api.FIND_COORDINATOR and self.broker_id in self.cluster.coordinators:
            named = self.cluster.coordinators[self.broker_id]
            return groups.FindCoordinatorResponse(named, "127.0.0.1", self.cluster.brokers[named].port), b""
        answer, data = super()._answer(api, message, payload, code)
        if api is Api.LIST_OFFSETS and not message.all_at_once:
            for asked, result in zip(message.partitions, answer.results, strict=True):
                result.error_code = self._wrong(asked.partition, asked.leader_epoch)
        if api is Api.PRODUCE and answer is not None:
            answer.brokers = self.cluster.endpoints()
        if api is Api.METADATA:
            answer.brokers = self.cluster.endpoints()
            for state in answer.topics:
                for p in state.partitions:
                    p.leader, p.leader_epoch = self.cluster.leaders[p.partition]
        return answer, data

    def _refusal(self, api: Api, message: Any) -> int:
        asks_leader = api in (Api.DESCRIBE_PRODUCERS, Api.ABORT_TRANSACTION, Api.LOCATE_SEGMENTS)
        wrong = self._wrong(message.partition, -1) if asks_leader else 0
        return wrong or super()._refusal(api, message)

    def _delete(self, asked: m.DeleteRecordsPartition) -> m.DeleteRecordsResult:
        wrong = self._wrong(asked.partition, -1)
        return m.DeleteRecordsResult(asked.topic, asked.partition, wrong) if wrong else super()._delete(asked)

    def _epoch_end(self, asked: m.EpochPartition) -> m.EpochEndOffset:
        key = (asked.topic, asked.partition)
        wrong = self._wrong(asked.partition, asked.leader_epoch)
        if wrong:
            return m.EpochEndOffset(*key, wrong)
        return m.EpochEndOffset(*key, 0, asked.epoch, self.cluster.epoch_ends.get(asked.partition, self.end(key)))

    def _wrong(self, partition: int, leader_epoch: int) -> int:
        leader, epoch = self.cluster.leaders[partition]
        if leader != self.broker_id:
            return NotLeaderError.code
        if leader_epoch in (-1, epoch):
            return 0
        return FencedLeaderEpochError.code if leader_epoch < epoch else UnknownLeaderEpochError.code

    def _told(self, result: Any) -> None:
        if self.cluster.tells_leaders:
            result.leader_id, result.leader_epoch = self.cluster.leaders[result.partition]

    def _fetch(self, message: m.FetchRequest, code: int) -> tuple[m.FetchResponse, bytes]:
        codes, preferred = self._judged(message)
        if codes or preferred:
            message.max_wait_ms = 0
        answer, data = super()._fetch(message, code)
        codes, preferred = self._judged(message)  # it may have waited, and others lead by now
        kept, start = b"", 0
        for result in answer.results:
            piece = data[start : start + result.length_bytes]
            start += result.length_bytes
            if result.partition in codes:
                result.error_code, result.length_bytes = codes[result.partition], 0
                self._told(result)
            elif result.partition in preferred:
                result.preferred_replica, result.length_bytes = preferred[result.partition], 0
            else:
                kept += piece
        answer.brokers = self.cluster.endpoints()
        return answer, kept

    def _judged(self, message: m.FetchRequest) -> tuple[dict[int, int], dict[int, int]]:
        """Errors, and replicas to read from, by partition."""
        codes: dict[int, int] = {}
        preferred: dict[int, int] = {}
        for part in message.partitions:
            wrong = self._wrong(part.partition, part.leader_epoch)
            nearer = self.cluster.preferred.get(part.partition, -1)
            if message.rack and not part.leader_only and nearer >= 0 and nearer != self.broker_id and not wrong:
                preferred[part.partition] = nearer
            elif message.rack and not part.leader_only and nearer == self.broker_id:
                wrong = OffsetNotAvailableError.code if self.cluster.replicas_fail else 0
            if wrong:
                codes[part.partition] = wrong
        return codes, preferred

    def _produce(self, message: m.ProduceRequest, payload: bytearray, code: int) -> list[m.ProduceResult]:
        wrong = self._wrong(message.partitions[0].partition, -1)
        return super()._produce(message, payload, wrong or code)

    def _produce_partition(self, part: m.ProducePartition, data: bytearray, code: int) -> m.ProduceResult:
        result = super()._produce_partition(part, data, code)
        if code:
            self._told(result)
        return result
