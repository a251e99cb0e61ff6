"""The group coordinator of one `__consumer_offsets` partition: a pure state machine.

Its inputs are requests, the clock, markers and changed topics; its outputs are replies and records. A call changes the
state at once. The shell appends the records of each call as one batch, in the order of the calls. It sends a reply only
when all records of this and earlier calls are below the high watermark. If an append fails, the shell discards the
state and loads it again (`replay`, `loaded`). So no reply contains a change that a restart could undo.

A group has the kind "consumer" if it has, or had, members. Otherwise its kind is "offsets": a program such as Spark's
source commits offsets without joining. `now_ms` is on a monotonic clock and only compared; `wall_ms` is the time of day
and is stored.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Generic, NamedTuple, TypeVar

from sparklog.errors import (
    CoordinatorLoadingError,
    FencedLeaderEpochError,
    FencedMemberEpochError,
    GroupIdNotFoundError,
    GroupMaxSizeReachedError,
    InvalidGroupIdError,
    NonEmptyGroupError,
    SparklogError,
    StaleMemberEpochError,
    UnknownMemberIdError,
    UnknownTopicIdError,
    UnknownTopicOrPartitionError,
    UnstableOffsetCommitError,
)
from sparklog.protocol import group_messages as m
from sparklog.replication import group_records as records
from sparklog.replication.group_membership import (
    EPOCH_JOIN,
    STATE_EMPTY,
    Group,
    GroupConfig,
    GroupValues,
    Member,
    RegexDue,
    Safeguards,
    Topics,
    group_from_values,
)
from sparklog.replication.group_offsets import GroupOffsets
from sparklog.replication.group_records import OffsetValue, Record
from sparklog.replication.group_settings import GroupSettings, group_config
from sparklog.types import TopicPartition

KIND_CONSUMER, KIND_OFFSETS = "consumer", "offsets"
NO_EPOCH = -1
REGEX_REFRESH_MS = 60_000
"""Longest time in ms until a regular expression is resolved again, because a member's permissions may have changed."""
A = TypeVar("A")


class Step(NamedTuple, Generic[A]):
    """A reply, and the records that must be below the high watermark before it is sent."""

    answer: A
    records: list[Record]


class Reservation(NamedTuple):
    """A group that has classic members at Kafka's gateway. `is_requested`: True if a member waits to join it."""

    until_ms: int
    is_requested: bool = False


class Matching(NamedTuple):
    """The topics that match a member's regular expression. `topics_version`: number of the version of the cluster's
    topics from which they were resolved, or of an earlier one."""

    topics: list[str]
    topics_version: int


