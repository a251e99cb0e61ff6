"""The promise of the ISR that is stored in ZooKeeper, read there and not from a broker's memory.

The high watermark is the smallest log end of committed and proposed members (KIP-497). Each member of the stored ISR is
one of both: it counts until its removal is stored, and from its proposal on when it joins. So at every change of a
partition's stored state, each member has everything below every high watermark that was ever visible, under any leader.
Otherwise the member could be elected, and acknowledged records would be lost.

A member is a life of a broker: the one whose registration the controller has last acted on (`/brokers/known/<id>`). A
life that has ended, or that the controller does not know yet, is not checked until it is known.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from sparklog.errors import SparklogError
from sparklog.metadata.cluster_znodes import BROKER_IDS, REGISTERED, TOPICS, load_image
from sparklog.replication.cluster_image import ClusterImage, PartitionImage
from sparklog.types import TopicPartition

if TYPE_CHECKING:
    from sparklog.log.partition_log import PartitionLog
    from sparklog.metadata.znode_tree import Change
    from sparklog.testing._sim_node import Node
    from sparklog.testing._sim_zookeeper import SimZooKeeper
    from tests.simulation.cluster.promises import Copied

ReadBatches = Callable[["PartitionLog", int, int], "list[Copied]"]
IsCompacted = Callable[["PartitionLog"], bool]


class _VisibleMark(NamedTuple):
    """The highest high watermark, and its broker."""

    offset: int = 0
    host: str = ""


class StoredIsr:
    """Checks the stored ISRs. `committed`: the visible batches of each partition by base offset. `check` raises
    AssertionError for the violations so far.
    """

    def __init__(
        self,
        zookeeper: SimZooKeeper,
        committed: Mapping[TopicPartition, Mapping[int, Copied]],
        read_batches: ReadBatches,
        is_compacted: IsCompacted,
    ) -> None:
        self.nodes: list[Node] = []
        self.changes = 0
        """Number of changes of stored ISRs."""
        self._zookeeper = zookeeper
        self._committed = committed
        self._read_batches = read_batches
        self._is_compacted = is_compacted
        self._shown: dict[TopicPartition, _VisibleMark] = {}
        self.isrs: dict[TopicPartition, tuple[int, ...]] = {}
        """The stored ISRs by partition."""
        self._lives: dict[int, tuple[int, int]] = {}
        """Broker and life by broker epoch."""
        self._violations: list[str] = []
        zookeeper.on_changes = self._on_changes

    def check(self) -> None:
        """Check all stored ISRs as they are now."""
        self.note_marks(self.nodes)
        self._look(stored_image(self._zookeeper), when="now")
        if self._violations:
            raise AssertionError("; ".join(self._violations[:3]))

    def note_marks(self, nodes: Sequence[Node]) -> None:
        """Note the present high watermarks of these brokers; also called for one that is about to end."""
        for node in nodes:
            if node.broker is None:
                continue
            for partition in node.broker.partitions.all():
                log = partition.open_log
                if log is not None and log.high_watermark > self._shown.get(partition.key, _VisibleMark()).offset:
                    self._shown[partition.key] = _VisibleMark(log.high_watermark, node.host)

    # --- what is stored

    def _on_changes(self, changes: Sequence[Change]) -> None:
        """Check the new state before any broker gets it."""
        paths = [path for path, is_about_children in changes if not is_about_children]
        if any(path.startswith(f"{BROKER_IDS}/") for path in paths):
            self._note_registrations()
        if any(
            path.startswith(f"{REGISTERED}/") or "/state/" in path
            for path in paths
            if path.startswith((REGISTERED, TOPICS))
        ):
            self.note_marks(self.nodes)
            self._look(stored_image(self._zookeeper), when="as it is stored")

    def _note_registrations(self) -> None:
        for node in self.nodes:
            found = self._zookeeper.znodes.find(f"{BROKER_IDS}/{node.id}")
            if found is not None and node.zk is not None and found.owner == node.zk.session_id:
                self._lives[found.czxid] = node.id, node.life

    def _look(self, image: ClusterImage, when: str) -> None:
        for tp, partition in _partitions(image):
            if partition.recovering:  # an unclean election: its loss is accepted
                self._shown.pop(tp, None)
                continue
            self.changes += self.isrs.get(tp) not in (None, partition.isr)
            self.isrs[tp] = partition.isr
            for member in partition.isr:
                self._look_at_member(tp, partition, member, image.known.get(member, -1), when)

    def _look_at_member(
        self, tp: TopicPartition, partition: PartitionImage, member: int, epoch: int, when: str
    ) -> None:
        node = next(n for n in self.nodes if n.id == member)
        if node.broker is None or node.machine.files.is_off or self._lives.get(epoch) != (node.id, node.life):
            return
        found = node.broker.partitions.find(tp)
        log = None if found is None else found.open_log
        shown = self._shown.get(tp, _VisibleMark())
        if log is None:
            return  # its disk has failed, which it reports to the controller next
        missing = self._missing(tp, log, shown.offset)
        if missing:
            self._violations.append(
                f"{tp}: {node.host} is in the ISR {when} ({partition}) in its life of broker epoch {epoch}, and lacks "
                f"{missing}, which {shown.host} has shown"
            )

    def _missing(self, tp: TopicPartition, log: PartitionLog, shown: int) -> str:
        """Describe the records below `shown` that the log lacks; "" if it lacks none. Another check covers the log up
        to its own high watermark.
        """
        if log.log_end_offset < shown:
            return f"the offsets {log.log_end_offset} to {shown}"
        committed = self._committed.get(tp, {})
        first = max(log.high_watermark, log.local_log_start_offset)
        if first >= shown or not committed or self._is_compacted(log):
            return ""
        try:
            batches = self._read_batches(log, first, shown)
        except SparklogError:
            return ""  # its disk has failed
        for batch in batches:
            known = committed.get(batch.base_offset, batch)
            if known != batch:
                return f"{known}, where it has {batch}"
        return ""


class _Direct:
    """ZooKeeper's nodes, read without waiting."""

    def __init__(self, zookeeper: SimZooKeeper) -> None:
        self.get = zookeeper.znodes.find
        self.children = zookeeper.znodes.children


def stored_image(zookeeper: SimZooKeeper) -> ClusterImage:
    """Return the stored image of the cluster, without registered brokers."""
    steps = load_image(_Direct(zookeeper), 0, 0)
    answer: Any = None
    try:
        while True:
            answer = steps.send(answer)
    except StopIteration as done:
        assert isinstance(done.value, ClusterImage)
        return done.value


def _partitions(image: ClusterImage) -> Iterator[tuple[TopicPartition, PartitionImage]]:
    for name, topic in image.topics.items():
        for number, partition in enumerate(topic.partitions):
            yield TopicPartition(name, number), partition
