"""One mirror at work: fetches from the leaders of its source, converts, and appends here.

A partition's state is read from the log here whenever it is not certain: at the start, after a failed append, and after
a change of the leader at the source. Nothing else is stored, so that the worker can be killed at any step, and two
workers on one topic do no harm.

The refused records of a typed topic are stored before the gap in the topic, at the same offsets. So the ends of both
logs are the only state: what lies between them is decided.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import pyarrow as pa
from msgspec import Struct
from msgspec.structs import replace

from sparklog.client.reading.mirrored_ends import MirroredEnd
from sparklog.errors import (
    BrokerNotAvailableError,
    CorruptBatchError,
    LeaderNotAvailableError,
    OffsetOutOfRangeError,
    PolicyViolationError,
    SparklogError,
    UnknownTopicOrPartitionError,
)
from sparklog.mirror.batches import ENVELOPE_WRITER, PlacedWriter
from sparklog.mirror.definition import MirroredTopic
from sparklog.mirror.placing import Placed
from sparklog.mirror.refused import RefusedLog
from sparklog.mirror.rules import (
    NO_EPOCH,
    NO_SCHEMA,
    EpochAnswer,
    Go,
    Pause,
    Skip,
    SourceBounds,
    absent_text,
    judge_bounds,
    judge_epoch,
    judge_topic,
)
from sparklog.mirror.source import ConversionTarget, FetchedPartition, MirrorSource, SourceTopic
from sparklog.mirror.typed import TypedConversion, TypedTarget
from sparklog.mirror.worker.log_side import LogSide, PlacedAppend
from sparklog.types import TopicPartition

logger = logging.getLogger(__name__)

METADATA_S = 5.0
"""Interval between two looks at the source's topics and leaders."""
RETRY_S, RETRY_S_MAX = 0.2, 10.0
"""First and longest pause of a partition after an error."""
FAILURES_MAX, LASTING_FAILURES_MAX = 6, 3
"""Numbers of errors in succession after which a partition is stuck: in all, and if the last one is not retriable."""
DOUBTS_MAX = 4
"""Number of judgements in succession that find other records at the source, and are repeated before a topic is paused:
a deposed leader, which was suspended and goes on, answers with old ends until it learns of its successor."""
BAD_ANSWERS_MAX = 3
"""Number of answers in succession that cannot be converted, after which the topic is paused: one can be damaged on its
way, three are not."""


PAUSE_SHOWN_S = 30.0
"""Time after which a pause that the topic's settings do not show has been ended by a user."""


class Mirrored(Struct, frozen=True):
    """A mirrored topic with the facts about it that a mirror needs."""

    topic: MirroredTopic
    topic_id: str
    partitions: int
    inflated_bytes_max: int
    """Largest decompressed size of a batch."""
    typed: TypedTarget | None = None
    """Columns that the values of a Kafka cluster fill; None: an envelope topic, or the source is a sparklog cluster."""
    schemas: Mapping[int, pa.Schema] = {}
    """Schemas of the topic by id."""
    key_schema: str = ""
    """Setting `kafka.key.schema` of the topic; "": it has none."""


class Decisions(Struct, frozen=True):
    """Calls by which the mirror stores its decisions in the topics' settings."""

    pause: Callable[[str, str], None]
    """Pauses a topic with a reason."""
    note_lost: Callable[[str, int, int, int], None]
    """Notes lost offsets of a topic: partition, first, end."""
    begin_at: Callable[[TopicPartition, int], None]
    """Deletes the offsets below the first one of the source from a partition without records."""
    grow: Callable[[str, int], None]
    """Adds partitions to a topic, up to a total."""
    evolve: Callable[[str, pa.Schema], Mapping[int, pa.Schema]]
    """Gives a topic a newer schema, and returns all its schemas by id."""
    set_key_schema: Callable[[str, str], None]
    """Gives a topic the key schema of the source's topic."""


