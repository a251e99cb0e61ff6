"""The mirror worker: runs the mirrors of a cluster, and shares their topics with other workers as a group.

A topic belongs to the worker that the group assigns the topic's partition 0 to. Each mirror runs on a thread of its
own, because its source can be slow. Two workers on one topic do no harm: the broker appends only at the log's end.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence

import pyarrow as pa
from msgspec.structs import replace

from sparklog.client.admin.admin import Admin
from sparklog.client.admin.mirror_groups import GroupCopier
from sparklog.client.admin.mirror_plan import (
    create_missing_topics,
    create_refused_topic,
    open_source,
    source_security,
)
from sparklog.client.admin.mirror_reports import report_mirrors, report_of
from sparklog.client.admin.mirror_targets import typed_target
from sparklog.client.consumer.topic_shares import TopicShares
from sparklog.client.net.cluster import Cluster, cluster
from sparklog.client.net.registry_reader import registry_schemas
from sparklog.client.net.topic_info import TopicInfo
from sparklog.errors import (
    DataLossError,
    InvalidConfigError,
    InvalidPartitionsError,
    SparklogError,
)
from sparklog.format.key_format import KEY_SCHEMA_SETTING
from sparklog.kafka.values.schemas import Schemas
from sparklog.metadata.refused_topics import refused_topic
from sparklog.mirror.definition import (
    LOST,
    PAUSED,
    MirrorDefinition,
    MirroredTopic,
    mirrored_topic,
    with_lost,
)
from sparklog.mirror.plan import refused_settings
from sparklog.mirror.readers import missing_columns
from sparklog.mirror.rules import absent_text
from sparklog.mirror.source import MirrorSource
from sparklog.mirror.worker.log_side import LogSide
from sparklog.mirror.worker.sync import Decisions, Mirrored, MirrorSync, TopicProgress
from sparklog.security.client_security import ClientSecurity, Security
from sparklog.types import TopicPartition

logger = logging.getLogger(__name__)

GROUP_ID = "sparklog-mirror"
"""The workers' group. It only distributes topics among the workers, which commit no offsets in it."""
FIND_TOPICS_S = 2.0
NEW_TOPICS_S = 30.0
"""Interval between two searches for topics that the source has added."""
GROUPS_S = 5.0
REPORT_S = 5.0
"""Interval between two reports to the brokers."""
POLL_MS = 200
FETCH_WAIT_MS = 500
FAILURE_PAUSE_S, FAILURE_PAUSE_S_MAX = 0.5, 30.0
REASON_CHARS_MAX = 1_000


class _Runner:
    """The thread of one mirror."""

    def __init__(self, work: Callable[[_Runner], None], name: str) -> None:
        self.stop = threading.Event()
        self._lock = threading.Lock()
        self._topics: dict[str, Mirrored] = {}
        self._thread = threading.Thread(target=work, args=(self,), name=f"sparklog-mirror-{name}", daemon=True)

    def use(self, topics: Mapping[str, Mirrored]) -> None:
        with self._lock:
            self._topics = dict(topics)
        if not self._thread.is_alive() and not self.stop.is_set():
            self._thread.start()

    def topics(self) -> dict[str, Mirrored]:
        with self._lock:
            return dict(self._topics)

    @property
    def has_ended(self) -> bool:
        """True if the thread has stopped, or has never started."""
        return self.stop.is_set() and not self._thread.is_alive()

    def end(self) -> None:
        self.stop.set()
        if self._thread.is_alive():
            self._thread.join()


