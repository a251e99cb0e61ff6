"""Topics of the broker: changes through the controller, and updates from its images."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial

from msgspec.structs import replace

from sparklog.environment import Environment
from sparklog.environment.fault_points import reach
from sparklog.environment.time_slices import LoopTimeSlices
from sparklog.errors import (
    CoordinatorNotAvailableError,
    InvalidConfigError,
    NotControllerError,
    RequestTimedOutError,
    SparklogError,
    TopicAlreadyExistsError,
    UnknownTopicOrPartitionError,
)
from sparklog.format.schema_evolution import SchemaChange
from sparklog.log.housekeeping.log_opener import PartitionSpec
from sparklog.log.model.retention_policy import POLICY_COMPACT
from sparklog.log.model.tiering_policy import TIERING_SETTING
from sparklog.log.partition_log import PartitionLog
from sparklog.metadata.image_store import image_of, topic_of
from sparklog.metadata.mirror_settings import NAME as MIRROR_NAME
from sparklog.metadata.store import (
    ENVELOPE_SCHEMA_ID,
    Topic,
    TopicSpec,
    altered_schema,
    altered_topic,
    grown_topic,
    new_topic,
)
from sparklog.protocol.apis import Api
from sparklog.protocol.group_messages import FindCoordinatorRequest, FindCoordinatorResponse
from sparklog.replication.cluster_image import MIN_INSYNC_SETTING, ClusterImage, PartitionImage, TopicImage
from sparklog.replication.controller import topics as topic_rules
from sparklog.replication.controller.draft import Draft
from sparklog.replication.controller.model import (
    ALL_SAFEGUARDS,
    AddPartitions,
    AlterConfig,
    AlterSchema,
    CreateTopic,
    DeleteTopic,
    Request,
)
from sparklog.replication.restoration import is_restored
from sparklog.types import CONSUMER_OFFSETS_TOPIC, SCHEMAS_TOPIC, TRANSACTION_STATE_TOPIC, TopicPartition
from sparklog_broker.background.background import Background
from sparklog_broker.cluster.controller_client import ControllerClient
from sparklog_broker.cluster.images import CATCH_UP_S, ImageFollower
from sparklog_broker.cluster.membership import Membership
from sparklog_broker.cluster.replica_places import ReplicaPlaces
from sparklog_broker.cluster.replicas import Replicas
from sparklog_broker.config import BrokerConfig
from sparklog_broker.partitions.partition import Partition
from sparklog_broker.partitions.partitions import Partitions
from sparklog_broker.partitions.storage import Storage
from sparklog_broker.partitions.topic_directories import is_here, partition_specs
from sparklog_broker.partitions.topic_owners import TopicOwners

log = logging.getLogger(__name__)

REPLICATION_FACTOR_MAX = 3
"""Largest replication factor that `default.replication.factor` = -1 selects."""
CHANGE_TIMEOUT_S = 30.0
KEY_TYPES = {CONSUMER_OFFSETS_TOPIC: 0, TRANSACTION_STATE_TOPIC: 1, SCHEMAS_TOPIC: 2}
"""Key types of FIND_COORDINATOR."""
Assignment = Sequence[Sequence[int]] | None
"""Broker ids of the replicas of some partitions; None: the controller places them."""


class Topics:
    """The topics of the broker. The methods for changes are called on the controller's broker, after
    `ImageFollower.decides`. They return when this broker's image has the change. Event-loop thread only."""

    def __init__(
        self,
        config: BrokerConfig,
        environment: Environment,
        storage: Storage,
        partitions: Partitions,
        background: Background,
        time_slices: LoopTimeSlices,
        replicas: Replicas,
        membership: Membership,
        controller: ControllerClient,
        images: ImageFollower,
        owners: TopicOwners,
        on_created: Callable[[Topic], None],
    ) -> None:
        """`on_created`: called when the directories of a new topic, or of new partitions, exist on this broker."""
        self.partitions = partitions
        self.owners = owners
        """Limits of topics by owner."""
        self._config = config
        self._environment = environment
        self._storage = storage
        self._ids = storage.metadata.ids
        self._background = background
        self._time_slices = time_slices
        self._replicas = replicas
        self._membership = membership
        self._controller = controller
        self._images = images
        self._on_created = on_created
        self._failed_partitions: dict[TopicPartition, SparklogError] = {}
        """New partitions whose directories could not be created, with the errors."""
        self._growing = asyncio.Lock()
        self._followed: Mapping[str, TopicImage] = {}
        self._places = ReplicaPlaces(config, environment.clock, storage, partitions, replicas)

    # --- changes

    async def create(self, spec: TopicSpec) -> Topic:
        """Create a topic. If an earlier attempt with the same `request_id` has created it, return that topic.

        Raises TopicAlreadyExistsError, InvalidTopicError and other errors of wrong arguments, PolicyViolationError,
        NotControllerError, StorageUnavailableError, RequestTimedOutError (the topic may have been created)."""
        existing = self.partitions.topics.get(spec.name)
        if existing is not None and existing.is_created_by(spec.request_id):
            return existing
        self._check_new(spec, existing)
        schema_id = ENVELOPE_SCHEMA_ID
        if spec.schema is not None:
            schema_id = await self._storage.run(self._ids.take_schema_id)
        topic, decision = self._creation(spec, schema_id)
        with self.owners.room_for(spec.owner, 1, topic.partitions):
            try:
                await self._decide(decision)
            except TopicAlreadyExistsError:
                await self._images.until_true(lambda image: spec.name in image.topics, CATCH_UP_S)
                created = self.partitions.topics.get(spec.name)
                if created is None or not created.is_created_by(spec.request_id):
                    raise  # otherwise the same request, forwarded by another broker, has created it
            created = self._existing_topic(spec.name)
            await self._delete_if_failed(created)
        log.info("created topic %s: %s, %d partitions", created.name, created.kind, created.partitions)
        return created

    def check_creation(self, spec: TopicSpec) -> tuple[Topic, Sequence[PartitionImage]]:
        """Return the topic that `create` would create, with partitions. Raises the errors of `create`."""
        self._check_new(spec, self.partitions.topics.get(spec.name))
        topic, decision = self._creation(spec, ENVELOPE_SCHEMA_ID)
        with self.owners.room_for(spec.owner, 1, topic.partitions):
            return topic, topic_rules.create_topic(self._draft(), decision(0)).partitions

    def _check_new(self, spec: TopicSpec, existing: Topic | None) -> None:
        """Raise TopicAlreadyExistsError, and the errors of a tiered topic."""
        if existing is not None:
            raise TopicAlreadyExistsError(f"topic {spec.name!r} already exists; delete it or choose another name")
        self._check_tier(spec.name, spec.configs)

    def _creation(self, spec: TopicSpec, schema_id: int) -> tuple[Topic, Callable[[int], CreateTopic]]:
        """Return the new topic, and the controller's request by its token. Raises the errors of wrong arguments."""
        requested = self._requested_factor(spec)
        factor = requested if requested is not None else self._possible_factor()
        if spec.assignment is not None:
            factor = min(map(len, spec.assignment), default=factor)
        topic = new_topic(spec, schema_id, self._environment)
        _check_min_insync(spec.name, topic.configs, factor)

        def decision(token: int) -> CreateTopic:
            return CreateTopic(
                token,
                image_of(topic),
                topic.partitions,
                factor if requested is not None else REPLICATION_FACTOR_MAX,
                spec.assignment,
                self._draw(),
                self._draw(),
                or_fewer=requested is None,
            )

        return topic, decision

    async def create_internal(self, spec: TopicSpec) -> Topic:
        """Create an internal topic. Callable on any broker. Raises the errors of `create`, and
        BrokerNotAvailableError.
        """

        async def ask() -> Topic:
            if await self._images.decides():
                return await self.create(spec)
            request = FindCoordinatorRequest(spec.name, KEY_TYPES[spec.name])
            with contextlib.suppress(CoordinatorNotAvailableError):  # created, but without leaders so far
                await self._controller.request_unless_replaced(
                    "internal topics",
                    Api.FIND_COORDINATOR,
                    request,
                    FindCoordinatorResponse,
                    timeout_s=CHANGE_TIMEOUT_S,
                )
            await self._images.until_true(lambda _: spec.name in self.partitions.topics, CHANGE_TIMEOUT_S)
            return self._existing_topic(spec.name)

        return await self._controller.while_it_moves(ask)

    async def _delete_if_failed(self, topic: Topic) -> None:
        """If a new partition without other replicas could not be created, delete the new topic, and raise the error."""
        if not self._failed_partitions:
            return
        image = self._images.image
        for number in range(topic.partitions):
            tp = TopicPartition(topic.name, number)
            state, error = image.partition(tp), self._failed_partitions.get(tp)
            if error is not None and state is not None and state.replicas == (self._config.broker_id,):
                await self._decide(lambda token: DeleteTopic(token, topic.name, topic.topic_id))
                raise type(error)(str(error))

    def _requested_factor(self, spec: TopicSpec) -> int | None:
        """Return the requested replication factor; None if the controller should choose it by the number of brokers."""
        factor = spec.replication_factor if spec.replication_factor > 0 else self._config.default_replication_factor
        return factor if factor > 0 else None

    def _possible_factor(self) -> int:
        image = self._membership.controller_image()
        return min(REPLICATION_FACTOR_MAX, max(1, len(image.eligible().keys() - image.cordoned)))

    async def alter(self, name: str, configs: Mapping[str, object | None], *, validate_only: bool = False) -> Topic:
        """Change a topic's settings; with `validate_only`, only check the change. Raises UnknownTopicOrPartitionError,
        and the errors of `create`."""
        altered = altered_topic(self._existing_topic(name), configs)
        self._check_tier(name, configs)
        if MIN_INSYNC_SETTING in configs:
            image = self._images.image.topics.get(name)
            factor = min((len(p.target) for p in image.partitions), default=1) if image is not None else 1
            _check_min_insync(name, altered.configs, factor)
        if validate_only:
            return self._existing_topic(name)
        changes = {key: altered.configs.get(key) for key in configs}
        await self._decide(lambda token: AlterConfig(token, name, changes))
        log.info("topic %s altered: %s", name, ", ".join(f"{k}={v}" for k, v in configs.items()))
        return self._existing_topic(name)

    async def alter_schema(self, name: str, change: SchemaChange, *, validate_only: bool = False) -> Topic:
        """Change a topic's schema; with `validate_only`, only check the change. Raises UnknownTopicOrPartitionError,
        and the errors of `create`."""
        topic = self._existing_topic(name)
        if validate_only:
            altered_schema(topic, change, max(topic.schemas) + 1)
            return topic
        schema_id = await self._storage.run(self._ids.take_schema_id)
        altered = altered_schema(topic, change, schema_id)
        if altered is topic:
            return topic
        data = altered.schemas[schema_id].serialize().to_pybytes()
        await self._decide(lambda token: AlterSchema(token, name, schema_id, data))
        log.info("topic %s has schema %d now", name, schema_id)
        return self._existing_topic(name)

    def _draft(self) -> Draft:
        """Return changes that are not stored, to check a request by the rules of the controller. Raises
        NotControllerError."""
        return Draft(self._membership.controller_image(), {}, ALL_SAFEGUARDS)

    def check_partitions(self, name: str, total: int, assignment: Assignment = None) -> Topic:
        """Return the topic, if partitions can be added to it. Raises the errors of `add_partitions`."""
        existing = self._existing_topic(name)
        grown_topic(existing, total)
        with self.owners.room_for(existing.owner, 0, total - existing.partitions):
            request = AddPartitions(0, name, total, assignment, self._draw(), self._draw())
            topic_rules.add_partitions(self._draft(), request)
            return existing

    async def add_partitions(
        self, name: str, total: int, assignment: Assignment = None, *, is_repeated: bool = False
    ) -> Topic:
        """Add partitions to a topic. `assignment`: broker ids of the replicas of each new partition; None: the
        controller places them. `is_repeated`: an earlier attempt may have added them. Raises
        UnknownTopicOrPartitionError, InvalidPartitionsError, and the errors of `create`."""
        async with self._growing:
            existing = self._existing_topic(name)
            if is_repeated and existing.partitions == total:
                return existing
            grown = grown_topic(existing, total)
            with self.owners.room_for(existing.owner, 0, total - existing.partitions):
                await self._create_directories_first(grown, existing.partitions)
                try:
                    await self._decide(
                        lambda token: AddPartitions(token, name, total, assignment, self._draw(), self._draw())
                    )
                except (NotControllerError, RequestTimedOutError):
                    raise  # the change may have been stored
                except SparklogError:
                    await self._delete_directories(grown, existing.partitions)
                    raise
                reach("partitions.stored")
                topic = self._existing_topic(name)
        log.info("topic %s has %d partitions now", name, topic.partitions)
        return topic

    async def _create_directories_first(self, grown: Topic, first: int) -> None:
        """If this broker is the only one, create the directories of new partitions before the decision: a topic cannot
        lose partitions again.

        Directories without a decision, which a crash leaves, are put aside at the next start. Raises StorageFullError,
        StorageError; then no directory is left.
        """
        if set(self._membership.controller_image().brokers) != {self._config.broker_id}:
            return
        specs = list(partition_specs(grown, self._config, first=first))
        try:
            await asyncio.shield(self._storage.run(lambda: self._storage.logs.creation.create_partitions(specs)))
        except SparklogError:
            await self._delete_directories(grown, first)
            raise
        reach("partitions.made")

    async def _delete_directories(self, grown: Topic, first: int) -> None:
        """Delete the directories of the partitions from `first` on, which the topic does not have."""
        directories = self._storage.topic_directories
        await asyncio.shield(self._storage.run(lambda: directories.delete_files(grown, first)))

    async def delete(self, name: str, topic_id: str = "", *, mirror: str = "", is_repeated: bool = False) -> str:
        """Delete a topic, and return its id. `topic_id` "" accepts any topic with the name; `mirror` "" also one that
        no mirror fills. `is_repeated`: an earlier attempt may have deleted the topic. Then the id "" raises
        RequestTimedOutError, because a new topic may have the name. Raises UnknownTopicOrPartitionError, and the errors
        of `create`."""
        existing = self.partitions.topics.get(name)
        if is_repeated and not topic_id:
            raise RequestTimedOutError(
                f"topic {name!r}: the controller was replaced during the request, and the topic may be deleted; check, and repeat the request if it still exists"
            )
        if is_repeated and (existing is None or existing.topic_id != topic_id):
            return topic_id
        topic = self._existing_topic(name)
        check_id(topic, topic_id)
        required = {MIRROR_NAME: mirror} if mirror else {}
        await self._decide(lambda token: DeleteTopic(token, name, topic.topic_id, required))
        log.info("deleted topic %s", name)
        return topic.topic_id

    def _draw(self) -> int:
        """Return a random start for a placement, so that topics begin on different brokers."""
        return int.from_bytes(self._environment.randomness.token_bytes(3), "little")

    async def _decide(self, make: Callable[[int], Request]) -> None:
        await self._membership.ask(make)
        await self._images.reach(self._membership.version)

    def _existing_topic(self, name: str) -> Topic:
        """Return the topic from this broker's image. Raises UnknownTopicOrPartitionError."""
        topic = self.partitions.topics.get(name)
        if topic is None:
            raise UnknownTopicOrPartitionError(f"topic {name!r} does not exist")
        return topic

    def _check_tier(self, name: str, configs: Mapping[str, object | None]) -> None:
        """Raise InvalidConfigError for a tiered topic without an object store, and for a compacted topic with segments
        in the object store.
        """
        if str(configs.get(TIERING_SETTING)).lower() == "true" and self._storage.remote.store is None:
            raise InvalidConfigError(
                f"topic {name!r}: {TIERING_SETTING}=true, but this broker has no object store; set remote.log.storage.url "
                f"in its configuration and restart it"
            )
        if POLICY_COMPACT not in str(configs.get("cleanup.policy")).split(","):
            return
        if any(log.has_remote_segments for tp, log in self._storage.logs.table.logs.items() if tp.topic == name):
            raise InvalidConfigError(
                f"topic {name!r} has segments in the object store, which cannot be compacted: delete them first "
                f"(retention, delete-records), or make a new topic"
            )

    async def delete_records(self, deletions: Sequence[tuple[Partition, int]]) -> list[int | SparklogError]:
        """Delete each partition's records below an offset; -1 for all committed records. Returns for each partition its
        log start, which is stored, or the error."""
        logs = [(partition.log, before_offset) for partition, before_offset in deletions]
        files = self._storage.topic_directories
        done = await asyncio.shield(self._storage.run(lambda: files.delete_records(logs)))
        for partition, _ in deletions:
            partition.on_log_start_raised()
        self._background.retention.run_soon()
        return done

    # --- images

    async def follow(self, image: ClusterImage) -> list[TopicImage]:
        """Serve exactly the topics of `image`. The files of other topics are deleted if `image` has the order to delete
        the topic, otherwise they are put aside. Returns the last states of the topics whose files were put aside."""
        absent: list[TopicImage] = []
        topics, followed = self.partitions.topics, self._followed
        changed = [n for n, topic in image.topics.items() if followed.get(n) is not topic or n not in topics]
        for name in [*(n for n in topics if n not in image.topics), *(n for n in changed if n in topics)]:
            topic, state, before = topics[name], image.topics.get(name), followed.get(name)
            if state is not None and state.topic_id == topic.topic_id:
                continue
            is_deleted = topic.topic_id in image.deleted
            if not is_deleted and before is not None and before.topic_id == topic.topic_id:
                absent.append(before)
            await self._remove(topic, is_deleted=is_deleted)
        added: list[Topic] = []
        for name in changed:
            served, state, before = topics.get(name), image.topics[name], followed.get(name)
            if served is None:
                added.append(topic_of(state))
            elif before is None or not _is_same(before, state):
                await self._change(served, topic_of(state, served))
        if added:
            await self._create_logs([spec for topic in added for spec in self._specs(topic, image)], take_back=True)
            for topic in added:
                self.partitions.add(
                    topic, await self._time_slices.list_of(self.partitions.opened(topic, self._replicas.role_of))
                )
                self._storage.run(partial(self._storage.topic_directories.note, topic))
                self._report_created(topic)

        self._followed = image.topics
        await self._places.follow(image)
        return absent

    def _report_created(self, topic: Topic) -> None:
        numbers = range(topic.partitions) if self._failed_partitions else ()
        if not any(TopicPartition(topic.name, number) in self._failed_partitions for number in numbers):
            self._on_created(topic)

    @property
    def has_to_retry(self) -> bool:
        """True if `follow` must be called again with the same image, to retry failed creations."""
        return self._places.has_to_retry

    async def _change(self, topic: Topic, changed: Topic) -> None:
        if changed.schemas.keys() != topic.schemas.keys():
            topic = replace(topic, schemas=changed.schemas)
            self.partitions.use_schemas(topic)
            self._storage.run(partial(self._storage.topic_directories.note, topic))
        if dict(changed.configs) != dict(topic.configs):
            topic = self.partitions.topics[topic.name] = replace(topic, configs=changed.configs)
            self._reconfigure([topic])
            self._storage.run(partial(self._storage.topic_directories.note, topic))
        if changed.partitions > topic.partitions:
            image = self._replicas.image
            specs = list(self._specs(changed, image, topic.partitions))
            restored = [s for s in specs if (p := image.partition(s.owner.topic_partition)) and is_restored(p)]
            new = [spec for spec in specs if spec not in restored]
            await self._places.make_room(new)
            await self._create_logs(new)
            await self._create_logs(restored, take_back=True)
            added: list[Partition] = await self._time_slices.list_of(
                self.partitions.opened(changed, self._replicas.role_of, topic.partitions)
            )
            configs = {s.owner.partition: s.config for s in specs}
            for partition in added:  # it may have been created with older settings
                partition.use_schemas(changed.schemas.__getitem__, changed.schema_id)
                if partition.open_log is not None:
                    partition.open_log.reconfigure(configs[partition.key.partition])
            topic = replace(topic, partitions=changed.partitions)
            self.partitions.grow(topic, added)
            self._report_created(topic)
            self._storage.run(partial(self._storage.topic_directories.note, topic))

    def on_defaults_changed(self) -> None:
        """Apply new defaults of topic settings to all open logs."""
        self._reconfigure(list(self.partitions.topics.values()))

    def _reconfigure(self, topics: Sequence[Topic]) -> None:
        for spec in (spec for topic in topics for spec in partition_specs(topic, self._config)):
            partition = self.partitions.find(spec.owner.topic_partition)
            if partition is not None and partition.open_log is not None:
                partition.open_log.reconfigure(spec.config)
                if spec.config.flush.at_append:
                    self._flush(partition, partition.open_log)
        self._background.retention.run_soon()
        self._background.cleaner.run_soon()
        self._background.tierer.run_soon()

    def _flush(self, partition: Partition, partition_log: PartitionLog) -> None:
        """Flush records from before flush.mode=group, so that they can be committed without later appends."""

        def flushed(future: asyncio.Future[None]) -> None:
            if future.cancelled():
                return
            if (error := future.exception()) is not None:
                log.error("partition %s: %s", partition.key, error)
            else:
                partition.replicas.on_append(partition_log.log_end_offset)

        self._storage.run(partition_log.flusher.flush).add_done_callback(flushed)

    async def _remove(self, topic: Topic, *, is_deleted: bool) -> None:
        gone = self.partitions.remove(topic)
        for number in range(topic.partitions):
            self._failed_partitions.pop(TopicPartition(topic.name, number), None)
            self._replicas.drop(TopicPartition(topic.name, number))
        await self._time_slices.list_of(partition.on_deleted() for partition in gone)
        if is_deleted:
            await self._storage.run(lambda: self._storage.topic_directories.delete_files(topic))
            self._background.tierer.run_soon()
            self._storage.run(self._storage.logs.removal.purge).add_done_callback(_log_failure)
            return
        log.error(
            "topic %s (id %s) is missing from the cluster's metadata, but no request deleted it: its files are put "
            "aside. sparklog cluster restore-metadata restores it", topic.name, topic.topic_id,
        )  # fmt: skip
        await self._storage.run(lambda: self._storage.topic_directories.put_aside(topic))

    def _specs(self, topic: Topic, image: ClusterImage, first: int = 0) -> Iterator[PartitionSpec]:
        return partition_specs(topic, self._config, first=first, is_here=is_here(image, self._config.broker_id))

    async def _create_logs(self, specs: Sequence[PartitionSpec], *, take_back: bool = False) -> None:
        """Create the logs. A partition whose log cannot be created is offline. `take_back`: use files that were put
        aside."""
        logs = self._storage.logs
        for spec in specs:
            self._failed_partitions.pop(spec.owner.topic_partition, None)
        try:
            await asyncio.shield(self._storage.run(lambda: logs.creation.create_partitions(specs, take_back=take_back)))
        except SparklogError as e:
            log.error("%d new partitions: %s", len(specs), e)  # noqa: TRY400 - its message says it all
            self._failed_partitions |= {tp: e for s in specs if logs.table.find(tp := s.owner.topic_partition) is None}


