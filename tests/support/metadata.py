"""The content of a metadata.db, read without a broker."""

from __future__ import annotations

import itertools
import queue
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

from msgspec.structs import replace

from sparklog.environment import real_environment
from sparklog.errors import SparklogError, UnknownTopicOrPartitionError
from sparklog.format.schema_evolution import SchemaChange
from sparklog.metadata import cluster_znodes as znodes
from sparklog.metadata.controller_session import ControllerSession
from sparklog.metadata.image_store import IdBlocks, image_of, topic_of
from sparklog.metadata.local_store import METADATA_FILE, open_local, read_image, wait_for
from sparklog.metadata.store import (
    ENVELOPE_SCHEMA_ID,
    Topic,
    TopicSpec,
    altered_schema,
    altered_topic,
    grown_topic,
    new_topic,
)
from sparklog.replication.cluster_image import ClusterDelta, ClusterImage
from sparklog.replication.controller.controller import Controller
from sparklog.replication.controller.model import (
    AddPartitions,
    AlterConfig,
    AlterSchema,
    Answer,
    ControllerConfig,
    CreateTopic,
    DeleteTopic,
    Effect,
    Refuse,
    Request,
)
from sparklog.security.records import RecordId


class Stored(NamedTuple):
    """The content of a store. The topics are without the ids of the requests that made them."""

    cluster_id: str
    image: ClusterImage
    topics: dict[str, Topic]
    producer_ids_end: int
    schema_ids_end: int

    @property
    def security(self) -> Mapping[RecordId, bytes]:
        return self.image.security


def read_store(path: Path, broker_id: int = 0) -> Stored:
    coordination = open_local(path, real_environment(), create=False)
    try:
        cluster_id, image = read_image(coordination, path)
        topics = {name: replace(topic_of(topic), request_id="") for name, topic in image.topics.items()}
        ids = IdBlocks(coordination)
        return Stored(cluster_id, image, topics, ids.producer_ids_end(), ids.end("/ids/schema"))
    finally:
        coordination.close()


def write_security(path: Path, records: Mapping[RecordId, bytes]) -> None:
    """Makes a store that has these security records."""
    coordination = open_local(path, real_environment(), create=True)
    delta = ClusterDelta(security=dict(records))
    wait_for(coordination.transaction(znodes.write_ops(delta, ClusterImage(), ClusterImage(security=dict(records)))))
    coordination.close()


class ControlledStore:
    """A metadata.db with a controller at work on it and one registered broker; the calls block."""

    def __init__(self, directory: Path, broker_id: int = 1) -> None:
        self._environment = real_environment()
        self.coordination = open_local(directory / METADATA_FILE, self._environment, create=True)
        self.ids = IdBlocks(self.coordination)
        self.controller = Controller(ControllerConfig(has_own_store=True))
        self._steps: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._answers: dict[object, SparklogError | None] = {}
        self._tokens = itertools.count()
        self._session = ControllerSession(
            self.coordination, broker_id, self.controller, lambda: 0, self._on_effect, call=self._steps.put
        )
        wait_for(
            self.coordination.create(
                f"{znodes.BROKER_IDS}/{broker_id}", znodes.encode(znodes.Registration("i")), ephemeral=True
            )
        )
        self._session.start()
        self._until(lambda: self.controller.image is not None and broker_id in self.controller.image.brokers)

    @property
    def image(self) -> ClusterImage:
        assert self.controller.image is not None
        return self.controller.image

    def _on_effect(self, effect: Effect) -> None:
        if isinstance(effect, Answer | Refuse):
            self._answers[effect.token] = effect.error if isinstance(effect, Refuse) else None

    def _until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            self._steps.get(timeout=30)()

    def ask(self, make: Callable[[int], Request]) -> None:
        """Raises what the controller refuses it with."""
        token = next(self._tokens)
        self._session.handle(make(token))
        self._until(lambda: token in self._answers)
        error = self._answers.pop(token)
        if error is not None:
            raise error

    def topics(self) -> dict[str, Topic]:
        return {name: topic_of(topic) for name, topic in self.image.topics.items()}

    def _existing(self, name: str) -> Topic:
        if name not in self.image.topics:
            raise UnknownTopicOrPartitionError(f"topic {name!r} does not exist")
        return self.topics()[name]

    def create_topic(self, spec: TopicSpec) -> Topic:
        schema_id = ENVELOPE_SCHEMA_ID if spec.schema is None else self.ids.take_schema_id()
        topic = new_topic(spec, schema_id, self._environment)
        self.ask(lambda token: CreateTopic(token, image_of(topic), topic.partitions))
        return self.topics()[topic.name]

    def alter_topic(self, name: str, configs: Mapping[str, object | None]) -> Topic:
        wanted = altered_topic(self._existing(name), configs)
        self.ask(lambda token: AlterConfig(token, name, {key: wanted.configs.get(key) for key in configs}))
        return self.topics()[name]

    def add_partitions(self, name: str, total: int) -> Topic:
        grown_topic(self._existing(name), total)
        self.ask(lambda token: AddPartitions(token, name, total))
        return self.topics()[name]

    def alter_schema(self, name: str, change: SchemaChange) -> Topic:
        known = self._existing(name)
        wanted = altered_schema(known, change, self.ids.take_schema_id())
        if wanted is not known:
            data = wanted.schemas[wanted.schema_id].serialize().to_pybytes()
            self.ask(lambda token: AlterSchema(token, name, wanted.schema_id, data))
        return self.topics()[name]

    def delete_topic(self, name: str) -> None:
        topic = self._existing(name)
        self.ask(lambda token: DeleteTopic(token, name, topic.topic_id))

    def close(self) -> None:
        self.coordination.close()