class MirrorWorker:
    """A mirror worker; for one thread, except `stop`."""

    def __init__(
        self,
        bootstrap_servers: str | None = None,
        *,
        security: Security = None,
        request_timeout_ms: int = 30_000,
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._bootstrap = bootstrap_servers
        self._security = security
        self._timeout_ms = request_timeout_ms
        self._admin = Admin(bootstrap_servers, request_timeout_ms=request_timeout_ms, security=security)
        self._cluster: Cluster = cluster(bootstrap_servers, security)
        self._log = LogSide(self._cluster, request_timeout_ms)
        self._clock_s = clock_s
        self._stop = threading.Event()

    def stop(self) -> None:
        """Make `run` and `run_once` return soon. Any thread is allowed to call it."""
        self._stop.set()

    def close(self) -> None:
        """Close the worker's Admin. The process keeps the connections, and closes idle ones."""
        self._admin.close()

    # -- one time

    def run_once(self, names: Iterable[str] | None = None) -> dict[str, str]:
        """Copy until each mirrored topic has the records that were committed at the source when the copy of its mirror
        began, and copy the groups' offsets. `names`: names of mirrors; None: all. Returns errors by topic or mirror."""
        errors: dict[str, str] = {}
        by_mirror = _by_mirror(self.mirrored_topics())
        for name in sorted(by_mirror) if names is None else list(names):
            if name not in by_mirror:
                errors[name] = f"there is no mirror {name!r} with a topic; use 'sparklog mirror status'"
                continue
            errors |= {topic: e for topic, e in self._run_mirror_once(by_mirror[name]).items() if e}
        return errors

    def _run_mirror_once(self, topics: Mapping[str, Mirrored]) -> dict[str, str]:
        definition = _definition(topics)
        errors = {name: f"paused: {one.topic.paused}" for name, one in topics.items() if one.topic.paused}
        try:
            source = open_source(definition, self._timeout_ms)
        except SparklogError as e:
            return {definition.name: str(e)}
        try:
            self._create_new_topics(definition, source)
            topics = _by_mirror(self.mirrored_topics()).get(definition.name, {})
            sync = MirrorSync(source, self._log, self._decisions(), bytes_per_second=definition.bytes_per_second)
            sync.use(topics)
            sync.round(0)  # adds the partitions that the source has added
            targets = self._targets(source, sync, errors)
            while not self._stop.is_set() and not _has_reached(sync, targets):
                sync.round(FETCH_WAIT_MS)
                self._stop.wait(sync.throttled_s)
                if any(state.failures for state in sync.states.values()):  # the topics can have other columns by now
                    sync.use(_by_mirror(self.mirrored_topics(topics)).get(definition.name, {}))
                errors |= {tp.topic: s.error for tp, s in sync.states.items() if s.is_stuck}
                targets = {tp: end for tp, end in targets.items() if tp.topic not in errors}
            self._report(topics, sync.progress())
            paused = self.mirrored_topics(topics)
            errors |= {name: f"paused: {one.topic.paused}" for name, one in paused.items() if one.topic.paused}
            copier = GroupCopier(self._admin, source)
            copier.copy(definition, {tp: state.end for tp, state in sync.states.items()})
            return errors | {f"group {name}": error for name, error in copier.errors.items()}
        except SparklogError as e:
            return errors | {definition.name: str(e)}
        finally:
            source.close()

    def _targets(self, source: MirrorSource, sync: MirrorSync, errors: dict[str, str]) -> dict[TopicPartition, int]:
        """Return the last stable offsets of the source now. `errors` gets those that are not retriable, by topic."""
        names = sorted({tp.topic for tp in sync.states})
        topics = source.topics(names)
        errors |= {name: absent_text(name) for name in names if name not in topics}
        bounds = source.bounds(topics, [tp for tp in sync.states if tp.topic in topics])
        targets = {}
        for tp, its_bounds in bounds.items():
            if isinstance(its_bounds, SparklogError):
                if not its_bounds.retriable:
                    errors[tp.topic] = str(its_bounds)
                logger.warning("%s: %s", tp, its_bounds)
                continue
            targets[tp] = its_bounds.stable
        return targets

    # -- continuously

    def run(self) -> None:
        """Copy until `stop`. Raises SparklogError: The brokers refuse this client, or its settings are wrong."""
        shares = TopicShares(self._bootstrap, GROUP_ID, GROUP_ID, self._security)
        runners: dict[str, _Runner] = {}
        topics: dict[str, Mirrored] = {}
        look_s = float("-inf")
        try:
            while not self._stop.is_set():
                try:
                    if self._clock_s() - look_s >= FIND_TOPICS_S:
                        topics, look_s = self.mirrored_topics(), self._clock_s()
                        shares.use(topics)
                    owned = shares.owned()
                except SparklogError as e:
                    if not e.retriable:
                        raise
                    logger.warning("the mirror worker waits for the brokers: %s", e)
                    self._stop.wait(FAILURE_PAUSE_S)
                    continue
                self._assign(runners, {name: one for name, one in topics.items() if name in owned})
                self._stop.wait(POLL_MS / 1000)
        finally:
            for runner in runners.values():
                runner.stop.set()
            for runner in runners.values():
                runner.end()
            shares.close()

    def _assign(self, runners: dict[str, _Runner], topics: Mapping[str, Mirrored]) -> None:
        by_mirror = _by_mirror(topics)
        for name in runners.keys() - by_mirror.keys():
            runners[name].stop.set()  # a request can take its time: the membership of the group must not wait for it
            if runners[name].has_ended:
                del runners[name]
        for name, its_topics in by_mirror.items():
            if name not in runners or runners[name].has_ended:
                runners[name] = _Runner(self._run_mirror, name)
            runners[name].use(its_topics)

    def _run_mirror(self, runner: _Runner) -> None:
        """Run one mirror until its runner stops. An error of the source is logged, and tried again."""
        pause_s = FAILURE_PAUSE_S
        while not runner.stop.is_set():
            topics = runner.topics()
            try:
                self._run_source(runner, _definition(topics))
                pause_s = FAILURE_PAUSE_S
            except SparklogError as e:
                logger.warning("mirror %s: %s; trying again", _definition(topics).name, e)
                failed = TopicProgress({}, is_current=False, error=str(e))
                self._report(topics, dict.fromkeys(topics, failed))
            except Exception:  # a defect that one mirror reaches must not stop the other mirrors
                logger.exception("mirror %s failed and will be tried again", _definition(topics).name)
            runner.stop.wait(pause_s)
            pause_s = min(2 * pause_s, FAILURE_PAUSE_S_MAX)

    def _run_source(self, runner: _Runner, definition: MirrorDefinition) -> None:
        """Copy from one source until the runner stops, or the mirror's definition or the settings in its file change.
        Raises SparklogError."""
        security = source_security(definition)
        source = open_source(definition, self._timeout_ms, security)
        try:
            sync = MirrorSync(
                source,
                self._log,
                self._decisions(),
                bytes_per_second=definition.bytes_per_second,
                clock_s=self._clock_s,
            )
            copier = GroupCopier(self._admin, source)
            groups_s, new_topics_s, report_s = self._clock_s(), float("-inf"), float("-inf")
            group_error = ""
            while not runner.stop.is_set():
                topics = runner.topics()
                if _definition(topics) != definition:
                    return
                sync.use(topics)
                if self._clock_s() - new_topics_s >= NEW_TOPICS_S:
                    self._create_new_topics(definition, source)
                    new_topics_s = self._clock_s()
                if not sync.round(FETCH_WAIT_MS):
                    runner.stop.wait(POLL_MS / 1000 if not sync.states else max(0.01, min(sync.throttled_s, 1.0)))
                if self._clock_s() - groups_s >= GROUPS_S:
                    group_error = self._copy_groups(copier, definition, sync)
                    groups_s = self._clock_s()
                if self._clock_s() - report_s >= REPORT_S:
                    self._report(topics, _with_group_error(sync.progress(), group_error))
                    report_s = self._clock_s()
                    if self._has_other_security(definition, security):
                        return
        finally:
            source.close()

    def _has_other_security(self, definition: MirrorDefinition, security: ClientSecurity) -> bool:
        """Return True if the file of the source's settings has others by now. Connections with the old login stay open
        at the source, so that its refusal of a new connection need not concern all of them. While the file cannot be
        read, the worker goes on with the settings that it has."""
        try:
            return source_security(definition) != security
        except SparklogError as e:
            logger.warning("mirror %s goes on with the settings that it has: %s", definition.name, e)
            return False

    def _copy_groups(self, copier: GroupCopier, definition: MirrorDefinition, sync: MirrorSync) -> str:
        """Copy the offsets of groups, and return the error; "" without one. The records go on, and the next copy is
        soon."""
        try:
            copier.copy(definition, {tp: state.end for tp, state in sync.states.items() if state.is_judged})
        except SparklogError as e:
            logger.warning("mirror %s: the offsets of groups are not copied: %s", definition.name, e)
            return f"the offsets of groups are not copied: {e}"
        return copier.failure

    def _report(self, topics: Mapping[str, Mirrored], progress: Mapping[str, TopicProgress]) -> None:
        """Report the progress of topics to the brokers, for metrics and `status`. If the report fails, the next one
        takes its place."""
        now_ms = int(time.time() * 1000)
        reports = [
            report_of(
                name,
                topics[name].topic_id,
                one.source_ends,
                as_of_ms=now_ms if one.is_current else 0,
                error=one.error,
                refused=one.refused,
                held=one.held,
                held_since_ms=now_ms - int(one.held_s * 1000) if one.held else 0,
            )
            for name, one in progress.items()
            if name in topics
        ]
        try:
            report_mirrors(self._cluster, reports)
        except SparklogError as e:
            logger.warning("the progress of %d mirrored topics could not be reported: %s", len(reports), e)

    # -- topics

    def mirrored_topics(self, names: Iterable[str] | None = None) -> dict[str, Mirrored]:
        """Return the mirrored topics by name. `names`: topics to look at. None: all."""
        topics: dict[str, Mirrored] = {}
        some = None if names is None else [n for name in names for n in (name, refused_topic(name))]
        infos = self._cluster.topic_infos(some, timeout_ms=self._timeout_ms)
        for name, info in infos.items():
            topic = mirrored_topic(name, info.configs)
            if topic is not None:
                topics[name] = self._mirrored(topic, info, infos)
        return topics

    def _mirrored(self, topic: MirroredTopic, info: TopicInfo, infos: Mapping[str, TopicInfo]) -> Mirrored:
        typed = None
        if topic.definition.is_typed and not topic.paused:
            registry = topic.definition.registry
            try:
                schemas = registry_schemas(registry) if registry else None
                info = self._with_registered_columns(topic, info, schemas)
                typed = typed_target(topic, info, self._refused_info(topic, info, infos), schemas)
            except SparklogError as e:
                if e.retriable:
                    raise
                self._pause(topic.topic, str(e))
                topic = replace(topic, paused=str(e))
        return Mirrored(
            topic, info.topic_id, info.partitions, info.inflated_bytes_max, typed, info.schemas, info.key_schema
        )

    def _with_registered_columns(self, topic: MirroredTopic, info: TopicInfo, schemas: Schemas | None) -> TopicInfo:
        """Give a topic whose columns are those of its newest schema the columns that a newer schema has, and return its
        state. Raises InvalidTopicError for columns that the topic cannot get, and the registry's errors."""
        if schemas is None or not topic.definition.follows_registry(topic.topic):
            return info
        change = missing_columns(schemas, topic.topic, info.schema)
        if change is None:
            return info
        if change.add is not None:
            self._admin.alter_schema(topic.topic, add_columns=change.add)
        if change.widen is not None:
            self._admin.alter_schema(topic.topic, widen_columns=change.widen)
        return self._cluster.topic(topic.topic, refresh=True, timeout_ms=self._timeout_ms)

    def _refused_info(self, topic: MirroredTopic, info: TopicInfo, infos: Mapping[str, TopicInfo]) -> TopicInfo:
        """Return the topic of a typed topic's refused records, with as many partitions. A missing one is created."""
        name = refused_topic(topic.topic)
        if name not in infos:
            create_refused_topic(
                self._admin, topic.topic, info.partitions, refused_settings(topic.definition, topic.topic, info.configs)
            )
        elif infos[name].partitions >= info.partitions:
            return infos[name]
        else:
            self._add_partitions(name, info.partitions)
        return self._cluster.topic(name, refresh=True, timeout_ms=self._timeout_ms)

    def _create_new_topics(self, definition: MirrorDefinition, source: MirrorSource) -> None:
        """Create the topics that the source has added, unless the mirror is paused or deleted meanwhile."""

        def running(names: Sequence[str] | None) -> list[str]:
            infos = self._cluster.topic_infos(names, timeout_ms=self._timeout_ms)
            topics = [mirrored_topic(name, info.configs) for name, info in infos.items()]
            return [t.topic for t in topics if t and t.definition.name == definition.name and not t.paused]

        first = sorted(running(None))[:1]  # a deletion begins with the first topic

        def proceeds() -> bool:
            return bool(first and running(first))

        if not proceeds():
            return

        for name, reason in create_missing_topics(self._admin, definition, source, proceeds).items():
            logger.warning("mirror %s: topic %s is not mirrored: %s", definition.name, name, reason)

    def _decisions(self) -> Decisions:
        return Decisions(self._pause, self._note_lost, self._begin_at, self._grow, self._evolve, self._set_key_schema)

    def _pause(self, name: str, reason: str) -> None:
        self._admin.alter_topic(name, {PAUSED: reason[:REASON_CHARS_MAX]})

    def _note_lost(self, name: str, partition: int, first: int, end: int) -> None:
        topic = mirrored_topic(name, self._cluster.topic(name, refresh=True, timeout_ms=self._timeout_ms).configs)
        if topic is not None:
            self._admin.alter_topic(name, {LOST: with_lost(topic.lost, partition, first, end)})

    def _begin_at(self, tp: TopicPartition, offset: int) -> None:
        try:
            self._admin.delete_records({tp: offset})
        except (DataLossError, InvalidConfigError) as e:  # the gap stays; readers pass over it
            logger.info("%s: its log begins below the source's: %s", tp, e)

    def _grow(self, name: str, partitions: int) -> None:
        self._add_partitions(name, partitions)

    def _evolve(self, name: str, schema: pa.Schema) -> Mapping[int, pa.Schema]:
        try:
            self._admin.alter_schema(name, schema=schema)
        except SparklogError as e:
            if e.retriable or not any(schema.equals(one) for one in self._schemas(name).values()):
                raise  # else another worker has given the topic this schema, and newer ones
        return self._schemas(name)

    def _schemas(self, name: str) -> Mapping[int, pa.Schema]:
        return self._cluster.topic(name, refresh=True, timeout_ms=self._timeout_ms).schemas

    def _set_key_schema(self, name: str, key_schema: str) -> None:
        self._admin.alter_topic(name, {KEY_SCHEMA_SETTING: key_schema})

    def _add_partitions(self, name: str, partitions: int) -> None:
        try:
            self._admin.add_partitions(name, partitions)
        except InvalidPartitionsError:
            if self._cluster.topic(name, refresh=True, timeout_ms=self._timeout_ms).partitions < partitions:
                raise  # else another worker has added them


def _with_group_error(progress: dict[str, TopicProgress], error: str) -> dict[str, TopicProgress]:
    """Return the progress with an error about the groups of the mirror, which the first topic without an error of its
    own reports."""
    free = [name for name, one in progress.items() if error and not one.error]
    return progress | {name: replace(progress[name], error=error) for name in sorted(free)[:1]}


def _by_mirror(topics: Mapping[str, Mirrored]) -> dict[str, dict[str, Mirrored]]:
    mirrors: dict[str, dict[str, Mirrored]] = {}
    for name, one in topics.items():
        mirrors.setdefault(one.topic.definition.name, {})[name] = one
    return mirrors


def _definition(topics: Mapping[str, Mirrored]) -> MirrorDefinition:
    """Return the mirror's definition; if topics differ in it, that of the first by name."""
    return topics[min(topics)].topic.definition


def _has_reached(sync: MirrorSync, targets: Mapping[TopicPartition, int]) -> bool:
    return all(
        tp not in sync.states or (sync.states[tp].end >= end and sync.states[tp].is_judged)
        for tp, end in targets.items()
    )
