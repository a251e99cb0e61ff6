"""Three replicas of one partition without sockets or threads: the rules, the answers of leaders, and the effects of
followers on real logs. The test plays the parts between them in a broker (connections, I/O threads, the controller)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

from msgspec.structs import replace
from sparklog_broker.cluster.follower_side.follower_log import carry_out
from sparklog_broker.cluster.follower_side.replica_fetcher import event_of, gaps_below
from sparklog_broker.cluster.leader_side.replica_server import ReplicaServer
from sparklog_broker.cluster.replica import ClusterReplica
from sparklog_broker.counters.traffic import Traffic
from sparklog_broker.partitions.partition import Partition
from sparklog_broker.partitions.purgatory import Purgatory

from sparklog.errors import NotLeaderError, SparklogError, StorageError
from sparklog.format.batch import BatchHeader
from sparklog.log.housekeeping.cleaner import CompactionResult
from sparklog.log.partition_log import PartitionLog
from sparklog.protocol.cluster_messages import ReplicaFetchPartition, ReplicaFetchRequest, ReplicaFetchResponse
from sparklog.replication.cluster_image import PartitionImage
from sparklog.replication.replica.follower import Follower
from sparklog.replication.replica.leader import Leader
from sparklog.replication.replica.model import (
    Fetch,
    FetchFailure,
    FollowerEvent,
    NewImage,
    ProposeIsr,
    RefreshMetadata,
    ReplicaConfig,
    Tick,
)
from sparklog.types import TopicPartition
from tests.support.compaction import compact, open_keyed
from tests.support.logs import LimitedFiles

KEY = TopicPartition("events", 0)
BROKERS = (1, 2, 3)
LIVES = {b: 10 * b for b in BROKERS}
"""Broker epochs."""
LAG_MS = 1_000
OpenLog = Callable[..., PartitionLog]


class Node:
    """One broker with its replica. `ReplicaHost` of the rules, and `Partitions` of the answers."""

    def __init__(self, group: Group, broker_id: int, log: PartitionLog) -> None:
        self.group, self.broker_id, self.log = group, broker_id, log
        self.server = ReplicaServer(self, self.now_ms, 1 << 30)  # type: ignore[arg-type]
        self.replica = ClusterReplica(KEY, broker_id, group.image, ReplicaConfig(lag_max_ms=LAG_MS), self)
        purgatory = Purgatory(100)
        self.partition = Partition(
            KEY, "0" * 32, replicas=self.replica, thread=0, fetches=purgatory, produces=purgatory,
            traffic=Traffic(10).of("events"), log=log,
        )  # fmt: skip
        self.replica.on_high_watermark = self.partition.on_replicated
        self.follower: Follower | None = None
        self.failures: list[str] = []
        """Changes that could not be applied."""
        self._next: Fetch | None = None
        self._later: list[Any] = []
        """Effects of a failure, at its retry."""

    # --- ReplicaHost, Partitions

    def now_ms(self) -> int:
        return self.group.time_ms

    def last_fetch_ms(self, broker_id: int) -> int:
        return self.server.last_fetch_ms(broker_id)

    def propose(self, replica: ClusterReplica, proposal: ProposeIsr) -> None:
        self.group.proposals.append(proposal)

    def on_role_lost(self, key: TopicPartition) -> None:
        pass

    def on_event(self, key: TopicPartition) -> None:
        pass

    def on_new_data(self, key: TopicPartition) -> None:
        self.server.on_new_data(key)

    def get(self, topic: str, number: int) -> Partition:
        self.replica.check_leads()
        return self.partition

    def find(self, key: TopicPartition) -> Partition | None:
        return self.partition

    # --- roles

    def follow_image(self, image: PartitionImage, min_insync: int) -> None:
        if image.leader == self.broker_id:
            self.follower = None
            self.replica.lead(NewImage(image, LIVES, min_insync), LIVES[self.broker_id], self.log)
            self.partition.on_replicated()
            return
        before = self.follower.partition if self.follower is not None else None
        self.replica.resign(image)
        if before is None or before.leader_epoch != image.leader_epoch:
            self.follower = self.replica.state = Follower(image, self.log, first_fetch=self.group.fetches)
            self.apply(self.follower.become(self.now_ms()))

    def apply(self, effects: list[Any]) -> None:
        fetch = next(e for e in effects if isinstance(e, Fetch))
        self.group.fetches = max(self.group.fetches, fetch.number)
        try:
            cut_to = carry_out(self.log, [e for e in effects if not isinstance(e, Fetch | RefreshMetadata)])
        except SparklogError as e:
            self.failures.append(str(e))
            assert self.follower is not None
            self._next = None
            self._later = self.follower.handle(FetchFailure(fetch.number, StorageError(str(e))), self.now_ms())
            return
        self._next, self._later = fetch if cut_to is None else replace(fetch, fetch_offset=cut_to), []

    def ask(self, leader: Node, max_bytes: int) -> bool:
        """Do one fetch with its effects; returns True if records came."""
        if self._next is None:
            self.apply(self._later)
        fetch = self._next
        if fetch is None:
            return False
        assert self.follower is not None
        log = self.log
        wanted = ReplicaFetchPartition(
            *KEY, fetch.leader_epoch, fetch.fetch_offset, self.follower.last_epoch(), log.log_start_offset,
            log.high_watermark, max_bytes, gaps_below(log, fetch.fetch_offset), self.follower.copied_to,
        )  # fmt: skip
        wait_ms = 20_000 if fetch.fetch_offset < leader.log.local_log_start_offset else 0  # for the object store
        request = ReplicaFetchRequest(self.broker_id, LIVES[self.broker_id], wait_ms, max_bytes, 0, 0, [wanted])
        response = asyncio.run(leader.server.answer(request))
        message = response.message
        assert isinstance(message, ReplicaFetchResponse)
        data = b"".join(piece.read() for piece in response.payload)  # type: ignore[union-attr]
        response.release()
        if not message.results:
            return self._next is None
        (result,) = message.results
        event: FollowerEvent = event_of(fetch, result, memoryview(data))
        self.apply(self.follower.handle(event, self.now_ms()))
        return True


class Group:
    """All three replicas; broker 1 leads at first. `out`: brokers that copy nothing."""

    def __init__(
        self, directory: Path, settings: dict[str, Any] | None = None, *, open_log: OpenLog = open_keyed, min_insync: int = 1
    ) -> None:  # fmt: skip
        self.time_ms = 1_000
        self.fetches = 0
        self.min_insync = min_insync
        self.proposals: list[ProposeIsr] = []
        self.out: set[int] = set()
        self.image = PartitionImage(BROKERS, 1, 4, 7, BROKERS)
        self._directory, self._settings, self._open = directory, settings or {}, open_log
        self.nodes = {b: Node(self, b, self.open(b)) for b in BROKERS}
        self.follow_image()

    def open(self, broker_id: int, **more: Any) -> PartitionLog:
        files = LimitedFiles()  # no fsync: these tests end no machine
        return self._open(self._directory / str(broker_id), self._settings, **{"files": files, **more})

    def alter(self, settings: dict[str, Any]) -> None:
        """Change the settings with which logs are opened from now on."""
        self._settings = settings

    def __getitem__(self, broker_id: int) -> PartitionLog:
        return self.nodes[broker_id].log

    @property
    def leader(self) -> Node:
        return self.nodes[self.image.leader]

    def follow_image(self) -> None:
        for broker_id, node in self.nodes.items():
            if broker_id not in self.out:
                node.follow_image(self.image, self.min_insync)

    def change(self, leader: int, isr: tuple[int, ...] | None = None, epochs: int = 1) -> None:
        """The controller has another broker lead, `epochs` leader epochs later."""
        image = self.image
        self.image = PartitionImage(
            BROKERS, leader, image.leader_epoch + epochs, image.partition_epoch + 1, isr or image.isr
        )
        self.follow_image()

    def append(self, payload: bytearray) -> int:
        node = self.leader
        info = node.log.appender.append(payload, leader_epoch=self.image.leader_epoch)
        node.partition.on_appended(info)
        return info.base_offset

    def sync(self, max_bytes: int = 1 << 20) -> None:
        """Everybody asks until nobody gets anything more, and the controller takes every proposal."""
        for _ in range(1_000):
            came = [n.ask(self.leader, max_bytes) for b, n in self.nodes.items() if n.follower and b not in self.out]
            if not any(came) and not self.proposals:
                return
            self.take_proposals()
        raise AssertionError("the replicas do not come to an end")

    def take_proposals(self) -> None:
        """Let the controller accept the proposals that fit its image."""
        for proposal in self.proposals:
            if proposal.partition_epoch == self.image.partition_epoch:
                isr = tuple(sorted(broker for broker, _ in proposal.isr))
                self.image = PartitionImage(
                    BROKERS, self.image.leader, self.image.leader_epoch, self.image.partition_epoch + 1, isr
                )
        self.proposals.clear()
        self.follow_image()

    def leave(self, broker_id: int) -> None:
        """The broker copies nothing any more, and leaves the ISR."""
        self.out.add(broker_id)
        self.time_ms += 2 * LAG_MS  # nobody waits for it any more
        isr = tuple(b for b in self.image.isr if b != broker_id)
        image = self.image
        self.image = PartitionImage(BROKERS, image.leader, image.leader_epoch, image.partition_epoch + 1, isr)
        self.follow_image()

    def come_back(self, broker_id: int, log: PartitionLog | None = None) -> None:
        """It copies again, with `log` if it has been away as a process."""
        self.out.discard(broker_id)
        self.nodes[broker_id] = Node(self, broker_id, log if log is not None else self.nodes[broker_id].log)
        self.follow_image()

    def compact(self, broker_id: int, *, roll: bool = True) -> CompactionResult | None:
        """As the broker's cleaner does it."""
        node = self.nodes[broker_id]
        return compact(node.log, roll=roll, deletions_may_go=lambda: node.replica.all_have(node.log.high_watermark))

    def tick(self) -> None:
        self.leader.replica.handle(Tick())


def batches(log: PartitionLog) -> list[tuple[BatchHeader, bytes]]:
    """Return all batches in the log's files, from the log start on, compacted by any replica."""
    found: list[tuple[BatchHeader, bytes]] = []
    for segment in log.local_segments:
        shared = segment.acquire()
        found += [(h, shared.file.read(at, h.size_bytes)) for at, h in segment.headers_from(None)]
        shared.release()
    return [b for b in found if b[0].next_offset > log.log_start_offset]


def leads(node: Node) -> bool:
    try:
        node.replica.check_leads()
    except NotLeaderError:
        return False
    return isinstance(node.replica.state, Leader)