class PartitionState(Struct):
    """The progress of one partition."""

    end: int = 0
    """Log end here, at which the mirror continues."""
    epoch: int = NO_EPOCH
    """The source's leader epoch of the last batch here."""
    leader_epoch: int = NO_EPOCH
    """Leader epoch at the source in which the state was judged."""
    is_judged: bool = False
    stable: int = -1
    """The source's last stable offset; -1: not known."""
    held: int = 0
    """Number of offsets after it, which wait for the end of an open transaction."""
    held_since_s: float = 0.0
    """Time since which offsets wait after the same last stable offset."""
    not_before_s: float = 0.0
    failures: int = 0
    """Number of errors in succession."""
    is_lasting: bool = False
    """True if a repetition does not mend the last error."""
    doubts: int = 0
    """Number of judgements in succession that have found other records at the source."""
    bad_answers: int = 0
    turn: int = 0
    """Number of the fetch that has brought records last. A fetch answer is limited, so that the partitions with the
    smallest number come first."""
    error: str = ""
    schema_id: int = NO_SCHEMA
    """Id of the schema of the last batch here."""
    refused: RefusedLog = RefusedLog()
    """State of the refused log; empty for an envelope topic."""

    @property
    def is_stuck(self) -> bool:
        """True if the partition has failed several times in succession."""
        return self.failures >= (LASTING_FAILURES_MAX if self.is_lasting else FAILURES_MAX)

    @property
    def is_current(self) -> bool:
        """True if the partition has all committed records that the source had at the last answer."""
        return self.is_judged and not self.failures and 0 <= self.stable <= self.end

    def note_source(self, end: int, stable: int, now_s: float) -> None:
        """Note the source's high watermark and last stable offset."""
        if stable != self.stable or not self.held:
            self.held_since_s = now_s
        self.stable, self.held = stable, max(0, end - stable)


class TopicProgress(Struct, frozen=True):
    """The progress of one topic."""

    source_ends: dict[int, int]
    """Last stable offset of the source, by partition."""
    is_current: bool
    """True if all partitions have all committed records that the source had at the last answers."""
    error: str
    """Error of a partition; empty: none."""
    refused: int = -1
    """Number of records so far that do not fit the columns; -1: not known."""
    held: dict[int, int] = {}
    """Number of offsets at the source that wait for the end of an open transaction, by partition."""
    held_s: float = 0.0
    """Longest time for which offsets of a partition have waited after the same last stable offset."""