class GroupCoordinator:
    """All groups of one partition. `topics` are the topics of the cluster."""

    def __init__(self, config: GroupConfig, topics: Topics, safeguards: Safeguards = Safeguards()) -> None:  # noqa: B008
        self._config = config
        self._safeguards = safeguards
        self._topics = topics
        self._topics_version = 0
        """Number of the changes of `_topics` so far."""
        self._first_epochs: Mapping[str, int] = {}
        """First leader epoch by topic, for topics whose name an earlier topic may have had; others begin with 0."""
        self._settings: GroupSettings = {}
        self._groups: dict[str, Group] = {}
        self._reservations: dict[str, Reservation] = {}
        """The groups whose members Kafka's gateway keeps. Not stored: the gateway renews them."""
        self.offsets = GroupOffsets(safeguards)
        self._values: dict[str, GroupValues] = {}

    # -- reading the log again

    def replay(self, key: bytes, value: bytes | None, producer_id: int = -1) -> None:
        """Replay the next record of the log. `producer_id`: the producer of a record in a transaction, else -1.

        Raises LogCorruptError.
        """
        decoded = records.decode_key(key)
        parsed = None if value is None else records.decode_value(decoded.kind, value)
        if decoded.kind == records.KIND_OFFSET:
            assert decoded.partition is not None
            if parsed is None:
                self.offsets.remove(decoded.group_id, decoded.partition)
            else:
                self.offsets.put(decoded.group_id, decoded.partition, parsed, producer_id)
            return
        values = self._values.setdefault(decoded.group_id, GroupValues())
        if decoded.kind == records.KIND_GROUP:
            values.group = parsed
            return
        by_member: dict[int, dict[str, object]] = {
            records.KIND_MEMBER: values.wishes,  # type: ignore[dict-item]
            records.KIND_TARGET: values.targets,  # type: ignore[dict-item]
            records.KIND_CURRENT: values.currents,  # type: ignore[dict-item]
        }
        if parsed is None:
            by_member[decoded.kind].pop(decoded.member_id, None)
        else:
            by_member[decoded.kind][decoded.member_id] = parsed

    def loaded(self, now_ms: int, wall_ms: int) -> list[Record]:
        """Create the groups after the replay of all records. Returns the records of the changes that follow from topics
        created or deleted since the log was written."""
        for group_id, values in self._values.items():
            group = group_from_values(group_id, values, self._config_of(group_id), self._safeguards, now_ms)
            if group is not None:
                self._groups[group_id] = group
        self._values = {}
        return self.set_topics(self._topics, wall_ms, self._first_epochs)

    def set_group_settings(self, settings: GroupSettings) -> list[Record]:
        """Replace the settings of single groups. A new session timeout counts from a member's next heartbeat on. The
        list of records is always empty: the cluster's image has the settings."""
        self._settings = settings
        for group_id, group in self._groups.items():
            group.config = self._config_of(group_id)
        return []

    def _config_of(self, group_id: str) -> GroupConfig:
        return group_config(self._config, self._settings.get(group_id, {}))

    # -- members

    @property
    def topics_version(self) -> int:
        """Number of the present version of the cluster's topics."""
        return self._topics_version

    def regex_to_resolve(self, request: m.GroupHeartbeatRequest, now_ms: int) -> str:
        """Return the regular expression whose topics `heartbeat` needs with this request: a new one, or one whose
        topics may have changed since they were resolved. Returns "" if the heartbeat needs no topics."""
        if request.member_epoch < 0:
            return ""
        if request.topic_regex is not None:
            return request.topic_regex
        group = self._groups.get(request.group_id)
        member = None if group is None else group.members.get(request.member_id)
        if member is None or not member.wish.topic_regex or not member.regex_due.is_due(self._topics_version, now_ms):
            return ""
        return member.wish.topic_regex

    def heartbeat(
        self,
        request: m.GroupHeartbeatRequest,
        host: str,
        now_ms: int,
        wall_ms: int,
        matching: Matching | None = None,
    ) -> Step[m.GroupHeartbeatResponse]:
        """Handle a heartbeat. `matching`: the topics that match the expression of `regex_to_resolve`, as far as the
        member can describe them; None without an expression. Raises the errors of `Group.heartbeat`,
        InvalidGroupIdError and GroupMaxSizeReachedError; an error leaves the group unchanged."""
        check_group_id(request.group_id)
        group = self._groups.get(request.group_id)
        self._check_reservation(request, group, now_ms)
        if group is None:
            self._check_room(len(self._groups))
            group = Group(request.group_id, self._config_of(request.group_id), self._safeguards)
        answer = group.heartbeat(
            request, host, self._topics, now_ms, wall_ms, None if matching is None else matching.topics
        )
        self._groups[request.group_id] = group
        if matching is not None:
            due = RegexDue(matching.topics_version, now_ms + REGEX_REFRESH_MS)
            group.members[answer.member_id].regex_due = due
        assigned = None if answer.assigned is None else topic_partitions(answer.assigned)
        topic_ids = [self._topics.get(t.topic, ("", 0))[0] for t in assigned or ()]
        response = m.GroupHeartbeatResponse(
            answer.member_id, answer.epoch, answer.interval_ms, assigned, topic_ids=topic_ids
        )
        return Step(response, _take(group))

    def _check_reservation(self, request: m.GroupHeartbeatRequest, group: Group | None, now_ms: int) -> None:
        """Reserve a group for the classic members of Kafka's gateway, or end the reservation. Raises NonEmptyGroupError
        for a reservation if the group has members or a member waits to join it, and CoordinatorLoadingError for a
        member that has to wait."""
        reserved = self._reservations.get(request.group_id)
        if reserved is not None and now_ms >= reserved.until_ms:
            del self._reservations[request.group_id]
            reserved = None
        if request.reserve_ms == 0:
            self._reservations.pop(request.group_id, None)
        elif request.reserve_ms > 0:
            if reserved is None:
                self._check_room(len(self._reservations))
            is_requested = reserved is not None and reserved.is_requested
            self._reservations[request.group_id] = Reservation(now_ms + request.reserve_ms, is_requested)
            if is_requested or (group is not None and group.members):
                raise NonEmptyGroupError(f"members of group {request.group_id!r} have joined, or wait to join")
        elif reserved is not None and request.member_epoch == EPOCH_JOIN:
            self._reservations[request.group_id] = reserved._replace(is_requested=True)
            raise CoordinatorLoadingError(
                f"group {request.group_id!r} has members of Kafka's classic protocol, which join again first: try again"
            )

    def tick(self, now_ms: int, wall_ms: int) -> list[Record]:
        """Remove members whose session or release of partitions has timed out. Returns the records of the changes."""
        out: list[Record] = []
        for group_id in [i for i, reserved in self._reservations.items() if now_ms >= reserved.until_ms]:
            del self._reservations[group_id]
        for group in self._groups.values():
            if group.members:
                group.expire(self._topics, now_ms, wall_ms)
                out += _take(group)
        return out

    def prolong(self, ms: int) -> list[Record]:
        """Extend every member's deadlines by `ms`, a time during which no heartbeat could arrive. Deadlines are not
        stored, so the list of records is always empty."""
        for group_id, reserved in self._reservations.items():
            self._reservations[group_id] = reserved._replace(until_ms=reserved.until_ms + ms)
        for group in self._groups.values():
            for member in group.members.values():
                member.session_until_ms += ms
                if member.revoke_by_ms is not None:
                    member.revoke_by_ms += ms
        return []

    def set_topics(self, topics: Topics, wall_ms: int, first_epochs: Mapping[str, int] | None = None) -> list[Record]:
        """Replace the topics by the cluster's present ones, and their first leader epochs (None: all are 0).

        Groups that subscribe to changed topics get a new target, and offsets of deleted topics are removed, also those
        in open transactions. Returns the records of these changes.
        """
        self._topics, self._first_epochs = topics, first_epochs or {}
        self._topics_version += 1
        out: list[Record] = []
        stale: dict[tuple[str, TopicPartition], None] = {}
        present: set[tuple[str, TopicPartition]] = set()
        for group_id, tp, value in itertools.chain(self.offsets.items(), self.offsets.pending_items()):
            topic_id, count = topics.get(tp.topic, ("", 0))
            if topic_id == value.topic_id and tp.partition < count:
                present.add((group_id, tp))
            else:
                stale[group_id, tp] = None
        for group_id, tp in stale:
            if (group_id, tp) not in present:  # which the removal would remove, too
                out += self.offsets.delete(group_id, [tp])
        for group in self._groups.values():
            group.on_topics(topics, wall_ms)
            out += _take(group)
        return out

    # -- offsets

    def commit(
        self,
        group_id: str,
        offsets: Sequence[m.CommittedOffset],
        member_id: str,
        member_epoch: int,
        wall_ms: int,
        *,
        sequence: int = -1,
        producer_id: int = -1,
    ) -> Step[list[m.OffsetResult]]:
        """Commit offsets for a member, or for a group without members if `member_id` is "" and `member_epoch` -1. Each
        partition has its own result.

        `sequence` orders the commits of a member; -1: the order is not checked. `producer_id` is the producer of the
        transaction that the offsets belong to; with -1 they take effect at once.

        Raises InvalidGroupIdError, UnknownMemberIdError, StaleMemberEpochError, NonEmptyGroupError,
        GroupMaxSizeReachedError (too many groups or offsets)."""
        check_group_id(group_id)
        group = self._groups.get(group_id)
        member = self._check_member(group, group_id, member_id, member_epoch)
        if group_id not in self.offsets.counts:
            self._check_room(len(self.offsets.counts))
        if member is not None:
            member.note_commit(sequence, self._safeguards)
        results: list[m.OffsetResult] = []
        out: list[Record] = []
        for entry in offsets:
            tp = TopicPartition(entry.topic, entry.partition)
            error = self._refusal(group, member, entry) or self._no_room_for(group_id, tp)
            if error is not None:
                results.append(m.OffsetResult(*tp, error.code, str(error)))
                continue
            topic_id = self._topics[tp.topic][0]
            value = OffsetValue(entry.offset, entry.leader_epoch, entry.metadata, wall_ms, topic_id)
            self.offsets.put(group_id, tp, value, producer_id)
            out.append((records.offset_key(group_id, tp), records.encode_value(value)))
            results.append(m.OffsetResult(*tp, 0))
        return Step(results, out)

    def _check_room(self, groups: int) -> None:
        """Raise GroupMaxSizeReachedError if the partition keeps `groups` groups, and no more are allowed."""
        if groups >= self._config.groups_max:
            raise GroupMaxSizeReachedError(
                f"this partition of __consumer_offsets keeps {groups} groups, max.groups.per.partition is "
                f"{self._config.groups_max}: delete unused groups (`sparklog group delete`), or raise the setting"
            )

    def _check_member(self, group: Group | None, group_id: str, member_id: str, member_epoch: int) -> Member | None:
        if not member_id and member_epoch == NO_EPOCH:
            if group is not None and group.members:
                raise NonEmptyGroupError(
                    f"group {group_id!r} has members ({len(group.members)}), and only they can change its offsets: "
                    "stop them first"
                )
            return None
        member = None if group is None else group.members.get(member_id)
        if member is None:
            if not self._safeguards.member_epoch:
                return None
            raise UnknownMemberIdError(f"group {group_id!r} has no member {member_id!r}; it has to join again")
        if member_epoch != member.epoch and self._safeguards.member_epoch:
            raise StaleMemberEpochError(
                f"member {member_id!r} of group {group_id!r} names epoch {member_epoch}, but its epoch is "
                f"{member.epoch}"
            )
        return member

    def _refusal(self, group: Group | None, member: Member | None, entry: m.CommittedOffset) -> SparklogError | None:
        """Return the error if the member must not commit an offset; None if it is allowed."""
        tp, leader_epoch = TopicPartition(entry.topic, entry.partition), entry.leader_epoch
        topic = self._topics.get(tp.topic)
        if topic is None or tp.partition >= topic[1]:
            return UnknownTopicOrPartitionError(f"partition {tp} does not exist")
        if entry.topic_id not in ("", topic[0]):
            return UnknownTopicIdError(
                f"{tp}: the commit names the topic with id {entry.topic_id}, the topic of this name has id {topic[0]}: it "
                "was deleted and created again"
            )
        first_epoch = self._first_epochs.get(tp.topic, 0)
        if 0 <= leader_epoch < first_epoch:
            return FencedLeaderEpochError(
                f"{tp}: the offset follows a record of leader epoch {leader_epoch}, but this topic's epochs begin with "
                f"{first_epoch}: a topic of this name was deleted and created again; read it from "
                "its beginning"
            )
        if group is None or member is None or tp.topic not in group.basis or not self._safeguards.owner:
            return None
        if group.owners.get(tp) != member.member_id:
            return FencedMemberEpochError(f"{tp} is not assigned to member {member.member_id!r}")
        return None

    def _no_room_for(self, group_id: str, tp: TopicPartition) -> SparklogError | None:
        most = self._config.offsets_max
        if self.offsets.total < most or self.offsets.get(group_id, tp) is not None:
            return None
        return GroupMaxSizeReachedError(
            f"this partition of __consumer_offsets keeps {self.offsets.total} committed offsets, "
            f"max.offsets.per.partition is {most}: delete unused groups (`sparklog group delete`), or raise the "
            "setting"
        )

    def fetch_offsets(self, request: m.OffsetFetchRequest) -> m.OffsetFetchResponse:
        """Return all requested offsets. Raises the errors of `fetched_offsets`."""
        return m.OffsetFetchResponse(list(self.fetched_offsets(request)))

    def fetched_offsets(self, request: m.OffsetFetchRequest) -> Iterator[m.FetchedOffset]:
        """Return an iterator over the requested offsets, each partition once. The call itself raises
        InvalidGroupIdError and, if the request names a member, UnknownMemberIdError and StaleMemberEpochError."""
        check_group_id(request.group_id)
        if request.member_id or request.member_epoch != NO_EPOCH:
            group = self._groups.get(request.group_id)
            self._check_member(group, request.group_id, request.member_id, request.member_epoch)
        committed = self.offsets.of_group(request.group_id)
        pending = self.offsets.pending_of(request.group_id)
        if request.partitions is None:
            after = TopicPartition(request.after_topic, request.after_partition)
            partitions: Iterable[TopicPartition] = sorted(tp for tp in {*committed, *pending} if tp > after)
        else:
            partitions = _each_once(TopicPartition(t.topic, p) for t in request.partitions for p in t.partitions)
        return (
            self._fetched_offset(tp, committed.get(tp), request.require_stable and tp in pending) for tp in partitions
        )

    def _fetched_offset(self, tp: TopicPartition, value: OffsetValue | None, unstable: bool) -> m.FetchedOffset:
        if unstable:
            error = UnstableOffsetCommitError(f"a transaction with an offset of {tp} has not ended yet")
            return m.FetchedOffset(*tp, error.code, message=str(error))
        # a transaction can commit an offset of a topic that was deleted after it began
        if value is None or value.topic_id != self._topics.get(tp.topic, ("", 0))[0]:
            return m.FetchedOffset(*tp, 0)
        return m.FetchedOffset(*tp, 0, value.offset, value.leader_epoch, value.metadata, value.commit_ms)

    def end_transaction(self, producer_id: int, *, committed: bool) -> None:
        """Apply a transaction marker that the partition contains."""
        self.offsets.end_transaction(producer_id, committed=committed)

    def expire_offsets(self, wall_ms: int) -> list[Record]:
        """Remove offsets whose topic no member of the group subscribes to, and whose commit is older than the retention
        time. If the group has no members, that time must also have passed since its last member left. Groups with
        neither members nor offsets are removed at once. Returns the records of the removals."""
        out: list[Record] = []
        oldest_ms = wall_ms - self._config.offsets_retention_ms
        expired: dict[str, list[TopicPartition]] = {}
        subscribed = {
            i: {t for member in g.members.values() for t in member.wish.subscribed} for i, g in self._groups.items()
        }
        for group_id, tp, value in self.offsets.items():
            group = self._groups.get(group_id)
            used_ms = value.commit_ms if group is None else max(value.commit_ms, group.empty_since_ms)
            if used_ms < oldest_ms and tp.topic not in subscribed.get(group_id, ()):
                expired.setdefault(group_id, []).append(tp)
        for group_id, partitions in expired.items():
            pending = self.offsets.pending_of(group_id)  # a deletion now would also void the open transaction's offsets
            out += self.offsets.delete(group_id, [tp for tp in partitions if tp not in pending])
        kept = self.offsets.counts
        for group in list(self._groups.values()):
            if not group.members and group.group_id not in kept:
                del self._groups[group.group_id]
                out += group.tombstones()
        return out

    # -- administration

    def list_groups(self, states: Iterable[str] = ()) -> list[m.GroupSummary]:
        """Return the groups in one of `states`, sorted by id. Empty `states`: all groups. Case is ignored."""
        chosen = {s.lower() for s in states}
        summaries = map(self.summary, self.group_ids())
        return [g for g in summaries if not chosen or g.state.lower() in chosen]

    def held_ids(self) -> set[str]:
        """Return all group ids, unsorted. Callable on any thread."""
        return {*self._groups, *self.offsets.groups()}

    def group_ids(self, after: str = "") -> list[str]:
        """Return the group ids above `after`, sorted."""
        return sorted(g for g in self.held_ids() if g > after)

    def summary(self, group_id: str) -> m.GroupSummary:
        group = self._groups.get(group_id)
        if group is None:
            return m.GroupSummary(group_id, STATE_EMPTY, KIND_OFFSETS, 0)
        return m.GroupSummary(group_id, group.state, KIND_CONSUMER, len(group.members))

    def describe(self, group_id: str) -> m.GroupDetails:
        """Return a group with all its members. If the group does not exist, the result has an error code."""
        details = self.details(group_id)
        details.members = [self.member(group_id, member_id) for member_id in self.member_ids(group_id)]
        return details

    def details(self, group_id: str) -> m.GroupDetails:
        """Return a group without its members. If the group does not exist, the result has an error code."""
        group = self._groups.get(group_id)
        if group is None:
            if group_id in self.offsets.groups():
                return m.GroupDetails(0, group_id, STATE_EMPTY)
            error = _unknown_group(group_id)
            return m.GroupDetails(error.code, group_id, message=str(error))
        return m.GroupDetails(0, group_id, group.state, group.epoch, group.assignor, [])

    def member_ids(self, group_id: str) -> list[str]:
        """Return the member ids of a group, sorted by instance id or member id; empty if the group does not exist."""
        group = self._groups.get(group_id)
        members = () if group is None else group.members.values()
        return [member.member_id for member in sorted(members, key=lambda member: (member.name, member.member_id))]

    def member(self, group_id: str, member_id: str) -> m.GroupMember:
        """Return the description of a member. Raises KeyError if the group or the member does not exist."""
        group = self._groups[group_id]
        member = group.members[member_id]
        return m.GroupMember(
            member_id=member.member_id,
            instance_id=member.wish.instance_id,
            client_id=member.wish.client_id,
            client_host=member.wish.client_host,
            member_epoch=member.epoch,
            topics=sorted(member.wish.subscribed),
            topic_regex=member.wish.topic_regex,
            owned=topic_partitions(member.owned | member.revoking),
            target=topic_partitions(group.targets.get(member.member_id, ())),
        )

    def delete(self, group_id: str) -> Step[int]:
        """Delete a group without members. The reply is the number of removed offsets. Raises GroupIdNotFoundError,
        NonEmptyGroupError, UnstableOffsetCommitError (an open transaction has offsets of the group)."""
        group = self._groups.get(group_id)
        if group is None and group_id not in self.offsets.groups():
            raise _unknown_group(group_id)
        if group is not None and group.members:
            raise NonEmptyGroupError(f"group {group_id!r} has members ({len(group.members)}): stop them first")
        if self.offsets.pending_of(group_id):
            raise UnstableOffsetCommitError(f"a transaction with offsets of group {group_id!r} has not ended yet")
        committed = self.offsets.of_group(group_id)
        out = self.offsets.delete(group_id, committed)
        if self._groups.pop(group_id, None) is not None and group is not None:
            out += group.tombstones()
        return Step(len(committed), out)

    def delete_offsets(self, group_id: str, partitions: Iterable[TopicPartition]) -> Step[tuple[int, list[str]]]:
        """Delete offsets of a group. The reply has the number of removed offsets, and the topics whose offsets remain,
        because the members subscribe to them. Raises GroupIdNotFoundError, UnstableOffsetCommitError."""
        group = self._groups.get(group_id)
        if group is None and group_id not in self.offsets.groups():
            raise _unknown_group(group_id)
        if self.offsets.pending_of(group_id):
            raise UnstableOffsetCommitError(f"a transaction with offsets of group {group_id!r} has not ended yet")
        basis = () if group is None or not group.members else group.basis
        committed, subscribed = [], set()
        for tp in dict.fromkeys(partitions):
            if tp.topic in basis:
                subscribed.add(tp.topic)
            elif self.offsets.get(group_id, tp) is not None:
                committed.append(tp)
        return Step((len(committed), sorted(subscribed)), self.offsets.delete(group_id, committed))


def check_group_id(group_id: str) -> None:
    """Raise InvalidGroupIdError for an id that is empty or too long."""
    if not group_id or len(group_id) > GROUP_ID_CHARS_MAX:
        raise InvalidGroupIdError(f"group id {group_id[:40]!r}: 1 to {GROUP_ID_CHARS_MAX} characters")


GROUP_ID_CHARS_MAX = 249


def _each_once(partitions: Iterable[TopicPartition]) -> Iterator[TopicPartition]:
    seen: set[TopicPartition] = set()
    for tp in partitions:
        if tp not in seen:
            seen.add(tp)
            yield tp


def topic_partitions(partitions: Iterable[TopicPartition]) -> list[m.TopicPartitions]:
    """Return the partitions in the form of a message, sorted."""
    return [m.TopicPartitions(t, numbers) for t, numbers in records.by_topic(partitions).items()]


def _unknown_group(group_id: str) -> GroupIdNotFoundError:
    return GroupIdNotFoundError(f"group {group_id!r} does not exist: `sparklog group list` shows all groups")


def _take(group: Group) -> list[Record]:
    out, group.out = group.out, []
    return out
