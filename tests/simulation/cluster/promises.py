"""The promises of brokers about their logs, checked from outside in every state; also those of a single broker.

Batches are compared by the fields that a follower copies byte for byte: offset, checksum, leader epoch.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from sparklog.errors import SparklogError
from sparklog.format.batch import iterate_batches
from sparklog.log.partition_log import PartitionLog
from sparklog.replication.cluster_image import ClusterImage
from sparklog.replication.replica.leader import Leader
from sparklog.testing._sim_files import PowerCut
from sparklog.testing._sim_node import Node
from sparklog.testing._sim_zookeeper import SimZooKeeper
from sparklog.types import TopicPartition
from tests.simulation.cluster.stored_isr import StoredIsr

PIECE_BYTES = 1 << 20


class Copied(NamedTuple):
    """The fields of a batch that are equal on all replicas."""

    base_offset: int
    next_offset: int
    crc: int
    leader_epoch: int


class Promises:
    """The promises. Methods raise AssertionError for a broken one."""

    def __init__(self, zookeeper: SimZooKeeper | None, compacted: Iterable[str] = ()) -> None:
        """`zookeeper` None: the store is in the data directory of the only broker."""
        self._compacted = frozenset(compacted)
        """Topics whose logs may lack batches."""
        self._leaders: dict[tuple[TopicPartition, int], tuple[int, int]] = {}
        self._committed: dict[TopicPartition, dict[int, Copied]] = {}
        self._looked: dict[tuple[int, int, TopicPartition], int] = {}
        """Checked offsets by life of a broker."""
        self._shown: dict[TopicPartition, tuple[int, int]] = {}
        self.stored = None if zookeeper is None else StoredIsr(zookeeper, self._committed, batches_of, is_compacted)
        self.epochs = 0
        """Number of leaderships begun."""

    def watch(self, node: Node) -> None:
        """Follow a broker over all its lives."""
        node.on_leads = self.on_leads
        stored = self.stored
        if stored is not None:
            stored.nodes.append(node)
            node.on_end = lambda ending: stored.note_marks([ending])

    def on_leads(self, node: Node, tp: TopicPartition) -> None:
        """Check that one life of one broker leads in an epoch."""
        cluster = node.cluster
        assert cluster is not None
        epoch = cluster.replicas._replicas[tp].leader_epoch
        me = node.id, node.life
        known = self._leaders.setdefault((tp, epoch), me)
        self.epochs += 1
        if known != me:
            raise AssertionError(f"{tp}: (broker, life) {known} and {me} lead in epoch {epoch}")

    def look(self, nodes: Iterable[Node]) -> None:
        """Check that all logs agree below the high watermarks, forever; that the end for consumers never decreases; and
        that members of a stored ISR have all visible records.
        """
        if self.stored is not None:
            self.stored.check()
        for node in nodes:
            if (image := node.controller_image()) is not None:
                _look_at_image(image)
            broker = node.broker
            if broker is None or node.machine.files.is_off:
                continue
            for partition in sorted(broker.partitions.all(), key=lambda p: p.key):
                log = partition.open_log
                if log is None or node.id not in partition.replicas.replicas:
                    continue
                self._look_at_log(node, partition.key, log)
                state = getattr(partition.replicas, "state", None)
                if isinstance(state, Leader) and not state.has_resigned:
                    self._look_at_end(partition.key, state)

    def _look_at_log(self, node: Node, tp: TopicPartition, log: PartitionLog) -> None:
        mark = log.high_watermark
        if mark > log.log_end_offset:
            raise AssertionError(f"{tp}: the high watermark {mark} of {node.host} is beyond {log.log_end_offset}")
        key = (node.id, node.life, tp)
        first = max(self._looked.get(key, 0), log.local_log_start_offset)
        if first >= mark or tp.topic in self._compacted or is_compacted(log):
            return
        try:
            found = batches_of(log, first, mark)
        except SparklogError:
            return  # its disk has failed
        committed = self._committed.setdefault(tp, {})
        for batch in found:
            known = committed.setdefault(batch.base_offset, batch)
            if known != batch:
                raise AssertionError(f"{tp}: {node.host} shows {batch}, {known} was shown before")
        self._looked[key] = mark

    def _look_at_end(self, tp: TopicPartition, leader: Leader) -> None:
        """Check the end for consumers (KIP-207)."""
        try:
            latest = leader.latest_offset()
        except SparklogError:
            return
        epoch = leader.partition.leader_epoch
        newest, shown = self._shown.get(tp, (-1, 0))
        if epoch >= newest:
            if latest < shown:
                raise AssertionError(f"{tp}: the end goes back from {shown} to {latest} with epoch {epoch}")
            self._shown[tp] = epoch, latest

    def at_rest(self, nodes: Iterable[Node]) -> None:
        """Check, when all brokers are back and idle, that all replicas of a partition are equal."""
        first: dict[TopicPartition, tuple[Node, list[Copied], int]] = {}
        for node in nodes:
            assert node.broker is not None
            for partition in sorted(node.broker.partitions.all(), key=lambda p: p.key):
                tp, log = partition.key, partition.open_log
                if node.id not in partition.replicas.replicas or tp.topic in self._compacted:
                    continue
                if log is None:
                    raise AssertionError(f"{tp} is offline on {node.host}: {partition.error}")
                if is_compacted(log):
                    continue  # its cleaner has run, and reaches the other logs later
                start = log.local_log_start_offset
                mine = batches_of(log, start, log.log_end_offset)
                other, theirs, other_start = first.setdefault(tp, (node, mine, start))
                if _from(max(start, other_start), mine) != _from(max(start, other_start), theirs):
                    raise AssertionError(
                        f"{tp}: the log of {node.host} {_differing(mine, theirs)} is not that of {other.host}"
                    )
                for offset, batch in self._committed.get(tp, {}).items():
                    if start <= offset and batch not in set(mine):
                        raise AssertionError(f"{tp}: {batch} was shown, and is not in the log of {node.host}")


def is_compacted(log: PartitionLog) -> bool:
    """True if a cleaner, on this broker or on a leader, has changed batches of the log."""
    return any(segment.compacted for segment in log.local_segments)


def _look_at_image(image: ClusterImage) -> None:
    """Check that leaders are in sync."""
    for name, topic in image.topics.items():
        for number, partition in enumerate(topic.partitions):
            if partition.leader >= 0 and partition.leader not in partition.isr:
                raise AssertionError(f"{name}-{number}: its leader is not in sync: {partition}")


def batches_of(log: PartitionLog, offset: int, end: int) -> list[Copied]:
    """Return all whole batches from `offset` to `end`. Raises SparklogError."""
    found: list[Copied] = []
    while offset < end:
        piece = log.reader.read(offset, PIECE_BYTES, may_wait=False, to_log_end=True)
        if piece is None:
            break
        try:
            data = memoryview(piece.read())
        except PowerCut:
            return found
        finally:
            piece.release()
        for _, header in iterate_batches(data):
            if header.next_offset > end:
                return found
            if header.base_offset >= offset:
                found.append(Copied(header.base_offset, header.next_offset, header.crc, header.leader_epoch))
            offset = header.next_offset
    return found


def _from(offset: int, batches: list[Copied]) -> list[Copied]:
    return [batch for batch in batches if batch.base_offset >= offset]


def _differing(mine: list[Copied], theirs: list[Copied]) -> str:
    for i, (one, other) in enumerate(zip(mine, theirs, strict=False)):
        if one != other:
            return f"(batch {i}: {one}, there {other})"
    return f"(of {len(mine)} batches, there {len(theirs)})"