class MirrorSync:
    """The work of one mirror, for one thread."""

    def __init__(
        self,
        source: MirrorSource,
        log_side: LogSide,
        decisions: Decisions,
        *,
        bytes_per_second: int = 0,
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """`bytes_per_second`: largest rate of fetched bytes; 0: no limit."""
        self.source = source
        self.states: dict[TopicPartition, PartitionState] = {}
        self._log = log_side
        self._decisions = decisions
        self._clock_s = clock_s
        self._topics: dict[str, Mirrored] = {}
        self._source_topics: dict[str, SourceTopic] = {}
        self._looked_s = float("-inf")
        self._paused_here: dict[str, float] = {}
        """Topics that this object has paused, with the time, until their settings show the pause."""
        self._turn = 0
        self._bytes_per_second = bytes_per_second
        self._fetch_not_before_s = float("-inf")
        """Time of the next fetch by the limit of the rate."""

    @property
    def throttled_s(self) -> float:
        """Seconds until the limit of the rate allows the next fetch; 0: it is allowed."""
        return max(0.0, self._fetch_not_before_s - self._clock_s())

    def use(self, topics: Mapping[str, Mirrored]) -> None:
        """Mirror these topics from now on."""
        expired_s = self._clock_s() - PAUSE_SHOWN_S
        self._paused_here = {
            name: paused_s
            for name, paused_s in self._paused_here.items()
            if name in topics and not topics[name].topic.paused and paused_s > expired_s
        }
        active = {name: one for name, one in topics.items() if not one.topic.paused and name not in self._paused_here}
        tps = {TopicPartition(name, p) for name, one in active.items() for p in range(one.partitions)}
        self.states = {tp: self.states.get(tp, PartitionState()) for tp in sorted(tps)}
        if active.keys() != self._topics.keys():
            self._looked_s = float("-inf")
        self._topics = active

    def round(self, wait_ms: int) -> bool:
        """Fetch once from each leader of the source. `wait_ms`: longest wait for records. Returns True if records or
        gaps were appended. Raises errors of the source's metadata."""
        self._look()
        now_s = self._clock_s()
        due = [tp for tp, state in self.states.items() if state.not_before_s <= now_s]
        self._judge([tp for tp in due if not self.states[tp].is_judged])
        if self.throttled_s:
            return False
        by_leader: dict[Any, list[TopicPartition]] = {}
        for tp in due:
            leader = self.source.leader(self._source_topics, tp)
            if leader is not None and tp in self.states and self.states[tp].is_judged:
                by_leader.setdefault(leader, []).append(tp)
        has_appended = False
        for leader, tps in by_leader.items():
            has_appended = self._copy(leader, tps, wait_ms // len(by_leader)) or has_appended
        return has_appended

    def progress(self) -> dict[str, TopicProgress]:
        """Return the progress of each topic, after a round."""
        topics: dict[str, TopicProgress] = {}
        now_s = self._clock_s()
        for tp, state in self.states.items():
            before = topics.get(tp.topic, TopicProgress({}, is_current=True, error="", refused=0))
            ends = before.source_ends | ({tp.partition: state.stable} if state.stable >= 0 else {})
            error = before.error or (f"partition {tp.partition}: {state.error}" if state.error else "")
            topics[tp.topic] = TopicProgress(
                ends,
                is_current=before.is_current and state.is_current,
                error=error,
                refused=-1 if before.refused < 0 or state.stable < 0 else before.refused + state.refused.count,
                held=before.held | ({tp.partition: state.held} if state.held else {}),
                held_s=max(before.held_s, now_s - state.held_since_s if state.held else 0.0),
            )
        return topics

    def look_again(self) -> None:
        """Read the source's topics and leaders at the next round."""
        self._looked_s = float("-inf")

    # -- the source's topics

    def _look(self) -> None:
        if self._clock_s() - self._looked_s < METADATA_S or not self._topics:
            return
        topics = self.source.topics(sorted(self._topics))
        self._looked_s = self._clock_s()
        self._source_topics = {}
        for name, mirrored in list(self._topics.items()):
            topic = topics.get(name)
            if topic is None:
                self._fail_topic(name, absent_text(name))
                continue
            verdict = judge_topic(mirrored.topic.source_topic_id, topic.topic_id)
            if isinstance(verdict, Pause):
                self._pause(name, verdict.reason)
                continue
            self._source_topics[name] = topic
            self._follow(topic)
            self._follow_schemas(topic)
            self._follow_key_schema(topic)

    def _follow(self, topic: SourceTopic) -> None:
        """Judge the partitions again whose leaders have changed, and add those that the source has added."""
        here = [tp for tp in self.states if tp.topic == topic.name]
        if len(topic.partitions) > len(here):
            try:
                self._decisions.grow(topic.name, len(topic.partitions))
            except SparklogError as e:
                if e.retriable:
                    raise
                self._pause(
                    topic.name, f"the source has {len(topic.partitions)} partitions, the topic here {len(here)}: {e}"
                )
                return
            for number in range(len(here), len(topic.partitions)):
                leader_epoch = topic.partitions[number].leader_epoch
                self.states[TopicPartition(topic.name, number)] = PartitionState(leader_epoch=leader_epoch)
        for tp in here:
            if tp.partition < len(topic.partitions):
                state, epoch = self.states[tp], topic.partitions[tp.partition].leader_epoch
                if epoch != state.leader_epoch:
                    state.is_judged, state.leader_epoch = False, epoch

    def _follow_schemas(self, topic: SourceTopic) -> None:
        """Give the topic here the schemas that the source's topic has got, in their order."""
        mirrored = self._topics.get(topic.name)
        if mirrored is None:
            return  # it was paused
        for schema in topic.schemas:
            if any(schema.equals(one) for one in mirrored.schemas.values()):
                continue
            try:
                mirrored = replace(mirrored, schemas=self._decisions.evolve(topic.name, schema))
            except SparklogError as e:
                if e.retriable:
                    raise
                self._pause(topic.name, f"the source's topic has columns that the topic here cannot get: {e}")
                return
            self._topics[topic.name] = mirrored

    def _follow_key_schema(self, topic: SourceTopic) -> None:
        """Give the topic here the key schema that the source's topic has got: the copied rows are in its partitions."""
        mirrored = self._topics.get(topic.name)
        if mirrored is None or topic.key_schema in ("", mirrored.key_schema):
            return
        try:
            self._decisions.set_key_schema(topic.name, topic.key_schema)
        except SparklogError as e:
            if e.retriable:
                raise
            self._pause(topic.name, f"the source's topic has a key schema that the topic here cannot get: {e}")
            return
        self._topics[topic.name] = replace(mirrored, key_schema=topic.key_schema)

    # -- judgement

    def _judge(self, tps: list[TopicPartition]) -> None:
        """Read the ends here and the source's offsets, and decide how each partition continues."""
        tps = [tp for tp in tps if tp.topic in self._source_topics and tp in self.states]
        if not tps:
            return
        ends = self._log.ends(tps)
        refused = self._log.refused_logs({tp: ends[tp].end for tp in tps if self._topics[tp.topic].typed is not None})
        bounds = self.source.bounds(self._source_topics, tps)
        kept = {tp: _kept_end(ends[tp], refused.get(tp)) for tp in tps}
        epochs = {tp: epoch for tp, (_, epoch) in kept.items() if epoch != NO_EPOCH}
        answers = self.source.epoch_ends(self._source_topics, epochs)
        for tp in tps:
            if tp not in self.states:
                continue  # its topic was paused by another partition
            state, end, answer = self.states[tp], ends[tp], answers.get(tp)
            state.end, state.epoch, state.schema_id = end.end, end.epoch, end.schema_id
            state.refused = refused.get(tp, RefusedLog())
            its_bounds = bounds[tp]
            if isinstance(its_bounds, SparklogError):
                self.look_again()
                self._fail(tp, its_bounds)
                continue
            if isinstance(answer, SparklogError):
                self.look_again()
                self._fail(tp, answer)
                continue
            state.note_source(its_bounds.end, its_bounds.stable, self._clock_s())
            verdict = Go() if answer is None else judge_epoch(*kept[tp], answer)
            if isinstance(verdict, Pause):
                self._doubt(tp, verdict, kept[tp][1])
                continue
            self._follow_bounds(tp, end, its_bounds, kept[tp][1])

    def _doubt(self, tp: TopicPartition, verdict: Pause, epoch: int) -> None:
        """Pause after several judgements that the source has other records. Without the `epoch` of the last record a
        later judgement could miss the difference, so that the first one counts."""
        state = self.states[tp]
        state.is_judged = False
        if epoch == NO_EPOCH or state.doubts >= DOUBTS_MAX:
            self._pause(tp.topic, f"partition {tp.partition}: {verdict.reason}")
            return
        state.doubts += 1
        self.look_again()
        self._fail(
            tp, LeaderNotAvailableError(f"{verdict.reason} (asked again, in case that a deposed leader answers)")
        )

    def _follow_bounds(self, tp: TopicPartition, end: MirroredEnd, bounds: SourceBounds, epoch: int) -> None:
        verdict = judge_bounds(end.end, end.is_empty, bounds, self.states[tp].refused.end)
        if isinstance(verdict, Pause):
            self._doubt(tp, verdict, epoch)
        elif isinstance(verdict, Skip):
            if verdict.is_lost:
                logger.warning("%s: the source has deleted the offsets %d to %d", tp, end.end, verdict.start - 1)
                self._decisions.note_lost(tp.topic, tp.partition, end.end, verdict.start)
            gap = PlacedAppend(end.end, self._writer(tp.topic).gap(end.end, verdict.start, NO_EPOCH))
            placed = Placed(tuple(gap.batches), verdict.start, NO_EPOCH, 0, verdict.start - end.end)
            if self._append({tp: (gap, placed)}) and not verdict.is_lost:
                self._decisions.begin_at(tp, verdict.start)
        else:
            self.states[tp].is_judged, self.states[tp].doubts = True, 0

    # -- copying

    def _copy(self, leader: Any, tps: Iterable[TopicPartition], wait_ms: int) -> bool:
        states = sorted(((tp, self.states[tp]) for tp in tps if tp in self.states), key=lambda one: one[1].turn)
        positions = {tp: (s.end, s.leader_epoch, s.epoch) for tp, s in states}
        self._turn += 1
        try:
            fetched = self.source.fetch(leader, positions, wait_ms=wait_ms)
        except SparklogError as e:
            self.look_again()
            for tp in positions:
                self._fail(tp, e)
            return False
        self._note_fetched(sum(part.records.size_bytes for part in fetched.values()))
        appends: dict[TopicPartition, tuple[PlacedAppend, Placed]] = {}
        for tp, part in fetched.items():
            placed = self._placed(tp, part)
            if placed is None:
                continue
            if placed.batches:
                appends[tp] = PlacedAppend(self.states[tp].end, placed.batches), placed
                self.states[tp].turn = self._turn
            elif placed.refused.stop:
                self._pause(tp.topic, placed.refused.stop)
        return self._append(self._append_refused(appends))

    def _note_fetched(self, size_bytes: int) -> None:
        if self._bytes_per_second:
            begin_s = max(self._fetch_not_before_s, self._clock_s())
            self._fetch_not_before_s = begin_s + size_bytes / self._bytes_per_second

    def _placed(self, tp: TopicPartition, part: FetchedPartition) -> Placed | None:
        """Return a partition's converted records; None if there is an error, which is dealt with."""
        state = self.states.get(tp)
        if state is None:
            return None
        if part.diverging is not None:
            self._note_other_epoch(tp, part.diverging)
            return None
        if part.error is not None:
            if not part.is_out_of_range:
                self.look_again()
            state.is_judged = False
            self._fail(tp, part.error)
            return None
        mirrored = self._topics[tp.topic]
        limit, now_ms = mirrored.inflated_bytes_max, int(time.time() * 1000)
        try:
            target = ConversionTarget(limit, now_ms, self._conversion(tp), mirrored.schemas)
            placed = part.records.place(state.end, target)
        except (LeaderNotAvailableError, BrokerNotAvailableError) as e:
            # another worker, or the source, has newer columns; or the schema registry does not answer
            self.look_again()
            self._fail(tp, e)
            return None
        except SparklogError as e:
            self._note_bad_answer(tp, e)
            return None
        state.note_source(part.end, part.stable, self._clock_s())
        state.bad_answers, state.failures, state.error = 0, 0, ""
        return placed

    def _note_other_epoch(self, tp: TopicPartition, answer: EpochAnswer) -> None:
        """Pause if the source has other records than the mirror, by an answer that has no records for this reason."""
        state = self.states[tp]
        verdict = judge_epoch(state.end, state.epoch, answer)
        if isinstance(verdict, Pause):
            self._doubt(tp, verdict, state.epoch)
        else:
            text = (
                f"the source says that its records differ, but its leader epoch {answer.epoch} ends at the same offset"
            )
            self._note_bad_answer(tp, CorruptBatchError(text))

    def _note_bad_answer(self, tp: TopicPartition, error: SparklogError) -> None:
        """Note an answer that contradicts itself, and pause after several ones."""
        state = self.states[tp]
        state.bad_answers += 1
        if state.bad_answers >= BAD_ANSWERS_MAX:
            self._pause(tp.topic, f"partition {tp.partition}, after offset {state.end - 1}: {error}")
        else:
            self._fail(tp, error)

    def _conversion(self, tp: TopicPartition) -> TypedConversion | None:
        target = self._topics[tp.topic].typed
        if target is None:
            return None
        others = sum(s.refused.count for other, s in self.states.items() if other.topic == tp.topic and other != tp)
        state = self.states[tp]
        return TypedConversion(
            target, tp.partition, state.refused, others, position=state.end, schema_id=state.schema_id
        )

    def _writer(self, topic: str) -> PlacedWriter:
        target, schemas = self._topics[topic].typed, self._topics[topic].schemas
        if target is not None:
            return PlacedWriter(target.schema, target.schema_id)
        return PlacedWriter(schemas[max(schemas)], max(schemas)) if schemas else ENVELOPE_WRITER

    def _append_refused(
        self, appends: Mapping[TopicPartition, tuple[PlacedAppend, Placed]]
    ) -> dict[TopicPartition, tuple[PlacedAppend, Placed]]:
        """Append the refused records, and return the appends of the partitions whose refused records are stored."""
        refused = {
            tp: PlacedAppend(self.states[tp].refused.end, placed.refused.batches)
            for tp, (_, placed) in appends.items()
            if placed.refused.batches
        }
        outcomes = self._log.append_refused(refused) if refused else {}
        ready = {}
        for tp, append in appends.items():
            error = outcomes.get(tp)
            if error is not None:
                self._note_append_error(tp, error)
                continue
            if tp in refused:
                self.states[tp].refused = append[1].refused.log
            ready[tp] = append
        return ready

    def _append(self, appends: Mapping[TopicPartition, tuple[PlacedAppend, Placed]]) -> bool:
        """Append, and note the new ends. Returns True if a partition has grown."""
        if not appends:
            return False
        outcomes = self._log.append({tp: one for tp, (one, _) in appends.items()})
        has_grown = False
        for tp, error in outcomes.items():
            state, placed = self.states.get(tp), appends[tp][1]
            if state is None:
                continue  # its topic was paused by another partition
            if error is None:
                state.end, state.epoch, has_grown = placed.next_offset, placed.epoch, True
                typed = self._topics[tp.topic].typed
                state.schema_id = NO_SCHEMA if typed is None else typed.schema_id
                if placed.refused.stop:
                    self._pause(tp.topic, placed.refused.stop)
            else:
                self._note_append_error(tp, error)
        return has_grown

    def _note_append_error(self, tp: TopicPartition, error: SparklogError) -> None:
        state = self.states.get(tp)
        if state is None:
            return  # its topic was paused by another partition
        state.is_judged = False
        if isinstance(error, UnknownTopicOrPartitionError | PolicyViolationError):
            logger.info("%s is not mirrored any more: %s", tp, error)
            self._fail(tp, error)
        elif isinstance(error, OffsetOutOfRangeError):
            logger.info("%s: another worker has appended", tp)
        elif isinstance(error, CorruptBatchError):
            self._pause(tp.topic, f"partition {tp.partition}, after offset {state.end - 1}: {error}")
        else:
            self._fail(tp, error)

    # -- errors

    def _fail(self, tp: TopicPartition, error: SparklogError) -> None:
        """Note an error, and leave the partition alone for a while."""
        state = self.states[tp]
        if str(error) != state.error:
            logger.warning("%s: %s", tp, error)
        state.failures += 1
        state.error, state.is_lasting = str(error), not error.retriable
        state.not_before_s = self._clock_s() + min(RETRY_S * 2 ** min(state.failures - 1, 10), RETRY_S_MAX)

    def _fail_topic(self, name: str, reason: str) -> None:
        for tp in [tp for tp in self.states if tp.topic == name]:
            self._fail(tp, UnknownTopicOrPartitionError(reason))

    def _pause(self, name: str, reason: str) -> None:
        """Pause a topic, and forget its partitions until it is resumed."""
        logger.error("topic %s is paused: %s", name, reason)
        self._decisions.pause(name, reason)
        self._paused_here[name] = self._clock_s()
        self._topics.pop(name, None)
        self._source_topics.pop(name, None)
        self.states = {tp: state for tp, state in self.states.items() if tp.topic != name}


def _kept_end(end: MirroredEnd, refused: RefusedLog | None) -> tuple[int, int]:
    """Return the end of the decided offsets of a partition, and the source's leader epoch of the last one."""
    if refused is None or refused.end <= end.end:
        return end.end, end.epoch
    return refused.end, refused.epoch