def _check_min_insync(name: str, configs: Mapping[str, object], replication_factor: int) -> None:
    """Raise InvalidConfigError if the topic has fewer replicas than min.insync.replicas requires."""
    minimum = int(str(configs.get(MIN_INSYNC_SETTING, 1)))
    if minimum > max(1, replication_factor):
        raise InvalidConfigError(
            f"topic {name!r}: {MIN_INSYNC_SETTING} = {minimum} with {replication_factor} replicas, which can never be in sync; "
            f"use 1 to {replication_factor}, or more replicas"
        )


def check_id(topic: Topic, topic_id: str) -> None:
    """Raise UnknownTopicOrPartitionError if the topic's id is not `topic_id`; "" accepts any id."""
    if topic_id not in ("", topic.topic_id):
        raise UnknownTopicOrPartitionError(
            f"no topic {topic.name!r} with id {topic_id} exists: another topic has the name"
        )


def _log_failure(purging: asyncio.Future[int]) -> None:
    error = None if purging.cancelled() else purging.exception()
    if error is not None:
        log.error("deleted files could not be unlinked, the next background run tries again: %s", error)


def _is_same(before: TopicImage, after: TopicImage) -> bool:
    """True if the two states differ at most in replicas, leaders and ISRs. A delta keeps unchanged objects, so `is`
    finds the changes."""
    return (
        before.configs is after.configs
        and before.schemas is after.schemas
        and before.topic_id == after.topic_id
        and len(before.partitions) == len(after.partitions)
    )
