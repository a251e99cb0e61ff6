"""A controller with a store that accepts every write, for tests of its decisions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec.structs import replace

from sparklog import errors
from sparklog.replication.cluster_image import BrokerImage, ClusterImage, PartitionImage, TopicImage, Version
from sparklog.replication.controller.controller import Controller
from sparklog.replication.controller.model import (
    AlterPartition,
    Answer,
    BrokersChanged,
    CreateTopic,
    Effect,
    ElectionResult,
    Event,
    IsrChange,
    Refuse,
    Write,
    WriteOutcome,
    WriteResult,
)
from sparklog.types import TopicPartition

TP = TopicPartition("t", 0)


class Cluster:
    """A controller, brokers, and a store that takes everything."""

    def __init__(self, brokers: int = 3, image: ClusterImage | None = None) -> None:
        self.controller = Controller()
        self.now_ms = 0
        self.zxid = image.version.zxid if image is not None else 1_000
        self.brokers = {i: BrokerImage(i, 10 + i) for i in range(1, brokers + 1)}
        self.answers: dict[Any, Any] = {}
        self.seen: list[Effect] = []
        self.tell(ElectionResult(image or ClusterImage(Version(1, 0))))
        self.register()

    def tell(self, event: Event) -> None:
        queue = self.controller.handle(event, self.now_ms)
        while queue:
            effect = queue.pop(0)
            self.seen.append(effect)
            match effect:
                case Write(tag):
                    self.zxid += 1
                    queue += self.controller.handle(
                        WriteResult(tag, WriteOutcome.OK, Version(1, self.zxid)), self.now_ms
                    )
                case Answer(token, result):
                    self.answers[token] = result
                case Refuse(token, error):
                    self.answers[token] = error

    def ask(self, event: Any) -> Any:
        self.tell(event)
        return self.answers.pop(event.token)

    def register(self) -> None:
        self.tell(BrokersChanged(dict(self.brokers)))

    def stop(self, *ids: int) -> None:
        for broker_id in ids:
            del self.brokers[broker_id]
        self.register()

    def start(self, broker_id: int, *, clean: bool = True, empty: bool = False) -> None:
        """`empty`: on another machine."""
        known = self.image.known[broker_id]
        lives = () if empty else (known,)
        self.brokers[broker_id] = BrokerImage(
            broker_id, known + 100, clean_epochs=lives if clean else (), flushed_epochs=lives
        )
        self.register()

    @property
    def image(self) -> ClusterImage:
        assert self.controller.image is not None
        return self.controller.image

    def partition(self, tp: TopicPartition = TP) -> PartitionImage:
        found = self.image.partition(tp)
        assert found is not None
        return found

    def create(self, assignment: list[list[int]], **configs: Any) -> None:
        self.ask(CreateTopic("c", TopicImage("t", "id", (), configs=_named(configs)), assignment=assignment))

    def propose(self, broker: int, members: list[int], **changes: Any) -> Any:
        p = self.partition()
        isr = tuple((m, self.brokers[m].broker_epoch if m in self.brokers else 0) for m in members)
        change = IsrChange(TP, p.leader_epoch, p.partition_epoch, isr)
        change = replace(change, **changes)
        answer = self.ask(AlterPartition("a", broker, self.brokers[broker].broker_epoch, (change,)))
        return answer if isinstance(answer, errors.SparklogError) else answer[0]


def _named(configs: Mapping[str, Any]) -> dict[str, Any]:
    return {name.replace("_", "."): value for name, value in configs.items()}
